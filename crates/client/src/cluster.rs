//! Which server of a cluster has a key: learned from the redirects, never from the whole map.
//!
//! A slot whose owner is not known is asked for at any node, which names the owner. What is known is forgotten when that
//! server does not answer. A request that was redirected was not carried out: it goes out again, as it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crc::{CRC_16_XMODEM, Crc};
use redis::{ConnectionInfo, ServerError, Value};

use crate::dial::{Dialer, at};
use crate::identity::Identity;
use crate::line::Line;
use crate::wire::bytes;

const SLOTS: u16 = 16_384;

/// The nodes of a cluster, as far as they are known.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// A node to begin with, as it was configured: the others are connected to in the same way.
    like: ConnectionInfo,
    map: Mutex<Map>,
}

#[derive(Debug, Default)]
struct Map {
    owners: HashMap<u16, Arc<Line>>,
    lines: Vec<(String, Arc<Line>)>,
    /// Whom to ask next about a slot whose owner is not known.
    turn: usize,
}

/// What a cluster's answer says about where to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redirect<'a> {
    /// The slot is there now.
    Moved {
        /// The slot.
        slot: u16,
        /// Where: `host:port`, the host may be empty (the same one).
        to: &'a str,
    },
    /// The slot is on its way there, and so may be the key: this once.
    Ask {
        /// Where.
        to: &'a str,
    },
    /// Some of the keys are here, others there: soon.
    TryAgain,
}

impl<'a> Redirect<'a> {
    /// What that error says; `None` where it is no redirect, or one that cannot be followed.
    pub(crate) fn of(error: &'a ServerError) -> Option<Self> {
        let mut words = error.details().unwrap_or_default().split_ascii_whitespace();
        let slot = words.next().and_then(|slot| slot.parse().ok());
        match (error.code(), slot, words.next()) {
            ("MOVED", Some(slot), Some(to)) => Some(Self::Moved { slot, to }),
            ("ASK", _, Some(to)) => Some(Self::Ask { to }),
            ("TRYAGAIN", ..) => Some(Self::TryAgain),
            _ => None,
        }
    }
}

impl Cluster {
    /// A cluster that has those nodes, and perhaps others. `None` without any.
    pub(crate) fn new(seeds: &[ConnectionInfo], identity: Option<&Identity>) -> Option<Self> {
        let like = seeds.first()?.clone();
        let line = |info: &ConnectionInfo| {
            let line = Line::new(Dialer::Fixed(info.clone()), identity.map(Identity::another));
            (info.addr().to_string(), line)
        };
        let lines = seeds.iter().map(line).collect();
        Some(Self { like, map: Mutex::new(Map { lines, ..Map::default() }) })
    }

    /// The way to the owner of that slot, or to a node that will name it.
    pub(crate) fn line(&self, slot: u16) -> Option<Arc<Line>> {
        let mut map = self.map();
        if let Some(owner) = map.owners.get(&slot) {
            return Some(owner.clone());
        }
        map.turn = map.turn.checked_add(1).filter(|turn| *turn < map.lines.len()).unwrap_or(0);
        map.lines.get(map.turn).map(|(_, line)| line.clone())
    }

    /// Where that redirect, an answer from `from`, leads to.
    pub(crate) fn follow(&self, redirect: Redirect<'_>, from: &Line) -> Option<Arc<Line>> {
        match redirect {
            Redirect::Moved { slot, to } => {
                let line = self.line_to(to, from)?;
                self.map().owners.insert(slot, line.clone());
                Some(line)
            }
            Redirect::Ask { to } => self.line_to(to, from),
            Redirect::TryAgain => None,
        }
    }

    /// That server was not to be had: another one is asked who has the slot now.
    pub(crate) fn forget(&self, slot: u16, line: &Arc<Line>) {
        let mut map = self.map();
        if map.owners.get(&slot).is_some_and(|owner| Arc::ptr_eq(owner, line)) {
            map.owners.remove(&slot);
        }
    }

