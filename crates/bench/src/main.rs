//! Measures lockfence against what the same server does by itself: `SET key owner NX PX`, a token passed by
//! `BLPOP` and `RPUSH`, a plain key with a TTL.
//!
//! The two sides take turns in small rounds on one server, so that what else the machine does hits both alike; what
//! counts is the ratio of their medians. `--help` lists the options.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a measurement that fails ends the program, and says where"
)]

mod acquire;
mod handover;
mod memory;
mod report;
mod wire;

use std::process::ExitCode;

use lockfence_testkit::{ServerKind, raise_open_files};

use crate::report::Report;

const HELP: &str = "\
usage: lockfence-bench [--server <name>] [--only acquire|handover|memory] [--rounds <n>] [--check]

  --server   one of redis-7.0, redis-8.2, valkey-9.1, valkey-8.1 (default: the first three, as far as present)
  --only     one measurement
  --rounds   alternating rounds of each measurement (default 60)
  --check    fail when a goal is missed";

struct Options {
    server: Option<String>,
    only: Option<String>,
    rounds: usize,
    check: bool,
}

fn options() -> Option<Options> {
    let mut options = Options { server: None, only: None, rounds: 60, check: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--server" => options.server = Some(words.next()?),
            "--only" => options.only = Some(words.next()?),
            "--rounds" => options.rounds = words.next()?.parse().ok().filter(|rounds| *rounds > 0)?,
            "--check" => options.check = true,
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        println!("{HELP}");
        return ExitCode::from(2);
    };
    raise_open_files();
    let named = |kind: &ServerKind| options.server.as_deref().is_none_or(|name| name == kind.name());
    let kinds: Vec<ServerKind> = match &options.server {
        Some(_) => ServerKind::ALL.into_iter().filter(named).collect(),
        None => ServerKind::MATRIX.to_vec(),
    };
    let wanted = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    let mut report = Report::new();
    for kind in kinds.into_iter().filter(|kind| kind.present()) {
        if wanted("acquire") {
            acquire::measure(kind, options.rounds, &mut report);
        }
        if wanted("handover") {
            handover::measure(kind, options.rounds, &mut report);
        }
        if wanted("memory") {
            memory::measure(kind, &mut report);
        }
    }
    report.print();
    if options.check && report.missed() > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
