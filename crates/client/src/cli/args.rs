//! The command line: what it takes, and its help. Values that may hold a password are read as plain text here: clap
//! quotes what it cannot parse.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::exit;
use crate::time;

/// Run commands under a distributed lock, and look at locks
///
/// The locks are kept by Redis or Valkey servers with the lockfence module: by one, or by three or five that know nothing
/// of each other, of which a majority must agree (a quorum).
#[derive(Debug, Parser)]
#[command(name = "lockfence", version, after_long_help = format!("{MAIN_EXAMPLES}\n\n{NODES}\n\n{}", exit::TABLE))]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const MAIN_EXAMPLES: &str = "\
Examples:
  export LOCKFENCE_NODES=redis://10.0.0.1:6379
  lockfence run --lock deploy --wait 5m -- ./deploy.sh
                            at most one deploy at a time, wherever it starts
  lockfence ls              who holds what, and for how long
  lockfence info deploy     one lock: its holder, and who waits
  lockfence break deploy    take it from whoever has it
  lockfence help run        all about one command";

const NODES: &str = "\
Servers:
  Name one server with --node, or each server of a quorum with a --node of its
  own; or all of them, separated by commas or spaces, in the environment variable
  LOCKFENCE_NODES. Where there is a --node, LOCKFENCE_NODES does not count.
  Other users of a machine can see the arguments of a program (ps), but not its
  environment: URLs with a password belong into LOCKFENCE_NODES.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Ls(List),
    Info(Info),
    Break(Break),
    Watch(Watch),
    Completions(Completions),
    Man(Man),
}

/// Which servers.
#[derive(Args, Debug)]
pub(crate) struct Nodes {
    /// A server: redis://[user:password@]host[:port][/db]; repeat it for each server of a quorum
    ///
    /// Also rediss://… with TLS, redis+unix:///path, redis+sentinel://host,host,…/name for the primary that the sentinels
    /// call so, and redis+cluster://host,host,….
    ///
    /// Without it the servers come from the environment variable LOCKFENCE_NODES (separated by commas or spaces), which
    /// other users of the machine cannot see: use that for URLs with a password.
    #[arg(long = "node", value_name = "URL")]
    pub(crate) urls: Vec<String>,

    /// How long a server may take to answer
    ///
    /// run: by default a tenth of the ttl, at most 1s. Other commands: 5s.
    #[arg(long, value_name = "DURATION", value_parser = time::parse_above_zero)]
    pub(crate) node_timeout: Option<Duration>,

