//! The README against real servers: its redis-cli sessions, its shell example, its settings, and how to load the module.
//! And the other pages that a newcomer reads: no command stands there that is not run, or listed below with a reason.
//!
//! A ```console block is a session of several people, in the order of the page: `alice> COMMAND` with the reply below
//! it, as redis-cli prints it. A command without a reply waits; `alice< …` is the reply when it arrives. A ```sh block
//! runs as it stands; what it prints stands there as `# => …`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lockfence_testkit::{Conn, Reply, Server, ServerKind, cmd, key_slot, redis_cli, server_tests};

const README: &str = include_str!("../README.md");
const PAGES: [(&str, &str); 4] = [
    ("README.md", README),
    ("CONTRIBUTING.md", include_str!("../CONTRIBUTING.md")),
    ("crates/client/README.md", include_str!("../crates/client/README.md")),
    ("docs/clients/README.md", include_str!("../docs/clients/README.md")),
];
/// Where the pages put the module.
const INSTALLED: &str = "/usr/lib/redis/modules/liblockfence.so";

const BUILDS: &str = "builds";
const INSTALLS: &str = "installs";
const IN_CLIENT: &str = "run by crates/client/tests/live/readme.rs, which has the program and the library";
const IN_CLIENTS: &str = "needs what is fetched; tests/clients.rs runs the programs";
/// The commands of the pages that are not run here, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("make run", "builds first; then it is scripts/run, which is run"),
    ("make test", "runs this"),
    ("make lint", "the check beside the tests"),
    ("make build", BUILDS),
    ("cargo build --release", BUILDS),
    ("make install", INSTALLS),
    ("cargo install --path crates/client --features cli", INSTALLS),
    ("make bench-quick", "takes minutes"),
    ("scripts/setup build", "installs what is missing; see tests/setup.rs"),
    ("export LOCKFENCE_NODES=redis://10.0.0.1:6379", IN_CLIENT),
    ("lockfence run --lock deploy --wait 5m -- ./deploy.sh", IN_CLIENT),
    ("lockfence ls", IN_CLIENT),
    ("lockfence run", IN_CLIENT),
    ("lockfence help", "run by crates/client/tests/program"),
    ("lockfence break deploy", IN_CLIENT),
    ("redis-cli help LOCK.ACQUIRE", "run by tests/routing.rs"),
    ("make clients", IN_CLIENTS),
    ("export REDIS_PORT=7379", IN_CLIENTS),
    ("PYTHONPATH=target/clients/python python3 docs/clients/redis_py.py", IN_CLIENTS),
    ("cp docs/clients/*.mjs target/clients/node/", IN_CLIENTS),
    ("node target/clients/node/node_redis.mjs", IN_CLIENTS),
    ("node target/clients/node/ioredis.mjs", IN_CLIENTS),
];
/// Lines that begin so are run by another test: `IN_CLIENT`.
const USERS: &str = "ACL SETUSER ";
const SOON: Duration = Duration::from_secs(20);
/// Numbers of so many digits are tokens: those of a real server stand in their place.
const TOKEN_DIGITS: usize = 16;

