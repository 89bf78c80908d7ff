//! Exit codes. Those of `run` must not be taken for the command's own: 117 … 119 are hardly used (not by shells, not in
//! sysexits.h, not by timeout and xargs), and 125 … 127 mean the same to env, nice, timeout and docker run.

use std::io::{self, ErrorKind};

use lockfence_client::{ConfigError, Error, NodeError};

use crate::escape;
use crate::say;

/// The lock is not held, or nothing was broken: `info` and `break`.
pub(crate) const NOT_HELD: u8 = 1;
/// Somebody else has the lock.
pub(crate) const CONFLICT: u8 = 117;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 118;
/// Too few nodes answered.
pub(crate) const NO_QUORUM: u8 = 119;
/// Wrong usage or configuration, or lockfence itself failed.
pub(crate) const USAGE: u8 = 125;
/// The command cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// For the end of --help, and the manual.
pub(crate) const TABLE: &str = "\
Exit codes:
  0        done; of run: the command ended with 0
  1        info, break: nobody holds the lock; break: you said no, or the
           holder has changed
  117      run: somebody else has the lock, or had it until --wait was over
           (another code: --conflict-exit-code)
  118      run: the lock was lost before the command ended
  119      too few servers answered
  125      wrong usage or configuration, or lockfence itself failed
  126      run: the command cannot be executed
  127      run: there is no such command
  128 + n  run: the command was ended by signal n, or lockfence was while it
           waited for the lock
  other    run: the command's own";

/// Why a command ends early.
#[derive(Debug)]
pub(crate) enum Failed {
    /// With that code, and a line for people.
    Say(u8, String),
    /// With that code; all was said.
    Told(u8),
    /// The output could not be written.
    Output(io::Error),
}

impl Failed {
    pub(crate) fn new(code: u8, line: impl Into<String>) -> Self {
        Self::Say(code, line.into())
    }

    /// Tells people, and gives the exit code.
    pub(crate) fn tell(self) -> u8 {
        match self {
            Self::Say(code, line) => {
                say::line(&format!("lockfence: {line}"));
                code
            }
            Self::Told(code) => code,
            // Whoever read the output has read enough (`lockfence ls | head -1`).
            Self::Output(error) if error.kind() == ErrorKind::BrokenPipe => 0,
            Self::Output(error) => {
                say::line(&format!("lockfence: cannot write the output: {error}"));
                USAGE
            }
        }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<ConfigError> for Failed {
    fn from(error: ConfigError) -> Self {
        Self::new(USAGE, error.to_string())
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        match error {
            Error::NoQuorum(nodes) => no_quorum(&nodes),
            Error::RefusedByNodes(nodes) => refused(&nodes),
            Error::Config(error) => error.into(),
            Error::Held { .. } | Error::TimedOut { .. } => Self::new(CONFLICT, error.to_string()),
            Error::Lost(_) => Self::new(LOST, error.to_string()),
            other => Self::new(USAGE, other.to_string()),
        }
    }
}

/// Too few nodes answered: with the cause at each, and what to do about those that a newcomer meets.
pub(crate) fn no_quorum(nodes: &[NodeError]) -> Failed {
    let mut text = "too few nodes answered".to_owned();
    push_each(&mut text, nodes);
    if nodes.is_empty() {
        text.push_str(": none said why; is the address right, and the server up?");
    }
    Failed::new(NO_QUORUM, text)
}

/// Too many nodes refuse it, and will again.
fn refused(nodes: &[NodeError]) -> Failed {
    let mut text = "refused, and trying again does not help".to_owned();
    push_each(&mut text, nodes);
    Failed::new(NO_QUORUM, text)
}

fn push_each(text: &mut String, nodes: &[NodeError]) {
    for node in nodes {
        text.push_str("\n  ");
        text.push_str(&at_node(node));
    }
}

/// A node's reason, with a hint where it is one that a newcomer meets.
pub(crate) fn at_node(node: &NodeError) -> String {
    let hint = hint(&node.cause).map(|hint| format!(" ({hint})")).unwrap_or_default();
    let text = format!("{}: {}", node.node, node.cause);
    format!("{}{hint}", escape::for_people(text.as_bytes()))
}

fn hint(cause: &str) -> Option<&'static str> {
    let has = |words: &str| cause.contains(words);
    if has("unknown command") {
        Some("the server has not loaded the lockfence module: see loadmodule in lockfence's README")
    } else if has("NOAUTH") || has("WRONGPASS") || has("AuthenticationFailed") || has("uthentication") {
        Some("user and password go into the URL, before the host; better in LOCKFENCE_NODES than in --node")
    } else if has("NOPERM") {
        Some("this user may not do it: allow the command and the key with ACL SETUSER")
    } else if has("QUARANTINE") {
        Some("the server has just started: it grants nothing while older leases may still be live")
    } else if has("refused") {
        Some("nothing listens there: is the port right, and the server up?")
    } else {
        None
    }
}