    /// The servers that `CLUSTER SLOTS`, answered by `from`, names for the slots. `None` where some slot has none.
    pub(crate) fn primaries(&self, slots: &Value, from: &Line) -> Option<Vec<Arc<Line>>> {
        let Value::Array(ranges) = slots else { return None };
        let mut found: Vec<Arc<Line>> = Vec::new();
        let mut served = 0_u16;
        for range in ranges {
            let Value::Array(range) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = range.as_slice() else {
                return None;
            };
            let length = u16::try_from(last.checked_sub(*first)?.checked_add(1)?).ok()?;
            served = served.checked_add(length)?;
            let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
            let host = std::str::from_utf8(bytes(host).unwrap_or_default()).ok()?;
            let line = self.line_to(&format!("{host}:{port}"), from)?;
            if !found.iter().any(|other| Arc::ptr_eq(other, &line)) {
                found.push(line);
            }
        }
        (served == SLOTS).then_some(found)
    }

    fn line_to(&self, to: &str, from: &Line) -> Option<Arc<Line>> {
        let (host, port) = to.rsplit_once(':')?;
        let host = match host.trim_start_matches('[').trim_end_matches(']') {
            "" => from.dialer().host()?,
            "?" => return None, // the server does not know it
            host => host,
        };
        let info = at(&self.like, host, port.parse().ok()?);
        let name = info.addr().to_string();
        let mut map = self.map();
        if let Some((_, line)) = map.lines.iter().find(|(other, _)| *other == name) {
            return Some(line.clone());
        }
        let line = from.beside(Dialer::Fixed(info));
        map.lines.push((name, line.clone()));
        Some(line)
    }

    fn map(&self) -> std::sync::MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of a key: of what is in its first pair of braces, if anything is.
pub(crate) fn slot(key: &[u8]) -> u16 {
    const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);
    let tag = || {
        let (_, after) = split_at(key, b'{')?;
        split_at(after, b'}').map(|(tag, _)| tag).filter(|tag| !tag.is_empty())
    };
    CRC.checksum(tag().unwrap_or(key)) % SLOTS
}

/// What is before and after the first such byte.
fn split_at(bytes: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|other| *other == byte)?;
    Some((bytes.get(..at)?, bytes.get(at.checked_add(1)?..)?))
}

#[cfg(test)]
mod tests {
    use redis::{ConnectionInfo, IntoConnectionInfo as _};

    use super::{Cluster, Redirect, slot};

    fn seed() -> ConnectionInfo {
        "redis://user:secret@first:7000"
            .into_connection_info()
            .unwrap_or_else(|error| unreachable!("{error}"))
    }

    #[test]
    fn redirects_are_followed_where_they_can_be() {
        // what a server says, and where that leads to
        for (to, leads_to) in [
            ("10.0.0.1:7001", Some("10.0.0.1:7001")),
            ("2001:db8::1:7001", Some("2001:db8::1:7001")),
            (":7001", Some("first:7001")),
            ("first:7000", Some("first:7000")),
            ("?:7001", None),
            ("7001", None),
            ("host:seven", None),
        ] {
            let cluster = Cluster::new(&[seed()], None).unwrap_or_else(|| unreachable!());
            let first = cluster.line(5).unwrap_or_else(|| unreachable!());
            let line = cluster.follow(Redirect::Moved { slot: 5, to }, &first);
            let known = cluster
                .map()
                .lines
                .iter()
                .find(|(_, known)| line.as_ref().is_some_and(|line| std::sync::Arc::ptr_eq(known, line)))
                .map(|(name, _)| name.clone());
            assert_eq!(known.as_deref(), leads_to, "{to}");
            if let Some(line) = line {
                assert!(
                    std::sync::Arc::ptr_eq(&line, &cluster.line(5).unwrap_or_else(|| unreachable!())),
                    "{to}"
                );
                assert!(format!("{line:?}").contains("user"), "with the same login: {line:?}");
            }
        }
    }

    /// Numbers of `CLUSTER KEYSLOT`.
    #[test]
    fn slots_are_those_of_the_server() {
        for (key, number) in [
            ("", 0),
            ("foo", 12182),
            ("123456789", 12739),
            ("lock:{acct:42}", slot(b"acct:42")),
            ("{}foo", 9500),
            ("foo{", slot(b"foo{")),
            ("a{b}{c}", slot(b"b")),
        ] {
            assert_eq!(slot(key.as_bytes()), number, "{key}");
        }
    }
}
