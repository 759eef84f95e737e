// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipwayd top` in a real terminal: tmux, with a separate socket inside the node.

mod picture;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slipway_tests::{Attach, Daemon, Host, Network, Node, Pod, Proto, at, comes, quoted, slipwayd, within};

const SOCKET: &str = "/run/tmux.sock";
/// The directory of the network configurations.
const CONFIGURATIONS: &str = "/run/net.d";

fn list() -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "net",
        "plugins": [
            {
                "type": "bridge", "isGateway": true, "ipMasq": true,
                "ipam": {"type": "host-local", "subnet": "10.88.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// A node with an outside client, on which packets are counted.
struct Stage {
    node: Node,
    client: Host,
}

impl Stage {
    fn new() -> Self {
        let (node, client) = Node::with_client();
        node.write(&format!("{CONFIGURATIONS}/net.conflist"), list().to_string());
        Self { node, client }
    }

    fn network(&self) -> Network<'_> {
        self.node.network(list())
    }

    /// Adds a pod with a published port.
    fn add(&self, network: &Network<'_>, name: &str, port: u16) -> Pod {
        let pod = self.node.pod(name);
        let attach = Attach::new(&pod).container(name).port(Proto::Tcp, port, 80);
        network.add(&attach).unwrap_or_else(|error| panic!("ADD of {name}: {error}"));
        self.node.sysctl("net/netfilter/nf_conntrack_acct", "1");
        pod
    }

    /// Starts an agent without an API server, which receives reports.
    fn agent(&self) -> Daemon {
        self.node.write("/run/kube/config", "{}");
        let words = "run --node-name node-1 --kubeconfig /run/kube/config --listen none --conflist /run/none.conflist \
                     --cri-socket none --slipway /run/none";
        let words: Vec<&str> = words.split_whitespace().collect();
        let agent = self.node.daemon(slipwayd(), &words, "/run/slipwayd.log");
        let is_there = || {
            ["slipwayd.sock", "reports.sock"].iter().all(|name| Path::new("/run/slipway").join(name).exists())
        };
        assert!(comes(|| self.node.run(is_there)), "{:?}", self.node.read("/run/slipwayd.log"));
        agent
    }

    /// The document that a single sample prints.
    fn once(&self, options: &[&str]) -> Value {
        let program = slipwayd();
        let mut words = vec![program.to_str().expect("a path"), "top", "--once", "--output", "json"];
        words.extend(["--cni-conf-dir", CONFIGURATIONS]);
        words.extend(options);
        let output = self.node.try_run(&words).expect("slipwayd");
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output.stdout))
    }
}

/// A terminal with a shell.
struct Terminal<'a> {
    node: &'a Node,
}

