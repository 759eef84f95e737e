//! What host-local has on disk beside the reservations.

use std::path::{Path, PathBuf};

use super::{Trace, TraceError};
use crate::ipam::host_local::leftovers;

/// The networks that our host-local has worked for. What the reference's has made is not ours.
pub(super) fn plan(data_dir: &Path) -> Result<Vec<Trace>, TraceError> {
    let mut traces = Vec::new();
    for network in leftovers::networks(data_dir)? {
        let folder = data_dir.join(&network);
        let why = leftovers::in_the_way(&folder)?;
        traces.push(judge(folder, why));
    }
    if leftovers::has_own(data_dir)? {
        traces.push(Trace::Folder(leftovers::own(data_dir)));
    }
    Ok(traces)
}

/// Removes a network's folder, or our own with all that is in it.
pub(super) fn remove(folder: PathBuf) -> Result<Trace, TraceError> {
    let why = if leftovers::is_own(&folder) {
        leftovers::remove_own(&folder)?;
        None
    } else {
        leftovers::remove_network(&folder)?
    };
    Ok(judge(folder, why))
}

fn judge(folder: PathBuf, why: Option<String>) -> Trace {
    match why {
        None => Trace::Folder(folder),
        Some(why) => Trace::Leave { what: folder.display().to_string(), why },
    }
}
