//! The daemon: started again, killed, out of space, called by others, started by systemd.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::unistd::Pid;
use serde_json::json;
use slipway_tests::{Attach, slipway, within};

use crate::server::{RELEASE, Rules, Say, Server};
use crate::stage::{SOCKET, STATE, Stage, address, is_up};

/// Whatever ends it, the next one goes on.
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
    // dnsmasq, which has no file here, knows nobody any more.
    stage.stop("dnsmasq", Signal::SIGTERM);
    stage.start_dnsmasq(&stage.node, "lan0", &[]);
    let before = stage.said(&format!("DHCPACK(lan0) {ip}"));
    network.check(&attach).expect("CHECK");
    stage.wait("it is renewed", || stage.said(&format!("DHCPACK(lan0) {ip}")) > before);
    assert!(is_up(&pod));
    network.del(&attach).expect("DEL");
    stage.wait("the server hears it", || stage.said(&format!("DHCPRELEASE(lan0) {ip}")) == 1);
    assert_eq!(stage.leases(), Vec::<String>::new());
}

/// Leases go on at their times, not when somebody calls; those of the machine's last run are over.
#[test]
fn a_daemon_that_starts_renews_what_is_due() {
    ours_alone!();
    let stage = Stage::new();
    let server = Server::start(&stage, Rules { times: [3, 100, 200], ..Rules::default() });
    stage.start_daemon(&[]);
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
    stage.wait("it is renewed", || server.count(|heard| heard.extends(false)) >= 1);
    assert_eq!(stage.leases(), ["lan:broken:eth0", "lan:pod:eth0"]);
    stage.network(&json!({})).del(&Attach::new(&pod)).expect("DEL");
}

