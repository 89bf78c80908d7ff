//! Signals to lockfence itself.
//!
//! A signal that was ignored when lockfence started stays ignored: `nohup` and shells rely on that for what they start in
//! the background.

use std::fs;
use std::io;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

use super::job;

/// Those that ask a program to end.
const END: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
/// Those that mean something to the command alone; CONT so that it goes on with lockfence, after it was stopped by hand.
const OTHERS: [Signal; 4] = [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGWINCH, Signal::SIGCONT];

/// The signals that are listened to.
pub(super) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Listens from now on.
    pub(super) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let mut signals = Self(Vec::new());
        for signal in
            END.into_iter().chain(OTHERS).chain([Signal::SIGTSTP]).filter(|signal| !ignored.has(*signal))
        {
            signals.add(signal)?;
        }
        Ok(signals)
    }

    fn add(&mut self, signal: Signal) -> io::Result<()> {
        self.0.push((signal, unix::signal(SignalKind::from_raw(signal as i32))?));
        Ok(())
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one that asks to end, for the time when there is no command yet. Ctrl-Z only stops.
    pub(super) async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if END.contains(&signal) {
                return signal;
            }
            if signal == Signal::SIGTSTP {
                job::stop();
            }
        }
    }
}

/// A set of signals as /proc shows it: bit n - 1 for signal n.
#[derive(Clone, Copy)]
struct Set(u64);

impl Set {
    fn has(self, signal: Signal) -> bool {
        let bit = u32::try_from(signal as i32).unwrap_or(0).saturating_sub(1);
        self.0.checked_shr(bit).is_some_and(|bits| bits & 1 == 1)
    }
}

/// What this process ignores. Where /proc is not there: nothing.
fn ignored() -> Set {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    Set(parse(&status).unwrap_or(0))
}

fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::{Set, parse};

    #[test]
    fn the_ignored_signals_are_read() {
        let ignored = Set(parse("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0\n").unwrap());
        assert!(ignored.has(Signal::SIGHUP) && ignored.has(Signal::SIGPIPE));
        assert!(!ignored.has(Signal::SIGINT) && !ignored.has(Signal::SIGTERM));
        assert_eq!(parse("Name: x"), None);
    }
}
