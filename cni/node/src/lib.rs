// SPDX-License-Identifier: GPL-3.0-or-later

//! The node agent's library, from the ground up:
//!
//! - [`excerpt`] bounds texts of other hosts, [`host`] is the node that the agent runs on.
//! - [`repair`] restores what other programs break in the dataplane, by the installed `slipway`.
//! - [`cluster`] keeps routes and tunnels to the pods of other nodes, [`garbage`] detaches what the container runtime
//!   left, [`kubenet`] and [`network_plugin`] are kubelet's former network plugins.
//! - [`observe`] has the agent's state for people and monitoring, [`agent_client`] asks the running agent for it, [`top`]
//!   takes samples of the node, and [`render`] has the files of a deployment.
//!
//! The program's commands are in the binary.

pub mod agent_client;
pub mod cluster;
pub mod excerpt;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod garbage;
pub mod host;
pub mod kubenet;
pub mod network_plugin;
pub mod observe;
pub mod render;
pub mod repair;
pub mod top;
