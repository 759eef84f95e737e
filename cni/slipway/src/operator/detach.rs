// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway detach`: DEL of one attachment, in place of a runtime that failed to call it or forgot the container.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cni_dataplane::owner::{AttachmentHash, Owner};
use cni_dataplane::owner_search::{self, Standing};
use cni_kernel::dir::DirError;
use cni_kernel::netns::{Netns, NetnsError, NetnsId};
use cni_kernel::route::{LinkKind, RouteError, RouteSocket};
use cni_plugins::ipam::host_local::StoreError;
use cni_plugins::ipam::host_local::leftovers::DEFAULT_DATA_DIR;
use cni_plugins::ipam::host_local::reservation_life::{self, ReservationLife};
use cni_runtime::config::LoadError;
use cni_runtime::{Cache, CacheError, Container, Network, NetworkError, Runtime, cache};
use cni_spec::{Attachment, AttachmentError, ListError};
use cni_state::documents::{Detach, DetachState};
use nix::errno::Errno;
use serde_json::json;
use slipway_cli::{Failure, Output, json as documents};

use super::directories::{CacheDirs, PluginDirs};
use super::migrate::hints;
use crate::netavark;

/// Detach a container from a network, in place of its runtime
///
/// Calls DEL of the network's plugins with what the runtime's cache has of the attachment, and deletes that. Without a cache
/// and a configuration, removes what the node shows to be the attachment's, but frees no address that a container may still
/// use. For a container that its runtime no longer knows: a running one loses its network.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  3  with --only-if: it was left alone, for the reason that is printed

Examples:
  slipway detach pods 3f29 eth0
  slipway detach pods 3f29 eth0 --only-if unused --output json
  slipway detach pods 3f29 eth0 --cache-dir /var/lib/containers/cni --plugin-dir /usr/lib/cni")]
pub(super) struct Args {
    /// The network's name; one that a message has cut (it ends in ~) is completed
    network: String,
    /// The container's ID; one that a message has cut (it ends in ~) is completed
    container: String,
    /// The interface in the container
    ifname: String,
    /// Only a pod's sandbox whose namespace is gone, or with unused also one without a process
    #[arg(long, value_enum, value_name = "STATE")]
    only_if: Option<Only>,
    /// The network's configuration, for an attachment that no cache has
    #[arg(long, value_name = "FILE")]
    conflist: Option<PathBuf>,
    #[command(flatten)]
    caches: CacheDirs,
    #[command(flatten)]
    plugins: PluginDirs,
    #[command(flatten)]
    output: Output,
}

/// The exit code if the attachment was left alone.
const KEPT: u8 = 3;
/// The key of `CNI_ARGS` in which the container runtimes of Kubernetes name a pod's sandbox.
const SANDBOX: &str = "K8S_POD_INFRA_CONTAINER_ID";

/// The character at the end of a name that a message has cut.
const CUT: char = '~';

/// The attachment could not be detached.
#[derive(Debug, thiserror::Error)]
enum DetachError {
    #[error(transparent)]
    Cache(#[from] DirError),
    #[error("the attachment's cache file in {0:?}: {1}")]
    Cached(PathBuf, CacheError),
    #[error(
        "no cache has the attachment, and nothing on the node is its: name the network's configuration with --conflist"
    )]
    Unknown,
    #[error("no cache and no reservation completes {0}: write the name in full")]
    Cut(String),
    #[error("{cut} may be {}", of.join(", or "))]
    Ambiguous { cut: String, of: Vec<String> },
    #[error(transparent)]
    Attachment(#[from] AttachmentError),
    #[error("look at the attachment's reservations: {0}")]
    Reservations(#[from] StoreError),
    #[error(
        "nothing shows that the container is gone, which may use its address: end it, or name the network's configuration with --conflist"
    )]
    MayLive,
    #[error(
        "the container's namespace {0} exists, and its interface {1} is of a kind that no plugin here makes: name the network's configuration with --conflist"
    )]
    OtherLink(String, String),
    #[error("build the network: {0}")]
    Build(#[from] ListError),
    #[error(transparent)]
    Conflist(#[from] LoadError),
    #[error("{0:?} is the configuration of network {1}")]
    OtherNetwork(PathBuf, String),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error(transparent)]
    Links(#[from] RouteError),
    #[error("look for processes in the container's namespace: {0}")]
    Processes(io::Error),
    #[error(transparent)]
    Del(#[from] NetworkError),
}

/// The condition of `--only-if`: the namespace is gone, or is gone or has no process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Only {
    Gone,
    Unused,
}

/// The result.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Detached,
    Kept(KeepReason),
}

