//! From the command line and the environment to a client.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use lockfence_client::admin::Admin;
use lockfence_client::{Builder, Lockfence};

use crate::args::Nodes;
use crate::exit::{Failed, USAGE};
use crate::{escape, say};

const VARIABLE: &str = "LOCKFENCE_NODES";
/// How long a node may take to answer an administrator.
const ANSWER: Duration = Duration::from_secs(5);

/// A client to be, with its nodes.
pub(crate) fn builder(nodes: &Nodes) -> Result<Builder, Failed> {
    let urls = if nodes.urls.is_empty() { from_environment()? } else { nodes.urls.clone() };
    if urls.is_empty() {
        return Err(Failed::new(
            USAGE,
            "no server is named: add --node redis://host:port, or set LOCKFENCE_NODES",
        ));
    }
    if let Some(url) = urls.iter().find(|url| !url.contains("://")) {
        return Err(Failed::new(USAGE, no_address(url)));
    }
    let mut builder = urls.into_iter().fold(Lockfence::builder(), Builder::node);
    if let Some(authorities) = &nodes.tls_ca {
        builder = builder.tls_authorities(certificates(authorities)?);
    }
    if let (Some(certificate), Some(key)) = (&nodes.tls_cert, &nodes.tls_key) {
        builder = builder.tls_identity(read(certificate)?, read(key)?);
    }
    Ok(builder)
}

/// What stands before an @ may be a password, and so may be what stands among the options.
fn no_address(text: &str) -> String {
    let place = match text.rsplit_once('@') {
        None => text,
        Some((before, _)) if say::has_password(before) => "…",
        Some((_, place)) => place,
    };
    let place = place.split('?').next().unwrap_or_default();
    let place = escape::for_people(place.as_bytes());
    format!(
        "\"{place}\" is no address of a server: put redis:// before it (rediss:// where the server has TLS)"
    )
}

/// A file without a certificate would be taken for one that trusts nobody.
fn certificates(file: &Path) -> Result<Vec<u8>, Failed> {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    let pem = read(file)?;
    if pem.windows(BEGIN.len()).any(|part| part == BEGIN) {
        return Ok(pem);
    }
    let shown = escape::for_people(file.as_os_str().as_bytes());
    Err(Failed::new(USAGE, format!("{shown} has no certificate in it (PEM)")))
}

fn read(file: &Path) -> Result<Vec<u8>, Failed> {
    let shown = || escape::for_people(file.as_os_str().as_bytes());
    fs::read(file).map_err(|error| Failed::new(USAGE, format!("cannot read {}: {error}", shown())))
}

/// Questions and orders to the nodes.
pub(crate) fn admin(nodes: &Nodes) -> Result<Admin, Failed> {
    let client = builder(nodes)?.build()?;
    Ok(client.admin().within(nodes.node_timeout.unwrap_or(ANSWER)))
}

/// A name or pattern as the bytes that it is.
pub(crate) fn bytes(text: &OsStr) -> &[u8] {
    text.as_bytes()
}

fn from_environment() -> Result<Vec<String>, Failed> {
    let Some(listed) = env::var_os(VARIABLE) else { return Ok(Vec::new()) };
    let listed = listed.into_string();
    let listed = listed.map_err(|_| Failed::new(USAGE, format!("{VARIABLE} is no text")))?;
    Ok(split(&listed).into_iter().map(str::to_owned).collect())
}

/// At white space, and at commas before an address: the addresses of sentinels and clusters have commas of their own.
fn split(listed: &str) -> Vec<&str> {
    let mut urls = Vec::new();
    for word in listed.split_whitespace() {
        let mut rest = word;
        let mut from = 0;
        while let Some(comma) = rest.get(from..).and_then(|text| text.find(',')) {
            let at = from.saturating_add(comma);
            let (url, behind) = rest.split_at(at);
            let behind = behind.trim_start_matches(',');
            if behind.is_empty() || begins_address(behind) {
                urls.push(url);
                (rest, from) = (behind, 0);
            } else {
                from = at.saturating_add(1);
            }
        }
        urls.push(rest);
    }
    urls.retain(|url| !url.is_empty());
    urls
}

/// Whether that begins with `scheme://`.
fn begins_address(text: &str) -> bool {
    let is_scheme = |scheme: &str| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    text.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme))
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn lists_are_split_at_commas_and_spaces() {
        assert_eq!(split(" redis://a, redis://b\tredis://c,,\n"), ["redis://a", "redis://b", "redis://c"]);
        assert_eq!(split("redis://a,rediss://b"), ["redis://a", "rediss://b"]);
        assert!(split(" , ").is_empty());
        assert_eq!(split(",redis://a"), ["redis://a"]);
    }

    #[test]
    fn commas_within_an_address_stay() {
        assert_eq!(
            split("redis+sentinel://:p,w@s1:1,s2:2/main,redis://b"),
            ["redis+sentinel://:p,w@s1:1,s2:2/main", "redis://b"]
        );
    }
}
