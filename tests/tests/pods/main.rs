// SPDX-License-Identifier: GPL-2.0-or-later

//! Pods: `slipwayd`, and the manager of cni-runtime below it, with our plugins and the reference's.

mod commands;
mod follow;
mod kill;
mod parallel;
mod stage;