/// Why the attachment was left alone.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum KeepReason {
    #[error("its link {0} exists")]
    Link(String),
    #[error("it is not the sandbox of a pod")]
    NoSandbox,
    #[error("neither the cache nor its result names the container's namespace")]
    NoNetns,
    #[error("{0} is the node's own namespace")]
    NodesNetns(String),
    #[error("its namespace {0} exists")]
    Netns(String),
    #[error("process {pid} is in its namespace {netns}")]
    Process { pid: u32, netns: String },
}

/// The options.
#[derive(Debug)]
struct Options {
    only: Option<Only>,
    conflist: Option<PathBuf>,
    caches: Vec<PathBuf>,
    plugins: Vec<PathBuf>,
}

/// Detaches, and prints the outcome.
pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let options = Options {
        only: args.only_if,
        conflist: args.conflist.clone(),
        caches: args.caches.all(),
        plugins: args.plugins.all(),
    };
    let attachment = named(args, &options.caches).map_err(|error| match error {
        DetachError::Attachment(error) => Failure::usage(error),
        error => Failure::failed(error),
    })?;
    let outcome = detach(&attachment, &options).map_err(Failure::failed)?;
    if args.output.json() {
        documents::print(document(&attachment, &outcome), out)?;
    } else {
        let owner = format!("{} {} {}", attachment.network(), attachment.container_id(), attachment.ifname());
        match &outcome {
            Outcome::Detached => writeln!(out, "detached {owner}")?,
            Outcome::Kept(reason) => writeln!(out, "kept {owner}: {reason}")?,
        }
    }
    Ok(if outcome == Outcome::Detached { 0 } else { KEPT })
}

fn document(attachment: &Attachment, outcome: &Outcome) -> Detach {
    let (state, reason) = match outcome {
        Outcome::Detached => (DetachState::Detached, None),
        Outcome::Kept(reason) => (DetachState::Kept, Some(reason.to_string())),
    };
    Detach {
        network: attachment.network().to_owned(),
        container: attachment.container_id().to_owned(),
        interface: attachment.ifname().to_owned(),
        state,
        reason,
    }
}

/// The attachment of the command line. A name that is cut is completed by the caches and the reservations of host-local.
fn named(args: &Args, caches: &[PathBuf]) -> Result<Attachment, DetachError> {
    let Args { network, container, ifname, .. } = args;
    let cut: Vec<&str> =
        [network, container].into_iter().map(String::as_str).filter(|name| name.ends_with(CUT)).collect();
    if cut.is_empty() {
        return Ok(Attachment::new(network, container, ifname)?);
    }
    let fits = |name: &str, given: &str| match given.strip_suffix(CUT) {
        Some(begin) => name.starts_with(begin),
        None => name == given,
    };
    let known = hints::read(caches, &[])?.into_iter().map(|known| known.attachment).filter(|one| {
        one.ifname() == ifname && fits(one.network(), network) && fits(one.container_id(), container)
    });
    let mut all: Vec<Attachment> = known.collect::<BTreeSet<_>>().into_iter().collect();
    match all.len() {
        0 => Err(DetachError::Cut(cut.join(" and "))),
        1 => Ok(all.remove(0)),
        _ => {
            let of = all.iter().map(|one| format!("{} {}", one.network(), one.container_id())).collect();
            Err(DetachError::Ambiguous { cut: format!("{network} {container}"), of })
        }
    }
}

/// The network of an attachment that no cache has, with plugins that remove everything that names the owner, and the
/// path of the container's namespace, which is empty if the namespace is gone or unknown.
fn network_by_owner(attachment: &Attachment) -> Result<Option<(Network, String)>, DetachError> {
    let has_link = link_of(attachment)?.is_some();
    let owns = owner_search::owns(attachment).unwrap_or_else(|error| {
        log::warn!("{error}");
        false
    });
    let life = reservation_life::of(Path::new(DEFAULT_DATA_DIR), attachment)?;
    let mut interface = ("bridge", String::new());
    match life {
        ReservationLife::Unreserved if !owns && !has_link => return Ok(None),
        // The link that has the address must be removed first.
        _ if has_link => {}
        ReservationLife::Unreserved | ReservationLife::Gone => {}
        ReservationLife::Living(netns) => {
            interface = (plugin_of(&netns.path, attachment)?, display(&netns.path));
        }
        ReservationLife::Unknown => {
            let standings = owner_search::standings(std::slice::from_ref(attachment), None);
            let standings = standings.unwrap_or_else(|error| {
                log::warn!("{error}");
                Vec::new()
            });
            if !standings.iter().any(|(_, standing)| *standing == Standing::Gone) {
                return Err(DetachError::MayLive);
            }
        }
    }
    let (plugin, netns) = interface;
    let mut network = Network::builder(attachment.network());
    network = network.plugin(json!({"type": plugin, "ipam": {"type": "host-local"}}));
    for chained in ["tuning", "bandwidth", "firewall", "portmap"] {
        network = network.plugin(json!({"type": chained}));
    }
    Ok(Some((network.build()?, netns)))
}

