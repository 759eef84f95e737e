// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attachments, which own everything that plugins create.

use std::fmt;

/// A container's attachment to a network. It owns every link, reservation, map element, route and rule that the plugins
/// create.
///
/// The specification identifies an attachment by the network name, `CNI_CONTAINERID` and `CNI_IFNAME` ("Attachment" in
/// the CNI specification 1.1.0). All three have been checked against the specification's rules, so they can be part of
/// a file name or a comment.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attachment {
    network: String,
    container_id: String,
    ifname: String,
}

/// An invalid part of an attachment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachmentError {
    /// The network's name is empty.
    #[error("missing network name")]
    NetworkMissing,
    /// The network's name does not match `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`.
    #[error("invalid characters found in network name: {0:?}")]
    Network(String),
    /// The container ID is empty.
    #[error("missing containerID")]
    ContainerIdMissing,
    /// The container ID does not match `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`.
    #[error("invalid characters in containerID: {0:?}")]
    ContainerId(String),
    /// The interface name is empty.
    #[error("interface name is empty")]
    IfnameEmpty,
    /// The interface name is longer than the 15 bytes of the kernel's `IFNAMSIZ`.
    #[error("interface name is too long: {0:?}")]
    IfnameTooLong(String),
    /// The interface name is `.` or `..`.
    #[error("interface name is . or ..: {0:?}")]
    IfnameDots(String),
    /// The interface name contains a slash, a colon or white space.
    #[error("interface name contains / or : or whitespace characters: {0:?}")]
    IfnameCharacters(String),
    /// The interface name contains a percent sign. The kernel would replace a pattern such as `eth%d` by a free name.
    #[error("interface name contains %: {0:?}")]
    IfnamePattern(String),
    /// The name of a link is longer than the 127 bytes of the kernel's `ALTIFNAMSIZ`, or contains a NUL.
    #[error("no link can have this name: {0:?}")]
    LinkName(String),
}

impl Attachment {
    /// Checks the three names against the specification's rules.
    ///
    /// # Errors
    /// [`AttachmentError`] for the first invalid name.
    pub fn new(network: &str, container_id: &str, ifname: &str) -> Result<Self, AttachmentError> {
        check_network(network)?;
        check_container_id(container_id)?;
        check_ifname(ifname)?;
        Ok(Self {
            network: network.to_owned(),
            container_id: container_id.to_owned(),
            ifname: ifname.to_owned(),
        })
    }

    /// The network's name, from the configuration's `name`.
    #[must_use]
    pub fn network(&self) -> &str {
        &self.network
    }

    /// The container's ID, `CNI_CONTAINERID`.
    #[must_use]
    pub fn container_id(&self) -> &str {
        &self.container_id
    }

    /// The interface's name in the container, `CNI_IFNAME`.
    #[must_use]
    pub fn ifname(&self) -> &str {
        &self.ifname
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "network {}, container {}, interface {}", self.network, self.container_id, self.ifname)
    }
}

/// Checks a network name.
///
/// # Errors
/// [`AttachmentError::NetworkMissing`] or [`AttachmentError::Network`].
pub fn check_network(name: &str) -> Result<(), AttachmentError> {
    match is_identifier(name) {
        _ if name.is_empty() => Err(AttachmentError::NetworkMissing),
        true => Ok(()),
        false => Err(AttachmentError::Network(name.to_owned())),
    }
}

/// Checks a container ID.
///
/// # Errors
/// [`AttachmentError::ContainerIdMissing`] or [`AttachmentError::ContainerId`].
pub fn check_container_id(id: &str) -> Result<(), AttachmentError> {
    match is_identifier(id) {
        _ if id.is_empty() => Err(AttachmentError::ContainerIdMissing),
        true => Ok(()),
        false => Err(AttachmentError::ContainerId(id.to_owned())),
    }
}

/// Checks an interface name as the kernel's `dev_valid_name` does, and that it is not a pattern.
///
/// # Errors
/// [`AttachmentError`] with the rule that the name violates.
pub fn check_ifname(name: &str) -> Result<(), AttachmentError> {
    const IFNAMSIZ: usize = 16;
    let owned = || name.to_owned();
    if name.is_empty() {
        Err(AttachmentError::IfnameEmpty)
    } else if name.len() >= IFNAMSIZ {
        Err(AttachmentError::IfnameTooLong(owned()))
    } else if name == "." || name == ".." {
        Err(AttachmentError::IfnameDots(owned()))
    } else if name.contains(|c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace()) {
        Err(AttachmentError::IfnameCharacters(owned()))
    } else if name.contains('%') {
        Err(AttachmentError::IfnamePattern(owned()))
    } else {
        Ok(())
    }
}

/// Checks a name by which a link is looked up, which is either the link's own or an alternative one. Alternative names
/// may be longer (Linux 5.5; `ip link property add dev LINK altname NAME`).
///
/// # Errors
/// [`AttachmentError`] with the rule that the name violates.
pub fn check_link_name(name: &str) -> Result<(), AttachmentError> {
    const IFNAMSIZ: usize = 16;
    const ALTIFNAMSIZ: usize = 128;
    match name.len() {
        ..IFNAMSIZ => check_ifname(name),
        IFNAMSIZ..ALTIFNAMSIZ if !name.contains('\0') => Ok(()),
        _ => Err(AttachmentError::LinkName(name.to_owned())),
    }
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attachment_keeps_its_names_and_shows_them() {
        let attachment = Attachment::new("net", "c1", "eth0").unwrap();
        let names = (attachment.network(), attachment.container_id(), attachment.ifname());
        assert_eq!(names, ("net", "c1", "eth0"));
        assert_eq!(attachment.to_string(), "network net, container c1, interface eth0");
    }

    #[test]
    fn an_interface_name_is_one_that_the_kernel_takes_as_it_is() {
        use AttachmentError as E;
        for name in ["e", "eth0", "eth0.5", "...", "fifteen-letters", "é"] {
            assert_eq!(check_ifname(name), Ok(()), "{name}");
        }
        assert_eq!(check_ifname(""), Err(E::IfnameEmpty));
        let refused = |name: &str, reason: fn(String) -> E| {
            assert_eq!(check_ifname(name), Err(reason(name.to_owned())), "{name:?}");
        };
        refused("sixteen--letters", E::IfnameTooLong);
        for name in [".", ".."] {
            refused(name, E::IfnameDots);
        }
        for name in ["a/b", "a:b", "a b", "a\tb", "a\u{a0}b", "a\0b"] {
            refused(name, E::IfnameCharacters);
        }
        refused("eth%d", E::IfnamePattern);
    }

    #[test]
    fn a_link_may_be_named_by_a_longer_alternative_name() {
        assert_eq!(check_link_name("eth0"), Ok(()));
        assert_eq!(check_link_name("a b"), check_ifname("a b"), "a short name is the link's own");
        for name in ["sixteen--letters", &"a".repeat(127), "a long name with spaces"] {
            assert_eq!(check_link_name(name), Ok(()), "{name}");
        }
        for name in ["a name with a zero\0", &"a".repeat(128)] {
            assert_eq!(check_link_name(name), Err(AttachmentError::LinkName(name.to_owned())), "{name:?}");
        }
    }
}
