// SPDX-License-Identifier: MIT OR Apache-2.0

//! See the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    xtask_vm::main()
}
