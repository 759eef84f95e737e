//! The plugins that give addresses to others.

pub mod host_local;
mod keys;
pub mod r#static;
