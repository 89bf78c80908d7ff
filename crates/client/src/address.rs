//! Addresses: URLs of a server, of a primary that sentinels watch, of a cluster.

use std::net::IpAddr;
use std::path::PathBuf;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo};

use crate::config::ConfigError;
use crate::node::{Place, Target};
use crate::sentinel::Sentinels;
use crate::tls::Tls;

/// Where sentinels listen, if the address does not say.
const SENTINEL_PORT: u16 = 26379;

/// A node, as it was asked for.
#[derive(Clone)]
pub(crate) enum Address {
    Url(String),
    Sentinel { primary: String, urls: Vec<String> },
    Cluster { urls: Vec<String> },
}

impl Address {
    /// The node of that address.
    pub(crate) fn target(&self, tls: &Tls) -> Result<Target, ConfigError> {
        let each = |url: &String| info(url, &shown(url), tls);
        let all = |urls: &[String]| urls.iter().map(each).collect::<Result<Vec<_>, _>>();
        match self {
            Self::Url(url) => of_url(url, tls),
            Self::Cluster { urls } => cluster(all(urls)?),
            Self::Sentinel { primary, urls } => {
                let infos = all(urls)?;
                let server = infos.first().cloned().ok_or(ConfigError::NoNodes)?;
                watched(primary, infos, server, &RedisConnectionInfo::default())
            }
        }
    }
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = |urls: &[String]| urls.iter().map(|url| shown(url)).collect::<Vec<_>>().join(",");
        match self {
            Self::Url(url) => f.write_str(&shown(url)),
            Self::Sentinel { primary, urls } => write!(f, "{primary} by {}", all(urls)),
            Self::Cluster { urls } => f.write_str(&all(urls)),
        }
    }
}

fn of_url(url: &str, tls: &Tls) -> Result<Target, ConfigError> {
    let bad = |cause: &str| ConfigError::BadNode { node: shown(url), cause: cause.to_owned() };
    let Some(group) = Group::parse(url) else {
        let info = info(url, &shown(url), tls)?;
        return Ok(Target { name: name(&info), marks: vec![mark(&info)], place: Place::Server(info) });
    };
    let db = group.path.get(1).copied().unwrap_or_default();
    let servers = group.infos(group.login, db, None, tls)?;
    match (group.kind, group.path.as_slice()) {
        (Kind::Cluster, [] | ["" | "0"]) => cluster(servers),
        (Kind::Cluster, _) => Err(bad("a cluster has no database but 0")),
        (Kind::Sentinel, [primary] | [primary, _]) if !primary.is_empty() => {
            let settings = group
                .sentinel_settings()
                .ok_or_else(|| bad("an unknown option; there are sentinel_user and sentinel_password"))?;
            let server = servers.first().cloned().ok_or(ConfigError::NoNodes)?;
            watched(primary, group.infos("", "", Some(SENTINEL_PORT), tls)?, server, &settings)
        }
        (Kind::Sentinel, _) => Err(bad("expected /name or /name/database after the sentinels")),
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Sentinel,
    Cluster,
}

/// A URL that names several hosts, in its parts.
struct Group<'u> {
    url: &'u str,
    kind: Kind,
    scheme: &'u str,
    /// `user:password@`, or nothing.
    login: &'u str,
    hosts: Vec<&'u str>,
    path: Vec<&'u str>,
    query: &'u str,
}

impl<'u> Group<'u> {
    fn parse(url: &'u str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (scheme, kind) = match scheme.split_once('+')? {
            (scheme, "sentinel") => (scheme, Kind::Sentinel),
            (scheme, "cluster") => (scheme, Kind::Cluster),
            _ => return None,
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest
            .split_once('/')
            .map_or((rest, Vec::new()), |(before, path)| (before, path.split('/').collect()));
        let at = authority.rfind('@').map_or(0, |at| at.saturating_add(1));
        let (login, hosts) = authority.split_at(at);
        Some(Self { url, kind, scheme, login, hosts: hosts.split(',').collect(), path, query })
    }

    fn infos(
        &self,
        login: &str,
        db: &str,
        port: Option<u16>,
        tls: &Tls,
    ) -> Result<Vec<ConnectionInfo>, ConfigError> {
        let each = self.hosts.iter().map(|host| {
            let has_port = host.rsplit_once(':').is_some_and(|(_, after)| !after.contains(']'));
            let port = port.filter(|_| !has_port).map(|port| format!(":{port}")).unwrap_or_default();
            info(&format!("{}://{login}{host}{port}/{db}", self.scheme), &shown(self.url), tls)
        });
        each.collect()
    }

