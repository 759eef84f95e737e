// SPDX-License-Identifier: GPL-2.0-or-later

//! The system calls of a plugin that do more than read.

use slipway_tests::{Node, PluginCall};

/// The output file of strace, which does not count as part of the node's state.
pub(crate) const FILE: &str = "/run/gone.trace";

/// Calls that only read, or change nothing but the process itself.
const READING: &[&str] = &[
    "access",
    "arch_prctl",
    "bind",
    "brk",
    "clock_gettime",
    "close",
    "dup",
    "epoll_create1",
    "epoll_ctl",
    "exit",
    "exit_group",
    "faccessat2",
    "fcntl",
    "fstat",
    "fstatfs",
    "futex",
    "getdents64",
    "getpid",
    "getrandom",
    "getsockname",
    "getsockopt",
    "gettid",
    "getuid",
    "geteuid",
    "lseek",
    "madvise",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "newfstatat",
    "poll",
    "prctl",
    "pread64",
    "prlimit64",
    "read",
    "readlink",
    "readlinkat",
    "recvfrom",
    "recvmsg",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "sched_getaffinity",
    "sched_yield",
    "set_robust_list",
    "set_tid_address",
    "setsockopt",
    "sigaltstack",
    "socket",
    "statfs",
    "statx",
    "uname",
];
/// The calls of a thread that enters the container's namespace to open a socket there.
const THREAD: &[&str] = &["clone", "clone3", "setns"];
/// The commands of bpf(2) that only read.
const BPF: &[&str] = &["BPF_OBJ_GET,", "BPF_MAP_LOOKUP_ELEM,", "BPF_OBJ_GET_INFO_BY_FD,"];

/// Runs the call to its end under strace, and returns those of its system calls that do more than read.
pub(crate) fn calls(node: &Node, call: PluginCall) -> Vec<String> {
    let output = call.through(&["strace", "-f", "-qq", "-y", "-s", "256", "-o", FILE]).run();
    output.ok();
    let trace = node.read(FILE).unwrap_or_else(|| panic!("no trace: {}", output.process));
    node.cmd(&format!("rm {FILE}"));
    // The first line is strace's execve of the plugin.
    let mut lines = trace.lines();
    let first = lines.next().unwrap_or_default();
    assert!(first.contains("execve("), "{first}");
    let begun = |name: &str| trace.matches(&format!(" {name}(")).count();
    let needless = (begun("clone") + begun("clone3")).saturating_sub(begun("setns"));
    let mut wrong: Vec<String> = lines.filter(|line| !is_reading(line)).map(str::to_owned).collect();
    if needless > 0 {
        wrong.push(format!("{needless} threads that enter no namespace"));
    }
    wrong
}

/// True for a call that reads, and for a line on which no call begins, such as a signal or the end of an interrupted
/// call.
fn is_reading(line: &str) -> bool {
    let Some((_, rest)) = line.split_once(' ') else { return true };
    let Some((name, arguments)) = rest.trim_start().split_once('(') else { return true };
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return true;
    }
    match name {
        "openat" | "open" => !["O_CREAT", "O_WRONLY", "O_RDWR", "O_TMPFILE", "O_TRUNC"]
            .iter()
            .any(|flag| arguments.contains(flag)),
        // With FIONBIO, the socket of the report never waits.
        "ioctl" => {
            [", NS_GET_", ", FIONBIO, ", ", SIOCGIFINDEX, "].iter().any(|name| arguments.contains(name))
        }
        "flock" => arguments.contains("LOCK_SH") || arguments.contains("LOCK_UN"),
        "bpf" => BPF.iter().any(|command| arguments.starts_with(command)),
        "sendto" | "sendmsg" => is_request_to_read(arguments) || is_last(arguments),
        // These write to standard output, which a DEL leaves empty, or to standard error, the log.
        "write" => arguments.starts_with("1<") || arguments.starts_with("2<"),
        _ => READING.contains(&name) || THREAD.contains(&name),
    }
}

/// True for netlink messages that only read, such as `RTM_GETLINK`, `NFT_MSG_GETGEN` and `IPCTNL_MSG_CT_GET`. For
/// sockets of another namespace, strace prints numbers instead. rtnetlink's types come in groups of four, in which the
/// third is GET.
fn is_request_to_read(arguments: &str) -> bool {
    let mut types = arguments.split("nlmsg_type=").skip(1).peekable();
    let is_get = |text: &str| {
        let name = text.split([',', ' ', '}']).next().unwrap_or_default();
        let number = name.strip_prefix("0x").and_then(|digits| u16::from_str_radix(digits, 16).ok());
        number.map_or(name.contains("GET"), |number| number < 0x100 && number % 4 == 2)
    };
    types.peek().is_some() && types.all(is_get)
}

/// True for a datagram that every call sends at its end, to the node's agent or to the process that closes sockets.
fn is_last(arguments: &str) -> bool {
    let is_to =
        |name| arguments.contains(&format!(r#"{{sa_family=AF_UNIX, sun_path="/run/slipway/{name}.sock"}}"#));
    is_to("reports") || is_to("closing")
}

#[test]
fn reads_and_writes_are_distinguished() {
    for (reading, line) in [
        (true, r#"1 openat(AT_FDCWD</>, "/proc/self/ns/net", O_RDONLY|O_CLOEXEC) = 3"#),
        (false, r#"1 openat(3</run>, "lock", O_RDONLY|O_CREAT|O_CLOEXEC, 0600) = 3"#),
        (
            true,
            "1 sendto(3<NETLINK:[1]>, [{nlmsg_len=20, nlmsg_type=RTM_GETLINK, nlmsg_flags=NLM_F_REQUEST}, x], 20, 0) = 20",
        ),
        (
            false,
            "1 sendto(3<NETLINK:[1]>, [{nlmsg_len=20, nlmsg_type=RTM_GETLINK}, {nlmsg_type=RTM_DELLINK}], 20, 0) = 20",
        ),
        (false, "1 sendto(3<NETLINK:[1]>, [{nlmsg_len=20, nlmsg_type=NFNL_MSG_BATCH_BEGIN}], 20, 0) = 20"),
        (true, "1 sendto(3<socket:[1]>, [{nlmsg_len=20, nlmsg_type=0x12 /* NLMSG_??? */}, x], 20, 0) = 20"),
        (false, "1 sendto(3<socket:[1]>, [{nlmsg_len=20, nlmsg_type=0x11 /* NLMSG_??? */}, x], 20, 0) = 20"),
        (true, "1 ioctl(5</run/netns/pod>, NS_GET_NSTYPE) = 0x40000000"),
        (
            true,
            r#"1 sendto(3<socket:[1]>, "{}", 2, 0, {sa_family=AF_UNIX, sun_path="/run/slipway/reports.sock"}, 28) = 2"#,
        ),
        (
            false,
            r#"1 sendto(3<socket:[1]>, "{}", 2, 0, {sa_family=AF_UNIX, sun_path="/run/other.sock"}, 28) = 2"#,
        ),
        (false, "1 flock(3</run/lock>, LOCK_EX) = 0"),
        (false, "1 nanosleep({tv_sec=0, tv_nsec=1}, NULL) = 0"),
        (false, "1 unlinkat(3</run>, \"x\", 0) = 0"),
        (true, "1 <... unlinkat resumed>) = 0"),
        (true, "1 +++ exited with 0 +++"),
    ] {
        assert_eq!(is_reading(line), reading, "{line}");
    }
}
