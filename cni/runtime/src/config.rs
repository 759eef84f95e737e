// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads the configuration directory: `*.conflist` files, and legacy files with a single configuration.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use cni_spec::{AttachmentError, ListError, NetConfList, check_network, text};
use serde_json::{Map, Value};

use crate::network::Network;

/// The default configuration directory of runtimes.
pub const DIRECTORY: &str = "/etc/cni/net.d";
/// The usual plugin directories: those of archives, of Debian, of Fedora, and of Slipway's own packages, for the case
/// that no links lead there.
const PLUGINS: [&str; 4] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni", "/usr/lib/slipway/cni"];
/// The extension of lists.
pub(crate) const LIST: &str = "conflist";
/// The extensions of single configurations.
pub(crate) const SINGLE: [&str; 2] = ["conf", "json"];

/// A configuration that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The directory has no configuration.
    #[error("no net configurations found in {0}")]
    Empty(String),
    /// No configuration has this name.
    #[error("no net configuration with name {} in {directory}", text::quote(name))]
    NotFound {
        /// The network's name.
        name: String,
        /// The configuration directory.
        directory: String,
    },
    /// A file or directory could not be read.
    #[error("error reading {path}: {error}")]
    Read {
        /// The file or directory.
        path: String,
        /// The system's error.
        error: io::Error,
    },
    /// The file of the network, or a file that is read before it, is invalid.
    #[error("{path}: {error}")]
    List {
        /// The file.
        path: String,
        /// The reason.
        error: ListError,
    },
    /// The network of the file has an invalid name.
    #[error("{path}: {error}")]
    Name {
        /// The file.
        path: String,
        /// The reason.
        error: AttachmentError,
    },
    /// Neither the list nor the directory named after the network contains a plugin.
    #[error("no plugin configs found")]
    NoPlugins,
}

impl LoadError {
    /// The error, for a message that already names `file`. The path of another file, such as one in the network's
    /// directory, stays part of the text.
    #[must_use]
    pub fn reason_in(&self, file: &Path) -> String {
        let is_of_file = |path: &str| path == file.display().to_string();
        match self {
            Self::List { path, error } if is_of_file(path) => error.to_string(),
            Self::Name { path, error } if is_of_file(path) => error.to_string(),
            Self::Read { path, error } if is_of_file(path) => format!("error reading it: {error}"),
            other => other.to_string(),
        }
    }
}

impl Network {
    /// Reads a file like [`load`] does. If its name ends in `.conflist`, it is a list, which is completed with the
    /// plugins in the directory named after the network. Otherwise it is a single configuration, which becomes a list
    /// of one plugin.
    ///
    /// # Errors
    /// [`LoadError::Read`], [`LoadError::List`] or [`LoadError::NoPlugins`].
    pub fn from_file(path: &Path) -> Result<Self, LoadError> {
        read_network(path)
    }
}

/// Loads a network's configuration. Lists are read first, then single configurations, both sorted by file name, until
/// one has the network's name. An invalid file ends the search.
///
/// # Errors
/// [`LoadError::Empty`] or [`LoadError::NotFound`] if there is none; [`LoadError::Read`] or
/// [`LoadError::List`] for a file that cannot be used; [`LoadError::NoPlugins`].
pub fn load(directory: &Path, name: &str) -> Result<Network, LoadError> {
    let lists = files(directory, &[LIST])?;
    for path in &lists {
        let bytes = read(path)?;
        let list = NetConfList::parse(&bytes).map_err(|error| wrong(path, error))?;
        if list.name == name {
            return complete(list, bytes, path);
        }
    }
    let singles = files(directory, &SINGLE)?;
    for path in &singles {
        let list = single(path)?;
        if list.name == name {
            return Ok(Network::from_list(list));
        }
    }
    let directory = directory.display().to_string();
    if lists.is_empty() && singles.is_empty() {
        return Err(LoadError::Empty(directory));
    }
    Err(LoadError::NotFound { name: name.to_owned(), directory })
}

