// SPDX-License-Identifier: GPL-2.0-or-later

//! flannel: reads this node's subnets of the cluster's network from flanneld's file, and delegates to another
//! plugin, bridge by default.

mod config;
mod gc;
pub(crate) mod saved;

use cni_spec::{AddResult, Attachment, CniError, ErrorCode, NetConf};
use cni_state::subnet_env::SubnetEnv;
use serde_json::{Map, Value};

pub use self::config::DATA_DIR;
use self::config::{Keys, bytes, kind};
pub use self::saved::OURS;
use self::saved::{Found, Saved, failed as io};
use crate::expected::Expected;
use crate::interface::shared::container::Container;
use crate::interface::shared::{failed as link_failed, renamed};
use crate::plugin::{NodeRequest, Plugin, Request};
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

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        config::decodes()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        let keys: Keys = request.config.decode()?;
        let env = cni_state::subnet_env::SubnetEnv { mtu: 1450, ..Default::default() };
        Ok(keys.delegate(request.config, Some(&env)).map(drop)?)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let keys: Keys = request.config.decode()?;
        let env = subnet_env(&keys)?;
        let config = keys.delegate(request.config, Some(&env))?;
        let (kind, bytes) = (kind(&config), bytes(config));
        let failed =
            |error: CniError| CniError { msg: format!("failed to delegate add: {}", error.msg), ..error };
        delegate::look_for(&kind, request.env).map_err(failed)?;
        let saved = Saved::create(&keys.data_dir()).map_err(|e| io(&e))?;
        let earlier = saved.raw(&request.attachment).map_err(|e| io(&e))?;
        let had_link = has_link(request)?;
        // Saved before the delegate runs, because DEL needs the configuration.
        saved.put(&request.attachment, &bytes).map_err(|e| io(&e))?;
        let added = delegate::other(&kind, request.env, "ADD", &bytes).and_then(|output| {
            let version = request.config.version;
            AddResult::from_output(version, &output).map_err(|e| CniError::internal(e.to_string()))
        });
        added.map_err(|error| {
            let attachment = &request.attachment;
            // If the delegate's DEL fails, the file stays for the runtime's DEL. A link that was there before
            // belongs to an earlier ADD or to another program, and so does the file saved for it.
            let undone = match had_link {
                true => Ok(()),
                false => delegate::other(&kind, request.env, "DEL", &bytes).map(drop),
            };
            let restored = undone.and_then(|()| match earlier.as_ref().filter(|_| had_link) {
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
        let Some(saved) = Saved::open(&config::data_dir(request.config)).map_err(|e| io(&e))? else {
            return Ok(());
        };
        let attachment = &request.attachment;
        let config = match saved.get(attachment).map_err(|e| io(&e))? {
            Found::Nothing => return Ok(()),
            Found::Whole(config) => config,
            Found::Broken => {
                let name = self.name();
                log::warn!(
                    "{name}: the saved configuration of {attachment} is broken, using the current one"
                );
                current(request.config)?
            }
        };
        let former = former_name(&config, attachment);
        if former.is_none() && saved.is_of_another(attachment).map_err(|e| io(&e))? {
            log::info!("{attachment} is left alone: the interface belongs to another network");
            return Ok(());
        }
        let (kind, bytes) = (kind(&config), bytes(config));
        let delegated = || delegate::other(&kind, request.env, "DEL", &bytes).map(drop);
        match former {
            // The runtime calls the DELs of the chained plugins under the new name, so they find nothing.
            Some(old) => renamed::del_as(request, old, &|_| delegated())?,
            None => delegated()?,
        }
        saved.forget(attachment).map_err(|e| io(&e))
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let (kind, bytes) = self.saved(request)?;
        delegate::other(&kind, request.env, "CHECK", &bytes).map(drop)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        // The saved configurations come first, because with the current one the delegate may search in other places.
        let deleted = gc::delete(request);
        let collected = current(request.config).and_then(|config| gc::collect(request, config));
        deleted.and(collected)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let keys: Keys = request.config.decode()?;
        let unusable = |error: CniError| CniError { code: ErrorCode::NotAvailable, ..error };
        let env = subnet_env(&keys).map_err(unusable)?;
        let config = keys.delegate(request.config, Some(&env))?;
        Saved::create(&keys.data_dir()).map_err(|e| io(&e)).map_err(unusable)?;
        let kind = kind(&config);
        delegate::other(&kind, request.env, "STATUS", &bytes(config)).map(drop)
    }

    fn expected(&self, request: &Request<'_>) -> Result<Vec<Box<dyn Expected>>, CniError> {
        let (kind, bytes) = self.saved(request)?;
        let Some(plugin) = request.env.plugins.iter().find(|plugin| plugin.name() == kind) else {
            return Ok(Vec::new());
        };
        let config = NetConf::parse(bytes)?;
        let netns = request.netns.clone();
        let Request { attachment, args, env, .. } = request;
        plugin.expected(&Request { attachment: attachment.clone(), netns, args, config: &config, env })
    }
}

impl Flannel {
    /// The delegate's type and its configuration at the ADD, with the runtime's current `prevResult`.
    fn saved(&self, request: &Request<'_>) -> Result<(String, Vec<u8>), CniError> {
        let dir = config::data_dir(request.config);
        let saved = Saved::open(&dir).map_err(|e| io(&e))?;
        let found = saved.map(|saved| saved.get(&request.attachment)).transpose().map_err(|e| io(&e))?;
        let Some(Found::Whole(mut config)) = found else {
            let msg = format!("flannel: {dir:?} has no configuration of {}", request.attachment);
            return Err(CniError::internal(msg));
        };
        if let Some(value) = request.config.raw.get("prevResult") {
            drop(config.insert("prevResult".to_owned(), value.clone()));
        }
        Ok((kind(&config), bytes(config)))
    }
}

/// The attachment under the name that the network had at the ADD, if it was renamed.
fn former_name(config: &Map<String, Value>, attachment: &Attachment) -> Option<Attachment> {
    let name = config.get("name").and_then(Value::as_str)?;
    if name == attachment.network() || renamed::is_configured(name) {
        return None;
    }
    Attachment::new(name, attachment.container_id(), attachment.ifname()).ok()
}

/// The delegate's configuration made from flannel's current one. flanneld's file may be missing.
fn current(config: &NetConf) -> Result<Map<String, Value>, CniError> {
    let keys: Keys = config.decode()?;
    Ok(keys.delegate(config, subnet_env(&keys).ok().as_ref())?)
}

/// The delegate's configuration with the values of flanneld's file, as an ADD writes it.
///
/// # Errors
/// [`CniError`] if the file is missing, or a key does not fit.
pub(crate) fn delegate(config: &NetConf) -> Result<Vec<u8>, CniError> {
    let keys: Keys = config.decode()?;
    Ok(bytes(keys.delegate(config, Some(&subnet_env(&keys)?))?))
}

/// True if the container has a link of the interface's name, or if its namespace cannot be opened: the delegate will
/// report the cause, and nothing of an earlier ADD must be undone then.
fn has_link(request: &Request<'_>) -> Result<bool, CniError> {
    let container = match Container::open_if_there(request.netns.as_deref()) {
        Ok(Some(container)) => container,
        Ok(None) => return Ok(false),
        Err(_) => return Ok(true),
    };
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
