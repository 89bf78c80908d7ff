//! Writes that count only while no higher token was seen.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ToRedisArgs, Value};

use crate::config::ConfigError;
use crate::error::Error;
use crate::held::Shared;
use crate::lockfence::Lockfence;
use crate::node::{Node, Place, Target};
use crate::wire::line;

/// The server where the data is, as [`Held::fence`](crate::Held::fence) takes it: a `&redis::Client`, or a `&Lockfence` of
/// one node, which may be a primary behind sentinels or a cluster (and is then no more than an address). It must have the
/// module.
#[derive(Clone, Debug)]
pub struct DataServer(pub(crate) Result<Arc<Node>, ConfigError>);

impl From<&redis::Client> for DataServer {
    fn from(client: &redis::Client) -> Self {
        let info = client.get_connection_info().clone();
        let target = Target { name: info.addr().to_string(), marks: Vec::new(), place: Place::Server(info) };
        Self(Ok(Node::new(target, None)))
    }
}

impl From<&Lockfence> for DataServer {
    fn from(client: &Lockfence) -> Self {
        Self(client.0.data().ok_or(ConfigError::DataOnQuorum { nodes: client.0.nodes.len() }))
    }
}

impl From<&crate::blocking::Lockfence> for DataServer {
    fn from(client: &crate::blocking::Lockfence) -> Self {
        client.client().into()
    }
}

/// A fenced handle on the server where the data is. Cheap to clone. Connects when it is first used, and again when its
/// connection broke; every command ends within the client's
/// [`fence_timeout`](crate::Builder::fence_timeout), connecting included.
#[derive(Clone, Debug)]
pub struct Fenced {
    node: Arc<Node>,
    fence: Vec<u8>,
    token: u64,
    /// For a key that is a fence, to be made and raised while this says that the lock is held: a fence that was lost has
    /// forgotten successors, too. `None` for a lock, which makes its own numbers.
    raised_while: Option<Arc<Shared>>,
    within: Duration,
}

impl Fenced {
    pub(crate) const fn new(
        node: Arc<Node>,
        fence: Vec<u8>,
        token: u64,
        raised_while: Option<Arc<Shared>>,
        within: Duration,
    ) -> Self {
        Self { node, fence, token, raised_while, within }
    }

    /// Announces the token: from now on lower ones are refused.
    pub(crate) async fn advance(&self) -> Result<(), Error> {
        let mut cmd = redis::cmd("FENCE.ADVANCE");
        cmd.arg(&self.fence).arg(self.token);
        let counter = self.run(&cmd).await?;
        match counter {
            Value::Int(counter) if u64::try_from(counter).is_ok_and(|counter| counter > self.token) => {
                Err(Error::Fenced(format!("token {} is stale: the fence is at {counter}", self.token)))
            }
            _ => Ok(()),
        }
    }

    /// `SET key value`, if no higher token was seen.
    ///
    /// # Errors
    /// [`Error::Fenced`] when it is stale: nothing was written. [`Error::Refused`] with the server's own error, or where
    /// it cannot be reached: nothing was written. [`Error::Indeterminate`] when no answer came in time.
    pub async fn write(&self, key: impl ToRedisArgs, value: impl ToRedisArgs) -> Result<(), Error> {
        let mut cmd = redis::cmd("FENCE.WRITE");
        cmd.arg(&self.fence).arg(self.token).arg(key).arg(value);
        self.fenced(&cmd).await.map(|_| ())
    }

    /// Any data command with a key, if no higher token was seen. Its answer is the command's own.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn call(&self, command: &Cmd) -> Result<Value, Error> {
        let mut cmd = redis::cmd("FENCE.CALL");
        cmd.arg(&self.fence).arg(self.token);
        for word in command.args_iter() {
            match word {
                redis::Arg::Simple(word) => cmd.arg(word),
                redis::Arg::Cursor => cmd.arg(0),
                _ => return Err(Error::Refused("a command with an argument of an unknown kind".to_owned())),
            };
        }
        self.fenced(&cmd).await
    }

    /// Asks, before a side effect elsewhere, whether the token still counts.
    ///
    /// # Errors
    /// [`Error::Fenced`] when it is stale; else as [`Self::write`].
    pub async fn check(&self) -> Result<(), Error> {
        let mut cmd = redis::cmd("FENCE.CHECK");
        cmd.arg(&self.fence).arg(self.token);
        self.fenced(&cmd).await.map(|_| ())
    }

    /// Runs a fenced command; makes the fence again where the server has lost it, if the lock is still held.
    async fn fenced(&self, cmd: &Cmd) -> Result<Value, Error> {
        let may_raise = || self.raised_while.as_ref().is_some_and(|held| !held.remaining().is_zero());
        match self.run(cmd).await {
            Err(Error::Fenced(why)) if why.ends_with("has no record") && may_raise() => {
                self.advance().await?;
                self.run(cmd).await
            }
            answer => answer,
        }
    }

    async fn run(&self, cmd: &Cmd) -> Result<Value, Error> {
        let answer = self.node.send(cmd.clone(), &self.fence, self.within).await;
        match answer {
            Ok(Ok(Value::ServerError(error))) if error.code() == "FENCED" => {
                Err(Error::Fenced(error.details().unwrap_or_default().to_owned()))
            }
            Ok(Ok(Value::ServerError(error))) => Err(Error::Refused(line(&error))),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(failure)) if failure.kind.may_have_happened() => Err(Error::Indeterminate(failure.text)),
            Ok(Err(failure)) => Err(Error::Refused(format!("{}: {}", self.node.name(), failure.text))),
            Err(_) => Err(Error::Indeterminate("the runtime ended".to_owned())),
        }
    }
}
