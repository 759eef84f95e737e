// SPDX-License-Identifier: GPL-2.0-or-later

//! A runtime's side of the protocol, in memory: chains plugins as libcni does.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::binaries::newest_version;
use crate::family::has_ipv6;
use crate::node::{Node, Pod};
use crate::plugin::{CniFailure, Output, PluginCall};
use crate::traffic::Proto;

/// A network configuration list on a node, with the cache of its attachments.
///
/// The methods work as libcni does. ADD calls the plugins in order, passes each one's result to the next as
/// `prevResult`, and undoes nothing if one fails. DEL calls them in reverse order with the cached result, CHECK in
/// order. GC first deletes cached attachments that are not valid. `runtimeConfig` holds the capabilities that a plugin
/// asks for.
#[derive(Debug)]
pub struct Network<'a> {
    node: &'a Node,
    list: Value,
    cache: Mutex<BTreeMap<(String, String), Cached>>,
}

#[derive(Debug, Clone)]
struct Cached {
    attach: Attach,
    result: Value,
}

/// One attachment of one container, with what the runtime knows about it.
#[derive(Debug, Clone)]
pub struct Attach {
    pub container: String,
    /// `CNI_NETNS`; may be empty for DEL.
    pub netns: PathBuf,
    pub ifname: String,
    pub args: String,
    /// The runtime's arguments by capability: `portMappings`, `ipRanges`, `mac` and so on.
    pub capabilities: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub plugin: String,
    pub error: CniFailure,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CniFailure { code, msg, details } = &self.error;
        write!(f, "{}: {msg} ({details}; code {code})", self.plugin)
    }
}

/// The configuration of host-local with a range of each family that the kernel has, and default routes.
pub fn host_local(v4: impl Into<String>, v6: impl Into<String>) -> Value {
    let (mut ranges, mut routes) = (vec![json!([{"subnet": v4.into()}])], vec![json!({"dst": "0.0.0.0/0"})]);
    if has_ipv6() {
        ranges.push(json!([{"subnet": v6.into()}]));
        routes.push(json!({"dst": "::/0"}));
    }
    json!({"type": "host-local", "ranges": ranges, "routes": routes})
}

/// An address in a result, without its prefix length.
#[track_caller]
pub fn address_of(result: &Value, index: usize) -> IpAddr {
    let ip = result["ips"][index]["address"].as_str().and_then(|net| net.split('/').next()?.parse().ok());
    ip.unwrap_or_else(|| panic!("address {index} of {result}"))
}

/// All addresses in a result, without their prefix lengths.
#[track_caller]
pub fn addresses_of(result: &Value) -> Vec<IpAddr> {
    let count = result["ips"].as_array().map_or(0, Vec::len);
    (0..count).map(|index| address_of(result, index)).collect()
}

/// The configuration, with these keys added or replaced.
pub fn with_keys(mut config: Value, keys: &Value) -> Value {
    for (key, value) in keys.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config
}

impl Attach {
    /// The pod as a container of the same name, attached as eth0.
    pub fn new(pod: &Pod) -> Self {
        Self {
            container: pod.name().to_owned(),
            netns: pod.path().to_owned(),
            ifname: "eth0".to_owned(),
            args: String::new(),
            capabilities: Map::new(),
        }
    }

    pub fn container(mut self, id: &str) -> Self {
        id.clone_into(&mut self.container);
        self
    }

    pub fn ifname(mut self, name: &str) -> Self {
        name.clone_into(&mut self.ifname);
        self
    }

    pub fn netns(mut self, path: impl Into<PathBuf>) -> Self {
        self.netns = path.into();
        self
    }

    pub fn args(mut self, args: &str) -> Self {
        args.clone_into(&mut self.args);
        self
    }

    pub fn capability(mut self, name: &str, value: Value) -> Self {
        self.capabilities.insert(name.to_owned(), value);
        self
    }

    /// Publishes one more port, on every address of the node.
    pub fn port(self, proto: Proto, host: u16, container: u16) -> Self {
        self.mapping(json!({"hostPort": host, "containerPort": container, "protocol": proto.name()}))
    }

    /// Publishes one more port, on one host address.
    pub fn port_on(self, ip: &str, proto: Proto, host: u16, container: u16) -> Self {
        let mapping =
            json!({"hostPort": host, "containerPort": container, "protocol": proto.name(), "hostIP": ip});
        self.mapping(mapping)
    }

    /// Adds an entry to `portMappings` as it is.
    pub fn mapping(mut self, mapping: Value) -> Self {
        let entry = self.capabilities.entry("portMappings").or_insert_with(|| json!([]));
        entry.as_array_mut().expect("portMappings is a list").push(mapping);
        self
    }

    fn key(&self) -> (String, String) {
        (self.container.clone(), self.ifname.clone())
    }
}

