//! A program that drops what it asked for, after each step of the client's machines in turn.

use lockfence_client::quorum::NodeId;

use crate::TTL_US;
use crate::rng::Rng;
use crate::world::{Broken, Plan, World};

/// How soon nothing is left where the nodes answer: a few times the way there, and far less than the lease.
const SOON_US: u64 = 500_000;

/// Worlds like all others, but that client 0 drops its first lock after `step` steps. Returns whether it came to that.
fn drops_in_any_world(seed: u64, step: u32) -> bool {
    let mut world = World::new(seed, Broken::default(), false);
    world.clients[0].drops_at = Some(step);
    world.run();
    assert!(world.report.is_none(), "dropped after step {step}: {:?}", world.report);
    world.dropped_at.is_some()
}

/// Nothing goes wrong. Client 1 has the lock when client 0 asks, and gives it back while client 0 waits for it. Returns
/// whether client 0 dropped it before the end.
fn drops_in_a_calm_world(seed: u64, step: u32) -> bool {
    let plan = Plan { seed, broken: Broken::default(), tell: false, nodes: 3, clients: 2 };
    let mut world = World::of_size(Rng::new(seed), plan);
    world.network.calm();
    for client in &mut world.clients {
        client.once = true;
        client.settings.wait_slice_ms = None;
        client.works_for = Some(3_000_000);
    }
    world.crowded = true;
    world.clients[0].drops_at = Some(step);
    world.act_at(1, 0);
    world.act_at(0, 1_000_000);
    let mut left = Vec::new();
    while let Some((at, event)) = world.next_event() {
        if let Some(dropped_at) = world.dropped_at
            && at > dropped_at + SOON_US
        {
            let of_other = world.clients[1].owner;
            left.extend((0..3).filter(|node| !world.nodes[*node].is_clear_but_for(of_other)).map(NodeId));
            break;
        }
        if at > 4 * TTL_US {
            break;
        }
        world.now = at;
        world.happen(event);
    }
    assert!(world.report.is_none(), "{:?}", world.report);
    assert!(left.is_empty(), "seed {seed}, dropped after step {step}: left behind at {left:?}");
    world.dropped_at.is_some()
}

/// No lock and no waiter is left after a ttl, whatever else goes wrong.
#[test]
fn dropped_at_every_step_in_any_world() {
    let mut drops = 0;
    for seed in 0..150 {
        let mut step = 0;
        while drops_in_any_world(seed, step) {
            step += 1;
        }
        drops += step;
    }
    println!("{drops} drops");
    assert!(drops > 1_000);
}

/// Nothing is left at once, where the nodes answer.
#[test]
fn dropped_at_every_step_where_nodes_answer() {
    let mut drops = 0;
    for seed in 0..50 {
        let mut step = 0;
        while drops_in_a_calm_world(seed, step) {
            step += 1;
        }
        assert!(step > 10, "seed {seed}: through the queue and back");
        drops += step;
    }
    println!("{drops} drops");
}
