//! `LOCK.RELEASE`, `LOCK.EXTEND`, `LOCK.INFO` and `LOCK.BREAK`.

use alloc::string::ToString as _;
use alloc::vec;
use alloc::vec::Vec;

use super::acquire::parse_ttl;
use super::{is, number, token};
use crate::clock::Ttl;
use crate::error::Refusal;
use crate::ids::{Owner, Token};
use crate::limits;
use crate::text::quoted;

/// `LOCK.RELEASE lock owner`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release<'a> {
    /// Who releases.
    pub owner: Owner<'a>,
}

impl<'a> Release<'a> {
    /// Reads the words after the lock's name.
    ///
    /// # Errors
    /// A refusal that names what is wrong.
    pub fn parse(words: &[&'a [u8]]) -> Result<Self, Refusal> {
        let [owner] = words else { return Err(Refusal::WrongArity("lock.release")) };
        Ok(Self { owner: Owner::new(owner).ok_or(Refusal::BadOwner)? })
    }

    /// The whole command, as a client sends it.
    #[must_use]
    pub fn words(&self, lock: &[u8]) -> Vec<Vec<u8>> {
        vec![b"LOCK.RELEASE".to_vec(), lock.to_vec(), self.owner.bytes().to_vec()]
    }
}

/// `LOCK.EXTEND lock owner ttl-ms [MINTOKEN t]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extend<'a> {
    /// Who extends.
    pub owner: Owner<'a>,
    /// The lease from now on.
    pub ttl: Ttl,
    /// The token is raised to this, if it is higher.
    pub min_token: Option<Token>,
}

impl<'a> Extend<'a> {
    /// Reads the words after the lock's name. `max_ttl_ms` is the server's `lockfence.max-ttl-ms`.
    ///
    /// # Errors
    /// A refusal that names the offending word.
    pub fn parse(words: &[&'a [u8]], max_ttl_ms: u64) -> Result<Self, Refusal> {
        let [owner, ttl, options @ ..] = words else { return Err(Refusal::WrongArity("lock.extend")) };
        let owner = Owner::new(owner).ok_or(Refusal::BadOwner)?;
        let ttl = parse_ttl(ttl, max_ttl_ms)?;
        let mut min_token = None;
        let mut rest = options.iter();
        while let Some(word) = rest.next() {
            if !is(word, "MINTOKEN") {
                return Err(Refusal::UnknownOption(quoted(word)));
            }
            if min_token.is_some() {
                return Err(Refusal::OptionTwice("MINTOKEN"));
            }
            let value = rest.next().ok_or(Refusal::OptionWithoutValue("MINTOKEN"))?;
            min_token = Some(token("MINTOKEN", value)?);
        }
        Ok(Self { owner, ttl, min_token })
    }

    /// The whole command, as a client sends it.
    #[must_use]
    pub fn words(&self, lock: &[u8]) -> Vec<Vec<u8>> {
        let ttl = self.ttl.ms().to_string().into_bytes();
        let mut words = vec![b"LOCK.EXTEND".to_vec(), lock.to_vec(), self.owner.bytes().to_vec(), ttl];
        if let Some(token) = self.min_token {
            words.push(b"MINTOKEN".to_vec());
            words.push(token.get().to_string().into_bytes());
        }
        words
    }
}

/// `LOCK.INFO lock [FULL [COUNT n]]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// With FULL: how many holders and waiters to list; `u64::MAX` for all.
    pub full: Option<u64>,
}

impl Info {
    /// Reads the words after the lock's name.
    ///
    /// # Errors
    /// A refusal that names the offending word.
    pub fn parse(words: &[&[u8]]) -> Result<Self, Refusal> {
        let [first, rest @ ..] = words else { return Ok(Self { full: None }) };
        if is(first, "COUNT") {
            return Err(Refusal::OptionNeeds("COUNT", "FULL"));
        }
        if !is(first, "FULL") {
            return Err(Refusal::UnknownOption(quoted(first)));
        }
        match rest {
            [] => Ok(Self { full: Some(limits::INFO_COUNT_DEFAULT) }),
            [count, ..] if is(count, "FULL") => Err(Refusal::OptionTwice("FULL")),
            [count, ..] if !is(count, "COUNT") => Err(Refusal::UnknownOption(quoted(count))),
            [_] => Err(Refusal::OptionWithoutValue("COUNT")),
            [_, n] => {
                let n = number("COUNT", n, 0, u64::from(u32::MAX))?;
                Ok(Self { full: Some(if n == 0 { u64::MAX } else { n }) })
            }
            [_, _, more, ..] if is(more, "COUNT") => Err(Refusal::OptionTwice("COUNT")),
            [_, _, more, ..] => Err(Refusal::UnknownOption(quoted(more))),
        }
    }
}

/// `LOCK.BREAK lock [MAXTOKEN t]`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Break {
    /// Only holders whose token is at most this.
    pub max_token: Option<Token>,
}

impl Break {
    /// Reads the words after the lock's name.
    ///
    /// # Errors
    /// A refusal that names the offending word.
    pub fn parse(words: &[&[u8]]) -> Result<Self, Refusal> {
        let max_token = match words {
            [] => None,
            [word, ..] if !is(word, "MAXTOKEN") => return Err(Refusal::UnknownOption(quoted(word))),
            [_] => return Err(Refusal::OptionWithoutValue("MAXTOKEN")),
            [_, max] => Some(token("MAXTOKEN", max)?),
            [_, _, more, ..] if is(more, "MAXTOKEN") => return Err(Refusal::OptionTwice("MAXTOKEN")),
            [_, _, more, ..] => return Err(Refusal::UnknownOption(quoted(more))),
        };
        Ok(Self { max_token })
    }

    /// The whole command, as a client sends it.
    #[must_use]
    pub fn words(&self, lock: &[u8]) -> Vec<Vec<u8>> {
        let mut words = vec![b"LOCK.BREAK".to_vec(), lock.to_vec()];
        if let Some(token) = self.max_token {
            words.push(b"MAXTOKEN".to_vec());
            words.push(token.get().to_string().into_bytes());
        }
        words
    }
}
