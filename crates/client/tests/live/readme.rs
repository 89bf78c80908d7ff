//! What the README says, on real servers: the rights of users, and the lines that show the program. (Its examples in Rust
//! are compiled as documentation.)

use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockfence_client::{Builder, ConfigError, Error, Held, Lockfence, Lost, Options, Released};
use lockfence_testkit::{Cluster, Proxy, Sentinel, Server, ServerKind, cmd, key_slot, server_tests};

const README: &str = include_str!("../../README.md");
const README_OF_ALL: &str = include_str!("../../../../README.md");
const PROGRAM: &str = env!("CARGO_BIN_EXE_lockfence");
/// Renewed after a third of it.
const TTL: Duration = Duration::from_secs(8);
const LONG: Duration = Duration::from_secs(60);

/// Makes the user of that name as the README says. Returns the commands that it may run.
fn make(server: &Server, name: &str) -> Vec<&'static str> {
    let begins = format!("ACL SETUSER {name} ");
    let line = README.lines().find(|line| line.starts_with(&begins)).expect("such a user");
    let words: Vec<&str> = line.split(' ').collect();
    server.connect().cmd(&words).ok();
    words.into_iter().filter(|word| word.starts_with('+')).collect()
}

fn change(server: &Server, name: &str, rule: &str) {
    cmd!(server.connect(), "ACL", "SETUSER", name, rule).ok();
}

/// It works; and it does not without any one of these rights.
fn needs<T: Debug, E: Debug>(server: &Server, name: &str, rights: &[&str], works: impl Fn() -> Result<T, E>) {
    works().unwrap_or_else(|error| panic!("{name} with {rights:?}: {error:?}"));
    for right in rights {
        change(server, name, &right.replace('+', "-"));
        let done = works();
        assert!(done.is_err(), "{name} does not need {right}: {done:?}");
        change(server, name, right);
    }
}

fn url(server: &Server, user: &str) -> String {
    server.url().replace("://", &format!("://{user}:secret@"))
}

fn client(url: &str) -> Builder {
    Lockfence::builder().node(url).ttl(TTL).node_timeout(TTL / 4)
}

/// Another lock each time: one that could not be released is in nobody's way.
fn fresh() -> String {
    static USED: AtomicU32 = AtomicU32::new(0);
    format!("lock:{{acct:{}}}", USED.fetch_add(1, Ordering::Relaxed))
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LONG, test).await.expect("in time") })
}

/// All that a worker does: try, wait behind somebody, renew, release.
async fn work(locks: &Lockfence) -> Result<(), String> {
    let name = fresh();
    let first = locks.try_acquire(&name).await.map_err(|error| error.to_string())?;
    let waiting = tokio::spawn({
        let (locks, name) = (locks.clone(), name.clone());
        async move { locks.acquire(name, Options::wait_up_to(LONG)).await }
    });
    tokio::select! {
        lost = first.lost() => return Err(lost.to_string()),
        () = renewed(&first) => {}
    }
    if first.release().await != Released::Ended {
        return Err("not released".to_owned());
    }
    let second: Result<Held, Error> = waiting.await.unwrap();
    let ended = second.map_err(|error| error.to_string())?.release().await;
    (ended == Released::Ended).then_some(()).ok_or_else(|| "not released".to_owned())
}

