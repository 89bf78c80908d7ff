//! A real cluster on loopback: primaries with all slots, replicas, and a slot that moves.

use std::time::Duration;

use crate::ports::PortLease;
use crate::{Conn, Received, Reply, Server, ServerBuilder, ServerKind, args, cmd, wait_for};

const SLOTS: usize = 16_384;
/// A fresh cluster is down for two seconds by design; a busy machine takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Describes a cluster; [`start`](Self::start) starts it.
#[must_use = "a builder starts nothing by itself"]
pub struct ClusterBuilder {
    kind: ServerKind,
    primaries: usize,
    replicas: usize,
    node_timeout_ms: u64,
    change: Box<dyn Fn(ServerBuilder) -> ServerBuilder>,
}

impl ClusterBuilder {
    /// How many primaries (3).
    pub fn primaries(mut self, count: usize) -> Self {
        self.primaries = count;
        self
    }

    /// How many replicas each primary has (0).
    pub fn replicas(mut self, each: usize) -> Self {
        self.replicas = each;
        self
    }

    /// After how long a silent node is taken for dead (2,000 ms).
    pub fn node_timeout_ms(mut self, ms: u64) -> Self {
        self.node_timeout_ms = ms;
        self
    }

    /// Changes the description of every node: `.nodes(|node| node.without_module())`.
    pub fn nodes(mut self, change: impl Fn(ServerBuilder) -> ServerBuilder + 'static) -> Self {
        self.change = Box::new(change);
        self
    }

    /// Starts the nodes, joins them, and waits until each of them says the cluster is well.
    #[track_caller]
    pub fn start(self) -> Cluster {
        let count = self.primaries * (self.replicas + 1);
        let (mut nodes, mut buses) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let bus = PortLease::take();
            let node = Server::builder(self.kind)
                .arg("cluster-enabled", "yes")
                .arg("cluster-port", bus.port())
                .arg("cluster-node-timeout", self.node_timeout_ms);
            nodes.push((self.change)(node).start());
            buses.push(bus);
        }
        let ids = nodes.iter().map(|node| cmd!(node.connect(), "CLUSTER", "MYID").text()).collect();
        let cluster = Cluster { nodes, ids, primaries: self.primaries, buses };
        cluster.join();
        cluster
    }
}

/// A running cluster. Nodes `0..primaries` are primaries at the start, the rest their replicas in turn.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    ids: Vec<String>,
    primaries: usize,
    buses: Vec<PortLease>,
}

impl Cluster {
    /// Three primaries with the module.
    #[track_caller]
    pub fn start(kind: ServerKind) -> Self {
        Self::builder(kind).start()
    }

    /// Describes a cluster that differs.
    pub fn builder(kind: ServerKind) -> ClusterBuilder {
        ClusterBuilder {
            kind,
            primaries: 3,
            replicas: 0,
            node_timeout_ms: 2000,
            change: Box::new(|node| node),
        }
    }

    /// All nodes, in the order of their start.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// One node.
    #[track_caller]
    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// The nodes that began as replicas of this primary.
    pub fn replicas_of(&self, primary: usize) -> Vec<&Server> {
        (self.primaries..self.nodes.len())
            .filter(|index| index % self.primaries == primary)
            .map(|index| &self.nodes[index])
            .collect()
    }

    /// The name of a node in the cluster.
    #[track_caller]
    pub fn id(&self, index: usize) -> &str {
        &self.ids[index]
    }

    /// The index of the node that says it serves the key's slot; waits while none or two say so, which is how
    /// it is for a moment in a failover.
    #[track_caller]
    pub fn owner_index(&self, key: impl AsRef<[u8]>) -> usize {
        let slot = i64::from(key_slot(key.as_ref()));
        wait_for(&format!("one owner of slot {slot}"), PATIENCE, || {
            let owners: Vec<_> = (0..self.nodes.len()).filter(|index| self.claims(*index, slot)).collect();
            if let [owner] = owners[..] { Ok(owner) } else { Err(owners) }
        })
    }

    fn claims(&self, index: usize, slot: i64) -> bool {
        const WITHIN: Duration = Duration::from_millis(500); // a node that is dead or paused claims nothing
        let node = &self.nodes[index];
        let Ok(mut conn) = node.try_connect() else { return false };
        match conn.try_cmd(["CLUSTER", "SLOTS"], WITHIN) {
            Received::Reply(Reply::Array(view)) => owner_in(&view, slot) == Some(i64::from(node.port())),
            _ => false,
        }
    }

    /// The node that serves the key's slot.
    #[track_caller]
    pub fn owner(&self, key: impl AsRef<[u8]>) -> &Server {
        &self.nodes[self.owner_index(key)]
    }

    /// Connects to the node that serves the key's slot.
    #[track_caller]
    pub fn connect_for(&self, key: impl AsRef<[u8]>) -> Conn {
        self.owner(key).connect()
    }

