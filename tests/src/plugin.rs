// SPDX-License-Identifier: GPL-2.0-or-later

//! Calls a plugin as a runtime does, with an environment and standard input for one process.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

use crate::binaries::slipway;
use crate::node::{Node, Pod};
use crate::space::{CommandOutput, Space, Started, quoted};

/// One call of one plugin, to be filled in and run. The environment contains only what is given, apart from `CNI_PATH`,
/// which is the plugin directory, and `PATH`.
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
    /// The plugin's name and the verb.
    what: String,
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

    /// Sets an environment variable.
    pub fn env(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.env.retain(|(known, _)| known != key);
        self.env.push((key.to_owned(), value.into()));
        self
    }

    /// Removes an environment variable.
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

    /// Sets the container ID (the pod's name), the namespace and the interface name `eth0`.
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

    /// Runs the plugin with a wrapper, for instance `["strace", "-f", "-o", "/run/trace"]`.
    pub fn through(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(OsString::from).collect();
        self
    }

    /// Runs another program in the plugin's place, for instance a reference plugin.
    pub fn instead(mut self, program: &Path) -> Self {
        self.program = program.to_owned();
        self
    }

    /// Sets command line arguments. A plugin takes none, but a program in its place may.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(OsString::from).collect();
        self
    }

    pub fn run(self) -> Output {
        self.spawn().wait()
    }

    /// Starts the call, for tests that interrupt it or run several at once.
    pub fn spawn(self) -> Running {
        let verb =
            self.env.iter().find(|(key, _)| key == "CNI_COMMAND").map(|(_, verb)| verb.to_string_lossy());
        let plugin = self.program.file_name().unwrap_or_default().to_string_lossy();
        let what = format!("{plugin} {}", verb.unwrap_or_default());
        let mut words = self.wrapper.into_iter().chain([self.program.into_os_string()]).chain(self.arguments);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).env_clear().envs(self.env);
        Running { what, started: self.space.start(command, &self.stdin) }
    }
}

#[derive(Debug)]
pub struct Running {
    what: String,
    started: Started,
}

impl Running {
    pub fn wait(self) -> Output {
        Output { what: self.what, process: self.started.wait() }
    }

    pub fn kill(&mut self) {
        self.started.child.kill().expect("kill the plugin");
    }

    pub fn pid(&self) -> u32 {
        self.started.child.id()
    }
}

impl Output {
    /// Standard output as JSON, or null if it is empty.
    pub fn json(&self) -> Value {
        let text = &self.process.stdout;
        if text.trim().is_empty() {
            return Value::Null;
        }
        serde_json::from_str(text)
            .unwrap_or_else(|e| panic!("{e} in the output of {}: {text}", self.process.line))
    }

    /// The result, or the error object that the plugin printed if it exited with 1. Panics in any other case.
    pub fn result(&self) -> Result<Value, CniFailure> {
        match self.process.code {
            Some(0) => Ok(self.json()),
            Some(1) => match serde_json::from_str(&self.process.stdout) {
                Ok(failure) => Err(failure),
                Err(_) => panic!("{}", self.process.unexpected(&self.what, "an error object")),
            },
            _ => panic!("{}", self.process.unexpected(&self.what, "a result or an error")),
        }
    }

    pub fn ok(&self) -> Value {
        self.result().unwrap_or_else(|failure| {
            let what = format!("{}: {} (code {})", self.what, failure.msg, failure.code);
            panic!("{}", self.process.unexpected(&what, "a result"))
        })
    }

    pub fn error(&self) -> CniFailure {
        match self.result() {
            Err(failure) => failure,
            Ok(_) => panic!("{}", self.process.unexpected(&self.what, "an error")),
        }
    }
}

impl Node {
    pub fn plugin(&self, name: &str) -> PluginCall {
        PluginCall::new((**self).clone(), self.bin(), name)
    }

    /// Runs a command of `slipway`, given as words separated by blanks.
    pub fn slipway(&self, args: &str) -> String {
        self.cmd(&format!("{} {args}", quoted(slipway())))
    }

    pub fn try_slipway(&self, args: &str) -> CommandOutput {
        self.try_cmd(&format!("{} {args}", quoted(slipway())))
    }
}
