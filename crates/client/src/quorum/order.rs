//! In which order the nodes are asked to queue: fixed by the lock's name, the same for every client, whatever the
//! order in its configuration.

use super::NodeId;

/// The nodes in the order for `lock`. `names` are the nodes' own names (host, port), alike at all clients.
///
/// Rendezvous hashing (Thaler and Ravishankar, 1998): locks spread over the nodes, and a node more or less moves
/// only its own share.
#[must_use]
pub fn order<N: AsRef<[u8]>>(lock: &[u8], names: &[N]) -> Vec<NodeId> {
    let mut ranked: Vec<(u64, &[u8], NodeId)> = names
        .iter()
        .enumerate()
        .map(|(node, name)| (rank(lock, name.as_ref()), name.as_ref(), NodeId(node)))
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, _, node)| node).collect()
}

/// FNV-1a over both, then the finalizer of SplitMix64: std's hasher is not the same in every release.
fn rank(lock: &[u8], node: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in lock.iter().chain(&[0xff]).chain(node) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_agree_whatever_the_order_of_their_configuration() {
        let one = ["a:1", "b:2", "c:3"];
        let other = ["c:3", "a:1", "b:2"];
        for lock in 0..100 {
            let lock = format!("lock:{lock}");
            let by_one: Vec<&str> = order(lock.as_bytes(), &one).iter().map(|node| one[node.0]).collect();
            let by_other: Vec<&str> =
                order(lock.as_bytes(), &other).iter().map(|node| other[node.0]).collect();
            assert_eq!(by_one, by_other);
        }
    }

    #[test]
    fn locks_spread_over_the_nodes() {
        let names = ["a:1", "b:2", "c:3"];
        let mut first = [0; 3];
        for lock in 0..3000 {
            first[order(format!("lock:{lock}").as_bytes(), &names)[0].0] += 1;
        }
        assert!(first.iter().all(|share| (850..1150).contains(share)), "{first:?}");
    }
}
