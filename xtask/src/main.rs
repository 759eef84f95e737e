//! Tasks of the workspace: `cargo xtask help` lists them.

fn main() {}
