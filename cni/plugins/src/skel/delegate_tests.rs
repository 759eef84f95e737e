// SPDX-License-Identifier: GPL-2.0-or-later

//! Delegation: finding a plugin, exec of a shell script as a plugin, and the call in process.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::Duration;

use cni_spec::{Attachment, ErrorCode, IpConfig, Version};
use tempfile::TempDir;

use super::*;

const CONFIG: &str = r#"{"cniVersion":"1.0.0","name":"n","type":"bridge","ipam":{"type":"ipam"}}"#;

/// An IPAM plugin that checks its call.
struct Ipam;

impl Plugin for Ipam {
    fn name(&self) -> &'static str {
        "ipam"
    }
    fn summary(&self) -> &'static str {
        "for the test"
    }
    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        assert_eq!(request.config.bytes, CONFIG.as_bytes());
        assert_eq!(request.attachment.to_string(), "network n, container c, interface eth0");
        let ip = IpConfig { interface: None, address: "10.0.0.2/24".parse().unwrap(), gateway: None };
        Ok(AddResult { ips: vec![ip], ..AddResult::default() })
    }
    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        Err(CniError::new(ErrorCode::TryAgainLater, format!("args {}", request.args)).with_details("d"))
    }
    fn check(&self, _request: &Request<'_>) -> Result<(), CniError> {
        Ok(())
    }
}

const FREE: fn(&dyn Plugin) -> Result<(), CniError> = |_| Ok(());

fn env(folder: &Path, command: &str) -> Env {
    Env {
        command: command.to_owned(),
        container_id: "c".to_owned(),
        netns: "/run/netns/none".to_owned(),
        ifname: "eth0".to_owned(),
        args: "A=B".to_owned(),
        path: vec![PathBuf::from("/nonexistent"), folder.to_owned()],
        netns_override: String::new(),
        depth: 1,
        plugins: &[&Ipam],
        delegates: Delegates::Files,
    }
}

fn script(folder: &TempDir, text: &str) {
    let path = folder.path().join("ipam");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a shell script as the delegate.
fn scripted(text: &str) -> Result<Vec<u8>, CniError> {
    let folder = TempDir::new().unwrap();
    script(&folder, text);
    delegate("ipam", &env(folder.path(), "ADD"), CONFIG.as_bytes(), FREE)
}

fn message(text: &str) -> String {
    scripted(text).unwrap_err().msg
}

#[test]
fn a_plugin_is_found_in_the_first_folder_that_has_it_as_a_file() {
    let (a, b) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::create_dir(a.path().join("x")).unwrap();
    fs::write(b.path().join("x"), "").unwrap();
    let folders = [a.path().to_owned(), b.path().to_owned()];
    assert_eq!(find("x", &folders), Ok(b.path().join("x")));
    let gone = format!("failed to find plugin \"y\" in path [{} {}]", a.path().display(), b.path().display());
    let rows = [
        ("y", &folders[..], 999, gone.as_str()),
        ("", &folders, 7, "no plugin name provided"),
        ("../x", &folders, 7, "invalid plugin name: ../x"),
        ("..", &folders, 7, "invalid plugin name: .."),
        ("x", &[], 999, "no paths provided"),
    ];
    for (name, folders, code, msg) in rows {
        let error = find(name, folders).unwrap_err();
        assert_eq!((error.code.number(), error.msg.as_str()), (code, msg));
    }
}

#[test]
fn a_delegate_gets_the_input_and_the_environment() {
    let out =
        scripted("cat; echo; echo $CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS $CNI_PATH");
    let out = String::from_utf8(out.unwrap()).unwrap();
    let (config, vars) = out.split_once('\n').unwrap();
    assert_eq!(config, CONFIG);
    assert!(vars.starts_with("ADD c /run/netns/none eth0 A=B /nonexistent:/"), "{vars}");
}

#[test]
fn errors_of_a_delegate_are_passed_on() {
    let error = scripted(r#"echo '{"code":50,"msg":"m","details":"d"}'; exit 1"#).unwrap_err();
    assert_eq!(error, CniError::new(ErrorCode::NotAvailable, "m").with_details("d"));
    assert_eq!(message("exit 3"), "netplugin failed with no error message: exit status 3");
    assert_eq!(message("echo oops >&2; exit 1"), "netplugin failed: \"oops\\n\": exit status 1");
    let garbage = message("echo oops; exit 1");
    assert!(
        garbage.starts_with("netplugin failed but error parsing its diagnostic message \"oops\\n\": "),
        "{garbage}"
    );
    assert!(message("kill -9 $$").ends_with("killed by signal 9"));
}

/// A plugin that succeeded has reserved addresses, whatever its output is.
#[test]
fn addresses_of_a_malformed_result_are_released() {
    let folder = TempDir::new().unwrap();
    let log = folder.path().join("log");
    script(&folder, &format!("echo $CNI_COMMAND >>{}; echo oops", log.display()));
    let (env, config) = (env(folder.path(), "ADD"), NetConf::parse(CONFIG.to_owned()).unwrap());
    let attachment = Attachment::new("n", "c", "eth0").unwrap();
    let request = Request { attachment, netns: None, args: &env.args, config: &config, env: &env };
    ipam_add(&request).unwrap_err();
    assert_eq!(fs::read_to_string(&log).unwrap(), "ADD\nDEL\n");
}

#[test]
fn neither_side_blocks_the_other() {
    // Input and output are larger than a pipe, and the second plugin reads nothing.
    let config = format!(r#"{{"name":"n","pad":"{}"}}"#, "x".repeat(300_000));
    let folder = TempDir::new().unwrap();
    script(&folder, "head -c 300000 /dev/zero; cat >/dev/null");
    let out = delegate("ipam", &env(folder.path(), "ADD"), config.as_bytes(), FREE).unwrap();
    assert_eq!(out.len(), 300_000);
    script(&folder, "exit 0");
    assert_eq!(delegate("ipam", &env(folder.path(), "ADD"), config.as_bytes(), FREE), Ok(vec![]));
}

#[test]
fn a_busy_file_is_tried_again() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("ipam");
    fs::copy("/bin/true", &path).unwrap();
    let writer = fs::File::options().append(true).open(&path).unwrap();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(writer);
    });
    assert_eq!(delegate("ipam", &env(folder.path(), "ADD"), b"", FREE), Ok(vec![]));
    release.join().unwrap();
}