server_tests! {
    /// Every session in the README gives the replies that the README shows, but for tokens and times.
    fn sessions_are_as_shown(kind: ServerKind) {
        let server = Server::start(kind);
        let mut session = Session { server: &server, people: BTreeMap::new(), tokens: BTreeMap::new(), waiting: 0 };
        let mut steps = 0;
        for step in blocks("console").iter().flat_map(|block| steps_of(block)) {
            session.take(&step);
            steps += 1;
        }
        assert!(steps > 40, "only {steps} steps found: is the README still written in sessions?");
        assert_eq!(session.waiting, 0, "a command's reply is never shown");
        assert!(session.tokens.len() > 5, "tokens are not recognised: {:?}", session.tokens);
    }

    /// The shell example runs as it stands and prints what its comments say.
    fn the_shell_example_runs(kind: ServerKind) {
        let server = Server::start(kind);
        let cli = redis_cli().expect("redis-cli");
        for block in blocks("sh") {
            let setup = format!(r#"redis-cli() {{ "{}" -p {} "$@"; }}"#, cli.display(), server.port());
            let script = format!("set -euo pipefail\n{setup}\n{}", block.join("\n"));
            let output = Command::new("bash").arg("-c").arg(&script).output().unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{script}\n{printed}\n{}", String::from_utf8_lossy(&output.stderr));
            let expected: Vec<&str> = block.iter().filter_map(|line| line.strip_prefix("# => ")).collect();
            assert!(!expected.is_empty());
            assert_eq!(printed.lines().collect::<Vec<_>>(), expected, "{script}");
        }
    }

    /// The table of settings: all of them, with their defaults and ranges.
    fn settings_are_as_listed(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let rows = settings();
        let reply = cmd!(conn, "CONFIG", "GET", "lockfence.*");
        let real: BTreeMap<String, String> =
            reply.fields().into_iter().map(|(name, value)| (name.text(), value.text())).collect();
        let listed: BTreeMap<String, String> =
            rows.iter().map(|row| (row.name.clone(), row.default.clone())).collect();
        assert_eq!(listed, real);
        for row in rows.iter().filter(|row| row.name != "lockfence.tokens") {
            let (min, max) = row.range.split_once(" … ").expect("a range");
            let beyond = max.parse::<u64>().unwrap() + 1;
            cmd!(conn, "CONFIG", "SET", row.name, min).ok();
            cmd!(conn, "CONFIG", "SET", row.name, max).ok();
            assert!(cmd!(conn, "CONFIG", "SET", row.name, beyond).is_err(), "{} takes {beyond}", row.name);
            let below = min.parse::<i64>().unwrap() - 1;
            assert!(cmd!(conn, "CONFIG", "SET", row.name, below).is_err(), "{} takes {below}", row.name);
        }
        assert!(cmd!(conn, "CONFIG", "SET", "lockfence.tokens", "dense").is_err(), "set at start only");
    }

    /// The module loads by the lines that are to be put into the server's settings.
    fn loads_as_shown(kind: ServerKind) {
        let module = module();
        let lines: BTreeSet<String> = commands().into_iter().map(|found| found.line).filter(|line| is_setting(line)).collect();
        assert!(lines.len() >= 3, "{lines:?}");
        for line in lines {
            let line = line.replace(INSTALLED, &module).replace('…', &module);
            let with = if line.starts_with("loadmodule ") { line.clone() } else { format!("loadmodule {module}\n{line}") };
            let server = Server::builder(kind).without_module().config_line(&with).start();
            let mut conn = server.connect();
            if let Some(value) = line.strip_suffix("quarantine-ms 30000").map(|_| "30000") {
                assert_eq!(cmd!(conn, "CONFIG", "GET", "lockfence.quarantine-ms").items()[1].text(), value, "{line}");
            } else {
                assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 1000).token() > 0, "{line}");
            }
        }
    }

    /// What `make run` shows once it has built the module.
    fn the_tour_runs(kind: ServerKind) {
        let mut tour = Command::new("scripts/run");
        tour.current_dir(ROOT).env("TOUR_ONLY", "1").env_remove("PORT");
        tour.env("LOCKFENCE_MODULE", module()).env("REDIS_SERVER", kind.path().unwrap());
        let output = tour.env("REDIS_CLI", redis_cli().unwrap()).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(printed.contains("(error) FENCED token "), "{printed}");
    }

    /// The commands of a server that stand within a sentence.
    fn commands_in_sentences_are_known(kind: ServerKind) {
        let server = Server::start(kind);
        let mut conn = server.connect();
        let lines: Vec<String> = commands().into_iter().map(|found| found.line).filter(|line| is_question(line)).collect();
        assert!(!lines.is_empty());
        for line in lines {
            let reply = conn.cmd(words_of(&line));
            assert!(!reply.is_err(), "{line}: {reply:?}");
        }
    }

    /// MODULE LOAD into a running server needs enable-module-command, given at its start; then the module works.
    fn loads_into_a_running_server(kind: ServerKind) {
        let module = module();
        let closed = Server::builder(kind).without_module().arg("enable-module-command", "no").start();
        let mut conn = closed.connect();
        assert!(cmd!(conn, "MODULE", "LOAD", module).is_err());
        assert!(cmd!(conn, "CONFIG", "SET", "enable-module-command", "local").is_err());
        let open = Server::builder(kind).without_module().arg("enable-module-command", "local").start();
        let mut conn = open.connect();
        cmd!(conn, "MODULE", "LOAD", module).ok();
        assert!(cmd!(conn, "LOCK.ACQUIRE", "lock", "me", 1000).token() > 0);
    }
}

