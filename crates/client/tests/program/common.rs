//! Starts the program, reads what it says, and never waits without a bound.

use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use lockfence_testkit::{Reply, Server, ServerKind, cmd, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What takes a moment on an idle machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// A lease that is never over within a test.
pub(crate) const LEASE: &str = "10m";

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_lockfence");

/// The usual server, where it is there.
pub(crate) fn server() -> Option<Server> {
    ServerKind::Redis70.present().then(|| Server::start(ServerKind::Redis70))
}

/// Three of them, of which some may be killed.
pub(crate) fn three() -> Option<Vec<Server>> {
    let one = || Server::builder(ServerKind::Redis70).may_die().start();
    ServerKind::Redis70.present().then(|| (0..3).map(|_| one()).collect())
}

/// The program with these nodes.
pub(crate) fn lockfence<'s>(servers: impl IntoIterator<Item = &'s Server>) -> Command {
    at(servers.into_iter().map(Server::url))
}

/// A program that ignores no signal, even where the tests run in a background job of a script, which ignores INT.
pub(crate) fn with_usual_signals(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    command
}

/// The usual server, where strace is there as well, and may be used. Where it is not, says so.
pub(crate) fn server_with_strace() -> Option<Server> {
    let tried = Command::new("strace").args(["-DD", "-qq", "-o", "/dev/null", "true"]).status();
    if !tried.is_ok_and(|status| status.success()) {
        eprintln!("skipped: strace is missing, or may not be used");
        return None;
    }
    server()
}

/// The program with nodes at these addresses.
pub(crate) fn at(urls: impl IntoIterator<Item = String>) -> Command {
    let urls: Vec<String> = urls.into_iter().collect();
    let mut command = with_usual_signals(PROGRAM);
    command.env("LOCKFENCE_NODES", urls.join(",")).env("LC_ALL", "C.UTF-8");
    command
}

/// `lockfence run --lock lock … -- sh -c script`
pub(crate) fn run_sh<'s>(
    servers: impl IntoIterator<Item = &'s Server>,
    options: &[&str],
    script: &str,
) -> Command {
    let mut command = lockfence(servers);
    command
        .args(["run", "--lock", "lock", "--node-timeout", "2s"])
        .args(options)
        .args(["--", "sh", "-c", script]);
    command
}

/// How a program ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    /// As a shell says it: 128 + n for a signal.
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn assert_code(&self, code: i32) -> &Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn assert_says(&self, what: &str) -> &Self {
        assert!(self.err.contains(what), "expected {what:?} in {self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// A program that runs. Killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

/// Starts a program, without input.
#[track_caller]
pub(crate) fn start(command: &mut Command) -> Running {
    spawn(command.stdin(Stdio::null()))
}

/// Starts a program whose input stays open until [`Running::close_input`].
#[track_caller]
pub(crate) fn start_with_input(command: &mut Command) -> Running {
    spawn(command.stdin(Stdio::piped()))
}

#[track_caller]
fn spawn(command: &mut Command) -> Running {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = read_lines(child.stdout.take().unwrap());
    let errors = read_lines(child.stderr.take().unwrap());
    Running { child, lines, errors }
}

/// Runs a program to its end.
#[track_caller]
pub(crate) fn end(command: &mut Command) -> Ended {
    start(command).end()
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub(crate) fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// The next line of its output.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        match self.lines.recv_timeout(LONG) {
            Ok(line) => line,
            Err(error) => panic!("no line ({error}); errors: {:?}", drain(&self.errors)),
        }
    }

    #[track_caller]
    pub(crate) fn expect(&self, line: &str) {
        assert_eq!(self.line(), line, "errors: {:?}", drain(&self.errors));
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < LONG, "still runs; errors: {:?}", drain(&self.errors));
            std::thread::sleep(Duration::from_millis(5));
        };
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
        Ended { code, out: all(&self.lines), err: all(&self.errors) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
    });
    lines
}

/// What was said so far.
fn drain(lines: &Receiver<String>) -> Vec<String> {
    lines.try_iter().collect()
}

/// What is said to the end. A process that the program left behind may keep the pipe open: that is not waited for.
fn all(lines: &Receiver<String>) -> String {
    let mut text = String::new();
    while let Ok(line) = lines.recv_timeout(Duration::from_secs(5)) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// What the server says about a lock.
pub(crate) fn info(server: &Server, lock: impl AsRef<[u8]>) -> Reply {
    cmd!(server.connect(), "LOCK.INFO", lock.as_ref())
}

pub(crate) fn is_free(server: &Server) -> bool {
    says_free(&info(server, "lock"))
}

fn says_free(reply: &Reply) -> bool {
    reply.is_nil() || reply.field("state").text() == "free"
}

#[track_caller]
pub(crate) fn wait_free(server: &Server) {
    wait_until("the lock to be free", LONG, || info(server, "lock"), says_free);
}

#[track_caller]
pub(crate) fn wait_waiters(server: &Server, count: i64) {
    wait_until("so many waiters", LONG, || waiters(server), |seen| *seen == count);
}

pub(crate) fn waiters(server: &Server) -> i64 {
    let reply = info(server, "lock");
    if reply.is_nil() { 0 } else { reply.field("waiters").int() }
}

/// Somebody else takes the lock, for as long as the test needs it.
#[track_caller]
pub(crate) fn take(server: &Server, owner: &str) {
    assert!(cmd!(server.connect(), "LOCK.ACQUIRE", "lock", owner, 600_000).token() > 0);
}

/// Whether the process is there and does not only wait to be reaped.
pub(crate) fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[track_caller]
pub(crate) fn wait_gone(pid: i32) {
    wait_until("the process to be gone", LONG, || lives(pid), |lives| !lives);
}
