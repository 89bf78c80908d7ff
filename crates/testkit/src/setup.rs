//! What a server is started with: its program, its settings, its module.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::server::{Server, StartFailure};
use crate::{ServerKind, ToArg, module, module_with_panics};

/// Describes a server; [`start`](Self::start) starts it.
///
/// Defaults: 127.0.0.1, a port and a folder of its own, nothing saved, the module loaded, DEBUG and MODULE
/// allowed, replication without its start delay.
#[derive(Clone, Debug)]
#[must_use = "a builder starts nothing by itself"]
pub struct ServerBuilder {
    pub(crate) kind: ServerKind,
    pub(crate) password: Option<String>,
    pub(crate) start_within: Duration,
    pub(crate) may_die: bool,
    unix: bool,
    module: Module,
    module_args: Vec<Vec<u8>>,
    lines: Vec<String>,
    env: Vec<(OsString, OsString)>,
    wrapper: Vec<OsString>,
    sentinel: bool,
}

#[derive(Clone, Debug)]
enum Module {
    None,
    Normal,
    WithPanics,
    At(PathBuf),
}

impl ServerBuilder {
    pub(crate) fn new(kind: ServerKind) -> Self {
        Self {
            kind,
            password: None,
            start_within: Duration::from_secs(30),
            may_die: false,
            unix: false,
            module: Module::Normal,
            module_args: Vec::new(),
            lines: Vec::new(),
            env: Vec::new(),
            wrapper: Vec::new(),
            sentinel: false,
        }
    }

    /// The same program in its other role.
    pub(crate) fn sentinel(kind: ServerKind) -> Self {
        Self { sentinel: true, ..Self::new(kind).without_module() }
    }

    /// A setting; the value is quoted as it has to be: `.arg("appendonly", "yes")`.
    pub fn arg(self, name: &str, value: impl ToArg) -> Self {
        let line = format!("{name} {}", quote(&value.to_arg()));
        self.config_line(&line)
    }

    /// A line of the settings file, as it is.
    pub fn config_line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Arguments for the module.
    pub fn module_args<A: ToArg>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.module_args.extend(args.into_iter().map(|arg| arg.to_arg()));
        self
    }

    /// Loads no module.
    pub fn without_module(mut self) -> Self {
        self.module = Module::None;
        self
    }

    /// Loads the build whose extra command panics, see [`module_with_panics`].
    pub fn with_panics(mut self) -> Self {
        self.module = Module::WithPanics;
        self
    }

    /// Loads the module of this file.
    pub fn module(mut self, path: impl Into<PathBuf>) -> Self {
        self.module = Module::At(path.into());
        self
    }

    /// Listens on a Unix socket too, see [`Server::connect_unix`].
    pub fn unix(mut self) -> Self {
        self.unix = true;
        self
    }

    /// Asks for a password, which [`Server::connect`] gives.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.arg("requirepass", password)
    }

    /// Sets a variable of the server's environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Starts the server through a program that becomes it, such as `valgrind`.
    pub fn wrapper<A: Into<OsString>>(mut self, words: impl IntoIterator<Item = A>) -> Self {
        self.wrapper = words.into_iter().map(Into::into).collect();
        self
    }

    /// How long the start may take (30 s).
    pub fn start_within(mut self, within: Duration) -> Self {
        self.start_within = within;
        self
    }

    /// The server may die by itself; without this its death fails the test.
    pub fn may_die(mut self) -> Self {
        self.may_die = true;
        self
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// When it does not, with its log.
    #[track_caller]
    pub fn start(self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err(failure) => panic!("{failure}"),
        }
    }

    /// Starts it and waits until it answers, or says why it did not.
    pub fn try_start(self) -> Result<Server, StartFailure> {
        Server::launch(self)
    }

    /// Asserts that it does not start, and returns why.
    #[track_caller]
    pub fn start_fails(self) -> StartFailure {
        match self.try_start() {
            Ok(server) => panic!("expected {} not to start, but it did:\n{}", server.kind(), server.log()),
            Err(failure) => failure,
        }
    }

    /// Writes the settings file into the server's folder.
    pub(crate) fn write_config(&self, dir: &Path, port: u16) {
        let path = dir.join("redis.conf");
        let text = self.config(dir, port).join("\n") + "\n";
        fs::write(&path, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }

    /// The command that starts it.
    pub(crate) fn command(&self, dir: &Path) -> Command {
        let program = self.kind.path().unwrap_or_else(|| {
            panic!("{} is not present: run scripts/servers, or ask kind.present() first", self.kind)
        });
        let mut words = self.wrapper.iter().cloned().chain([program.into_os_string()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg("redis.conf").envs(self.env.iter().cloned());
        if self.sentinel {
            command.arg("--sentinel");
        }
        let output = output_file(dir);
        let again =
            output.try_clone().unwrap_or_else(|error| panic!("cannot share the output file: {error}"));
        command.current_dir(dir).stdin(Stdio::null()).stdout(output).stderr(again);
        command
    }

    fn config(&self, dir: &Path, port: u16) -> Vec<String> {
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {port}"),
            format!("dir {}", quote(dir.as_os_str().as_encoded_bytes())),
            "logfile server.log".to_owned(),
            "loglevel notice".to_owned(),
            "daemonize no".to_owned(),
            "save \"\"".to_owned(),
            "repl-diskless-sync-delay 0".to_owned(),
        ];
        if self.kind != ServerKind::Redis62 {
            lines.push("enable-debug-command yes".to_owned());
            lines.push("enable-module-command yes".to_owned());
        }
        if self.unix {
            lines.push("unixsocket server.sock".to_owned());
        }
        lines.extend(self.load_module());
        lines.extend(self.lines.iter().cloned());
        lines
    }

    fn load_module(&self) -> Option<String> {
        let path = match &self.module {
            Module::None => return None,
            Module::Normal => module(),
            Module::WithPanics => module_with_panics(),
            Module::At(path) => path.clone(),
        };
        let mut line = format!("loadmodule {}", quote(path.as_os_str().as_encoded_bytes()));
        for arg in &self.module_args {
            line.push(' ');
            line.push_str(&quote(arg));
        }
        Some(line)
    }
}

fn output_file(dir: &Path) -> fs::File {
    let path = dir.join("server.out");
    let open = fs::OpenOptions::new().create(true).append(true).open(&path);
    open.unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()))
}

/// A value in the quotes of a settings file.
fn quote(value: &[u8]) -> String {
    let mut out = String::from("\"");
    for &byte in value {
        match byte {
            b'"' | b'\\' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            0x20..=0x7e => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn quotes_every_byte() {
        assert_eq!(quote(b""), r#""""#);
        assert_eq!(quote(b"a b\"c\\"), r#""a b\"c\\""#);
        assert_eq!(quote(b"\0\n\xff"), r#""\x00\x0a\xff""#);
    }
}
