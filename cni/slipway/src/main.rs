// SPDX-License-Identifier: GPL-2.0-or-later

//! See the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    slipway::main()
}
