// SPDX-License-Identifier: GPL-2.0-or-later

//! Calling a plugin as a runtime does: environment, standard input, one process.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use crate::node::{Node, Pod};
use crate::space::{CommandOutput, Space, Started, quoted};

/// The plugin directory under test: `SLIPWAY_PEER_DIR`, else `SLIPWAY_BIN_DIR`, else a folder in the
/// target directory with links to the workspace's binary, built now if it is not up to date.
pub fn plugin_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        for key in ["SLIPWAY_PEER_DIR", "SLIPWAY_BIN_DIR"] {
            if let Some(dir) = std::env::var_os(key) {
                return std::path::absolute(dir).expect("a current directory");
            }
        }
        link_plugins(&build("slipway"))
    })
}

/// [`plugin_dir`] as a path that stays valid in a node, where /run and /var/lib are private.
pub(crate) fn bin_dir() -> PathBuf {
    plugin_dir().canonicalize().unwrap_or_else(|e| panic!("{}: {e}", plugin_dir().display()))
}

/// The `slipway` executable itself, for the operator's commands.
pub fn slipway() -> PathBuf {
    bin_dir().join("slipway")
}

/// The `slipwayd` executable: next to the plugins, else built now.
pub fn slipwayd() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let find =
        || Some(bin_dir().join("slipwayd")).filter(|path| path.exists()).unwrap_or_else(|| build("slipwayd"));
    PATH.get_or_init(find).clone()
}

/// True if the plugins under test are those of another implementation (`SLIPWAY_PEER_DIR` is set).
pub fn is_peer() -> bool {
    std::env::var_os("SLIPWAY_PEER_DIR").is_some()
}

/// The newest version of the specification that the plugins under test speak: 1.1.0 for ours, 1.0.0 for
/// the reference plugins of Debian 12.
pub fn newest_version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let mut command = Command::new(bin_dir().join("loopback"));
        let output = command.env("CNI_COMMAND", "VERSION").stdin(Stdio::null()).output();
        let output = output.unwrap_or_else(|e| panic!("run loopback: {e}"));
        let answer: Value = serde_json::from_slice(&output.stdout).expect("VERSION prints JSON");
        answer["cniVersion"].as_str().expect("VERSION prints a version").to_owned()
    })
}

/// Runs the body of a test that the reference plugins are known to fail, for the reason given. With
/// our own plugins it must pass. With `SLIPWAY_PEER_DIR` it must fail: a test that the reference
/// passes after all either tests nothing or needs another reason.
pub fn peer_fails(reason: &str, body: impl FnOnce()) {
    if !is_peer() {
        return body();
    }
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(()) => panic!("the reference passes, though it should not: {reason}"),
        Err(_) => eprintln!("the reference fails as expected: {reason}"),
    }
}

/// Builds a binary with the cargo that runs the tests. Nothing happens when it is up to date.
fn build(name: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("Cargo.toml");
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", name, "--bin", name, "--manifest-path"]);
    command.arg(manifest);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let status = command.status().unwrap_or_else(|e| panic!("build {name}: {e}"));
    assert!(status.success(), "{name} does not build");
    // target/<profile>/deps/<test>-<hash>
    let test = std::env::current_exe().expect("the test's own path");
    let profile = test.ancestors().nth(2).expect("a target directory");
    profile.join(name)
}

/// Makes a folder next to the binary with a link per plugin. Test processes may do this at the same time.
fn link_plugins(binary: &Path) -> PathBuf {
    let folder = binary.with_file_name("slipway-plugins");
    std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("make {}: {e}", folder.display()));
    for name in own_names(binary).iter().map(String::as_str).chain(["slipway"]) {
        match std::os::unix::fs::symlink("../slipway", folder.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                panic!("link {name} in {}: {error}", folder.display());
            }
            _ => {}
        }
    }
    folder
}

/// The names of all plugins of a `slipway`.
fn own_names(binary: &Path) -> Vec<String> {
    let output = Command::new(binary).args(["plugins", "--names"]).output();
    let output = output.unwrap_or_else(|e| panic!("run {}: {e}", binary.display()));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// The names of all plugins under test: those of our binary, else those of the same names in the peer's
/// folder that speak every version from 0.1.0 on.
pub fn plugin_names() -> Vec<String> {
    if !is_peer() {
        return own_names(&slipway());
    }
    let known = ["bridge", "host-local", "loopback", "portmap", "ptp", "sbr", "static", "tuning"];
    known.into_iter().filter(|name| plugin_dir().join(name).exists()).map(str::to_owned).collect()
}

/// One call of one plugin, to be filled in and run. What is not given is not set in the environment;
/// but for `CNI_PATH`, which is the plugin directory, and `PATH`.
#[derive(Debug, Clone)]
pub struct PluginCall {
    space: Space,
    program: PathBuf,
    wrapper: Vec<OsString>,
    arguments: Vec<OsString>,
    env: Vec<(String, OsString)>,
    stdin: Vec<u8>,
}

#[derive(Debug, Clone)]
pub struct Output {
    pub process: CommandOutput,
}

/// An error as a plugin prints it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CniFailure {
    pub code: u32,
    pub msg: String,
    #[serde(default)]
    pub details: String,
}

