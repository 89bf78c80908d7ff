//! What happened in the worlds, in numbers.

use std::fmt;

/// What happened in one world, or in many.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) worlds: u64,
    pub(crate) grants: u64,
    pub(crate) grants_shared: u64,
    /// Grants of a shared lock while others held it, too.
    pub(crate) grants_together: u64,
    pub(crate) confirmed_by_extend: u64,
    pub(crate) through_the_queue: u64,
    pub(crate) prolonged: u64,
    pub(crate) lost_expired: u64,
    pub(crate) lost_cap: u64,
    pub(crate) lost_taken: u64,
    pub(crate) lost_broken: u64,
    pub(crate) lost_no_quorum: u64,
    pub(crate) ended_held: u64,
    pub(crate) ended_timed_out: u64,
    pub(crate) ended_no_quorum: u64,
    pub(crate) cancelled: u64,
    pub(crate) died: u64,
    pub(crate) faults: u64,
    pub(crate) crashes: u64,
    pub(crate) amnesias: u64,
    pub(crate) partitions: u64,
    pub(crate) stalls: u64,
    pub(crate) clock_faults: u64,
    pub(crate) breaks: u64,
    pub(crate) pauses: u64,
    /// Requests that were carried out, or may have been, and whose answer did not come in time.
    pub(crate) unknown: u64,
    pub(crate) messages: u64,
    pub(crate) longest_wait_us: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.longest_wait_us = self.longest_wait_us.max(other.longest_wait_us);
        for (mine, its) in [
            (&mut self.worlds, other.worlds),
            (&mut self.grants, other.grants),
            (&mut self.grants_shared, other.grants_shared),
            (&mut self.grants_together, other.grants_together),
            (&mut self.confirmed_by_extend, other.confirmed_by_extend),
            (&mut self.through_the_queue, other.through_the_queue),
            (&mut self.prolonged, other.prolonged),
            (&mut self.lost_expired, other.lost_expired),
            (&mut self.lost_cap, other.lost_cap),
            (&mut self.lost_taken, other.lost_taken),
            (&mut self.lost_broken, other.lost_broken),
            (&mut self.lost_no_quorum, other.lost_no_quorum),
            (&mut self.ended_held, other.ended_held),
            (&mut self.ended_timed_out, other.ended_timed_out),
            (&mut self.ended_no_quorum, other.ended_no_quorum),
            (&mut self.cancelled, other.cancelled),
            (&mut self.died, other.died),
            (&mut self.faults, other.faults),
            (&mut self.crashes, other.crashes),
            (&mut self.amnesias, other.amnesias),
            (&mut self.partitions, other.partitions),
            (&mut self.stalls, other.stalls),
            (&mut self.clock_faults, other.clock_faults),
            (&mut self.breaks, other.breaks),
            (&mut self.pauses, other.pauses),
            (&mut self.unknown, other.unknown),
            (&mut self.messages, other.messages),
        ] {
            *mine += its;
        }
    }
}

/// What each world must have had, so that its silence means something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) contenders: usize,
    pub(crate) grants: u64,
    pub(crate) shared: u64,
    pub(crate) faults: u64,
    pub(crate) unknown: u64,
}

impl Tally {
    /// At least three contenders, five grants, a fault, and an answer that did not come.
    pub(crate) fn is_enough(&self) -> bool {
        self.contenders >= 3 && self.grants >= 5 && self.faults >= 1 && self.unknown >= 1
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, nodes, contenders, grants, shared, faults, unknown } = self;
        write!(
            out,
            "seed {seed}: {nodes} nodes, {contenders} contenders, {grants} grants ({shared} shared), {faults} faults, \
             {unknown} unknown answers"
        )
    }
}
