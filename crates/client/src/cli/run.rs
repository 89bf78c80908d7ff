//! `lockfence run --lock NAME -- COMMAND`: the lock first, then the command, and its end with the lock's.

mod child;
mod control;
pub(crate) mod job;
mod signals;

use std::process;
use std::time::Duration;

use lockfence_client::{ConfigError, Error, Held, Lockfence, Options, Released};
use nix::sys::signal::Signal;

pub(crate) use child::become_command;
use child::{Child, NoCommand, NotStarted};
use control::{Control, Ended};
use job::Reached;
use signals::Signals;

use crate::args::{Patience, Run};
use crate::exit::{self, Failed};
use crate::{escape, nodes, say, time};

/// How long to wait for a lock to be given back before lockfence ends.
const GIVE_BACK: Duration = Duration::from_secs(2);
/// The same where it was not had. Servers that answer do so in that time; to others the order was sent, and what may be
/// there ends with its ttl.
const CALL_OFF: Duration = Duration::from_millis(500);
/// How long to wait for the last servers of a quorum, once a majority has taken it back.
const LAST_ONES: Duration = Duration::from_millis(250);

pub(crate) async fn run(args: &Run) -> Result<u8, Failed> {
    let tell = Tell::new(args);
    let result = run_under_lock(args, &tell).await;
    tell.aside.finish();
    let (code, interrupted) = result?;
    if let Some(reached) = interrupted {
        job::die_of_interrupt(reached);
    }
    Ok(code)
}

/// The exit code, and whether it is that of a command that died of Ctrl-C.
async fn run_under_lock(args: &Run, tell: &Tell) -> Result<(u8, Option<Reached>), Failed> {
    let mut signals = Signals::listen()?;
    let client = client(args, tell)?;
    let held = match acquire(&client, args, tell, &mut signals).await? {
        Got::Lock(held) => held,
        Got::Signal(signal) => return Ok((signal_code(signal as i32), None)),
    };
    let child = match Child::start(&args.command, &held, nodes::bytes(&args.lock)) {
        Ok(child) => child,
        Err(why) => {
            give_back(held, &client).await;
            return Err(not_started(why, tell));
        }
    };
    let ended = Control::new(child, &held, args, tell).run(&mut signals).await;
    let released = give_back(held, &client).await;
    let code = verdict(ended, released, tell);
    let interrupted = match ended {
        Ended::ByItself { code: own, interrupted, .. } if own == code => interrupted,
        _ => None,
    };
    Ok((code, interrupted))
}

fn not_started(why: NotStarted, tell: &Tell) -> Failed {
    match why {
        NotStarted::NoCommand(NoCommand { code, why }) => Failed::new(code, why),
        NotStarted::Lost => {
            tell.news("was lost before the command was started: it was not");
            Failed::Told(exit::LOST)
        }
    }
}

/// Releases the lock. Servers that did not answer the first time get a little more time; where a majority has, so do the
/// others: lockfence ends then, and an order that has not left by then would leave the lock there until its ttl is over.
async fn give_back(held: Held, client: &Lockfence) -> Released {
    match held.release().await {
        Released::Unconfirmed if client.settled(GIVE_BACK).await => Released::Ended,
        Released::Ended => {
            client.settled(LAST_ONES).await;
            Released::Ended
        }
        released => released,
    }
}

/// The exit code; a loss goes before the command's own.
fn verdict(ended: Ended, released: Released, tell: &Tell) -> u8 {
    let Ended::ByItself { code, held, .. } = ended else { return exit::LOST };
    match released {
        Released::NotHeld => {}
        _ if !held => {}
        Released::Unconfirmed => {
            tell.news("could not be given back at enough servers: it ends with its ttl");
            return code;
        }
        Released::Ended => {
            tell.detail("released");
            return code;
        }
    }
    tell.news("was lost before the command ended: another may have worked at the same time");
    exit::LOST
}

/// 128 + n, as shells count.
fn signal_code(signal: i32) -> u8 {
    u8::try_from(signal.saturating_add(128)).unwrap_or(u8::MAX)
}

