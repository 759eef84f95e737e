// SPDX-License-Identifier: MIT OR Apache-2.0

//! The configuration directory of a running node: its networks, the default network, and a verdict on each file.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cni_spec::{NetConfList, check_network, fold, text};
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::config::{self, LIST, LoadError, SINGLE};
use crate::error::NetworkError;
use crate::network::{Network, kind};
use crate::{Runtime, invoke};

/// The largest configuration, in bytes. Plugins have the same limit.
const LIMIT: u64 = 16 << 20;

/// The networks that a configuration directory contained at one time.
#[derive(Debug, Default)]
pub struct Networks {
    default: Option<String>,
    networks: BTreeMap<String, Network>,
    verdicts: Vec<Verdict>,
}

/// A file of the configuration directory, with its network or the reason why the file is skipped.
#[derive(Debug)]
pub struct Verdict {
    /// The file.
    pub path: PathBuf,
    /// The name of its network.
    pub network: Result<String, SkipReason>,
}

/// The reason why a file is skipped.
#[derive(Debug, thiserror::Error)]
pub enum SkipReason {
    /// The file is not a configuration.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A plugin is missing, or does not support the version.
    #[error(transparent)]
    Plugins(#[from] NetworkError),
    /// An earlier file has a network of this name.
    #[error("network {} is in {}, too", text::quote(network), first.display())]
    Duplicate {
        /// The network.
        network: String,
        /// The earlier file.
        first: PathBuf,
    },
}

impl Verdict {
    /// The reason why the file is skipped, for a message that already names the file.
    #[must_use]
    pub fn skip_reason(&self) -> Option<String> {
        match self.network.as_ref().err()? {
            SkipReason::Load(error) => Some(error.reason_in(&self.path)),
            other => Some(other.to_string()),
        }
    }
}

impl Networks {
    /// Chooses the networks from all files, in order: the first file with a network's name wins, and the first valid
    /// network is the default one unless `default` names another.
    #[must_use]
    pub fn choose(files: Vec<(PathBuf, Result<Network, SkipReason>)>, default: Option<&str>) -> Self {
        let mut chosen = Self { default: default.map(str::to_owned), ..Self::default() };
        let mut paths: BTreeMap<String, PathBuf> = BTreeMap::new();
        for (path, network) in files {
            let verdict = network.and_then(|network| {
                let name = network.name().to_owned();
                if let Some(first) = paths.get(&name) {
                    return Err(SkipReason::Duplicate { network: name, first: first.clone() });
                }
                paths.insert(name.clone(), path.clone());
                chosen.default.get_or_insert_with(|| name.clone());
                chosen.networks.insert(name.clone(), network);
                Ok(name)
            });
            chosen.verdicts.push(Verdict { path, network: verdict });
        }
        chosen
    }

    /// The network of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Network> {
        self.networks.get(name)
    }

    /// The default network. None if there is no valid network, or if the configured one is not valid.
    #[must_use]
    pub fn default_network(&self) -> Option<&Network> {
        self.get(self.default.as_deref()?)
    }

    /// All networks, sorted by name.
    pub fn all(&self) -> impl Iterator<Item = &Network> {
        self.networks.values()
    }

    /// The verdict on each file, in the order of the files.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// The verdicts as text, by file.
    fn shown(&self) -> BTreeMap<&Path, Result<String, String>> {
        let shown = |verdict: &Verdict| match &verdict.network {
            Ok(name) => Ok(name.clone()),
            Err(_) => Err(verdict.skip_reason().unwrap_or_default()),
        };
        self.verdicts.iter().map(|verdict| (verdict.path.as_path(), shown(verdict))).collect()
    }

    /// Logs the differences from an earlier state. False if there are none.
    fn log_changes(&self, before: &Self) -> bool {
        let (old, new) = (before.shown(), self.shown());
        for (path, verdict) in &new {
            match verdict {
                verdict if old.get(path) == Some(verdict) => {}
                Ok(name) => log::info!("{}: network {name}", path.display()),
                Err(reason) => log::warn!("{}: skipped: {reason}", path.display()),
            }
        }
        let name = |networks: &Self| networks.default_network().map(|network| network.name().to_owned());
        let (was, is) = (name(before), name(self));
        if was != is {
            log::info!("default network: {}", is.as_deref().unwrap_or("none"));
        }
        old != new || was != is || before.networks != self.networks
    }
}

/// The directory, and the networks that were valid at the last reading.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    default: Option<String>,
    runtime: Runtime,
    /// Locked while the directory is read, so that the results of readings are published in order.
    versions: Mutex<Versions>,
    published: watch::Sender<Arc<Networks>>,
}

