// SPDX-License-Identifier: GPL-2.0-or-later

//! The daemon: restarts, kills, a full disk, other users, and starts by systemd.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::unistd::Pid;
use serde_json::json;
use slipway_tests::{Attach, slipway, slipway_only, within};

use crate::server::{RELEASE, Reply, Rules, Server, soon};
use crate::stage::{SOCKET, STATE, Stage, address, is_up};

/// The next daemon continues with the leases, however the last one ended.
#[test]
fn leases_survive_restarts_of_daemon_and_server() {
    needs_dnsmasq!();
    let stage = Stage::with_dnsmasq(&[]);
    let network = stage.network(&json!({}));
    let pod = stage.node.pod("pod");
    let attach = Attach::new(&pod);
    let result = network.add(&attach).expect("ADD");
    let ip = address(&result);
    let file = stage.node.read(&format!("{STATE}/lan:pod:eth0"));
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        stage.stop("daemon", signal);
        stage.start_daemon(&[]);
        assert_eq!(stage.node.read(&format!("{STATE}/lan:pod:eth0")), file, "after {signal}");
    }
    // dnsmasq has no lease file here, so it has forgotten its clients.
    stage.stop("dnsmasq", Signal::SIGTERM);
    stage.start_dnsmasq(&stage.node, "lan0", &[]);
    let before = stage.logged(&format!("DHCPACK(lan0) {ip}"));
    network.check(&attach).expect("CHECK");
    stage.wait("the lease is renewed", || stage.logged(&format!("DHCPACK(lan0) {ip}")) > before);
    assert!(is_up(&pod));
    network.del(&attach).expect("DEL");
    stage.wait("the server receives the release", || stage.logged(&format!("DHCPRELEASE(lan0) {ip}")) == 1);
    assert_eq!(stage.leases(), Vec::<String>::new());
}

/// The daemon renews leases when they are due, without a call. Leases from before a reboot have ended.
#[test]
fn a_started_daemon_renews_leases_that_are_due() {
    slipway_only!();
    let (stage, server) = Server::start_with_daemon(Rules { times: [3, 100, 200], ..Rules::default() });
    let pod = stage.node.pod("pod");
    stage.network(&json!({})).add(&Attach::new(&pod)).expect("ADD");
    stage.stop("daemon", Signal::SIGKILL);
    let file = format!("{STATE}/lan:pod:eth0");
    let mut old: serde_json::Value =
        serde_json::from_str(&stage.node.read(&file).expect("a file")).expect("JSON");
    old["boot"] = "00000000-0000-0000-0000-000000000000".into();
    old["owner"]["container"] = "old".into();
    stage.node.write(&format!("{STATE}/lan:old:eth0"), old.to_string());
    stage.node.write(&format!("{STATE}/lan:broken:eth0"), "{");
    std::thread::sleep(Duration::from_secs(3));
    stage.start_daemon(&[]);
    stage.wait("the lease is renewed", || server.count(|received| received.extends(false)) >= 1);
    assert_eq!(stage.leases(), ["lan:broken:eth0", "lan:pod:eth0"]);
    stage.network(&json!({})).del(&Attach::new(&pod)).expect("DEL");
}

/// The daemon is killed at each of its writes, during an ADD and during a DEL. After that, the next daemon and a DEL
/// leave nothing behind.
#[test]
fn a_daemon_killed_at_any_write_leaves_nothing() {
    slipway_only!();
    let stage = Stage::new();
    let server = Server::start(&stage, Rules::default());
    let pod = stage.node.pod("pod");
    let network = stage.network(&json!({}));
    let attach = Attach::new(&pod);
    let mut kills = 0;
    // strace counts per thread, and a single call makes only few of these system calls.
    for syscall in ["write", "fsync", "renameat", "renameat2", "unlinkat", "sendto", "openat"] {
        for nth in 1..=if syscall == "openat" { 8 } else { 3 } {
            let mut command = Command::new("strace");
            let inject = format!("inject={syscall}:signal=KILL:when={nth}");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &inject, "-e", &format!("trace={syscall}")]);
            command.arg(slipway()).args(["dhcp", "daemon", "-timeout", "3s"]);
            stage.start("daemon", &stage.node, command);
            stage.wait("the daemon listens, or was killed", || {
                stage.has_ended("daemon") || {
                    stage.has_socket() && stage.node.run(|| UnixStream::connect(SOCKET)).is_ok()
                }
            });
            let added = network.add(&attach);
            let deleted = network.del(&attach);
            let killed = stage.has_ended("daemon");
            assert!(killed || (added.is_ok() && deleted.is_ok()), "{syscall} {nth}: {added:?} {deleted:?}");
            kills += usize::from(killed);
            if !killed {
                stage.stop("daemon", Signal::SIGKILL);
            }
            stage.start_daemon(&[]);
            network.del(&attach).unwrap_or_else(|e| panic!("{syscall} {nth}: {e}"));
            assert_eq!(stage.node.list(STATE), ["lock"], "{syscall} {nth}");
            assert!(!pod.has_link("eth0"), "{syscall} {nth}");
            stage.stop("daemon", Signal::SIGKILL);
        }
    }
    assert!(kills >= 8, "{kills} kills");
    stage.start_daemon(&[]);
    assert_eq!(address(&network.add(&attach).expect("ADD")), "10.77.0.50");
    network.del(&attach).expect("DEL");
    assert!(server.count(|received| received.kind == RELEASE) >= 1);
}

