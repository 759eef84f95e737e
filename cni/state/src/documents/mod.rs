// SPDX-License-Identifier: MIT OR Apache-2.0

//! The JSON documents that the commands of `slipway` and `slipwayd` print with `--output json`, and the agent's replies
//! to its commands: what one side prints and the other reads is one type, declared here. `docs/json.md` has the meaning of
//! each field, and tests compare it with what is printed.
//!
//! Each document has the number of its form beside its own fields ([`Document`]), which [`parse`] checks. Fields may be
//! added under the same number if they have a default, which a reader takes when an earlier version has printed the document.

mod activity;
mod check_node;
mod cnitool;
mod connectivity;
mod detach;
mod items;
mod networks;
mod node;
mod packets;
mod plugins;
mod pods;
mod ports;
mod status;
mod top;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use activity::{Activity, Call, RepairRecord};
pub use check_node::{CheckNode, Finding};
pub use cnitool::{CnitoolOutcome, PluginVerdict};
pub use connectivity::{ConnectivityCheck, ConnectivityTest};
pub use detach::{Detach, DetachState};
pub use items::{Migrate, MigrateItem, Restore, RestoreItem, RestoreState};
pub use networks::{NetworkFile, Networks};
pub use node::{
    BpfMap, BpfNode, EarlierFilter, HoldingRule, KernelLimit, LeftToNftables, NetworkRoom, UdpGroForwarding,
};
pub use packets::{Explain, PacketTrace, Step, Trace};
pub use plugins::{PluginVersions, Plugins, Version};
pub use pods::{
    AttachedPod, AttachmentState, Attachments, ListedAttachment, NodeReady, Pod, PodAddresses, PodAttachment,
    PodSandbox,
};
pub use ports::{Port, PortOwner, PortOwners, Ports};
pub use status::{
    AddressRange, AgentStatus, Comparison, FormerAddress, Garbage, NodeNetwork, VxlanDevice, WireGuardDevice,
};
pub use top::{Conntrack, DroppedPackets, FlowTraffic, PacketRates, Pool, PortTraffic, Top};

/// What a command prints as one document.
pub trait Form {
    /// The number of the document's form, which changes if a field is removed or gets another meaning.
    const SCHEMA: u32 = 1;
}

impl<T: Form> Form for &T {
    const SCHEMA: u32 = T::SCHEMA;
}

/// The owners are listed once, not with each port.
impl Form for Ports {
    const SCHEMA: u32 = 2;
}

impl Form for Top {
    const SCHEMA: u32 = 2;
}

macro_rules! first_form {
    ($($document:ty),* $(,)?) => { $(impl Form for $document {})* };
}

first_form!(
    Activity,
    AgentStatus,
    AttachedPod,
    Attachments,
    BpfNode,
    CheckNode,
    CnitoolOutcome,
    ConnectivityTest,
    Detach,
    Explain,
    Migrate,
    Networks,
    NodeReady,
    Plugins,
    PodAddresses,
    Restore,
    Trace,
    Version,
);

/// A document as it is printed: the number of its form, and its own fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Document<T> {
    schema: u32,
    #[serde(flatten)]
    content: T,
}

impl<T: Form> Document<T> {
    pub fn new(content: T) -> Self {
        Self { schema: T::SCHEMA, content }
    }
}

/// Text that is not a document of the wanted type.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error(transparent)]
    Form(#[from] serde_json::Error),
    /// The document is from another version.
    #[error("schema {found}, not {wanted}")]
    Schema { found: u32, wanted: u32 },
}

/// Reads a document that another program has printed.
pub fn parse<T: DeserializeOwned + Form>(text: &[u8]) -> Result<T, DocumentError> {
    #[derive(Deserialize)]
    struct Number {
        schema: u32,
    }
    // The number is checked first, because the fields of another form may have other types.
    let Number { schema } = serde_json::from_slice(text)?;
    if schema != T::SCHEMA {
        return Err(DocumentError::Schema { found: schema, wanted: T::SCHEMA });
    }
    Ok(serde_json::from_slice(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_reads_back_unless_its_form_is_another() {
        let detach = Detach {
            network: "pods".to_owned(),
            container: "web".to_owned(),
            interface: "eth0".to_owned(),
            state: DetachState::Kept,
            reason: Some("it runs".to_owned()),
        };
        let text = serde_json::to_string(&Document::new(&detach)).unwrap();
        assert!(text.starts_with(r#"{"schema":1,"#) && text.contains(r#""state":"kept""#), "{text}");
        assert_eq!(parse::<Detach>(text.as_bytes()).unwrap(), detach);
        // A later version may add fields, not change the form.
        let more = text.replacen('{', r#"{"more":[],"#, 1);
        assert_eq!(parse::<Detach>(more.as_bytes()).unwrap(), detach);
        let error = parse::<Detach>(br#"{"schema": 2, "state": 7}"#).unwrap_err();
        assert_eq!(error.to_string(), "schema 2, not 1");
        assert!(parse::<Detach>(br#"{"state": "kept"}"#).unwrap_err().to_string().contains("schema"));
    }
}
