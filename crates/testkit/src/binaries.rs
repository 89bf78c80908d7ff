//! The server programs that tests run on: which there are, where they lie, what version they say they have.
//!
//! Redis 7.0 is the one of the system; the others are those that `scripts/servers` fetches.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::module::target_dirs;

/// A server that the tests know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerKind {
    /// The default: `redis-server` of the `PATH`, or the program that `REDIS_SERVER` names.
    Redis70,
    /// The newest Redis here.
    Redis82,
    /// The newest Valkey here.
    Valkey91,
    /// An older Valkey.
    Valkey81,
    /// Too old: the module must refuse it.
    Redis62,
}

impl ServerKind {
    /// Those that every test of the module runs on.
    pub const MATRIX: [Self; 3] = [Self::Redis70, Self::Redis82, Self::Valkey91];

    /// All of them.
    pub const ALL: [Self; 5] = [Self::Redis70, Self::Redis82, Self::Valkey91, Self::Valkey81, Self::Redis62];

    /// The name for people, which is also the folder's under `target/servers`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis70 => "redis-7.0",
            Self::Redis82 => "redis-8.2",
            Self::Valkey91 => "valkey-9.1",
            Self::Valkey81 => "valkey-8.1",
            Self::Redis62 => "redis-6.2",
        }
    }

    /// Whether it is Valkey rather than Redis.
    pub fn is_valkey(self) -> bool {
        matches!(self, Self::Valkey91 | Self::Valkey81)
    }

    /// Where the program lies, if it is there.
    pub fn path(self) -> Option<PathBuf> {
        if self == Self::Redis70 {
            return match env::var_os("REDIS_SERVER") {
                Some(path) if !path.is_empty() => Some(PathBuf::from(path)).filter(|path| path.is_file()),
                _ => on_path("redis-server"),
            };
        }
        let program = if self.is_valkey() { "valkey-server" } else { "redis-server" };
        target_dirs()
            .into_iter()
            .map(|target| target.join("servers").join(self.name()).join(program))
            .find(|path| path.is_file())
    }

    /// The version that the program says it has; `None` when it is absent or does not run.
    pub fn version(self) -> Option<Version> {
        static KNOWN: Mutex<BTreeMap<PathBuf, Option<Version>>> = Mutex::new(BTreeMap::new());
        let path = self.path()?;
        let mut known = KNOWN.lock().ok()?;
        *known.entry(path).or_insert_with_key(|path| ask_version(path))
    }

    /// Whether a test can run on it. Where it cannot, says `skipped: …`.
    ///
    /// # Panics
    /// When the server belongs to [`MATRIX`](Self::MATRIX), is absent, and `LOCKFENCE_REQUIRE_SERVERS=1`: a
    /// run that has to be complete must not pass with tests left out.
    pub fn present(self) -> bool {
        if self.version().is_some() {
            return true;
        }
        let how = match self {
            Self::Redis70 => "put redis-server on the PATH, or name it in REDIS_SERVER",
            _ => "run scripts/servers",
        };
        let required = env::var("LOCKFENCE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
        if required && Self::MATRIX.contains(&self) {
            panic!("{self} is not present and LOCKFENCE_REQUIRE_SERVERS=1: {how}");
        }
        eprintln!("skipped: {self} is not present ({how})");
        false
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A server's version. A Valkey has the numbers of Valkey here, not those of the Redis it claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub patch: u32,
}

impl Version {
    /// Reads the line that `--version` prints: `Redis server v=7.0.15 sha=…`.
    pub fn parse(line: &str) -> Option<Self> {
        let numbers = line.split_once(" v=")?.1.split_whitespace().next()?;
        let mut numbers = numbers.split('.').map(|number| number.parse().ok());
        Some(Self { major: numbers.next()??, minor: numbers.next()??, patch: numbers.next()?? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Where `redis-cli` lies: `REDIS_CLI` names it, or it is on the `PATH`.
pub fn redis_cli() -> Option<PathBuf> {
    match env::var_os("REDIS_CLI") {
        Some(path) if !path.is_empty() => Some(PathBuf::from(path)).filter(|path| path.is_file()),
        _ => on_path("redis-cli"),
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn ask_version(path: &Path) -> Option<Version> {
    let output = Command::new(path).arg("--version").output().ok()?;
    Version::parse(&String::from_utf8_lossy(&output.stdout))
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn reads_what_servers_print() {
        let redis = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7c97\n";
        let valkey = "Valkey server v=9.1.2 sha=00000000:1 malloc=libc bits=64 build=1536df31\n";
        assert_eq!(Version::parse(redis), Some(Version { major: 7, minor: 0, patch: 15 }));
        assert_eq!(Version::parse(valkey), Some(Version { major: 9, minor: 1, patch: 2 }));
        assert_eq!(Version::parse("redis-server: not found"), None);
        assert_eq!(Version::parse("Redis server v=7.x sha=1"), None);
    }
}
