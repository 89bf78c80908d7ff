//! A small blocking client that shows exactly what went over the wire.
//!
//! Commands and replies are apart: one may be sent now and its reply read later, or never. Nothing is sent
//! again and nothing reconnects: a test must see each loss.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::args::{display, encode};
use crate::resp::parse;
use crate::{Reply, cmd};

/// How long a reply may take before a test is over.
const PATIENCE: Duration = Duration::from_secs(20);

/// What came of waiting for a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    /// A reply.
    Reply(Reply),
    /// Nothing yet: the reply may still come.
    Nothing,
    /// The connection is over: the reply never comes, and whether the command ran is unknown.
    Closed(String),
}

/// A connection to a server.
#[derive(Debug)]
pub struct Conn {
    socket: Socket,
    peer: String,
    unread: Vec<u8>,
    replies: VecDeque<(Reply, Vec<u8>)>,
    pushes: VecDeque<Reply>,
    last_sent: String,
    last_raw: Vec<u8>,
}

impl Conn {
    /// Connects to a port of 127.0.0.1.
    pub fn open(port: u16) -> io::Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let socket = TcpStream::connect_timeout(&address, PATIENCE)?;
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self::over(Socket::Tcp(socket), address.to_string()))
    }

    /// Connects to a Unix socket.
    pub fn open_unix(path: &Path) -> io::Result<Self> {
        let socket = UnixStream::connect(path)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self::over(Socket::Unix(socket), path.display().to_string()))
    }

    fn over(socket: Socket, peer: String) -> Self {
        Self {
            socket,
            peer,
            unread: Vec::new(),
            replies: VecDeque::new(),
            pushes: VecDeque::new(),
            last_sent: "nothing".into(),
            last_raw: Vec::new(),
        }
    }

    /// Sends a command and reads its reply. See also [`cmd!`](crate::cmd!).
    ///
    /// # Panics
    /// When no reply comes: the connection is closed, or nothing is heard for 20 s. An error reply is a value.
    #[track_caller]
    pub fn cmd<A: AsRef<[u8]>>(&mut self, args: impl AsRef<[A]>) -> Reply {
        self.send(args);
        self.recv(PATIENCE)
    }

    /// Sends a command and waits for its reply this long, without a panic: for faults.
    pub fn try_cmd<A: AsRef<[u8]>>(&mut self, args: impl AsRef<[A]>, within: Duration) -> Received {
        match self.try_send(args) {
            Ok(()) => self.receive(within),
            Err(error) => Received::Closed(error.to_string()),
        }
    }

    /// Sends all the commands in one write, then reads all their replies.
    #[track_caller]
    pub fn pipeline<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) -> Vec<Reply> {
        let bytes: Vec<u8> = commands.iter().flat_map(|args| encode(args)).collect();
        self.send_raw(&bytes);
        self.last_sent = format!("a pipeline of {} commands", commands.len());
        commands.iter().map(|_| self.recv(PATIENCE)).collect()
    }

    /// Sends a command; its reply is left to be read. See also [`send!`](crate::send!).
    #[track_caller]
    pub fn send<A: AsRef<[u8]>>(&mut self, args: impl AsRef<[A]>) {
        let result = self.try_send(args);
        if let Err(error) = result {
            panic!("cannot send {} to {}: {error}", self.last_sent, self.peer);
        }
    }

    /// Sends a command; says whether it went out.
    pub fn try_send<A: AsRef<[u8]>>(&mut self, args: impl AsRef<[A]>) -> io::Result<()> {
        self.last_sent = display(args.as_ref());
        self.socket.write_all(&encode(args.as_ref()))
    }

    /// Sends bytes as they are.
    #[track_caller]
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.last_sent = display(&[bytes]);
        if let Err(error) = self.socket.write_all(bytes) {
            panic!("cannot send {} to {}: {error}", self.last_sent, self.peer);
        }
    }

    /// Reads the next reply.
    ///
    /// # Panics
    /// When none comes in time or the connection is closed.
    #[track_caller]
    pub fn recv(&mut self, within: Duration) -> Reply {
        match self.receive(within) {
            Received::Reply(reply) => reply,
            Received::Nothing => {
                panic!("no reply from {} within {within:?} to {}", self.peer, self.last_sent)
            }
            Received::Closed(why) => {
                panic!("connection to {} closed ({why}) before the reply to {}", self.peer, self.last_sent)
            }
        }
    }

    /// The reply, if it comes within so many ms; `None` while the client waits on.
    ///
    /// # Panics
    /// When the connection is closed.
    #[track_caller]
    pub fn try_recv_within(&mut self, ms: u64) -> Option<Reply> {
        match self.receive(Duration::from_millis(ms)) {
            Received::Reply(reply) => Some(reply),
            Received::Nothing => None,
            Received::Closed(why) => {
                panic!("connection to {} closed ({why}) before the reply to {}", self.peer, self.last_sent)
            }
        }
    }

    /// Asserts that no reply comes within so many ms.
    #[track_caller]
    pub fn assert_silent(&mut self, ms: u64) {
        if let Some(reply) = self.try_recv_within(ms) {
            panic!("expected no reply to {} within {ms} ms, got {reply:?}", self.last_sent);
        }
    }

    /// Asserts that the server closes the connection, without a reply before.
    #[track_caller]
    pub fn assert_closed(&mut self, within: Duration) {
        match self.receive(within) {
            Received::Closed(_) => {}
            other => panic!("expected {} to close the connection, got {other:?}", self.peer),
        }
    }

    /// Waits for the next reply; whatever comes of it is a value.
    ///
    /// # Panics
    /// When the bytes are no reply at all.
    #[track_caller]
    pub fn receive(&mut self, within: Duration) -> Received {
        let deadline = Instant::now() + within;
        loop {
            if let Some((reply, raw)) = self.replies.pop_front() {
                self.last_raw = raw;
                return Received::Reply(reply);
            }
            match self.pull(deadline) {
                Filled::More => {}
                Filled::TimeOver => return Received::Nothing,
                Filled::Closed(why) => return Received::Closed(why),
            }
        }
    }

    /// The next message that the server sent unasked (RESP3), if one comes in time. Replies that come before
    /// it stay to be read.
    #[track_caller]
    pub fn recv_push(&mut self, within: Duration) -> Option<Reply> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(push) = self.pushes.pop_front() {
                return Some(push);
            }
            match self.pull(deadline) {
                Filled::More => {}
                Filled::TimeOver | Filled::Closed(_) => return None,
            }
        }
    }

    /// Bytes that are no reply, such as a replication stream: at least one, or an empty list when none come.
    pub(crate) fn recv_raw(&mut self, within: Duration) -> Vec<u8> {
        if self.unread.is_empty() {
            let _ = self.fill(Instant::now() + within);
        }
        std::mem::take(&mut self.unread)
    }

    /// The last reply's bytes, as they came.
    pub fn last_raw(&self) -> &[u8] {
        &self.last_raw
    }

    /// The connection's id, as `CLIENT ID` says.
    #[track_caller]
    pub fn id(&mut self) -> i64 {
        cmd!(self, "CLIENT", "ID").int()
    }

    /// Switches to RESP3.
    #[track_caller]
    pub fn resp3(mut self) -> Self {
        cmd!(self, "HELLO", 3).no_err();
        self
    }

    /// Authenticates as a user.
    #[track_caller]
    pub fn auth(mut self, user: &str, password: &str) -> Self {
        cmd!(self, "AUTH", user, password).ok();
        self
    }

    /// Ends the connection at once, as a client that dies does.
    pub fn close(self) {
        self.socket.shutdown();
    }

    /// Takes the next whole message from what was read, or reads on.
    #[track_caller]
    fn pull(&mut self, deadline: Instant) -> Filled {
        match parse(&self.unread) {
            Ok(Some((reply, length))) => {
                let raw = self.unread.drain(..length).collect();
                match reply {
                    Reply::Push(_) => self.pushes.push_back(reply),
                    reply => self.replies.push_back((reply, raw)),
                }
                Filled::More
            }
            Ok(None) => self.fill(deadline),
            Err(error) => panic!("{} sent \"{}\": {error}", self.peer, self.unread.escape_ascii()),
        }
    }

    fn fill(&mut self, deadline: Instant) -> Filled {
        const SHORTEST: Duration = Duration::from_micros(100);
        let left = deadline.saturating_duration_since(Instant::now()).max(SHORTEST);
        if let Err(error) = self.socket.set_read_timeout(left) {
            return Filled::Closed(error.to_string());
        }
        let mut chunk = [0; 16 * 1024];
        match self.socket.read(&mut chunk) {
            Ok(0) => Filled::Closed("end of stream".into()),
            Ok(length) => {
                self.unread.extend_from_slice(&chunk[..length]);
                Filled::More
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Filled::TimeOver,
                ErrorKind::Interrupted => Filled::More,
                _ => Filled::Closed(error.to_string()),
            },
        }
    }
}

enum Filled {
    More,
    TimeOver,
    Closed(String),
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read(into),
            Self::Unix(socket) => socket.read(into),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.write_all(bytes),
            Self::Unix(socket) => socket.write_all(bytes),
        }
    }

    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(socket) => socket.set_read_timeout(Some(timeout)),
            Self::Unix(socket) => socket.set_read_timeout(Some(timeout)),
        }
    }

    fn shutdown(&self) {
        let _ = match self {
            Self::Tcp(socket) => socket.shutdown(Shutdown::Both),
            Self::Unix(socket) => socket.shutdown(Shutdown::Both),
        };
    }
}
