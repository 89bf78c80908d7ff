//! A reply as the server sent it. Errors are values: a test says which it wants.

use std::fmt;

/// One reply, of either protocol.
#[derive(Clone, PartialEq)]
pub enum Reply {
    /// Nothing: `$-1`, `*-1` or `_`.
    Nil,
    /// An integer.
    Int(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// A status line such as `OK`.
    Simple(String),
    /// An error: the whole line with its code, `FENCED token 1 is stale…`.
    Error(String),
    /// A list.
    Array(Vec<Reply>),
    /// Fields and values, in the order sent (RESP3).
    Map(Vec<(Reply, Reply)>),
    /// A set, in the order sent (RESP3).
    Set(Vec<Reply>),
    /// What the server sent unasked (RESP3).
    Push(Vec<Reply>),
    /// A floating-point number (RESP3).
    Double(f64),
    /// Yes or no (RESP3).
    Bool(bool),
    /// A number of any size, as its digits (RESP3).
    BigNumber(String),
    /// A text with its format, such as `txt` (RESP3).
    Verbatim(String, Vec<u8>),
}

impl Reply {
    /// The integer.
    ///
    /// # Panics
    /// When it is something else; so do the other readers.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => panic!("expected an integer, got {other:?}"),
        }
    }

    /// A fencing token: an integer above 0.
    #[track_caller]
    pub fn token(&self) -> u64 {
        match self {
            Self::Int(number) if *number > 0 => number.unsigned_abs(),
            other => panic!("expected a token, got {other:?}"),
        }
    }

    /// The number in whatever shape: an integer, a double, or a string of digits.
    #[track_caller]
    pub fn float(&self) -> f64 {
        match self {
            Self::Double(number) => *number,
            other => other.text().parse().unwrap_or_else(|_| panic!("expected a number, got {other:?}")),
        }
    }

    /// Whether it is nil.
    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }

    /// Whether it is an error.
    pub fn is_err(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// Asserts that it is `OK`.
    #[track_caller]
    pub fn ok(&self) {
        assert_eq!(self, &Self::Simple("OK".into()), "expected OK");
    }

    /// Asserts that it is nil.
    #[track_caller]
    pub fn nil(&self) {
        assert_eq!(self, &Self::Nil, "expected nil");
    }

    /// The error's line.
    #[track_caller]
    pub fn err(&self) -> &str {
        match self {
            Self::Error(line) => line,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    /// Asserts an error that begins so: `reply.assert_err_prefix("FENCED ")`. Returns the whole line.
    #[track_caller]
    pub fn assert_err_prefix(&self, prefix: &str) -> &str {
        match self {
            Self::Error(line) if line.starts_with(prefix) => line,
            other => panic!("expected an error that begins with {prefix:?}, got {other:?}"),
        }
    }

    /// Itself, once it is known to be no error.
    #[track_caller]
    pub fn no_err(self) -> Self {
        match self {
            Self::Error(line) => panic!("expected no error, got {line:?}"),
            other => other,
        }
    }

    /// The string's bytes.
    #[track_caller]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bulk(bytes) | Self::Verbatim(_, bytes) => bytes,
            Self::Simple(line) => line.as_bytes(),
            other => panic!("expected a string, got {other:?}"),
        }
    }

    /// A string or a number as text; bytes that are no UTF-8 are replaced.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Self::Int(number) => number.to_string(),
            Self::Double(number) => number.to_string(),
            Self::BigNumber(digits) => digits.clone(),
            other => String::from_utf8_lossy(other.bytes()).into_owned(),
        }
    }

    /// The items of an array, a set or a push.
    #[track_caller]
    pub fn items(&self) -> &[Reply] {
        match self {
            Self::Array(items) | Self::Set(items) | Self::Push(items) => items,
            other => panic!("expected a list, got {other:?}"),
        }
    }

    /// The fields and values of a map, or of the flat array that stands for one in RESP2.
    #[track_caller]
    pub fn fields(&self) -> Vec<(&Reply, &Reply)> {
        match self {
            Self::Map(pairs) => pairs.iter().map(|(name, value)| (name, value)).collect(),
            Self::Array(items) if items.len().is_multiple_of(2) => {
                items.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect()
            }
            other => panic!("expected a map, got {other:?}"),
        }
    }

    /// The value of a field, where the map has it.
    #[track_caller]
    pub fn get(&self, name: &str) -> Option<&Reply> {
        let is_name = |field: &Reply| match field {
            Self::Bulk(bytes) | Self::Verbatim(_, bytes) => bytes == name.as_bytes(),
            Self::Simple(line) => line == name,
            _ => false,
        };
        self.fields().into_iter().find(|(field, _)| is_name(field)).map(|(_, value)| value)
    }

    /// The value of a field that the map must have.
    #[track_caller]
    pub fn field(&self, name: &str) -> &Reply {
        match self.get(name) {
            Some(value) => value,
            None => panic!("expected a field {name:?}, got {self:?}"),
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => out.write_str("nil"),
            Self::Int(number) => write!(out, "{number}"),
            Self::Bulk(bytes) => write!(out, "\"{}\"", bytes.escape_ascii()),
            Self::Simple(line) => write!(out, "+{line}"),
            Self::Error(line) => write!(out, "-{line}"),
            Self::Array(items) => out.debug_list().entries(items).finish(),
            Self::Map(pairs) => {
                out.debug_map().entries(pairs.iter().map(|(name, value)| (name, value))).finish()
            }
            Self::Set(items) => {
                out.write_str("~")?;
                out.debug_set().entries(items).finish()
            }
            Self::Push(items) => {
                out.write_str(">")?;
                out.debug_list().entries(items).finish()
            }
            Self::Double(number) => write!(out, "{number:?}"),
            Self::Bool(yes) => write!(out, "{yes}"),
            Self::BigNumber(digits) => write!(out, "({digits}"),
            Self::Verbatim(format, text) => write!(out, "{format}:\"{}\"", text.escape_ascii()),
        }
    }
}
