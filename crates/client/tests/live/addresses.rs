//! Ways to reach a server: users, sockets, TLS.

use std::fs;

use lockfence_client::{Builder, Error, Lockfence, Options, Released};
use lockfence_testkit::{PortLease, Server, ServerKind, cmd, server_tests};
use rcgen::{CertificateParams, CertifiedKey, KeyPair};

use crate::{LONG, client_of, get, is_free, ms, run};

/// All that a client does: try, wait, be told who has it, hold, release.
fn works(locks: &Lockfence, server: &Server) {
    run(async {
        let held = get(locks, Options::try_once()).await;
        assert!(matches!(locks.try_acquire("lock").await, Err(Error::Held { .. })));
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { get(&locks, Options::wait_up_to(LONG)).await }
        });
        let token = held.token();
        assert_eq!(held.release().await, Released::Ended);
        let second = waiting.await.unwrap();
        assert!(second.token() > token);
        assert_eq!(second.release().await, Released::Ended);
        assert!(locks.settled(LONG).await && is_free(server));
    });
}

fn one(url: &str) -> Builder {
    client_of([url])
}

server_tests! {
    /// A user who may do no more than a lock client needs; a password with all that must be escaped.
    fn a_user_with_few_rights(kind: ServerKind) {
        let server = Server::start(kind);
        let rights = ["+lock.acquire", "+lock.extend", "+lock.release", "+lock.info"];
        let mut user = vec!["ACL", "SETUSER", "worker", "on", ">p@s/s:w?o#r%d", "~lock"];
        user.extend(rights);
        server.connect().cmd(user).ok();
        let address = |login: &str| server.url().replace("://", &format!("://{login}@"));
        works(&one(&address("worker:p%40s%2Fs%3Aw%3Fo%23r%25d")).build().unwrap(), &server);
        run(async {
            // Told at once, and not waited for.
            let locks = one(&address("worker:secret")).build().unwrap();
            let refused = locks.acquire("lock", Options::wait_forever()).await;
            match &refused {
                Err(Error::RefusedByNodes(nodes)) => assert!(nodes[0].cause.contains("uthentication"), "{refused:?}"),
                other => panic!("{other:?}"),
            }
            assert!(!format!("{refused:?} {locks:?}").contains("secret"));
        });
    }

    /// A Unix socket, with and without a user.
    fn a_unix_socket(kind: ServerKind) {
        let server = Server::builder(kind).unix().start();
        let url = format!("redis+unix://{}", server.unix_path().display());
        works(&one(&url).build().unwrap(), &server);
        cmd!(server.connect(), "ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all").ok();
        cmd!(server.connect(), "ACL", "SETUSER", "default", "-lock.acquire").ok();
        works(&one(&format!("{url}?user=worker&pass=secret")).build().unwrap(), &server);
    }
}

/// A certificate that vouches for itself, and its key, as files in the server's folder.
fn certificate() -> CertifiedKey<KeyPair> {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let signing_key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(names).unwrap().self_signed(&signing_key).unwrap();
    CertifiedKey { cert, signing_key }
}

/// TLS: the server is trusted by its authority, not otherwise; it may want to see who comes.
#[test]
fn tls() {
    if !ServerKind::Redis70.present() {
        return;
    }
    let (server_side, client_side, stranger) = (certificate(), certificate(), certificate());
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    for wants_to_see in [false, true] {
        let port = PortLease::take();
        let server = Server::builder(ServerKind::Redis70)
            .arg("tls-port", port.port())
            .arg("tls-cert-file", file("server.pem", server_side.cert.pem()))
            .arg("tls-key-file", file("server.key", server_side.signing_key.serialize_pem()))
            .arg("tls-ca-cert-file", file("client.pem", client_side.cert.pem()))
            .arg("tls-auth-clients", if wants_to_see { "yes" } else { "no" });
        let server = match server.try_start() {
            Ok(server) => server,
            Err(failure) if failure.to_string().contains("tls-port") => {
                let required = std::env::var("LOCKFENCE_REQUIRE_SERVERS").is_ok_and(|value| value == "1");
                assert!(!required, "a server without TLS: {failure}");
                return eprintln!("skipped: this server was built without TLS");
            }
            Err(failure) => panic!("{failure}"),
        };
        let of = |pem: String| one(&format!("rediss://localhost:{}", port.port())).tls_authorities(pem);
        let trusting = of(server_side.cert.pem());
        let known =
            trusting.clone().tls_identity(client_side.cert.pem(), client_side.signing_key.serialize_pem());
        let unknown =
            trusting.clone().tls_identity(stranger.cert.pem(), stranger.signing_key.serialize_pem());
        let mistrusting = of(stranger.cert.pem());
        works(&known.build().unwrap(), &server);
        if !wants_to_see {
            works(&trusting.build().unwrap(), &server);
        }
        let mut refused = vec![mistrusting];
        if wants_to_see {
            refused.push(unknown);
        }
        for client in refused {
            let locks = client.build().unwrap();
            let result = run(locks.acquire("lock", Options::wait_up_to(ms(300))));
            assert!(matches!(&result, Err(Error::NoQuorum(_))), "{result:?}");
        }
    }
}