/// A file of a configuration directory, with its network or the reason why the file cannot be used.
#[derive(Debug)]
pub struct FileVerdict {
    /// The file.
    pub path: PathBuf,
    /// The file's network.
    pub network: Result<Network, LoadError>,
}

/// Reads all `*.conflist`, `*.conf` and `*.json` files of a directory. Like in the container runtimes, they are
/// sorted by file name, whatever the extension. An invalid file does not hide the others. A missing directory counts
/// as empty.
///
/// # Errors
/// [`LoadError::Read`] if the directory cannot be listed.
pub fn load_all(directory: &Path) -> Result<Vec<FileVerdict>, LoadError> {
    let paths = files(directory, &[LIST, SINGLE[0], SINGLE[1]])?;
    let verdict = |path: PathBuf| {
        let network = read_network(&path).and_then(|network| match check_network(network.name()) {
            Ok(()) => Ok(network),
            Err(error) => Err(LoadError::Name { path: path.display().to_string(), error }),
        });
        FileVerdict { path, network }
    };
    Ok(paths.into_iter().map(verdict).collect())
}

/// Reads the network of a file, whose extension decides whether the file is a list.
pub(crate) fn read_network(path: &Path) -> Result<Network, LoadError> {
    if path.extension().is_some_and(|extension| extension == LIST) {
        let bytes = read(path)?;
        let list = NetConfList::parse(&bytes).map_err(|error| wrong(path, error))?;
        return complete(list, bytes, path);
    }
    single(path).map(Network::from_list)
}

fn single(path: &Path) -> Result<NetConfList, LoadError> {
    NetConfList::of_single(&read(path)?).map_err(|error| wrong(path, error))
}

/// Adds the plugins in the directory named after the network.
pub(crate) fn complete(mut list: NetConfList, bytes: Vec<u8>, path: &Path) -> Result<Network, LoadError> {
    let inlined = list.plugins.len();
    // An invalid name could lead to another directory. The name is refused when the network is used.
    if !list.load_only_inlined_plugins && check_network(&list.name).is_ok() {
        let folder = path.parent().unwrap_or(Path::new("/")).join(&list.name);
        for path in files(&folder, &["conf"])? {
            list.plugins.extend(single(&path)?.plugins);
        }
    }
    if list.plugins.is_empty() {
        return Err(LoadError::NoPlugins);
    }
    if list.plugins.len() == inlined {
        return Ok(Network::of_parts(list, bytes));
    }
    let mut whole: Map<String, Value> = serde_json::from_slice(&bytes).unwrap_or_default();
    let plugins = list.plugins.iter().cloned().map(Value::Object).collect();
    drop(whole.insert("plugins".to_owned(), plugins));
    drop(whole.insert("loadOnlyInlinedPlugins".to_owned(), true.into()));
    Ok(Network::of_parts(list, Value::Object(whole).to_string().into_bytes()))
}

/// The files with one of these extensions, sorted. Empty if the directory is missing.
pub(crate) fn files(directory: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |error| LoadError::Read { path: directory.display().to_string(), error };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let fits = path.extension().is_some_and(|end| extensions.iter().any(|wanted| end == *wanted));
        if fits && !path.is_dir() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    std::fs::read(path).map_err(|error| LoadError::Read { path: path.display().to_string(), error })
}

pub(crate) fn wrong(path: &Path, error: ListError) -> LoadError {
    LoadError::List { path: path.display().to_string(), error }
}

/// The plugin directories of a program that is not given any: those in `CNI_PATH`, separated by colons, or else those
/// of the usual directories that exist, beginning with `/opt/cni/bin`, or else only `/opt/cni/bin`.
#[must_use]
pub fn plugin_directories() -> Vec<PathBuf> {
    usual_directories(std::env::var_os("CNI_PATH").as_deref(), Path::is_dir)
}

