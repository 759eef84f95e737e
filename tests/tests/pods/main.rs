// SPDX-License-Identifier: GPL-2.0-or-later

//! Pods: `slipwayd` and the underlying manager in cni-runtime, with our plugins and the reference plugins.

mod commands;
mod errors;
mod follow;
mod kill;
mod parallel;
mod stage;
