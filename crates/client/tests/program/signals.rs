//! Signals: those for the command arrive there, and the lock never stays behind.

use std::time::{Duration, Instant};

use lockfence_testkit::{cmd, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::*;

/// Says each signal that it gets, and ends after TERM. What it started must not hold it up.
const SCRIPT: &str = "
    for s in INT HUP QUIT USR1 USR2; do trap \"echo $s\" $s; done
    trap 'echo TERM; exit 9' TERM
    echo ready
    while :; do sleep 0.02; done";

#[test]
fn signals_are_passed_on() {
    let Some(server) = server() else { return };
    let run = start(&mut run_sh([&server], &["--ttl", LEASE], SCRIPT));
    run.expect("ready");
    for (signal, name) in [
        (Signal::SIGINT, "INT"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGTERM, "TERM"),
    ] {
        run.signal(signal);
        run.expect(name);
    }
    run.end().assert_code(9);
    assert!(is_free(&server));
}

/// What the command started gets TERM, too, but USR1 is for the command alone: it would kill most programs.
#[test]
fn what_the_command_started_gets_only_what_ends() {
    let Some(server) = server() else { return };
    let script = "
        trap 'echo USR1' USR1
        sleep 600 & inner=$!
        echo $inner
        while :; do wait $inner; done";
    let run = start(&mut run_sh([&server], &["--ttl", LEASE], script));
    let inner: i32 = run.line().parse().unwrap();
    for _ in 0..3 {
        run.signal(Signal::SIGUSR1);
        run.expect("USR1");
        assert!(lives(inner));
    }
    run.signal(Signal::SIGTERM);
    run.end().assert_code(143);
    wait_gone(inner);
    assert!(is_free(&server));
}

/// CONT to lockfence is for a command that was stopped by hand, too, as in `kill -STOP` and `kill -CONT` of all of them.
#[test]
fn a_command_that_was_stopped_goes_on_with_lockfence() {
    let Some(server) = server() else { return };
    let run = start(&mut run_sh([&server], &["--ttl", LEASE], "echo $$; exec sleep 600"));
    let command = Pid::from_raw(run.line().parse().unwrap());
    for _ in 0..3 {
        let state = || std::fs::read_to_string(format!("/proc/{command}/stat")).unwrap();
        kill(command, Signal::SIGSTOP).unwrap();
        wait_until("it to be stopped", LONG, state, |state| state.contains(") T "));
        run.signal(Signal::SIGCONT);
        wait_until("it to go on", LONG, state, |state| !state.contains(") T "));
    }
    run.signal(Signal::SIGTERM);
    run.end().assert_code(143);
}

#[test]
fn a_signal_while_it_waits_calls_it_off() {
    let Some(server) = server() else { return };
    take(&server, "alice");
    for (signal, code) in
        [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129), (Signal::SIGQUIT, 131)]
    {
        let mut waiting = start(&mut run_sh([&server], &["--wait", "forever"], "echo ran"));
        wait_waiters(&server, 1);
        waiting.signal(Signal::SIGUSR1); // means nothing yet
        assert!(waiting.is_running());
        waiting.signal(signal);
        let called_off = Instant::now();
        let ended = waiting.end();
        ended.assert_code(code);
        assert!(called_off.elapsed() < Duration::from_millis(1500), "{:?}", called_off.elapsed());
        assert_eq!(ended.out, "");
        wait_waiters(&server, 0);
    }
    cmd!(server.connect(), "LOCK.RELEASE", "lock", "alice").no_err();
    assert!(is_free(&server), "nothing was taken by those who were called off");
}

/// One server of a quorum may hang: the others have been told, and it is not waited for longer than for an answer.
#[test]
fn calling_off_leaves_nothing_on_a_quorum() {
    let Some(servers) = three() else { return };
    let run = start(&mut run_sh(&servers, &["--ttl", LEASE], "echo ready; exec sleep 600"));
    run.expect("ready");
    for hung in [false, true] {
        if hung {
            servers[2].pause();
        }
        let mut command = lockfence(&servers);
        command.args(["run", "--lock", "lock", "--wait", "forever", "--ttl", "10s", "--", "echo", "ran"]);
        let waiting = start(&mut command);
        let others = if hung { &servers[..2] } else { &servers[..] };
        let waiters = || others.iter().map(crate::common::waiters).sum::<i64>();
        wait_until("a waiter", LONG, waiters, |seen| *seen == 1);
        waiting.signal(Signal::SIGINT);
        let called_off = Instant::now();
        waiting.end().assert_code(130);
        assert!(called_off.elapsed() < Duration::from_millis(1500), "{:?}", called_off.elapsed());
        wait_until("no waiter", LONG, waiters, |seen| *seen == 0);
    }
    servers[2].resume();
    run.signal(Signal::SIGTERM);
    run.end().assert_code(143);
    servers.iter().for_each(wait_free);
}

/// As `nohup` starts it.
#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let Some(server) = server() else { return };
    take(&server, "alice");
    let mut command = with_usual_signals("sh");
    command.env("LOCKFENCE_NODES", server.url()).args(["-c", "trap '' HUP; exec \"$@\"", "sh", PROGRAM]);
    command.args([
        "run",
        "--lock",
        "lock",
        "--wait",
        "forever",
        "--",
        "sh",
        "-c",
        "echo ran; read x </dev/fd/0; exit 5",
    ]);
    let mut waiting = start(&mut command);
    wait_waiters(&server, 1);
    waiting.signal(Signal::SIGHUP);
    assert!(waiting.is_running());
    cmd!(server.connect(), "LOCK.RELEASE", "lock", "alice").no_err();
    waiting.expect("ran");
    waiting.end().assert_code(5);
}

/// Nobody can do anything about KILL. The command goes with lockfence, and the lock with its ttl.
#[test]
fn the_command_does_not_outlive_a_killed_lockfence() {
    let Some(server) = server() else { return };
    let script = "trap '' TERM HUP INT; echo $$; while :; do sleep 0.05; done";
    let run = start(&mut run_sh([&server], &["--ttl", "8s"], script));
    let command: i32 = run.line().parse().unwrap();
    assert!(lives(command));
    run.signal(Signal::SIGKILL);
    wait_gone(command);
    run.end().assert_code(137);
    wait_free(&server);
}