/// The supported versions for each plugin file, because the directory is read often, and each VERSION starts a
/// process.
type Versions = HashMap<PathBuf, KnownVersions>;

#[derive(Debug)]
struct KnownVersions {
    stamp: Stamp,
    versions: Vec<String>,
}

/// A file's metadata, which changes whenever the content changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: i64,
    modified_ns: i64,
    changed: i64,
    changed_ns: i64,
}

impl Directory {
    /// A directory that has not been read yet. `default` is the configured default network.
    pub(crate) fn new(path: PathBuf, default: Option<String>, runtime: Runtime) -> Self {
        let published = watch::Sender::new(Arc::new(Networks::default()));
        Self { path, default, runtime, versions: Mutex::default(), published }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn plugin_dirs(&self) -> &[PathBuf] {
        self.runtime.plugin_dirs()
    }

    /// The networks of the last reading.
    pub(crate) fn networks(&self) -> Arc<Networks> {
        self.published.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Networks>> {
        self.published.subscribe()
    }

    /// Reads the directory, checks the plugins, and publishes the networks. If that fails, the networks of the last
    /// reading stay.
    pub(crate) fn sync(&self) -> Result<Arc<Networks>, LoadError> {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = config::files(&self.path, &[LIST, SINGLE[0], SINGLE[1]])?;
        let mut files = Vec::new();
        for path in paths.into_iter().filter(|path| !is_hidden(path)) {
            let Some(network) = read(&path).transpose() else { continue };
            let checked = network.map_err(SkipReason::from).and_then(|network| {
                self.check(&network, &mut versions)?;
                Ok(network)
            });
            files.push((path, checked));
        }
        let networks = Arc::new(Networks::choose(files, self.default.as_deref()));
        self.published.send_if_modified(|published| {
            let is_changed = networks.log_changes(published);
            *published = Arc::clone(&networks);
            is_changed
        });
        Ok(networks)
    }

    /// Checks that all plugins exist and support the version.
    fn check(&self, network: &Network, versions: &mut Versions) -> Result<(), NetworkError> {
        let wanted = network.list().version.as_str();
        for plugin in &network.list().plugins {
            let plugin = kind(plugin);
            let file = invoke::find(plugin, self.plugin_dirs()).ok();
            let stamp = file.as_ref().and_then(|file| file.metadata().ok()).map(|data| Stamp::of(&data));
            let known = file.as_ref().and_then(|file| versions.get(file));
            let is_supported = match known.filter(|known| Some(known.stamp) == stamp) {
                Some(known) => known.versions.iter().any(|version| version == wanted),
                None => {
                    let asked = self.runtime.versions(plugin)?;
                    let is_supported = asked.iter().any(|version| version == wanted);
                    if let (Some(file), Some(stamp)) = (file, stamp) {
                        versions.insert(file, KnownVersions { stamp, versions: asked });
                    }
                    is_supported
                }
            };
            if !is_supported {
                let (plugin, version) = (plugin.to_owned(), wanted.to_owned());
                return Err(NetworkError::UnsupportedVersion { plugin, version });
            }
        }
        Ok(())
    }
}

impl Stamp {
    fn of(data: &Metadata) -> Self {
        Self {
            device: data.dev(),
            inode: data.ino(),
            size: data.size(),
            modified: data.mtime(),
            modified_ns: data.mtime_nsec(),
            changed: data.ctime(),
            changed_ns: data.ctime_nsec(),
        }
    }
}

/// True if the name begins with a dot, as for an editor's file, or for a file that is renamed when it is complete.
pub(crate) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."))
}

/// The network of a file. None if the file was deleted.
fn read(path: &Path) -> Result<Option<Network>, LoadError> {
    let failed = |error| LoadError::Read { path: path.display().to_string(), error };
    // Non-blocking, because a FIFO must not stop the reading of the directory.
    let file = match File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > LIMIT) {
        return Err(failed(io::Error::other(format!("larger than {LIMIT} bytes"))));
    }
    decode(path, bytes).map(Some)
}

/// Decodes the content of a configuration file, whose extension decides whether it is a list. A list is completed
/// with the plugins in the directory named after its network. If there is no name, the file's name is used.
///
/// # Errors
/// [`LoadError`] if it is not a configuration, has no plugins, or the network's name is invalid.
pub fn decode(path: &Path, bytes: Vec<u8>) -> Result<Network, LoadError> {
    let is_list = path.extension().is_some_and(|extension| extension == LIST);
    let Named { bytes, by_file } = with_name(path, bytes, is_list);
    let network = if is_list {
        let mut list = NetConfList::parse(&bytes).map_err(|error| config::wrong(path, error))?;
        // The network is named after the file, so no directory can have the network's name.
        list.load_only_inlined_plugins |= by_file;
        config::complete(list, bytes, path)?
    } else {
        let list = NetConfList::of_single(&bytes).map_err(|error| config::wrong(path, error))?;
        Network::from_list(list)
    };
    check_network(network.name())
        .map_err(|error| LoadError::Name { path: path.display().to_string(), error })?;
    Ok(network)
}

