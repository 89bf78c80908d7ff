//! The parser, by the table "what goes wrong, and the answer" of the contract: what is refused, with which words.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "tests"
)]

use lockfence_core::clock::Ttl;
use lockfence_core::error::Refusal;
use lockfence_core::ids::{Mode, Owner, Token};
use lockfence_core::limits::{HOLDERS_MAX, INFO_COUNT_DEFAULT, OWNER_BYTES_MAX, TOKEN_MAX, TTL_MS_MAX};
use lockfence_core::request::{Acquire, Advance, Break, Extend, Info, Release, Wait, split_fenced};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, RngSeed};
use proptest::{option, prop_assert, prop_assert_eq, proptest};

type Words<'a> = &'a [&'a [u8]];

/// A command that is parsed for its refusals alone.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Command {
    Acquire,
    Release,
    Extend,
    Info,
    Break,
    Advance,
    Write,
    Call,
    Check,
}

impl Command {
    fn parse(self, words: Words<'_>) -> Result<(), Refusal> {
        match self {
            Self::Acquire => Acquire::parse(words, TTL_MS_MAX).map(drop),
            Self::Release => Release::parse(words).map(drop),
            Self::Extend => Extend::parse(words, TTL_MS_MAX).map(drop),
            Self::Info => Info::parse(words).map(drop),
            Self::Break => Break::parse(words).map(drop),
            Self::Advance => Advance::parse(words).map(drop),
            Self::Write => split_fenced("fence.write", words, 2).map(drop),
            Self::Call => split_fenced("fence.call", words, 1).map(drop),
            Self::Check => split_fenced("fence.check", words, 0).map(drop),
        }
    }

    /// Parses words that are parted by blanks.
    fn parse_text(self, text: &str) -> Result<(), Refusal> {
        let words: Vec<&[u8]> = text.split_whitespace().map(str::as_bytes).collect();
        self.parse(&words)
    }
}

fn line(refused: Result<(), Refusal>) -> Option<String> {
    refused.err().map(|refusal| refusal.line(b"lock"))
}

