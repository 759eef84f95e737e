//! What a published port or a masqueraded address is, and the ways to make one.
//!
//! A *published port* is (protocol, host address or wildcard of one family, host port) → (container
//! address, container port), owned by an [`cni_spec::Attachment`]. A *masqueraded address* is a container's
//! address whose packets leave its own network with an address of the node. Both are made by a
//! [`Backend`]: [`nftables::Nftables`] is the default one, [`iptables::Iptables`] the one that makes the
//! reference plugins' chains, [`ebpf::Ebpf`] the fast path on top of nftables, [`Dataplane`] all of them, and [`fake::Fake`] one for tests of what calls them.
//!
//! Everything that a backend makes carries its owner beside it in the kernel ([`owner`]): the
//! kernel is the state, there is no file to fall out of step with it.

mod backend;
mod chain_name;
pub mod dismantle;
mod dispatch;
pub mod dump;
pub mod ebpf;
mod elsewhere;
mod error;
pub mod explain;
pub mod fake;
pub mod firewall;
#[cfg(test)]
mod floors;
pub mod iptables;
pub mod macspoof;
pub mod migrate;
pub mod nftables;
pub mod node;
mod observer;
mod options;
mod owned_table;
pub mod owner;
mod policy;
mod port;
mod port_range;
mod reference;
mod run_dir;
mod service_links;

pub use backend::{
    Backend, BackendName, Kinds, Listed, Loopback, MasqueradeRequest, PortRequest, Snat, Traffic, Withdrawal,
};
pub use chain_name::ChainName;
pub use dispatch::Dataplane;
pub use error::Error;
pub use options::{Conditions, EntryPort, IptablesOptions, NftablesOptions};
pub use owner::{ContainerNetns, Owner};
pub use policy::IngressPolicy;
pub use port::{AddressFamily, HostAddress, HostPorts, Protocol, PublishedPort};
pub use port_range::PortRange;
pub use run_dir::RUN_DIR;