#[test]
fn this_binary_is_called_in_process() {
    let folder = TempDir::new().unwrap();
    // Through two symbolic links, as an installed plugin.
    symlink("/proc/self/exe", folder.path().join("slipway")).unwrap();
    symlink("slipway", folder.path().join("ipam")).unwrap();
    let out = delegate("ipam", &env(folder.path(), "ADD"), CONFIG.as_bytes(), FREE).unwrap();
    let result = AddResult::from_output(Version::V1_0_0, &out).unwrap();
    assert_eq!(result.ips.len(), 1);
    assert_eq!(delegate("ipam", &env(folder.path(), "CHECK"), CONFIG.as_bytes(), FREE), Ok(vec![]));
    let error = delegate("ipam", &env(folder.path(), "DEL"), CONFIG.as_bytes(), FREE).unwrap_err();
    assert_eq!(error, CniError::new(ErrorCode::TryAgainLater, "args A=B").with_details("d"));
    // The protocol's own checks are the same as over exec.
    let error = delegate("ipam", &env(folder.path(), "GC"), CONFIG.as_bytes(), FREE).unwrap_err();
    assert_eq!(error.msg, "config version does not allow GC");
}

#[test]
fn another_binary_of_a_known_name_is_not_called_in_process() {
    let out = scripted(r#"echo '{"ips":[]}'"#).unwrap();
    assert_eq!(out, b"{\"ips\":[]}\n");
}

#[test]
fn the_depth_is_passed_on_and_bounded() {
    let folder = TempDir::new().unwrap();
    script(&folder, "echo $SLIPWAY_DELEGATION_DEPTH");
    let at = |depth: u32, verb: &str| {
        let env = Env { depth, ..env(folder.path(), verb) };
        delegate("ipam", &env, CONFIG.as_bytes(), FREE)
    };
    assert_eq!(below(&env(folder.path(), "ADD"), "DEL").depth, 2);
    assert_eq!(at(MAX_DEPTH, "ADD").unwrap(), format!("{MAX_DEPTH}\n").as_bytes());
    for verb in ["ADD", "CHECK", "STATUS"] {
        assert_eq!(at(MAX_DEPTH + 1, verb).unwrap_err().code, ErrorCode::InvalidConfig);
    }
    for verb in ["DEL", "GC"] {
        assert_eq!(at(MAX_DEPTH + 1, verb), Ok(vec![]));
    }
}

#[test]
fn only_a_plugin_of_this_binary_must_be_ipam() {
    let folder = TempDir::new().unwrap();
    symlink("/proc/self/exe", folder.path().join("ipam")).unwrap();
    let call = |folder: &TempDir, verb: &str| {
        delegate("ipam", &env(folder.path(), verb), CONFIG.as_bytes(), must_be_ipam)
    };
    let error = call(&folder, "ADD").unwrap_err();
    assert_eq!(error, CniError::config("key \"ipam.type\": plugin \"ipam\" is not an IPAM plugin"));
    assert_eq!(call(&folder, "DEL"), Ok(vec![]));
    let other = TempDir::new().unwrap();
    script(&other, "echo foreign");
    assert_eq!(call(&other, "ADD"), Ok(b"foreign\n".to_vec()));
}