#[test]
fn what_is_refused_and_how() {
    use Command::{Acquire, Advance, Break, Call, Check, Extend, Info, Release, Write};
    let table = [
        (Acquire, "", "ERR wrong number of arguments for 'lock.acquire' command"),
        (Acquire, "me", "ERR wrong number of arguments for 'lock.acquire' command"),
        (Acquire, "me 100 FOREVER", "ERR unknown option \"FOREVER\""),
        (Acquire, "me 100 WAIT 5 EX", "ERR unknown option \"EX\""),
        (Acquire, "me 100 5", "ERR unknown option \"5\""),
        (Acquire, "me 100 WAIT", "ERR option WAIT needs a value"),
        (Acquire, "me 100 SHARED LIMIT", "ERR option LIMIT needs a value"),
        (Acquire, "me 100 WITHINFO MINTOKEN", "ERR option MINTOKEN needs a value"),
        (Acquire, "me 100 WAIT 5 WAIT 5", "ERR option WAIT is given twice"),
        (Acquire, "me 100 SHARED WAIT 5 SHARED", "ERR option SHARED is given twice"),
        (Acquire, "me 100 LIMIT 2 LIMIT 3", "ERR option LIMIT is given twice"),
        (Acquire, "me 100 MINTOKEN 2 MINTOKEN 2", "ERR option MINTOKEN is given twice"),
        (Acquire, "me 100 WITHINFO withinfo", "ERR option WITHINFO is given twice"),
        (Acquire, "me 100 SHARED LIMIT 2", "ERR options SHARED and LIMIT exclude each other"),
        (Acquire, "me 100 LIMIT 2 WAIT 5 SHARED", "ERR options SHARED and LIMIT exclude each other"),
        (Release, "", "ERR wrong number of arguments for 'lock.release' command"),
        (Release, "me too", "ERR wrong number of arguments for 'lock.release' command"),
        (Extend, "me", "ERR wrong number of arguments for 'lock.extend' command"),
        (Extend, "me 100 WAIT 5", "ERR unknown option \"WAIT\""),
        (Extend, "me 100 MINTOKEN", "ERR option MINTOKEN needs a value"),
        (Extend, "me 100 MINTOKEN 2 MINTOKEN 2", "ERR option MINTOKEN is given twice"),
        (Extend, "me 100 MINTOKEN 2 more", "ERR unknown option \"more\""),
        (Info, "LESS", "ERR unknown option \"LESS\""),
        (Info, "FULL FULL", "ERR option FULL is given twice"),
        (Info, "FULL LIMIT", "ERR unknown option \"LIMIT\""),
        (Info, "FULL COUNT", "ERR option COUNT needs a value"),
        (Info, "FULL COUNT 2 COUNT 2", "ERR option COUNT is given twice"),
        (Info, "FULL COUNT 2 more", "ERR unknown option \"more\""),
        (Info, "COUNT 2", "ERR option COUNT needs FULL before it"),
        (Break, "5", "ERR unknown option \"5\""),
        (Break, "MAXTOKEN", "ERR option MAXTOKEN needs a value"),
        (Break, "MAXTOKEN 5 MAXTOKEN 5", "ERR option MAXTOKEN is given twice"),
        (Break, "MAXTOKEN 5 more", "ERR unknown option \"more\""),
        (Advance, "", "ERR wrong number of arguments for 'fence.advance' command"),
        (Advance, "7 EX 5", "ERR unknown option \"EX\""),
        (Advance, "7 PX", "ERR option PX needs a value"),
        (Advance, "7 PX 5 PX 5", "ERR option PX is given twice"),
        (Advance, "7 PX 5 NX", "ERR unknown option \"NX\""),
        (Write, "7 key", "ERR wrong number of arguments for 'fence.write' command"),
        (Call, "7", "ERR wrong number of arguments for 'fence.call' command"),
        (Check, "", "ERR wrong number of arguments for 'fence.check' command"),
    ];
    for (command, words, refusal) in table {
        assert_eq!(line(command.parse_text(words)).as_deref(), Some(refusal), "{command:?} {words}");
    }
}

