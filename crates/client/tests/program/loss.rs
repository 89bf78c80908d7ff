//! The command is stopped when its lock is lost, and is gone before anybody else can have it.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockfence_testkit::{Proxy, cmd, wait_until};

use crate::common::*;

#[test]
fn a_broken_lock_stops_the_command() {
    let Some(server) = server() else { return };
    let script = "trap 'echo TERM; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let run = start(&mut run_sh([&server], &["--ttl", "9s"], script));
    run.expect("ready");
    assert_eq!(cmd!(server.connect(), "LOCK.BREAK", "lock").int(), 1);
    run.expect("TERM");
    run.end().assert_code(118).assert_says("\"lock\" was lost (broken").assert_says("stopping the command");
}

#[test]
fn who_took_it_is_said_and_quiet_is_quiet() {
    let Some(server) = server() else { return };
    for (options, said) in [(&["--ttl", "9s"][..], true), (&["--ttl", "9s", "-q"], false)] {
        let run = start(&mut run_sh([&server], options, "echo ready; exec sleep 600"));
        run.expect("ready");
        let mut conn = server.connect();
        cmd!(conn, "LOCK.BREAK", "lock").no_err();
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "mallory\x1b[2J and more", 600_000).token() > 0);
        let ended = run.end();
        ended.assert_code(118);
        assert_eq!(ended.err.contains("mallory"), said, "{ended:?}");
        assert!(!ended.err.contains('\x1b'), "{ended:?}");
        assert_eq!(ended.err.is_empty(), !said);
        cmd!(conn, "LOCK.BREAK", "lock").no_err();
    }
}

/// Nobody reads what lockfence says, and the pipe is full: the command is stopped all the same.
#[test]
fn a_full_pipe_holds_up_no_stop() {
    let Some(server) = server() else { return };
    let mut command = run_sh([&server], &["--ttl", "9s", "--grace", "300ms"], "trap '' TERM; exec sleep 600");
    let (unread, full) = full_pipe();
    let mut run = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full).spawn().unwrap();
    let held = || !cmd!(server.connect(), "LOCK.INFO", "lock").is_nil();
    wait_until("the lock is held", LONG, held, |held| *held);
    assert_eq!(cmd!(server.connect(), "LOCK.BREAK", "lock").int(), 1);
    let ended = wait_until("lockfence ends", LONG, || run.try_wait().unwrap(), Option::is_some);
    assert_eq!(ended.unwrap().code(), Some(118));
    drop(unread);
}

/// A pipe into which nothing fits any more, and its other end.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    // Blocks when it is full, and ends when the reader does.
    std::thread::spawn(move || while filler.write_all(&[b'x'; 4096]).is_ok() {});
    (reader, writer)
}

/// TERM is not heeded: KILL after the grace, for the command and for what it started.
#[test]
fn a_command_that_does_not_end_is_killed_after_the_grace() {
    let Some(server) = server() else { return };
    let script =
        "trap 'echo TERM' TERM; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' & echo ready
        while :; do sleep 0.05; done";
    let run = start(&mut run_sh([&server], &["--ttl", "9s", "--grace", "1s"], script));
    let lines = [run.line(), run.line()];
    let inner: i32 = lines.iter().find_map(|line| line.parse().ok()).unwrap();
    cmd!(server.connect(), "LOCK.BREAK", "lock").no_err();
    run.expect("TERM");
    let term = Instant::now();
    run.end().assert_code(118);
    assert!(term.elapsed() >= Duration::from_millis(900), "{:?}", term.elapsed());
    wait_gone(inner);
}

/// The command itself ends at once, what it started only with KILL: lockfence stays for that.
#[test]
fn what_the_command_started_is_stopped_with_it() {
    let Some(server) = server() else { return };
    let script = "sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' & wait";
    let run = start(&mut run_sh([&server], &["--ttl", "9s", "--grace", "500ms"], script));
    let inner: i32 = run.line().parse().unwrap();
    cmd!(server.connect(), "LOCK.BREAK", "lock").no_err();
    run.end().assert_code(118);
    wait_gone(inner);
}

/// All servers fall silent: the command gets TERM, and is gone, while the servers still have the lease.
#[test]
fn silence_stops_the_command_before_the_lease_ends() {
    let Some(servers) = three() else { return };
    let proxies: Vec<Proxy> = servers.iter().map(Proxy::to).collect();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let mut command = at(proxies.iter().map(Proxy::url));
    command.args(["run", "--lock", "lock", "--ttl", "20s", "--grace", "2s", "--", "sh", "-c", script]);
    let run = start(&mut command);
    run.expect("ready");
    wait_until("held everywhere", LONG, || servers.iter().all(|server| !is_free(server)), |held| *held);
    proxies.iter().for_each(Proxy::black_hole);
    let cut = Instant::now();
    let pid = group_of(&run);
    wait_until("the command to be gone", LONG, || lives(pid), |lives| !lives);
    let left = servers.iter().map(|server| info(server, "lock").field("ttl-ms").int()).min().unwrap();
    assert!(left > 0, "the lease was over {:?} after the cut", cut.elapsed());
    run.end().assert_code(118).assert_says("could not be renewed");
}

