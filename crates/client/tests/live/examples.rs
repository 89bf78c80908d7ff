//! The examples, run as a reader would: on servers, and compared with what they are to print.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};

use lockfence_testkit::{Server, ServerKind, server_tests};

/// Where cargo puts the examples: beside the folder of this test program.
fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().unwrap();
    let path = this.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(path.is_file(), "{} is not built: cargo build -p lockfence-client --examples", path.display());
    path
}

fn url(server: &Server) -> String {
    server.url().to_string()
}

/// The lines that the example prints; it must end well.
fn lines(name: &str, args: &[String]) -> Vec<String> {
    let Output { status, stdout, stderr } = Command::new(example(name)).args(args).output().unwrap();
    let printed = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{name}: {printed}\n{}", String::from_utf8_lossy(&stderr));
    printed.lines().map(str::to_owned).collect()
}

server_tests! {
    fn single(kind: ServerKind) {
        let server = Server::start(kind);
        let lines = lines("single", &[url(&server)]);
        assert!(lines[0].starts_with("held, token "), "{lines:?}");
        assert!(lines[1].starts_with("a second try: held by single/"), "{lines:?}");
        assert_eq!(lines[2..], ["released: Ended", "done under the lock: true"]);
    }

    fn quorum_with_one_server_down(kind: ServerKind) {
        let mut servers: Vec<Server> = (0..3).map(|_| Server::start(kind)).collect();
        let urls: Vec<String> = servers.iter().map(url).collect();
        servers.pop();
        assert_eq!(lines("quorum", &urls), ["held, token above the last: true"; 3]);
    }

    fn fenced_write(kind: ServerKind) {
        let servers: Vec<Server> = (0..4).map(|_| Server::start(kind)).collect();
        let urls: Vec<String> = servers.iter().map(url).collect();
        let expected = [
            "alice wrote 100",
            "bob wrote 250; his token is higher: true",
            "alice is fenced; her write changed nothing",
            "balance 300",
        ];
        assert_eq!(lines("fenced_write", &urls), expected);
    }

    fn leader_election(kind: ServerKind) {
        let server = Server::start(kind);
        let lines = lines("leader_election", &["anna".to_owned(), "2".to_owned(), url(&server)]);
        let terms: Vec<u64> = lines.iter().filter_map(|line| line.strip_prefix("anna leads, term ")?.parse().ok()).collect();
        assert!(matches!(terms[..], [first, second] if first < second), "{lines:?}");
        assert_eq!(lines[1], "anna steps down");
        assert_eq!(lines[3], "anna steps down");
        assert_eq!(lines.len(), 4);
    }

    fn worker_pool(kind: ServerKind) {
        let server = Server::start(kind);
        let lines = lines("worker_pool", &[url(&server)]);
        assert_eq!(lines.last().unwrap(), "8 jobs done, at most 3 at once");
        let tokens: BTreeSet<&str> =
            lines.iter().filter_map(|line| line.split_once("under token ").map(|(_, token)| token)).collect();
        assert_eq!(tokens.len(), 8, "{lines:?}");
    }
}