/// A configuration with a name.
struct Named {
    bytes: Vec<u8>,
    /// True if the name is that of the file.
    by_file: bool,
}

/// Adds the file's name to a configuration without a name.
fn with_name(path: &Path, bytes: Vec<u8>, is_list: bool) -> Named {
    let Ok(mut object) = serde_json::from_slice::<Map<String, Value>>(&bytes) else {
        return Named { bytes, by_file: false };
    };
    let given = if is_list { object.get("name") } else { fold::get(&object, "name") };
    if given.is_some_and(|name| name != "") {
        return Named { bytes, by_file: false };
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    object.retain(|key, _| !key.eq_ignore_ascii_case("name"));
    object.insert("name".to_owned(), name.into());
    Named { bytes: Value::Object(object).to_string().into_bytes(), by_file: true }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::CallError;
    use crate::exec::{Expected, Fake};
    use crate::verbs::Command;

    fn network(name: &str) -> Network {
        Network::builder(name).plugin(json!({"type": "bridge"})).build().unwrap()
    }

    fn names(networks: &Networks) -> (Option<&str>, Vec<&str>) {
        (networks.default_network().map(Network::name), networks.all().map(Network::name).collect())
    }

    fn unusable() -> SkipReason {
        SkipReason::Load(LoadError::NoPlugins)
    }

    #[test]
    fn the_first_valid_file_is_the_default_and_the_first_of_a_name_wins() {
        let files = || {
            let of = |name: &str, network| (PathBuf::from(name), network);
            vec![
                of("00-bad.conf", Err(unusable())),
                of("10-b.conflist", Ok(network("b"))),
                of("20-a.conflist", Ok(network("a"))),
                of("30-b.conflist", Ok(network("b"))),
            ]
        };
        let chosen = Networks::choose(files(), None);
        assert_eq!(names(&chosen), (Some("b"), vec!["a", "b"]));
        let shown: Vec<String> = chosen
            .verdicts()
            .iter()
            .map(|verdict| verdict.network.as_ref().map_or_else(ToString::to_string, Clone::clone))
            .collect();
        assert_eq!(shown, ["no plugin configs found", "b", "a", "network \"b\" is in 10-b.conflist, too"]);
        assert_eq!(names(&Networks::choose(files(), Some("a"))).0, Some("a"));
        // If the configured default network is missing, no other network takes its place.
        assert_eq!(names(&Networks::choose(files(), Some("c"))), (None, vec!["a", "b"]));
        assert_eq!(names(&Networks::choose(Vec::new(), None)), (None, vec![]));
    }

    #[test]
    fn a_missing_name_is_the_name_of_the_file() {
        let decoded = |path: &str, value: Value| {
            decode(Path::new(path), value.to_string().into_bytes()).map(|network| network.name().to_owned())
        };
        let plugins = json!([{"type": "bridge"}]);
        assert_eq!(decoded("/x/10-a.conflist", json!({"plugins": plugins})).unwrap(), "10-a.conflist");
        assert_eq!(decoded("/x/a.conflist", json!({"name": "", "plugins": plugins})).unwrap(), "a.conflist");
        assert_eq!(decoded("/x/a.conf", json!({"type": "bridge"})).unwrap(), "a.conf");
        assert_eq!(decoded("/x/a.conf", json!({"Name": "b", "type": "bridge"})).unwrap(), "b");
        let error = decoded("/x/a.conflist", json!({"name": "../b", "plugins": plugins})).unwrap_err();
        assert!(error.to_string().starts_with("/x/a.conflist: "), "{error}");
        assert!(decoded("/x/a.conflist", json!({"name": 5, "plugins": plugins})).is_err());
        assert!(decoded("/x/a.conf", json!({"plugins": plugins})).is_err());
    }

    #[test]
    fn plugins_are_asked_for_versions_and_bad_files_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &Value| {
            std::fs::write(dir.path().join(name), content.to_string()).unwrap();
        };
        let list = |name: &str, version: &str, plugin: &str| json!({"name": name, "cniVersion": version, "plugins": [{"type": plugin}]});
        write(".05-hidden.conflist", &list("hidden", "1.0.0", "bridge"));
        write("10-old.conflist", &list("old", "1.1.0", "ancient"));
        write("20-bad.conflist", &json!("{"));
        write("25-notes.txt", &json!({}));
        write("30-pods.conflist", &json!({"cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}));
        write("40-lost.conflist", &list("lost", "1.0.0", "missing"));
        let version = |plugin: &str| Expected::call(plugin, Command::Version);
        let supported = json!({"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}).to_string();
        let missing = CallError::NotFound(cni_spec::CniError::internal("failed to find plugin"));
        let fake = Fake::new([
            version("ancient").prints(supported.clone()),
            version("bridge").prints(supported),
            version("missing").fails(missing),
        ]);
        let runtime = Runtime::builder().exec(Arc::new(fake)).build();
        let directory = Directory::new(dir.path().to_owned(), None, runtime);
        let networks = directory.sync().unwrap();
        assert_eq!(names(&networks), (Some("30-pods.conflist"), vec!["30-pods.conflist"]));
        let shown: Vec<String> = networks
            .verdicts()
            .iter()
            .map(|verdict| match &verdict.network {
                Ok(name) => name.clone(),
                Err(reason) => reason.to_string(),
            })
            .collect();
        assert_eq!(shown.len(), 4, "{shown:?}");
        assert_eq!(shown[0], "plugin ancient does not support config version \"1.1.0\"");
        assert!(shown[1].contains("20-bad.conflist: error parsing configuration list"), "{shown:?}");
        assert_eq!(shown[3], "failed to find plugin");
        assert_eq!(names(&directory.networks()), names(&networks));
    }

    #[test]
    fn a_missing_directory_has_no_networks_and_odd_files_do_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let of = |path: PathBuf| Directory::new(path, None, Runtime::builder().build());
        let none = of(dir.path().join("none")).sync().unwrap();
        assert!(none.verdicts().is_empty() && none.default_network().is_none());
        let made = std::process::Command::new("mkfifo").arg(dir.path().join("a.conflist")).status().unwrap();
        assert!(made.success());
        std::os::unix::fs::symlink("/none", dir.path().join("b.conflist")).unwrap();
        std::fs::create_dir(dir.path().join("c.conflist")).unwrap();
        let odd = of(dir.path().to_owned()).sync().unwrap();
        assert_eq!(odd.verdicts().len(), 1, "{odd:?}");
        assert!(
            matches!(&odd.verdicts()[0].network, Err(reason) if reason.to_string().ends_with("not a regular file"))
        );
    }

    /// A valid configuration in which one value has been replaced, or bytes have been changed.
    fn mutated() -> impl Strategy<Value = Vec<u8>> {
        let valid = json!({
            "name": "pods", "cniVersion": "1.0.0", "cniVersions": ["1.0.0"], "disableCheck": false,
            "loadOnlyInlinedPlugins": true, "type": "bridge",
            "plugins": [{"type": "bridge", "name": "b"}, {"type": "portmap", "capabilities": {"portMappings": true}}],
        });
        let value = prop_oneof![
            any::<String>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            Just(Value::Null),
            Just(json!([])),
            Just(json!({})),
            Just(json!([{"type": "bridge"}, null])),
        ];
        let keys: Vec<String> = valid.as_object().unwrap().keys().cloned().collect();
        let replaced = (prop::sample::select(keys), prop::option::of(value));
        let bytes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
        (replaced, bytes).prop_map(move |((key, value), bytes)| {
            let mut object = valid.as_object().unwrap().clone();
            match value {
                Some(value) => drop(object.insert(key, value)),
                None => drop(object.remove(&key)),
            }
            let mut text = Value::Object(object).to_string().into_bytes();
            for (index, byte) in bytes {
                let at = index.index(text.len());
                text[at] = byte;
            }
            text
        })
    }

    proptest! {
        #[test]
        fn a_mutated_file_is_a_usable_network_or_refused(
            bytes in mutated(),
            name in prop::sample::select(vec!["/none/10-a.conflist", "/none/a.conf", "/none/a b.json"]),
        ) {
            if let Ok(network) = decode(Path::new(name), bytes) {
                prop_assert!(check_network(network.name()).is_ok());
                prop_assert!(!network.list().plugins.is_empty());
                prop_assert!(network.list().plugins.iter().all(|plugin| !kind(plugin).is_empty()));
                // The cache stores these bytes, so a DEL must be able to decode them.
                let again = Network::from_bytes(network.bytes()).unwrap();
                prop_assert_eq!(again.name(), network.name());
                prop_assert_eq!(&again.list().plugins, &network.list().plugins);
            }
        }
    }
}
