// SPDX-License-Identifier: GPL-2.0-or-later

//! The protocol, row by row, with a plugin that only records its calls.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Mutex;

use cni_spec::{AddResult, Interface, IpConfig};
use expect_test::{Expect, expect};

use super::*;

/// A plugin with a fixed result that records its calls.
struct Fake {
    versions: &'static [Version],
    result: Result<AddResult, CniError>,
    calls: Mutex<Vec<String>>,
}

impl Fake {
    fn new() -> Self {
        let ip = IpConfig { interface: Some(0), address: "10.1.2.3/24".parse().unwrap(), gateway: None };
        let eth0 = Interface { name: "eth0".into(), mtu: 1400, ..Interface::default() };
        let result = AddResult { interfaces: vec![eth0], ips: vec![ip], ..AddResult::default() };
        Self { versions: Version::ALL, result: Ok(result), calls: Mutex::default() }
    }

    fn note(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }

    fn note_request(&self, verb: &str, request: &Request<'_>) {
        self.note(format!("{verb} {} netns {:?} args {:?}", request.attachment, request.netns, request.args));
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }
}

impl Plugin for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }
    fn summary(&self) -> &'static str {
        "records its calls"
    }
    fn versions(&self) -> &'static [Version] {
        self.versions
    }
    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        self.note_request("add", request);
        self.result.clone()
    }
    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        self.note_request("del", request);
        self.result.clone().map(drop)
    }
    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        self.note_request("check", request);
        self.result.clone().map(drop)
    }
    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        self.note(format!("gc {:?}", request.config.valid_attachments));
        Ok(())
    }
    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        self.note(format!("status {}", request.config.name));
        Err(CniError::new(ErrorCode::NotAvailable, "full"))
    }
}

fn callee(plugin: &Fake) -> Callee<'_> {
    Callee { plugin, script: None, plugins: &[], delegates: Delegates::Files }
}

/// One call: exit code, standard output, standard error.
type Answer = (u8, String, String);

struct Call<'a> {
    vars: BTreeMap<&'a str, OsString>,
    stdin: &'a [u8],
}

impl<'a> Call<'a> {
    /// A complete environment for the verb.
    fn new(command: &str, stdin: &'a str) -> Self {
        let vars = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/x"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "K=V"),
            ("CNI_PATH", "/opt/a::/opt/b"),
        ];
        Self { vars: vars.into_iter().map(|(k, v)| (k, v.into())).collect(), stdin: stdin.as_bytes() }
    }

    fn set(mut self, name: &'a str, value: &str) -> Self {
        self.vars.insert(name, value.into());
        self
    }

    fn without(mut self, names: &[&str]) -> Self {
        self.vars.retain(|name, _| !names.contains(name));
        self
    }

    fn run(mut self, plugin: &Fake) -> Answer {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let io = Io { stdin: &mut self.stdin, stdout: &mut out, stderr: &mut err };
        let own = |path: &Path| path == Path::new("/own");
        let code = run(&callee(plugin), &|name| self.vars.get(name).cloned(), &own, io);
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    /// Expects an error, and that the plugin was not called.
    fn fails(self, code: u32, msg: &str, details: &str) {
        let plugin = Fake::new();
        let (exit, out, err) = self.run(&plugin);
        let error = CniError::parse(out.as_bytes()).unwrap();
        assert_eq!((error.code.number(), error.msg.as_str(), error.details.as_str()), (code, msg, details));
        assert_eq!((exit, err.as_str(), plugin.calls()), (1, "", vec![]));
    }
}

const CONFIG: &str = r#"{"cniVersion":"1.1.0","name":"n","type":"fake"}"#;
const ALL: &str = r#"["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]"#;

fn check(answer: &Answer, code: u8, expected: &Expect) {
    assert_eq!((answer.0, answer.2.as_str()), (code, ""));
    expected.assert_eq(&answer.1);
}

