// SPDX-License-Identifier: GPL-2.0-or-later

//! CHECK of the plugins that make a single link.

use cni_kernel::route::Link;
use cni_spec::CniError;

use crate::interface::shared::advertisements::Advertisements;
use crate::interface::shared::check::{Inside, previous_result, wrong};
use crate::plugin::Request;
use crate::skel::delegate;

/// The expectations of a CHECK.
pub(crate) struct Expected<'a> {
    /// The reference's message if there is no `prevResult`.
    pub(crate) no_result: &'static str,
    /// Compares the link with the configuration.
    pub(crate) link: &'a dyn Fn(&Link) -> Result<(), CniError>,
}

/// Calls IPAM's CHECK, then compares the result of the ADD with the kernel's state. Returns container and
/// link, for further checks.
///
/// # Errors
/// The first difference.
pub(crate) fn check<'a>(
    request: &'a Request<'_>,
    expected: &Expected<'_>,
) -> Result<(Inside<'a>, Link), CniError> {
    if !request.config.ipam.is_empty() {
        delegate::ipam_check(request)?;
    }
    let previous = previous_result(request, "")
        .map_err(|error| CniError { msg: expected.no_result.to_owned(), ..error })?;
    let inside = Inside::open(request, previous, "")?;
    let link = inside.check_link_as(expected.link)?;
    inside.check_addresses(&link)?;
    inside.check_routes(&link)?;
    let advertisements = Advertisements::new(request.config, !inside.ips().is_empty())?;
    advertisements.check(&inside.container.route, &link)?;
    if !link.up {
        return Err(wrong(format!("Interface {} is down", link.name)));
    }
    Ok((inside, link))
}

/// Compares the modes of a link by name; `kind` is the reference's word for the link.
pub(crate) fn same_mode(kind: &str, is: &str, wanted: &str) -> Result<(), CniError> {
    if is == wanted {
        return Ok(());
    }
    Err(wrong(format!("{kind} mode {is} does not match expected value: {wanted}")))
}

/// The error for a link of another kind.
pub(crate) fn not_of_type(link: &Link, kind: &str) -> CniError {
    wrong(format!("Error: Container interface {} not of type {kind}", link.name))
}
