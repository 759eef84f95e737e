// SPDX-License-Identifier: MIT OR Apache-2.0

//! The cache of attachments. For each attachment, libcni writes a file `<network>-<container>-<interface>` in
//! `<cache directory>/results` after a successful ADD, and deletes it after a successful DEL.
//!
//! The format is libcni's: `kind` `cniCacheV1`, `containerId`, `config` (the configuration list, base64), `ifName`,
//! `networkName`, `netns` (libcni 1.3 and later), `cniArgs`, `capabilityArgs`, `result`. libcni before 0.8 wrote only
//! the result, without the other keys.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cni_kernel::dir::{Access, DirError, DurableDir};
use cni_spec::{AddResult, Attachment, CniError, NetConf, NetConfList, Version};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::container::Container;
use crate::error::{CacheError, StoreError};
use crate::network::{Network, is_list};

/// libcni's default cache directory (`CacheDir` in its `api.go`), and that of kubelet's shim for Docker
/// (`--cni-cache-dir`).
pub const DIRECTORIES: [&str; 2] = ["/var/lib/cni", "/var/lib/cni/cache"];
/// The directory of pending attachments in a cache directory. It contains a file for each sandbox that the pod
/// manager is setting up, or was setting up when it was killed.
pub const PENDING: &str = "pending";
/// The directory of the files, below the cache directory.
const RESULTS: &str = "results";
/// The largest file that is read, in bytes. A configuration may have 16 MiB, and a third more in base64.
const LIMIT: u64 = 32 << 20;
/// `kind` of libcni's format.
const KIND: &str = "cniCacheV1";

/// A directory of cached attachments.
#[derive(Debug)]
pub struct Cache {
    results: DurableDir,
}

/// A cached attachment.
#[derive(Debug, Clone, PartialEq)]
pub struct Cached {
    /// The attachment.
    pub attachment: Attachment,
    /// The container's namespace, as stored in the file or else in the result.
    pub netns: Option<PathBuf>,
    /// `CNI_ARGS` as the runtime passed them.
    pub args: String,
    /// Capability arguments, by capability.
    pub capabilities: Map<String, Value>,
    /// The network's configuration at the time of the ADD.
    pub list: NetConfList,
    /// The configuration's bytes in the cache: a list, or a single configuration.
    pub config: Vec<u8>,
    /// The result of the ADD.
    pub result: AddResult,
    /// Modification time of the file, by which the ADDs are ordered.
    pub written: Option<SystemTime>,
}

/// A file that cannot be used.
#[derive(Debug)]
pub struct Fault {
    /// The file's path.
    pub path: PathBuf,
    /// The reason.
    pub error: CacheError,
}

/// The file, with libcni's keys.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    container_id: String,
    config: String,
    if_name: String,
    network_name: String,
    #[serde(default)]
    netns: Option<String>,
    #[serde(default)]
    cni_args: Option<Vec<[String; 2]>>,
    #[serde(default)]
    capability_args: Option<Map<String, Value>>,
    #[serde(default)]
    result: Option<Map<String, Value>>,
}

/// The file for writing, with the keys in libcni's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    kind: &'static str,
    container_id: &'a str,
    config: String,
    if_name: &'a str,
    network_name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    netns: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cni_args: Vec<[&'a str; 2]>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    capability_args: &'a Map<String, Value>,
    result: Map<String, Value>,
}

/// A file's content and its modification time.
struct Content {
    bytes: Vec<u8>,
    written: Option<SystemTime>,
}

