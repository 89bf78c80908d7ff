//! A running server, from start to end. The guard owns its folder, its port and its process.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::ports::PortLease;
use crate::process::{Process, describe};
use crate::watch::{fields, read_logs};
use crate::{Conn, Received, Reply, ServerBuilder, ServerKind, args, redis_cli};

/// How long a step of a healthy server may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A server of the test's own. It ends when this is dropped, and when the test program ends in any way.
///
/// All methods take `&self`, so that threads can share it.
#[derive(Debug)]
pub struct Server {
    process: Mutex<Process>, // first, so that it ends before its folder and its port go
    setup: ServerBuilder,
    dir: Option<TempDir>,
    lease: PortLease,
}

/// Why a server did not start.
#[derive(Debug)]
pub struct StartFailure {
    /// What happened, in one line.
    pub why: String,
    /// Its log and its output.
    pub log: String,
}

impl fmt::Display for StartFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "server did not start: {}\n{}", self.why, self.log)
    }
}

impl std::error::Error for StartFailure {}

impl Server {
    /// Starts a server with the module and all defaults.
    #[track_caller]
    pub fn start(kind: ServerKind) -> Self {
        Self::builder(kind).start()
    }

    /// Describes a server that differs from the defaults.
    pub fn builder(kind: ServerKind) -> ServerBuilder {
        ServerBuilder::new(kind)
    }

    pub(crate) fn launch(setup: ServerBuilder) -> Result<Self, StartFailure> {
        const ATTEMPTS: u32 = 5;
        let mut attempt = 1;
        loop {
            match Self::launch_on(setup.clone(), PortLease::take()) {
                Err(failure) if attempt < ATTEMPTS && failure.is_port_clash() => attempt += 1,
                result => return result,
            }
        }
    }

    fn launch_on(setup: ServerBuilder, lease: PortLease) -> Result<Self, StartFailure> {
        let dir = tempfile::Builder::new().prefix("lockfence-").tempdir();
        let dir = dir.unwrap_or_else(|error| panic!("cannot create a folder for the server: {error}"));
        setup.write_config(dir.path(), lease.port());
        let process = spawn(&setup, dir.path())?;
        let server = Self { setup, dir: Some(dir), lease, process: Mutex::new(process) };
        server.wait_ready().inspect_err(|_| server.process().expect_end())?;
        Ok(server)
    }

    /// Which server it is.
    pub fn kind(&self) -> ServerKind {
        self.setup.kind
    }

    /// Its port on 127.0.0.1; the same after a restart.
    pub fn port(&self) -> u16 {
        self.lease.port()
    }

