//! Who holds a lock, as it named itself: a credential, so that it is never shown whole.

use std::fmt;

/// How many random digits a client of this crate puts behind its name.
const DIGITS: usize = 32;
/// How many of them are shown, and how many bytes of an owner of another make.
const SHOWN: usize = 8;
/// Longest name that is shown with its digits.
const NAME_MAX: usize = 64;
/// Between the name and the digits.
const SEPARATOR: &[u8] = b"/";

/// The owner of a lock, as it named itself. Whoever knows it whole can release the lock or extend it, so what is printed
/// (`Display`, `Debug`, and every error that names an owner) is its beginning alone: the client's name and the first of
/// the digits behind it, `worker-1/3f9a2c1b…`; of any other owner at most half of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Vec<u8>);

impl Owner {
    /// The owner whole, as LOCK.EXTEND and LOCK.RELEASE take it. Keep it out of logs.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// As [`Self::bytes`].
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The name that a client of this crate put before the digits. It is no secret. None where another client made the
    /// owner: what such a one consists of is not known.
    #[must_use]
    pub fn name(&self) -> Option<&[u8]> {
        self.before_digits()?.strip_suffix(SEPARATOR).filter(|name| !name.is_empty())
    }

    /// As much of it as may be shown, which is what `Display` shows, but as bytes.
    #[must_use]
    pub fn beginning(&self) -> &[u8] {
        let shown = match self.before_digits().map(<[u8]>::len) {
            Some(name) if name > NAME_MAX => NAME_MAX,
            Some(name) => name.saturating_add(SHOWN),
            None => SHOWN.min(self.0.len() / 2),
        };
        self.0.get(..shown).unwrap_or_default()
    }

    /// What stands before the random digits, with the separator, where they are there.
    fn before_digits(&self) -> Option<&[u8]> {
        let (before, digits) = self.0.split_at_checked(self.0.len().checked_sub(DIGITS)?)?;
        let is_ours = before.is_empty() || before.ends_with(SEPARATOR);
        (is_ours && digits.iter().all(u8::is_ascii_hexdigit)).then_some(before)
    }
}

impl From<Vec<u8>> for Owner {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for Owner {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.beginning().escape_ascii())
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::Owner;

    #[test]
    fn an_owner_is_never_shown_whole() {
        let digits = "0123456789abcdef0123456789abcdef";
        let long = "n".repeat(100);
        // what it is, and what is shown of it
        for (owner, shown) in [
            (digits.to_owned(), "01234567…".to_owned()),
            (format!("worker-1/{digits}"), "worker-1/01234567…".to_owned()),
            (format!("a/b/{digits}"), "a/b/01234567…".to_owned()),
            (format!("{long}/{digits}"), format!("{}…", "n".repeat(64))),
            (format!("x{digits}"), "x0123456…".to_owned()),
            ("alice".to_owned(), "al…".to_owned()),
            ("a".to_owned(), "…".to_owned()),
            (String::new(), "…".to_owned()),
            ("9b2d7c1e-0000-4000-8000-123456789abc".to_owned(), "9b2d7c1e…".to_owned()),
            ("\x1b[2J and more".to_owned(), r"\x1b[2J a…".to_owned()),
        ] {
            let is = Owner::from(owner.clone().into_bytes());
            assert_eq!(is.to_string(), shown);
            assert_eq!(format!("{is:?}"), format!("\"{shown}\""));
            assert_eq!(is.bytes(), owner.as_bytes());
        }
    }

    #[test]
    fn names_are_those_that_clients_gave_themselves() {
        let digits = "0123456789abcdef0123456789abcdef";
        for (owner, name) in [
            (format!("worker-1/{digits}"), Some("worker-1")),
            (format!("a/b/{digits}"), Some("a/b")),
            (format!("/{digits}"), None),
            (digits.to_owned(), None),
            (format!("x{digits}"), None),
            (format!("x/{}", &digits[1..]), None),
            ("alice/1".to_owned(), None),
        ] {
            assert_eq!(Owner::from(owner.as_bytes()).name(), name.map(str::as_bytes), "{owner}");
        }
    }
}
