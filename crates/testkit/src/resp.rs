//! Reads RESP2 and RESP3 exactly, from bytes that may still be incomplete.

use std::fmt;

use crate::Reply;

/// What cannot be a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "not RESP: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// Reads one reply from the start of `bytes`: it and its length, or `None` while more is to come.
///
/// Attributes (RESP3's `|`) are read over: they annotate the reply that follows.
pub fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    match reader.reply(0) {
        Ok(reply) => Ok(Some((reply, reader.at))),
        Err(Stop::Incomplete) => Ok(None),
        Err(Stop::Malformed(what)) => Err(Malformed(what)),
    }
}

enum Stop {
    Incomplete,
    Malformed(String),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn reply(&mut self, depth: u32) -> Result<Reply, Stop> {
        const MAX_DEPTH: u32 = 100;
        if depth > MAX_DEPTH {
            return Err(Stop::Malformed(format!("nested deeper than {MAX_DEPTH}")));
        }
        let line = self.line()?;
        let (&kind, rest) =
            line.split_first().ok_or_else(|| Stop::Malformed("an empty line for a reply".into()))?;
        let text = || String::from_utf8_lossy(rest).into_owned();
        Ok(match kind {
            b'+' => Reply::Simple(text()),
            b'-' => Reply::Error(text()),
            b':' => Reply::Int(number(rest)?),
            b'_' => Reply::Nil,
            b'#' => Reply::Bool(boolean(rest)?),
            b',' => Reply::Double(double(rest)?),
            b'(' => Reply::BigNumber(text()),
            b'$' => self.blob(rest)?.map_or(Reply::Nil, |blob| Reply::Bulk(blob.to_vec())),
            b'!' => {
                let blob = self.blob(rest)?.unwrap_or_default();
                Reply::Error(String::from_utf8_lossy(blob).into_owned())
            }
            b'=' => verbatim(self.blob(rest)?.unwrap_or_default())?,
            b'*' => self.list(rest, depth)?.map_or(Reply::Nil, Reply::Array),
            b'~' => Reply::Set(self.list(rest, depth)?.unwrap_or_default()),
            b'>' => Reply::Push(self.list(rest, depth)?.unwrap_or_default()),
            b'%' => Reply::Map(self.pairs(rest, depth)?),
            b'|' => {
                self.pairs(rest, depth)?;
                self.reply(depth + 1)?
            }
            _ => return Err(Stop::Malformed(format!("a reply begins with \"{}\"", line.escape_ascii()))),
        })
    }

    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let length = rest.windows(2).position(|pair| pair == b"\r\n").ok_or(Stop::Incomplete)?;
        self.at += length + 2;
        Ok(&rest[..length])
    }

    /// A length of -1 is RESP2's nil.
    fn blob(&mut self, length: &[u8]) -> Result<Option<&'a [u8]>, Stop> {
        let Some(length) = count(length)? else { return Ok(None) };
        let end = self.at + length;
        let blob = self.bytes.get(self.at..end).ok_or(Stop::Incomplete)?;
        match self.bytes.get(end..end + 2) {
            None => Err(Stop::Incomplete),
            Some(b"\r\n") => {
                self.at = end + 2;
                Ok(Some(blob))
            }
            Some(other) => {
                Err(Stop::Malformed(format!("\"{}\" follows {length} bytes", other.escape_ascii())))
            }
        }
    }

    fn list(&mut self, length: &[u8], depth: u32) -> Result<Option<Vec<Reply>>, Stop> {
        let Some(length) = count(length)? else { return Ok(None) };
        (0..length).map(|_| self.reply(depth + 1)).collect::<Result<_, _>>().map(Some)
    }

    fn pairs(&mut self, length: &[u8], depth: u32) -> Result<Vec<(Reply, Reply)>, Stop> {
        let length = count(length)?.unwrap_or(0);
        (0..length).map(|_| Ok((self.reply(depth + 1)?, self.reply(depth + 1)?))).collect()
    }
}

fn number(digits: &[u8]) -> Result<i64, Stop> {
    let text = str::from_utf8(digits).unwrap_or_default();
    text.parse().map_err(|_| Stop::Malformed(format!("\"{}\" for an integer", digits.escape_ascii())))
}

fn count(digits: &[u8]) -> Result<Option<usize>, Stop> {
    const MAX: i64 = 1 << 30;
    match number(digits)? {
        -1 => Ok(None),
        length @ 0..=MAX => Ok(usize::try_from(length).ok()),
        length => Err(Stop::Malformed(format!("a length of {length}"))),
    }
}

