// SPDX-License-Identifier: GPL-2.0-or-later

//! GC of the network's attachments that are no longer valid, using their saved configurations.

use cni_spec::{Attachment, CniError};
use serde_json::{Map, Value};

use super::config::{self, bytes, kind};
use super::saved::{Saved, SavedName, failed as io, is_of};
use crate::plugin::{Env, NodeRequest};
use crate::skel::delegate;

/// Containers that the reference saved the same configuration for.
struct Batch {
    config: Map<String, Value>,
    containers: Vec<String>,
}

/// Has the delegate delete what it made for attachments that are no longer valid, then removes their files. If the
/// delegate fails, the file stays.
///
/// # Errors
/// The first failure; all others were deleted.
pub(super) fn delete(request: &NodeRequest<'_>) -> Result<(), CniError> {
    let config = request.config;
    let Some(valid) = &config.valid_attachments else { return Ok(()) };
    let Some(saved) = Saved::open(&config::data_dir(config)).map_err(|e| io(&e))? else { return Ok(()) };
    let mut result = saved.sweep().map_err(|e| io(&e));
    let mut batches = Vec::new();
    for SavedName { container, ifname } in saved.list().map_err(|e| io(&e))? {
        let Some(ifname) = ifname else {
            if !valid.iter().any(|one| one.container_id() == container) {
                result = result.and(add_to_batch(&saved, &config.name, container, &mut batches));
            }
            continue;
        };
        let Ok(attachment) = Attachment::new(&config.name, &container, &ifname) else { continue };
        if !valid.contains(&attachment) {
            result = result.and(delete_one(request, &saved, &attachment));
        }
    }
    batches.into_iter().fold(result, |result, batch| result.and(collect_batch(request, &saved, batch)))
}

/// Calls the delegate's GC.
pub(super) fn collect(request: &NodeRequest<'_>, mut config: Map<String, Value>) -> Result<(), CniError> {
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        if let Some(value) = request.config.raw.get(key) {
            drop(config.insert(key.to_owned(), value.clone()));
        }
    }
    delegate::other(&kind(&config), request.env, "GC", &bytes(config)).map(drop)
}

/// Calls the delegate's DEL without a namespace, whose path is unknown.
fn delete_one(request: &NodeRequest<'_>, saved: &Saved, attachment: &Attachment) -> Result<(), CniError> {
    let Some(config) = saved.own(attachment).map_err(|e| io(&e))? else { return Ok(()) };
    let env = Env {
        container_id: attachment.container_id().to_owned(),
        ifname: attachment.ifname().to_owned(),
        netns: String::new(),
        ..request.env.clone()
    };
    delegate::other(&kind(&config), &env, "DEL", &bytes(config))
        .map_err(|error| CniError { msg: format!("delete {attachment}: {}", error.msg), ..error })?;
    saved.forget(attachment).map_err(|e| io(&e))
}

/// Adds a container that only the reference's file names. That file has no interface, so no DEL is possible.
fn add_to_batch(
    saved: &Saved,
    network: &str,
    container: String,
    batches: &mut Vec<Batch>,
) -> Result<(), CniError> {
    let config = saved.of_container(&container).map_err(|e| io(&e))?;
    let Some(config) = config.filter(|config| is_of(config, network)) else { return Ok(()) };
    match batches.iter_mut().find(|batch| batch.config == config) {
        Some(batch) => batch.containers.push(container),
        None => batches.push(Batch { config, containers: vec![container] }),
    }
    Ok(())
}

/// Calls the delegate's GC with a configuration that the reference saved.
fn collect_batch(request: &NodeRequest<'_>, saved: &Saved, batch: Batch) -> Result<(), CniError> {
    let Batch { mut config, containers } = batch;
    // The version in the saved configuration may be older than GC.
    drop(config.insert("cniVersion".to_owned(), request.config.version.as_str().into()));
    collect(request, config)?;
    let forgotten = containers.iter().map(|one| saved.forget_container(one).map_err(|e| io(&e)));
    forgotten.fold(Ok(()), Result::and)
}
