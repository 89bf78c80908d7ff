//! Asking sentinels which server is the primary.
//!
//! Asked anew for each connection, never remembered: a primary that was replaced may still answer. Whatever the sentinels
//! say, the server itself must say that it is a primary, on the very connection that is then used. (The sentinel client
//! of redis-rs asks that on another connection, and has no time limits.)

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, Value};
use tokio::task::JoinSet;

use crate::clock;
use crate::dial::{at, open};
use crate::quorum::{Failure, FailureKind};
use crate::wire::line;

/// A primary by its name, and who knows which server that is.
#[derive(Clone, Debug)]
pub(crate) struct Sentinels {
    /// The name that the sentinels know it by.
    pub(crate) primary: String,
    pub(crate) sentinels: Vec<ConnectionInfo>,
    /// How to connect to the primary: user, password, database, TLS; the address comes from the sentinels.
    pub(crate) server: ConnectionInfo,
}

type Address = (String, u16);

impl Sentinels {
    /// Connects to the primary. All sentinels are asked at once, and the first answer that holds is taken: a sentinel that
    /// is gone, or names a server that is gone, costs no time.
    pub(crate) async fn dial(&self, within: Duration) -> Result<MultiplexedConnection, Failure> {
        let mut ways = JoinSet::new();
        for sentinel in &self.sentinels {
            let (this, sentinel) = (self.clone(), sentinel.clone());
            ways.spawn(async move {
                this.primary_at(&ask(&sentinel, &this.primary, within).await?, within).await
            });
        }
        let in_time = tokio::time::timeout(within, async {
            let mut failures: Vec<Failure> = Vec::new();
            while let Some(found) = ways.join_next().await {
                match found {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(failure)) => failures.push(failure),
                    Err(_) => {} // the runtime is going down
                }
            }
            Err(self.none(&failures))
        });
        in_time.await.unwrap_or_else(|_| {
            Err(not_sent(format!("no primary {:?} within {}", self.primary, clock::in_ms(within))))
        })
    }

    /// Connects to that server, if it says that it is a primary.
    async fn primary_at(
        &self,
        address: &Address,
        within: Duration,
    ) -> Result<MultiplexedConnection, Failure> {
        let (host, port) = address;
        let mut connection = open(&at(&self.server, host, *port), within).await?;
        match command(&mut connection, redis::cmd("ROLE"), within).await? {
            Value::Array(role) if is_text(role.first(), "master") => Ok(connection),
            // Not allowed to ask: whatever it is asked for will tell.
            Value::ServerError(error) if error.code() == "NOPERM" => Ok(connection),
            other => Err(not_sent(format!("{host}:{port} is not a primary: {}", shown(&other)))),
        }
    }

    fn none(&self, failures: &[Failure]) -> Failure {
        let fatal = !failures.is_empty() && failures.iter().all(|failure| failure.kind == FailureKind::Fatal);
        let kind = if fatal { FailureKind::Fatal } else { FailureKind::NotSent };
        let texts: Vec<&str> = failures.iter().map(|failure| failure.text.as_str()).collect();
        Failure::new(kind, format!("no primary {:?} by the sentinels: {}", self.primary, texts.join("; ")))
    }
}

/// Where that sentinel says the primary is.
async fn ask(sentinel: &ConnectionInfo, name: &str, within: Duration) -> Result<Address, Failure> {
    let mut connection = open(sentinel, within).await?;
    let mut cmd = redis::cmd("SENTINEL");
    cmd.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    match command(&mut connection, cmd, within).await? {
        Value::Nil => {
            Err(Failure::new(FailureKind::Fatal, format!("{} knows no such name", sentinel.addr())))
        }
        Value::Array(address) => address_of(&address)
            .ok_or_else(|| not_sent(format!("{} names no address: {address:?}", sentinel.addr()))),
        Value::ServerError(error) if matches!(error.code(), "NOAUTH" | "NOPERM" | "WRONGPASS") => {
            Err(Failure::new(FailureKind::Fatal, format!("{}: {}", sentinel.addr(), line(&error))))
        }
        other => Err(not_sent(format!("{}: {}", sentinel.addr(), shown(&other)))),
    }
}

async fn command(
    connection: &mut MultiplexedConnection,
    cmd: redis::Cmd,
    within: Duration,
) -> Result<Value, Failure> {
    match tokio::time::timeout(within, connection.send_packed_command(&cmd)).await {
        Ok(answer) => answer.map_err(|error| not_sent(error.to_string())),
        Err(_) => Err(not_sent(format!("no answer within {}", clock::in_ms(within)))),
    }
}

fn address_of(answer: &[Value]) -> Option<Address> {
    let [Value::BulkString(host), Value::BulkString(port)] = answer else { return None };
    let host = std::str::from_utf8(host).ok()?.to_owned();
    Some((host, std::str::from_utf8(port).ok()?.parse().ok()?))
}

fn is_text(value: Option<&Value>, text: &str) -> bool {
    matches!(value, Some(Value::BulkString(bytes)) if bytes == text.as_bytes())
}

fn shown(value: &Value) -> String {
    match value {
        Value::Array(items) => match items.first() {
            Some(Value::BulkString(first)) => first.escape_ascii().to_string(),
            _ => format!("{value:?}"),
        },
        Value::ServerError(error) => line(error),
        other => format!("{other:?}"),
    }
}

/// Whatever goes wrong on the way to the primary: the request itself was not sent.
fn not_sent(text: String) -> Failure {
    Failure::new(FailureKind::NotSent, text)
}