impl PluginCall {
    pub(crate) fn new(space: Space, bin: &Path, name: &str) -> Self {
        let call = Self {
            space,
            program: bin.join(name),
            wrapper: vec![],
            arguments: vec![],
            env: vec![],
            stdin: vec![],
        };
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
        call.env("PATH", path).env("CNI_PATH", bin)
    }

    /// Sets one variable of the environment.
    pub fn env(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.env.retain(|(known, _)| known != key);
        self.env.push((key.to_owned(), value.into()));
        self
    }

    /// Takes one variable out of the environment.
    pub fn without(mut self, key: &str) -> Self {
        self.env.retain(|(known, _)| known != key);
        self
    }

    pub fn command(self, verb: &str) -> Self {
        self.env("CNI_COMMAND", verb)
    }

    pub fn container(self, id: &str) -> Self {
        self.env("CNI_CONTAINERID", id)
    }

    pub fn netns(self, path: impl AsRef<Path>) -> Self {
        self.env("CNI_NETNS", path.as_ref())
    }

    pub fn ifname(self, name: &str) -> Self {
        self.env("CNI_IFNAME", name)
    }

    pub fn args(self, args: &str) -> Self {
        self.env("CNI_ARGS", args)
    }

    /// Container ID (the pod's name), namespace and `eth0`, in one go.
    pub fn for_pod(self, pod: &Pod) -> Self {
        self.container(pod.name()).netns(pod.path()).ifname("eth0")
    }

    pub fn config(self, config: &Value) -> Self {
        self.stdin(config.to_string())
    }

    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Runs the plugin by another program, for instance `["strace", "-f", "-o", "/run/trace"]`.
    pub fn through(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(OsString::from).collect();
        self
    }

    /// Runs another program in the plugin's place, for instance the reference's.
    pub fn instead(mut self, program: &Path) -> Self {
        self.program = program.to_owned();
        self
    }

    /// Command line arguments; a plugin takes none, but a program in its place may.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(OsString::from).collect();
        self
    }

    pub fn run(self) -> Output {
        self.spawn().wait()
    }

    /// Starts it, for tests that interrupt it or run several at once.
    pub fn spawn(self) -> Running {
        let mut words = self.wrapper.into_iter().chain([self.program.into_os_string()]).chain(self.arguments);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).env_clear().envs(self.env);
        Running { started: self.space.start(command, &self.stdin) }
    }
}

#[derive(Debug)]
pub struct Running {
    started: Started,
}

impl Running {
    pub fn wait(self) -> Output {
        Output { process: self.started.wait() }
    }

    pub fn kill(&mut self) {
        self.started.child.kill().expect("kill the plugin");
    }

    pub fn pid(&self) -> u32 {
        self.started.child.id()
    }
}

impl Output {
    /// Standard output as JSON; null when there is none.
    pub fn json(&self) -> Value {
        let text = &self.process.stdout;
        if text.trim().is_empty() {
            return Value::Null;
        }
        serde_json::from_str(text)
            .unwrap_or_else(|e| panic!("{e} in the output of {}: {text}", self.process.line))
    }

    /// The result, or the error object that the plugin printed, if it exits with 1. Panics if it does neither.
    pub fn result(&self) -> Result<Value, CniFailure> {
        match self.process.code {
            Some(0) => Ok(self.json()),
            Some(1) => match serde_json::from_str(&self.process.stdout) {
                Ok(failure) => Err(failure),
                Err(error) => panic!("no error object: {error}: {}{}", self.process.line, self.process),
            },
            _ => panic!("neither success nor error: {}{}", self.process.line, self.process),
        }
    }

    pub fn ok(&self) -> Value {
        self.result().unwrap_or_else(|_| panic!("{}{}", self.process.line, self.process))
    }

    pub fn error(&self) -> CniFailure {
        match self.result() {
            Err(failure) => failure,
            Ok(_) => panic!("should have failed: {}{}", self.process.line, self.process),
        }
    }
}

impl Node {
    /// Runs `slipway` with the operator's commands, given as words separated by blanks.
    pub fn slipway(&self, args: &str) -> String {
        self.cmd(&format!("{} {args}", quoted(slipway())))
    }

    pub fn try_slipway(&self, args: &str) -> CommandOutput {
        self.try_cmd(&format!("{} {args}", quoted(slipway())))
    }
}