/// Killed at each of its writes in turn, in an ADD and in a DEL: the next daemon, and a DEL, leave nothing.
#[test]
fn a_daemon_that_is_killed_between_any_two_writes_leaves_nothing_behind() {
    ours_alone!();
    let stage = Stage::new();
    let server = Server::start(&stage, Rules::default());
    let pod = stage.node.pod("pod");
    let network = stage.network(&json!({}));
    let attach = Attach::new(&pod);
    let mut kills = 0;
    // Each thread is counted by itself: a call has few of these.
    for syscall in ["write", "fsync", "renameat", "renameat2", "unlinkat", "sendto", "openat"] {
        for nth in 1..=if syscall == "openat" { 8 } else { 3 } {
            let mut command = Command::new("strace");
            let inject = format!("inject={syscall}:signal=KILL:when={nth}");
            command.args(["-f", "-qq", "-o", "/dev/null", "-e", &inject, "-e", &format!("trace={syscall}")]);
            command.arg(slipway()).args(["dhcp", "daemon", "-timeout", "3s"]);
            stage.start("daemon", &stage.node, command);
            stage.wait("it listens, or was killed", || {
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
    assert!(server.count(|heard| heard.kind == RELEASE) >= 1);
}

/// A lease that cannot be written is given back at once.
#[test]
fn a_full_disk_is_said_and_leaves_nothing() {
    ours_alone!();
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
    stage.wait("it is given back", || server.count(|heard| heard.kind == RELEASE) == 1);
    assert_eq!(stage.leases(), ["full"]);
    assert!(!pod.has_link("eth0"));
    stage.node.cmd(&format!("rm {STATE}/full"));
    network.add(&Attach::new(&pod)).expect("ADD");
    network.del(&Attach::new(&pod)).expect("DEL");
}

/// Without a daemon: an error that says so, and nothing left.
#[test]
fn without_a_daemon_what_can_be_done_is_done() {
    ours_alone!();
    let stage = Stage::new();
    let _server = Server::start(&stage, Rules::default());
    let (pod, network) = (stage.node.pod("pod"), stage.network(&json!({})));
    let attach = Attach::new(&pod);
    let failure = network.add(&attach).expect_err("ADD");
    let start = "error dialing DHCP daemon: dial unix /run/cni/dhcp.sock: ";
    assert!(failure.error.msg.starts_with(start), "{failure}");
    assert_eq!(network.status().expect_err("STATUS").error.code, 50);
    network.del(&attach).expect("DEL of what there is not");
    assert!(!pod.has_link("eth0"));
    // A lease that nobody can give back is not forgotten.
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

/// What stands on the disk from before the machine was started again is nobody's lease, nor is what nobody can
/// read: no daemon would give it back either.
#[test]
fn leases_of_before_a_restart_need_no_daemon() {
    ours_alone!();
    let stage = Stage::new();
    let _server = Server::start(&stage, Rules::default());
    stage.start_daemon(&[]);
    let (pod, network) = (stage.node.pod("pod"), stage.network(&json!({})));
    let attach = Attach::new(&pod);
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
    // A file that the disk does not give, which is nothing of the attachment's to see here, may be a lease.
    stage.node.cmd(&format!("rm {file}"));
    stage.node.cmd(&format!("ln -s /run/none {file}"));
    assert_eq!(network.del(&attach).expect_err("DEL").error.code, 11);
}

/// A daemon that does not answer, and one whose queue is full of calls that it does not take.
#[test]
fn a_daemon_that_hangs_is_not_waited_for_for_long() {
    ours_alone!();
    let stage = Stage::new();
    let _server = Server::start(&stage, Rules::default());
    stage.start_daemon(&[]);
    let (pod, network) = (stage.node.pod("pod"), stage.network(&json!({})));
    let attach = Attach::new(&pod);
    network.add(&attach).expect("ADD");
    kill(Pid::from_raw(i32::try_from(stage.pid("daemon")).expect("a process ID")), Signal::SIGSTOP)
        .expect("send a signal");
    let start = Instant::now();
    let told = network.status().expect_err("STATUS").error;
    assert_eq!(told.code, 50, "{told:?}");
    assert_eq!(told.msg, "error calling DHCP.Ping: the daemon has not answered for 5 s");
    assert!(start.elapsed() < within(Duration::from_secs(15)), "{:?}", start.elapsed());
    let start = Instant::now();
    std::thread::scope(|scope| {
        let calls = [
            ("Release", scope.spawn(|| network.del(&attach).expect_err("DEL").error)),
            ("Renew", scope.spawn(|| network.check(&attach).expect_err("CHECK").error)),
            ("Retain", scope.spawn(|| network.gc_plugins(&json!([])).expect_err("GC").remove(0).error)),
        ];
        for (method, call) in calls {
            let told = call.join().expect("no panic");
            assert_eq!(told.code, 11, "{told:?}");
            let text = format!("error calling DHCP.{method}: the daemon has not answered for 30 s");
            assert!(told.msg.ends_with(&text), "{told:?}");
        }
    });
    assert!(start.elapsed() < within(Duration::from_secs(50)), "{:?}", start.elapsed());
    // Nobody takes what waits here: the second call does not even get in.
    let full = stage.node.run(|| {
        let address = UnixAddr::new("/run/full").expect("an address");
        let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
        let socket = socket.expect("a socket");
        bind(socket.as_raw_fd(), &address).expect("bind");
        listen(&socket, Backlog::new(1).expect("a number")).expect("listen");
        let waiting: Vec<_> = (0..2).map(|_| UnixStream::connect("/run/full").expect("connect")).collect();
        (socket, waiting)
    });
    let told = stage.network(&json!({"daemonSocketPath": "/run/full"})).status().expect_err("STATUS").error;
    assert_eq!(told.code, 50, "{told:?}");
    assert!(told.msg.starts_with("error dialing DHCP daemon: dial unix /run/full: "), "{told:?}");
    drop(full);
    // It goes on, and hears what was asked of it meanwhile.
    kill(Pid::from_raw(i32::try_from(stage.pid("daemon")).expect("a process ID")), Signal::SIGCONT)
        .expect("send a signal");
    stage.wait("the lease is given back", || stage.leases().is_empty());
    network.del(&attach).expect("DEL");
}

/// Root's alone, on both sides; what is not understood is answered, and does no harm.
#[test]
fn strangers_get_nothing() {
    ours_alone!();
    let stage = Stage::new();
    stage.start_daemon(&[]);
    let mode = |path: &str| stage.node.cmd(&format!("stat -c %a:%U {path}")).trim().to_owned();
    assert_eq!((mode(SOCKET), mode(STATE)), ("600:root".to_owned(), "700:root".to_owned()));
    assert_eq!(mode("/run/cni"), "755:root");
    let say = |bytes: &[u8]| {
        let mut stream = stage.node.run(|| UnixStream::connect(SOCKET)).expect("connect");
        // The daemon may stop listening before all is said.
        drop(stream.write_all(bytes));
        drop(stream.shutdown(std::net::Shutdown::Write));
        let mut answer = String::new();
        drop(stream.read_to_string(&mut answer));
        answer
    };
    assert_eq!(say(b"{\"do\":\"ping\"}\n"), "{\"done\":{}}\n");
    for nonsense in [&b""[..], b"\n", b"{\"do\":\"ping\"}", b"{\"do\":\"nothing\"}\n", b"\xff\xff\n"] {
        assert!(say(nonsense).starts_with("{\"failed\":{\"code\":5,"), "{nonsense:?}");
    }
    let owner = |container: &str| json!({"network": "lan", "container": container, "ifname": "eth0"});
    let options = json!({"provide": [], "request": []});
    let call = |container: &str, netns: &str| {
        let call = json!({"do": "allocate", "owner": owner(container), "netns": netns, "options": options});
        say(format!("{call}\n").as_bytes())
    };
    assert!(call("../x", "/run/netns/x").starts_with("{\"failed\":"));
    assert!(call("c", "/proc/1/../thread-self/ns/net").contains("is not an absolute path"));
    assert!(call("c", "run/netns/x").contains("is not an absolute path"));
    assert!(call("c", "/etc/passwd").starts_with("{\"failed\":"));
    let own = format!("/proc/{}/ns/net", stage.pid("daemon"));
    assert!(call("c", &own).contains("is the network namespace of the daemon"), "{}", call("c", &own));
    drop(say(&vec![b' '; 3 << 20]));
    assert_eq!(say(b"{\"do\":\"ping\"}\n"), "{\"done\":{}}\n");
    // Another user, whom somebody let at the socket.
    stage.node.cmd(&format!("chmod 666 {SOCKET}"));
    let nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let config = json!({"cniVersion": "1.1.0", "name": "lan", "type": "dhcp", "ipam": {"type": "dhcp"}});
    let failure = stage.node.plugin("dhcp").command("STATUS").config(&config).through(&nobody).run().error();
    assert!(failure.msg.contains("belongs to user 65534, not to root"), "{failure:?}");
    // And somebody who would like to be the daemon.
    stage.node.cmd("mkdir /run/other");
    stage.node.cmd("chown 65534 /run/other");
    let mut command = Command::new(nobody[0]);
    command.args(&nobody[1..]).arg(slipway()).args(["dhcp", "daemon"]);
    command.args(["-socketpath", "/run/other/s", "-statedir", "/run/other/leases"]);
    stage.start("impostor", &stage.node, command);
    stage.wait("it listens", || stage.node.run(|| UnixStream::connect("/run/other/s")).is_ok());
    let network = stage.network(&json!({"daemonSocketPath": "/run/other/s"}));
    let failure = network.status().expect_err("STATUS");
    assert!(failure.error.msg.contains("belongs to user 65534, not to root"), "{failure}");
}

#[test]
fn two_daemons_do_not_share_leases() {
    ours_alone!();
    let stage = Stage::new();
    stage.start_daemon(&["-pidfile", "/run/dhcp.pid"]);
    assert_eq!(stage.node.read("/run/dhcp.pid"), Some(stage.pid("daemon").to_string()));
    let second = stage.node.try_slipway("dhcp daemon -socketpath /run/cni/other.sock");
    assert_eq!(second.code, Some(1), "{second}");
    assert!(second.stderr.contains("another daemon keeps these leases"), "{second}");
    let second = stage.node.try_slipway("dhcp daemon -statedir /run/leases");
    assert!(second.stderr.contains("slipway dhcp: Error getting listener: "), "{second}");
    // One that gives up does not say that it runs.
    for flags in ["", "-statedir /run/leases"] {
        let second = stage.node.try_slipway(&format!("dhcp daemon -pidfile /run/dhcp.pid {flags}"));
        assert_eq!(second.code, Some(1), "{second}");
        assert_eq!(stage.node.read("/run/dhcp.pid"), Some(stage.pid("daemon").to_string()), "{flags}");
    }
    let wrong = stage.node.try_slipway("dhcp daemon -nonsense");
    assert_eq!(wrong.code, Some(2), "{wrong}");
    assert!(wrong.stderr.contains("usage: slipway dhcp daemon"), "{wrong}");
    let relative = stage.node.try_slipway("dhcp daemon -statedir /run/leases -pidfile pid");
    assert!(relative.stderr.contains("Error writing pidfile \"pid\": path not absolute"), "{relative}");
}

/// What `slipway uninstall` leaves, and why; and what it takes away.
#[test]
fn uninstall_waits_for_leases_and_their_daemon() {
    ours_alone!();
    let stage = Stage::new();
    let _server = Server::start(&stage, Rules::default());
    stage.start_daemon(&[]);
    let (pod, network) = (stage.node.pod("pod"), stage.network(&json!({})));
    network.add(&Attach::new(&pod)).expect("ADD");
    let uninstall = || stage.node.slipway("uninstall --to /run/none");
    let told = uninstall();
    assert!(told.contains("leave   /var/lib/cni/dhcp (/var/lib/cni/dhcp/lan:pod:eth0 is a lease)"), "{told}");
    network.del(&Attach::new(&pod)).expect("DEL");
    let told = uninstall();
    assert!(told.contains("leave   /var/lib/cni/dhcp (slipway dhcp daemon runs)"), "{told}");
    stage.stop("daemon", Signal::SIGTERM);
    let told = uninstall();
    assert!(told.contains("remove  /var/lib/cni/dhcp\n"), "{told}");
    assert!(stage.node.run(|| !std::path::Path::new(STATE).exists()));
}

/// A daemon in a container, which sees the host's files elsewhere.
#[test]
fn a_daemon_may_see_the_hosts_files_elsewhere() {
    ours_alone!();
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

/// The capabilities that the unit leaves it are enough, from a lease to its end.
#[test]
fn the_units_capabilities_are_enough() {
    ours_alone!();
    let unit = include_str!("../../../cni/plugins/systemd/cni-dhcp.service");
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("a line");
    let kept: Vec<String> =
        line.split_whitespace().map(|name| name.replace("CAP_", "+").to_lowercase()).collect();
    let set = format!("-all,{}", kept.join(","));
    let stage = Stage::new();
    let server = Server::start(&stage, Rules { times: [1, 2, 4], ..Rules::default() });
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", &set, "--inh-caps=-all", "--no-new-privs"]).arg(slipway());
    command.args(["dhcp", "daemon", "-timeout", "2s"]);
    stage.start("daemon", &stage.node, command);
    stage.wait_for_daemon();
    let (pod, network) = (stage.node.pod("pod"), stage.network(&json!({})));
    network.add(&Attach::new(&pod)).expect("ADD");
    stage.wait("it is renewed", || server.count(|heard| heard.extends(false)) >= 1);
    server.change(|rules| {
        *rules = Rules { discover: Say::Nothing, renew: Say::Nothing, rebind: Say::Nothing, ..rules.clone() };
    });
    stage.wait("the link goes off", || !is_up(&pod));
    network.del(&Attach::new(&pod)).expect("DEL");
}

/// As systemd starts it: called by its plugin's name, with the socket as descriptor 3.
#[test]
fn a_socket_that_is_handed_over_is_used() {
    ours_alone!();
    let stage = Stage::new();
    let _server = Server::start(&stage, Rules::default());
    stage.node.cmd("mkdir -p /run/cni");
    let listener = stage.node.run(|| UnixListener::bind(SOCKET)).expect("a socket");
    let (pod, network) = (stage.node.pod("pod"), stage.network(&json!({})));
    let attach = Attach::new(&pod);
    std::thread::scope(|scope| {
        // It waits in the socket's queue.
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
    // Its path is not the daemon's to make or to replace.
    assert!(stage.has_socket());
    // What is announced must be there.
    let script = "exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" daemon";
    let program = stage.node.bin().join("dhcp");
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&program);
    let output = stage.node.exec(command, b"");
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.stderr.contains("Error getting listener: LISTEN_FDS=1 but no FD found"), "{output}");
}