/// Every command of the pages is run by a test, or there is a reason why not.
#[test]
fn no_command_is_left_out() {
    let found = commands();
    let known = |line: &str| is_setting(line) || is_question(line) || line == HELP || line.starts_with(USERS);
    for Found { page, line } in &found {
        let listed = NOT_RUN.iter().any(|(command, _)| command == line);
        assert!(known(line) || listed, "{page}: no test runs {line:?}, and NOT_RUN does not say why");
        assert!(!(known(line) && listed), "{line:?} is run, and listed as not run");
    }
    for (command, _) in NOT_RUN {
        assert!(found.iter().any(|found| found.line == *command), "{command:?} stands on no page any more");
    }
    for (page, text) in PAGES {
        for (language, block) in fenced(text) {
            let run = match language {
                "console" | "sh" => page == "README.md",
                language => matches!(language, "text" | "toml") || language.starts_with("rust"),
            };
            assert!(run, "{page}: nothing runs this ```{language} block: {block:#?}");
        }
    }
}

/// Whoever copies an example can take it to a cluster: lock and data share a slot.
#[test]
fn examples_suit_a_cluster() {
    let blocks = blocks("console");
    let commands = blocks.iter().flat_map(|block| steps_of(block)).filter_map(|step| step.command);
    let mut pairs = 0;
    for command in commands {
        let words = words_of(&command);
        let data = match words[0].as_str() {
            "FENCE.WRITE" => &words[3],
            "FENCE.CALL" => &words[4],
            _ => continue,
        };
        assert_eq!(key_slot(words[1].as_bytes()), key_slot(data.as_bytes()), "{command}");
        pairs += 1;
    }
    assert!(pairs > 5);
}

/// What the texts link to is there: a file, and a heading in it.
#[test]
fn links_lead_somewhere() {
    let listed = Command::new("git").args(["ls-files", "-z", "*.md"]).current_dir(ROOT).output();
    // Not a checkout: the pages at least.
    let listed =
        listed.ok().filter(|output| output.status.success()).map(|output| output.stdout).unwrap_or_default();
    let mut files: BTreeSet<String> = PAGES.iter().map(|(page, _)| (*page).to_owned()).collect();
    files.extend(String::from_utf8(listed).unwrap().split_terminator('\0').map(str::to_owned));
    let mut links = 0;
    for file in files {
        let path = Path::new(ROOT).join(&file);
        let text = fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            links += 1;
            let (to, heading) = link.split_once('#').unwrap_or((link, ""));
            let to = if to.is_empty() { path.clone() } else { path.parent().unwrap().join(to) };
            assert!(to.exists(), "{file} links to {link}");
            if !heading.is_empty() {
                let text = fs::read_to_string(&to).unwrap();
                let headings = text.lines().filter(|line| line.starts_with('#')).map(anchor);
                assert!(headings.into_iter().any(|other| other == heading), "{file} links to {link}");
            }
        }
    }
    assert!(links > 20, "{links} links");
}

/// What a heading is called in links.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    text.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
}

/// `make help` names every target that the pages name.
#[test]
fn make_has_these_targets() {
    let output =
        Command::new("make").args(["--no-print-directory", "help"]).current_dir(ROOT).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    let listed: Vec<&str> = printed.lines().filter_map(|line| line.trim().split("  ").next()).collect();
    let found = commands();
    let targets: Vec<&str> =
        found.iter().map(|found| found.line.as_str()).filter(|line| line.starts_with("make ")).collect();
    assert!(targets.contains(&HELP));
    for target in targets {
        assert!(target == HELP || listed.contains(&target), "{target:?} is not in {listed:?}");
    }
}

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const HELP: &str = "make help";

