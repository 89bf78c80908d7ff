//! What TLS connections go by: whom to trust, and who we are.

use redis::{ConnectionInfo, RedisResult};

/// What was set beside the addresses; nothing in a build without the feature `tls`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tls {
    /// Whom to trust instead of the system's authorities, PEM.
    #[cfg(feature = "tls")]
    pub(crate) authorities: Option<Vec<u8>>,
    /// Who we are.
    #[cfg(feature = "tls")]
    pub(crate) identity: Option<redis::ClientTlsConfig>,
}

impl Tls {
    /// That address, with these settings where it is one of TLS.
    #[cfg(feature = "tls")]
    pub(crate) fn apply(&self, info: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            return Ok(info);
        }
        // rustls must know whose cryptography to use. Where the program has not said so, it is ring.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Another thread may have been faster: there is one now.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        if self.authorities.is_none() && self.identity.is_none() {
            return Ok(info);
        }
        let certificates =
            redis::TlsCertificates { client_tls: self.identity.clone(), root_cert: self.authorities.clone() };
        Ok(redis::Client::build_with_tls(info, certificates)?.get_connection_info().clone())
    }

    /// That address: without TLS there is nothing to set.
    #[cfg(not(feature = "tls"))]
    pub(crate) fn apply(&self, info: ConnectionInfo) -> RedisResult<ConnectionInfo> {
        Ok(info)
    }
}
