//! The node's own addresses, on a node where others are local, too: see `service_links`.
//!
//! ```text
//! set   addresses4   { 192.0.2.1, 10.88.0.1 }     local by another link than that of the Services
//! chain addresses4   ip daddr 127.0.0.0/8 goto hostports4
//!                    ip daddr @addresses4 goto hostports4
//! ```
//!
//! The chains `prerouting` and `output` go here in place of `hostports4` and `hostports6`. An address that the engine
//! adds later is in none of these sets, so that no one has to announce it. An address that the node gets
//! is, from the next ADD or STATUS on.

use cni_nftables::{Chain, DataType, Set, Stmt};

use super::base::{self, Fixed};
use crate::AddressFamily;

/// Name of the chain of a family, and of its set. The presence of the one for IPv4 says that the layout has them.
pub(crate) const fn name(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "addresses4",
        AddressFamily::V6 => "addresses6",
    }
}

/// The chain of a family.
pub(crate) fn chain(family: AddressFamily) -> Fixed {
    let daddr = base::address_fields(family).1;
    let own = Stmt::in_set(&[daddr], name(family));
    let hostports = || Stmt::goto(base::hostports_chain(family));
    let rules = vec![vec![base::one_of(daddr, base::loopback(family)), hostports()], vec![own, hostports()]];
    Fixed { chain: Chain::new(&base::table(), name(family)), rules }
}

/// The set of a family, empty.
pub(crate) fn set(family: AddressFamily) -> Set {
    let key = match family {
        AddressFamily::V4 => DataType::Ipv4Addr,
        AddressFamily::V6 => DataType::Ipv6Addr,
    };
    Set::new(&base::table(), name(family), &[key])
}
