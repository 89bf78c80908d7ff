//! Job control: who may use the terminal, and Ctrl-Z.
//!
//! The command is in a process group of its own, which a terminal takes for a background job. So the terminal is handed
//! to it where lockfence has it: at once where input and output are the terminal, otherwise when the command asks for it
//! (it is stopped by TTIN or TTOU then). In `lockfence run … | less` the terminal stays with `less`.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The terminal of this session; nothing where there is none.
pub(super) struct Terminal {
    device: Option<File>,
    /// The command has asked for it, or is to have it from the beginning.
    wanted: bool,
}

impl Terminal {
    pub(super) fn find() -> Self {
        let device = OpenOptions::new().read(true).write(true).open("/dev/tty").ok();
        let wanted = io::stdin().is_terminal() && io::stdout().is_terminal();
        Self { device, wanted }
    }

    pub(super) const fn is_there(&self) -> bool {
        self.device.is_some()
    }

    /// Hands it to the command where it is wanted and lockfence has it.
    pub(super) fn offer(&self, group: Pid) {
        if self.wanted && self.has(getpgrp()) {
            self.give(group);
        }
    }

    /// In the process that is about to become the command: takes it from lockfence's group. What is typed once the command
    /// has said something is then for the command.
    pub(super) fn take_over(&self, from: Pid) {
        if self.wanted && self.has(from) {
            self.give(getpgrp());
        }
    }

    /// The command needs it now. Says whether it could be given.
    pub(super) fn ask(&mut self, group: Pid) -> bool {
        self.wanted = true;
        let here = self.has(getpgrp());
        if here {
            self.give(group);
        }
        here
    }

    /// Takes it back if the command has it, and says whether it had.
    pub(super) fn take_back(&self, group: Pid) -> bool {
        let had = self.has(group);
        if had {
            self.give(getpgrp());
        }
        had
    }

    fn has(&self, group: Pid) -> bool {
        self.device.as_ref().is_some_and(|device| tcgetpgrp(device) == Ok(group))
    }

    /// A background process that does this is stopped by TTOU, unless it blocks that.
    fn give(&self, group: Pid) {
        let Some(device) = &self.device else { return };
        let mut stop = SigSet::empty();
        stop.add(Signal::SIGTTOU);
        if let Ok(before) = stop.thread_swap_mask(SigmaskHow::SIG_BLOCK) {
            let _ = tcsetpgrp(device, group); // the group may have ended by now
            let _ = before.thread_set_mask();
        }
    }
}

/// Stops lockfence, and what else is in its job, until somebody lets them go on (`fg`, `bg`): what the terminal does at
/// Ctrl-Z. Where nobody could, because there is no shell with job control, the system ignores this signal and the job
/// goes on at once.
pub(crate) fn stop() {
    let _ = killpg(getpgrp(), Signal::SIGTTIN);
}

/// Whom Ctrl-C has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// The command, which had the terminal, and nobody else.
    Command,
    /// All that is in lockfence's job.
    Job,
}

/// Ends lockfence by INT: shells stop a loop only when what they ran *died* of it. What else is in its job gets that, too,
/// if Ctrl-C has not reached it.
pub(super) fn die_of_interrupt(reached: Reached) {
    if reached == Reached::Command {
        let _ = killpg(getpgrp(), Signal::SIGINT);
    }
    // Where that cannot be done the exit code says it.
    let _ = signal_hook::low_level::emulate_default_handler(Signal::SIGINT as i32);
}