/// A lease that the daemon cannot write is released at once.
#[test]
fn add_on_a_full_disk_fails_and_leaves_nothing() {
    slipway_only!();
    let stage = Stage::new();
    let server = Server::start(&stage, Rules::default());
    stage.node.cmd(&format!("mkdir -p {STATE}"));
    stage.node.cmd(&format!("mount -t tmpfs -o size=64k,mode=700 none {STATE}"));
    stage.start_daemon(&[]);
    stage.node.try_cmd(&format!("dd if=/dev/zero of={STATE}/full bs=4k"));
    let (pod, network) = (stage.node.pod("pod"), stage.network(&json!({})));
    let failure = network.add(&Attach::new(&pod)).expect_err("ADD");
    assert_eq!(failure.error.code, 5, "{failure}");
    assert!(failure.error.msg.contains("No space left") || failure.error.msg.contains("ENOSPC"), "{failure}");
    stage.wait("the lease is released", || server.count(|received| received.kind == RELEASE) == 1);
    assert_eq!(stage.leases(), ["full"]);
    assert!(!pod.has_link("eth0"));
    stage.node.cmd(&format!("rm {STATE}/full"));
    network.add(&Attach::new(&pod)).expect("ADD");
    network.del(&Attach::new(&pod)).expect("DEL");
}

/// ADD fails and leaves nothing behind. DEL succeeds if there is no lease.
#[test]
fn without_a_daemon_add_fails_and_del_works_if_there_is_no_lease() {
    slipway_only!();
    let stage = Stage::new();
    let _server = Server::start(&stage, Rules::default());
    let (pod, network, attach) = stage.pod();
    let failure = network.add(&attach).expect_err("ADD");
    let start = "error dialing DHCP daemon: dial unix /run/cni/dhcp.sock: ";
    assert!(failure.error.msg.starts_with(start), "{failure}");
    assert_eq!(network.status().expect_err("STATUS").error.code, 50);
    network.del(&attach).expect("DEL without a lease");
    assert!(!pod.has_link("eth0"));
    // DEL fails without a daemon to release the lease, so the lease is kept.
    stage.start_daemon(&[]);
    network.add(&attach).expect("ADD");
    stage.stop("daemon", Signal::SIGTERM);
    assert_eq!(network.del(&attach).expect_err("DEL").error.code, 11);
    stage.start_daemon(&[]);
    network.del(&attach).expect("DEL");
    assert_eq!(stage.leases(), Vec::<String>::new());
    let wrong = stage.network(&json!({"request": [{"option": "nonsense"}]}));
    let failure = wrong.add(&attach).expect_err("ADD");
    assert!(failure.error.msg.contains("Can not parse option \"nonsense\""), "{failure}");
}

/// A lease from before a reboot has ended, and an unreadable one could not be released by a daemon either, so DEL and
/// GC need no daemon for these.
#[test]
fn del_of_leases_from_before_a_reboot_needs_no_daemon() {
    slipway_only!();
    let (stage, _server) = Server::start_with_daemon(Rules::default());
    let (_pod, network, attach) = stage.pod();
    network.add(&attach).expect("ADD");
    stage.stop("daemon", Signal::SIGTERM);
    let file = format!("{STATE}/lan:pod:eth0");
    let kept = stage.node.read(&file).expect("a file");
    let gc = || network.gc_plugins(&json!([]));
    assert_eq!(gc().expect_err("GC")[0].error.code, 11);
    let mut old: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
    old["boot"] = "00000000-0000-0000-0000-000000000000".into();
    for content in [old.to_string(), "{".to_owned()] {
        stage.node.write(&file, &kept);
        assert_eq!(network.del(&attach).expect_err("DEL").error.code, 11);
        stage.node.write(&file, &content);
        network.del(&attach).unwrap_or_else(|error| panic!("{content}: {error}"));
        gc().unwrap_or_else(|errors| panic!("{content}: {errors:?}"));
    }
    // A file that cannot be opened might be a lease.
    stage.node.cmd(&format!("rm {file}"));
    stage.node.cmd(&format!("ln -s /run/none {file}"));
    assert_eq!(network.del(&attach).expect_err("DEL").error.code, 11);
}

