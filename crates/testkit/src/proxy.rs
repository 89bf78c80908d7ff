//! A bad network: a TCP proxy on loopback that delays, holds and cuts on demand.
//!
//! TCP loses no bytes of a connection that lives, so neither does this: what is *held* arrives late, or never
//! when the connection is cut. That is what a partition looks like to both ends.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::{Conn, Reply, Server, parse};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests: from the client to the server.
    ToServer,
    /// Replies: from the server to the client.
    ToClient,
}

/// What has gone through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyStats {
    /// Connections accepted.
    pub connections: u64,
    /// Whole commands forwarded to the server.
    pub requests: u64,
    /// Whole replies forwarded to clients; what a server sent unasked is none.
    pub replies: u64,
    /// How often somebody had to wait for the server: commands that go out together, or while another is under way on
    /// the same connection, are one round trip.
    pub round_trips: u64,
    /// Bytes forwarded to the server.
    pub bytes_to_server: u64,
    /// Bytes forwarded to clients.
    pub bytes_to_client: u64,
}

/// A proxy before one server. It lets everything pass until told otherwise, and ends with this guard.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy before the server; it stays the right one over the server's restarts.
    #[track_caller]
    pub fn to(server: &Server) -> Self {
        Self::to_port(server.port())
    }

    /// A proxy before a port of 127.0.0.1.
    #[track_caller]
    pub fn to_port(upstream: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port for the proxy");
        let port = listener.local_addr().expect("the port of the proxy").port();
        let shared = Arc::new(Shared::default());
        let acceptor = {
            let shared = Arc::clone(&shared);
            spawn(move || accept(&listener, upstream, &shared)).expect("a thread for the proxy")
        };
        Self { port, shared, acceptor: Some(acceptor) }
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address for clients.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Connects to the server through the proxy.
    #[track_caller]
    pub fn connect(&self) -> Conn {
        Conn::open(self.port).unwrap_or_else(|error| panic!("cannot connect to the proxy: {error}"))
    }

    /// Takes back all faults: what was held goes on, new connections are accepted.
    pub fn pass(&self) {
        self.change(|state| (state.rules, state.refusing) = ([Rule::default(); 2], false));
    }

    /// Delays what goes this way. Bytes on the way stay in order, and follow each other without further delay.
    pub fn delay(&self, direction: Direction, by: Duration) {
        self.change(|state| state.rules[direction as usize].delay = by);
    }

    /// Holds what goes this way, until [`pass`](Self::pass) or for ever.
    pub fn hold(&self, direction: Direction) {
        self.change(|state| state.rules[direction as usize].held = true);
    }

    /// Lets so many pieces more go this way, on all connections together, and holds what follows, until
    /// [`pass`](Self::pass). A piece is what arrived at once: a request or a reply, where one waits for the other.
    pub fn hold_after(&self, direction: Direction, pieces: u64) {
        self.change(|state| state.rules[direction as usize].left = Some(pieces));
    }

    /// How many pieces are held now.
    pub fn held(&self) -> usize {
        self.shared.lock().holding
    }

    /// A black hole: connections stand and are accepted, nothing goes either way.
    pub fn black_hole(&self) {
        self.hold(Direction::ToServer);
        self.hold(Direction::ToClient);
    }

    /// Closes all connections, with what is on the way. New ones are accepted.
    pub fn cut(&self) {
        self.change(|state| state.links.iter().for_each(|link| link.close()));
    }

    /// Closes all connections and accepts none until [`pass`](Self::pass).
    pub fn refuse(&self) {
        self.change(|state| state.refusing = true);
        self.cut();
    }

    /// What has gone through so far.
    pub fn stats(&self) -> ProxyStats {
        self.shared.lock().stats
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.lock());
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        const WITHIN: Duration = Duration::from_secs(10);
        self.change(|state| state.stopping = true);
        self.cut();
        let _ = TcpStream::connect(("127.0.0.1", self.port)); // wakes the acceptor
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.cut(); // what it accepted last
        let ended =
            self.shared.changed.wait_timeout_while(self.shared.lock(), WITHIN, |state| state.threads > 0);
        if let Ok((state, timeout)) = ended
            && timeout.timed_out()
        {
            eprintln!("the proxy on port {} left {} threads behind", self.port, state.threads);
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rules: [Rule; 2],
    refusing: bool,
    stopping: bool,
    stats: ProxyStats,
    links: Vec<Arc<Link>>,
    threads: usize,
    holding: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rule {
    delay: Duration,
    held: bool,
    /// How many pieces more go through; any number where nothing is said.
    left: Option<u64>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something that arrived then may go on; `false` when its connection is closed.
    fn wait_turn(&self, link: &Link, direction: Direction, arrived: Instant) -> bool {
        let mut state = self.lock();
        loop {
            if link.is_closed() {
                return false;
            }
            let rule = &mut state.rules[direction as usize];
            let due = arrived + rule.delay;
            let now = Instant::now();
            state = if rule.held || rule.left == Some(0) {
                state.holding += 1;
                let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.holding -= 1;
                state
            } else if now < due {
                let waited = self.changed.wait_timeout(state, due - now);
                waited.unwrap_or_else(PoisonError::into_inner).0
            } else {
                rule.left = rule.left.map(|left| left - 1);
                return true;
            };
        }
    }
}

/// A connection of a client with its connection to the server.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    server: TcpStream,
    closed: AtomicBool,
    /// Commands that were forwarded and are not answered.
    open: AtomicU64,
}

impl Link {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    /// Where bytes of this direction come from, and where they go.
    fn ends(&self, direction: Direction) -> (&TcpStream, &TcpStream) {
        match direction {
            Direction::ToServer => (&self.client, &self.server),
            Direction::ToClient => (&self.server, &self.client),
        }
    }
}

fn accept(listener: &TcpListener, upstream: u16, shared: &Arc<Shared>) {
    const MAX_LINKS: usize = 1024;
    for client in listener.incoming().flatten() {
        {
            let mut state = shared.lock();
            if state.stopping {
                return;
            }
            state.links.retain(|link| !link.is_closed());
            if state.refusing || state.links.len() >= MAX_LINKS {
                continue; // closes it
            }
            state.stats.connections += 1;
        }
        let _ = join(client, upstream, shared); // a server that is down closes the client
    }
}

fn join(client: TcpStream, upstream: u16, shared: &Arc<Shared>) -> io::Result<()> {
    const WITHIN: Duration = Duration::from_secs(5);
    let server = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], upstream)), WITHIN)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let link = Arc::new(Link { client, server, closed: AtomicBool::new(false), open: AtomicU64::new(0) });
    shared.lock().links.push(Arc::clone(&link));
    for direction in [Direction::ToServer, Direction::ToClient] {
        pump(&link, direction, shared).inspect_err(|_| link.close())?;
    }
    Ok(())
}