fn client(args: &Run, tell: &Tell) -> Result<Lockfence, Failed> {
    let mut builder =
        nodes::builder(&args.nodes)?.ttl(args.ttl).name(args.name.clone().unwrap_or_else(own_name));
    if let Some(timeout) = args.nodes.node_timeout {
        builder = builder.node_timeout(timeout);
    }
    if let Some(replicas) = args.min_replicas {
        builder = builder.min_replicas(replicas);
    }
    if args.fsync {
        builder = builder.fsync();
    }
    let client = builder.build().map_err(|error| match error {
        ConfigError::DurableQuorum { nodes } => Failed::new(exit::USAGE, for_one_server(nodes)),
        other => other.into(),
    })?;
    let nodes = client.admin().nodes().len();
    if nodes > 1 && nodes.is_multiple_of(2) {
        tell.line(&format!("{nodes} servers bear no more failures than {} do", nodes.saturating_sub(1)));
    }
    Ok(client)
}

fn for_one_server(nodes: usize) -> String {
    format!(
        "--min-replicas and --fsync are for one server, not for a quorum of {nodes}: there the majority vouches for the \
         lock; let its servers run with appendfsync always or lockfence.quarantine-ms"
    )
}

/// The machine's name and the process number: what somebody who waits wants to know first.
fn own_name() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let host: String = host.to_string_lossy().chars().take(64).collect();
    format!("{host}:{}", process::id())
}

enum Got {
    Lock(Held),
    /// Ended by that signal before there was anything to do.
    Signal(Signal),
}

async fn acquire(client: &Lockfence, args: &Run, tell: &Tell, signals: &mut Signals) -> Result<Got, Failed> {
    tell.detail("asking for it");
    let asked = tokio::select! {
        biased;
        signal = signals.end() => Err(signal),
        held = client.acquire(nodes::bytes(&args.lock), options(args)) => Ok(held),
    };
    match asked {
        Ok(Ok(held)) => {
            tell.detail(&format!("held, token {}", held.token()));
            Ok(Got::Lock(held))
        }
        Ok(Err(error)) => {
            // What was won at a minority, or not vouched for.
            client.settled(CALL_OFF).await;
            Err(not_had(error, args, tell))
        }
        Err(signal) => {
            client.settled(CALL_OFF).await;
            tell.detail(&format!("called off by {signal}"));
            Ok(Got::Signal(signal))
        }
    }
}

fn options(args: &Run) -> Options {
    let options = match args.wait {
        None => Options::try_once(),
        Some(Patience::UpTo(time)) => Options::wait_up_to(time),
        Some(Patience::Forever) => Options::wait_forever(),
    };
    let options = args.max_hold.map_or(options, |time| options.max_hold(time));
    match args.limit {
        _ if args.shared => options.shared(),
        Some(limit) => options.limit(limit),
        None => options,
    }
}

fn not_had(error: Error, args: &Run, tell: &Tell) -> Failed {
    let why = match &error {
        Error::Held { by, retry_after } => format!(
            "is held by {}, for {} more unless it is renewed; --wait 5m would wait for it",
            escape::holder(by.as_ref()),
            time::shown(*retry_after)
        ),
        Error::TimedOut { by } => {
            format!("was not free in time: {} has it; a longer --wait may help", escape::holder(by.as_ref()))
        }
        _ => return error.into(),
    };
    tell.news(&why);
    Failed::Told(args.conflict_exit_code)
}

/// What is said about the lock, to those who want to hear it.
#[derive(Debug)]
struct Tell {
    lock: String,
    quiet: bool,
    verbose: bool,
    aside: say::Aside,
}

impl Tell {
    fn new(args: &Run) -> Self {
        let lock = escape::for_people(nodes::bytes(&args.lock));
        Self { lock, quiet: args.quiet, verbose: args.verbose, aside: say::Aside::new() }
    }

    /// What changes the outcome.
    fn news(&self, what: &str) {
        self.line(&format!("\"{}\" {what}", self.lock));
    }

    /// What is normal.
    fn detail(&self, what: &str) {
        if self.verbose {
            self.line(&format!("\"{}\": {what}", self.lock));
        }
    }

    fn line(&self, text: &str) {
        if !self.quiet {
            self.aside.line(format!("lockfence: {text}"));
        }
    }
}