/// Tests a daemon that does not answer, and a socket whose queue is full.
#[test]
fn calls_to_a_daemon_that_hangs_time_out() {
    slipway_only!();
    let (stage, _server) = Server::start_with_daemon(Rules::default());
    let (_pod, network, attach) = stage.pod();
    network.add(&attach).expect("ADD");
    kill(Pid::from_raw(i32::try_from(stage.pid("daemon")).expect("a process ID")), Signal::SIGSTOP)
        .expect("send a signal");
    let start = Instant::now();
    let error = network.status().expect_err("STATUS").error;
    assert_eq!(error.code, 50, "{error:?}");
    assert_eq!(error.msg, "error calling DHCP.Ping: the daemon has not answered for 5 s");
    assert!(start.elapsed() < within(Duration::from_secs(15)), "{:?}", start.elapsed());
    let start = Instant::now();
    std::thread::scope(|scope| {
        let calls = [
            ("Release", scope.spawn(|| network.del(&attach).expect_err("DEL").error)),
            ("Renew", scope.spawn(|| network.check(&attach).expect_err("CHECK").error)),
            ("Retain", scope.spawn(|| network.gc_plugins(&json!([])).expect_err("GC").remove(0).error)),
        ];
        for (method, call) in calls {
            let error = call.join().expect("no panic");
            assert_eq!(error.code, 11, "{error:?}");
            let text = format!("error calling DHCP.{method}: the daemon has not answered for 30 s");
            assert!(error.msg.ends_with(&text), "{error:?}");
        }
    });
    assert!(start.elapsed() < within(Duration::from_secs(50)), "{:?}", start.elapsed());
    // No process accepts connections and the queue is full, so connecting blocks.
    let full = stage.node.run(|| {
        let address = UnixAddr::new("/run/full").expect("an address");
        let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
        let socket = socket.expect("a socket");
        bind(socket.as_raw_fd(), &address).expect("bind");
        listen(&socket, Backlog::new(1).expect("a number")).expect("listen");
        let waiting: Vec<_> = (0..2).map(|_| UnixStream::connect("/run/full").expect("connect")).collect();
        (socket, waiting)
    });
    let error = stage.network(&json!({"daemonSocketPath": "/run/full"})).status().expect_err("STATUS").error;
    assert_eq!(error.code, 50, "{error:?}");
    assert!(error.msg.starts_with("error dialing DHCP daemon: dial unix /run/full: "), "{error:?}");
    drop(full);
    // The daemon continues, and executes the calls in its queue.
    kill(Pid::from_raw(i32::try_from(stage.pid("daemon")).expect("a process ID")), Signal::SIGCONT)
        .expect("send a signal");
    stage.wait("the lease is released", || stage.leases().is_empty());
    network.del(&attach).expect("DEL");
}

