//! Commands as words, and answers as replies.

use lockfence_core::clock::Ttl;
use lockfence_core::ids::{Mode, Owner, Token};
use lockfence_core::request::{Acquire, Extend, Release, Wait};
use redis::{ServerError, ToRedisArgs, Value};

use crate::line::Answer;
use crate::quorum::{Command, Failure, FailureKind, OwnerId, Reply, Standing};

/// What all commands of one lock share.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// The lock's name.
    pub(crate) lock: Vec<u8>,
    /// The lease.
    pub(crate) ttl_ms: u64,
    /// What is put before the owner's digits.
    pub(crate) prefix: String,
    /// How many may hold it, and together with whom.
    pub(crate) mode: Mode,
}

impl Subject {
    pub(crate) fn owner(&self, owner: OwnerId) -> Vec<u8> {
        if self.prefix.is_empty() {
            owner.to_string().into_bytes()
        } else {
            format!("{}/{owner}", self.prefix).into_bytes()
        }
    }

    /// `command` as a client sends it. `None` for what the builder has refused: an owner or lease out of range.
    pub(crate) fn command(&self, command: Command) -> Option<redis::Cmd> {
        let ttl = Ttl::from_ms(self.ttl_ms)?;
        let words = match command {
            Command::Acquire { owner, min_token, wait_ms } => {
                let owner = self.owner(owner);
                let mut request = Acquire::new(Owner::new(&owner)?, ttl);
                request.min_token = min_token.and_then(Token::new);
                request.wait = wait_ms.map(|ms| if ms == 0 { Wait::Forever } else { Wait::Ms(ms) });
                request.mode = self.mode;
                request.with_info = true;
                request.words(&self.lock)
            }
            Command::Extend { owner, min_token } => {
                let owner = self.owner(owner);
                let request =
                    Extend { owner: Owner::new(&owner)?, ttl, min_token: min_token.and_then(Token::new) };
                request.words(&self.lock)
            }
            Command::Release { owner } => {
                let owner = self.owner(owner);
                Release { owner: Owner::new(&owner)? }.words(&self.lock)
            }
            Command::Look => vec![b"LOCK.INFO".to_vec(), self.lock.clone()],
        };
        Some(command_of(words))
    }
}

/// The command that consists of these words.
pub(crate) fn command_of(words: impl IntoIterator<Item = impl ToRedisArgs>) -> redis::Cmd {
    let mut cmd = redis::Cmd::new();
    for word in words {
        cmd.arg(word);
    }
    cmd
}

/// What a server answered to `command`.
pub(crate) fn reply(command: Command, answer: Answer) -> Reply {
    let value = match answer {
        Ok(Value::ServerError(error)) => return Reply::Failed(failure(&error)),
        Ok(value) => value,
        Err(failure) => return Reply::Failed(failure),
    };
    let understood = match command {
        Command::Acquire { .. } => acquired(&value),
        Command::Extend { .. } | Command::Release { .. } => match value {
            Value::Int(1) => Some(Reply::Done(true)),
            Value::Int(0) => Some(Reply::Done(false)),
            _ => None,
        },
        Command::Look if value == Value::Nil => Some(Reply::Standing(Standing::default())),
        Command::Look => Some(Reply::Standing(standing(&value))),
    };
    understood.unwrap_or_else(|| Reply::Failed(not_understood(&value)))
}

/// That this is no answer of lockfence's.
pub(crate) fn not_understood(value: &Value) -> Failure {
    Failure::new(FailureKind::NotUnderstood, format!("not an answer of lockfence: {}", shape(value)))
}

/// Of which kind an answer is, and which fields it has. Not what is in it: it may name an owner whole.
pub(crate) fn shape(value: &Value) -> String {
    const FIELDS: [&str; 8] = ["granted", "token", "owner", "mode", "ttl-ms", "waiters", "state", "holders"];
    let kind = match value {
        Value::Nil => "nil".to_owned(),
        Value::Int(_) => "a number".to_owned(),
        Value::Okay | Value::SimpleString(_) => "a status".to_owned(),
        Value::BulkString(bytes) => format!("a string of {}", bytes.len()),
        Value::Array(items) => format!("an array of {}", items.len()),
        Value::Map(pairs) => format!("a map of {}", pairs.len()),
        _ => "another kind".to_owned(),
    };
    let has: Vec<&str> = FIELDS.into_iter().filter(|name| field(value, name).is_some()).collect();
    if has.is_empty() { kind } else { format!("{kind}, with {}", has.join(", ")) }
}

