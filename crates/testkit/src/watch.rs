//! Looking at a server from outside: its log, its data's digest, its INFO.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::server::{PATIENCE, Server};
use crate::{Conn, cmd, wait_until};

impl Server {
    /// Its log of all its runs, and what it printed.
    pub fn log(&self) -> String {
        read_logs(self.dir())
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        tail(&self.log())
    }

    /// A digest of all its data (`DEBUG DIGEST`): equal on a primary and a replica in sync.
    #[track_caller]
    pub fn digest(&self) -> String {
        cmd!(self.connect(), "DEBUG", "DIGEST").text()
    }

    /// The bytes it has allocated.
    #[track_caller]
    pub fn used_memory(&self) -> u64 {
        let memory = self.info("memory");
        let used = memory.get("used_memory").and_then(|bytes| bytes.parse().ok());
        used.unwrap_or_else(|| panic!("no used_memory in {memory:?}"))
    }

    /// A section of INFO as fields and values.
    #[track_caller]
    pub fn info(&self, section: &str) -> BTreeMap<String, String> {
        info(&mut self.connect(), section)
    }

    /// Changes a setting: `CONFIG SET name value`.
    #[track_caller]
    pub fn config_set(&self, name: &str, value: &str) {
        cmd!(self.connect(), "CONFIG", "SET", name, value).ok();
    }

    /// Waits until exactly this many clients are blocked by a command.
    #[track_caller]
    pub fn wait_blocked_clients(&self, count: u64) {
        let blocked = || self.info("clients").get("blocked_clients").and_then(|n| n.parse().ok());
        wait_until(&format!("{count} blocked clients"), PATIENCE, blocked, |seen| *seen == Some(count));
    }
}

#[track_caller]
pub(crate) fn info(conn: &mut Conn, section: &str) -> BTreeMap<String, String> {
    fields(&cmd!(conn, "INFO", section).text())
}

pub(crate) fn fields(info: &str) -> BTreeMap<String, String> {
    let pairs = info.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The log and, where there is any, the output: before its log is open a server complains there.
pub(crate) fn read_logs(dir: &Path) -> String {
    let read = |name: &str| fs::read(dir.join(name)).unwrap_or_default();
    let mut text = String::from_utf8_lossy(&read("server.log")).into_owned();
    text.push_str(&String::from_utf8_lossy(&read("server.out")));
    text
}

fn tail(log: &str) -> String {
    const LINES: usize = 60;
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