/// Servers that stay away for less than that are no loss.
#[test]
fn a_short_silence_is_borne() {
    let Some(server) = server() else { return };
    let proxy = Proxy::to(&server);
    let mut command = at([proxy.url()]);
    command.args(["run", "--lock", "lock", "--ttl", "30s", "--", "sh", "-c", "echo ready; read x; exit 3"]);
    let mut run = start_with_input(&mut command);
    run.expect("ready");
    proxy.refuse();
    std::thread::sleep(Duration::from_millis(500)); // the silence itself
    proxy.pass();
    run.close_input();
    run.end().assert_code(3);
    assert!(is_free(&server));
}

/// A loss that was not yet known when the command ended is found out at the release.
#[test]
fn a_loss_just_before_the_end_is_told() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = "echo ready; until [ -e go ]; do sleep 0.02; done";
    let run = start(run_sh([&server], &["--ttl", LEASE], script).current_dir(&folder));
    run.expect("ready");
    cmd!(server.connect(), "LOCK.BREAK", "lock").no_err();
    fs::write(folder.path().join("go"), "").unwrap();
    run.end().assert_code(118).assert_says("was lost before the command ended");
}

/// However often it was renewed: after --max-hold the command is stopped, and the next one has the lock.
#[test]
fn a_command_that_hangs_is_stopped_after_max_hold() {
    let Some(server) = server() else { return };
    let script = "trap 'echo TERM' TERM; echo ready; while :; do sleep 0.02; done";
    let options = ["--ttl", "9s", "--max-hold", "3s", "--grace", "500ms"];
    let run = start(&mut run_sh([&server], &options, script));
    run.expect("ready");
    let began = Instant::now();
    let next = start(&mut run_sh([&server], &["--wait", "forever"], "echo mine"));
    run.expect("TERM");
    assert!(began.elapsed() > Duration::from_secs(1), "{:?}", began.elapsed());
    next.expect("mine");
    run.end().assert_code(118).assert_says("was held for as long as --max-hold allows");
    next.end().assert_code(0);
    // A command that is quicker notices nothing.
    end(&mut run_sh([&server], &options, "exit 3")).assert_code(3);
}

/// Also where the grace is longer than the lease: it is taken out of the time, and the command is gone when that is over.
#[test]
fn max_hold_leaves_the_grace_and_no_more() {
    let Some(server) = server() else { return };
    let script = "trap 'echo TERM' TERM; echo $$; while :; do sleep 0.02; done";
    let options = ["--ttl", "8s", "--max-hold", "15s", "--grace", "1m"];
    let run = start(&mut run_sh([&server], &options, script));
    let pid: i32 = run.line().parse().unwrap();
    let began = Instant::now();
    let look = format!("if kill -0 {pid}; then echo both; else echo alone; fi");
    let next = start(&mut run_sh([&server], &["--wait", "forever"], &look));
    run.expect("TERM");
    let term = began.elapsed();
    next.expect("alone");
    assert!(
        term < Duration::from_millis(11_500),
        "TERM after {term:?}, not a third of the time before it is over"
    );
    run.end().assert_code(118).assert_says("was held for as long as --max-hold allows");
    next.end().assert_code(0);
}

/// Where lockfence stood still between the grant and the start of the command, and the lock was lost meanwhile: it is not
/// started. strace makes it stand still, where it is there and allowed: at the look for its own program.
#[test]
fn a_lock_that_is_lost_by_then_starts_nothing() {
    let Some(server) = server_with_strace() else { return };
    let mut command = Command::new("strace");
    command.args([
        "-qq",
        "-o",
        "/dev/null",
        "-P",
        "/proc/self/exe",
        "-e",
        "inject=statx:delay_enter=5s",
        PROGRAM,
    ]);
    command.args(["run", "--lock", "lock", "--ttl", "3s", "--", "echo", "ran"]);
    let run = start(command.env("LOCKFENCE_NODES", server.url()));
    wait_until("the grant", LONG, || is_free(&server), |free| !free);
    cmd!(server.connect(), "LOCK.BREAK", "lock").no_err();
    let ended = run.end();
    ended.assert_code(118).assert_says("was lost before the command was started");
    assert_eq!(ended.out, "");
}

/// The process that lockfence started.
fn group_of(run: &Running) -> i32 {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.pid())).unwrap();
    children.trim().parse().unwrap()
}
