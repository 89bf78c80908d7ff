//! The judge: what a history of grants and fenced writes must look like. It knows nothing of the client's code.
//!
//! Times are µs on one clock of the test. A grant's window is what its holder has seen: from the return of its acquire
//! to the last moment at which the lock was still said to be held, both taken so that the real window is not shorter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A lock that somebody got.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) worker: usize,
    pub(crate) token: u64,
    /// When it was asked for.
    pub(crate) asked: u64,
    /// When it was confirmed: read after the acquire returned.
    pub(crate) granted: u64,
    /// The last reading of the clock after which the lock was said to be held; none where that was never so.
    pub(crate) valid_to: Option<u64>,
}

/// How a fenced command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    Fenced,
    /// No answer: it may have happened.
    Unknown,
}

/// A token announced to the fence.
#[derive(Clone, Debug)]
pub(crate) struct Advance {
    pub(crate) token: u64,
    pub(crate) end: End,
    pub(crate) ended: u64,
}

/// A fenced write of a number to the register: one more than was read there under the same token.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) token: u64,
    pub(crate) number: u64,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) end: End,
}

/// A fenced write elsewhere, by a holder that has given the lock back or lost it.
#[derive(Clone, Debug)]
pub(crate) struct LateWrite {
    pub(crate) token: u64,
    pub(crate) began: u64,
    pub(crate) end: End,
}

/// All that happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) grants: Vec<Grant>,
    pub(crate) advances: Vec<Advance>,
    pub(crate) writes: Vec<Write>,
    pub(crate) late_writes: Vec<LateWrite>,
    /// What the register held in the end.
    pub(crate) register: u64,
}

/// A rule that does not hold, with the witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) rule: &'static str,
    pub(crate) witness: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.rule, self.witness)
    }
}

/// All rules that do not hold.
pub(crate) fn judge(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut violation = |rule, witness| found.push(Violation { rule, witness });
    unique(&history.grants, &mut violation);
    rising(&history.grants, &mut violation);
    one_holder(&history.grants, &mut violation);
    fenced(history, &mut violation);
    register(history, &mut violation);
    found
}