/// When a chunk arrived, and its bytes; none for the end of the stream.
type Chunk = (Instant, Vec<u8>);

fn pump(link: &Arc<Link>, direction: Direction, shared: &Arc<Shared>) -> io::Result<()> {
    const CHUNKS: usize = 256; // then the sender has to wait, as with full socket buffers
    let (fill, drain) = sync_channel::<Chunk>(CHUNKS);
    let reader = Arc::clone(link);
    counted(shared, move |_| read_side(&reader, direction, &fill))?;
    let writer = Arc::clone(link);
    counted(shared, move |shared| write_side(&writer, direction, &drain, shared))
}

fn read_side(link: &Link, direction: Direction, fill: &SyncSender<Chunk>) {
    let (mut from, _) = link.ends(direction);
    let mut buffer = [0; 16 * 1024];
    loop {
        let length = from.read(&mut buffer).unwrap_or(0);
        let sent = fill.send((Instant::now(), buffer[..length].to_vec()));
        if length == 0 || sent.is_err() {
            return;
        }
    }
}

fn write_side(link: &Link, direction: Direction, drain: &Receiver<Chunk>, shared: &Shared) {
    let (_, mut to) = link.ends(direction);
    let mut counter = MessageCounter::default();
    while let Ok((arrived, bytes)) = drain.recv() {
        if !shared.wait_turn(link, direction, arrived) {
            return;
        }
        if bytes.is_empty() {
            let _ = to.shutdown(Shutdown::Write);
            if direction == Direction::ToClient {
                link.close(); // a server that has closed answers nothing more
            }
            return;
        }
        count(&mut shared.lock().stats, link, direction, &bytes, &mut counter);
        if to.write_all(&bytes).is_err() {
            link.close();
            return;
        }
    }
}

fn count(
    stats: &mut ProxyStats,
    link: &Link,
    direction: Direction,
    bytes: &[u8],
    counter: &mut MessageCounter,
) {
    let messages = counter.add(bytes);
    match direction {
        Direction::ToServer => {
            stats.bytes_to_server += bytes.len() as u64;
            stats.requests += messages;
            let open = link.open.fetch_add(messages, Ordering::SeqCst);
            stats.round_trips += u64::from(open == 0 && messages > 0);
        }
        Direction::ToClient => {
            stats.bytes_to_client += bytes.len() as u64;
            stats.replies += messages;
            let less = |open: u64| Some(open.saturating_sub(messages));
            let _ = link.open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        }
    }
}

/// Counts the commands, or the replies, in a stream that comes in pieces.
#[derive(Default)]
struct MessageCounter {
    rest: Vec<u8>,
}

impl MessageCounter {
    fn add(&mut self, bytes: &[u8]) -> u64 {
        self.rest.extend_from_slice(bytes);
        let mut count = 0;
        loop {
            match parse(&self.rest) {
                Ok(Some((message, length))) => {
                    self.rest.drain(..length);
                    count += u64::from(!matches!(message, Reply::Push(_)));
                }
                Ok(None) => return count,
                Err(_) => {
                    self.rest.clear(); // inline commands, and what replicas are sent, are not counted
                    return count;
                }
            }
        }
    }
}

/// A thread whose end [`Proxy::drop`] waits for.
fn counted(shared: &Arc<Shared>, work: impl FnOnce(&Shared) + Send + 'static) -> io::Result<()> {
    shared.lock().threads += 1;
    let inner = Arc::clone(shared);
    let started = spawn(move || {
        work(&inner);
        inner.lock().threads -= 1;
        inner.changed.notify_all();
    });
    if started.is_err() {
        shared.lock().threads -= 1;
    }
    started.map(drop)
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    const STACK_BYTES: usize = 256 * 1024;
    thread::Builder::new().name("testkit-proxy".into()).stack_size(STACK_BYTES).spawn(work)
}
