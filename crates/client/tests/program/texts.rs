//! Help, completions, manual and documents: all there, and agreed with each other.

use std::fs;
use std::process::Command;

use crate::common::*;

const COMMANDS: [&str; 7] = ["run", "ls", "info", "break", "watch", "completions", "man"];
const DOCUMENT: &str = include_str!("../../../../docs/PROGRAM.md");

fn said(args: &[&str]) -> String {
    let ended = end(Command::new(PROGRAM).args(args));
    ended.assert_code(0);
    assert_eq!(ended.err, "");
    ended.out
}

/// The lines of the table of exit codes: code and meaning.
fn codes(help: &str) -> Vec<(String, String)> {
    let table = help.split_once("Exit codes:\n").expect("a table").1;
    let mut rows: Vec<(String, String)> = Vec::new();
    for line in table.lines().take_while(|line| line.starts_with("  ")) {
        let (code, meaning) = line.split_at(11);
        match code.trim() {
            "" => rows.last_mut().unwrap().1.push_str(&format!(" {}", meaning.trim())),
            code => rows.push((code.to_owned(), meaning.trim().to_owned())),
        }
    }
    rows
}

#[test]
fn help_explains_each_command() {
    let help = said(&["--help"]);
    assert!(help.contains("Examples:") && help.contains("Exit codes:"));
    for command in COMMANDS {
        assert!(help.contains(&format!("\n  {command} ")), "{command} in {help}");
        let long = said(&[command, "--help"]);
        assert!(long.contains("Examples:"), "{command}");
        assert!(said(&[command, "-h"]).len() < long.len());
        assert!(long.lines().chain(help.lines()).all(|line| line.chars().count() <= 100));
    }
    assert!(said(&["--version"]).starts_with("lockfence "));
    end(&mut Command::new(PROGRAM)).assert_code(125).assert_says("Usage:");
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = said(&["completions", shell]);
        for word in COMMANDS.iter().chain(&["conflict-exit-code", "node-timeout"]) {
            assert!(script.contains(word), "{word} for {shell}");
        }
        assert!(!script.contains("become-command"));
    }
    let mut check = Command::new("bash");
    check.arg("-c").arg(format!("source <({PROGRAM} completions bash) && complete -p lockfence"));
    assert!(end(&mut check).assert_code(0).out.contains("lockfence"));
}

#[test]
fn the_manual_has_a_page_for_every_command() {
    let page = said(&["man"]);
    assert!(page.starts_with(".ie") || page.contains(".TH"), "{page}");
    for command in COMMANDS {
        assert!(page.contains(&format!("lockfence\\-{command}(1)")), "{command} in {page}");
        let own = said(&["man", command]);
        assert!(own.contains(".TH") && own.contains(command) && own.contains("Examples:"), "{own}");
    }
    assert!(page.contains("Exit codes:"));
    end(Command::new(PROGRAM).args(["man", "nonsense"])).assert_code(125).assert_says("nonsense");
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man1");
    assert_eq!(said(&["man", "--dir", pages.to_str().unwrap()]), "");
    let mut names: Vec<String> =
        fs::read_dir(&pages).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut expected: Vec<String> = COMMANDS.iter().map(|name| format!("lockfence-{name}.1")).collect();
    expected.push("lockfence.1".to_owned());
    expected.sort();
    assert_eq!(names, expected);
}

/// Where the command begins must be seen.
#[test]
fn the_usage_of_run_shows_the_dashes() {
    for args in [&["run", "--help"][..], &["run", "-h"], &["man", "run"]] {
        let text = said(args).replace("\\-", "-");
        assert!(text.contains("[OPTIONS] --lock <NAME> -- <COMMAND> [ARGUMENT]..."), "{text}");
    }
}

/// One table of exit codes: in the help of the program and of `run`, in the manual, and in the document.
#[test]
fn exit_codes_are_the_same_everywhere() {
    let table = codes(&said(&["--help"]));
    assert!(table.len() >= 9, "{table:?}");
    assert_eq!(codes(&said(&["run", "--help"])), table);
    let page = said(&["man", "run"]);
    for (code, meaning) in &table {
        assert!(page.contains(code), "{code} in the manual");
        let row = format!("| {code} | {meaning} |");
        assert!(DOCUMENT.contains(&row), "{row:?} in docs/PROGRAM.md");
    }
}

/// The document names every option, and no other.
#[test]
fn options_are_documented() {
    for command in ["run", "ls", "info", "break", "watch"] {
        let help = said(&[command, "--help"]);
        let options = help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2);
        for option in options.filter(|word| word.chars().skip(2).all(|c| c.is_ascii_lowercase() || c == '-'))
        {
            assert!(DOCUMENT.contains(&format!("`{option}")) || option == "--help", "{option} of {command}");
        }
    }
}
