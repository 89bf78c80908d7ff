//! On a terminal: Ctrl-C, Ctrl-Z, questions, and the live table. `setsid --ctty` makes a pseudo-terminal the shell's own.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Child;
use std::sync::{Arc, Mutex};

use lockfence_testkit::{Direction, Proxy, Server, cmd, wait_until};
use nix::pty::openpty;

use crate::common::*;

/// An interactive shell on a terminal.
struct Shell {
    child: Child,
    terminal: File,
    seen: Arc<Mutex<String>>,
}

impl Shell {
    fn open(server: &Server) -> Self {
        Self::open_at(&server.url())
    }

    fn open_at(url: &str) -> Self {
        let shell = Self::run_at((24, 100), url, "bash", &["--norc", "--noprofile", "--noediting", "-i"]);
        shell.wait("prompt> ");
        shell
    }

    /// Something else than a shell, with a terminal of its own.
    fn run(server: &Server, program: &str, args: &[&str]) -> Self {
        Self::run_in((24, 100), server, program, args)
    }

    /// The same on a terminal with so many lines and columns.
    fn run_in(size: (u16, u16), server: &Server, program: &str, args: &[&str]) -> Self {
        Self::run_at(size, &server.url(), program, args)
    }

    fn run_at((ws_row, ws_col): (u16, u16), url: &str, program: &str, args: &[&str]) -> Self {
        let size = nix::pty::Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let (input, output, error) = (
            File::from(pty.slave.try_clone().unwrap()),
            File::from(pty.slave.try_clone().unwrap()),
            File::from(pty.slave),
        );
        let mut command = with_usual_signals("setsid");
        command.args(["--ctty", "--wait", program]).args(args);
        command.env("LOCKFENCE_NODES", url);
        command.env("PS1", "prompt> ").env("L", PROGRAM).env("TERM", "xterm");
        let child = command.stdin(input).stdout(output).stderr(error).spawn().unwrap();
        drop(command); // and with it the other ends
        let terminal = File::from(pty.master);
        let seen = Arc::new(Mutex::new(String::new()));
        let (mut from, to) = (terminal.try_clone().unwrap(), seen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length) = from.read(&mut bytes) {
                to.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Self { child, terminal, seen }
    }

    fn keys(&self, keys: &str) {
        self.seen.lock().unwrap().clear();
        (&self.terminal).write_all(keys.as_bytes()).unwrap();
    }

    fn seen(&self) -> String {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until that is on the screen, since the last keys.
    #[track_caller]
    fn wait(&self, what: &str) {
        wait_until(what, LONG, || self.seen(), |seen| seen.contains(what));
    }

    /// Waits until the shell has given the terminal to a job. A key that is pressed before that is for the shell.
    #[track_caller]
    fn wait_foreground(&self) {
        let shell = self.child.id().to_string();
        let group = || {
            let stat = std::fs::read_to_string(format!("/proc/{shell}/stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.split(' ').nth(5).unwrap().to_owned()
        };
        wait_until("the job to have the terminal", LONG, group, |group| *group != shell);
    }

    /// Types a line and waits for what comes of it.
    #[track_caller]
    fn line(&self, line: &str, what: &str) {
        self.keys(&format!("{line}\n"));
        self.wait(what);
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ctrl_c_reaches_the_command() {
    let Some(server) = server() else { return };
    let shell = Shell::open(&server);
    shell.line("$L run --lock lock --ttl 10m -- sh -c \"trap 'echo caught; exit 6' INT; echo re''ady; while :; do sleep 0.05; done\"", "ready");
    assert!(!is_free(&server));
    shell.keys("\x03");
    shell.wait("prompt> ");
    assert_eq!(shell.seen().matches("caught").count(), 1, "{}", shell.seen());
    shell.line("echo code=$?", "code=6");
    assert!(is_free(&server));
}

/// In a pipeline the terminal stays with lockfence's own job; Ctrl-C is passed on once.
#[test]
fn ctrl_c_in_a_pipeline_is_passed_on() {
    let Some(server) = server() else { return };
    let shell = Shell::open(&server);
    shell.line("(trap '' INT; $L run --lock lock --ttl 10m -- sh -c 'trap \"echo caught; exit 6\" INT; echo re\"\"ady; while :; do sleep 0.05; done') | cat", "ready");
    assert!(!is_free(&server));
    // INT was ignored from the beginning, as in a background job of a script: neither ends.
    shell.keys("\x03");
    shell.wait("^C");
    assert!(!is_free(&server));
    drop(shell);

    let shell = Shell::open(&server);
    shell.line("$L run --lock other --ttl 10m -- sh -c 'trap \"echo caught; exit 6\" INT; echo re\"\"ady; while :; do sleep 0.05; done' 2>&1 | (trap '' INT; cat)", "ready");
    shell.keys("\x03");
    shell.wait("prompt> ");
    assert_eq!(shell.seen().matches("caught").count(), 1, "{}", shell.seen());
    shell.line("echo code=${PIPESTATUS[0]}", "code=6");
}

#[test]
fn the_command_may_read_the_terminal() {
    let Some(server) = server() else { return };
    let shell = Shell::open(&server);
    shell.keys("$L run --lock lock -- sh -c 'echo re\"\"ady; read x; echo got=$x'\n");
    shell.wait("ready");
    shell.line("one", "got=one");
    // Not given the terminal at first, it asks.
    shell.keys("$L run --lock lock -- sh -c 'echo re\"\"ady >&2; read x </dev/tty; echo got=$x' | cat\n");
    shell.wait("ready");
    shell.line("two", "got=two");
    shell.line("echo code=${PIPESTATUS[0]}", "code=0");
    // The shell has it back.
    shell.line("cat", "cat");
    shell.line("three", "three\r\nthree");
    shell.keys("\x03");
    shell.wait("prompt> ");
}

/// Says something again and again, and nothing of that stands in the line that is typed.
///
/// What is stopped by Ctrl-Z here is a bash: where `sh` is dash it starts what it runs by vfork, and if the key meets that,
/// what it starts is stopped before its exec, and the shell, which waits for that, cannot be stopped (nor ended by Ctrl-C).
/// That is so without lockfence, too.
const TICKS: &str = "trap 'exit 7' INT; echo re''ady; while :; do echo ti''ck; sleep 0.05; done";

#[test]
fn ctrl_z_stops_and_fg_goes_on_while_it_is_held() {
    let Some(server) = server() else { return };
    let shell = Shell::open(&server);
    shell.line(&format!("$L run --lock lock --ttl 10m -- bash -c \"{TICKS}\""), "ready");
    shell.keys("\x1a");
    shell.wait("Stopped");
    shell.line("fg", "tick");
    shell.keys("\x1a");
    shell.wait("Stopped");
    shell.line("bg", "tick");
    shell.line("fg", "tick");
    shell.wait_foreground();
    shell.keys("\x03");
    shell.wait("prompt> ");
    shell.line("echo code=$?", "code=7");
    assert!(is_free(&server));
}

/// After `fg` the command gets one CONT. Another one, a moment later, could undo the next Ctrl-Z.
#[test]
fn fg_lets_the_command_go_on_once() {
    let Some(server) = server_with_strace() else { return };
    let shell = Shell::open(&server);
    let log = tempfile::NamedTempFile::new().unwrap();
    let strace = format!("strace -DD -qq -e trace=kill -o {}", log.path().display());
    shell.line(&format!("{strace} $L run --lock lock --ttl 10m -- bash -c \"{TICKS}\""), "ready");
    shell.keys("\x1a");
    shell.wait("Stopped");
    shell.line("fg", &"tick\r\n".repeat(10));
    let sent = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(sent.lines().filter(|line| line.contains(", SIGCONT)")).count(), 1, "{sent}");
    shell.keys("\x03");
    shell.wait("prompt> ");
}

/// While it was stopped nobody renewed, and somebody else got the lock: the command does nothing more.
#[test]
fn fg_does_not_go_on_without_the_lock() {
    let Some(server) = server() else { return };
    let shell = Shell::open(&server);
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("mark");
    let script =
        format!("echo re''ady; while :; do sleep 0.05; [ -e {0} ] && echo >{0}.late; done", mark.display());
    shell.line(&format!("$L run --lock lock --ttl 3s --grace 1s -- bash -c \"{script}\""), "ready");
    shell.keys("\x1a");
    shell.wait("Stopped");
    wait_free(&server);
    take(&server, "else");
    std::fs::write(&mark, "").unwrap();
    shell.line("fg", "was lost while it was stopped");
    shell.wait("prompt> ");
    shell.line("echo code=$?", "code=118");
    let late = folder.path().join("mark.late");
    assert!(!late.exists(), "the command went on without the lock");
}

/// A loop ends with the command that Ctrl-C ended, whoever runs it.
#[test]
fn ctrl_c_ends_a_loop() {
    let Some(server) = server() else { return };
    let shell = Shell::open(&server);
    let run = "$L run --lock lock --wait 1m -- sh -c 'echo re\"\"ady; exec sleep 600'";
    for (line, pipe) in [
        (format!("for i in 1 2 3; do {run}; done"), ""),
        (format!("sh -c \"while :; do {}; done\"", run.replace('"', "\\\"")), ""),
        (format!("bash -c \"while :; do {}; done\"", run.replace('"', "\\\"")), ""),
        (format!("for i in 1 2 3; do {run}; done"), " | cat"),
    ] {
        shell.line(&format!("{line}{pipe}"), "ready\r\n");
        shell.keys("\x03");
        shell.wait("prompt> ");
        shell.line("echo code=$?", "code=130");
        wait_free(&server);
    }
}

/// Ctrl-Z stops a script that waits for lockfence, too.
#[test]
fn ctrl_z_stops_the_whole_job() {
    let Some(server) = server() else { return };
    let shell = Shell::open(&server);
    let run =
        "\\$L run --lock lock --ttl 10m -- bash -c 'echo re''ady; while :; do echo ti''ck; sleep 0.05; done'";
    shell.line(&format!("sh -c \"{run}; echo after\""), "ready");
    shell.keys("\x1a");
    shell.wait("Stopped");
    shell.line("fg", "tick");
    shell.keys("\x03");
    shell.wait("prompt> ");
    wait_free(&server);
}

/// Where no shell could let it go on again Ctrl-Z does nothing, as for any program.
#[test]
fn ctrl_z_without_a_shell_does_nothing() {
    let Some(server) = server() else { return };
    let args = ["run", "--lock", "lock", "--ttl", "10m", "--", "bash", "-c", TICKS];
    let mut alone = Shell::run(&server, PROGRAM, &args);
    alone.wait("ready");
    for _ in 0..3 {
        alone.keys("\x1a");
        alone.wait("^Z");
        alone.keys("");
        alone.wait("tick");
    }
    alone.keys("\x03");
    assert_eq!(alone.child.wait().unwrap().code(), Some(7));
    assert!(is_free(&server));
}

#[test]
fn break_asks() {
    let Some(server) = server() else { return };
    let shell = Shell::open(&server);
    take(&server, "alice");
    for answer in ["n", "", "what"] {
        shell.line("$L break lock", "Break it? [y/N] ");
        assert!(shell.seen().contains("\"lock\" is held by al… for "), "{}", shell.seen());
        shell.line(answer, "nothing was broken");
        shell.line("echo code=$?", "code=1");
        assert!(!is_free(&server));
    }
    shell.line("$L break lock", "Break it? [y/N] ");
    shell.line("y", "was taken from its holder");
    shell.line("echo code=$?", "code=0");
    assert!(is_free(&server));
    shell.line("$L break lock", "nobody holds");
}

/// Who answers takes their time. Meanwhile another one may have got the lock, and was not asked about.
#[test]
fn break_breaks_whom_it_has_shown() {
    let Some(server) = server() else { return };
    let shell = Shell::open(&server);
    take(&server, "alice");
    shell.line("$L break lock", "Break it? [y/N] ");
    let mut conn = server.connect();
    cmd!(conn, "LOCK.RELEASE", "lock", "alice").no_err();
    take(&server, "bob");
    shell.line("y", "the holder has changed: it is b… now; nothing was broken");
    shell.line("echo code=$?", "code=1");
    assert!(!is_free(&server));
    // Nor when the same one got it anew.
    shell.line("$L break lock", "Break it? [y/N] ");
    cmd!(conn, "LOCK.RELEASE", "lock", "bob").no_err();
    take(&server, "bob");
    shell.line("y", "the holder has changed");
    shell.line("$L break lock", "Break it? [y/N] ");
    cmd!(conn, "LOCK.RELEASE", "lock", "bob").no_err();
    shell.line("y", "nobody holds");
    shell.line("echo code=$?", "code=1");
}

/// Nor when the other one gets it while the order is on its way: the order names whom it is to break.
#[test]
fn break_spares_who_comes_in_at_the_last_moment() {
    let Some(server) = server() else { return };
    let proxy = Proxy::to(&server);
    let shell = Shell::open_at(&proxy.url());
    take(&server, "alice");
    shell.line("$L break lock", "Break it? [y/N] ");
    proxy.hold_after(Direction::ToServer, 1); // it looks once more
    shell.keys("y\n");
    wait_until("the order to be on its way", LONG, || proxy.held(), |held| *held == 1);
    let mut conn = server.connect();
    cmd!(conn, "LOCK.RELEASE", "lock", "alice").no_err();
    take(&server, "bob");
    proxy.pass();
    shell.wait("the holder has changed: it is b… now; nothing was broken");
    shell.line("echo code=$?", "code=1");
    assert_eq!(cmd!(conn, "LOCK.RELEASE", "lock", "bob").int(), 1);
}

/// Terminals that do not know their size, as of some containers and editors, get whole lines.
#[test]
fn a_terminal_without_a_size() {
    let Some(server) = server() else { return };
    take(&server, "alice");
    let row = "lock  held   exclusive  al…";
    for args in [&["ls"][..], &["watch", "--count", "1"]] {
        let mut shell = Shell::run_in((0, 0), &server, PROGRAM, args);
        assert_eq!(shell.child.wait().unwrap().code(), Some(0));
        shell.wait(row);
    }
    let mut shell = Shell::run_in((0, 0), &server, PROGRAM, &["info", "lock"]);
    shell.child.wait().unwrap();
    shell.wait("holder   al…");
}

#[test]
fn watch_draws_in_place_until_ctrl_c() {
    let Some(server) = server() else { return };
    let shell = Shell::open(&server);
    take(&server, "alice");
    shell.line("$L watch --interval 50ms", "al…");
    assert!(shell.seen().contains("\x1b[?1049h"), "another screen");
    cmd!(server.connect(), "LOCK.BREAK", "lock").no_err();
    take(&server, "bob");
    shell.wait("b…");
    // More locks than lines do not scroll.
    let mut conn = server.connect();
    for n in 0..50 {
        cmd!(conn, "LOCK.ACQUIRE", format!("many:{n:02}"), "me", 600_000).no_err();
    }
    shell.wait("many:15");
    assert!(!shell.seen().contains("many:40"));
    shell.keys("\x1a");
    shell.wait("\x1b[?1049l");
    shell.wait("Stopped");
    shell.line("fg", "\x1b[?1049h");
    shell.wait("b…");
    server.pause();
    shell.keys("\x03"); // also while a server is silent
    shell.wait("\x1b[?1049l");
    server.resume();
    shell.line("echo code=$?", "code=0");
}

/// Long names wrap within the terminal's width.
#[test]
fn tables_fit_the_terminal() {
    let Some(server) = server() else { return };
    let shell = Shell::open(&server);
    cmd!(server.connect(), "LOCK.ACQUIRE", "x".repeat(300), "me", 600_000).no_err();
    shell.line("$L ls; echo do''ne", "done");
    let seen = shell.seen();
    assert!(seen.lines().all(|line| line.chars().count() <= 100), "{seen}");
}
