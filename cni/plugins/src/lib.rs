//! The multi-call plugin binary: one registry, one protocol front, many plugins.

pub mod operator;
pub mod plugin;
