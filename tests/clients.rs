//! Real client libraries: each program in docs/clients takes a lock, waits for it, and is fenced.
//!
//! `scripts/clients` fetches the libraries. A program whose library or runtime is absent is skipped, unless
//! `LOCKFENCE_REQUIRE_CLIENTS=1`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockfence_testkit::{Server, ServerKind, server_tests};

server_tests! {
    /// redis-py.
    fn redis_py(kind: ServerKind) {
        let Some(library) = library("python", "redis") else { return };
        let mut command = Command::new("python3");
        command.arg(program("redis_py.py")).env("PYTHONPATH", library);
        alice_is_fenced(kind, command);
    }

    /// node-redis.
    fn node_redis(kind: ServerKind) {
        node(kind, "node_redis.mjs", "node_modules/redis");
    }

    /// ioredis.
    fn ioredis(kind: ServerKind) {
        node(kind, "ioredis.mjs", "node_modules/ioredis");
    }
}

/// Node looks for packages beside the program: a copy stands there.
fn node(kind: ServerKind, name: &str, package: &str) {
    let Some(library) = library("node", package) else { return };
    let folder = library.join(format!("run-{}-{name}", kind.name()));
    fs::create_dir_all(&folder).unwrap();
    let copy = folder.join(name);
    fs::copy(program(name), &copy).unwrap();
    let mut command = Command::new("node");
    command.arg(copy);
    alice_is_fenced(kind, command);
    fs::remove_dir_all(folder).unwrap();
}

fn alice_is_fenced(kind: ServerKind, mut command: Command) {
    let server = Server::start(kind);
    let output = command.env("REDIS_PORT", server.port().to_string()).output().expect("it runs");
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}\n{errors}");
    let said = |who: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(who)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("nothing of {who} in {printed}\n{errors}")).to_ascii_lowercase()
    };
    let token = |who: &str| said(who).parse::<u64>().expect("a token");
    assert!(token("alice") < token("bob"), "{printed}");
    assert_eq!(said("fenced"), "true", "{printed}");
    assert_eq!(said("balance"), "250", "{printed}");
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn program(name: &str) -> PathBuf {
    root().join("docs/clients").join(name)
}

/// Where `scripts/clients` has put a library, if it has.
fn library(runtime: &str, package: &str) -> Option<PathBuf> {
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |path| root().join(path));
    let folders = [target, root().join("target")].map(|target| target.join("clients").join(runtime));
    let found = folders.into_iter().find(|folder| folder.join(package).is_dir());
    if found.is_none() {
        let required = env::var("LOCKFENCE_REQUIRE_CLIENTS").is_ok_and(|value| value == "1");
        assert!(!required, "{package} is not present and LOCKFENCE_REQUIRE_CLIENTS=1: run scripts/clients");
        eprintln!("skipped: {package} is not present (run scripts/clients)");
    }
    found
}
