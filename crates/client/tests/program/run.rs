//! `lockfence run`: who gets the lock, what the command finds, and how it ends.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use lockfence_testkit::{PortLease, Server, ServerKind, cmd, server_tests};

use crate::common::*;

server_tests! {
    /// The whole way on each kind of server: held while the command runs, its code passed on, free afterwards, listed.
    fn smoke(kind: ServerKind) {
        let server = Server::start(kind);
        let mut run = start_with_input(&mut run_sh([&server], &[], "echo $LOCKFENCE_TOKEN; read x; exit 7"));
        let token: u64 = run.line().parse().unwrap();
        let list = end(lockfence([&server]).args(["ls", "--json"])).json();
        assert_eq!((&list["locks"][0]["name"], list["locks"][0]["token"].as_u64()), (&"lock".into(), Some(token)));
        run.close_input();
        run.end().assert_code(7);
        assert!(is_free(&server));
        take(&server, "else");
        end(lockfence([&server]).args(["break", "lock", "--yes"])).assert_code(0);
        assert!(is_free(&server));
    }
}

#[test]
fn the_commands_exit_code_is_passed_on() {
    let Some(server) = server() else { return };
    for (script, code) in
        [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
    {
        let ended = end(&mut run_sh([&server], &[], script));
        ended.assert_code(code);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", ""), "{script}");
        assert!(is_free(&server), "{script}");
    }
}

#[test]
fn the_command_finds_token_lock_arguments_and_input() {
    let Some(server) = server() else { return };
    let name = OsStr::from_bytes(b"a \xff\n\"b");
    let mut command = lockfence([&server]);
    command.arg("run").arg("--lock").arg(name).args(["--ttl", LEASE]);
    // Without `--`, and with arguments that look like lockfence's own.
    command.args([
        "sh",
        "-c",
        "printf %s \"$LOCKFENCE_LOCK\" | od -An -tx1; echo $LOCKFENCE_TOKEN $1 $2; read x",
    ]);
    command.args(["sh", "--verbose", "--lock"]);
    let mut run = start_with_input(&mut command);
    run.expect(" 61 20 ff 0a 22 62");
    let line = run.line();
    let reply = info(&server, name.as_bytes());
    assert_eq!(line, format!("{} --verbose --lock", reply.field("token").text()));
    let owner = reply.field("owner").text();
    assert!(owner.contains(&format!(":{}/", run.pid())), "the machine and the process, not {owner}");
    run.close_input();
    run.end().assert_code(1); // of `read` at the end of the input
}

/// Two programs are never in the protected part at once, and tokens rise from one to the next.
#[test]
fn runs_exclude_each_other() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = "mkdir inside && echo $LOCKFENCE_TOKEN >>tokens && sleep 0.05 && rmdir inside";
    let runs: Vec<Running> = (0..8)
        .map(|_| start(run_sh([&server], &["--wait", "forever"], script).current_dir(&folder)))
        .collect();
    for run in runs {
        let ended = run.end();
        ended.assert_code(0);
        assert_eq!(ended.err, "");
    }
    let tokens = fs::read_to_string(folder.path().join("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens.len(), 8);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

#[test]
fn a_lock_that_is_held_is_not_had() {
    let Some(server) = server() else { return };
    take(&server, "alice");
    let ended = end(&mut run_sh([&server], &[], "echo ran"));
    ended.assert_code(117).assert_says("\"lock\" is held by al…,").assert_says("--wait");
    assert_eq!(ended.out, "");
    for (options, code) in
        [(&["-q"][..], 117), (&["-q", "-E", "0"], 0), (&["-q", "--conflict-exit-code", "9"], 9)]
    {
        let ended = end(&mut run_sh([&server], options, "echo ran"));
        ended.assert_code(code);
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("", ""));
    }
}

#[test]
fn waiting_ends_in_time_or_with_the_lock() {
    let Some(server) = server() else { return };
    take(&server, "alice");
    let began = Instant::now();
    let ended = end(&mut run_sh([&server], &["--wait", "1s 500ms"], "echo ran"));
    assert!(began.elapsed() >= Duration::from_millis(1500), "{:?}", began.elapsed());
    ended.assert_code(117).assert_says("not free in time: al… has it");
    wait_waiters(&server, 0);

    let waiting = start(&mut run_sh([&server], &["--wait", "forever", "--verbose"], "echo ran"));
    wait_waiters(&server, 1);
    assert_eq!(cmd!(server.connect(), "LOCK.RELEASE", "lock", "alice").int(), 1);
    waiting.expect("ran");
    waiting.end().assert_code(0).assert_says("held, token ").assert_says("released");
}

#[test]
fn a_command_that_cannot_be_started() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("no-interpreter");
    fs::write(&script, "#!/nowhere/sh\n").unwrap();
    let mut mode = fs::metadata(&script).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    fs::set_permissions(&script, mode).unwrap();
    let run = |name: &OsStr| end(lockfence([&server]).args(["run", "--lock", "lock", "--"]).arg(name));
    run(OsStr::new("no-such-command")).assert_code(127).assert_says("no-such-command");
    run(script.as_os_str()).assert_code(127);
    run(OsStr::new("/etc/passwd")).assert_code(126).assert_says("/etc/passwd");
    run(folder.path().as_os_str()).assert_code(126);
    assert!(is_free(&server));
}

#[test]
fn what_cannot_work_is_said_before_anything_is_sent() {
    let Some(server) = server() else { return };
    let url = server.url();
    let other = "redis://127.0.0.1:1";
    let cases: [(&[&str], &str); 16] = [
        (&["run", "--", "true"], "--lock"),
        (&["run", "--lock", "lock"], "COMMAND"),
        (&["run", "--lock", "", "--", "true"], "a lock needs a name"),
        (&["run", "--lock", "lock", "--ttl", "30", "--", "true"], "durations are like 30s"),
        (&["run", "--lock", "lock", "--ttl", "1ms", "--", "true"], "ttl"),
        (&["run", "--lock", "lock", "--wait", "soon", "--", "true"], "forever"),
        (&["run", "--lock", "lock", "--shared", "--limit", "2", "--", "true"], "--limit"),
        (&["run", "--lock", "lock", "--limit", "0", "--", "true"], "0"),
        (&["run", "--lock", "lock", "--max-hold", "0s", "--", "true"], "--max-hold"),
        (&["run", "--lock", "lock", "--min-replicas", "0", "--", "true"], "--min-replicas"),
        (&["run", "--node", &url, "--node", other, "--lock", "l", "--fsync", "--", "true"], "for one server"),
        (&["run", "--node", &url, "--node", other, "-l", "l", "--min-replicas=1", "true"], "for one server"),
        (&["run", "--lock", "lock", "-q", "-v", "--", "true"], "--verbose"),
        (&["run", "--lock", "lock", "--lok", "--", "true"], "--lok"),
        (&["run", "--node", &url, "--node", &url, "--lock", "lock", "--", "true"], "given twice"),
        (&["run", "--node", "nonsense", "--lock", "lock", "--", "true"], "nonsense"),
    ];
    for (args, what) in cases {
        let ended = end(lockfence([&server]).args(args));
        ended.assert_code(125).assert_says(what);
        assert_eq!(ended.out, "");
    }
    let nowhere = end(at([]).args(["run", "--lock", "lock", "--", "true"]));
    nowhere.assert_code(125).assert_says("LOCKFENCE_NODES").assert_says("--node");
    assert!(info(&server, "lock").is_nil());
}

#[test]
fn servers_that_cannot_help_are_named() {
    let Some(server) = server() else { return };
    let nobody = "redis://127.0.0.1:1".to_owned();
    let run = ["run", "--lock", "lock", "--", "echo", "ran"];
    let ended = end(at([nobody.clone()]).args(run));
    ended.assert_code(119).assert_says("127.0.0.1:1").assert_says("is the port right");
    assert_eq!(ended.out, "");
    let plain = Server::builder(ServerKind::Redis70).without_module().start();
    for args in [&run[..], &["ls"], &["info", "lock"], &["break", "lock", "--yes"]] {
        end(lockfence([&plain]).args(args))
            .assert_code(125)
            .assert_says("has not loaded the lockfence module");
    }
    cmd!(server.connect(), "SET", "lock", "data").ok();
    end(lockfence([&server]).args(run))
        .assert_code(125)
        .assert_says("WRONGTYPE")
        .assert_says("choose another name for the lock");
}

/// What newcomers meet, and what to do about it.
#[test]
fn errors_say_what_to_do() {
    let Some(server) = server() else { return };
    let run = ["run", "--lock", "lock", "--", "echo", "ran"];
    for address in ["localhost:6379", "10.0.0.1", "user:sesame@localhost:6379"] {
        for args in [&run[..], &["ls"]] {
            let ended = end(at([address.to_owned()]).args(args));
            ended.assert_code(125).assert_says("put redis:// before it");
            assert!(!ended.err.contains("sesame"), "{ended:?}");
        }
    }
    let place = format!("127.0.0.1:{}", server.port());
    for (address, code, hint) in [
        ("http://localhost".to_owned(), 125, "an address is like redis://host:6379"),
        (format!("redis+sentinel://{place}/main"), 119, "that is no sentinel"),
        (format!("redis+cluster://{place}"), 119, "is that a cluster?"),
        (format!("redis://who:sesame@{place}"), 125, "are user and password right?"),
    ] {
        end(at([address]).args(["ls", "--node-timeout", "2s"])).assert_code(code).assert_says(hint);
    }
    let Some(primary) = crate::common::server() else { return };
    server.replicate_from(&primary);
    server.wait_in_sync(&primary);
    end(lockfence([&server]).args(run)).assert_code(119).assert_says("this is a replica: name its primary");
    end(lockfence([&server]).args(["break", "lock", "-y"])).assert_code(119).assert_says("this is a replica");
    end(lockfence([&server]).arg("ls")).assert_code(0);
    primary.pause();
    let ended = end(lockfence([&primary]).args(run));
    primary.resume();
    ended.assert_code(119).assert_says(&format!("127.0.0.1:{}", primary.port()));
}

server_tests! {
    /// Replicas, and the disk, have the lock before the command begins.
    fn others_vouch_for_it(kind: ServerKind) {
        let primary = Server::builder(kind).arg("appendonly", "yes").start();
        let run = |options: &[&str]| end(&mut run_sh([&primary], options, "echo ran"));
        let alone = run(&["--min-replicas", "1"]);
        alone.assert_code(119).assert_says("acknowledged by 0 of 1 replicas");
        assert_eq!(alone.out, "");
        assert!(is_free(&primary), "given back");
        let replica = Server::start(kind);
        replica.replicate_from(&primary);
        replica.wait_in_sync(&primary);
        run(&["--min-replicas", "1"]).assert_code(0);
        let on_disk = run(&["--fsync", "--min-replicas", "1"]);
        if kind == ServerKind::Redis70 {
            on_disk.assert_code(125).assert_says("--fsync needs Redis 7.2");
            assert_eq!(on_disk.out, "");
        } else {
            on_disk.assert_code(0);
            primary.config_set("appendonly", "no");
            run(&["--fsync"]).assert_code(125).assert_says("appendonly yes");
        }
        assert!(is_free(&primary), "given back");
    }
}

#[test]
fn readers_share_and_a_semaphore_counts() {
    let Some(server) = server() else { return };
    for (options, others) in [(["--shared", "--ttl=10m"], 5), (["--limit=2", "--ttl=10m"], 1)] {
        let mut held: Vec<Running> = Vec::new();
        for _ in 0..=others.min(1) {
            held.push(start(&mut run_sh([&server], &options, "echo in; exec sleep 600")));
            held.last().unwrap().expect("in");
        }
        assert_eq!(info(&server, "lock").field("holders").int(), 2);
        end(&mut run_sh([&server], &[], "echo ran")).assert_code(117);
        let third = end(&mut run_sh([&server], &options, "echo ran"));
        third.assert_code(if others > 1 { 0 } else { 117 });
        for run in held {
            run.signal(nix::sys::signal::Signal::SIGTERM);
            run.end().assert_code(143);
        }
        assert!(is_free(&server));
    }
}

/// A quorum works with one of three servers down, and says which are down when two are.
#[test]
fn a_quorum_bears_one_failure() {
    let Some(servers) = three() else { return };
    servers[0].kill9();
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let ended = end(&mut run_sh(&servers, &["--wait", "30s"], "echo $LOCKFENCE_TOKEN"));
        ended.assert_code(0);
        assert_eq!(ended.err, "");
        tokens.push(ended.out.trim().parse::<u64>().unwrap());
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    let limit = end(&mut run_sh(&servers, &["--limit", "2"], "echo ran"));
    limit.assert_code(125).assert_says("quorum");
    servers[1].kill9();
    let ended = end(&mut run_sh(&servers, &[], "echo ran"));
    ended.assert_code(119);
    for server in &servers[..2] {
        ended.assert_says(&format!("127.0.0.1:{}", server.port()));
    }
    assert_eq!(ended.out, "");
}

/// Who does not get a majority leaves nothing at the others.
#[test]
fn a_minority_is_given_back_at_once() {
    let Some(servers) = three() else { return };
    servers[..2].iter().for_each(|server| take(server, "alice"));
    for options in [&[][..], &["--wait", "100ms"]] {
        end(&mut run_sh(&servers, options, "echo ran")).assert_code(117);
        assert!(is_free(&servers[2]), "{:?}", info(&servers[2], "lock"));
    }
}

#[test]
fn an_even_number_of_servers_is_remarked_on() {
    let Some(server) = server() else { return };
    let Some(other) = crate::common::server() else { return };
    end(&mut run_sh([&server, &other], &[], "true"))
        .assert_code(0)
        .assert_says("2 servers bear no more failures");
    assert_eq!(end(&mut run_sh([&server, &other], &["-q"], "true")).err, "");
}

/// `--node` goes before the environment.
#[test]
fn nodes_come_from_the_command_line_or_the_environment() {
    let Some(server) = server() else { return };
    let url = server.url();
    let mut command = Command::new(PROGRAM);
    command.env("LOCKFENCE_NODES", "redis://127.0.0.1:1").args(["ls", "--node", &url]);
    end(&mut command).assert_code(0);
    let mut command = Command::new(PROGRAM);
    command.env("LOCKFENCE_NODES", format!(" {url} ,")).arg("ls");
    end(&mut command).assert_code(0);
}

/// The command gets the usual signals: a closed pipe ends it, whatever lockfence does about its own.
#[test]
fn the_command_starts_with_signals_as_usual() {
    let Some(server) = server() else { return };
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; yes | head -1";
    let without = end(with_usual_signals("sh").args(["-c", script]));
    assert!(without.out.ends_with("\ny\n"), "{without:?}");
    let ended = end(&mut run_sh([&server], &[], script));
    ended.assert_code(0);
    assert_eq!((ended.out, ended.err), (without.out, String::new()));
}

/// TLS with authorities and a certificate of one's own, from files; without them the server is not trusted.
#[test]
fn servers_with_tls() {
    if !ServerKind::Redis70.present() {
        return;
    }
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let certificate = file("cert.pem", identity.cert.pem());
    let key = file("key.pem", identity.signing_key.serialize_pem());
    let port = PortLease::take();
    let server = Server::builder(ServerKind::Redis70)
        .arg("tls-port", port.port())
        .arg("tls-cert-file", &certificate)
        .arg("tls-key-file", &key)
        .arg("tls-ca-cert-file", &certificate)
        .start();
    let run = |files: &[&str]| {
        let mut command = at([format!("rediss://localhost:{}", port.port())]);
        command.args(["run", "--lock", "lock"]).args(files).args(["--", "echo", "ran"]);
        end(&mut command)
    };
    let ended = run(&["--tls-ca", &certificate, "--tls-cert", &certificate, "--tls-key", &key]);
    ended.assert_code(0);
    assert_eq!(ended.out, "ran\n");
    run(&[]).assert_code(119).assert_says("--tls-ca names a file");
    let plain = end(at([format!("redis://localhost:{}", port.port())]).args(["ls"]));
    plain.assert_code(119).assert_says("write rediss:// for redis://");
    let tls = format!("rediss://localhost:{}", server.port());
    let tls = end(at([tls]).args(["ls", "--node-timeout", "500ms"]));
    tls.assert_code(119).assert_says("rediss:// with it");
    let other =
        end(at([format!("rediss://127.0.0.1:{}", port.port())]).args(["ls", "--tls-ca", &certificate]));
    other.assert_code(119).assert_says("good for the host as it stands in the address");
    run(&["--tls-ca", &key]).assert_code(125).assert_says("has no certificate in it");
    run(&["--tls-ca", "/nowhere"]).assert_code(125).assert_says("/nowhere");
    run(&["--tls-ca", &certificate, "--tls-cert", &certificate]).assert_code(125).assert_says("--tls-key");
    assert!(is_free(&server));
}
