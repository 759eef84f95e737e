// SPDX-License-Identifier: GPL-2.0-or-later

//! The node agent's library.

pub mod kubelet_command;
pub mod kubenet;
