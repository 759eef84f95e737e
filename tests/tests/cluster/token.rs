// SPDX-License-Identifier: GPL-2.0-or-later

//! An agent reads its token file again when the token has expired, because kubelet replaces the file.

use std::thread;
use std::time::Duration;

use serde_json::json;
use slipway_tests::{API_SERVER, ApiServer, api_server_programs, skip, slipwayd, within};
use slipwayd::cluster::desired::TunnelMode;

use crate::agents::{object, of};
use crate::api::{KUBECONFIG, LOG, NODES, words};
use crate::repairs::until;
use crate::{CONFLIST, Lab};

/// The token file's path on the agent's node.
const TOKEN: &str = "/run/kube/token";
/// The namespace and name of the agent's account.
const ACCOUNT: [&str; 2] = ["kube-system", "slipwayd"];
/// How long the first token is accepted, which is longer than the agent takes to start.
const FIRST: Duration = Duration::from_secs(20);
/// How long the agent has a token that is refused.
const REFUSED: Duration = Duration::from_secs(15);
/// The maximum number of log lines during that time. Delays between attempts grow from 0.8 seconds.
const LINES: usize = 30;

#[test]
fn an_expired_token_is_read_again() {
    let Some(programs) = api_server_programs() else { skip!(API_SERVER) };
    let lab = Lab::new(1, TunnelMode::Auto);
    let mut server = ApiServer::start(&programs, &lab.cluster.control);
    server.wait();
    let [namespace, account] = ACCOUNT;
    until("the namespace", || server.has(&format!("/api/v1/namespaces/{namespace}")));
    let object_of_account =
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account } });
    server.create(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), &object_of_account);
    let node = lab.node(1);
    node.cmd("mkdir -p /run/kube");
    node.write(KUBECONFIG, server.kubeconfig_of(&json!({ "tokenFile": TOKEN })));
    server.create(NODES, &object(node));
    let first = server.token_for(namespace, account, within(FIRST));
    assert!(server.accepts(&first) && !server.accepts("nonsense"));
    node.write(TOKEN, &first);
    let words = words(node, "auto");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let agent = node.daemon(slipwayd(), &words, LOG);
    let log = || node.read(LOG).unwrap_or_default();
    until("the configuration", || node.read(CONFLIST).is_some());
    until("a complete list", || log().contains("the list of Nodes is complete"));
    assert!(!log().contains("401"), "{}", log());
    until("the end of the token", || !server.accepts(&first));
    // The server does not check the token of a running watch again, so it restarts.
    server.stop();
    server.resume();
    server.wait();
    until("a refusal", || log().contains("the API server replied 401"));
    let before = log().lines().count();
    server.create(NODES, &of("node-2", &["10.244.2.0/24"], &[[192, 168, 50, 22].into()]));
    thread::sleep(within(REFUSED));
    let lines = log().lines().count() - before;
    assert!(lines <= LINES, "{lines} lines: {}", log());
    assert!(agent.runs() && !node.cmd("ip route show").contains("10.244.2.0/24"));
    assert!(node.cmd("ip address show dev slipway0").contains("10.244.1.1/24"), "all stays");
    // The new file replaces the old one, as kubelet does it.
    let second = server.token_for(namespace, account, within(Duration::from_secs(600)));
    node.write(&format!("{TOKEN}.new"), second);
    node.cmd(&format!("mv {TOKEN}.new {TOKEN}"));
    until("the route", || node.cmd("ip route show").contains("10.244.2.0/24 via 192.168.50.22"));
    let refusals = log().matches("replied 401").count();
    server.create(NODES, &of("node-3", &["10.244.3.0/24"], &[[192, 168, 50, 33].into()]));
    until("the next route", || node.cmd("ip route show").contains("10.244.3.0/24 via 192.168.50.33"));
    assert_eq!(log().matches("replied 401").count(), refusals, "{}", log());
    assert!(agent.runs());
}
