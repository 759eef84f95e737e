//! flannel: takes this node's share of the cluster's network from flanneld's file, and lets another plugin,
//! usually bridge, do the work with it.

mod config;
mod saved;
mod subnet_env;

use cni_kernel::dir::DirError;
use cni_spec::{AddResult, Attachment, CniError, ErrorCode, NetConf};
use serde_json::{Map, Value};

pub(crate) use self::config::DATA_DIR;
use self::config::Keys;
pub(crate) use self::saved::OURS;
use self::saved::Saved;
use self::subnet_env::SubnetEnv;
use crate::interface::shared::container::Container;
use crate::interface::shared::failed as link_failed;
use crate::plugin::{Belonging, NodeRequest, Plugin, Request};
use crate::registry;
use crate::skel::delegate;

/// The plugin `flannel`.
#[derive(Debug)]
pub struct Flannel;

impl Plugin for Flannel {
    fn name(&self) -> &'static str {
        "flannel"
    }

    fn summary(&self) -> &'static str {
        "lets bridge or another plugin attach to the node's share of a flannel network"
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let keys: Keys = request.config.decode()?;
        let env = subnet_env(&keys)?;
        let config = keys.delegate(request.config, Some(&env))?;
        let (kind, bytes) = (kind(&config), Value::Object(config).to_string().into_bytes());
        let failed =
            |error: CniError| CniError { msg: format!("failed to delegate add: {}", error.msg), ..error };
        delegate::look_for(&kind, request.env).map_err(failed)?;
        let saved = Saved::create(&keys.data_dir()).map_err(|e| io(&e))?;
        let earlier = saved.get(&request.attachment).map_err(|e| io(&e))?;
        let found = has_link(request)?;
        // Before the delegate does anything: DEL must know what to undo.
        saved.put(&request.attachment, &bytes).map_err(|e| io(&e))?;
        let added = delegate::other(&kind, request.env, "ADD", &bytes).and_then(|output| {
            let version = request.config.version;
            AddResult::from_output(version, &output).map_err(|e| CniError::internal(e.to_string()))
        });
        added.map_err(|error| {
            let attachment = &request.attachment;
            // The delegate may have left something; if so, the file stays for the runtime's DEL. But a link
            // that it has found is an earlier ADD's, or somebody else's, and so is what was saved for it.
            let undone = match found {
                true => Ok(()),
                false => delegate::other(&kind, request.env, "DEL", &bytes).map(drop),
            };
            let restored = undone.and_then(|()| match earlier.as_ref().filter(|_| found) {
                Some(earlier) => saved.put(attachment, earlier).map_err(|e| io(&e)),
                None => saved.forget(attachment).map_err(|e| io(&e)),
            });
            if let Err(left) = restored {
                log::warn!("undo the ADD of {attachment}: {left}");
            }
            failed(error)
        })
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        let keys: Keys = request.config.decode()?;
        let Some(saved) = Saved::open(&keys.data_dir()).map_err(|e| io(&e))? else { return Ok(()) };
        let Some(bytes) = saved.get(&request.attachment).map_err(|e| io(&e))? else { return Ok(()) };
        // A file that cannot be read has nothing to delete by, today as tomorrow.
        match with_runtime(&bytes, request.config, &[]) {
            Some((kind, bytes)) => delegate::other(&kind, request.env, "DEL", &bytes).map(drop)?,
            None => {
                log::error!("{}: the saved configuration of {} is no JSON", self.name(), request.attachment);
            }
        }
        saved.forget(&request.attachment).map_err(|e| io(&e))
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let (kind, bytes) = self.saved(request)?;
        delegate::other(&kind, request.env, "CHECK", &bytes).map(drop)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let keys: Keys = request.config.decode()?;
        let env = subnet_env(&keys).ok();
        let mut config = keys.delegate(request.config, env.as_ref())?;
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            if let Some(value) = request.config.raw.get(key) {
                drop(config.insert(key.to_owned(), value.clone()));
            }
        }
        let kind = kind(&config);
        delegate::other(&kind, request.env, "GC", Value::Object(config).to_string().as_bytes())?;
        forget_dead(&keys, request.config)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let keys: Keys = request.config.decode()?;
        let unusable = |error: CniError| CniError { code: ErrorCode::NotAvailable, ..error };
        let env = subnet_env(&keys).map_err(unusable)?;
        let config = keys.delegate(request.config, Some(&env))?;
        Saved::create(&keys.data_dir()).map_err(|e| io(&e)).map_err(unusable)?;
        let kind = kind(&config);
        delegate::other(&kind, request.env, "STATUS", Value::Object(config).to_string().as_bytes()).map(drop)
    }

    fn belongings(&self, request: &Request<'_>) -> Result<Vec<Box<dyn Belonging>>, CniError> {
        let (kind, bytes) = self.saved(request)?;
        let Some(plugin) = registry::find(&kind).filter(|plugin| plugin.name() != self.name()) else {
            return Ok(Vec::new());
        };
        let config = NetConf::parse(bytes)?;
        let netns = request.netns.clone();
        let Request { attachment, args, env, .. } = request;
        plugin.belongings(&Request { attachment: attachment.clone(), netns, args, config: &config, env })
    }
}

