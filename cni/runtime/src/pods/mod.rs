// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pods and their networks: several attachments that are made and removed together.
//!
//! [`Manager`] reads the configuration directory, follows its changes, and sets up, tears down and checks pods.
//! Behaviour and messages are those of CRI-O's ocicni, except that a failed set-up leaves nothing behind.
//!
//! ```no_run
//! use cni_runtime::pods::{Attach, Manager, Pod};
//! use cni_runtime::{CallOptions, Runtime};
//!
//! # async fn example() -> Result<(), cni_runtime::pods::PodError> {
//! let manager = Manager::builder(Runtime::builder().plugin_dir("/opt/cni/bin")).start().await?;
//! let pod = Pod {
//!     namespace: "shop".to_owned(),
//!     name: "web-0".to_owned(),
//!     uid: "1c0f2a4e".to_owned(),
//!     sandbox: "8f3ad21b".to_owned(),
//!     netns: "/run/netns/web-0".to_owned(),
//!     networks: vec![Attach::default(), Attach::to("storage")],
//! };
//! for attached in manager.set_up(&pod, &CallOptions::new()).await? {
//!     println!("{} {}: {:?}", attached.network, attached.ifname, attached.result.ips);
//! }
//! manager.tear_down(&pod, &CallOptions::new()).await
//! # }
//! ```

mod directory;
mod error;
pub(crate) mod journal;
mod manager;
mod matching;
mod names;
mod request;
mod sandbox;
mod steps;
mod watch;

pub use crate::quantity::{QuantityError, quantity};
pub use directory::{Networks, SkipReason, Verdict, decode};
pub use error::{PodError, PodVerb, SandboxError};
pub use journal::Planned;
pub use manager::{Attached, Builder, Manager};
pub use names::{NameError, Wanted, interface_names};
pub use request::{Attach, EGRESS_ANNOTATION, INGRESS_ANNOTATION, Parameters, Pod, RequestError, parse_args};
