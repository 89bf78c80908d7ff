//! Administration: which locks there are, who holds them, who waits, and ending a hold by force.
//!
//! ```no_run
//! use lockfence_client::Lockfence;
//!
//! # async fn example() -> Result<(), lockfence_client::Error> {
//! let admin = Lockfence::builder().node("redis://a.example").build()?.admin();
//! for node in admin.list("deploy:*", 1).await {
//!     match node.answer {
//!         Ok(locks) => locks.iter().for_each(|lock| println!("{}: {lock:?}", node.node)),
//!         Err(cause) => eprintln!("{}: {cause}", node.node),
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! Each node answers for itself, and what it says was true when it said so: a view for people and for monitoring, never
//! a reason to believe that a lock is held. On a quorum it is for the reader to lay the answers together: who has a
//! majority of the nodes holds the lock.
//!
//! Nothing here takes, renews or releases a lock. The requests go out on the connections that the client has anyway.

mod ask;

use std::sync::Arc;
use std::time::Duration;

pub use lockfence_core::ids::Mode;
use lockfence_core::ids::Token;
use lockfence_core::request::Break;
use tokio::task::JoinSet;

use self::ask::{answered, is_of_that_key, names, states};
use crate::lockfence::Lockfence;
use crate::node::Node;
use crate::owner::Owner;
use crate::quorum::Failure;
use crate::wire::{command_of, not_understood, number};

/// How long an answer of a node may take unless it was said otherwise.
const WITHIN: Duration = Duration::from_secs(5);
/// How many locks a node is asked about at once.
const AT_ONCE: usize = 256;

/// Questions and orders of an administrator, to all nodes of a client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admin {
    client: Lockfence,
    within: Duration,
}

/// What one node answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtNode<T> {
    /// The node's name: its address, without what is secret.
    pub node: String,
    /// Its answer, or why there is none.
    pub answer: Result<T, NoAnswer>,
}

/// Why a node gave no answer that counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct NoAnswer {
    /// The reason, in one line.
    pub cause: String,
    /// Whether it will be the same until somebody mends it: the user may not do it or cannot log in, the key is no lock,
    /// the server has no module … Else the node is down, cut off, starting: trying again later may help.
    pub lasting: bool,
}

impl NoAnswer {
    fn passing(cause: &str) -> Self {
        Self { cause: cause.to_owned(), lasting: false }
    }
}

impl From<Failure> for NoAnswer {
    fn from(failure: Failure) -> Self {
        Self { cause: failure.text, lasting: failure.kind.is_final() }
    }
}

/// A lock as one node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockState {
    /// The lock's name.
    pub name: Vec<u8>,
    /// In which mode it is held; `None` while it is free.
    pub mode: Option<Mode>,
    /// The highest token that this node has issued for the lock.
    pub counter: u64,
    /// How many grants the node's record has seen.
    pub grants: u64,
    /// How many hold it; 0 while it is free.
    pub holders: u64,
    /// How many wait.
    pub waiters: u64,
    /// The holders, in the order of their grants: so many as were asked for.
    pub holder_list: Vec<Holder>,
    /// Those who wait, in the order in which they will be served: so many as were asked for.
    pub waiter_list: Vec<Waiter>,
}

/// Who holds a lock at one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// How it named itself. Whoever knows this can release the lock.
    pub owner: Owner,
    /// Its token at this node. On a quorum a node may have issued another one than the lock's.
    pub token: u64,
    /// How long its lease runs if it is not renewed.
    pub left: Duration,
    /// For how long it has held it.
    pub held: Duration,
}

/// Who waits for a lock at one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// How it named itself.
    pub owner: Owner,
    /// In which mode it wants the lock: `exclusive`, `shared` or `limit`.
    pub mode: String,
    /// For how long it has waited.
    pub waited: Duration,
    /// After how long it gives up; `None`: never.
    pub left: Option<Duration>,
    /// The number of its connection, as in CLIENT LIST.
    pub client_id: u64,
}

impl Lockfence {
    /// Questions and orders of an administrator, to all nodes of this client.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin { client: self.clone(), within: WITHIN }
    }
}

impl Admin {
    /// How long each answer of a node may take: 5 s unless said otherwise. The nodes are asked side by side, and one that
    /// does not answer in time is asked nothing more: nodes that are silent take that long together.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// The nodes' names, in the order in which they were configured.
    #[must_use]
    pub fn nodes(&self) -> Vec<String> {
        self.client.0.nodes.iter().map(|node| node.name().to_owned()).collect()
    }

    /// How many nodes are a majority.
    #[must_use]
    pub fn majority(&self) -> usize {
        (self.client.0.nodes.len() / 2).saturating_add(1)
    }

