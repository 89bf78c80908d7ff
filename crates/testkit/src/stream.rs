//! What a server tells its replicas, word for word: the oracle for how a command replicates.

use std::time::{Duration, Instant};

use crate::args::display;
use crate::{Conn, Server, cmd, parse};

const PATIENCE: Duration = Duration::from_secs(20);

/// The replication stream of a server, from the moment of attaching.
#[derive(Debug)]
pub struct ReplicationStream {
    conn: Conn,
    unread: Vec<u8>,
    markers: u64,
}

impl ReplicationStream {
    /// Attaches as a replica would.
    #[track_caller]
    pub fn attach(server: &Server) -> Self {
        let mut conn = server.connect();
        // SYNC rather than PSYNC: the server expects no acknowledgements of such a replica.
        conn.send(["SYNC"]);
        let mut stream = Self::of(conn);
        stream.skip_snapshot();
        stream
    }

    /// Goes on behind `offset` of the history `id`, as a replica would that has the data up to there.
    ///
    /// # Panics
    /// When the server offers a snapshot instead.
    #[track_caller]
    pub fn go_on(server: &Server, id: &str, offset: u64) -> Self {
        let mut conn = server.connect();
        conn.send(["PSYNC", id, &(offset + 1).to_string()]);
        let mut stream = Self::of(conn);
        let line = stream.line(Instant::now() + PATIENCE);
        assert!(line.starts_with("+CONTINUE"), "expected to go on, got {line:?}");
        stream
    }

    fn of(conn: Conn) -> Self {
        Self { conn, unread: Vec::new(), markers: 0 }
    }

    /// The next command, without the server's own PING and REPLCONF; `None` when none comes in time.
    #[track_caller]
    pub fn next_command(&mut self, within: Duration) -> Option<Vec<Vec<u8>>> {
        let deadline = Instant::now() + within;
        loop {
            match parse(&self.unread) {
                Ok(Some((reply, length))) => {
                    self.unread.drain(..length);
                    let command: Vec<_> = reply.items().iter().map(|word| word.bytes().to_vec()).collect();
                    if !is_chatter(&command) {
                        return Some(command);
                    }
                }
                Ok(None) => {
                    if !self.fill(deadline) {
                        return None;
                    }
                }
                Err(error) => panic!("replication stream \"{}\": {error}", self.unread.escape_ascii()),
            }
        }
    }

    /// All that the server has told its replicas by now and was not read yet, a line for each command: words
    /// with spaces between, bytes escaped.
    ///
    /// It has a marker of its own published and reads up to that: no guessing how long to wait.
    #[track_caller]
    pub fn lines_until_now(&mut self, server: &Server) -> Vec<String> {
        self.markers += 1;
        let (channel, marker) = ("lockfence-testkit", self.markers.to_string());
        cmd!(server.connect(), "PUBLISH", channel, marker).no_err();
        let mut lines = Vec::new();
        loop {
            let Some(command) = self.next_command(PATIENCE) else {
                panic!("marker {marker} is not in the replication stream; before it: {lines:#?}");
            };
            let is_marker = command.len() == 3
                && command[0].eq_ignore_ascii_case(b"publish")
                && command[1..] == [channel.as_bytes(), marker.as_bytes()];
            if is_marker {
                return lines;
            }
            lines.push(display(&command));
        }
    }

    /// `$<length>` and the snapshot, which no line end follows.
    #[track_caller]
    fn skip_snapshot(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let line = self.line(deadline);
        let length = line.trim_end().strip_prefix('$').and_then(|digits| digits.parse().ok());
        let mut left: usize = length.unwrap_or_else(|| panic!("expected a snapshot, got {line:?}"));
        while left > 0 {
            if self.unread.is_empty() {
                assert!(self.fill(deadline), "the snapshot is {left} bytes short after {PATIENCE:?}");
            }
            let taken = left.min(self.unread.len());
            self.unread.drain(..taken);
            left -= taken;
        }
    }

    /// A line of the server's, with its end. Line ends before it keep the link alive.
    #[track_caller]
    fn line(&mut self, deadline: Instant) -> String {
        loop {
            while self.unread.first() == Some(&b'\n') {
                self.unread.remove(0);
            }
            if let Some(end) = self.unread.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                return String::from_utf8_lossy(&line).into_owned();
            }
            assert!(self.fill(deadline), "no answer within {PATIENCE:?}");
        }
    }

    fn fill(&mut self, deadline: Instant) -> bool {
        let bytes = self.conn.recv_raw(deadline.saturating_duration_since(Instant::now()));
        self.unread.extend_from_slice(&bytes);
        !bytes.is_empty()
    }
}

fn is_chatter(command: &[Vec<u8>]) -> bool {
    let first = command.first().map(Vec::as_slice).unwrap_or_default();
    first.eq_ignore_ascii_case(b"ping") || first.eq_ignore_ascii_case(b"replconf")
}
