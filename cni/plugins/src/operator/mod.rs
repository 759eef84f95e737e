//! What `slipway` does when it is called by its own name: the commands of whoever runs the node.

pub mod install;
