// SPDX-License-Identifier: GPL-3.0-or-later

//! The Nodes of a Kubernetes cluster, and the routes and the tunnel that they demand of this node.
//!
//! [`source`] lists and watches Nodes (`object` decodes them, [`nodes`] reads them with their [`annotations`] and
//! [`node_name`], [`access`] finds the API server). [`desired()`] computes the desired state from all Nodes and the node's
//! uplinks, without input or output. [`problem`] has what is wrong with a Node.
//!
//! [`reconcile`] compares the node with the desired state and changes what differs: [`routes`], [`tunnel`] or
//! [`wireguard`] with its [`key`], the bridge, the files ([`conflist`]). [`agent`] does so after each change, and
//! [`announce`] writes into the node's own Node ([`taint`] removes startup taints).

pub mod access;
pub mod agent;
pub mod annotations;
pub mod announce;
pub mod conflist;
pub mod desired;
pub mod events;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub mod key;
pub mod node_name;
pub mod nodes;
mod object;
pub mod problem;
pub mod reconcile;
pub mod routes;
pub mod source;
pub mod taint;
#[cfg(test)]
mod tests;
pub mod tunnel;
pub mod wireguard;

pub use desired::{Desired, LocalView, Settings, desired};
pub use node_name::NodeName;
pub use nodes::{Node, Nodes};
pub use problem::{Problem, ProblemKind};
pub use source::{Snapshot, follow};
