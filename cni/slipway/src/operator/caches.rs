// SPDX-License-Identifier: GPL-2.0-or-later

//! The usual caches of attachments: those of CNI runtimes, and that of netavark's driver.

use cni_runtime::cache::DIRECTORIES;

use crate::netavark::CACHE;

/// Their directories.
pub(super) const USUAL: [&str; 3] = [DIRECTORIES[0], DIRECTORIES[1], CACHE];
