//! A server as a replica of another.

use crate::server::{PATIENCE, Server};
use crate::watch::info;
use crate::{Conn, cmd, wait_for, wait_until};

impl Server {
    /// Makes it a replica of the other. See [`wait_in_sync`](Self::wait_in_sync).
    #[track_caller]
    pub fn replicate_from(&self, primary: &Server) {
        let mut conn = self.connect();
        if let Some(password) = primary.password() {
            cmd!(conn, "CONFIG", "SET", "masterauth", password).ok();
        }
        cmd!(conn, "REPLICAOF", "127.0.0.1", primary.port()).ok();
    }

    /// Waits until this replica has applied all that the primary has written by now.
    #[track_caller]
    pub fn wait_in_sync(&self, primary: &Server) {
        let (mut source, mut conn) = (primary.connect(), self.connect());
        let mut wanted = Replication::of(&mut source);
        wait_for(&format!("{self} to be in sync with {primary}"), PATIENCE, || {
            let seen = Replication::of(&mut conn);
            if seen.follows(&wanted) {
                return Ok(());
            }
            if seen.history != wanted.history {
                wanted = Replication::of(&mut source); // a primary begins a new history with its first replica
            }
            Err(format!("replica {seen:?}, primary {wanted:?}"))
        });
    }

    /// Makes a replica a primary.
    #[track_caller]
    pub fn promote(&self) {
        let mut conn = self.connect();
        cmd!(conn, "REPLICAOF", "NO", "ONE").ok();
        wait_until("the role master", PATIENCE, || Replication::of(&mut conn).role, |role| role == "master");
    }
}

/// What INFO says of a server's place in the replication.
#[derive(Debug)]
struct Replication {
    role: String,
    history: String,
    offset: u64,
    link: String,
}

impl Replication {
    fn of(conn: &mut Conn) -> Self {
        let mut fields = info(conn, "replication");
        let mut take = |name: &str| fields.remove(name).unwrap_or_default();
        let role = take("role");
        let offset = take(if role == "slave" { "slave_repl_offset" } else { "master_repl_offset" });
        let (history, link) = (take("master_replid"), take("master_link_status"));
        Self { role, history, link, offset: offset.parse().unwrap_or(0) }
    }

    fn follows(&self, primary: &Self) -> bool {
        let linked = self.role == "slave" && self.link == "up";
        linked && self.history == primary.history && self.offset >= primary.offset
    }
}
