//! A sentinel that watches a primary and promotes a replica when it is gone.

use std::time::Duration;

use crate::{Conn, Server, ServerBuilder, ServerKind, cmd, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);

/// Describes a sentinel; [`start`](Self::start) starts it.
#[derive(Debug)]
#[must_use = "a builder starts nothing by itself"]
pub struct SentinelBuilder {
    kind: ServerKind,
    name: String,
    port: u16,
    password: Option<String>,
    quorum: u32,
    down_after_ms: u64,
    failover_timeout_ms: u64,
}

impl SentinelBuilder {
    /// The name of what it watches (`main`).
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// How many sentinels must agree that the primary is gone (1).
    pub fn quorum(mut self, quorum: u32) -> Self {
        self.quorum = quorum;
        self
    }

    /// After how long a silent primary counts as gone (500 ms).
    pub fn down_after_ms(mut self, ms: u64) -> Self {
        self.down_after_ms = ms;
        self
    }

    /// How long a failover may take before another is tried (3,000 ms).
    pub fn failover_timeout_ms(mut self, ms: u64) -> Self {
        self.failover_timeout_ms = ms;
        self
    }

    /// Starts it and waits until it answers.
    #[track_caller]
    pub fn start(self) -> Sentinel {
        let name = &self.name;
        let mut server = ServerBuilder::sentinel(self.kind)
            .config_line(&format!("sentinel monitor {name} 127.0.0.1 {} {}", self.port, self.quorum))
            .config_line(&format!("sentinel down-after-milliseconds {name} {}", self.down_after_ms))
            .config_line(&format!("sentinel failover-timeout {name} {}", self.failover_timeout_ms));
        if let Some(password) = &self.password {
            server = server.arg(&format!("sentinel auth-pass {name}"), password);
        }
        Sentinel { server: server.start(), name: self.name }
    }
}

/// A running sentinel.
#[derive(Debug)]
pub struct Sentinel {
    server: Server,
    name: String,
}

impl Sentinel {
    /// Describes a sentinel, of the same kind as the primary that it is to watch.
    pub fn of(primary: &Server) -> SentinelBuilder {
        SentinelBuilder {
            kind: primary.kind(),
            name: "main".into(),
            port: primary.port(),
            password: primary.password().map(str::to_owned),
            quorum: 1,
            down_after_ms: 500,
            failover_timeout_ms: 3000,
        }
    }

    /// A sentinel with all defaults that watches the primary.
    #[track_caller]
    pub fn watch(primary: &Server) -> Self {
        Self::of(primary).start()
    }

    /// Its process, port, log and so on.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The name of what it watches.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Connects to it.
    #[track_caller]
    pub fn connect(&self) -> Conn {
        self.server.connect()
    }

    /// The port of the primary, as it says now.
    #[track_caller]
    pub fn primary_port(&self) -> u16 {
        let address = cmd!(self.connect(), "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name);
        let port = address.items()[1].text();
        port.parse().unwrap_or_else(|_| panic!("expected a port, got {address:?}"))
    }

    /// Waits until it says that this server is the primary.
    #[track_caller]
    pub fn wait_primary(&self, server: &Server) {
        wait_for(&format!("{server} to be the primary"), PATIENCE, || match self.primary_port() {
            port if port == server.port() => Ok(()),
            port => Err(format!("port {port}")),
        });
    }

    /// Waits until it knows so many replicas and so many other sentinels: before that it can promote nobody.
    #[track_caller]
    pub fn wait_known(&self, replicas: u64, others: u64) {
        let wanted = (replicas.to_string(), others.to_string());
        let mut conn = self.connect();
        wait_for(&format!("{replicas} replicas and {others} other sentinels"), PATIENCE, || {
            let primary = cmd!(conn, "SENTINEL", "MASTER", self.name);
            let seen = (primary.field("num-slaves").text(), primary.field("num-other-sentinels").text());
            if seen == wanted { Ok(()) } else { Err(seen) }
        });
    }

    /// Orders a failover although the primary is well.
    #[track_caller]
    pub fn failover(&self) {
        wait_for("a failover to begin", PATIENCE, || {
            let reply = cmd!(self.connect(), "SENTINEL", "FAILOVER", self.name);
            if reply.is_err() { Err(reply) } else { Ok(()) }
        });
    }
}