    /// Trust these certificate authorities (PEM), not the system's, for servers with TLS
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Show this certificate (PEM) to servers with TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The private key (PEM) of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// Run a command while holding a lock
///
/// Gets the lock, runs the command, and gives the lock back when the command ends. While the command runs the lock is
/// renewed. If it is lost all the same (the servers cannot be reached, or somebody broke it), the command is stopped: it
/// and what it started get TERM, and KILL after the grace.
#[derive(Args, Debug)]
#[command(
    override_usage = "lockfence run [OPTIONS] --lock <NAME> -- <COMMAND> [ARGUMENT]...",
    after_long_help = format!("{RUN_EXAMPLES}\n\n{}", exit::TABLE)
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) nodes: Nodes,

    /// The lock's name
    #[arg(long, short, value_name = "NAME")]
    pub(crate) lock: OsString,

    /// The lease: how long the lock stays taken if this machine dies
    ///
    /// It is renewed every third of it. Also how long the command may go on unnoticed when the network is cut, so it is
    /// stopped before that time is over.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = time::parse)]
    pub(crate) ttl: Duration,

    /// How long to wait for the lock: a duration, or forever; without it: do not wait
    ///
    /// Those who wait are served in the order in which they came.
    #[arg(long, short, value_name = "DURATION", value_parser = patience)]
    pub(crate) wait: Option<Patience>,

    /// How long the command may take to end after TERM, before KILL
    ///
    /// Where the servers fall silent TERM comes that much earlier (up to a third of the ttl), so that the command is gone
    /// when the lease ends.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = time::parse)]
    pub(crate) grace: Duration,

    /// Stop the command when it has held the lock for so long: for work that may hang
    ///
    /// TERM comes earlier by the grace (at most a third of this time), and KILL before the time is over, so that the
    /// command is gone then. The exit code is that of a lost lock.
    #[arg(long, value_name = "DURATION", value_parser = time::parse_above_zero)]
    pub(crate) max_hold: Option<Duration>,

    /// Count the lock as held only while N replicas of the server have it, too. One server only
    ///
    /// So a failover does not forget it. Renewals must reach them as well.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) min_replicas: Option<u32>,

    /// Count the lock as held only once it is on the server's disk (appendonly yes). One server only
    ///
    /// So a crash does not forget it. Needs Redis 7.2 or Valkey.
    #[arg(long)]
    pub(crate) fsync: bool,

    /// Share the lock with others that use --shared, but with nobody else: for readers
    #[arg(long, conflicts_with = "limit")]
    pub(crate) shared: bool,

    /// Let up to N hold the lock at once (a semaphore); all users of the lock should name the same N. One server only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) limit: Option<u32>,

    /// How the holder is shown to others; by default the machine's name and the process number
    #[arg(long, value_name = "TEXT")]
    pub(crate) name: Option<String>,

    /// The exit code when somebody else has the lock
    #[arg(long, short = 'E', value_name = "CODE", default_value_t = exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,

    /// Do not say on the standard error output when the lock is not had or lost: the exit code does
    #[arg(long, short, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Say what is going on
    #[arg(long, short)]
    pub(crate) verbose: bool,

    /// The command and its arguments; put -- before it
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

const RUN_EXAMPLES: &str = "\
The command:
  finds the lock's name in LOCKFENCE_LOCK and its fencing token in
  LOCKFENCE_TOKEN. The token rises from holder to holder: FENCE.WRITE and
  FENCE.CALL, on the server where the data is, refuse what a command that was
  stopped too late still writes.

  It leads a process group of its own. INT, TERM, HUP and QUIT are passed on to
  that group, USR1 and USR2 to the command alone. Ctrl-Z stops lockfence, too,
  and the lock ends with its ttl; `fg` lets the command go on only if the lock
  is still held. If lockfence itself is killed (KILL), so is the command, but
  not what it started; and the lock ends with its ttl.

Examples:
  lockfence run --lock deploy -- ./deploy.sh
      not while somebody else deploys
  lockfence run --lock deploy --wait 5m --ttl 30s -- ./deploy.sh
      waits for up to five minutes
  lockfence run --lock report --shared --wait forever -- ./read.sh
      together with other readers
  lockfence run --lock builds --limit 4 --wait forever -- make
      at most four at once
  lockfence run --lock nightly --quiet -E 0 -- ./nightly.sh
      from cron on every machine: one runs it, the others end quietly with 0
  lockfence run --node redis://a --node redis://b --node redis://c \\
      --lock deploy -- ./deploy.sh
      a quorum: one of the three servers may be down";

/// How long to wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    UpTo(Duration),
    Forever,
}

fn patience(text: &str) -> Result<Patience, String> {
    if text == "forever" {
        return Ok(Patience::Forever);
    }
    time::parse(text).map(Patience::UpTo).map_err(|error| format!("{error}; or forever"))
}

/// List the locks that are held or waited for
///
/// On a quorum the servers' answers are laid together by the lock's name: held is what one holder has at a majority of
/// them, partly what nobody has at a majority (it is being taken or given back just now, or was left over), unknown what
/// servers that do not answer may have. NODES says at how many of them the holder stands.
#[derive(Args, Debug)]
#[command(after_long_help = LIST_EXAMPLES)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) nodes: Nodes,

    #[command(flatten)]
    pub(crate) which: Which,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which locks.
