//! Names are bytes. On a terminal they must do nothing but be read; in JSON they must be text.

use lockfence_client::Owner;

/// For tables and messages: text as it is, but everything that does not print, moves the cursor or turns the direction
/// of writing, and each byte that is not UTF-8, as an escape: `\n`, `\u{202e}`, `\xff`; and `\\` for a backslash.
pub(crate) fn for_people(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                // Their escapes are for source code.
                '\'' | '"' => text.push(c),
                _ => text.extend(c.escape_debug()),
            }
        }
        push_invalid(&mut text, chunk.invalid());
    }
    text
}

/// For JSON: text as it is, but `\\` for a backslash, and `\xff` for each byte that is not UTF-8. So no two names look
/// alike, and the bytes can be had back. (JSON's own escapes come on top.)
pub(crate) fn for_json(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\"));
        push_invalid(&mut text, chunk.invalid());
    }
    text
}

/// How many random digits lockfence clients put behind their name.
const DIGITS: usize = 32;

/// An owner for people: the name that it gave itself, without the random digits behind it. Of other clients' owners as
/// much as [`credential`] shows.
pub(crate) fn owner(owner: &[u8]) -> String {
    match named(owner) {
        Some(name) => for_people(name),
        None => credential(owner),
    }
}

/// Whoever has a lock, as far as that is known.
pub(crate) fn holder(by: Option<&Owner>) -> String {
    by.map_or_else(|| "somebody else".to_owned(), |by| owner(by.bytes()))
}

/// An owner, enough of it to be recognized and too little to be used: it is the credential for RELEASE. Behind a name the
/// first digits; of what is too long to be a mere name half of it, and 24 bytes at the most.
pub(crate) fn credential(owner: &[u8]) -> String {
    const DIGITS_SHOWN: usize = 8;
    const NAME_MAX: usize = 16;
    const SHOWN_MAX: usize = 24;
    let shown = match named(owner) {
        Some(name) => name.len().saturating_add(1).saturating_add(DIGITS_SHOWN),
        None if owner.len() <= NAME_MAX => return for_people(owner),
        None => SHOWN_MAX.min(owner.len() / 2),
    };
    format!("{}…", for_people(owner.get(..shown).unwrap_or(owner)))
}

/// The name in an owner that a lockfence client made.
fn named(owner: &[u8]) -> Option<&[u8]> {
    let (name, digits) = owner.split_at_checked(owner.len().checked_sub(DIGITS)?)?;
    let name = name.strip_suffix(b"/").filter(|name| !name.is_empty())?;
    digits.iter().all(u8::is_ascii_hexdigit).then_some(name)
}

fn push_invalid(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        text.push_str(&format!("\\x{byte:02x}"));
    }
}

#[cfg(test)]
mod tests {
    use super::{credential, for_json, for_people, owner};

    #[test]
    fn people_read_text_and_nothing_else() {
        for (name, shown) in [
            ("deploy:{42}", "deploy:{42}"),
            ("größe \"'日本", "größe \"'日本"),
            ("a\n\r\t\0b", r"a\n\r\t\0b"),
            ("\x1b[2J\x07\x7f", r"\u{1b}[2J\u{7}\u{7f}"),
            ("\u{9b}31m", r"\u{9b}31m"),
            ("a\u{202e}b\u{200b}", r"a\u{202e}b\u{200b}"),
            (r"a\n", r"a\\n"),
        ] {
            assert_eq!(for_people(name.as_bytes()), shown);
        }
        assert_eq!(for_people(b"a\xff\xc3(\xe2\x82"), r"a\xff\xc3(\xe2\x82");
        assert_eq!(for_people(b""), "");
    }

    #[test]
    fn json_keeps_text_and_marks_other_bytes() {
        assert_eq!(for_json("größe\n\x1b".as_bytes()), "größe\n\x1b");
        assert_eq!(for_json(b"a\xff\\xff"), r"a\xff\\xff");
        assert_eq!(for_json(b"\xed\xa0\x80"), r"\xed\xa0\x80");
    }

    #[test]
    fn owners_are_shown_by_name() {
        let digits = "0123456789abcdef0123456789abcdef";
        assert_eq!(owner(format!("build7:4312/{digits}").as_bytes()), "build7:4312");
        assert_eq!(owner(format!("a/b/{digits}").as_bytes()), "a/b");
        assert_eq!(owner(digits.as_bytes()), "0123456789abcdef…");
        assert_eq!(owner(b"alice"), "alice");
        assert_eq!(owner(b"alice/1"), "alice/1");
        assert_eq!(owner(format!("/{digits}").as_bytes()), "/0123456789abcde…");
        assert_eq!(owner(b"7QmJgGXRr1yJ3cVn0hdUfw"), "7QmJgGXRr1y…");
        assert_eq!(owner(b"550e8400-e29b-41d4-a716-446655440000"), "550e8400-e29b-41d4…");
        assert_eq!(owner(&[b'x'; 500]), format!("{}…", "x".repeat(24)));
        assert_eq!(credential(format!("build7:4312/{digits}").as_bytes()), "build7:4312/01234567…");
        assert_eq!(credential(b"alice"), "alice");
        assert_eq!(owner(b"\x1b/0123456789abcdef0123456789abcdef"), r"\u{1b}");
    }
}
