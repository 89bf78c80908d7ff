//! Counting: whether a majority is reached, can still be, or cannot.

/// How a vote stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    /// It may still go either way.
    Pending,
    /// A majority.
    Won,
    /// No majority can come of it any more.
    Lost,
}

/// How a vote stands with `yes` votes in favour and `open` ones to come.
pub(super) const fn vote(majority: usize, yes: usize, open: usize) -> Vote {
    if yes >= majority {
        Vote::Won
    } else if yes.saturating_add(open) < majority {
        Vote::Lost
    } else {
        Vote::Pending
    }
}

/// The `majority`-th lowest of the tokens: the highest token of the majority whose highest is lowest. `None` while
/// there are fewer.
pub(super) fn lowest_majority_token(majority: usize, mut tokens: Vec<u64>) -> Option<u64> {
    tokens.sort_unstable();
    majority.checked_sub(1).and_then(|last| tokens.get(last)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes() {
        // majority, yes, open, and how it stands
        for (majority, yes, open, stands) in [
            (1, 0, 1, Vote::Pending),
            (1, 1, 0, Vote::Won),
            (1, 0, 0, Vote::Lost),
            (2, 1, 1, Vote::Pending),
            (2, 2, 1, Vote::Won),
            (2, 0, 1, Vote::Lost),
            (3, 2, 1, Vote::Pending),
            (3, 2, 0, Vote::Lost),
        ] {
            assert_eq!(vote(majority, yes, open), stands, "{majority} {yes} {open}");
        }
    }

    #[test]
    fn a_node_that_runs_ahead_is_left_out() {
        assert_eq!(lowest_majority_token(2, vec![900, 7, 5]), Some(7));
        assert_eq!(lowest_majority_token(2, vec![900, 7]), Some(900));
        assert_eq!(lowest_majority_token(2, vec![7]), None);
        assert_eq!(lowest_majority_token(1, vec![7]), Some(7));
    }
}
