// SPDX-License-Identifier: GPL-2.0-or-later

//! The parsers of the driver of netavark, for fuzzing.

pub use crate::netavark::fuzzing::{create, set_up};