impl<'a> Terminal<'a> {
    fn new(node: &'a Node, (width, height): (u16, u16)) -> Self {
        let terminal = Self { node };
        let (width, height) = (width.to_string(), height.to_string());
        let shell = "env -i PATH=/usr/bin:/bin:/usr/sbin:/sbin TERM=screen PS1=ready: sh";
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, shell]);
        terminal.wait("a prompt", |text| text.contains("ready:"));
        terminal
    }

    fn tmux(&self, words: &[&str]) -> String {
        let output = self.node.try_run(&[&["tmux", "-u", "-S", SOCKET], words].concat()).expect("tmux");
        assert_eq!(output.code, Some(0), "tmux {words:?}: {}", output.stderr);
        output.stdout
    }

    /// Types a line and presses Enter.
    fn line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.keys(&["Enter"]);
    }

    /// Presses keys, given by their names in tmux.
    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Starts the view and waits for its first screen.
    fn start(&self, environment: &str, options: &str) {
        let program = slipwayd();
        let command =
            format!("{environment} {} top --cni-conf-dir {CONFIGURATIONS} {options}", quoted(&program));
        self.line(&format!("clear; {}; echo status-$?", command.trim()));
        self.wait("the view", |text| text.contains("[1 Ports]"));
    }

    fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the screen satisfies the condition, and returns it.
    fn wait(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let text = self.text();
            if is_so(&text) {
                return text;
            }
            assert!(begun.elapsed() < within(Duration::from_secs(40)), "no {what}:\n{text}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Checks that the shell is back on its own screen, and that the terminal echoes and ends lines.
    fn expect_shell(&self, status: &str) {
        self.wait("a prompt behind the view", |text| text.contains(&format!("status-{status}")));
        let screen = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(screen.trim(), "0 1", "the first screen, with a cursor");
        self.line("clear; stty -a | tr ' ' '\\n' | grep -x -e echo -e icanon -e isig | tr '\\n' ','; echo .");
        self.wait("a sane terminal", |text| text.contains("isig,icanon,echo,."));
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        let _ended = self.node.try_run(&["tmux", "-S", SOCKET, "kill-server"]);
    }
}

/// The published ports that the screen's lines name, in order.
fn ports(text: &str) -> Vec<u16> {
    let port = |line: &str| line.split("0.0.0.0:").nth(1)?.split_whitespace().next()?.parse().ok();
    text.lines().filter_map(port).collect()
}

#[test]
fn keys_sort_filter_pause_and_quit() {
    let stage = Stage::new();
    let network = stage.network();
    let pods = [stage.add(&network, "web1", 8080), stage.add(&network, "db2", 8081)];
    let _servers =
        [pods[0].serve(Proto::Tcp, "0.0.0.0:80", "web1"), pods[1].serve(Proto::Tcp, "0.0.0.0:80", "db2")];
    let terminal = Terminal::new(&stage.node, (80, 24));
    terminal.start("", "--interval 1s");
    // Only the second port has traffic, so it comes first.
    let busy =
        || (0..5).for_each(|_| drop(stage.client.expect(Proto::Tcp, at(stage.client.node_v4, 8081), "db2")));
    let begun = Instant::now();
    let shown = loop {
        busy();
        let text = terminal.text();
        if ports(&text) == [8081, 8080] {
            break text;
        }
        assert!(begun.elapsed() < within(Duration::from_secs(40)), "{text}");
    };
    assert!(shown.contains("BYTE/Sv") && shown.contains("conntrack "), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    if let Some(path) = std::env::var_os(picture::PATH) {
        let drawn = picture::svg(&terminal.tmux(&["capture-pane", "-p", "-e"]), 80);
        std::fs::write(path, drawn).expect("write the picture");
    }
    // The lines are sorted by host port, in both directions.
    terminal.keys(&["p"]);
    terminal.wait("PAUSED", |text| text.contains("PAUSED"));
    for _ in 0..12 {
        if terminal.text().contains("HOSTv") {
            break;
        }
        terminal.keys(&["s"]);
        thread::sleep(Duration::from_millis(200));
    }
    terminal.wait("the greatest port first", |text| text.contains("HOSTv") && ports(text) == [8081, 8080]);
    terminal.keys(&["r"]);
    terminal.wait("the least port first", |text| text.contains("HOST^") && ports(text) == [8080, 8081]);
    // No samples are taken while the view is paused.
    let time = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let before = time(&terminal.text());
    thread::sleep(Duration::from_secs(2));
    assert_eq!(time(&terminal.text()), before);
    terminal.keys(&["p"]);
    terminal.wait("another time", |text| time(text) != before && !text.contains("PAUSED"));
    // The filter selects by container.
    terminal.keys(&["/", "W", "E", "B", "Enter"]);
    terminal.wait("one port", |text| ports(text) == [8080] && text.contains("filter: WEB"));
    terminal.keys(&["Escape"]);
    terminal.wait("both ports", |text| ports(text).len() == 2);
    terminal.keys(&["h"]);
    terminal.wait("help", |text| text.contains("reverse the order"));
    terminal.keys(&["h", "2"]);
    terminal
        .wait("flows", |text| text.contains("[2 Flows]") && text.contains(&format!("{}:", stage.client.v4)));
    terminal.keys(&["4"]);
    terminal.wait("addresses", |text| text.contains("10.88.0.0/24") && text.contains("251"));
    terminal.keys(&["5"]);
    terminal.wait("no agent", |text| text.contains("slipwayd does not run"));
    terminal.keys(&["1"]);
    terminal.tmux(&["resize-window", "-x", "40", "-y", "10"]);
    terminal.wait("a small screen", |text| {
        text.lines().count() <= 10 && text.contains("h help  q quit") && ports(text).len() == 2
    });
    terminal.keys(&["q"]);
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    terminal.expect_shell("0");
}

#[test]
fn the_last_calls_of_plugins_are_shown() {
    let stage = Stage::new();
    let network = stage.network();
    let _agent = stage.agent();
    let _pod = stage.add(&network, "web1", 8080);
    let gone = stage.node.pod("gone");
    let attach = Attach::new(&gone).container("gone").port(Proto::Tcp, 8080, 80);
    network.add(&attach).expect_err("web1 has the port");
    let terminal = Terminal::new(&stage.node, (80, 24));
    terminal.start("", "--interval 1s");
    terminal.keys(&["5"]);
    let is_failed = |line: &str| ["ADD", "portmap", "error 11"].iter().all(|word| line.contains(word));
    let shown = terminal.wait("a failed ADD", |text| text.lines().any(is_failed));
    assert!(
        shown.lines().filter(|line| line.contains("bridge") && line.contains("ADD")).count() >= 2,
        "{shown}"
    );
    terminal.keys(&["3"]);
    terminal.wait("drops", |text| text.contains("[3 Drops]") && text.contains("insert_failed"));
    terminal.keys(&["q"]);
    terminal.expect_shell("0");
}

#[test]
fn signals_leave_a_sane_terminal() {
    let stage = Stage::new();
    let terminal = Terminal::new(&stage.node, (80, 24));
    let pid = || stage.node.cmd("pgrep -f -n slipwayd.top.--cni-conf-dir.*interval.77s$").trim().to_owned();
    for signal in ["TERM", "INT", "HUP"] {
        terminal.start("", "--interval 77s");
        let pid = pid();
        stage.node.cmd(&format!("kill -{signal} {pid}"));
        terminal.expect_shell("0");
    }
    // The program is suspended by the key, and then by a signal.
    for way in ["C-z", "kill"] {
        terminal.start("", "--interval 77s");
        let pid = pid();
        match way {
            "kill" => drop(stage.node.cmd(&format!("kill -TSTP {pid}"))),
            key => terminal.keys(&[key]),
        }
        terminal.wait("a prompt", |text| !text.contains("[1 Ports]") && text.contains("ready:"));
        terminal.line("clear; fg");
        terminal.wait("the view again", |text| text.contains("[1 Ports]"));
        terminal.keys(&["C-c"]);
        terminal.wait("a prompt behind the view", |text| !text.contains("[1 Ports]"));
        terminal.line("echo status-0");
        terminal.expect_shell("0");
    }
}

#[test]
fn without_colours_and_without_a_terminal() {
    let stage = Stage::new();
    let network = stage.network();
    let _pod = stage.add(&network, "web1", 8080);
    let terminal = Terminal::new(&stage.node, (80, 24));
    // The second line is yellow, because no agent is running.
    let colours = || terminal.tmux(&["capture-pane", "-p", "-e"]);
    terminal.start("", "");
    terminal.wait("no agent", |text| text.contains("no events: slipwayd does not run"));
    assert!(colours().contains("38;5;3m"), "{:?}", colours());
    terminal.keys(&["q"]);
    terminal.expect_shell("0");
    terminal.start("NO_COLOR=1", "");
    terminal.wait("no agent", |text| text.contains("no events: slipwayd does not run"));
    let shown = colours();
    assert!(
        !["38;5;", "[33m", "[31m", ";33m", ";31m"].iter().any(|colour| shown.contains(colour)),
        "{shown:?}"
    );
    terminal.keys(&["q"]);
    terminal.expect_shell("0");
    // On a dumb terminal, the tables are printed one after the other.
    let program = slipwayd();
    let command =
        format!("TERM=dumb timeout 9 {} top --cni-conf-dir {CONFIGURATIONS} --interval 1s", quoted(&program));
    let output = stage.node.try_run(&["sh", "-c", &command]).expect("sh");
    let (samples, escapes) = (output.stdout.matches("\nPorts\n").count(), output.stdout.contains('\u{1b}'));
    assert!(samples >= 2 && !escapes && output.stdout.contains("0.0.0.0:8080"), "{}", output.stdout);
    terminal.line(&format!(
        "clear; TERM=dumb {} top --once --cni-conf-dir {CONFIGURATIONS} | head -5",
        quoted(&program)
    ));
    terminal.wait("tables", |text| text.contains("time ") && text.contains("conntrack "));
}

#[test]
fn a_sample_has_what_slipway_ports_prints() {
    let stage = Stage::new();
    let network = stage.network();
    let agent = stage.agent();
    let pods = [stage.add(&network, "web1", 8080), stage.add(&network, "db2", 8081)];
    let _server = pods[0].serve(Proto::Tcp, "0.0.0.0:80", "web1");
    for _ in 0..3 {
        stage.client.expect(Proto::Tcp, at(stage.client.node_v4, 8080), "web1");
    }
    let gone = stage.node.pod("gone");
    let attach = Attach::new(&gone).container("gone").port(Proto::Tcp, 8080, 80);
    network.add(&attach).expect_err("web1 has the port");
    network.del(&attach).expect("DEL, as a runtime after a failed ADD");
    let slipway = stage.node.bin().join("slipway");
    let of_plugins = || -> Value {
        let output = stage.node.try_run(&[slipway.to_str().expect("a path"), "ports", "--output", "json"]);
        serde_json::from_str(&output.expect("slipway").stdout).expect("JSON")
    };
    let mut document = stage.once(&[]);
    let ports = of_plugins();
    assert_eq!((&document["schema"], &ports["schema"]), (&json!(2), &json!(2)));
    for port in document["ports"].as_array_mut().expect("ports") {
        let port = port.as_object_mut().expect("an object");
        for name in ["connections_per_second", "packets_per_second", "bytes_per_second"] {
            assert_eq!(port.remove(name), Some(Value::Null), "{port:?}");
        }
    }
    assert_eq!(document["ports"], ports["ports"]);
    assert_eq!(document["attachments"], ports["attachments"]);
    assert_eq!(document["ports"][0]["connections"], 3, "{document}");
    let flows = document["flows"].as_array().expect("flows");
    let bytes: u64 = flows.iter().filter_map(|flow| flow["bytes"].as_u64()).sum();
    assert_eq!((flows.len(), json!(bytes)), (3, document["ports"][0]["bytes"].clone()));
    assert_eq!(
        document["pools"],
        json!([{"network": "net", "range": "10.88.0.0/24", "used": 2, "free": 251}])
    );
    assert!(document["conntrack"]["count"].as_u64().is_some_and(|count| count >= 3), "{document}");
    // host-local runs inside bridge, and reports no separate call.
    let calls = document["calls"].as_array().expect("an agent");
    let failed: Vec<_> = calls.iter().filter(|call| call["code"] == 11).collect();
    assert_eq!(failed.len(), 1, "{calls:?}");
    assert_eq!((&failed[0]["plugin"], &failed[0]["verb"]), (&json!("portmap"), &json!("ADD")));
    // The rates of an interval in which new connections were opened.
    let rated = thread::scope(|scope| {
        let sample = scope.spawn(|| stage.once(&["--interval", "3s"]));
        let begun = Instant::now();
        while !sample.is_finished() && begun.elapsed() < within(Duration::from_secs(30)) {
            stage.client.expect(Proto::Tcp, at(stage.client.node_v4, 8080), "web1");
            thread::sleep(Duration::from_millis(50));
        }
        sample.join().expect("a sample")
    });
    for name in ["connections_per_second", "packets_per_second", "bytes_per_second"] {
        assert!(
            rated["ports"][0][name].as_f64().is_some_and(|rate| rate > 0.0),
            "{name}: {}",
            rated["ports"]
        );
        assert_eq!(rated["ports"][1][name], 0.0, "{name}: {}", rated["ports"]);
    }
    drop(agent);
    let without = stage.once(&[]);
    assert_eq!(without["calls"], Value::Null);
    assert!(
        without["agent_error"].as_str().is_some_and(|text| text.contains("slipwayd does not run")),
        "{without}"
    );
}
