//! Nothing outlives the test program, however it ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use lockfence_testkit::{Server, ServerKind, wait_until};

const ROLE: &str = "LOCKFENCE_TESTKIT_VICTIM";

/// Started by the test below in a program of its own: starts a server and waits to be killed.
#[test]
fn victim() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let server = std::thread::spawn(|| Server::builder(ServerKind::Redis70).without_module().start());
    let server = server.join().unwrap(); // the thread that asked for it is gone, the server must not be
    server.assert_alive();
    println!("server {}", server.pid());
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_server_dies_with_the_program() {
    if !ServerKind::Redis70.present() {
        return;
    }
    let temp = tempfile::tempdir().unwrap(); // for what the victim cannot clear away
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture"])
        .env(ROLE, "1")
        .env("TMPDIR", temp.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let pid =
        lines.into_iter().find_map(|line| Some(line.split_once("server ")?.1.to_owned())).expect("a pid");
    let runs = || Path::new("/proc").join(&pid).join("exe").read_link().is_ok();
    assert!(runs(), "the server runs");
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_until("the server's end", Duration::from_secs(10), runs, |runs| !runs);
}
