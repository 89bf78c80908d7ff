//! A child process that cannot outlive the test program, whatever ends either.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A running or ended child. It leads a process group of its own, so that what it forked goes with it.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Child,
    ended: Option<ExitStatus>,
    /// We ended it or asked it to end: its end is no news.
    asked: bool,
}

impl Process {
    /// Starts the command.
    pub(crate) fn spawn(command: Command) -> io::Result<Self> {
        let child = spawn_from_lasting_thread(command)?;
        Ok(Self { pid: child.id(), state: Mutex::new(State { child, ended: None, asked: false }) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        self.state().look()
    }

    /// Its end, where nobody asked for it and it was no clean exit.
    pub(crate) fn died_by_itself(&self) -> Option<ExitStatus> {
        let mut state = self.state();
        let status = state.look()?;
        (!state.asked && !status.success()).then_some(status)
    }

    /// From here on its end is expected.
    pub(crate) fn expect_end(&self) {
        self.state().asked = true;
    }

    /// Sends a signal; nothing where it has ended, so that a number used again is never hit.
    pub(crate) fn signal(&self, signal: i32) {
        let mut state = self.state();
        if state.look().is_some() {
            return;
        }
        if signal == libc::SIGKILL || signal == libc::SIGTERM {
            state.asked = true;
        }
        send_signal(pid_t(self.pid), signal);
    }

    /// SIGKILL to it alone, and waits for its end.
    pub(crate) fn kill(&self) -> ExitStatus {
        self.signal(libc::SIGKILL);
        let mut state = self.state();
        state.wait().unwrap_or_else(|error| panic!("cannot wait for process {}: {error}", self.pid))
    }

    /// Waits for its end at most this long.
    pub(crate) fn wait_end(&self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            let ended = self.ended();
            if ended.is_some() || Instant::now() >= deadline {
                return ended;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut state = self.state();
        if state.look().is_none() {
            send_signal(-pid_t(self.pid), libc::SIGKILL); // with the forks that save or rewrite
        }
        let _ = state.wait();
    }
}

impl State {
    fn look(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = match self.ended {
            Some(status) => status,
            None => self.child.wait()?,
        };
        self.ended = Some(status);
        Ok(status)
    }
}

/// How a process ended, for a message.
pub(crate) fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("ended by signal {signal}"),
        None => format!("exited with code {}", status.code().unwrap_or(-1)),
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// PR_SET_PDEATHSIG fires at the death of the *thread* that forked, and the thread of a test ends before what
/// it started may be over (a server handed to another thread). So one thread, which lasts as long as the
/// program, starts all children.
fn spawn_from_lasting_thread(mut command: Command) -> io::Result<Child> {
    static JOBS: OnceLock<Sender<Job>> = OnceLock::new();
    let jobs = JOBS.get_or_init(|| {
        let (jobs, queue) = channel::<Job>();
        let start = thread::Builder::new().name("testkit-spawn".into());
        start.spawn(move || queue.into_iter().for_each(|job| job())).expect("a thread that starts servers");
        jobs
    });
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure makes only system calls that are async-signal-safe.
    unsafe {
        command.process_group(0).pre_exec(move || die_with(parent));
    }
    let (answer, result) = channel();
    let job = Box::new(move || {
        let _ = answer.send(command.spawn());
    });
    jobs.send(job).map_err(|_| io::Error::other("the thread that starts servers is gone"))?;
    result.recv().map_err(|_| io::Error::other("the thread that starts servers is gone"))?
}

fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: plain system calls without pointers.
    let (set, now) = unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid()) };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    // The parent may have died before the request stood.
    if now == pid_t(parent) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

fn send_signal(pid: libc::pid_t, signal: i32) {
    // SAFETY: a system call without pointers; the caller holds the child unreaped, so the number is its own.
    unsafe {
        libc::kill(pid, signal);
    }
}

fn pid_t(pid: u32) -> libc::pid_t {
    libc::pid_t::try_from(pid).expect("a process number fits its type")
}
