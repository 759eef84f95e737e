// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls plugins as a runtime does: a process each, the environment, the configuration on standard input (CNI
//! specification 1.1.0, section 2).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Map, Value, json};

use xtask_base::error::{Error, Result};

/// The interface's name in every pod.
pub const IFNAME: &str = "eth0";

/// The `PATH` of a system service.
pub const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// A pod, as the runtime identifies it.
#[derive(Debug, Clone)]
pub struct Pod {
    pub id: String,
    pub netns: PathBuf,
}

/// A realistic ID, whose 64 hexadecimal digits differ from those of other numbers from the first one on.
pub fn container_id(number: u32) -> String {
    format!("{:08x}", number.wrapping_mul(0x9e37_79b1)).repeat(8)
}

/// A plugin directory and a list of plugin configurations.
#[derive(Debug, Clone)]
pub struct Chain {
    pub dir: PathBuf,
    pub network: String,
    /// The `cniVersion` of each call.
    pub version: &'static str,
    /// The plugins' `PATH`.
    pub path: String,
    /// The plugins' configurations, without name, version and the keys of single calls.
    pub plugins: Vec<Value>,
}

/// A call of a plugin, ready to start.
#[derive(Debug)]
pub struct Call {
    command: Command,
    pub input: Vec<u8>,
    /// `bridge ADD pod-1`, for messages.
    pub label: String,
}

impl Chain {
    /// Prepares a call of the plugin at `index`.
    pub fn call(&self, index: usize, verb: &str, pod: &Pod, ports: &Value, previous: &Value) -> Call {
        let mut config = self.plugins[index].as_object().cloned().unwrap_or_default();
        config.insert("name".into(), json!(self.network));
        config.insert("cniVersion".into(), json!(self.version));
        self.runtime_config(&mut config, ports);
        if !previous.is_null() {
            config.insert("prevResult".into(), previous.clone());
        }
        let plugin = config["type"].as_str().unwrap_or_default().to_owned();
        let mut command = Command::new(self.dir.join(&plugin));
        command
            .env_clear()
            .env("PATH", &self.path)
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &pod.id)
            .env("CNI_NETNS", &pod.netns)
            .env("CNI_IFNAME", IFNAME)
            .env("CNI_PATH", &self.dir);
        let input = Value::Object(config).to_string().into_bytes();
        Call { command, input, label: format!("{plugin} {verb} {}", pod.id) }
    }

    /// A runtime passes port mappings to the plugins that have the capability, and removes the key.
    fn runtime_config(&self, config: &mut Map<String, Value>, ports: &Value) {
        if let Some(capabilities) = config.remove("capabilities")
            && capabilities["portMappings"] == json!(true)
            && !ports.is_null()
        {
            config.insert("runtimeConfig".into(), json!({ "portMappings": ports }));
        }
    }

    /// ADD through the whole list; returns the last result.
    pub fn add(&self, pod: &Pod, ports: &Value) -> Result<Value> {
        let mut result = Value::Null;
        for index in 0..self.plugins.len() {
            result = self.call(index, "ADD", pod, ports, &result).run()?;
        }
        Ok(result)
    }

    /// DEL through the whole list, last plugin first.
    pub fn del(&self, pod: &Pod, ports: &Value, result: &Value) -> Result<()> {
        for index in (0..self.plugins.len()).rev() {
            self.call(index, "DEL", pod, ports, result).run()?;
        }
        Ok(())
    }
}

impl Call {
    /// A call of another program, without standard input.
    pub fn of(command: Command, label: String) -> Self {
        Self { command, input: Vec::new(), label }
    }

    /// Starts the plugin. The caller writes its input.
    pub fn spawn(&mut self) -> Result<Child> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.command.spawn().map_err(|e| Error::file("start", Path::new(self.command.get_program()), e))
    }

    /// Runs the plugin and returns the JSON that it prints; null if it prints nothing.
    pub fn run(self) -> Result<Value> {
        let label = self.label.clone();
        let out = self.output()?;
        if out.trim().is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&out).map_err(|e| Error::Failed(format!("{label} printed no JSON ({e}): {out}")))
    }

    /// Does the same as [`Self::run`], but returns what the plugin prints.
    pub fn output(mut self) -> Result<String> {
        let mut child = self.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // If the plugin ends before it has read everything, its output has the reason.
            let _ = stdin.write_all(&self.input);
        }
        let output =
            child.wait_with_output().map_err(|e| Error::system(format!("wait for {}", self.label), e))?;
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(out);
        }
        Err(Error::Failed(format!(
            "{} ended with {}\n  input:  {}\n  output: {out}\n  errors: {}",
            self.label,
            output.status,
            String::from_utf8_lossy(&self.input),
            String::from_utf8_lossy(&output.stderr)
        )))
    }
}

/// The first address of a family in a result, without its prefix length.
pub fn address(result: &Value, family: Family) -> Option<String> {
    let ips = result["ips"].as_array()?;
    let addresses = ips.iter().filter_map(|ip| ip["address"].as_str()?.split('/').next());
    addresses.into_iter().find(|text| (family == Family::V6) == text.contains(':')).map(str::to_owned)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_fills_in_what_the_specification_says() {
        let chain = Chain {
            dir: "/plugins".into(),
            network: "net".into(),
            version: "1.1.0",
            path: SYSTEM_PATH.into(),
            plugins: vec![
                json!({"type": "portmap", "capabilities": {"portMappings": true}}),
                json!({"type": "x"}),
            ],
        };
        let pod = Pod { id: "p".into(), netns: "/run/netns/p".into() };
        let input = |index, ports: &Value| -> Value {
            let call = chain.call(index, "ADD", &pod, ports, &json!({"ips": []}));
            serde_json::from_slice(&call.input).unwrap()
        };
        let ports = json!([{"hostPort": 1}]);
        assert_eq!(
            input(0, &ports),
            json!({"type": "portmap", "name": "net", "cniVersion": "1.1.0", "prevResult": {"ips": []},
                   "runtimeConfig": {"portMappings": [{"hostPort": 1}]}})
        );
        assert!(input(1, &ports).get("runtimeConfig").is_none(), "no capability, no runtimeConfig");
        assert!(input(0, &Value::Null).get("runtimeConfig").is_none());
    }

    #[test]
    fn addresses_are_found_by_family() {
        let result = json!({"ips": [{"address": "fd00::2/64"}, {"address": "10.0.0.2/24"}]});
        assert_eq!(address(&result, Family::V4).as_deref(), Some("10.0.0.2"));
        assert_eq!(address(&result, Family::V6).as_deref(), Some("fd00::2"));
    }
}
