//! The CNI specification as plain data: configurations, results, errors, arguments.
//!
//! No input or output happens here; everything can be tested with plain values.

mod attachment;
mod config;
mod error;
pub mod fold;
mod result;
mod version;

pub use attachment::{Attachment, AttachmentError, check_container_id, check_ifname, check_network};
pub use config::NetConf;
pub use error::{CniError, ErrorCode};
pub use result::{AddResult, Dns, Interface, IpConfig, Route};
pub use version::Version;
