//! Free ports that stay ours: a server that is down for a restart must find its port as it left it.
//!
//! Ports come from below the range that the kernel hands out to outgoing connections, and each is leased by a
//! lock on a file of its number, which all test programs of a user respect and which ends with the holder.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;

/// A port of 127.0.0.1 that no other test takes until this is dropped.
#[derive(Debug)]
pub struct PortLease {
    port: u16,
    _lock: File,
}

impl PortLease {
    /// Leases a port on which nobody listens.
    #[must_use]
    pub fn take() -> Self {
        const ATTEMPTS: u32 = 1000;
        // SAFETY: a system call without arguments that cannot fail.
        let user = unsafe { libc::geteuid() };
        let folder = std::env::temp_dir().join(format!("lockfence-ports-{user}"));
        fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("cannot create {}: {e}", folder.display()));
        for _ in 0..ATTEMPTS {
            let port = candidate();
            let lock = File::create(folder.join(port.to_string()));
            if let Ok(lock) = lock
                && lock.try_lock().is_ok()
                && TcpListener::bind(("127.0.0.1", port)).is_ok()
            {
                return Self { port, _lock: lock };
            }
        }
        panic!("no free port in {ATTEMPTS} attempts (leases: {})", folder.display());
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

fn candidate() -> u16 {
    const LOW: u16 = 11_000;
    const HIGH: u16 = 32_000;
    let span = u64::from(HIGH - LOW);
    let offset = RandomState::new().hash_one(()) % span;
    LOW + u16::try_from(offset).unwrap_or(0)
}
