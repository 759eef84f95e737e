// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask`.

use std::process::ExitCode;

fn main() -> ExitCode {
    xtask::main()
}