/// The plugin that removes the attachment's link from a namespace.
fn plugin_of(netns: &Path, attachment: &Attachment) -> Result<&'static str, DetachError> {
    let link = RouteSocket::open_in(&Netns::open(netns)?)?.find_link(attachment.ifname())?;
    Ok(match link.map(|link| link.kind) {
        Some(LinkKind::Veth) => "bridge",
        Some(LinkKind::Macvlan(_)) => "macvlan",
        Some(LinkKind::Ipvlan(_)) => "ipvlan",
        Some(LinkKind::Vlan(_)) => "vlan",
        Some(LinkKind::Dummy) => "dummy",
        Some(LinkKind::Tun) => "tap",
        Some(_) => return Err(DetachError::OtherLink(display(netns), attachment.ifname().to_owned())),
        // The link may have another name by now.
        None => return Err(DetachError::MayLive),
    })
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

fn detach(attachment: &Attachment, options: &Options) -> Result<Outcome, DetachError> {
    let mut record = Record::find(attachment, options)?;
    if let Some(only) = options.only
        && let Some(reason) = record.reason_to_keep(attachment, only)?
    {
        return Ok(Outcome::Kept(reason));
    }
    // A path such as /proc/PID/ns/net may lead to another container soon.
    if Netns::open(Path::new(&record.container.netns)).is_err_and(|error| error.is_gone()) {
        record.container.netns.clear();
    }
    // If a plugin is missing, the others still remove what they made.
    let mut runtime = Runtime::builder().plugin_dirs(&options.plugins).cache(&record.cache).keep_deleting();
    if record.by_owner || record.cache == Path::new(netavark::CACHE) {
        // podman has no plugin directory, and other plugin sets write no owners.
        runtime = runtime.exec(netavark::in_process());
    }
    runtime.build().del(&record.network, &record.container)?;
    Ok(Outcome::Detached)
}

/// The request of the DEL.
struct Record {
    /// The directory of the cache.
    cache: PathBuf,
    network: Network,
    container: Container,
    is_cached: bool,
    /// True if there is neither a cached attachment nor a configuration.
    by_owner: bool,
}

impl Record {
    /// Finds the attachment in a cache, else takes the network of `--conflist`, because a failed ADD has left nothing
    /// in the cache, else makes a network from what the node shows.
    fn find(attachment: &Attachment, options: &Options) -> Result<Self, DetachError> {
        for directory in &options.caches {
            let Some(cache) = Cache::open(directory)? else { continue };
            let cached =
                cache.get(attachment).map_err(|error| DetachError::Cached(directory.clone(), error))?;
            if let Some(cached) = cached {
                let (network, container) = (cached.network(), cached.container());
                return Ok(Self {
                    cache: directory.clone(),
                    network,
                    container,
                    is_cached: true,
                    by_owner: false,
                });
            }
        }
        let (network, netns, by_owner) = match &options.conflist {
            Some(path) => {
                let network = Network::from_file(path)?;
                if network.name() != attachment.network() {
                    return Err(DetachError::OtherNetwork(path.clone(), network.name().to_owned()));
                }
                // Without the path, plugins that make the link in the container would free a running one's address.
                let netns = match reservation_life::of(Path::new(DEFAULT_DATA_DIR), attachment)? {
                    ReservationLife::Living(netns) => display(&netns.path),
                    _ => String::new(),
                };
                (network, netns, false)
            }
            None => {
                let (network, netns) = network_by_owner(attachment)?.ok_or(DetachError::Unknown)?;
                (network, netns, true)
            }
        };
        let container = Container::new(attachment.container_id(), attachment.ifname()).netns(&netns);
        let cache = options.caches.first().cloned().unwrap_or_else(|| cache::DIRECTORIES[0].into());
        Ok(Self { cache, network, container, is_cached: false, by_owner })
    }