impl<'a> Network<'a> {
    /// See [`Node::network`].
    pub(crate) fn new(node: &'a Node, mut list: Value) -> Self {
        let object = list.as_object_mut().expect("a list is an object");
        object.entry("cniVersion").or_insert_with(|| newest_version().into());
        Self { node, list, cache: Mutex::default() }
    }

    /// Clears the cache, as if the runtime had lost it.
    pub fn forget(&self) {
        self.cache.lock().expect("not poisoned").clear();
    }

    pub fn cached(&self, attach: &Attach) -> Option<Value> {
        self.cache.lock().expect("not poisoned").get(&attach.key()).map(|cached| cached.result.clone())
    }

    /// The configuration of each plugin as it would get it for this attachment, without a `prevResult`.
    pub fn configs(&self, attach: Option<&Attach>) -> Vec<Value> {
        let plugins = self.list["plugins"].as_array().expect("a list has plugins");
        plugins.iter().map(|plugin| self.config(plugin, attach)).collect()
    }

    fn config(&self, plugin: &Value, attach: Option<&Attach>) -> Value {
        let mut config = plugin.as_object().expect("a plugin is an object").clone();
        config.insert("name".into(), self.list["name"].clone());
        config.insert("cniVersion".into(), self.list["cniVersion"].clone());
        if let (Some(attach), Some(wanted)) = (attach, plugin["capabilities"].as_object()) {
            let has = |name: &String| wanted.get(name) == Some(&Value::Bool(true));
            let known: Map<_, _> =
                attach.capabilities.clone().into_iter().filter(|(name, _)| has(name)).collect();
            if !known.is_empty() {
                config.insert("runtimeConfig".into(), known.into());
            }
        }
        config.into()
    }

    /// Calls one plugin of the list. The environment has all six variables, possibly empty, as libcni
    /// sets them.
    pub fn call(&self, verb: &str, config: &Value, attach: Option<&Attach>) -> Output {
        self.prepare(verb, config, attach).run()
    }

    /// The same call as [`Network::call`], but not run yet.
    pub fn prepare(&self, verb: &str, config: &Value, attach: Option<&Attach>) -> PluginCall {
        let name = config["type"].as_str().expect("a plugin has a type");
        let call = self.node.plugin(name).command(verb).config(config);
        match attach {
            Some(attach) => call
                .container(&attach.container)
                .netns(&attach.netns)
                .ifname(&attach.ifname)
                .args(&attach.args),
            None => call.container("").netns("").ifname("").args(""),
        }
    }

    /// Calls a single plugin of the list. `previous` is the result of the plugin before it, or null for none.
    pub fn call_one(&self, at: usize, verb: &str, attach: &Attach, previous: &Value) -> Output {
        let mut config = self.configs(Some(attach)).swap_remove(at);
        if !previous.is_null() {
            config["prevResult"] = previous.clone();
        }
        self.call(verb, &config, Some(attach))
    }

    /// Calls ADD of the first plugin of the list only, for tests of the plugin after it, and returns its result.
    pub fn add_first(&self, attach: &Attach) -> Value {
        self.call_one(0, "ADD", attach, &Value::Null).ok()
    }

    fn step(&self, verb: &str, config: &Value, attach: Option<&Attach>) -> Result<Value, Failure> {
        let plugin = config["type"].as_str().expect("a plugin has a type").to_owned();
        self.call(verb, config, attach).result().map_err(|error| Failure { plugin, error })
    }

    /// Calls ADD and returns the last plugin's result. If a plugin fails, what earlier plugins set up remains, as with
    /// libcni.
    pub fn add(&self, attach: &Attach) -> Result<Value, Failure> {
        let mut result = Value::Null;
        for mut config in self.configs(Some(attach)) {
            if !result.is_null() {
                config["prevResult"] = result;
            }
            result = self.step("ADD", &config, Some(attach))?;
        }
        self.remember(attach, result.clone());
        Ok(result)
    }

    /// Calls ADD of the plugins in another folder, chained as a runtime with version 1.0.0 does, and returns the last
    /// plugin's result.
    pub fn add_by(
        &self,
        plugins: &Path,
        attach: &Attach,
        prepare: impl Fn(PluginCall) -> PluginCall,
    ) -> Value {
        let mut result = Value::Null;
        for mut config in self.configs(Some(attach)) {
            config["cniVersion"] = json!("1.0.0");
            if !result.is_null() {
                config["prevResult"] = result;
            }
            let program = plugins.join(config["type"].as_str().expect("a type"));
            let call = self.prepare("ADD", &config, Some(attach)).instead(&program);
            result = prepare(call.env("CNI_PATH", plugins)).run().ok();
        }
        result
    }