async fn renewed(held: &Held) {
    let mut least = held.remaining();
    while held.remaining() <= least {
        least = held.remaining();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How a lock ends that an administrator took away.
fn loss_of(locks: &Lockfence, server: &Server) -> Lost {
    run(async {
        let name = fresh();
        let held = locks.try_acquire(&name).await.unwrap();
        let mut admin = server.connect();
        cmd!(admin, "LOCK.BREAK", name).no_err();
        cmd!(admin, "LOCK.ACQUIRE", name, "admin", 60_000).token();
        held.lost().await
    })
}

server_tests! {
    fn a_worker_needs_these_rights(kind: ServerKind) {
        let server = Server::start(kind);
        let mut rights = make(&server, "worker");
        let url = url(&server, "worker");
        let locks = || client(&url).build().unwrap();
        assert_eq!(loss_of(&locks(), &server), Lost::Taken { by: b"admin".to_vec().into() });
        // "tells who has a lock that was lost; all else works without it"
        change(&server, "worker", "-lock.info");
        rights.retain(|right| *right != "+lock.info");
        assert!(!matches!(loss_of(&locks(), &server), Lost::Taken { .. }));
        needs(&server, "worker", &rights, || run(work(&locks())));
    }

    /// Nothing that the client asks for is refused and noted.
    fn the_log_stays_quiet(kind: ServerKind) {
        let server = Server::start(kind);
        make(&server, "worker");
        change(&server, "worker", "+ping");
        if kind == ServerKind::Redis70 {
            assert!(cmd!(server.connect(), "ACL", "SETUSER", "worker", "+client|setinfo").is_err());
        } else {
            change(&server, "worker", "+client|setinfo");
        }
        let locks = client(&url(&server, "worker")).build().unwrap();
        run(async {
            let name = fresh();
            for _ in 0..3 {
                let waiting = Options::wait_up_to(Duration::from_millis(50));
                let held = locks.try_acquire(&name).await.unwrap();
                assert!(matches!(locks.acquire(&name, waiting).await, Err(Error::TimedOut { .. })));
                assert_eq!(held.release().await, Released::Ended);
            }
            assert!(locks.settled(LONG).await);
        });
        let log = cmd!(server.connect(), "ACL", "LOG");
        assert!(log.items().is_empty(), "{log:?}");
    }

    fn other_databases_replicas_and_the_disk_need_more(kind: ServerKind) {
        let (server, replica) = (Server::builder(kind).arg("appendonly", "yes").start(), Server::start(kind));
        replica.replicate_from(&server);
        replica.wait_in_sync(&server);
        make(&server, "worker");
        let base = url(&server, "worker");
        let once = |builder: Builder| run(async { builder.build().unwrap().try_acquire(fresh()).await });
        change(&server, "worker", "+select");
        needs(&server, "worker", &["+select"], || once(client(&format!("{base}/3"))));
        change(&server, "worker", "+wait");
        needs(&server, "worker", &["+wait"], || once(client(&base).min_replicas(1)));
        if kind == ServerKind::Redis70 {
            assert!(cmd!(server.connect(), "ACL", "SETUSER", "worker", "+waitaof").is_err());
        } else {
            change(&server, "worker", "+waitaof");
            needs(&server, "worker", &["+waitaof"], || once(client(&base).ttl(LONG).fsync()));
        }
    }

    fn sentinels_need_no_more(kind: ServerKind) {
        let server = Server::start(kind);
        let sentinel = Sentinel::watch(&server);
        make(&server, "worker");
        let url = format!("redis+sentinel://worker:secret@127.0.0.1:{}/main", sentinel.server().port());
        run(work(&client(&url).build().unwrap())).unwrap();
        change(&server, "worker", "+role");
        run(work(&client(&url).build().unwrap())).unwrap();
    }

    /// A lock whose slot is on its way, and is not at the old server any more.
    fn a_cluster_needs_more(kind: ServerKind) {
        let cluster = Cluster::start(kind);
        for node in cluster.nodes() {
            make(node, "worker");
            make(node, "operator");
            change(node, "worker", "+asking");
            change(node, "operator", "+asking");
            change(node, "operator", "+cluster|slots");
        }
        let port = cluster.node(0).port();
        let url = |user: &str| format!("redis+cluster://{user}:secret@127.0.0.1:{port}");
        run(work(&client(&url("worker")).build().unwrap())).unwrap();
        let moving = fresh();
        let from = cluster.owner_index(&moving);
        let to = (0..3).find(|index| *index != from).unwrap();
        cluster.begin_move(key_slot(moving.as_bytes()), from, to);
        let options = Options::try_once();
        needs(cluster.node(to), "worker", &["+asking"], || {
            run(async { client(&url("worker")).build().unwrap().acquire(&moving, options).await?.release().await; Ok::<_, Error>(()) })
        });
        let list = || program(&url("operator"), &["ls"]);
        needs(cluster.node(to), "operator", &["+asking"], list);
        needs(cluster.node(0), "operator", &["+cluster|slots"], list);
    }

    /// The right to be told that one server has two addresses: "without it that is not noticed".
    fn a_quorum_needs_one_more(kind: ServerKind) {
        let servers = [Server::start(kind), Server::start(kind)];
        servers.iter().for_each(|server| drop(make(server, "worker")));
        let proxy = Proxy::to(&servers[0]);
        let other = proxy.url().replace("://", "://worker:secret@");
        let locks = || {
            let nodes = [url(&servers[0], "worker"), url(&servers[1], "worker"), other.clone()];
            nodes.into_iter().fold(Lockfence::builder(), Builder::node).ttl(TTL).node_timeout(TTL / 4).build().unwrap()
        };
        run(work(&locks())).unwrap();
        servers.iter().for_each(|server| change(server, "worker", "+info"));
        let refused = run(async { locks().try_acquire(fresh()).await });
        assert!(matches!(refused, Err(Error::Config(ConfigError::OneServerTwice { .. }))), "{refused:?}");
    }

    fn a_writer_needs_these_rights(kind: ServerKind) {
        let (server, of_data) = (Server::start(kind), Server::start(kind));
        let rights = make(&of_data, "writer");
        let locks = client(&server.url()).build().unwrap();
        let data = redis::Client::open(url(&of_data, "writer")).unwrap();
        needs(&of_data, "writer", &rights, || {
            run(async {
                let held = locks.try_acquire(fresh()).await?;
                let fenced = held.fence(&data).await?;
                fenced.write("{acct:42}:balance", 1).await?;
                fenced.check().await
            })
        });
        let mut writer = of_data.connect_as("writer", "secret");
        cmd!(writer, "SET", "{acct:42}:balance", 2).assert_err_prefix("NOPERM");
    }

    /// `fence_here`, and `call`.
    fn the_lock_as_the_fence_needs_more(kind: ServerKind) {
        let server = Server::start(kind);
        make(&server, "worker");
        let rights = ["~{acct:*}:*", "+fence.write", "+fence.call", "+incrby"];
        rights.iter().for_each(|rule| change(&server, "worker", rule));
        let url = url(&server, "worker");
        needs(&server, "worker", &rights[1..], || {
            run(async {
                let held = client(&url).build().unwrap().try_acquire(fresh()).await?;
                let fenced = held.fence_here().unwrap();
                fenced.write("{acct:42}:balance", 1).await?;
                fenced.call(redis::cmd("INCRBY").arg("{acct:42}:balance").arg(1)).await
            })
        });
    }

    fn the_program_needs_these_rights(kind: ServerKind) {
        let server = Server::start(kind);
        make(&server, "worker");
        make(&server, "operator");
        let (worker, operator) = (url(&server, "worker"), url(&server, "operator"));
        program(&worker, &["run", "--lock", "lock:deploy", "--", "true"]).unwrap();
        let all = || {
            let name = fresh();
            cmd!(server.connect(), "LOCK.ACQUIRE", name, "me", 60_000).token();
            program(&operator, &["ls"])?;
            program(&operator, &["watch", "--count", "1"])?;
            program(&operator, &["info", &name])?;
            program(&operator, &["break", "--yes", &name])
        };
        needs(&server, "operator", &["+scan", "+lock.info", "+lock.break"], all);
        change(&server, "operator", "-scan");
        let name = fresh();
        cmd!(server.connect(), "LOCK.ACQUIRE", name, "me", 60_000).token();
        program(&operator, &["info", &name]).unwrap();
    }

    /// The lines by which the repository's README shows the program.
    fn the_program_runs_as_shown(kind: ServerKind) {
        let server = Server::start(kind);
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("deploy.sh");
        fs::write(&script, "#!/bin/sh\necho \"$LOCKFENCE_LOCK $LOCKFENCE_TOKEN\" > deployed\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let is_of_program = |line: &&str| line.starts_with("export LOCKFENCE_") || line.starts_with("lockfence ");
        let lines: Vec<&str> = README_OF_ALL.lines().filter(is_of_program).collect();
        assert_eq!(lines.len(), 4, "{lines:?}");
        let hold = || cmd!(server.connect(), "LOCK.ACQUIRE", "deploy", "me", 60_000).token();
        let mut before = String::new();
        for line in lines {
            let line = line.replace("redis://10.0.0.1:6379", &server.url());
            if line.starts_with("export ") {
                before = line;
                continue;
            }
            // It asks first, and there is no terminal here.
            let (line, asked) = match line.split_once("lockfence break ") {
                Some((_, rest)) => (format!("lockfence break --yes {rest}"), hold()),
                None => (line, 0),
            };
            let shell = format!("set -eu\nlockfence() {{ \"{PROGRAM}\" \"$@\"; }}\n{before}\n{line}");
            let mut sh = Command::new("sh");
            ended(sh.current_dir(folder.path()).args(["-c", &shell])).unwrap();
            if asked > 0 {
                assert_eq!(cmd!(server.connect(), "LOCK.INFO", "deploy").field("state").text(), "free");
            }
        }
        let deployed = fs::read_to_string(folder.path().join("deployed")).unwrap();
        let (lock, token) = deployed.trim().split_once(' ').unwrap();
        assert_eq!(lock, "deploy");
        assert!(token.parse::<u64>().unwrap() > 0);
    }
}

/// Runs the program; an error unless it ends with 0.
fn program(url: &str, words: &[&str]) -> Result<(), String> {
    ended(Command::new(PROGRAM).args(words).env("LOCKFENCE_NODES", url))
}

fn ended(command: &mut Command) -> Result<(), String> {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let said =
        || format!("{status}: {}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    status.success().then_some(()).ok_or_else(said)
}
