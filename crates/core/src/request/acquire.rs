//! `LOCK.ACQUIRE lock owner ttl-ms [WAIT timeout-ms] [SHARED | LIMIT n] [MINTOKEN t] [WITHINFO]`

use alloc::string::ToString as _;
use alloc::vec;
use alloc::vec::Vec;

use super::{is, number, token};
use crate::clock::Ttl;
use crate::error::Refusal;
use crate::ids::{Mode, Owner, Token};
use crate::limits;
use crate::text::quoted;

/// How long to wait for a lock that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Without limit (`WAIT 0`, as for BLPOP).
    Forever,
    /// So many ms from the request: 1 to 365 days.
    Ms(u64),
}

/// A request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire<'a> {
    /// Who asks.
    pub owner: Owner<'a>,
    /// The lease asked for.
    pub ttl: Ttl,
    /// Whether to wait.
    pub wait: Option<Wait>,
    /// How many may hold it.
    pub mode: Mode,
    /// The least token asked for.
    pub min_token: Option<Token>,
    /// Whether the reply is a map.
    pub with_info: bool,
}

impl<'a> Acquire<'a> {
    /// A plain request: exclusive, without waiting.
    #[must_use]
    pub const fn new(owner: Owner<'a>, ttl: Ttl) -> Self {
        Self { owner, ttl, wait: None, mode: Mode::Exclusive, min_token: None, with_info: false }
    }

    /// Reads the words after the lock's name. `max_ttl_ms` is the server's `lockfence.max-ttl-ms`.
    ///
    /// # Errors
    /// A refusal that names the offending word.
    pub fn parse(words: &[&'a [u8]], max_ttl_ms: u64) -> Result<Self, Refusal> {
        let [owner, ttl, options @ ..] = words else { return Err(Refusal::WrongArity("lock.acquire")) };
        let owner = Owner::new(owner).ok_or(Refusal::BadOwner)?;
        let mut request = Self::new(owner, parse_ttl(ttl, max_ttl_ms)?);
        let mut seen = Seen::default();
        let mut rest = options.iter();
        while let Some(word) = rest.next() {
            request.option(word, &mut rest, &mut seen)?;
        }
        Ok(request)
    }

    fn option<'w>(
        &mut self,
        word: &[u8],
        rest: &mut impl Iterator<Item = &'w &'a [u8]>,
        seen: &mut Seen,
    ) -> Result<(), Refusal>
    where
        'a: 'w,
    {
        let mut value = |name| rest.next().copied().ok_or(Refusal::OptionWithoutValue(name));
        if is(word, "WAIT") {
            seen.once("WAIT", |seen| &mut seen.wait)?;
            let ms = number("WAIT timeout-ms", value("WAIT")?, 0, limits::TTL_MS_MAX)?;
            self.wait = Some(if ms == 0 { Wait::Forever } else { Wait::Ms(ms) });
        } else if is(word, "SHARED") {
            seen.once("SHARED", |seen| &mut seen.shared)?;
            self.mode = Mode::Shared;
        } else if is(word, "LIMIT") {
            seen.once("LIMIT", |seen| &mut seen.limit)?;
            let n = number("LIMIT", value("LIMIT")?, 1, u64::from(limits::HOLDERS_MAX))?;
            self.mode = Mode::Limit(u32::try_from(n).unwrap_or(limits::HOLDERS_MAX));
        } else if is(word, "MINTOKEN") {
            seen.once("MINTOKEN", |seen| &mut seen.min_token)?;
            self.min_token = Some(token("MINTOKEN", value("MINTOKEN")?)?);
        } else if is(word, "WITHINFO") {
            seen.once("WITHINFO", |seen| &mut seen.with_info)?;
            self.with_info = true;
        } else {
            return Err(Refusal::UnknownOption(quoted(word)));
        }
        if seen.shared && seen.limit {
            return Err(Refusal::OptionsConflict("SHARED", "LIMIT"));
        }
        Ok(())
    }

    /// The whole command, as a client sends it.
    #[must_use]
    pub fn words(&self, lock: &[u8]) -> Vec<Vec<u8>> {
        let mut words: Vec<Vec<u8>> =
            vec![b"LOCK.ACQUIRE".to_vec(), lock.to_vec(), self.owner.bytes().to_vec()];
        let mut push = |text: &str| words.push(text.as_bytes().to_vec());
        push(&self.ttl.ms().to_string());
        if let Some(wait) = self.wait {
            let ms = if let Wait::Ms(ms) = wait { ms } else { 0 };
            push("WAIT");
            push(&ms.to_string());
        }
        match self.mode {
            Mode::Exclusive => {}
            Mode::Shared => push("SHARED"),
            Mode::Limit(n) => {
                push("LIMIT");
                push(&n.to_string());
            }
        }
        if let Some(token) = self.min_token {
            push("MINTOKEN");
            push(&token.get().to_string());
        }
        if self.with_info {
            push("WITHINFO");
        }
        words
    }
}

pub(super) fn parse_ttl(word: &[u8], max_ttl_ms: u64) -> Result<Ttl, Refusal> {
    let max = max_ttl_ms.min(limits::TTL_MS_MAX);
    let ms = number("ttl-ms", word, 1, max)?;
    Ttl::from_ms(ms).ok_or(Refusal::BadNumber { what: "ttl-ms", min: 1, max })
}

#[derive(Default)]
struct Seen {
    wait: bool,
    shared: bool,
    limit: bool,
    min_token: bool,
    with_info: bool,
}

impl Seen {
    fn once(
        &mut self,
        name: &'static str,
        field: impl FnOnce(&mut Self) -> &mut bool,
    ) -> Result<(), Refusal> {
        if core::mem::replace(field(self), true) { Err(Refusal::OptionTwice(name)) } else { Ok(()) }
    }
}