#[test]
fn missing_variables_are_named_together_in_order() {
    let all = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH", "CNI_ARGS"];
    let rows = [
        ("ADD", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
        ("CHECK", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
        ("DEL", "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH"),
        ("GC", "CNI_PATH"),
        ("STATUS", "CNI_PATH"),
    ];
    for (verb, missing) in rows {
        let msg = format!("required env variables [{missing}] missing");
        Call::new(verb, "").without(&all).fails(4, &msg, "");
        // An empty variable counts as missing, too.
        Call::new(verb, "").without(&all).set("CNI_PATH", "").fails(4, &msg, "");
    }
}

#[test]
fn malformed_variables_are_named() {
    let long = "interface name should be less than 16 characters; CNI_IFNAME is \"0123456789abcdef\"";
    let bad = "interface name contains / or : or whitespace characters";
    let rows = [
        ("CNI_CONTAINERID", "a/b", "invalid characters in containerID", "a/b"),
        ("CNI_CONTAINERID", "-a", "invalid characters in containerID", "-a"),
        ("CNI_IFNAME", "0123456789abcdef", "interface name is too long", long),
        ("CNI_IFNAME", "..", "interface name is . or ..", "CNI_IFNAME is \"..\""),
        ("CNI_IFNAME", "a/b", bad, "CNI_IFNAME is \"a/b\""),
        ("CNI_IFNAME", "a\tb", bad, "CNI_IFNAME is \"a\\tb\""),
        ("CNI_IFNAME", "eth%d", "interface name contains %", "CNI_IFNAME is \"eth%d\""),
    ];
    for verb in ["ADD", "DEL", "CHECK"] {
        for (name, value, msg, details) in rows {
            Call::new(verb, CONFIG).set(name, value).fails(4, msg, details);
        }
    }
    // GC and STATUS do not look at them.
    let plugin = Fake::new();
    assert_eq!(Call::new("STATUS", CONFIG).set("CNI_IFNAME", "a/b").run(&plugin).0, 1);
    assert_eq!(plugin.calls(), ["status n"]);
}

#[test]
fn a_variable_that_is_no_text_is_named() {
    use std::os::unix::ffi::OsStringExt;
    let mut call = Call::new("ADD", CONFIG);
    call.vars.insert("CNI_NETNS", OsString::from_vec(vec![b'/', 0xff]));
    call.fails(4, "CNI_NETNS is not UTF-8", "/\u{fffd}");
}

#[test]
fn without_a_command_help_is_printed() {
    for call in [Call::new("", "garbage"), Call::new("", "").without(&["CNI_COMMAND", "CNI_PATH"])] {
        let (code, out, err) = call.run(&Fake::new());
        assert_eq!((code, out.as_str()), (0, ""));
        let version = env!("CARGO_PKG_VERSION");
        let supported = "0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0";
        assert_eq!(
            err,
            format!("CNI fake plugin slipway-{version}\nCNI protocol versions supported: {supported}\n")
        );
    }
}

#[test]
fn version_needs_nothing_and_reads_nothing() {
    let call = Call { vars: BTreeMap::from([("CNI_COMMAND", "VERSION".into())]), stdin: b"garbage" };
    let plugin = Fake { versions: &[Version::V0_3_1, Version::V1_0_0], ..Fake::new() };
    let want = "{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"0.3.1\",\"1.0.0\"]}\n";
    assert_eq!(call.run(&plugin), (0, want.into(), String::new()));
}

#[test]
fn the_configuration_is_checked_before_the_verb() {
    for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS", "FOO"] {
        Call::new(verb, "").fails(6, "error unmarshall network config: unexpected end of JSON input", "");
        Call::new(verb, "{}").fails(7, "missing network name", "");
        let bad = r#"{"cniVersion":"9.9.9","name":"../x"}"#;
        Call::new(verb, bad).fails(7, "invalid characters found in network name", "../x");
    }
    Call::new("FOO", CONFIG).fails(4, "unknown CNI_COMMAND: FOO", "");
    Call::new("add", CONFIG).fails(4, "unknown CNI_COMMAND: add", "");
}

#[test]
fn standard_input_is_bounded_and_its_failure_named() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("no disk"))
        }
    }
    let vars = Call::new("ADD", "").vars;
    let ask = |stdin: &mut dyn Read| {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let io = Io { stdin, stdout: &mut out, stderr: &mut err };
        run(&callee(&Fake::new()), &|name| vars.get(name).cloned(), &|_| false, io);
        CniError::parse(&out).unwrap()
    };
    let failed = ask(&mut Broken);
    assert_eq!((failed.code, failed.msg.as_str()), (ErrorCode::Io, "error reading from stdin: no disk"));
    let endless = ask(&mut std::io::repeat(b' '));
    let msg = "error reading from stdin: the configuration is larger than 16777216 bytes";
    assert_eq!((endless.code, endless.msg.as_str()), (ErrorCode::Io, msg));
}