/// A line of a server's settings file.
fn is_setting(line: &str) -> bool {
    ["loadmodule ", "lockfence."].iter().any(|word| line.starts_with(word))
}

/// A command for a server with the module, from within a sentence.
fn is_question(line: &str) -> bool {
    line.starts_with("SCAN ")
}

/// A command on one of the pages, outside sessions and scripts.
struct Found {
    page: &'static str,
    line: String,
}

/// Each line of the pages' ```text blocks, and what within sentences begins like a command.
fn commands() -> Vec<Found> {
    const BEGINNINGS: [&str; 12] = [
        "make ",
        "cargo ",
        "git ",
        "node ",
        "python3 ",
        "npm ",
        "pip ",
        "redis-cli ",
        "redis-server ",
        "scripts/",
        "lockfence ",
        "sudo ",
    ];
    let is_command = |span: &str| {
        is_setting(span) && span.contains(' ')
            || is_question(span)
            || BEGINNINGS.iter().any(|word| span.starts_with(word))
    };
    let mut found = Vec::new();
    for (page, text) in PAGES {
        let mut add = |line: &str| found.push(Found { page, line: line.to_owned() });
        for (_, block) in fenced(text).iter().filter(|(language, _)| *language == "text") {
            let without_comment = |line: &'static str| line.split("  #").next().unwrap_or_default().trim();
            block.iter().map(|line| without_comment(line)).filter(|line| !line.is_empty()).for_each(&mut add);
        }
        let mut within = false;
        let is_prose = |line: &&str| {
            let is_edge = line.starts_with("```");
            within ^= is_edge;
            !within && !is_edge
        };
        let prose: Vec<&str> = text.lines().filter(is_prose).collect();
        prose.join("\n").split('`').skip(1).step_by(2).filter(|span| is_command(span)).for_each(add);
    }
    found
}

/// The fenced blocks of a page: each one's language and lines.
fn fenced(text: &'static str) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else { continue };
        found.push((language, lines.by_ref().take_while(|line| !line.starts_with("```")).collect()));
    }
    found
}

/// The lines of each fenced block of one language in the README.
fn blocks(language: &str) -> Vec<Vec<&'static str>> {
    let found: Vec<_> =
        fenced(README).into_iter().filter(|(of, _)| *of == language).map(|(_, lines)| lines).collect();
    assert!(!found.is_empty(), "the README has no ```{language} block");
    found
}

/// The path of the module under test.
fn module() -> String {
    lockfence_testkit::module().into_os_string().into_string().unwrap()
}

struct Setting {
    name: String,
    default: String,
    range: String,
}

fn settings() -> Vec<Setting> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells.get(1)?.strip_prefix("`lockfence.")?.strip_suffix('`')?;
        Some(Setting {
            name: format!("lockfence.{name}"),
            default: cells[2].to_owned(),
            range: cells[3].to_owned(),
        })
    };
    README.lines().filter_map(row).collect()
}

struct Step {
    who: String,
    /// `None`: the reply of an earlier command arrives.
    command: Option<String>,
    reply: Vec<String>,
}

fn steps_of(block: &[&str]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block {
        let split = |mark: &str| {
            let (who, rest) = line.split_once(mark)?;
            who.bytes().all(|byte| byte.is_ascii_lowercase()).then(|| (who.to_owned(), rest.to_owned()))
        };
        if let Some((who, command)) = split("> ") {
            steps.push(Step { who, command: Some(command), reply: Vec::new() });
        } else if let Some((who, reply)) = split("< ") {
            steps.push(Step { who, command: None, reply: vec![reply] });
        } else {
            steps.last_mut().expect("a block begins with a command").reply.push((*line).to_owned());
        }
    }
    steps
}

struct Session<'a> {
    server: &'a Server,
    people: BTreeMap<String, Conn>,
    /// The README's tokens, and the server's.
    tokens: BTreeMap<String, String>,
    waiting: u64,
}