    /// All locks whose name matches `pattern` (as in SCAN: `*`, `?`, `[…]`), at each node, in the order of their names.
    /// Free ones, whose record the node still has, are among them. Each with at most `count` holders and waiters (0:
    /// all of them). Locks that the user may not read are left out.
    pub async fn list(&self, pattern: impl AsRef<[u8]>, count: u64) -> Vec<AtNode<Vec<LockState>>> {
        let within = self.within;
        let list = |node: Arc<Node>, pattern: Vec<u8>| async move {
            let names = names(&node, &pattern, within).await?;
            let mut found = Vec::new();
            for names in names.chunks(AT_ONCE) {
                for answer in states(&node, names, count, within).await {
                    match answer {
                        Ok(state) => found.extend(state),
                        Err(no) if is_of_that_key(&no) => {}
                        Err(no) => return Err(no),
                    }
                }
            }
            Ok(found)
        };
        self.at_all(pattern.as_ref(), list).await
    }

    /// One lock at each node, with at most `count` holders and waiters (0: all of them). `None` where a node has no
    /// record of it: nobody holds it there.
    pub async fn look(&self, lock: impl AsRef<[u8]>, count: u64) -> Vec<AtNode<Option<LockState>>> {
        let within = self.within;
        let look = |node: Arc<Node>, lock: Vec<u8>| async move {
            states(&node, &[lock], count, within).await.pop().unwrap_or(Ok(None))
        };
        self.at_all(lock.as_ref(), look).await
    }

    /// Ends the hold of whoever has the lock, at each node, and says how many holders that were. They are fenced at
    /// once, and are told at their next renewal at the latest; the next in the queue is granted. On a quorum a holder
    /// has lost the lock once a majority of the nodes has carried it out.
    pub async fn break_lock(&self, lock: impl AsRef<[u8]>) -> Vec<AtNode<u64>> {
        self.order(lock.as_ref(), |_| Ok(Some(Break::default()))).await
    }

    /// As [`Admin::break_lock`], but only for those who were there at that [`Admin::look`]: each node ends its holders up
    /// to the token it was at, so that whoever was granted the lock since then keeps it. A node that had no record of the
    /// lock then, or did not answer, is left alone.
    pub async fn break_seen(
        &self,
        lock: impl AsRef<[u8]>,
        seen: &[AtNode<Option<LockState>>],
    ) -> Vec<AtNode<u64>> {
        self.order(lock.as_ref(), |node| up_to(node, seen)).await
    }

    /// Gives each node its order, if it has one; 0 where not.
    async fn order(
        &self,
        lock: &[u8],
        order: impl Fn(&str) -> Result<Option<Break>, NoAnswer>,
    ) -> Vec<AtNode<u64>> {
        let within = self.within;
        let carry_out = |node: Arc<Node>, lock: Vec<u8>| {
            let order = order(node.name());
            async move {
                let Some(order) = order? else { return Ok(0) };
                let cmd = command_of(order.words(&lock));
                let ended = answered(node.send(cmd, &lock, within).await)?;
                number(&ended).ok_or_else(|| not_understood(&ended).into())
            }
        };
        self.at_all(lock, carry_out).await
    }

    /// Carries out `work` on `subject` at all nodes at once. Dropping the future ends it.
    async fn at_all<T, Work>(
        &self,
        subject: &[u8],
        work: impl Fn(Arc<Node>, Vec<u8>) -> Work,
    ) -> Vec<AtNode<T>>
    where
        T: Send + 'static,
        Work: Future<Output = Result<T, NoAnswer>> + Send + 'static,
    {
        let nodes = &self.client.0.nodes;
        let mut tasks = JoinSet::new();
        for (place, node) in nodes.iter().enumerate() {
            let work = work(node.clone(), subject.to_vec());
            tasks.spawn(async move { (place, work.await) });
        }
        let mut answers: Vec<Option<Result<T, NoAnswer>>> = nodes.iter().map(|_| None).collect();
        while let Some(ended) = tasks.join_next().await {
            if let Ok((place, answer)) = ended
                && let Some(slot) = answers.get_mut(place)
            {
                *slot = Some(answer);
            }
        }
        let named = nodes.iter().zip(answers).map(|(node, answer)| AtNode {
            node: node.name().to_owned(),
            answer: answer.unwrap_or_else(|| Err(NoAnswer::passing("the question was called off"))),
        });
        named.collect()
    }
}

/// Those at that node who were there then: nobody where it had no record.
fn up_to(node: &str, seen: &[AtNode<Option<LockState>>]) -> Result<Option<Break>, NoAnswer> {
    let then = seen.iter().find(|other| other.node == node);
    let Some(then) = then else { return Err(NoAnswer::passing("it was not asked before")) };
    let counter = then.answer.as_ref().map_err(Clone::clone)?.as_ref().map(|state| state.counter);
    Ok(counter.and_then(Token::new).map(|max| Break { max_token: Some(max) }))
}