fn unique(grants: &[Grant], violation: &mut impl FnMut(&'static str, String)) {
    let mut seen: BTreeMap<u64, &Grant> = BTreeMap::new();
    for grant in grants {
        if let Some(other) = seen.insert(grant.token, grant) {
            violation("token repeated", format!("{other:?} and {grant:?}"));
        }
    }
}

/// A grant that was asked for after another was confirmed has the higher token. So has one that was still valid after
/// another was confirmed, since two are never valid at once.
fn rising(grants: &[Grant], violation: &mut impl FnMut(&'static str, String)) {
    let mut by_time: Vec<&Grant> = grants.iter().collect();
    by_time.sort_by_key(|grant| grant.granted);
    let mut highest: Option<&Grant> = None;
    for grant in &by_time {
        // `granted` was read before the lock was said to be held, so that it was valid then.
        if let Some(before) = highest
            && grant.valid_to.is_some()
            && before.token > grant.token
        {
            violation("token fell", format!("{before:?} was confirmed before {grant:?} was valid"));
        }
        if highest.is_none_or(|before| before.token < grant.token) {
            highest = Some(grant);
        }
    }
    let mut by_asked: Vec<&Grant> = grants.iter().collect();
    by_asked.sort_by_key(|grant| grant.asked);
    let (mut confirmed, mut highest) = (by_time.iter().peekable(), None::<&Grant>);
    for grant in by_asked {
        while let Some(before) = confirmed.next_if(|before| before.granted < grant.asked) {
            if highest.is_none_or(|highest| highest.token < before.token) {
                highest = Some(before);
            }
        }
        if let Some(before) = highest.filter(|before| before.token > grant.token) {
            violation("token fell", format!("{before:?} was confirmed before {grant:?} was asked for"));
        }
    }
}

fn one_holder(grants: &[Grant], violation: &mut impl FnMut(&'static str, String)) {
    let mut windows: Vec<(&Grant, u64)> =
        grants.iter().filter_map(|grant| Some((grant, grant.valid_to?))).collect();
    windows.sort_by_key(|(grant, _)| grant.granted);
    let mut longest: Option<(&Grant, u64)> = None;
    for (grant, valid_to) in windows {
        if let Some((before, until)) = longest
            && until >= grant.granted
        {
            violation("two valid at once", format!("{before:?} and {grant:?}"));
        }
        if longest.is_none_or(|(_, until)| until < valid_to) {
            longest = Some((grant, valid_to));
        }
    }
}

/// Once the fence has answered to a token, whatever begins later with a lower one is refused.
fn fenced(history: &History, violation: &mut impl FnMut(&'static str, String)) {
    let mut advances: Vec<&Advance> =
        history.advances.iter().filter(|advance| advance.end == End::Done).collect();
    advances.sort_by_key(|advance| advance.ended);
    let mut highest = 0;
    let reached: Vec<(u64, u64)> = advances
        .iter()
        .map(|advance| {
            highest = advance.token.max(highest);
            (advance.ended, highest)
        })
        .collect();
    let fence_at = |time: u64| {
        let count = reached.partition_point(|(ended, _)| *ended < time);
        count.checked_sub(1).map_or(0, |last| reached[last].1)
    };
    let writes = history.writes.iter().map(|write| (write.token, write.began, write.end));
    let late = history.late_writes.iter().map(|write| (write.token, write.began, write.end));
    for (token, began, end) in writes.chain(late) {
        let fence = fence_at(began);
        if end == End::Done && fence > token {
            violation(
                "stale write",
                format!("token {token} wrote at {began}, after the fence was at {fence}"),
            );
        }
    }
}

/// Each write adds one to what was read behind the fence, so no number is written twice, none is left out, and they
/// rise with the tokens.
fn register(history: &History, violation: &mut impl FnMut(&'static str, String)) {
    let mut done: Vec<&Write> = history.writes.iter().filter(|write| write.end == End::Done).collect();
    done.sort_by_key(|write| (write.number, write.ended));
    for pair in done.windows(2) {
        let [one, next] = pair else { continue };
        if one.number == next.number {
            violation("write lost", format!("{one:?} and {next:?}"));
        } else if one.token > next.token || one.began > next.ended {
            violation("writes out of order", format!("{one:?} and {next:?}"));
        }
    }
    let known: BTreeSet<u64> =
        history.writes.iter().filter(|write| write.end != End::Fenced).map(|write| write.number).collect();
    if let Some(missing) = (1..=history.register).find(|number| !known.contains(number)) {
        violation("write lost", format!("nobody wrote {missing} of {}", history.register));
    }
    if let Some(write) = done.iter().find(|write| write.number > history.register) {
        violation("write lost", format!("{write:?}, but the register is at {}", history.register));
    }
}

/// The smallest share of any worker, as a part of the fair one.
pub(crate) fn smallest_share(grants: &[Grant], workers: usize) -> f64 {
    let count = |worker| grants.iter().filter(|grant| grant.worker == worker).count();
    let fewest = (0..workers).map(count).min().unwrap_or(0);
    fewest as f64 * workers as f64 / grants.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(worker: usize, token: u64, asked: u64, granted: u64, valid_to: Option<u64>) -> Grant {
        Grant { worker, token, asked, granted, valid_to }
    }

    fn advance(token: u64, ended: u64) -> Advance {
        Advance { token, end: End::Done, ended }
    }

    fn write(token: u64, number: u64, began: u64, end: End) -> Write {
        Write { token, number, began, ended: began + 2, end }
    }

    /// Two holders, one after the other, whose writes are all there.
    fn good() -> History {
        History {
            grants: vec![grant(0, 10, 0, 100, Some(200)), grant(1, 11, 50, 210, Some(300))],
            advances: vec![advance(10, 110), advance(11, 220)],
            writes: vec![
                write(10, 1, 120, End::Done),
                write(10, 2, 130, End::Done),
                write(11, 3, 230, End::Unknown),
                write(11, 4, 240, End::Done),
            ],
            late_writes: vec![
                LateWrite { token: 10, began: 205, end: End::Done },
                LateWrite { token: 10, began: 221, end: End::Fenced },
            ],
            register: 4,
        }
    }

    fn rules(history: &History) -> Vec<&'static str> {
        judge(history).into_iter().map(|violation| violation.rule).collect()
    }

    #[test]
    fn a_good_history_passes() {
        assert_eq!(rules(&good()), [""; 0]);
    }

    #[test]
    fn a_token_that_is_repeated() {
        let mut history = good();
        history.grants[1].token = 10;
        history.advances.pop();
        history.writes.truncate(2);
        history.register = 2;
        history.late_writes.pop();
        assert_eq!(rules(&history), ["token repeated"]);
    }

    #[test]
    fn two_that_are_valid_at_once() {
        let mut history = good();
        history.grants[0].valid_to = Some(210);
        assert_eq!(rules(&history), ["two valid at once"]);
        // A long one, and a short one in its midst.
        history.grants[0].valid_to = Some(900);
        history.grants.push(grant(2, 12, 60, 400, Some(500)));
        assert_eq!(rules(&history), ["two valid at once", "two valid at once"]);
    }

    #[test]
    fn a_token_that_falls() {
        let mut history = History { grants: good().grants, ..History::default() };
        history.grants[1].token = 9;
        assert_eq!(rules(&history), ["token fell"], "valid after another was confirmed");
        history.grants[1].valid_to = None;
        assert_eq!(rules(&history), [""; 0], "it may have been confirmed long before");
        history.grants[1].asked = 101;
        assert_eq!(rules(&history), ["token fell"], "asked for after another was confirmed");
    }

    #[test]
    fn a_token_that_falls_below_one_long_before() {
        let mut history = History { grants: good().grants, ..History::default() };
        history.grants.push(grant(2, 5, 400, 500, None));
        assert_eq!(rules(&history), ["token fell"]);
    }

    #[test]
    fn a_stale_write_that_is_accepted() {
        let mut history = good();
        history.late_writes[1].end = End::Done;
        assert_eq!(rules(&history), ["stale write"]);
        let mut history = good();
        history.writes[1].began = 221;
        history.writes[1].ended = 222;
        assert_eq!(rules(&history), ["stale write"]);
    }

    #[test]
    fn a_write_that_is_lost() {
        let mut history = good();
        history.writes[3].number = 2;
        history.register = 3;
        assert_eq!(rules(&history), ["write lost"], "two wrote the same number");
        let mut history = good();
        history.register = 3;
        assert_eq!(rules(&history), ["write lost"], "an acknowledged write is not there");
        let mut history = good();
        history.writes.remove(0);
        assert_eq!(rules(&history), ["write lost"], "a number comes from nowhere");
    }

    #[test]
    fn writes_out_of_order() {
        let mut history = good();
        history.writes[1].token = 12;
        assert_eq!(rules(&history), ["writes out of order"]);
    }

    #[test]
    fn the_smallest_share() {
        let grants = |counts: [usize; 3]| -> Vec<Grant> {
            let of = |(worker, count)| (0..count).map(move |n| grant(worker, n as u64, 0, 0, None));
            counts.into_iter().enumerate().flat_map(of).collect()
        };
        assert!((smallest_share(&grants([10, 10, 10]), 3) - 1.0).abs() < 1e-9);
        assert!((smallest_share(&grants([4, 10, 16]), 3) - 0.4).abs() < 1e-9);
        assert!((smallest_share(&grants([0, 10, 20]), 3)).abs() < 1e-9);
    }
}
