//! While the command runs: signals are passed on, the hold is watched, and a command whose lock is lost is stopped.

use std::time::Duration;

use lockfence_client::{Held, Lost};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep, sleep_until};

use super::Tell;
use super::child::{Change, Child};
use super::job::{self, Reached, Terminal};
use super::signals::Signals;
use crate::args::Run;
use crate::{exit, time};

/// Timers do not count the time that the machine is suspended, leases do: look at the clock at least this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often to look whether something that is about to happen has happened.
const SOON: Duration = Duration::from_millis(20);

/// How much before the end of --max-hold a command is killed at the latest: then the lock is given back, and it must be gone.
const AHEAD: Duration = Duration::from_millis(50);

const HELD_TOO_LONG: &str = "was held for as long as --max-hold allows";

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself, or by a signal that was not for the sake of the lock.
    ByItself {
        /// The exit code.
        code: u8,
        /// Whether the lock was held until then.
        held: bool,
        /// Somebody pressed Ctrl-C, and it died of that.
        interrupted: Option<Reached>,
    },
    /// It was asked to end because the lock was lost.
    Stopped,
}

/// A command under a lock.
pub(super) struct Control<'a> {
    child: Child,
    held: &'a Held,
    tell: &'a Tell,
    terminal: Terminal,
    grace: Duration,
    /// How long before the lease's end a command is asked to end where nobody renews it.
    margin: Duration,
    /// Where there is a --max-hold.
    max_hold: Option<MaxHold>,
    /// Somebody stopped the command, not by the terminal.
    stopped_by_hand: bool,
    /// Set once it was asked to end.
    stopping: Option<Stopping>,
}

/// When the lock has been held for long enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MaxHold {
    term_at: Instant,
    /// At the latest.
    kill_at: Instant,
}

impl MaxHold {
    /// The grace is a part of that time, but not more than a third of it.
    fn new(got: Instant, time: Duration, grace: Duration) -> Option<Self> {
        let third = time.checked_div(3).unwrap_or_default();
        let kill_at = got.checked_add(time.saturating_sub(AHEAD.min(third)))?;
        Some(Self { term_at: kill_at.checked_sub(grace.min(third)).unwrap_or(got).max(got), kill_at })
    }
}

#[derive(Clone, Copy)]
struct Stopping {
    kill_at: Instant,
    killed: bool,
}

impl<'a> Control<'a> {
    pub(super) fn new(child: Child, held: &'a Held, args: &Run, tell: &'a Tell) -> Self {
        // Renewal begins after a third of the ttl, so that in the last third it has failed for a while.
        let longest = args.max_hold.map_or(args.ttl, |hold| hold.min(args.ttl));
        Self {
            child,
            held,
            tell,
            terminal: Terminal::find(),
            grace: args.grace,
            margin: args.grace.min(longest.checked_div(3).unwrap_or_default()),
            // The lock was got a moment ago.
            max_hold: args.max_hold.and_then(|time| MaxHold::new(Instant::now(), time, args.grace)),
            stopped_by_hand: false,
            stopping: None,
        }
    }

    /// Watches over it until it has ended.
    pub(super) async fn run(mut self, signals: &mut Signals) -> Ended {
        self.terminal.offer(self.child.group());
        loop {
            tokio::select! {
                biased;
                change = self.child.change() => match change {
                    Change::Ended => break,
                    Change::Stopped(signal) => self.stopped(signal).await,
                },
                signal = signals.next() => match signal {
                    Signal::SIGCONT => self.go_on().await,
                    _ => self.pass_on(signal),
                },
                why = losing(self.held, self.margin, self.max_hold), if self.stopping.is_none() => {
                    self.stop(&self.reason(why));
                }
                () = time_to_kill(self.stopping) => self.kill(),
            }
        }
        let held = self.held.is_held(); // before anything else takes time
        let end = self.child.reap();
        let had_terminal = self.terminal.take_back(self.child.group());
        let Some(stopping) = self.stopping else {
            let reached = if had_terminal { Reached::Command } else { Reached::Job };
            let interrupted = (end.interrupted && self.terminal.is_there()).then_some(reached);
            return Ended::ByItself { code: end.code, held, interrupted };
        };
        self.finish_group(stopping.kill_at).await;
        Ended::Stopped
    }

    /// Why it is asked to end.
    fn reason(&self, why: Losing) -> String {
        match why {
            Losing::Lost(Lost::HeldTooLong) | Losing::HeldTooLong => HELD_TOO_LONG.to_owned(),
            Losing::Lost(why) => format!("was lost ({})", exit::lost(&why)),
            Losing::RunsOut => {
                let left = time::shown(self.held.remaining());
                format!("could not be renewed, and its lease is over in {left}")
            }
        }
    }

    /// What the command started may need the rest of the grace.
    async fn finish_group(&mut self, kill_at: Instant) {
        while self.child.group_is_left() && Instant::now() < kill_at {
            sleep(SOON).await;
        }
        if self.child.group_is_left() {
            self.kill();
        }
    }

    fn pass_on(&self, signal: Signal) {
        match signal {
            // Most programs end by these, and those that the command started were not meant.
            Signal::SIGUSR1 | Signal::SIGUSR2 => self.child.signal(signal),
            // What a terminal sends to all, or a supervisor does.
            _ => self.child.signal_group(signal),
        }
    }