    /// The reason why the condition does not hold; none if it does.
    fn reason_to_keep(&self, attachment: &Attachment, only: Only) -> Result<Option<KeepReason>, DetachError> {
        if !self.is_cached {
            // The kernel deletes the link together with the namespace.
            let path = &self.container.netns;
            let living = (!path.is_empty()).then(|| KeepReason::Netns(path.clone()));
            return Ok(link_of(attachment)?.map(KeepReason::Link).or(living));
        }
        let is_sandbox = |(key, value): &(String, String)| key == SANDBOX && value == &self.container.id;
        if !self.container.args.iter().any(is_sandbox) {
            return Ok(Some(KeepReason::NoSandbox));
        }
        let path = &self.container.netns;
        if path.is_empty() {
            return Ok(Some(KeepReason::NoNetns));
        }
        let netns = match Netns::open(Path::new(path)) {
            Ok(netns) => netns,
            Err(error) if error.is_gone() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if netns.id() == Netns::current()?.id() {
            return Ok(Some(KeepReason::NodesNetns(path.clone())));
        }
        if only == Only::Gone {
            return Ok(Some(KeepReason::Netns(path.clone())));
        }
        let process = process_in(netns.id()).map_err(DetachError::Processes)?;
        Ok(process.map(|pid| KeepReason::Process { pid, netns: path.clone() }))
    }
}

/// The node's end of the attachment's link, by the owner in its alias.
fn link_of(attachment: &Attachment) -> Result<Option<String>, RouteError> {
    let hash = AttachmentHash::of(attachment);
    let links = RouteSocket::open()?.links()?;
    let is_its = |alias: &str| Owner::from_comment(alias).is_some_and(|owner| owner.attachment_hash == hash);
    Ok(links.into_iter().find(|link| is_its(&link.alias)).map(|link| link.name))
}

/// A process with a thread in the namespace. Process 1 is skipped: it is the node's own, and looking at it may need
/// more privileges than this command has.
fn process_in(id: NetnsId) -> io::Result<Option<u32>> {
    first_in(id, numbers(Path::new("/proc"))?.into_iter().filter(|pid| *pid != 1))
}

fn first_in(id: NetnsId, pids: impl IntoIterator<Item = u32>) -> io::Result<Option<u32>> {
    for pid in pids {
        let tasks = PathBuf::from(format!("/proc/{pid}/task"));
        for tid in numbers(&tasks)? {
            match std::fs::metadata(tasks.join(format!("{tid}/ns/net"))) {
                Ok(data) if (data.dev(), data.ino()) == (id.dev, id.ino) => return Ok(Some(pid)),
                Ok(_) => {}
                Err(error) if has_ended(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}

/// The names in a directory of /proc that are numbers; empty if the process of the directory has ended.
fn numbers(directory: &Path) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    let entries = match std::fs::read_dir(directory) {
        Err(error) if has_ended(&error) => return Ok(numbers),
        entries => entries?,
    };
    for entry in entries {
        match entry {
            Ok(entry) => numbers.extend(entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok())),
            Err(error) if has_ended(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(numbers)
}

fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use cni_spec::{AddResult, Version};
    use slipway_cli::checks;

    use super::*;

    const ID: &str = "2f1c1cbe6d4cd08a3cdb1e5fa1e7c2a9ff84a1f6ce0e7b0ab52cf6ab2a5b3f04";
    const LIST: &str =
        r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "one"}, {"type": "two"}]}"#;

    /// A directory with a cache and plugins that write their calls into files.
    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            for plugin in ["one", "two"] {
                let path = host.0.path().join(plugin);
                let script = "#!/bin/sh\ncat > \"$0.input\"\necho \"$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME [$CNI_NETNS]\" > \"$0.call\"\n";
                fs::write(&path, script).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
            fs::write(host.0.path().join("pods.conflist"), LIST).unwrap();
            host
        }

        fn cache(&self, netns: &str, sandbox: &str) {
            let container = Container::new(ID, "eth0").netns(netns).arg(SANDBOX, sandbox);
            let result = AddResult::from_output(
                Version::V1_0_0,
                br#"{"cniVersion": "1.0.0", "ips": [{"address": "10.22.0.2/24"}]}"#,
            );
            let cache = Cache::create(self.0.path()).unwrap();
            cache.remember(&attachment(), LIST.as_bytes(), &container, &result.unwrap(), "1.0.0").unwrap();
        }

        fn is_cached(&self) -> bool {
            let cache = Cache::open(self.0.path()).unwrap();
            cache.is_some_and(|cache| cache.remembers(&attachment()).unwrap())
        }

        fn options(&self, only: Option<Only>, conflist: bool) -> Options {
            let here = self.0.path();
            Options {
                only,
                conflist: conflist.then(|| here.join("pods.conflist")),
                caches: vec![here.to_owned()],
                plugins: vec![here.to_owned()],
            }
        }

        fn detach(&self, only: Option<Only>, conflist: bool) -> Result<Outcome, String> {
            detach(&attachment(), &self.options(only, conflist)).map_err(|error| error.to_string())
        }

        fn call(&self, plugin: &str) -> Option<String> {
            fs::read_to_string(self.0.path().join(format!("{plugin}.call"))).ok()
        }
    }

    fn attachment() -> Attachment {
        Attachment::new("pods", ID, "eth0").unwrap()
    }

    #[test]
    fn a_cached_attachment_is_deleted_with_its_result() {
        let host = Host::new();
        host.cache("/nonexistent/netns", ID);
        assert_eq!(host.detach(Some(Only::Gone), false), Ok(Outcome::Detached));
        for plugin in ["one", "two"] {
            // The namespace is gone, and its path may soon lead to another one.
            assert_eq!(host.call(plugin), Some(format!("DEL {ID} eth0 []\n")));
            let input = fs::read_to_string(host.0.path().join(format!("{plugin}.input"))).unwrap();
            assert!(input.contains("10.22.0.2/24"), "{input}");
        }
        assert!(!host.is_cached());
        let error = host.detach(None, false).unwrap_err();
        assert!(error.starts_with("no cache has the attachment, and nothing on the node is its"), "{error}");
    }

    #[test]
    fn an_attachment_without_a_cache_file_is_deleted_by_the_configuration() {
        let host = Host::new();
        assert_eq!(host.detach(None, true), Ok(Outcome::Detached));
        assert_eq!(host.call("two"), Some(format!("DEL {ID} eth0 []\n")));
        let other = LIST.replace("pods", "other");
        fs::write(host.0.path().join("pods.conflist"), other).unwrap();
        assert!(host.detach(None, true).unwrap_err().ends_with("is the configuration of network other"));
    }

    #[test]
    fn a_missing_plugin_keeps_the_attachment_for_another_try() {
        let host = Host::new();
        host.cache("/nonexistent/netns", ID);
        let (two, away) = (host.0.path().join("two"), host.0.path().join("away"));
        fs::rename(&two, &away).unwrap();
        let error = host.detach(Some(Only::Gone), false).unwrap_err();
        assert!(error.contains("failed to find plugin \"two\""), "{error}");
        assert!(host.call("one").is_some() && host.is_cached());
        fs::rename(&away, &two).unwrap();
        assert_eq!(host.detach(Some(Only::Gone), false), Ok(Outcome::Detached));
        assert!(!host.is_cached());
    }

    #[test]
    fn the_condition_keeps_what_is_not_a_leftover() {
        let host = Host::new();
        for (netns, sandbox, only, reason) in [
            ("/proc/self/ns/net", ID, Only::Unused, "/proc/self/ns/net is the node's own namespace"),
            ("/nonexistent/netns", "other", Only::Unused, "it is not the sandbox of a pod"),
            ("", ID, Only::Gone, "neither the cache nor its result names the container's namespace"),
        ] {
            host.cache(netns, sandbox);
            let Ok(Outcome::Kept(kept)) = host.detach(Some(only), false) else { panic!("{reason}") };
            assert_eq!(kept.to_string(), reason);
            assert!(host.is_cached() && host.call("one").is_none(), "{reason}");
        }
        // Without a condition the operator decides.
        assert_eq!(host.detach(None, false), Ok(Outcome::Detached));
    }

    #[test]
    fn processes_are_found_by_their_namespace() {
        let own = Netns::current().unwrap().id();
        // Only root may look at the processes of all users.
        let pid = std::process::id();
        assert_eq!(first_in(own, [pid]).unwrap(), Some(pid));
        assert_eq!(first_in(NetnsId { ino: u64::MAX, ..own }, [pid]).unwrap(), None);
    }

    #[test]
    fn the_document_is_as_documented() {
        let kept = Outcome::Kept(KeepReason::Process { pid: 7, netns: "/run/netns/web".to_owned() });
        let documents = [document(&attachment(), &Outcome::Detached), document(&attachment(), &kept)];
        assert_eq!(documents[1].state, DetachState::Kept);
        checks::assert_documented("slipway detach", &documents);
    }
}