#[test]
fn a_configuration_that_is_nested_too_deeply_is_refused() {
    let nested = |depth: usize| {
        let value = ["[".repeat(depth), "]".repeat(depth)].concat();
        let conf = format!(r#"{{"cniVersion":"1.1.0","name":"n","type":"t","x":{value}}}"#);
        Call::new("ADD", &conf).run(&Fake::new()).1
    };
    assert!(!nested(126).contains("recursion limit"), "{}", nested(126));
    for depth in [127, 128, 200_000] {
        let error = CniError::parse(nested(depth).as_bytes()).unwrap();
        assert!(
            error.code == ErrorCode::Decode && error.msg.contains("recursion limit"),
            "{depth}: {error:?}"
        );
    }
}

#[test]
fn versions_are_reconciled() {
    let conf = |version: &str| format!(r#"{{"cniVersion":"{version}","name":"n"}}"#);
    let details = |version: &str| format!("config is \"{version}\", plugin supports {ALL}");
    for verb in ["ADD", "DEL"] {
        for version in ["9.9.9", "0.3.5", "x"] {
            Call::new(verb, &conf(version)).fails(1, "incompatible CNI versions", &details(version));
        }
    }
    let rows = [("CHECK", "0.3.1"), ("CHECK", ""), ("STATUS", "1.0.0"), ("GC", "0.4.0")];
    for (verb, version) in rows {
        let msg = format!("config version does not allow {verb}");
        Call::new(verb, &conf(version)).fails(1, &msg, "");
    }
    for verb in ["CHECK", "GC", "STATUS"] {
        let msg = format!("plugin version does not allow {verb}");
        Call::new(verb, &conf("9.9.9")).fails(1, &msg, "");
        let bad = "failed to convert major version part \"x\" of \"x\": not a number";
        Call::new(verb, &conf("x")).fails(6, bad, "");
    }
    // Between two published versions: new enough for the verb, but unknown.
    Call::new("CHECK", &conf("0.9.0")).fails(1, "incompatible CNI versions", &details("0.9.0"));
    let msg = "decoding version from network config: cniVersion: 1 is no string";
    Call::new("ADD", r#"{"cniVersion":1,"name":"n"}"#).fails(6, msg, "");
    let plugin = Fake { versions: &[Version::V0_4_0, Version::V1_0_0], ..Fake::new() };
    let (_, out, _) = Call::new("ADD", &conf("1.1.0")).run(&plugin);
    assert!(out.contains(r#"config is \"1.1.0\", plugin supports [\"0.4.0\" \"1.0.0\"]"#), "{out}");
    let (_, out, _) = Call::new("GC", &conf("1.1.0")).run(&plugin);
    assert!(out.contains("plugin version does not allow GC"), "{out}");
    assert_eq!(plugin.calls(), Vec::<String>::new());
}

#[test]
fn the_own_namespace_is_refused_before_the_plugin_runs() {
    let msg = "plugin's netns and netns from CNI_NETNS should not be the same";
    for verb in ["ADD", "DEL"] {
        Call::new(verb, CONFIG).set("CNI_NETNS", "/own").fails(8, msg, "CNI_NETNS is \"/own\"");
        Call::new(verb, CONFIG).set("CNI_NETNS", "/own").set("CNI_NETNS_OVERRIDE", "yes").fails(
            8,
            msg,
            "CNI_NETNS is \"/own\"",
        );
        for meant in ["1", "TRUE", "true"] {
            let plugin = Fake::new();
            let call = Call::new(verb, CONFIG).set("CNI_NETNS", "/own").set("CNI_NETNS_OVERRIDE", meant);
            assert_eq!((call.run(&plugin).0, plugin.calls().len()), (0, 1), "{verb} {meant}");
        }
    }
}

#[test]
fn a_request_has_the_variables_of_the_runtime() {
    let plugin = Fake::new();
    for verb in ["ADD", "DEL", "CHECK"] {
        assert_eq!(Call::new(verb, CONFIG).run(&plugin).0, 0);
    }
    Call::new("DEL", CONFIG).without(&["CNI_NETNS", "CNI_ARGS"]).run(&plugin);
    let who = "network n, container c1, interface eth0";
    let wants = ["add", "del", "check"]
        .map(|verb| format!("{verb} {who} netns Some(\"/run/netns/x\") args \"K=V\""))
        .into_iter()
        .chain([format!("del {who} netns None args \"\"")]);
    assert_eq!(plugin.calls(), wants.collect::<Vec<_>>());
}

#[test]
fn results_are_of_the_version_of_the_configuration() {
    let add = |version: &str| {
        let conf = format!(r#"{{"cniVersion":"{version}","name":"n"}}"#);
        Call::new("ADD", &conf).run(&Fake::new())
    };
    check(
        &add("1.1.0"),
        0,
        &expect![[r#"
        {
            "cniVersion": "1.1.0",
            "interfaces": [
                {
                    "mtu": 1400,
                    "name": "eth0"
                }
            ],
            "ips": [
                {
                    "address": "10.1.2.3/24",
                    "interface": 0
                }
            ]
        }"#]],
    );
    check(
        &add("0.4.0"),
        0,
        &expect![[r#"
        {
            "cniVersion": "0.4.0",
            "interfaces": [
                {
                    "name": "eth0"
                }
            ],
            "ips": [
                {
                    "version": "4",
                    "interface": 0,
                    "address": "10.1.2.3/24"
                }
            ],
            "dns": {}
        }"#]],
    );
    check(
        &add(""),
        0,
        &expect![[r#"
        {
            "cniVersion": "0.1.0",
            "ip4": {
                "ip": "10.1.2.3/24"
            },
            "dns": {}
        }"#]],
    );
}

#[test]
fn a_result_that_cannot_be_converted_is_undone() {
    let plugin = Fake { result: Ok(AddResult::default()), ..Fake::new() };
    let (code, out, _) = Call::new("ADD", r#"{"cniVersion":"0.2.0","name":"n"}"#).run(&plugin);
    assert_eq!(code, 1);
    assert!(out.contains("cannot convert: no valid IP addresses"), "{out}");
    let calls = plugin.calls();
    assert!(matches!(calls.as_slice(), [add, del] if add.starts_with("add") && del.starts_with("del")));
}

#[test]
fn errors_of_plugins_are_printed_as_they_are() {
    let error = CniError::new(ErrorCode::TryAgainLater, "port <80> & more").with_details("d");
    let plugin = Fake { result: Err(error), ..Fake::new() };
    for verb in ["ADD", "DEL", "CHECK"] {
        check(
            &Call::new(verb, CONFIG).run(&plugin),
            1,
            &expect![[r#"
            {
                "code": 11,
                "msg": "port \u003c80\u003e \u0026 more",
                "details": "d"
            }"#]],
        );
    }
}

#[test]
fn gc_without_a_list_removes_nothing() {
    let gc = |keys: &str| {
        let plugin = Fake::new();
        let conf = format!(r#"{{"cniVersion":"1.1.0","name":"n"{keys}}}"#);
        assert_eq!(Call::new("GC", &conf).run(&plugin), (0, String::new(), String::new()));
        plugin.calls()
    };
    assert_eq!(gc(""), Vec::<String>::new());
    assert_eq!(gc(r#","cni.dev/attachments":null,"cni.dev/valid-attachments":null"#), ["gc Some([])"]);
    assert_eq!(gc(r#","cni.dev/valid-attachments":[{"containerID":"c","ifname":"e"}]"#).len(), 1);
    let bad = r#"{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":[{"containerID":"a/","ifname":"e"}]}"#;
    let msg = "cni.dev/valid-attachments[0]: invalid characters in containerID: \"a/\"";
    Call::new("GC", bad).fails(7, msg, "");
}

#[test]
fn status_gives_the_plugins_code() {
    let (code, out, _) = Call::new("STATUS", CONFIG).run(&Fake::new());
    assert_eq!((code, CniError::parse(out.as_bytes()).unwrap().code), (1, ErrorCode::NotAvailable));
}

#[test]
fn a_prev_result_that_cannot_be_read_stops_an_add_but_not_a_del() {
    let conf = r#"{"cniVersion":"1.1.0","name":"n","prevResult":{"cniVersion":"0.4.0"}}"#;
    let msg = "could not parse prevResult: result type supports [1.0.0 1.1.0] but unmarshalled CNIVersion is \"0.4.0\"";
    Call::new("ADD", conf).fails(7, msg, "");
    Call::new("CHECK", conf).fails(7, msg, "");
    assert_eq!(Call::new("DEL", conf).run(&Fake::new()).0, 0);
}

#[test]
fn an_output_that_cannot_be_written_is_a_failure() {
    struct Closed<'a>(&'a Cell<bool>);
    impl Write for Closed<'_> {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            self.0.set(true);
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (tried, call) = (Cell::new(false), Call::new("ADD", CONFIG));
    let (mut stdin, err) = (call.stdin, RefCell::new(Vec::new()));
    let io = Io { stdin: &mut stdin, stdout: &mut Closed(&tried), stderr: &mut *err.borrow_mut() };
    let vars = |name: &str| call.vars.get(name).cloned();
    let (code, report) = run_and_report(&callee(&Fake::new()), &vars, &|_| false, io);
    assert_eq!((code, report.and_then(|report| report.code)), (1, Some(5)));
    assert!(tried.get());
}

#[test]
fn each_verb_is_reported_with_its_code() {
    let reported = |command: &str, config: &str| {
        let mut call = Call::new(command, config);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let io = Io { stdin: &mut call.stdin, stdout: &mut out, stderr: &mut err };
        let vars = |name: &str| call.vars.get(name).cloned();
        let (_, report) = run_and_report(&callee(&Fake::new()), &vars, &|_| false, io);
        report.map(|report| (report.plugin, report.verb.as_str(), report.code))
    };
    for (command, code) in [("ADD", None), ("DEL", None), ("CHECK", None), ("GC", None), ("STATUS", Some(50))]
    {
        assert_eq!(reported(command, CONFIG), Some(("fake".to_owned(), command, code)));
    }
    assert_eq!(reported("ADD", "{"), Some(("fake".to_owned(), "ADD", Some(6))));
    for command in ["VERSION", "", "NONSENSE"] {
        assert_eq!(reported(command, CONFIG), None, "{command}");
    }
}

#[test]
fn the_own_namespace_is_found_by_its_inode() {
    assert!(is_own_netns(Path::new("/proc/self/ns/net")));
    assert!(!is_own_netns(Path::new("/proc/self/ns/mnt")));
    assert!(!is_own_netns(Path::new("/nonexistent")));
}