impl Cache {
    /// Opens the cache in a directory. None if the directory is missing.
    ///
    /// # Errors
    /// [`DirError`] if it cannot be opened.
    pub fn open(directory: &Path) -> Result<Option<Self>, DirError> {
        match DurableDir::open(&directory.join(RESULTS)) {
            Ok(results) => Ok(Some(Self { results })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the cache in a directory, and creates it if it is missing.
    ///
    /// # Errors
    /// [`DirError`] if it cannot be opened or created.
    pub fn create(directory: &Path) -> Result<Self, DirError> {
        Ok(Self { results: DurableDir::create(&directory.join(RESULTS), 0o700)? })
    }

    /// Stores an attachment atomically, even if the power fails. `list` is the network's configuration list as JSON,
    /// and `version` the version of the result.
    ///
    /// # Errors
    /// [`StoreError`] if the result cannot be expressed in that version, or the file cannot be written.
    pub fn remember(
        &self,
        attachment: &Attachment,
        list: &[u8],
        container: &Container,
        result: &AddResult,
        version: &str,
    ) -> Result<(), StoreError> {
        let version = Version::parse(version).unwrap_or(Version::V0_1_0);
        let pairs: Vec<[&str; 2]> = container.args.iter().map(|(key, value)| [&**key, &**value]).collect();
        let file = Written {
            kind: KIND,
            container_id: attachment.container_id(),
            config: STANDARD.encode(list),
            if_name: attachment.ifname(),
            network_name: attachment.network(),
            netns: &container.netns,
            cni_args: pairs,
            capability_args: &container.capabilities,
            result: result.to_object(version)?,
        };
        let text = cni_spec::text::compact(&file);
        Ok(self.results.put(file_name(attachment), text.as_bytes(), 0o600)?)
    }

    /// Deletes an attachment's file, if it exists.
    ///
    /// # Errors
    /// [`DirError`] if it cannot be deleted.
    pub fn forget(&self, attachment: &Attachment) -> Result<(), DirError> {
        self.results.remove(file_name(attachment)).map(drop)
    }

    /// Deletes old temporary files, which processes left when they were killed.
    #[cfg(feature = "pods")]
    pub(crate) fn sweep(&self) -> Result<(), DirError> {
        self.results.remove_stale_temporaries().map(drop)
    }

    /// The cached attachment. None if the attachment has no file.
    ///
    /// # Errors
    /// [`CacheError`] if the file cannot be used.
    pub fn get(&self, attachment: &Attachment) -> Result<Option<Cached>, CacheError> {
        self.read_one(&file_name(attachment))
    }

    /// The result of an attachment. None if the attachment has no file. libcni before 0.8 wrote nothing but the
    /// result into the file, and this form is accepted as well.
    ///
    /// # Errors
    /// [`CacheError`] if the file cannot be used.
    pub fn result(&self, attachment: &Attachment) -> Result<Option<AddResult>, CacheError> {
        let name = file_name(attachment);
        match self.read_one(&name) {
            Ok(cached) => Ok(cached.map(|cached| cached.result)),
            Err(CacheError::BareResult) => {
                let Some(Content { bytes, .. }) = self.read_bytes(&name)? else { return Ok(None) };
                // The result in the file names its own version, because otherwise the file would not be in this form.
                let result = AddResult::from_output(Version::V0_1_0, &bytes);
                result.map(Some).map_err(|e| CacheError::Form(format!("result: {e}")))
            }
            Err(error) => Err(error),
        }
    }

    /// The attachments of a container in the order of their ADDs. Files that cannot be used are logged and left out.
    ///
    /// # Errors
    /// [`DirError`] if the directory cannot be listed, or if the system lacks descriptors or memory to read a file.
    pub fn of_container(&self, id: &str) -> Result<Vec<Cached>, DirError> {
        let inside = format!("-{id}-");
        let (mut all, faults) = self.read_named(|name| name.to_string_lossy().contains(&inside))?;
        lasting(faults)?;
        all.retain(|cached| cached.attachment.container_id() == id);
        Ok(all)
    }

    /// The directory of the files.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.results.path()
    }

    /// All attachments in the order of their ADDs, and the files that cannot be used. Files that are deleted
    /// concurrently are left out.
    ///
    /// # Errors
    /// [`DirError`] if the directory cannot be listed.
    pub fn read(&self) -> Result<(Vec<Cached>, Vec<Fault>), DirError> {
        self.read_named(|_| true)
    }

    fn read_named(&self, wanted: impl Fn(&OsStr) -> bool) -> Result<(Vec<Cached>, Vec<Fault>), DirError> {
        let mut names = self.results.list()?;
        names.retain(|name| wanted(name));
        names.sort();
        let (mut all, mut faults) = (Vec::new(), Vec::new());
        for name in names {
            match self.read_one(&name) {
                Ok(Some(cached)) => all.push(cached),
                Ok(None) => {}
                Err(error) => faults.push(Fault { path: self.results.path().join(name), error }),
            }
        }
        // The sort is stable, so attachments with equal or unknown times stay sorted by name.
        all.sort_by_key(|cached| cached.written);
        Ok((all, faults))
    }

    /// True if the attachment is cached: a successful DEL deletes its file.
    ///
    /// # Errors
    /// [`DirError`] if the file cannot be looked up.
    pub fn remembers(&self, attachment: &Attachment) -> Result<bool, DirError> {
        self.results.exists(file_name(attachment))
    }

    fn read_one(&self, name: &OsStr) -> Result<Option<Cached>, CacheError> {
        let Some(Content { bytes, written }) = self.read_bytes(name)? else { return Ok(None) };
        let cached = Cached { written, ..parse(&bytes)? };
        if name != file_name(&cached.attachment) {
            return Err(CacheError::Name(cached.attachment));
        }
        Ok(Some(cached))
    }

    /// None if the file is missing.
    fn read_bytes(&self, name: &OsStr) -> Result<Option<Content>, CacheError> {
        let file = match self.results.open_file(name, Access::Read) {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        let written = file.metadata().and_then(|data| data.modified()).ok();
        let mut bytes = Vec::new();
        let failed = |error| DirError::of_file("read", &self.results.path().join(name), &error);
        file.take(LIMIT + 1).read_to_end(&mut bytes).map_err(failed)?;
        if u64::try_from(bytes.len()).is_ok_and(|length| length > LIMIT) {
            return Err(CacheError::TooLarge(LIMIT));
        }
        Ok(Some(Content { bytes, written }))
    }
}

/// Logs and returns the files that stay unusable.
///
/// # Errors
/// The first error of a file that could not be read for lack of descriptors or memory: its attachment may be in order,
/// and a caller that left it out would take it for deleted.
pub(crate) fn lasting(faults: Vec<Fault>) -> Result<Vec<PathBuf>, DirError> {
    faults
        .into_iter()
        .map(|Fault { path, error }| match error {
            CacheError::Directory(error) if error.is_transient() => Err(error),
            error => {
                log::warn!("{}: {error}", path.display());
                Ok(path)
            }
        })
        .collect()
}

fn file_name(attachment: &Attachment) -> OsString {
    format!("{}-{}-{}", attachment.network(), attachment.container_id(), attachment.ifname()).into()
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Cached, CacheError> {
    let form = |why: String| CacheError::Form(why);
    let object: Map<String, Value> = serde_json::from_slice(bytes).map_err(|e| form(e.to_string()))?;
    match object.get("kind") {
        Some(Value::String(kind)) if kind == KIND => {}
        Some(Value::String(kind)) => return Err(CacheError::Kind(kind.clone())),
        Some(_) => return Err(form("kind is not a string".to_owned())),
        None if object.contains_key("cniVersion") => return Err(CacheError::BareResult),
        None => return Err(form("kind is missing".to_owned())),
    }
    let file = File::deserialize(Value::Object(object)).map_err(|e| form(e.to_string()))?;
    let attachment = Attachment::new(&file.network_name, &file.container_id, &file.if_name)
        .map_err(|e| form(e.to_string()))?;
    let config = STANDARD.decode(&file.config).map_err(|_| form("config is not base64".to_owned()))?;
    let list = network(&config).map_err(|e| form(format!("config: {e}")))?.list().clone();
    if list.name != attachment.network() {
        return Err(form(format!("config is of network {:?}", list.name)));
    }
    let version = list.version.known().unwrap_or(Version::V1_0_0);
    let result = file.result.ok_or_else(|| form("result is missing".to_owned()))?;
    let result = AddResult::from_output(version, Value::Object(result).to_string().as_bytes())
        .map_err(|e| form(format!("result: {e}")))?;
    let inside = |interface: &&cni_spec::Interface| {
        interface.name == attachment.ifname() && !interface.sandbox.is_empty()
    };
    let sandbox = || result.interfaces.iter().find(inside).map(|interface| interface.sandbox.clone());
    let netns = file.netns.filter(|path| !path.is_empty()).or_else(sandbox).map(PathBuf::from);
    let args: Vec<String> = file.cni_args.unwrap_or_default().iter().map(|pair| pair.join("=")).collect();
    Ok(Cached {
        netns,
        args: args.join(";"),
        capabilities: file.capability_args.unwrap_or_default(),
        list,
        config,
        result,
        written: None,
        attachment,
    })
}

/// Decodes a list, or the configuration of a single plugin (libcni's `AddNetwork`).
fn network(config: &[u8]) -> Result<Network, cni_spec::ListError> {
    if is_list(config) { Network::from_bytes(config) } else { Network::single(config) }
}

impl Cached {
    /// The network as it was at the ADD. A DEL needs this after the configuration was changed or removed.
    #[must_use]
    pub fn network(&self) -> Network {
        network(&self.config).unwrap_or_else(|_| Network::from_list(self.list.clone()))
    }

    /// The container of the attachment, as it was cached.
    #[must_use]
    pub fn container(&self) -> Container {
        let pairs = self.args.split(';').filter_map(|pair| pair.split_once('='));
        Container {
            id: self.attachment.container_id().to_owned(),
            netns: self.netns.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
            ifname: self.attachment.ifname().to_owned(),
            args: pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            capabilities: self.capabilities.clone(),
        }
    }

    /// The input of each plugin of the network, including the attachment's result, in the order of an ADD.
    ///
    /// # Errors
    /// Code 7 if the result cannot be expressed in the list's version, or if a configuration is invalid.
    pub fn configs(&self) -> Result<Vec<NetConf>, CniError> {
        let config = |plugin| {
            let input = self.list.input(plugin, Some(&self.result), &self.capabilities);
            let input = input.map_err(|e| CniError::config(e.to_string()))?;
            NetConf::parse(Value::Object(input).to_string())
        };
        self.list.plugins.iter().map(config).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A list of bridge and portmap, version 0.4.0, named pods.
    const CONFIG: &str = "eyJjbmlWZXJzaW9uIjoiMC40LjAiLCJuYW1lIjoicG9kcyIsInBsdWdpbnMiOlt7InR5cGUiOiJicmlkZ2UifSx7InR5cGUiOiJwb3J0bWFwIiwiY2FwYWJpbGl0aWVzIjp7InBvcnRNYXBwaW5ncyI6dHJ1ZX19XX0=";

    fn file() -> Value {
        json!({
            "kind": "cniCacheV1", "containerId": "c1", "config": CONFIG, "ifName": "eth0", "networkName": "pods",
            "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAME", "web"]],
            "capabilityArgs": {"portMappings": [{"hostPort": 8080, "containerPort": 80}], "mac": "02:00:00:00:00:01"},
            "result": {
                "cniVersion": "0.4.0",
                "interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": "/run/netns/c1"}],
                "ips": [{"version": "4", "interface": 1, "address": "10.22.0.2/16"}],
                "dns": {},
            },
        })
    }

    #[test]
    fn a_file_that_cannot_be_read_now_is_an_error() {
        let path = PathBuf::from("/results/pods-c1-eth0");
        let fault = |error| Fault { path: path.clone(), error };
        let unread =
            |errno| CacheError::Directory(DirError::System { operation: "open", path: path.clone(), errno });
        assert!(lasting(vec![fault(unread(nix::errno::Errno::EMFILE))]).is_err());
        let damaged = vec![fault(unread(nix::errno::Errno::EIO)), fault(CacheError::Form("EOF".to_owned()))];
        assert_eq!(lasting(damaged).unwrap(), [path.clone(), path.clone()]);
    }

    fn parsed(file: &Value) -> Result<Cached, String> {
        parse(file.to_string().as_bytes()).map_err(|e| e.to_string())
    }

    #[test]
    fn a_file_of_libcni_is_decoded() {
        let cached = parsed(&file()).unwrap();
        assert_eq!(cached.attachment, Attachment::new("pods", "c1", "eth0").unwrap());
        assert_eq!(cached.netns.as_deref(), Some(Path::new("/run/netns/c1")));
        assert_eq!(cached.args, "IgnoreUnknown=1;K8S_POD_NAME=web");
        assert_eq!(cached.result.ips[0].address.to_string(), "10.22.0.2/16");
        let configs = cached.configs().unwrap();
        assert_eq!(configs.iter().map(|c| c.plugin.as_str()).collect::<Vec<_>>(), ["bridge", "portmap"]);
        assert_eq!(configs[1].prev_result.as_ref(), Some(&cached.result));
        assert_eq!(
            configs[1].raw["runtimeConfig"],
            json!({"portMappings": [{"hostPort": 8080, "containerPort": 80}]})
        );
        assert_eq!(configs[0].raw.get("runtimeConfig"), None);
    }

    #[test]
    fn the_namespace_of_the_file_has_precedence_over_that_of_the_result() {
        let mut file = file();
        file["netns"] = "/proc/7/ns/net".into();
        assert_eq!(parsed(&file).unwrap().netns.as_deref(), Some(Path::new("/proc/7/ns/net")));
    }

    #[test]
    fn files_of_other_formats_are_refused() {
        let mut other = file();
        other["kind"] = "cniCacheV2".into();
        assert_eq!(parsed(&other).unwrap_err(), "unknown kind \"cniCacheV2\"");
        assert!(parsed(&file()["result"]).unwrap_err().contains("only a result"));
        for (key, value, message) in [
            ("config", json!("!"), "config is not base64"),
            ("config", json!("e30="), "no name"),
            ("containerId", json!("../x"), "not a cached attachment"),
            ("networkName", json!("other"), "config is of network \"pods\""),
            ("result", json!(null), "result is missing"),
            ("cniArgs", json!([["one"]]), "not a cached attachment"),
        ] {
            let mut file = file();
            file[key] = value;
            let error = parsed(&file).unwrap_err();
            assert!(error.contains(message), "{key}: {error}");
        }
    }

    #[test]
    fn a_directory_is_read_in_the_order_of_the_adds() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Cache::open(dir.path()).unwrap().is_none());
        let results = dir.path().join("results");
        std::fs::create_dir(&results).unwrap();
        let at = |seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        for (id, seconds) in [("b", 1), ("a", 2), ("c", 3)] {
            let mut file = file();
            file["containerId"] = id.into();
            let path = results.join(format!("pods-{id}-eth0"));
            std::fs::write(&path, file.to_string()).unwrap();
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(at(seconds)).unwrap();
        }
        std::fs::write(results.join("pods-d-eth0"), file().to_string()).unwrap();
        std::fs::write(results.join("torn"), "{").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", results.join("link")).unwrap();
        std::fs::create_dir(results.join("folder")).unwrap();
        make_fifo(&results.join("fifo"));
        let cache = Cache::open(dir.path()).unwrap().unwrap();
        let (all, faults) = cache.read().unwrap();
        let ids: Vec<_> = all.iter().map(|cached| cached.attachment.container_id()).collect();
        assert_eq!(ids, ["b", "a", "c"]);
        let faults: Vec<_> = faults.iter().map(|f| f.path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(faults, ["fifo", "folder", "link", "pods-d-eth0", "torn"]);
        assert!(cache.remembers(&all[0].attachment).unwrap());
        assert!(!cache.remembers(&Attachment::new("pods", "e", "eth0").unwrap()).unwrap());
    }

