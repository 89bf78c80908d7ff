//! Where the built module lies. `cargo test` does not build it: `cargo build` does.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::SystemTime;

const FILE: &str = "liblockfence.so";

/// The module under test: `LOCKFENCE_MODULE`, or the newest of the target folder's `release` and `debug`.
///
/// # Panics
/// When there is none, with what to do. When it is older than its sources, a warning is printed.
pub fn module() -> PathBuf {
    if let Some(path) = named_by("LOCKFENCE_MODULE") {
        return path;
    }
    let places: Vec<_> = target_dirs().into_iter().flat_map(|target| builds_in(&target)).collect();
    let path = newest(&places).unwrap_or_else(|| {
        panic!(
            "{FILE} is not built: run `cargo build`, or name it in LOCKFENCE_MODULE\nlooked at {places:#?}"
        )
    });
    warn_if_stale(&path);
    path
}

/// A build with the feature `test-panic`, whose extra command panics: `LOCKFENCE_MODULE_TEST`, or the newest
/// under the target folder's `test-panic`.
///
/// # Panics
/// When there is none, with what to do.
pub fn module_with_panics() -> PathBuf {
    if let Some(path) = named_by("LOCKFENCE_MODULE_TEST") {
        return path;
    }
    let places: Vec<_> =
        target_dirs().into_iter().flat_map(|target| builds_in(&target.join("test-panic"))).collect();
    newest(&places).unwrap_or_else(|| {
        panic!(
            "{FILE} with the feature test-panic is not built: run `cargo build --features test-panic \
             --target-dir target/test-panic`, or name it in LOCKFENCE_MODULE_TEST\nlooked at {places:#?}"
        )
    })
}

/// The target folders where this test program's build may have put things, most likely first.
pub(crate) fn target_dirs() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut add = |path: PathBuf| {
        if !found.contains(&path) {
            found.push(path);
        }
    };
    // <target>[/<triple>]/<profile>/deps/<test program>
    if let Ok(program) = env::current_exe()
        && let Some(deps) = program.parent()
        && deps.ends_with("deps")
        && let Some(target) = deps.parent().and_then(Path::parent)
    {
        add(target.to_path_buf());
        if let Some(above) = target.parent().filter(|above| above.join("CACHEDIR.TAG").is_file()) {
            add(above.to_path_buf());
        }
    }
    if let Some(path) = env::var_os("CARGO_TARGET_DIR").filter(|path| !path.is_empty()) {
        add(workspace().join(path));
    }
    add(workspace().join("target"));
    found
}

/// The workspace's root folder.
pub(crate) fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

fn named_by(variable: &str) -> Option<PathBuf> {
    let named = env::var_os(variable).filter(|path| !path.is_empty())?;
    let path = workspace().join(named);
    assert!(path.is_file(), "{variable} names {}, which is not there", path.display());
    Some(path)
}

fn builds_in(target: &Path) -> [PathBuf; 2] {
    [target.join("release").join(FILE), target.join("debug").join(FILE)]
}

fn newest(paths: &[PathBuf]) -> Option<PathBuf> {
    paths.iter().filter_map(|path| Some((modified(path)?, path))).max().map(|(_, path)| path.clone())
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

fn warn_if_stale(module: &Path) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let sources = ["src", "crates/core/src"].map(|folder| workspace().join(folder));
        let newest = sources.iter().filter_map(|folder| newest_below(folder)).max();
        if let (Some(built), Some((changed, source))) = (modified(module), newest)
            && built < changed
        {
            eprintln!("warning: {} is older than {}: run `cargo build`", module.display(), source.display());
        }
    });
}

fn newest_below(folder: &Path) -> Option<(SystemTime, PathBuf)> {
    let entries = fs::read_dir(folder).ok()?;
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            if path.is_dir() { newest_below(&path) } else { Some((modified(&path)?, path)) }
        })
        .max()
}