fn acquired(value: &Value) -> Option<Reply> {
    match number(field(value, "granted")?)? {
        1 => Some(Reply::Granted { token: Token::new(number(field(value, "token")?)?)?.get() }),
        _ => Some(Reply::Standing(standing(value))),
    }
}

fn standing(value: &Value) -> Standing {
    let owner = match field(value, "owner") {
        Some(Value::BulkString(owner)) => Some(owner.clone().into()),
        _ => None,
    };
    let number = |name| field(value, name).and_then(number).unwrap_or(0);
    Standing { owner, mode: mode(value), ttl_ms: number("ttl-ms"), waiters: number("waiters") }
}

/// The mode that LOCK.INFO names; `None` while the lock is free, and of an answer without one.
pub(crate) fn mode(value: &Value) -> Option<Mode> {
    match bytes(field(value, "mode")?)? {
        b"exclusive" => Some(Mode::Exclusive),
        b"shared" => Some(Mode::Shared),
        b"limit" => Some(Mode::Limit(u32::try_from(number(field(value, "limit")?)?).ok()?)),
        _ => None,
    }
}

pub(crate) fn number(value: &Value) -> Option<u64> {
    if let Value::Int(number) = value { u64::try_from(*number).ok() } else { None }
}

pub(crate) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

/// A field of a map, in either protocol.
pub(crate) fn field<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    let is = |key: &Value| match key {
        Value::BulkString(key) => key == name.as_bytes(),
        Value::SimpleString(key) => key == name,
        _ => false,
    };
    match value {
        Value::Map(pairs) => pairs.iter().find(|(key, _)| is(key)).map(|(_, value)| value),
        Value::Array(items) => items.chunks_exact(2).find_map(|pair| match pair {
            [key, value] if is(key) => Some(value),
            _ => None,
        }),
        _ => None,
    }
}

/// What that error means to whoever asked.
pub(crate) fn failure(error: &ServerError) -> Failure {
    Failure::new(kind(error), line(error))
}

/// The server's own line.
pub(crate) fn line(error: &ServerError) -> String {
    match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    }
}

fn kind(error: &ServerError) -> FailureKind {
    match error.code() {
        "ERR" if error.details().is_some_and(|details| details.contains("too far ahead")) => {
            FailureKind::TooFarAhead
        }
        "ERR" | "WRONGTYPE" | "NOAUTH" | "NOPERM" | "WRONGPASS" | "EXHAUSTED" => FailureKind::Fatal,
        "LOCKLOST" | "UNBLOCKED" => FailureKind::AskAgain,
        _ => FailureKind::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever knows an owner whole can release its lock.
    #[test]
    fn an_answer_that_is_not_understood_is_not_shown() {
        let acquire = Command::Acquire { owner: OwnerId(1), min_token: None, wait_ms: None };
        let (granted, owner) = (Value::BulkString(b"granted".to_vec()), Value::BulkString(b"owner".to_vec()));
        let secret = || Value::BulkString(b"secret".to_vec());
        for (answer, shown) in [
            (secret(), "a string of 6"),
            (Value::Array(vec![secret(), secret()]), "an array of 2"),
            (Value::Array(vec![granted.clone(), secret()]), "an array of 2, with granted"),
            (Value::Map(vec![(granted, Value::Nil), (owner, secret())]), "a map of 2, with granted, owner"),
        ] {
            let Reply::Failed(failure) = reply(acquire, Ok(answer)) else { panic!("{shown}") };
            assert_eq!(
                failure,
                Failure::new(FailureKind::NotUnderstood, format!("not an answer of lockfence: {shown}"))
            );
        }
    }

    #[test]
    fn the_mode_goes_to_the_server() {
        // mode, and its words
        for (mode, words) in [(Mode::Exclusive, ""), (Mode::Shared, " SHARED"), (Mode::Limit(3), " LIMIT 3")]
        {
            let subject = Subject { lock: b"lock".to_vec(), ttl_ms: 5000, prefix: String::new(), mode };
            let acquire = Command::Acquire { owner: OwnerId(1), min_token: None, wait_ms: None };
            let sent = subject
                .command(acquire)
                .map(|cmd| String::from_utf8_lossy(&cmd.get_packed_command()).into_owned());
            let sent =
                sent.unwrap_or_default().split("\r\n").skip(2).step_by(2).collect::<Vec<_>>().join(" ");
            assert_eq!(sent, format!("LOCK.ACQUIRE lock {:032x} 5000{words} WITHINFO", 1));
        }
    }
}
