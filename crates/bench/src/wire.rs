//! A connection for load: whole batches of encoded commands out, replies counted, nothing allocated on the way.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use lockfence_testkit::Server;

/// The owner of every lock, and the value of every plain key: 32 bytes, as the hex digits of 128 random bits.
pub(crate) const OWNER: &str = "9f3c51d0a72b71e88c04d1f6a0b3c5e7";
/// Far beyond any measurement.
pub(crate) const TTL_MS: &str = "600000";

pub(crate) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub(crate) fn to(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        Self { stream, buffer: vec![0; 64 * 1024] }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Waits for so many replies of one line each. None may be an error or null.
    pub(crate) fn lines(&mut self, mut count: usize) {
        let mut begins = true;
        while count > 0 {
            let read = self.stream.read(&mut self.buffer).expect("the server answers");
            assert!(read > 0, "the server has closed the connection");
            for &byte in &self.buffer[..read] {
                if begins {
                    let answer = || String::from_utf8_lossy(&self.buffer[..read]).into_owned();
                    assert!(byte == b'+' || byte == b':', "not granted: {}", answer());
                }
                begins = byte == b'\n';
                count -= usize::from(begins);
            }
        }
    }

    /// Waits for one reply that ends with `end`.
    pub(crate) fn until(&mut self, end: &[u8]) {
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut self.buffer[filled..]).expect("the server answers");
            assert!(read > 0, "the server has closed the connection");
            filled += read;
            let seen = &self.buffer[..filled];
            assert!(seen[0] != b'-', "{}", String::from_utf8_lossy(seen));
            if seen.ends_with(end) {
                return;
            }
        }
    }

    pub(crate) fn ask(&mut self, words: &[&str]) {
        let mut bytes = Vec::new();
        encode(&mut bytes, words);
        self.send(&bytes);
        self.lines(1);
    }
}

/// Appends a command.
pub(crate) fn encode(out: &mut Vec<u8>, words: &[&str]) {
    write!(out, "*{}\r\n", words.len()).expect("memory");
    for word in words {
        write!(out, "${}\r\n{word}\r\n", word.len()).expect("memory");
    }
}

/// Nanoseconds for which the server's main thread has been running.
pub(crate) fn cpu_ns(server: &Server) -> u64 {
    let path = format!("/proc/{0}/task/{0}/schedstat", server.pid());
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}