    /// Somebody lets lockfence go on: the command, too, if it was stopped by hand. After Ctrl-Z and `fg` it goes on already,
    /// and another CONT could undo the next Ctrl-Z.
    async fn go_on(&mut self) {
        if let Some(Change::Stopped(signal)) = self.child.look() {
            self.stopped(signal).await;
        }
        if std::mem::take(&mut self.stopped_by_hand) {
            self.child.signal_group(Signal::SIGCONT);
        }
    }

    fn stop(&mut self, why: &str) {
        let now = Instant::now();
        let graced = time::from_now(self.grace);
        // Where that is over already (the machine stood still) nothing is won by haste.
        let end = self.max_hold.map(|hold| hold.kill_at).filter(|end| *end >= now);
        let kill_at = end.map_or(graced, |end| end.min(graced));
        self.stopping = Some(Stopping { kill_at, killed: false });
        self.child.signal_group(Signal::SIGTERM);
        self.child.signal_group(Signal::SIGCONT); // a stopped one would not notice
        let grace = time::shown(kill_at.saturating_duration_since(now));
        self.tell.news(&format!("{why}: stopping the command (TERM, then KILL after {grace})"));
    }

    fn kill(&mut self) {
        if let Some(stopping) = &mut self.stopping {
            stopping.killed = true;
        }
        self.child.signal_group(Signal::SIGKILL);
        self.tell.detail("still there after the grace: killing it");
    }

    /// Somebody stopped the command. Where that came from the terminal the shell must see lockfence stop.
    async fn stopped(&mut self, signal: Signal) {
        let group = self.child.group();
        if self.stopping.is_some() {
            return self.child.signal_group(Signal::SIGCONT);
        }
        let for_terminal = matches!(signal, Signal::SIGTTIN | Signal::SIGTTOU);
        if for_terminal && self.terminal.ask(group) {
            return self.child.signal_group(Signal::SIGCONT);
        }
        if !self.terminal.is_there() || !(for_terminal || signal == Signal::SIGTSTP) {
            // By hand (STOP), and by hand it will go on: the lock stays held meanwhile.
            self.stopped_by_hand = true;
            return self.tell.detail("the command was stopped; the lock stays held");
        }
        self.stopped_by_hand = false;
        self.terminal.take_back(group);
        job::stop();
        // Time may have passed without renewals. The command stays where it is until it is certain that nobody else has
        // the lock.
        if !still_held(self.held, self.margin).await {
            return self.stop("was lost while it was stopped");
        }
        if for_terminal && !self.terminal.ask(group) {
            sleep(LOOK_EVERY).await; // it will only ask again
            if !still_held(self.held, self.margin).await {
                return self.stop("was lost while it was stopped");
            }
        }
        self.terminal.offer(group);
        self.child.signal_group(Signal::SIGCONT);
    }
}

/// Why the command must be asked to end.
enum Losing {
    Lost(Lost),
    /// It is time for TERM by --max-hold.
    HeldTooLong,
    /// Nobody has renewed it, and the lease is over in the margin.
    RunsOut,
}

async fn losing(held: &Held, margin: Duration, max_hold: Option<MaxHold>) -> Losing {
    tokio::select! {
        biased;
        lost = held.lost() => Losing::Lost(lost),
        () = held_too_long(max_hold) => Losing::HeldTooLong,
        () = runs_out(held, margin) => Losing::RunsOut,
    }
}

async fn held_too_long(max_hold: Option<MaxHold>) {
    match max_hold {
        Some(hold) => sleep_until(hold.term_at).await,
        None => std::future::pending().await,
    }
}

async fn runs_out(held: &Held, margin: Duration) {
    loop {
        let left = held.remaining();
        if left.is_zero() {
            // It is lost, which is told with the reason.
            std::future::pending::<()>().await;
        }
        let time = left.saturating_sub(margin);
        if time.is_zero() {
            return;
        }
        sleep(time.min(LOOK_EVERY)).await;
    }
}

/// Waits until it was renewed, or is lost.
async fn still_held(held: &Held, margin: Duration) -> bool {
    while held.is_held() {
        if held.remaining() > margin {
            return true;
        }
        sleep(SOON).await;
    }
    false
}

async fn time_to_kill(stopping: Option<Stopping>) {
    match stopping {
        Some(stopping) if !stopping.killed => sleep_until(stopping.kill_at).await,
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Instant, MaxHold};

    #[test]
    fn the_grace_is_part_of_max_hold() {
        let got = Instant::now();
        // max-hold, grace, TERM and KILL, in ms
        for (time, grace, term, kill) in [
            (60_000, 5_000, 54_950, 59_950),
            (3_600_000, 60_000, 3_539_950, 3_599_950),
            (9_000, 60_000, 5_950, 8_950),
            (9_000, 0, 8_950, 8_950),
            (3, 5_000, 1, 2),
        ] {
            let ms = Duration::from_millis;
            let hold = MaxHold { term_at: got + ms(term), kill_at: got + ms(kill) };
            assert_eq!(MaxHold::new(got, ms(time), ms(grace)), Some(hold), "{time} {grace}");
        }
        assert_eq!(MaxHold::new(got, Duration::MAX, Duration::ZERO), None);
    }
}
