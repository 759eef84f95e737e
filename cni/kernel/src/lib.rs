//! What the plugins need of the kernel: network namespaces, routing netlink, sysctls, locks and
//! files that survive a power cut.
//!
//! Everything here blocks. Nothing here knows of the CNI specification, and nothing is kept between
//! calls but open descriptors: the kernel is the state.

pub mod activation;
pub mod boot;
pub mod bpf;
pub mod dir;
pub mod grace;
pub mod lock;
pub mod mac;
pub mod netns;
pub mod packet;
pub mod process;
pub mod route;
pub mod sysctl;
pub mod tap;
pub mod xtables;