fn usual_directories(path: Option<&OsStr>, exists: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let named = path.map(std::env::split_paths).into_iter().flatten();
    // An empty part would mean the working directory.
    let named: Vec<PathBuf> = named.filter(|path| !path.as_os_str().is_empty()).collect();
    if !named.is_empty() {
        return named;
    }
    let usual: Vec<PathBuf> = PLUGINS.iter().map(PathBuf::from).filter(|path| exists(path)).collect();
    if usual.is_empty() { vec![PLUGINS[0].into()] } else { usual }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn write(dir: &Path, name: &str, content: &Value) {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content.to_string()).unwrap();
    }

    fn types(loaded: &Network) -> Vec<&str> {
        loaded.list().plugins.iter().map(|plugin| plugin["type"].as_str().unwrap()).collect()
    }

    #[test]
    fn plugins_are_where_the_caller_or_a_package_has_them() {
        let of = |path: Option<&str>, exist: &[&str]| {
            let found = usual_directories(path.map(OsStr::new), |path| {
                exist.iter().any(|one| path == Path::new(one))
            });
            found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        let package = ["/usr/lib/slipway/cni", "/usr/lib/cni"];
        assert_eq!(of(None, &package), "/usr/lib/cni /usr/lib/slipway/cni");
        assert_eq!(of(None, &["/opt/cni/bin", "/usr/lib/cni"]), "/opt/cni/bin /usr/lib/cni");
        assert_eq!(of(Some("/srv/a::/srv/b"), &package), "/srv/a /srv/b");
        for none in [None, Some(""), Some(":")] {
            assert_eq!(of(none, &[]), "/opt/cni/bin");
        }
    }

    #[test]
    fn lists_go_before_single_configurations() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let message = |name: &str| load(dir, name).unwrap_err().to_string();
        assert_eq!(message("n"), format!("no net configurations found in {}", dir.display()));
        write(dir, "10-a.conf", &json!({"name": "n", "type": "old"}));
        assert_eq!(types(&load(dir, "n").unwrap()), ["old"]);
        let bytes = load(dir, "n").unwrap().bytes().to_vec();
        assert_eq!(types(&Network::from_bytes(bytes).unwrap()), ["old"]);
        write(dir, "20-b.conflist", &json!({"name": "n", "plugins": [{"type": "new"}]}));
        assert_eq!(types(&load(dir, "n").unwrap()), ["new"]);
        assert_eq!(message("x"), format!("no net configuration with name \"x\" in {}", dir.display()));
        // An invalid file ends the search.
        std::fs::write(dir.join("15-c.conflist"), "{").unwrap();
        assert!(message("n").contains("15-c.conflist: error parsing configuration list"), "{}", message("n"));
        assert!(load(&dir.join("none"), "n").unwrap_err().to_string().starts_with("no net configurations"));
    }

    #[test]
    fn plugins_of_the_networks_directory_come_last() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write(dir, "10-n.conflist", &json!({"name": "n", "cniVersion": "1.0.0", "disableGC": true}));
        assert_eq!(load(dir, "n").unwrap_err().to_string(), "no plugin configs found");
        write(dir, "n/20-b.conf", &json!({"type": "b"}));
        write(dir, "n/10-a.conf", &json!({"type": "a"}));
        write(dir, "n/30-c.conflist", &json!({"type": "c"}));
        let loaded = load(dir, "n").unwrap();
        assert_eq!(types(&loaded), ["a", "b"]);
        let again = NetConfList::parse(loaded.bytes()).unwrap();
        assert_eq!((again.plugins, again.disable_gc), (loaded.list().plugins.clone(), true));
        let inlined = json!({"name": "n", "loadOnlyInlinedPlugins": true, "plugins": [{"type": "i"}]});
        write(dir, "10-n.conflist", &inlined);
        assert_eq!(types(&load(dir, "n").unwrap()), ["i"]);
    }
}
