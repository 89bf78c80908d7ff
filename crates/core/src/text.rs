//! Bytes in messages. Names are bytes and may hold anything; an error line may not.

use alloc::string::String;
use core::fmt::Write as _;

use crate::limits::NAME_IN_ERROR_BYTES;

/// `bytes` for an error line: in double quotes, escaped as the server's own logs escape (`\xff`, `\n`, `\"`), cut
/// at 64 bytes of the name (then followed by `...` outside the quotes).
#[must_use]
pub fn quoted(bytes: &[u8]) -> String {
    let mut line = String::from("\"");
    for &byte in bytes.iter().take(NAME_IN_ERROR_BYTES) {
        push_escaped(&mut line, byte);
    }
    line.push('"');
    if bytes.len() > NAME_IN_ERROR_BYTES {
        line.push_str("...");
    }
    line
}

fn push_escaped(line: &mut String, byte: u8) {
    match byte {
        b'"' => line.push_str("\\\""),
        b'\\' => line.push_str("\\\\"),
        b'\n' => line.push_str("\\n"),
        b'\r' => line.push_str("\\r"),
        b'\t' => line.push_str("\\t"),
        0x20..=0x7e => line.push(char::from(byte)),
        other => {
            // Writing to a String cannot fail.
            let _ = write!(line, "\\x{other:02x}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn names_are_escaped_and_cut() {
        assert_eq!(quoted(b"plain:{1}"), "\"plain:{1}\"");
        assert_eq!(quoted(b"a\0\r\n\"\\\xff"), r#""a\x00\r\n\"\\\xff""#);
        assert_eq!(quoted(&[b'x'; 65]).len(), 64 + 2 + 3);
        assert_eq!(quoted(&[b'x'; 64]).len(), 64 + 2);
    }
}