    /// Its process number; another one after a restart.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// Its address for clients: `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        match &self.setup.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port()),
            None => format!("redis://127.0.0.1:{}", self.port()),
        }
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.setup.password.as_deref()
    }

    /// Its folder, which holds its settings (`redis.conf`), log and data.
    pub fn dir(&self) -> &Path {
        self.dir.as_ref().map(TempDir::path).unwrap_or(Path::new(""))
    }

    /// Its Unix socket, where the builder asked for one.
    pub fn unix_path(&self) -> PathBuf {
        self.dir().join("server.sock")
    }

    /// Connects.
    ///
    /// # Panics
    /// When the server does not let us, with its log.
    #[track_caller]
    pub fn connect(&self) -> Conn {
        let conn = self.try_connect();
        conn.unwrap_or_else(|error| panic!("cannot connect to {self}: {error}\n{}", self.log_tail()))
    }

    /// Connects and switches to RESP3.
    #[track_caller]
    pub fn connect_resp3(&self) -> Conn {
        self.connect().resp3()
    }

    /// Connects as a user of the ACL.
    #[track_caller]
    pub fn connect_as(&self, user: &str, password: &str) -> Conn {
        self.connect().auth(user, password)
    }

    /// Connects through its Unix socket.
    #[track_caller]
    pub fn connect_unix(&self) -> Conn {
        let conn = Conn::open_unix(&self.unix_path());
        conn.unwrap_or_else(|error| panic!("cannot connect to {}: {error}", self.unix_path().display()))
    }

    /// Connects, or says why not: for faults.
    pub fn try_connect(&self) -> std::io::Result<Conn> {
        let mut conn = Conn::open(self.port())?;
        if let Some(password) = &self.setup.password {
            let _ = conn.try_cmd(args!["AUTH", password], PATIENCE);
        }
        Ok(conn)
    }

    /// Runs `redis-cli` with these arguments and returns what it printed.
    ///
    /// # Panics
    /// When there is none, or it does not end within 60 s.
    #[track_caller]
    pub fn cli(&self, args: &[&str]) -> String {
        const WITHIN: Duration = Duration::from_secs(60);
        let program = redis_cli().expect("redis-cli on the PATH, or named in REDIS_CLI");
        let mut command = Command::new(program);
        command.args(["-h", "127.0.0.1", "-p", &self.port().to_string()]).args(args);
        if let Some(password) = &self.setup.password {
            command.env("REDISCLI_AUTH", password);
        }
        let output = tempfile::NamedTempFile::new().expect("a file for the output of redis-cli");
        let again = || output.reopen().expect("the output file of redis-cli");
        command.stdin(Stdio::null()).stdout(again()).stderr(again());
        let process = Process::spawn(command).unwrap_or_else(|error| panic!("cannot run redis-cli: {error}"));
        let ended = process.wait_end(WITHIN);
        let text = fs::read(output.path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(ended.is_some(), "redis-cli {args:?} still runs after {WITHIN:?}: {text}");
        text
    }

    /// Sends a signal of `libc`, such as `libc::SIGSTOP`.
    pub fn signal(&self, signal: i32) {
        self.process().signal(signal);
    }

    /// Stops its process where it is (SIGSTOP): it keeps its connections and says nothing.
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Lets a paused process go on.
    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Kills it at once and waits for its end.
    pub fn kill9(&self) {
        self.process().kill();
    }

    /// Asks it to end (SIGTERM), which saves where its settings say so, and waits.
    ///
    /// # Panics
    /// When it does not end in time, or not cleanly.
    #[track_caller]
    pub fn shutdown_clean(&self) {
        self.signal(libc::SIGTERM);
        self.resume();
        self.finish("SIGTERM");
    }

    /// Ends it with `SHUTDOWN SAVE`: a snapshot keeps the data, whatever its settings.
    #[track_caller]
    pub fn shutdown_saving(&self) {
        self.process().expect_end();
        if let Received::Reply(reply) = self.connect().try_cmd(["SHUTDOWN", "SAVE"], PATIENCE) {
            panic!("SHUTDOWN SAVE: {reply:?}\n{}", self.log_tail());
        }
        self.finish("SHUTDOWN SAVE");
    }

    #[track_caller]
    fn finish(&self, asked: &str) {
        let Some(status) = self.process().wait_end(PATIENCE) else {
            panic!("{self} still runs {PATIENCE:?} after {asked}\n{}", self.log_tail());
        };
        assert!(status.success(), "{self} {} after {asked}\n{}", describe(status), self.log_tail());
    }

    /// Starts it again, in the same folder, on the same port, with the same settings. One that still runs is
    /// shut down cleanly before.
    #[track_caller]
    pub fn restart(&self) {
        if let Err(failure) = self.try_restart() {
            panic!("{failure}");
        }
    }

    /// Like [`restart`](Self::restart), for a start that may fail.
    #[track_caller]
    pub fn try_restart(&self) -> Result<(), StartFailure> {
        if self.is_alive() {
            self.shutdown_clean();
        }
        let fresh = spawn(&self.setup, self.dir())?;
        *self.process() = fresh;
        self.wait_ready().inspect_err(|_| self.process().expect_end())
    }

    /// Whether its process runs (a paused one does).
    pub fn is_alive(&self) -> bool {
        self.process().ended().is_none()
    }

    /// Asserts that it runs and answers.
    #[track_caller]
    pub fn assert_alive(&self) {
        if let Some(status) = self.process().ended() {
            panic!("{self} {}\n{}", describe(status), self.log_tail());
        }
        let reply = self.connect().try_cmd(["PING"], PATIENCE);
        let answers = matches!(reply, Received::Reply(_));
        assert!(answers, "{self} does not answer: {reply:?}\n{}", self.log_tail());
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_ready(&self) -> Result<(), StartFailure> {
        let deadline = Instant::now() + self.setup.start_within;
        loop {
            if let Some(status) = self.process().ended() {
                return Err(self.failure(describe(status)));
            }
            let state = self.look();
            match state {
                Look::Ready => return Ok(()),
                Look::Stranger(pid) => return Err(self.failure(format!("{PORT_TAKEN} by process {pid}"))),
                Look::NotYet(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
                Look::NotYet(seen) => {
                    let why = format!("not ready within {:?}: {seen}", self.setup.start_within);
                    return Err(self.failure(why));
                }
            }
        }
    }

    /// Asks whether *our* process answers on the port, and is done loading.
    fn look(&self) -> Look {
        const WITHIN: Duration = Duration::from_secs(1);
        let mut conn = match self.try_connect() {
            Ok(conn) => conn,
            Err(error) => return Look::NotYet(error.to_string()),
        };
        match conn.try_cmd(["PING"], WITHIN) {
            Received::Reply(Reply::Error(line)) if line.starts_with("LOADING") => Look::NotYet(line),
            Received::Reply(_) => match conn.try_cmd(["INFO", "server"], WITHIN) {
                Received::Reply(Reply::Error(_)) => Look::Ready, // not for us to ask: NOAUTH, NOPERM
                Received::Reply(reply) => match fields(&reply.text()).remove("process_id") {
                    Some(pid) if pid == self.pid().to_string() => Look::Ready,
                    pid => Look::Stranger(pid.unwrap_or_default()),
                },
                other => Look::NotYet(format!("{other:?}")),
            },
            other => Look::NotYet(format!("{other:?}")),
        }
    }

    fn failure(&self, why: String) -> StartFailure {
        StartFailure { why: format!("{self} {why}"), log: self.log() }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} on port {}", self.kind(), self.port())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let died = self.process().died_by_itself().filter(|_| !self.setup.may_die);
        if thread::panicking() || died.is_some() {
            eprintln!("--- log of {self} in {}\n{}", self.dir().display(), self.log_tail());
        }
        if std::env::var_os("LOCKFENCE_KEEP_DIRS").is_some()
            && let Some(dir) = self.dir.take()
        {
            eprintln!("--- kept {}", dir.keep().display());
        }
        if let Some(status) = died
            && !thread::panicking()
        {
            panic!("{self} {} by itself during the test; its log is above", describe(status));
        }
    }
}

const PORT_TAKEN: &str = "has its port taken";

impl StartFailure {
    fn is_port_clash(&self) -> bool {
        self.why.contains(PORT_TAKEN) || self.log.contains("Address already in use")
    }
}

enum Look {
    Ready,
    NotYet(String),
    Stranger(String),
}

fn spawn(setup: &ServerBuilder, dir: &Path) -> Result<Process, StartFailure> {
    Process::spawn(setup.command(dir)).map_err(|error| StartFailure {
        why: format!("cannot run {}: {error}", setup.kind),
        log: read_logs(dir),
    })
}