#[derive(Args, Debug)]
pub(crate) struct Which {
    /// Only locks with such a name: * stands for any text, ? for one character, [ab] for one of these
    #[arg(value_name = "PATTERN", default_value = "*")]
    pub(crate) pattern: OsString,

    /// Free locks, too, of which the servers still have a record
    #[arg(long, short)]
    pub(crate) all: bool,
}

const LIST_EXAMPLES: &str = "\
Examples:
  lockfence ls
  lockfence ls 'deploy:*'
  lockfence ls --json | jq -r '.locks[] | select(.held_ms > 3600000) | .name'
      those that were held for more than an hour";

/// Show one lock: who holds it, since when, and who waits
///
/// Ends with 1 when nobody holds it.
#[derive(Args, Debug)]
#[command(after_long_help = INFO_EXAMPLES)]
pub(crate) struct Info {
    #[command(flatten)]
    pub(crate) nodes: Nodes,

    /// The lock's name
    #[arg(value_name = "LOCK")]
    pub(crate) lock: OsString,

    /// How many holders and waiters to list; 0: all
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) count: u32,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const INFO_EXAMPLES: &str = "\
Examples:
  lockfence info deploy
  lockfence info deploy --json | jq .waiters
  if lockfence info deploy >/dev/null; then echo 'somebody deploys'; fi";

/// Take a lock from whoever holds it
///
/// The holder is fenced at once: the servers refuse its token from then on. It is told at its next renewal; the next in
/// the queue gets the lock. Ends with 1 when nobody held it.
#[derive(Args, Debug)]
#[command(after_long_help = BREAK_EXAMPLES)]
pub(crate) struct Break {
    #[command(flatten)]
    pub(crate) nodes: Nodes,

    /// The lock's name
    #[arg(value_name = "LOCK")]
    pub(crate) lock: OsString,

    /// Do not ask first
    #[arg(long, short)]
    pub(crate) yes: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const BREAK_EXAMPLES: &str = "\
Examples:
  lockfence break deploy
      shows who holds it, and asks
  lockfence break deploy --yes
      in a script";

/// Show the locks again and again, until Ctrl-C
///
/// On a terminal the table is drawn anew in its place; elsewhere each table follows the one before, after an empty line.
/// With --json each look is one line.
#[derive(Args, Debug)]
#[command(after_long_help = WATCH_EXAMPLES)]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) nodes: Nodes,

    #[command(flatten)]
    pub(crate) which: Which,

    /// How long to wait between two looks
    #[arg(long, short, value_name = "DURATION", default_value = "1s", value_parser = time::parse_above_zero)]
    pub(crate) interval: Duration,

    /// End after so many looks, with the exit code of the last one
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// Print JSON, one line for each look
    #[arg(long)]
    pub(crate) json: bool,
}

const WATCH_EXAMPLES: &str = "\
Examples:
  lockfence watch
  lockfence watch 'deploy:*' --interval 500ms
  lockfence watch --json --interval 10s >> locks.jsonl";

/// Print a script that completes the command line in a shell
#[derive(Args, Debug)]
#[command(after_long_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct Completions {
    /// For which shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(lockfence completions bash)
      in ~/.bashrc
  lockfence completions zsh > \"${fpath[1]}/_lockfence\"
  lockfence completions fish > ~/.config/fish/completions/lockfence.fish";

/// Print the manual page
///
/// Without a command that of lockfence itself, with a list of its commands.
#[derive(Args, Debug)]
#[command(after_long_help = MAN_EXAMPLES)]
pub(crate) struct Man {
    /// The page of that command
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    pub(crate) command: Option<String>,

    /// Write all pages into this folder instead
    #[arg(long, value_name = "FOLDER")]
    pub(crate) dir: Option<PathBuf>,
}

const MAN_EXAMPLES: &str = "\
Examples:
  lockfence man run | man -l -
  lockfence man --dir /usr/local/share/man/man1";
