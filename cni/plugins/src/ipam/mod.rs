//! The plugins that give addresses to others.

pub mod dhcp;
pub mod host_local;
pub(crate) mod keys;
pub mod r#static;
