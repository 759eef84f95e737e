// SPDX-License-Identifier: GPL-2.0-or-later

//! The sets of the node's own addresses, for nodes where other addresses are local, too (see `service_links`).
//!
//! ```text
//! set   addresses4   { 192.0.2.1, 10.88.0.1 }     local by another link than the Services'
//! chain addresses4   ip daddr 127.0.0.0/8 goto hostports4
//!                    ip daddr @addresses4 goto hostports4
//! ```
//!
//! With these sets, the chains `prerouting` and `output` go here instead of to `hostports4` and `hostports6`. An
//! address of a Service that is added later is in no set, so nothing has to be updated. An address that the node gets
//! later is added by the next ADD or STATUS.

use cni_nftables::{Chain, DataType, Set, Stmt};

use super::base::{self, Fixed};
use crate::AddressFamily;

/// The name of a family's chain and set. A layout has both families if the chain for IPv4 exists.
pub(crate) const fn name(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "addresses4",
        AddressFamily::V6 => "addresses6",
    }
}

pub(crate) fn chain(family: AddressFamily) -> Fixed {
    let daddr = base::address_fields(family).1;
    let own = Stmt::in_set(&[daddr], name(family));
    let hostports = || Stmt::goto(base::hostports_chain(family));
    let rules = vec![vec![base::one_of(daddr, base::loopback(family)), hostports()], vec![own, hostports()]];
    Fixed { chain: Chain::new(&base::table(), name(family)), rules }
}

/// A family's set, empty.
pub(crate) fn set(family: AddressFamily) -> Set {
    let key = match family {
        AddressFamily::V4 => DataType::Ipv4Addr,
        AddressFamily::V6 => DataType::Ipv6Addr,
    };
    Set::new(&base::table(), name(family), &[key])
}
