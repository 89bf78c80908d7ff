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

/// An owner for people: the name that it gave itself, without the random digits behind it. Of other clients' owners as
/// much as [`credential`] shows.
pub(crate) fn owner(owner: &Owner) -> String {
    owner.name().map_or_else(|| credential(owner), for_people)
}

/// Whoever has a lock, as far as that is known.
pub(crate) fn holder(by: Option<&Owner>) -> String {
    by.map_or_else(|| "somebody else".to_owned(), owner)
}

/// An owner, as much of it as may be shown: it is the credential for RELEASE.
pub(crate) fn credential(owner: &Owner) -> String {
    format!("{}…", for_people(owner.beginning()))
}

fn push_invalid(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        text.push_str(&format!("\\x{byte:02x}"));
    }
}

#[cfg(test)]
mod tests {
    use super::{Owner, credential, for_json, for_people, owner};

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
        // what it is, whom people see, and as much of it as is shown
        for (is, who, some) in [
            (format!("build7:4312/{digits}"), "build7:4312", "build7:4312/01234567…"),
            (format!("\x1b/{digits}"), r"\u{1b}", r"\u{1b}/01234567…"),
            ("alice".to_owned(), "al…", "al…"),
            ("\x1b[2J and more".to_owned(), r"\u{1b}[2J a…", r"\u{1b}[2J a…"),
        ] {
            let is = Owner::from(is.into_bytes());
            assert_eq!((owner(&is).as_str(), credential(&is).as_str()), (who, some));
        }
    }
}