impl Session<'_> {
    fn take(&mut self, step: &Step) {
        if let Some(command) = step.command.as_ref().filter(|command| command.starts_with("MODULE LOAD ")) {
            return self.load(command, &step.reply);
        }
        let server = self.server;
        let conn = self.people.entry(step.who.clone()).or_insert_with(|| server.connect());
        let Some(command) = &step.command else {
            let reply = conn.recv(SOON);
            self.waiting -= 1;
            self.compare(&step.who, &step.reply, &reply);
            return;
        };
        let words: Vec<String> = words_of(command).iter().map(|word| put(&self.tokens, word)).collect();
        if step.reply.is_empty() {
            conn.send(&words);
            self.waiting += 1;
            server.wait_blocked_clients(self.waiting);
            return;
        }
        let reply = conn.cmd(&words);
        self.compare(command, &step.reply, &reply);
    }

    /// A server has the module already: another one, which runs without it, loads it.
    fn load(&mut self, command: &str, reply: &[String]) {
        let bare = Server::builder(self.server.kind()).without_module().start();
        let loaded = bare.connect().cmd(words_of(&command.replace(INSTALLED, &module())));
        self.compare(command, reply, &loaded);
    }

    fn compare(&mut self, command: &str, shown: &[String], reply: &Reply) {
        let real = render(reply, "");
        let real: Vec<&str> = real.lines().collect();
        let both = || format!("{command}\nREADME:\n{}\nserver:\n{}", shown.join("\n"), real.join("\n"));
        assert_eq!(shown.len(), real.len(), "{}", both());
        let mut field = "";
        for (line, real) in shown.iter().zip(&real) {
            assert!(self.alike(line, real, field), "{line:?} is {real:?} in\n{}", both());
            field = real.rsplit_once(") ").map_or("", |(_, value)| value);
        }
    }

    /// Whether a line is as shown: equal, but for tokens, times, and what follows `…`.
    fn alike(&mut self, line: &str, real: &str, field: &str) -> bool {
        let known = put(&self.tokens, line);
        if known == real {
            return true;
        }
        if let Some(start) = line.strip_suffix('…') {
            return real.starts_with(start);
        }
        let number = |line: &str| {
            let (before, number) = line.rsplit_once("(integer) ")?;
            number.parse::<u64>().ok().map(|_| (before.to_owned(), number.to_owned()))
        };
        let (Some((before, shown)), Some((real_before, real))) = (number(line), number(real)) else {
            return false;
        };
        if before != real_before {
            return false;
        }
        if shown.len() == TOKEN_DIGITS && real.len() == TOKEN_DIGITS {
            let fresh =
                !self.tokens.contains_key(&shown) && !self.tokens.values().any(|token| *token == real);
            self.tokens.insert(shown, real);
            return fresh;
        }
        field.ends_with("-ms\"") || field == "\"client-id\""
    }
}

/// A command line as redis-cli splits it: at spaces, but for what stands in double quotes.
fn words_of(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in command.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// The text with the server's tokens in place of the README's.
fn put(tokens: &BTreeMap<String, String>, text: &str) -> String {
    let put_one = |text: String, (shown, real): (&String, &String)| text.replace(shown, real);
    tokens.iter().fold(text.to_owned(), put_one)
}

/// A reply as redis-cli prints it.
fn render(reply: &Reply, indent: &str) -> String {
    match reply {
        Reply::Nil => "(nil)".to_owned(),
        Reply::Int(number) => format!("(integer) {number}"),
        Reply::Simple(_) => reply.text(),
        Reply::Error(line) => format!("(error) {line}"),
        Reply::Bulk(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Reply::Array(items) => {
            let width = items.len().to_string().len();
            let deeper = format!("{indent}{}", " ".repeat(width + 2));
            let lines = items.iter().enumerate().map(|(index, item)| {
                let before = if index == 0 { "" } else { indent };
                format!("{before}{:>width$}) {}", index + 1, render(item, &deeper))
            });
            lines.collect::<Vec<_>>().join("\n")
        }
        other => panic!("no reply of the README is a {other:?}"),
    }
}
