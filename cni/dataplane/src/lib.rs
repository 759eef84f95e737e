// SPDX-License-Identifier: GPL-2.0-or-later

//! Published ports and masqueraded addresses of containers, and the backends that implement them.
//!
//! A *published port* is (protocol, host address or wildcard of one family, host port) → (container address,
//! container port), owned by a [`cni_spec::Attachment`]. A *masqueraded address* is a container's address
//! whose packets leave its own network with an address of the node. A [`Backend`] implements both:
//! [`nftables::Nftables`] by default, [`iptables::Iptables`] with the reference plugins' chains, or [`ebpf::Ebpf`]
//! with BPF programs on top of nftables. [`Dataplane`] dispatches to them. [`fake::Fake`] is for tests of callers.
//!
//! Every object in the kernel carries its owner ([`owner`]). The kernel's objects are the only state, so no file can
//! disagree with them.

mod backend;
mod chain_name;
mod difference;
mod dispatch;
mod document;
pub mod dropping;
pub mod dump;
pub mod duplicates;
pub mod ebpf;
mod error;
pub mod explain;
pub mod fake;
pub mod firewall;
mod flow;
pub mod foreign_nat;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod iptables;
mod lock;
pub mod macspoof;
pub mod migrate;
pub mod namespace_record;
mod networks;
pub mod nftables;
pub mod node;
mod options;
mod other_backends;
mod owned_table;
pub mod owner;
pub mod owner_search;
mod policy;
mod port;
mod reference;
mod run_dir;
mod service_links;
pub mod teardown;
pub mod trace;
pub mod tunnel_guard;
pub mod whereabouts;

pub use backend::{
    Backend, BackendName, Before, Kinds, Listed, Loopback, MasqueradeRequest, PortRequest, Request, Snat,
    Traffic, Withdrawal,
};
pub use chain_name::ChainName;
pub use cni_nftables::deferred_close;
pub use difference::{Difference, ExemptDifference};
pub use dispatch::Dataplane;
pub use error::{BpfError, Cause, ConditionError, EbpfLack, Error, NfTablesLack, RequestError};
pub use flow::{Flows, PublishedFlow};
pub use networks::ContainerNetworks;
pub use options::{Conditions, EntryPort, IptablesOptions, NftablesOptions};
pub use owner::{ContainerNetns, Owner};
pub use policy::IngressPolicy;
pub use port::{AddressFamily, HostAddress, HostPorts, Protocol, PublishedPort};
pub use run_dir::RUN_DIR;
