//! The command: how it is started so that it cannot outlive lockfence unseen, and what becomes of it.
//!
//! It leads a process group of its own, so that what it starts can be stopped with it. It is started through this very
//! program, which in the new process asks to be killed when its parent dies (PR_SET_PDEATHSIG), and then becomes the
//! command. To do the same between fork and exec would take unsafe code.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{self, Command, ExitStatus};

use lockfence_client::Held;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgid, getppid};
use tokio::signal::unix::{self, SignalKind};

use super::job::Terminal;
use super::signal_code;
use crate::exit;
use crate::{escape, say};

/// This program, also when its file was replaced meanwhile.
const SELF: &str = "/proc/self/exe";
/// As the first argument: become the command that follows. Not for people.
const BECOME: &str = "--lockfence-become-command";

/// Why the command was not started.
#[derive(Debug)]
pub(super) enum NotStarted {
    /// It cannot be.
    NoCommand(NoCommand),
    /// The lock was lost by then.
    Lost,
}

/// A command that cannot be started: the exit code, and why.
#[derive(Debug)]
pub(super) struct NoCommand {
    pub(super) code: u8,
    pub(super) why: String,
}

/// What happened to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It ended; it can still be signalled, without an effect.
    Ended,
    /// It was stopped by that signal.
    Stopped(Signal),
}

/// The command while it runs.
pub(super) struct Child {
    process: process::Child,
    group: Pid,
    changes: unix::Signal,
}

impl Child {
    /// Starts the command. To be called on the main thread: its end is what counts as the parent's.
    pub(super) fn start(command: &[OsString], held: &Held, lock: &[u8]) -> Result<Self, NotStarted> {
        let name = command.first().map_or(OsStr::new(""), |name| name);
        let failed = |error: io::Error| NotStarted::NoCommand(no_command(name, &error));
        // Before the command can end.
        let changes = unix::signal(SignalKind::child()).map_err(failed)?;
        let mut start = prepared(command);
        start.env("LOCKFENCE_TOKEN", held.token().to_string()).env("LOCKFENCE_LOCK", OsStr::from_bytes(lock));
        start.process_group(0);
        // The last moment to look: lockfence may have stood still since it got the lock.
        if !held.is_held() {
            return Err(NotStarted::Lost);
        }
        let process = start.spawn().map_err(failed)?;
        let group = Pid::from_raw(i32::try_from(process.id()).unwrap_or(i32::MAX));
        Ok(Self { process, group, changes })
    }

    pub(super) const fn group(&self) -> Pid {
        self.group
    }

    /// Waits for the next change. An ended command stays unreaped until [`Self::reap`], so that its number, and with it
    /// its group's, is nobody else's meanwhile.
    pub(super) async fn change(&mut self) -> Change {
        loop {
            if let Some(change) = self.look() {
                return change;
            }
            self.changes.recv().await;
        }
    }

    /// What has changed since the last look.
    pub(super) fn look(&self) -> Option<Change> {
        let at_once = |what| waitid(Id::Pid(self.group), what | WaitPidFlag::WNOHANG);
        match at_once(WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => {}
            _ => return Some(Change::Ended), // also by a signal that has no name
        }
        match at_once(WaitPidFlag::WSTOPPED) {
            Ok(WaitStatus::Stopped(_, signal)) => Some(Change::Stopped(signal)),
            _ => None,
        }
    }

    /// Takes note of its end.
    pub(super) fn reap(&mut self) -> End {
        self.process.wait().map_or(End { code: exit::USAGE, interrupted: false }, End::from)
    }

    /// To the command alone.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill(self.group, signal); // it may have ended by now
    }

    /// To the command and what it started.
    pub(super) fn signal_group(&self, signal: Signal) {
        let _ = killpg(self.group, signal);
    }

    /// Whether anything of its group is left.
    pub(super) fn group_is_left(&self) -> bool {
        killpg(self.group, None) != Err(Errno::ESRCH)
    }
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Its exit code, or 128 + n for a signal.
    pub(super) code: u8,
    /// Whether it died of INT.
    pub(super) interrupted: bool,
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        let code = match (status.code(), status.signal()) {
            (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
            (None, Some(signal)) => signal_code(signal),
            (None, None) => exit::USAGE,
        };
        Self { code, interrupted: status.signal() == Some(Signal::SIGINT as i32) }
    }
}

/// The command, through this program where that can be found.
fn prepared(command: &[OsString]) -> Command {
    let (name, arguments) =
        command.split_first().map_or((OsStr::new(""), command), |(name, rest)| (name, rest));
    if !Path::new(SELF).exists() {
        let mut start = Command::new(name);
        start.args(arguments);
        return start;
    }
    let mut start = Command::new(SELF);
    start.arg0("lockfence").arg(BECOME).arg(process::id().to_string()).arg(name).args(arguments);
    start
}

/// In the new process: becomes the command. Returns only where it cannot, with the exit code, or where this is not that
/// process at all.
pub(crate) fn become_command() -> Option<u8> {
    let mut arguments = env::args_os().skip(1);
    if arguments.next()? != BECOME {
        return None;
    }
    let parent: i32 = arguments.next()?.to_str()?.parse().ok()?;
    let name = arguments.next()?;
    if nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).is_err() || getppid() != Pid::from_raw(parent) {
        return Some(exit::USAGE); // the parent has died before the request stood
    }
    if let Ok(group) = getpgid(Some(Pid::from_raw(parent))) {
        Terminal::find().take_over(group);
    }
    let error = Command::new(&name).args(arguments).exec();
    let NoCommand { code, why } = no_command(&name, &error);
    say::line(&format!("lockfence: {why}"));
    Some(code)
}

fn no_command(name: &OsStr, error: &io::Error) -> NoCommand {
    let shown = escape::for_people(name.as_bytes());
    if error.kind() == ErrorKind::NotFound {
        let why = format!("there is no command \"{shown}\" (or what its first line names is not there)");
        return NoCommand { code: exit::NOT_FOUND, why };
    }
    NoCommand { code: exit::NOT_EXECUTABLE, why: format!("cannot execute \"{shown}\": {error}") }
}
