//! Exit codes. Those of `run` must not be taken for the command's own: 117 … 119 are hardly used (not by shells, not in
//! sysexits.h, not by timeout and xargs), and 125 … 127 mean the same to env, nice, timeout and docker run.

use std::io::{self, ErrorKind};

use lockfence_client::{ConfigError, Error, Lost, NodeError};

use crate::escape;
use crate::say;

/// The lock is not held, or nothing was broken: `info` and `break`.
pub(crate) const NOT_HELD: u8 = 1;
/// Somebody else has the lock.
pub(crate) const CONFLICT: u8 = 117;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 118;
/// Too few nodes gave an answer that counts: later there may be more.
pub(crate) const NO_QUORUM: u8 = 119;
/// A mistake that somebody must mend: wrong usage or configuration, or the nodes refuse it. Or lockfence itself failed.
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
  119      an outage: too few servers gave an answer that counts, or vouched
           for the lock (--min-replicas, --fsync); trying again may help
  125      a mistake: wrong usage or configuration, or the servers refuse it
           (wrong password, no right, no module, no lock, …); or lockfence
           itself failed
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
        let text = error.to_string();
        Self::new(USAGE, format!("{text}{}", in_parentheses(&text)))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        match error {
            Error::NoQuorum(nodes) => no_quorum(&nodes),
            Error::RefusedByNodes(nodes) => refused(&nodes),
            Error::Config(error) => error.into(),
            Error::Held { by, .. } | Error::TimedOut { by } => {
                Self::new(CONFLICT, format!("{} has the lock", escape::holder(by.as_ref())))
            }
            Error::Lost(why) => Self::new(LOST, format!("the lock was lost: {}", lost(&why))),
            Error::Indeterminate(_) | Error::NotDurable { .. } => {
                Self::new(NO_QUORUM, hinted(&error.to_string()))
            }
            other => Self::new(USAGE, hinted(&other.to_string())),
        }
    }
}

/// Too few nodes answered: with the cause at each, and what to do about those that a newcomer meets.
pub(crate) fn no_quorum(nodes: &[NodeError]) -> Failed {
    let mut text = "too few nodes gave an answer that counts".to_owned();
    push_each(&mut text, nodes);
    if nodes.is_empty() {
        text.push_str(": none said why; is the address right, and the server up?");
    }
    Failed::new(NO_QUORUM, text)
}

/// Too many nodes refuse it, and will again.
pub(crate) fn refused(nodes: &[NodeError]) -> Failed {
    let mut text = "refused, and trying again does not help".to_owned();
    push_each(&mut text, nodes);
    Failed::new(USAGE, text)
}

fn push_each(text: &mut String, nodes: &[NodeError]) {
    for node in nodes {
        text.push_str("\n  ");
        text.push_str(&at_node(node));
    }
}

/// Why a lock was lost. The owner who has it now is shown like everywhere: it is that one's credential.
pub(crate) fn lost(why: &Lost) -> String {
    match why {
        Lost::Taken { by } => format!("taken by {}", escape::owner(by)),
        Lost::NoQuorum(nodes) => {
            let causes: Vec<String> = nodes.iter().map(at_node).collect();
            format!("too few nodes renewed it: {}", causes.join("; "))
        }
        other => escape::for_people(other.to_string().as_bytes()),
    }
}

/// A node's reason, with a hint where it is one that a newcomer meets.
pub(crate) fn at_node(node: &NodeError) -> String {
    hinted(&format!("{}: {}", node.node, node.cause))
}

/// Why something failed, and what to do about it where that is known.
fn hinted(cause: &str) -> String {
    format!("{}{}", escape::for_people(cause.as_bytes()), in_parentheses(cause))
}

/// What to do about that cause, to be put behind it; nothing where it is not known.
fn in_parentheses(cause: &str) -> String {
    hint(cause).map(|hint| format!(" ({hint})")).unwrap_or_default()
}

/// What a newcomer meets: words of the cause, and what to do. The first one counts.
const HINTS: [(&str, &str); 27] = [
    ("'SENTINEL'", "that is no sentinel: is the port right? They listen on 26379 unless told otherwise"),
    ("WAITAOF", "--fsync needs Redis 7.2 or Valkey, and appendonly yes"),
    (
        "unknown command",
        "the server has not loaded the lockfence module: see loadmodule in lockfence's README",
    ),
    ("NOAUTH", LOGIN),
    ("uthentication required", LOGIN),
    ("uthentication failed", WRONG_LOGIN),
    ("WRONGPASS", WRONG_LOGIN),
    (
        "refused to switch database",
        "the number behind the host is a database: has the server so many? 0 is the usual one",
    ),
    ("NOPERM", "this user may not do it: allow the command and the key with ACL SETUSER"),
    ("READONLY", "this is a replica: name its primary, or the sentinels that know it, redis+sentinel://"),
    ("WRONGTYPE", "something else than a lock is kept under that name: choose another name for the lock"),
    ("MOVED", "this server is one of a cluster: write redis+cluster:// for redis://"),
    ("QUARANTINE", "the server has just started: it grants nothing while older leases may still be live"),
    ("LOADING", "the server is reading its data: try again soon"),
    ("InvalidContentType", "no TLS there: write redis:// for rediss://"),
    ("not valid for name", "the certificate must be good for the host as it stands in the address"),
    (
        "CaUsedAsEndEntity",
        "that is an authority's certificate: the server needs one with basicConstraints=CA:FALSE",
    ),
    ("invalid peer certificate", "--tls-ca names a file with the authorities to trust"),
    ("CertificateRequired", "the server wants a certificate: --tls-cert and --tls-key"),
    ("onnection refused", "nothing listens there: is the port right, and the server up?"),
    ("lookup address", "is the host's name right?"),
    ("onnection reset", SILENT_TLS),
    ("end of file", SILENT_TLS),
    ("no connection within", "it hangs, or the address is wrong: redis:// is without TLS, rediss:// with it"),
    ("names no servers for some", "is that a cluster? For a single server write redis://"),
    (
        "did not parse",
        "an address is like redis://host:6379; what is special in a password is written %40 and so on",
    ),
    ("Parse error", "is that a Redis or Valkey server? Is the port right?"),
];
const WRONG_LOGIN: &str = "are user and password right? In a URL @ / : ? # % are written %40 and so on";
const LOGIN: &str =
    "user and password go into the URL, before the host; better in LOCKFENCE_NODES than in --node";
const SILENT_TLS: &str = "if the server wants TLS: write rediss:// for redis://";

fn hint(cause: &str) -> Option<&'static str> {
    HINTS.iter().find(|(words, _)| cause.contains(words)).map(|(_, hint)| *hint)
}