    #[test]
    fn a_stored_attachment_reads_back_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let read = parse(file().to_string().as_bytes()).unwrap();
        let cache = Cache::create(dir.path()).unwrap();
        let list = STANDARD.decode(CONFIG).unwrap();
        cache.remember(&read.attachment, &list, &read.container(), &read.result, "0.4.0").unwrap();
        let again = cache.get(&read.attachment).unwrap().unwrap();
        assert_eq!(Cached { written: None, ..again }, read);
        let path = dir.path().join("results/pods-c1-eth0");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("{\"kind\":\"cniCacheV1\",\"containerId\":\"c1\",\"config\":\"eyJ"),
            "{text}"
        );
        cache.forget(&read.attachment).unwrap();
        cache.forget(&read.attachment).unwrap();
        assert!(cache.get(&read.attachment).unwrap().is_none() && !path.exists());
    }

    /// A FIFO must not block the reader.
    fn make_fifo(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _parsed = parse(&bytes);
        }

        /// Files that are nearly valid reach more code than random ones.
        #[test]
        fn any_value_of_a_key_is_read_or_refused(
            key in prop::sample::select(vec![
                "kind", "containerId", "config", "ifName", "networkName", "netns", "cniArgs", "capabilityArgs", "result",
            ]),
            value in prop_oneof![
                any::<String>().prop_map(Value::from),
                any::<i64>().prop_map(Value::from),
                any::<bool>().prop_map(Value::from),
                Just(Value::Null),
                prop::collection::vec(any::<String>(), 0..3).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), any::<String>(), 0..3)
                    .prop_map(|map| map.into_iter().map(|(k, v)| (k, Value::from(v))).collect()),
            ],
        ) {
            let mut file = file();
            file[key] = value;
            if let Ok(cached) = parsed(&file) {
                let _configs = cached.configs();
            }
        }

        #[test]
        fn a_cut_file_is_refused(end in 0usize..400) {
            let text = file().to_string();
            prop_assume!(end < text.len() && text.is_char_boundary(end));
            prop_assert!(parse(&text.as_bytes()[..end]).is_err());
        }
    }
}