/// Only root may call the daemon, and only root's daemon is accepted. Invalid calls get an error and do no
/// harm.
#[test]
fn only_root_may_call_or_be_the_daemon() {
    slipway_only!();
    let stage = Stage::new();
    stage.start_daemon(&[]);
    let mode = |path: &str| stage.node.cmd(&format!("stat -c %a:%U {path}")).trim().to_owned();
    assert_eq!((mode(SOCKET), mode(STATE)), ("600:root".to_owned(), "700:root".to_owned()));
    assert_eq!(mode("/run/cni"), "755:root");
    let send = |bytes: &[u8]| {
        let mut stream = stage.node.run(|| UnixStream::connect(SOCKET)).expect("connect");
        // The daemon may close the socket before it has read everything.
        drop(stream.write_all(bytes));
        drop(stream.shutdown(std::net::Shutdown::Write));
        let mut answer = String::new();
        drop(stream.read_to_string(&mut answer));
        answer
    };
    assert_eq!(send(b"{\"do\":\"ping\"}\n"), "{\"done\":{}}\n");
    for nonsense in [&b""[..], b"\n", b"{\"do\":\"ping\"}", b"{\"do\":\"nothing\"}\n", b"\xff\xff\n"] {
        assert!(send(nonsense).starts_with("{\"failed\":{\"code\":5,"), "{nonsense:?}");
    }
    let owner = |container: &str| json!({"network": "lan", "container": container, "ifname": "eth0"});
    let options = json!({"provide": [], "request": []});
    let call = |container: &str, netns: &str| {
        let call = json!({"do": "allocate", "owner": owner(container), "netns": netns, "options": options});
        send(format!("{call}\n").as_bytes())
    };
    assert!(call("../x", "/run/netns/x").starts_with("{\"failed\":"));
    assert!(call("c", "/proc/1/../thread-self/ns/net").contains("is not an absolute path"));
    assert!(call("c", "run/netns/x").contains("is not an absolute path"));
    assert!(call("c", "/etc/passwd").starts_with("{\"failed\":"));
    let own = format!("/proc/{}/ns/net", stage.pid("daemon"));
    assert!(call("c", &own).contains("is the network namespace of the daemon"), "{}", call("c", &own));
    drop(send(&vec![b' '; 3 << 20]));
    assert_eq!(send(b"{\"do\":\"ping\"}\n"), "{\"done\":{}}\n");
    // Another user who can open the socket makes a call.
    stage.node.cmd(&format!("chmod 666 {SOCKET}"));
    let unprivileged = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let config = json!({"cniVersion": "1.1.0", "name": "lan", "type": "dhcp", "ipam": {"type": "dhcp"}});
    let failure =
        stage.node.plugin("dhcp").command("STATUS").config(&config).through(&unprivileged).run().error();
    assert!(failure.msg.contains("belongs to user 65534, not to root"), "{failure:?}");
    // Another user listens on the socket.
    stage.node.cmd("mkdir /run/other");
    stage.node.cmd("chown 65534 /run/other");
    let mut command = Command::new(unprivileged[0]);
    command.args(&unprivileged[1..]).arg(slipway()).args(["dhcp", "daemon"]);
    command.args(["-socketpath", "/run/other/s", "-statedir", "/run/other/leases"]);
    stage.start("impostor", &stage.node, command);
    stage.wait("it listens", || stage.node.run(|| UnixStream::connect("/run/other/s")).is_ok());
    let network = stage.network(&json!({"daemonSocketPath": "/run/other/s"}));
    let failure = network.status().expect_err("STATUS");
    assert!(failure.error.msg.contains("belongs to user 65534, not to root"), "{failure}");
}

#[test]
fn two_daemons_do_not_share_leases() {
    slipway_only!();
    let stage = Stage::new();
    stage.start_daemon(&["-pidfile", "/run/dhcp.pid"]);
    assert_eq!(stage.node.read("/run/dhcp.pid"), Some(stage.pid("daemon").to_string()));
    let second = stage.node.try_slipway("dhcp daemon -socketpath /run/cni/other.sock");
    assert_eq!(second.code, Some(1), "{second}");
    assert!(second.stderr.contains("another daemon keeps these leases"), "{second}");
    let second = stage.node.try_slipway("dhcp daemon -statedir /run/leases");
    assert!(second.stderr.contains("slipway dhcp: Error getting listener: "), "{second}");
    // A daemon that fails to start does not write its PID file.
    for flags in ["", "-statedir /run/leases"] {
        let second = stage.node.try_slipway(&format!("dhcp daemon -pidfile /run/dhcp.pid {flags}"));
        assert_eq!(second.code, Some(1), "{second}");
        assert_eq!(stage.node.read("/run/dhcp.pid"), Some(stage.pid("daemon").to_string()), "{flags}");
    }
    let wrong = stage.node.try_slipway("dhcp daemon -nonsense");
    assert_eq!(wrong.code, Some(2), "{wrong}");
    assert!(wrong.stderr.contains("(see `slipway dhcp --help`)"), "{wrong}");
    let relative = stage.node.try_slipway("dhcp daemon -statedir /run/leases -pidfile pid");
    assert!(relative.stderr.contains("Error writing pidfile \"pid\": path not absolute"), "{relative}");
}

