//! GC: what of this network is saved of attachments that are not valid any more.

use cni_spec::{Attachment, CniError};
use serde_json::{Map, Value};

use super::saved::{Saved, is_of};
use super::{bytes, config, io, kind};
use crate::plugin::{Env, NodeRequest};
use crate::skel::delegate;

/// Containers of the reference with what their delegate was told, which is the same for most.
type Told = Vec<(Map<String, Value>, Vec<String>)>;

/// Deletes all that was made for the dead by what was saved, then the files. One that could not be deleted
/// keeps its file.
///
/// # Errors
/// The first that failed; all others were deleted.
pub(super) fn delete(request: &NodeRequest<'_>) -> Result<(), CniError> {
    let config = request.config;
    let Some(valid) = &config.valid_attachments else { return Ok(()) };
    let Some(saved) = Saved::open(&config::data_dir(config)).map_err(|e| io(&e))? else { return Ok(()) };
    let mut result = saved.sweep().map_err(|e| io(&e));
    let mut told = Told::new();
    for (container, ifname) in saved.list().map_err(|e| io(&e))? {
        let Some(ifname) = ifname else {
            if !valid.iter().any(|one| one.container_id() == container) {
                result = result.and(remember(&saved, &config.name, container, &mut told));
            }
            continue;
        };
        let Ok(attachment) = Attachment::new(&config.name, &container, &ifname) else { continue };
        if !valid.contains(&attachment) {
            result = result.and(delete_one(request, &saved, &attachment));
        }
    }
    told.into_iter().fold(result, |result, (config, containers)| {
        result.and(collect_by(request, &saved, config, &containers))
    })
}

/// The delegate's GC.
///
/// # Errors
/// The delegate's.
pub(super) fn collect(request: &NodeRequest<'_>, mut config: Map<String, Value>) -> Result<(), CniError> {
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        if let Some(value) = request.config.raw.get(key) {
            drop(config.insert(key.to_owned(), value.clone()));
        }
    }
    delegate::other(&kind(&config), request.env, "GC", &bytes(config)).map(drop)
}

/// The delegate's DEL. Nobody knows the namespace.
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

/// A file of the reference does not say the interface, without which there is no DEL.
fn remember(saved: &Saved, network: &str, container: String, told: &mut Told) -> Result<(), CniError> {
    let config = saved.of_container(&container).map_err(|e| io(&e))?;
    let Some(config) = config.filter(|config| is_of(config, network)) else { return Ok(()) };
    match told.iter_mut().find(|(other, _)| *other == config) {
        Some((_, containers)) => containers.push(container),
        None => told.push((config, vec![container])),
    }
    Ok(())
}

/// The delegate's GC with what the reference has saved.
fn collect_by(
    request: &NodeRequest<'_>,
    saved: &Saved,
    mut config: Map<String, Value>,
    containers: &[String],
) -> Result<(), CniError> {
    // There may have been no GC in the version that it was saved with.
    drop(config.insert("cniVersion".to_owned(), request.config.version.as_str().into()));
    collect(request, config)?;
    let forgotten = containers.iter().map(|one| saved.forget_container(one).map_err(|e| io(&e)));
    forgotten.fold(Ok(()), Result::and)
}
