//! Writes that count only while no higher token was seen.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, ToRedisArgs, Value};

use crate::error::Error;
use crate::wire::line;

/// A fenced handle on the server where the data is.
#[derive(Clone, Debug)]
pub struct Fenced {
    connection: MultiplexedConnection,
    fence: Vec<u8>,
    token: u64,
    /// Whether the key is a fence, to be made and raised; a lock makes its own numbers.
    raises: bool,
}

impl Fenced {
    pub(crate) async fn connect(
        data: &redis::Client,
        fence: Vec<u8>,
        token: u64,
        raises: bool,
    ) -> Result<Self, Error> {
        let connection = data.get_multiplexed_async_connection().await;
        let connection = connection.map_err(|error| Error::Refused(error.to_string()))?;
        Ok(Self { connection, fence, token, raises })
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
    /// [`Error::Fenced`] when it is stale: nothing was written. [`Error::Indeterminate`] when no answer came.
    pub async fn write(&self, key: impl ToRedisArgs, value: impl ToRedisArgs) -> Result<(), Error> {
        let mut cmd = redis::cmd("FENCE.WRITE");
        cmd.arg(&self.fence).arg(self.token).arg(key).arg(value);
        self.fenced(&cmd).await.map(|_| ())
    }

    /// Any data command with a key, if no higher token was seen. Its answer is the command's own.
    ///
    /// # Errors
    /// As [`Self::write`]; [`Error::Refused`] with the command's own error.
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
    /// [`Error::Fenced`] when it is stale.
    pub async fn check(&self) -> Result<(), Error> {
        let mut cmd = redis::cmd("FENCE.CHECK");
        cmd.arg(&self.fence).arg(self.token);
        self.fenced(&cmd).await.map(|_| ())
    }

    /// Runs a fenced command; makes the fence again where the server has lost it.
    async fn fenced(&self, cmd: &Cmd) -> Result<Value, Error> {
        match self.run(cmd).await {
            Err(Error::Fenced(why)) if self.raises && why.ends_with("has no record") => {
                self.advance().await?;
                self.run(cmd).await
            }
            answer => answer,
        }
    }

    async fn run(&self, cmd: &Cmd) -> Result<Value, Error> {
        let answer = self.connection.clone().send_packed_command(cmd).await;
        match answer {
            Ok(Value::ServerError(error)) => Err(refused(&RedisError::from(error))),
            Ok(value) => Ok(value),
            Err(error) => Err(refused(&error)),
        }
    }
}

fn refused(error: &RedisError) -> Error {
    match (error.kind(), error.code()) {
        (_, Some("FENCED")) => Error::Fenced(error.detail().unwrap_or_default().to_owned()),
        (ErrorKind::Server(_) | ErrorKind::Extension, _) => Error::Refused(line(error)),
        _ => Error::Indeterminate(error.to_string()),
    }
}