impl Flannel {
    /// The delegate's type and its configuration as it was at ADD, with what the runtime says now.
    fn saved(&self, request: &Request<'_>) -> Result<(String, Vec<u8>), CniError> {
        let keys: Keys = request.config.decode()?;
        let saved = Saved::open(&keys.data_dir()).map_err(|e| io(&e))?;
        let bytes =
            saved.map(|saved| saved.get(&request.attachment)).transpose().map_err(|e| io(&e))?.flatten();
        let bytes = bytes.and_then(|bytes| with_runtime(&bytes, request.config, &["prevResult"]));
        bytes.ok_or_else(|| {
            let dir = keys.data_dir();
            CniError::internal(format!("flannel: {dir:?} has nothing of {}", request.attachment))
        })
    }
}

/// Whether the container has a link of the interface's name already. Where it cannot be looked into, the delegate
/// fails and says why.
fn has_link(request: &Request<'_>) -> Result<bool, CniError> {
    let Ok(container) = Container::open(request.netns.as_deref()) else { return Ok(false) };
    Ok(container.route.find_link(request.attachment.ifname()).map_err(link_failed)?.is_some())
}

fn subnet_env(keys: &Keys) -> Result<SubnetEnv, CniError> {
    SubnetEnv::read(&keys.subnet_file()).map_err(|error| {
        let msg = format!(
            "failed to load flannel 'subnet.env' file: {error}. Check the flannel pod log for this node."
        );
        CniError::internal(msg)
    })
}

fn kind(config: &Map<String, Value>) -> String {
    config.get("type").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The delegate's type and its saved configuration with `keys` of flannel's own; none when it is not JSON.
fn with_runtime(saved: &[u8], config: &NetConf, keys: &[&str]) -> Option<(String, Vec<u8>)> {
    let mut saved: Map<String, Value> = serde_json::from_slice(saved).ok()?;
    for key in keys {
        if let Some(value) = config.raw.get(*key) {
            drop(saved.insert((*key).to_owned(), value.clone()));
        }
    }
    Some((kind(&saved), Value::Object(saved).to_string().into_bytes()))
}

/// Removes the files of this network's attachments that are not valid any more. The delegate's GC has
/// removed what they stand for.
fn forget_dead(keys: &Keys, config: &NetConf) -> Result<(), CniError> {
    let Some(valid) = &config.valid_attachments else { return Ok(()) };
    let Some(saved) = Saved::open(&keys.data_dir()).map_err(|e| io(&e))? else { return Ok(()) };
    let of_this_network = |bytes: Option<Vec<u8>>| {
        let saved: Option<Map<String, Value>> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        saved.is_some_and(|saved| saved.get("name").and_then(Value::as_str) == Some(&config.name))
    };
    saved.sweep().map_err(|e| io(&e))?;
    for (container, ifname) in saved.list().map_err(|e| io(&e))? {
        let Some(ifname) = ifname else {
            let alive = valid.iter().any(|one| one.container_id() == container);
            if !alive && of_this_network(saved.of_container(&container).map_err(|e| io(&e))?) {
                saved.forget_container(&container).map_err(|e| io(&e))?;
            }
            continue;
        };
        let Ok(attachment) = Attachment::new(&config.name, &container, &ifname) else { continue };
        if !valid.contains(&attachment) && of_this_network(saved.get(&attachment).map_err(|e| io(&e))?) {
            saved.forget(&attachment).map_err(|e| io(&e))?;
        }
    }
    Ok(())
}

/// An error of the directory of saved configurations.
fn io(error: &DirError) -> CniError {
    CniError::new(ErrorCode::Io, format!("flannel: {error}"))
}