    /// Waits until every node that runs says the cluster is well and knows all nodes.
    #[track_caller]
    pub fn wait_ok(&self) {
        let known = self.nodes.len().to_string();
        for node in self.nodes.iter().filter(|node| node.is_alive()) {
            wait_for(&format!("{node} to find its cluster well"), PATIENCE, || {
                let info = cmd!(node.connect(), "CLUSTER", "INFO").text();
                let has = |line: &str| info.lines().any(|seen| seen == line);
                let well = has("cluster_state:ok") && has(&format!("cluster_known_nodes:{known}"));
                if well { Ok(()) } else { Err(info) }
            });
        }
    }

    /// Moves a slot with its keys from one primary to another, as `redis-cli --cluster reshard` does:
    /// `SETSLOT`, `MIGRATE`, `SETSLOT`.
    #[track_caller]
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        self.move_keys(slot, from, to);
        self.finish_move(slot, from, to);
    }

    /// First step of [`move_slot`](Self::move_slot): from here on the old owner says `ASK` for absent keys.
    #[track_caller]
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        cmd!(self.nodes[to].connect(), "CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[from]).ok();
        cmd!(self.nodes[from].connect(), "CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[to]).ok();
    }

    /// Second step: moves the keys that the slot has.
    #[track_caller]
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let mut conn = self.nodes[from].connect();
        let port = self.nodes[to].port();
        loop {
            let keys = cmd!(conn, "CLUSTER", "GETKEYSINSLOT", slot, 100);
            if keys.items().is_empty() {
                return;
            }
            let mut migrate = args!["MIGRATE", "127.0.0.1", port, "", 0, 10_000, "KEYS"];
            migrate.extend(keys.items().iter().map(|key| key.bytes().to_vec()));
            conn.cmd(migrate).ok();
        }
    }

    /// Third step: tells all primaries the new owner, the new one first.
    #[track_caller]
    pub fn finish_move(&self, slot: u16, from: usize, to: usize) {
        let others = (0..self.primaries).filter(|index| *index != from && *index != to);
        for index in [to, from].into_iter().chain(others) {
            cmd!(self.nodes[index].connect(), "CLUSTER", "SETSLOT", slot, "NODE", self.ids[to]).ok();
        }
    }

    #[track_caller]
    fn join(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let mut conn = node.connect();
            cmd!(conn, "CLUSTER", "SET-CONFIG-EPOCH", index + 1).ok();
            if index < self.primaries {
                let (first, past) = (SLOTS * index / self.primaries, SLOTS * (index + 1) / self.primaries);
                cmd!(conn, "CLUSTER", "ADDSLOTSRANGE", first, past - 1).ok();
            }
        }
        let mut first = self.nodes[0].connect();
        for (node, bus) in self.nodes.iter().zip(&self.buses).skip(1) {
            cmd!(first, "CLUSTER", "MEET", "127.0.0.1", node.port(), bus.port()).ok();
        }
        self.wait_ok();
        for index in self.primaries..self.nodes.len() {
            self.follow(index, index % self.primaries);
        }
        self.wait_views();
    }

    #[track_caller]
    fn follow(&self, replica: usize, primary: usize) {
        let mut conn = self.nodes[replica].connect();
        wait_for("a node to know its primary", PATIENCE, || {
            match cmd!(conn, "CLUSTER", "REPLICATE", self.ids[primary]) {
                Reply::Error(line) => Err(line),
                _ => Ok(()),
            }
        });
        self.nodes[replica].wait_in_sync(&self.nodes[primary]);
    }

    /// Waits until every node knows every slot's owner and every replica: redirects and failovers need that.
    #[track_caller]
    fn wait_views(&self) {
        let copies = self.nodes.len() / self.primaries;
        for node in &self.nodes {
            wait_for(&format!("{node} to know all"), PATIENCE, || {
                let view = cmd!(node.connect(), "CLUSTER", "SLOTS");
                let ranges = view.items();
                let complete = ranges.len() == self.primaries
                    && ranges.iter().all(|range| range.items().len() == 2 + copies);
                if complete { Ok(()) } else { Err(view) }
            });
        }
    }
}

/// The slot of a key: CRC16 (XMODEM) of its hash tag, or of all of it, modulo 16384.
pub fn key_slot(key: &[u8]) -> u16 {
    let crc = hash_tag(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % 16_384
}

/// What is between the first `{` and the next `}`, where that is something.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let inner = &key[open + 1..];
    match inner.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(close) => &inner[..close],
    }
}

fn owner_in(view: &[Reply], slot: i64) -> Option<i64> {
    let range = view.iter().find(|range| {
        let bounds = range.items();
        (bounds[0].int()..=bounds[1].int()).contains(&slot)
    })?;
    Some(range.items()[2].items()[1].int())
}

#[cfg(test)]
mod tests {
    use super::key_slot;

    #[test]
    fn slots_as_the_servers_have_them() {
        let table: &[(&[u8], u16)] =
            &[(b"123456789", 12739), (b"foo", 12182), (b"{foo}bar", 12182), (b"", 0)];
        for (key, slot) in table {
            assert_eq!(key_slot(key), *slot, "{}", key.escape_ascii());
        }
    }
}
