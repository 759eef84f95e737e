//! Looks its own name up in the registry and answers as that plugin, or as `slipway` itself.

fn main() {}