    /// How to log in at the sentinels.
    fn sentinel_settings(&self) -> Option<RedisConnectionInfo> {
        let mut settings = RedisConnectionInfo::default();
        let url = redis::parse_redis_url(&format!("redis://host/?{}", self.query))?;
        for (name, value) in url.query_pairs() {
            settings = match &*name {
                "sentinel_user" => settings.set_username(value),
                "sentinel_password" => settings.set_password(value),
                _ => return None,
            };
        }
        Some(settings)
    }
}

fn watched(
    primary: &str,
    sentinels: Vec<ConnectionInfo>,
    server: ConnectionInfo,
    settings: &RedisConnectionInfo,
) -> Result<Target, ConfigError> {
    let db = server.redis_settings().db();
    let hosts = sorted(&sentinels)?;
    let settings = |info: ConnectionInfo| info.set_redis_settings(settings.clone());
    let sentinels: Vec<ConnectionInfo> = sentinels.into_iter().map(settings).collect();
    Ok(Target {
        name: format!("{primary}@{}/{db}", hosts.join(",")),
        marks: sentinels.iter().map(|sentinel| format!("{primary}@{}", mark(sentinel))).collect(),
        place: Place::Sentinel(Sentinels { primary: primary.to_owned(), sentinels, server: named(server) }),
    })
}

fn cluster(seeds: Vec<ConnectionInfo>) -> Result<Target, ConfigError> {
    let hosts = sorted(&seeds)?;
    if let Some(seed) = seeds.iter().find(|seed| seed.redis_settings().db() != 0) {
        let cause = "a cluster has no database but 0".to_owned();
        return Err(ConfigError::BadNode { node: seed.addr().to_string(), cause });
    }
    let marks = seeds.iter().map(mark).collect();
    Ok(Target { name: format!("cluster {}", hosts.join(",")), marks, place: Place::Cluster(seeds) })
}

/// The hosts of a group, in an order that does not depend on how they were written down.
fn sorted(infos: &[ConnectionInfo]) -> Result<Vec<String>, ConfigError> {
    if infos.is_empty() {
        return Err(ConfigError::NoNodes);
    }
    let mut hosts = Vec::new();
    for info in infos {
        if matches!(info.addr(), ConnectionAddr::Unix(_)) {
            let cause = "sentinels and clusters are reached by host and port".to_owned();
            return Err(ConfigError::BadNode { node: info.addr().to_string(), cause });
        }
        hosts.push(info.addr().to_string().to_ascii_lowercase());
    }
    hosts.sort_unstable();
    hosts.dedup();
    Ok(hosts)
}

/// What a server and database are called: alike at all clients that write them alike.
fn name(info: &ConnectionInfo) -> String {
    let address = match info.addr() {
        ConnectionAddr::Unix(path) => path.display().to_string(),
        address => address.to_string().to_ascii_lowercase(),
    };
    format!("{address}/{}", info.redis_settings().db())
}

/// What tells that two addresses are the same, however they are written: the databases of a server are one server, with
/// TLS and without.
fn mark(info: &ConnectionInfo) -> String {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{}:{port}", same_host(host))
        }
        ConnectionAddr::Unix(path) => path.components().collect::<PathBuf>().display().to_string(),
        address => address.to_string(),
    }
}

fn same_host(host: &str) -> String {
    let host = host.strip_suffix('.').unwrap_or(host);
    let address = host.parse::<IpAddr>().map(|address| address.to_canonical().to_string());
    address.unwrap_or_else(|_| host.to_ascii_lowercase())
}

fn info(url: &str, shown: &str, tls: &Tls) -> Result<ConnectionInfo, ConfigError> {
    let bad = |cause: String| ConfigError::BadNode { node: shown.to_owned(), cause };
    if cfg!(not(feature = "tls")) && (url.starts_with("rediss:") || url.starts_with("valkeys:")) {
        return Err(bad("TLS needs the feature `tls` of lockfence-client".to_owned()));
    }
    let info = url.into_connection_info().map_err(|error| bad(error.to_string()))?;
    tls.apply(info).map(named).map_err(|error| bad(error.to_string()))
}

/// Connections show in `CLIENT LIST` whose they are.
fn named(info: ConnectionInfo) -> ConnectionInfo {
    let settings = info.redis_settings().clone();
    info.set_redis_settings(settings.set_lib_name("lockfence-client", env!("CARGO_PKG_VERSION")))
}

