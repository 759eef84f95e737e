//! The multi-call plugin binary: one registry, one protocol front, many plugins.

pub mod plugin;
