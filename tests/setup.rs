//! scripts/setup: what a machine lacks is found and named. Runs the script, never apt-get.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::{
    fs::File,
    path::Path,
    process::{Command, Output},
};

/// `scripts/setup build`, told to look for libclang in `folder` alone and to install nothing.
fn setup(folder: &Path) -> Output {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/setup"))
        .arg("build")
        .env("NO_INSTALL", "1")
        .env("LIBCLANG_PATH", folder)
        .output()
        .expect("scripts/setup runs")
}

/// libclang-cpp, which many a Debian machine has for another program, is not the library that bindgen loads.
#[test]
fn libclang_cpp_is_not_taken_for_libclang() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("lib");
    std::fs::create_dir(&folder).unwrap();
    File::create(folder.join("libclang-cpp.so.14")).unwrap();
    let without = setup(&folder);
    assert!(!without.status.success());
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(said.contains("libclang-dev"), "{said}");
    assert!(said.contains("LIBCLANG_PATH"), "the way without root is named too: {said}");

    File::create(folder.join("libclang-14.so.13")).unwrap();
    let with = setup(&folder);
    assert!(with.status.success(), "{}", String::from_utf8_lossy(&with.stderr));
}
