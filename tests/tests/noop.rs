// SPDX-License-Identifier: GPL-2.0-or-later

//! noop reads its result from a debug file, and records each call there.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use slipway_tests::{Node, Output, PluginCall};

const FILE: &str = "/run/debug.json";

fn config() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "noop"})
}

fn call(node: &Node, verb: &str, config: &Value) -> PluginCall {
    let call = node.plugin("noop").command(verb).container("c1").ifname("eth0").netns("/run/netns/none");
    call.config(config)
}

/// A call with a debug file that has this content.
fn call_with(node: &Node, verb: &str, config: &Value, debug: &Value) -> Output {
    node.write(FILE, debug.to_string());
    call(node, verb, config).args(&format!("DEBUG={FILE};ANYTHING=else")).run()
}

fn file(node: &Node) -> Value {
    serde_json::from_str(&node.read(FILE).expect("the file")).expect("JSON")
}

#[test]
fn the_result_comes_from_the_file_and_the_call_is_recorded() {
    let node = Node::new();
    let result = r#"{"cniVersion": "1.1.0", "anything": ["at all"]}"#;
    for verb in ["ADD", "DEL", "CHECK"] {
        let debug = json!({"ReportResult": result, "ReportStderr": "to stderr", "Unknown": 1});
        let output = call_with(&node, verb, &config(), &debug);
        assert_eq!((output.process.code, output.process.stdout.as_str()), (Some(0), result));
        assert_eq!(output.process.stderr, "to stderr");
        let written = file(&node);
        assert_eq!((&written["Command"], &written["Unknown"]), (&json!(verb), &json!(1)));
        let args = &written["CmdArgs"];
        assert_eq!((&args["ContainerID"], &args["IfName"]), (&json!("c1"), &json!("eth0")));
        assert_eq!(args["Netns"], "/run/netns/none");
        assert_eq!(args["Args"], format!("DEBUG={FILE};ANYTHING=else"));
        let stdin = STANDARD.decode(args["StdinData"].as_str().expect("base64")).expect("base64");
        assert_eq!(serde_json::from_slice::<Value>(&stdin).expect("JSON"), config());
    }
}

#[test]
fn an_empty_result_prints_nothing() {
    let node = Node::new();
    for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
        for (debug, code) in [
            (json!({}), 0),
            (json!({"ReportResult": ""}), 0),
            (json!({"ReportResult": null, "ExitWithCode": 3}), 3),
            (json!({"ExitWithCode": 1, "ReportStderr": "to stderr"}), 1),
        ] {
            let output = call_with(&node, verb, &config(), &debug);
            assert_eq!((output.process.code, output.process.stdout.as_str()), (Some(code), ""), "{verb}");
            assert_eq!(output.process.stderr, debug["ReportStderr"].as_str().unwrap_or_default());
            let written = file(&node);
            assert_eq!(written["Command"], verb);
            assert_eq!(written.get("ReportResult"), debug.get("ReportResult"));
        }
    }
}

#[test]
fn the_error_comes_from_the_file() {
    let node = Node::new();
    let error = call_with(&node, "ADD", &config(), &json!({"ReportError": "as configured"})).error();
    assert_eq!((error.code, error.msg.as_str()), (999, "as configured"));
    let error =
        call_with(&node, "STATUS", &config(), &json!({"ReportError": "later", "ReportErrorCode": 50}))
            .error();
    assert_eq!((error.code, error.msg.as_str()), (50, "later"));
    let output = call_with(&node, "DEL", &config(), &json!({"ReportResult": "x", "ExitWithCode": 7}));
    assert_eq!((output.process.code, output.process.stdout.as_str()), (Some(7), "x"));
    let error = call(&node, "ADD", &config()).args("DEBUG=/run/none").run().error();
    assert_eq!(error.code, 5);
    assert!(error.msg.contains("/run/none"), "{error:?}");
}

#[test]
fn the_previous_result_passes_through() {
    let node = Node::new();
    let mut config = config();
    let before = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.1.2.3/24"}]});
    config["prevResult"] = before.clone();
    let output = call_with(&node, "ADD", &config, &json!({"ReportResult": "PASSTHROUGH"}));
    assert_eq!(output.ok(), before);
    let output = call_with(&node, "ADD", &config, &json!({"ReportResult": "INJECT-DNS"}));
    assert_eq!(output.ok()["dns"], json!({"nameservers": ["1.2.3.4"]}));
    // Without a file the result is the same, and DEL and CHECK do nothing.
    assert_eq!(call(&node, "ADD", &config).run().ok(), before);
    assert!(call(&node, "DEL", &config).run().ok().is_null());
    assert!(call(&node, "CHECK", &config).run().ok().is_null());
}

#[test]
fn the_versions_come_from_the_file() {
    let node = Node::new();
    node.write(FILE, json!({"ReportVersionSupport": ["0.3.1", "1.0.0"], "ReportResult": "{}"}).to_string());
    let version = node.plugin("noop").command("VERSION").args(&format!("DEBUG={FILE}")).run().ok();
    assert_eq!(version, json!({"cniVersion": "1.1.0", "supportedVersions": ["0.3.1", "1.0.0"]}));
    let error = call(&node, "ADD", &config()).args(&format!("DEBUG={FILE}")).run().error();
    assert_eq!((error.code, error.msg.as_str()), (1, "incompatible CNI versions"));
    let mut old = config();
    old["cniVersion"] = "1.0.0".into();
    assert_eq!(call(&node, "ADD", &old).args(&format!("DEBUG={FILE}")).run().ok(), json!({}));
}

#[test]
fn each_call_is_appended_to_the_log() {
    let node = Node::new();
    let mut config = config();
    config["commandLog"] = "/run/log.json".into();
    config["debugFile"] = FILE.into();
    config["cni.dev/valid-attachments"] = json!([]);
    node.write(FILE, json!({"ReportResult": "{}"}).to_string());
    for verb in ["STATUS", "ADD", "CHECK", "DEL", "GC"] {
        let _ = call(&node, verb, &config).run().ok();
    }
    let log: Value = serde_json::from_str(&node.read("/run/log.json").expect("the log")).expect("JSON");
    let verbs: Vec<&Value> = log.as_array().expect("a list").iter().map(|one| &one["Command"]).collect();
    assert_eq!(verbs, ["STATUS", "ADD", "CHECK", "DEL", "GC"]);
    assert_eq!(log[1]["CmdArgs"]["ContainerID"], "c1");
}