/// `slipway uninstall` keeps leases and a running daemon's folder.
#[test]
fn uninstall_waits_for_leases_and_their_daemon() {
    slipway_only!();
    let (stage, _server) = Server::start_with_daemon(Rules::default());
    let (pod, network) = (stage.node.pod("pod"), stage.network(&json!({})));
    network.add(&Attach::new(&pod)).expect("ADD");
    let uninstall = || stage.node.slipway("uninstall --to /run/none");
    let report = uninstall();
    assert!(
        report.contains("leave   /var/lib/cni/dhcp (/var/lib/cni/dhcp/lan:pod:eth0 is a lease)"),
        "{report}"
    );
    network.del(&Attach::new(&pod)).expect("DEL");
    let report = uninstall();
    assert!(report.contains("leave   /var/lib/cni/dhcp (slipway dhcp daemon runs)"), "{report}");
    stage.stop("daemon", Signal::SIGTERM);
    let report = uninstall();
    assert!(report.contains("remove  /var/lib/cni/dhcp\n"), "{report}");
    assert!(stage.node.run(|| !std::path::Path::new(STATE).exists()));
}

/// The daemon is in a container and sees the host's files at another path.
#[test]
fn a_daemon_may_see_the_hosts_files_at_another_path() {
    slipway_only!();
    let stage = Stage::new();
    let _server = Server::start(&stage, Rules::default());
    let pod = stage.node.pod("pod");
    stage.node.cmd("mkdir -p /run/cni /run/host/run /run/host/var/lib");
    stage.node.cmd("mount --rbind /run /run/host/run");
    stage.node.cmd("mount --bind /var/lib /run/host/var/lib");
    stage.start_daemon(&["-hostprefix", "/run/host"]);
    let network = stage.network(&json!({}));
    network.add(&Attach::new(&pod)).expect("ADD");
    let lease = stage.node.read(&format!("{STATE}/lan:pod:eth0")).expect("a file");
    assert!(lease.contains("\"/run/host/run/netns/pod\""), "{lease}");
    network.del(&Attach::new(&pod)).expect("DEL");
    assert_eq!(stage.leases(), Vec::<String>::new());
}

/// The capabilities in the systemd unit are sufficient from ADD to DEL.
#[test]
fn the_units_capabilities_are_enough() {
    slipway_only!();
    let unit = include_str!("../../../cni/slipway/systemd/cni-dhcp.service");
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("a line");
    let kept: Vec<String> =
        line.split_whitespace().map(|name| name.replace("CAP_", "+").to_lowercase()).collect();
    let set = format!("-all,{}", kept.join(","));
    let stage = Stage::new();
    let server = Server::start(&stage, Rules { times: soon([1, 2, 4]), ..Rules::default() });
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", &set, "--inh-caps=-all", "--no-new-privs"]).arg(slipway());
    command.args(["dhcp", "daemon", "-timeout", "2s"]);
    stage.start("daemon", &stage.node, command);
    stage.wait_for_daemon();
    let (pod, network) = (stage.node.pod("pod"), stage.network(&json!({})));
    network.add(&Attach::new(&pod)).expect("ADD");
    stage.wait("the lease is renewed", || server.count(|received| received.extends(false)) >= 1);
    server.change(|rules| {
        *rules = Rules { discover: Reply::None, renew: Reply::None, rebind: Reply::None, ..rules.clone() };
    });
    stage.wait("the link is set down", || !is_up(&pod));
    network.del(&Attach::new(&pod)).expect("DEL");
}

/// systemd executes the plugin under its name, with the socket as descriptor 3.
#[test]
fn a_socket_passed_by_systemd_is_used() {
    slipway_only!();
    let stage = Stage::new();
    let _server = Server::start(&stage, Rules::default());
    stage.node.cmd("mkdir -p /run/cni");
    let listener = stage.node.run(|| UnixListener::bind(SOCKET)).expect("a socket");
    let (_pod, network, attach) = stage.pod();
    std::thread::scope(|scope| {
        // The call waits in the socket's queue.
        let add = scope.spawn(|| network.add(&attach).expect("ADD"));
        std::thread::sleep(Duration::from_millis(300));
        let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" daemon -timeout 3s";
        let program = stage.node.bin().join("dhcp");
        let input = Stdio::from(OwnedFd::from(listener.try_clone().expect("a copy")));
        let child =
            stage.node.run(|| Command::new("sh").args(["-c", script]).arg(program).stdin(input).spawn());
        let mut child = child.expect("a daemon");
        assert_eq!(address(&add.join().expect("no panic")), "10.77.0.50");
        network.del(&attach).expect("DEL");
        child.kill().expect("a child");
        child.wait().expect("a child");
    });
    // The daemon neither creates nor removes a socket that systemd made.
    assert!(stage.has_socket());
    // LISTEN_FDS without a socket is an error.
    let script = "exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" daemon";
    let program = stage.node.bin().join("dhcp");
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&program);
    let output = stage.node.exec(command, b"");
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.stderr.contains("Error getting listener: LISTEN_FDS=1 but no FD found"), "{output}");
}