    /// Calls DEL in reverse order. If a plugin fails, those before it in the list are not called.
    pub fn del(&self, attach: &Attach) -> Result<(), Failure> {
        for mut config in self.configs(Some(attach)).into_iter().rev() {
            self.give_result(&mut config, attach);
            self.step("DEL", &config, Some(attach))?;
        }
        self.cache.lock().expect("not poisoned").remove(&attach.key());
        Ok(())
    }

    /// Keeps the result of an ADD, possibly one by another set of plugins, for DEL, CHECK and [`Network::write_cache`].
    pub fn remember(&self, attach: &Attach, result: Value) {
        let cached = Cached { attach: attach.clone(), result };
        self.cache.lock().expect("not poisoned").insert(attach.key(), cached);
    }

    /// Writes what libcni caches for an attachment to the node's disk, in the format of its version 1.1. The format has
    /// no field for the namespace, because the result names it.
    pub fn write_cache(&self, attach: &Attach) {
        let pairs =
            attach.args.split(';').filter_map(|pair| pair.split_once('=')).map(|(k, v)| json!([k, v]));
        let file = json!({
            "kind": "cniCacheV1",
            "containerId": attach.container,
            "config": STANDARD.encode(self.list.to_string()),
            "ifName": attach.ifname,
            "networkName": self.list["name"],
            "cniArgs": pairs.collect::<Vec<_>>(),
            "capabilityArgs": attach.capabilities,
            "result": self.cached(attach).expect("it was added"),
        });
        self.node.write(&self.cache_path(attach), file.to_string());
    }

    /// The directory to which [`Network::write_cache`] writes.
    pub fn cache_path(&self, attach: &Attach) -> String {
        let name = self.list["name"].as_str().expect("a list has a name");
        format!("/var/lib/cni/results/{name}-{}-{}", attach.container, attach.ifname)
    }

    /// Asserts that CHECK fails with a message that contains this text.
    #[track_caller]
    pub fn differs(&self, pod: &Pod, text: &str) {
        let failure = self.check(&Attach::new(pod)).expect_err("CHECK should notice");
        assert!(failure.error.msg.contains(text), "{text:?} is not in: {failure}");
    }

    pub fn check(&self, attach: &Attach) -> Result<(), Failure> {
        for mut config in self.configs(Some(attach)) {
            self.give_result(&mut config, attach);
            self.step("CHECK", &config, Some(attach))?;
        }
        Ok(())
    }

    fn give_result(&self, config: &mut Value, attach: &Attach) {
        // DEL gets a prevResult from 0.4.0 on, the version that introduced CHECK.
        let old = ["0.1.0", "0.2.0", "0.3.0", "0.3.1"].map(Value::from);
        if let (Some(result), false) = (self.cached(attach), old.contains(&self.list["cniVersion"])) {
            config["prevResult"] = result;
        }
    }

    /// Calls GC, which removes everything but `valid`. Cached attachments that are not valid get a DEL first. All
    /// plugins are called, even after one has failed.
    pub fn gc(&self, valid: &[&Attach]) -> Result<(), Vec<Failure>> {
        let mut failures = Vec::new();
        let stale: Vec<_> = {
            let cache = self.cache.lock().expect("not poisoned");
            let is_valid = |key: &(String, String)| valid.iter().any(|attach| attach.key() == *key);
            cache.iter().filter(|(key, _)| !is_valid(key)).map(|(_, cached)| cached.attach.clone()).collect()
        };
        for attach in &stale {
            failures.extend(self.del(attach).err());
        }
        let list: Vec<_> = valid
            .iter()
            .map(|attach| json!({"containerID": attach.container, "ifname": attach.ifname}))
            .collect();
        failures.extend(self.gc_plugins(&list.into()).err().unwrap_or_default());
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }

    /// The plugins' part of GC, with a list passed unchanged (null, for instance) under both of its keys.
    pub fn gc_plugins(&self, list: &Value) -> Result<(), Vec<Failure>> {
        let mut failures = Vec::new();
        for mut config in self.configs(None) {
            config["cni.dev/valid-attachments"] = list.clone();
            config["cni.dev/attachments"] = list.clone();
            failures.extend(self.step("GC", &config, None).err());
        }
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }

    pub fn status(&self) -> Result<(), Failure> {
        self.configs(None).iter().try_for_each(|config| self.step("STATUS", config, None).map(drop))
    }
}

impl Node {
    /// A node, the pod `pod`, and its attachment as eth0.
    pub fn with_attachment() -> (Self, Pod, Attach) {
        let (node, pod) = Self::with_pod();
        let attach = Attach::new(&pod);
        (node, pod, attach)
    }

    /// A network of chained plugins, called as libcni calls them; see [`Network`]. `list` is a configuration list. If
    /// it has no `cniVersion`, it gets the newest one that the plugins speak.
    pub fn network(&self, list: Value) -> Network<'_> {
        Network::new(self, list)
    }
}