fn boolean(word: &[u8]) -> Result<bool, Stop> {
    match word {
        b"t" => Ok(true),
        b"f" => Ok(false),
        _ => Err(Stop::Malformed(format!("\"{}\" for a boolean", word.escape_ascii()))),
    }
}

fn double(digits: &[u8]) -> Result<f64, Stop> {
    let text = str::from_utf8(digits).unwrap_or_default();
    text.parse().map_err(|_| Stop::Malformed(format!("\"{}\" for a double", digits.escape_ascii())))
}

fn verbatim(blob: &[u8]) -> Result<Reply, Stop> {
    match blob.split_at_checked(4) {
        Some(([format @ .., b':'], text)) => {
            Ok(Reply::Verbatim(String::from_utf8_lossy(format).into_owned(), text.to_vec()))
        }
        _ => Err(Stop::Malformed(format!("\"{}\" for a verbatim string", blob.escape_ascii()))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Reply, parse};

    fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.as_bytes().to_vec())
    }

    fn whole(bytes: &[u8]) -> Reply {
        let (reply, length) = parse(bytes).expect("well formed").expect("complete");
        assert_eq!(length, bytes.len(), "all of it belongs to the reply");
        reply
    }

    #[test]
    fn reads_every_kind() {
        let table: &[(&[u8], Reply)] = &[
            (b"+OK\r\n", Reply::Simple("OK".into())),
            (b"-FENCED token 1 is stale\r\n", Reply::Error("FENCED token 1 is stale".into())),
            (b":-7\r\n", Reply::Int(-7)),
            (b":9007199254740991\r\n", Reply::Int(9_007_199_254_740_991)),
            (b"$5\r\na\r\nb\0\r\n", Reply::Bulk(b"a\r\nb\0".to_vec())),
            (b"$0\r\n\r\n", bulk("")),
            (b"$-1\r\n", Reply::Nil),
            (b"*-1\r\n", Reply::Nil),
            (b"_\r\n", Reply::Nil),
            (b"*0\r\n", Reply::Array(vec![])),
            (b"*2\r\n:1\r\n*1\r\n$-1\r\n", Reply::Array(vec![Reply::Int(1), Reply::Array(vec![Reply::Nil])])),
            (b"%1\r\n$1\r\na\r\n:1\r\n", Reply::Map(vec![(bulk("a"), Reply::Int(1))])),
            (b"~1\r\n+x\r\n", Reply::Set(vec![Reply::Simple("x".into())])),
            (b">1\r\n+x\r\n", Reply::Push(vec![Reply::Simple("x".into())])),
            (b",1.5\r\n", Reply::Double(1.5)),
            (b",inf\r\n", Reply::Double(f64::INFINITY)),
            (b"#t\r\n", Reply::Bool(true)),
            (b"(12345678901234567890\r\n", Reply::BigNumber("12345678901234567890".into())),
            (b"=6\r\ntxt:ab\r\n", Reply::Verbatim("txt".into(), b"ab".to_vec())),
            (b"!7\r\nERR a b\r\n", Reply::Error("ERR a b".into())),
            (b"|1\r\n+ttl\r\n:3\r\n:5\r\n", Reply::Int(5)),
            (b"*2\r\n|1\r\n+a\r\n+b\r\n:1\r\n:2\r\n", Reply::Array(vec![Reply::Int(1), Reply::Int(2)])),
        ];
        for (bytes, expected) in table {
            assert_eq!(&whole(bytes), expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn every_prefix_is_incomplete() {
        let bytes = b"%2\r\n$1\r\na\r\n*2\r\n:1\r\n_\r\n+b\r\n|1\r\n+c\r\n+d\r\n$-1\r\n";
        for length in 0..bytes.len() {
            assert_eq!(parse(&bytes[..length]), Ok(None), "{length} bytes");
        }
        whole(bytes);
    }

    #[test]
    fn leaves_what_follows() {
        assert_eq!(parse(b":1\r\n:2\r\n"), Ok(Some((Reply::Int(1), 4))));
    }

    #[test]
    fn refuses_what_is_no_reply() {
        let table: &[&[u8]] =
            &[b"x\r\n", b"\r\n", b":1x\r\n", b"$-2\r\n", b"$1\r\nabc", b"#y\r\n", b"=2\r\nab\r\n"];
        for bytes in table {
            assert!(parse(bytes).is_err(), "{}", bytes.escape_ascii());
        }
        assert!(parse(&b"*1\r\n".repeat(200)).is_err(), "deep nesting");
    }
}
