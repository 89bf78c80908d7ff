//! How connections are made: to a fixed address, or to whichever server the sentinels name as the primary.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind,
};

use crate::clock;
use crate::quorum::{Failure, FailureKind};
use crate::sentinel::Sentinels;

/// How connections are made.
#[derive(Clone, Debug)]
pub(crate) enum Dialer {
    /// To that address.
    Fixed(ConnectionInfo),
    /// To the primary of that name, asked for anew each time.
    Primary(Sentinels),
}

impl Dialer {
    /// A connection that is ready for requests.
    pub(crate) async fn dial(&self, within: Duration) -> Result<MultiplexedConnection, Failure> {
        match self {
            Self::Fixed(info) => open(info, within).await,
            Self::Primary(sentinels) => sentinels.dial(within).await,
        }
    }

    /// The host that it connects to, where that is known beforehand.
    pub(crate) fn host(&self) -> Option<&str> {
        match self {
            Self::Fixed(info) => match info.addr() {
                ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
                _ => None,
            },
            Self::Primary(_) => None,
        }
    }
}

/// A connection to that address.
pub(crate) async fn open(info: &ConnectionInfo, within: Duration) -> Result<MultiplexedConnection, Failure> {
    let client = Client::open(info.clone()).map_err(|error| not_sent(&error))?;
    // One time limit for all of it: redis-rs has none for the handshake.
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    match tokio::time::timeout(within, connecting).await {
        Ok(connection) => connection.map_err(|error| not_sent(&error)),
        Err(_) => {
            Err(Failure::new(FailureKind::NotSent, format!("no connection within {}", clock::in_ms(within))))
        }
    }
}

/// Another server of the same kind: the same user, password, database and TLS.
pub(crate) fn at(info: &ConnectionInfo, new_host: &str, new_port: u16) -> ConnectionInfo {
    let mut addr = info.addr().clone();
    match &mut addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            new_host.clone_into(host);
            *port = new_port;
        }
        _ => {}
    }
    info.clone().set_addr(addr)
}

fn not_sent(error: &RedisError) -> Failure {
    let kind = if is_refused(error) { FailureKind::Fatal } else { FailureKind::NotSent };
    Failure::new(kind, error.to_string())
}

/// Whether the server will refuse it again: the login, or the database, which it has not got or does not let this user
/// choose. (redis-rs keeps the words of a refused SELECT only. A server that runs a script refuses it for as long as that
/// takes.)
fn is_refused(error: &RedisError) -> bool {
    match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig, _) => true,
        (ErrorKind::RESP3NotSupported, _) | (_, Some("WRONGPASS" | "NOAUTH" | "NOPERM" | "NOPROTO")) => true,
        (ErrorKind::Server(ServerErrorKind::ResponseError), _) => !error.to_string().contains("is busy"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use redis::{ErrorKind, RedisError, ServerErrorKind};

    use super::not_sent;
    use crate::quorum::FailureKind;

    #[test]
    fn a_database_that_cannot_be_had_is_not_asked_for_again() {
        let select = |why: &str| {
            let what = "Redis server refused to switch database";
            not_sent(&RedisError::from((ServerErrorKind::ResponseError.into(), what, why.to_owned()))).kind
        };
        for why in
            ["DB index is out of range", "Authentication required.", "SELECT is not allowed in cluster mode"]
        {
            assert_eq!(select(why), FailureKind::Fatal, "{why}");
        }
        for why in [
            "Redis is busy running a script. You can only call SCRIPT KILL",
            "Valkey is busy running a script.",
        ] {
            assert_eq!(select(why), FailureKind::NotSent, "{why}");
        }
        assert_eq!(not_sent(&RedisError::from((ErrorKind::Io, "gone"))).kind, FailureKind::NotSent);
    }
}