#[test]
fn an_option_that_is_no_text_is_named_as_far_as_it_can_be() {
    let long = [b'x'; 65];
    let words: [&[u8]; 3] = [b"me", b"100", &long];
    let named = format!("ERR unknown option \"{}\"...", "x".repeat(64));
    assert_eq!(line(Command::Acquire.parse(&words)), Some(named));
    let words: [&[u8]; 3] = [b"me", b"100", b"WA\r\nIT\xff"];
    assert_eq!(line(Command::Acquire.parse(&words)).unwrap(), r#"ERR unknown option "WA\r\nIT\xff""#);
}

/// Each number of each command: the words before and after it, its name in errors, its range.
const NUMBERS: [(Command, &str, &str, &str, u64, u64); 13] = [
    (Command::Acquire, "me", "", "ttl-ms", 1, TTL_MS_MAX),
    (Command::Acquire, "me 100 WAIT", "", "WAIT timeout-ms", 0, TTL_MS_MAX),
    (Command::Acquire, "me 100 LIMIT", "", "LIMIT", 1, HOLDERS_MAX as u64),
    (Command::Acquire, "me 100 MINTOKEN", "", "MINTOKEN", 1, TOKEN_MAX),
    (Command::Extend, "me", "", "ttl-ms", 1, TTL_MS_MAX),
    (Command::Extend, "me 100 MINTOKEN", "", "MINTOKEN", 1, TOKEN_MAX),
    (Command::Info, "FULL COUNT", "", "COUNT", 0, u32::MAX as u64),
    (Command::Break, "MAXTOKEN", "", "MAXTOKEN", 1, TOKEN_MAX),
    (Command::Advance, "", "", "token", 1, TOKEN_MAX),
    (Command::Advance, "7 PX", "", "PX ms", 1, TTL_MS_MAX),
    (Command::Write, "", "key value", "token", 1, TOKEN_MAX),
    (Command::Call, "", "INCR key", "token", 1, TOKEN_MAX),
    (Command::Check, "", "", "token", 1, TOKEN_MAX),
];

fn with_number(before: &'static str, number: &[u8], after: &'static str) -> Vec<Vec<u8>> {
    let words = |text: &'static str| text.split_whitespace().map(|word| word.as_bytes().to_vec());
    words(before).chain([number.to_vec()]).chain(words(after)).collect()
}

fn refusal_of(command: Command, words: &[Vec<u8>]) -> Option<String> {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    line(command.parse(&words))
}

#[test]
fn only_plain_decimal_integers_are_numbers() {
    let malformed: [&[u8]; 17] = [
        b"",
        b"0.5",
        b"1e3",
        b" 100",
        b"100 ",
        b"+5",
        b"-1",
        b"-0",
        b"0x64",
        b"007",
        b"00",
        b"1_000",
        b"1,000",
        b"1\0",
        b"\n1",
        b"\xd9\xa1",
        b"18446744073709551616",
    ];
    for (command, before, after, what, min, max) in NUMBERS {
        let refusal = format!("ERR {what} must be a decimal integer from {min} to {max}");
        for word in malformed {
            let words = with_number(before, word, after);
            assert_eq!(refusal_of(command, &words), Some(refusal.clone()), "{command:?} {words:?}");
        }
    }
}

#[test]
fn numbers_are_accepted_up_to_their_bounds_and_no_further() {
    let edges = [0, 1, 9_223_372_036_854_775_807, 9_223_372_036_854_775_808, u64::MAX];
    for (command, before, after, what, min, max) in NUMBERS {
        let refusal = format!("ERR {what} must be a decimal integer from {min} to {max}");
        for number in [min.saturating_sub(1), min, max - 1, max, max + 1].into_iter().chain(edges) {
            let words = with_number(before, number.to_string().as_bytes(), after);
            let expected = (number < min || number > max).then(|| refusal.clone());
            assert_eq!(refusal_of(command, &words), expected, "{command:?} {number}");
        }
    }
}

#[test]
fn a_server_may_allow_shorter_leases_only() {
    let refused = |text: &str| {
        let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
        assert_eq!(
            line(Acquire::parse(&words, 1_000).map(drop)),
            line(Extend::parse(&words, 1_000).map(drop))
        );
        line(Acquire::parse(&words, 1_000).map(drop))
    };
    assert_eq!(refused("me 1000"), None);
    assert_eq!(refused("me 1001").unwrap(), "ERR ttl-ms must be a decimal integer from 1 to 1000");
}

#[test]
fn owners_have_1_to_512_bytes() {
    let refusal = format!("ERR owner must be 1 to {OWNER_BYTES_MAX} bytes");
    for (length, allowed) in [(0, false), (1, true), (512, true), (513, false), (65_536, false)] {
        let owner = vec![b'\0'; length];
        let expected = (!allowed).then(|| refusal.clone());
        assert_eq!(line(Command::Acquire.parse(&[&owner, b"100"])), expected, "{length}");
        assert_eq!(line(Command::Extend.parse(&[&owner, b"100"])), expected, "{length}");
        assert_eq!(line(Command::Release.parse(&[&owner])), expected, "{length}");
    }
}

#[test]
fn names_of_options_are_read_whatever_their_case() {
    let words: Vec<&[u8]> =
        b"me 100 wait 5 Limit 3 mInToKeN 9 withInfo".split(|byte| *byte == b' ').collect();
    let request = Acquire::parse(&words, TTL_MS_MAX).unwrap();
    assert_eq!(request.wait, Some(Wait::Ms(5)));
    assert_eq!(request.mode, Mode::Limit(3));
    assert_eq!(request.min_token, Token::new(9));
    assert!(request.with_info);
    assert_eq!(Acquire::parse(&[b"me", b"1", b"shared"], TTL_MS_MAX).unwrap().mode, Mode::Shared);
    assert_eq!(Acquire::parse(&[b"me", b"1", b"Wait", b"0"], TTL_MS_MAX).unwrap().wait, Some(Wait::Forever));
    assert_eq!(
        Extend::parse(&[b"me", b"1", b"minToken", b"9"], TTL_MS_MAX).unwrap().min_token,
        Token::new(9)
    );
    assert_eq!(Advance::parse(&[b"7", b"px", b"9"]).unwrap().px_ms, Some(9));
    assert_eq!(Break::parse(&[b"maxToken", b"9"]).unwrap().max_token, Token::new(9));
    assert_eq!(Info::parse(&[]).unwrap().full, None);
    assert_eq!(Info::parse(&[b"full"]).unwrap().full, Some(INFO_COUNT_DEFAULT));
    assert_eq!(Info::parse(&[b"Full", b"count", b"3"]).unwrap().full, Some(3));
    assert_eq!(Info::parse(&[b"FULL", b"COUNT", b"0"]).unwrap().full, Some(u64::MAX));
}

#[test]
fn what_follows_a_token_is_left_as_it_is() {
    let words: [&[u8]; 4] = [b"7", b"SET", b"key\0\r\n", b""];
    let (token, rest) = split_fenced("fence.call", &words, 1).unwrap();
    assert_eq!((token.get(), rest), (7, &words[1..]));
}

fn owner() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..=OWNER_BYTES_MAX)
}