/// The URL without what is secret: a password may hold any character, also those that end it in a URL that is written
/// as it should be. So this shows what stands behind the last `@`, up to the options; and of a URL where that, or its end
/// where there is none, may be in the middle of a password, nothing.
pub(crate) fn shown(url: &str) -> String {
    let without_options = |text: &str| text.split_once('?').map_or(text, |(before, _)| before).to_owned();
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if let Some((before, after)) = url.rsplit_once('@') {
        let in_options = ["pass=", "password="].iter().any(|option| before.contains(option));
        return if in_options { format!("{scheme}://…") } else { without_options(after) };
    }
    let hosts = rest.split(['/', '?']).next().unwrap_or_default();
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let may_be_login =
        |host: &str| host.rsplit_once(':').is_some_and(|(before, port)| !is_port(port) || before.is_empty());
    if !hosts.contains('[') && hosts.split(',').any(may_be_login) {
        return format!("{scheme}://…");
    }
    without_options(url)
}

#[cfg(test)]
mod tests {
    use redis::{ConnectionAddr, ConnectionInfo};

    use super::{Address, Place, Target, Tls};

    fn target(url: &str) -> Target {
        let target = Address::Url(url.to_owned()).target(&Tls::default());
        target.unwrap_or_else(|error| unreachable!("{url}: {error}"))
    }

    /// Address, TLS, user, password, database.
    fn shown(info: &ConnectionInfo) -> String {
        let (settings, tls) = (info.redis_settings(), matches!(info.addr(), ConnectionAddr::TcpTls { .. }));
        let (user, password) = (settings.username().unwrap_or("-"), settings.password().unwrap_or("-"));
        format!("{} {tls} {user} {password} {}", info.addr(), settings.db())
    }

    #[test]
    fn a_login_is_the_servers_and_the_sentinels_have_their_own() {
        let url = "rediss+sentinel://us%40er:pa%2Fss@b,[::1]:7,a:26380/main/3?sentinel_user=s&sentinel_password=t%26u";
        let target = target(url);
        assert_eq!(target.name, "main@::1:7,a:26380,b:26379/3");
        let Place::Sentinel(group) = target.place else { unreachable!() };
        let sentinels: Vec<String> = group.sentinels.iter().map(shown).collect();
        assert_eq!(sentinels, ["b:26379 true s t&u 0", "::1:7 true s t&u 0", "a:26380 true s t&u 0"]);
        assert_eq!(shown(&crate::dial::at(&group.server, "c", 1)), "c:1 true us@er pa/ss 3");
    }

    #[test]
    fn clusters_and_servers() {
        let Place::Cluster(seeds) = target("valkey+cluster://:p@a:7000,b/").place else { unreachable!() };
        assert_eq!(seeds.iter().map(shown).collect::<Vec<_>>(), ["a:7000 false - p 0", "b:6379 false - p 0"]);
        let Place::Server(info) = target("valkeys://u:p@A/5").place else { unreachable!() };
        assert_eq!(shown(&info), "A:6379 true u p 5");
        assert_eq!(target("redis://A").name, target("redis://a:6379/0").name);
        assert_eq!(target("redis+unix:///run/server.sock?db=2&pass=secret").name, "/run/server.sock/2");
        let (one, other) = (target("redis+cluster://a,b"), target("redis+cluster://b,a,b"));
        assert_eq!(one.name, other.name, "however it is written");
    }

    #[test]
    fn no_password_is_shown() {
        for (url, expected) in [
            ("redis://host:1/0", "redis://host:1/0"),
            ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
            ("redis://u:secret@host:1/0", "host:1/0"),
            ("redis://u:s3?cr3t@host:1/0", "host:1/0"),
            ("redis://u:s@cret@host:1/0?x=y", "host:1/0"),
            ("redis+sentinel://u:s3/cr3t@host,other/name", "host,other/name"),
            ("redis://u:s3cr3t", "redis://…"),
            ("redis+unix:///path?user=u&pass=secret", "redis+unix:///path"),
            ("redis+unix:///path?user=u&pass=sec@ret", "redis+unix://…"),
            ("redis+unix:///path?pass=sec@r?et&db=1", "redis+unix://…"),
            ("redis+sentinel://host/name?sentinel_password=sec@ret", "redis+sentinel://…"),
        ] {
            assert_eq!(super::shown(url), expected, "{url}");
        }
    }
}
