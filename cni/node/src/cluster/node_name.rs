// SPDX-License-Identifier: GPL-3.0-or-later

//! The name of a Node.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::excerpt::Excerpt;

/// The most characters of an object's name (RFC 1123, section 2.1, less the length byte and the root).
const NAME: usize = 253;

/// The name of a Node: a DNS subdomain (RFC 1123), as the API server demands it. Clones share the text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

/// An invalid name of a Node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node name {0}: not a DNS subdomain of lower-case letters, digits, \"-\" and \".\"")]
pub struct NodeNameError(Excerpt);

impl NodeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = NodeNameError;

    fn from_str(text: &str) -> Result<Self, NodeNameError> {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_label = |label: &str| {
            let ends = [label.bytes().next(), label.bytes().last()];
            ends.iter().all(|end| end.is_some_and(is_inner))
                && label.bytes().all(|byte| is_inner(byte) || byte == b'-')
        };
        if text.len() <= NAME && text.split('.').all(is_label) {
            Ok(Self(text.into()))
        } else {
            Err(NodeNameError(Excerpt::new(text)))
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