fn ttl() -> impl Strategy<Value = Ttl> {
    (1..=TTL_MS_MAX).prop_map(|ms| Ttl::from_ms(ms).unwrap())
}

fn token() -> impl Strategy<Value = Token> {
    (1..=TOKEN_MAX).prop_map(|number| Token::new(number).unwrap())
}

fn wait() -> impl Strategy<Value = Wait> {
    prop_oneof![Just(Wait::Forever), (1..=TTL_MS_MAX).prop_map(Wait::Ms)]
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), (1..=HOLDERS_MAX).prop_map(Mode::Limit)]
}

/// The words after the command and the lock, as the server passes them.
fn after_the_lock(words: &[Vec<u8>]) -> Vec<&[u8]> {
    words.iter().skip(2).map(Vec::as_slice).collect()
}

proptest! {
    #![proptest_config(Config {
        cases: 100, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Config::default()
    })]

    #[test]
    fn what_is_written_is_read(
        name in owner(), ttl in ttl(), wait in option::of(wait()), mode in mode(),
        min_token in option::of(token()), with_info in any::<bool>(),
    ) {
        let owner = Owner::new(&name).unwrap();
        let acquire = Acquire { owner, ttl, wait, mode, min_token, with_info };
        let words = acquire.words(b"lock");
        prop_assert_eq!(&words[..2], &[b"LOCK.ACQUIRE".to_vec(), b"lock".to_vec()]);
        prop_assert_eq!(Acquire::parse(&after_the_lock(&words), TTL_MS_MAX), Ok(acquire));

        let extend = Extend { owner, ttl, min_token };
        let words = extend.words(b"lock");
        prop_assert_eq!(Extend::parse(&after_the_lock(&words), TTL_MS_MAX), Ok(extend));

        let release = Release { owner };
        let words = release.words(b"lock");
        prop_assert_eq!(Release::parse(&after_the_lock(&words)), Ok(release));

        let order = Break { max_token: min_token };
        let words = order.words(b"lock");
        prop_assert_eq!(Break::parse(&after_the_lock(&words)), Ok(order));
    }

    #[test]
    fn no_words_are_too_much_for_the_parser(words in vec(vec(any::<u8>(), 0..8), 0..6)) {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let commands = [
            Command::Acquire, Command::Release, Command::Extend, Command::Info,
            Command::Break, Command::Advance, Command::Write, Command::Call, Command::Check,
        ];
        for command in commands {
            if let Some(line) = line(command.parse(&words)) {
                prop_assert!(!line.contains(['\r', '\n']), "an error is one line: {line:?}");
            }
        }
    }
}
