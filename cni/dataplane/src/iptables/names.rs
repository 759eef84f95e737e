// SPDX-License-Identifier: GPL-2.0-or-later

//! The names of tables and chains, and the comments of rules. Slipway and the reference plugins find each
//! other's rules by them.

use cni_spec::Attachment;
use sha2::{Digest, Sha512};

use crate::Kinds;
pub(crate) use crate::chain_name::ChainName;

/// The longest comment that the comment match accepts, in bytes (`XT_MAX_COMMENT_LEN` without the NUL).
const COMMENT_MAX: usize = 255;

/// The chain of entry rules: one rule for each container, protocol and group of up to fifteen ports.
pub(crate) const HOSTPORT_DNAT: &str = "CNI-HOSTPORT-DNAT";
/// The chain that sets the mark.
pub(crate) const HOSTPORT_SETMARK: &str = "CNI-HOSTPORT-SETMARK";
/// The chain that masquerades packets with the mark.
pub(crate) const HOSTPORT_MASQ: &str = "CNI-HOSTPORT-MASQ";
/// The chain of entry rules for source NAT in the oldest layout, before marks.
pub(crate) const HOSTPORT_SNAT: &str = "CNI-HOSTPORT-SNAT";
/// The prefix of a container's chain of mappings.
pub(crate) const DNAT_PREFIX: &str = "CNI-DN-";
/// The prefix of a container's chain for source NAT in the oldest layout.
pub(crate) const SNAT_PREFIX: &str = "CNI-SN-";
/// The prefix of a container's chain for `ipMasq`, and of all chains of the reference plugins.
pub(crate) const MASQUERADE_PREFIX: &str = "CNI-";

/// The built-in chains of the nat table that jump to shared chains and to containers' chains.
pub(crate) const PREROUTING: &str = "PREROUTING";
pub(crate) const OUTPUT: &str = "OUTPUT";
pub(crate) const POSTROUTING: &str = "POSTROUTING";

/// The chains with rules that jump to containers' chains.
pub(crate) const ENTRY_CHAINS: [&str; 3] = [HOSTPORT_DNAT, HOSTPORT_SNAT, POSTROUTING];

/// A table of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TableName {
    Nat,
    Filter,
    Mangle,
}

impl TableName {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::Filter => "filter",
            Self::Mangle => "mangle",
        }
    }
}

impl ChainName {
    /// The name of a container's chain: the prefix and as much of the hash as fits. As in the reference plugins,
    /// network and container are hashed without a separator, and the interface is left out.
    fn of(prefix: &str, network: &str, container_id: &str) -> Self {
        let mut hasher = Sha512::new();
        hasher.update(network);
        hasher.update(container_id);
        let hash = cni_spec::text::hex(&hasher.finalize());
        Self::hashed(prefix, &hash)
    }

    /// The chain of the container's mappings.
    pub(crate) fn dnat(attachment: &Attachment) -> Self {
        Self::of(DNAT_PREFIX, attachment.network(), attachment.container_id())
    }

    /// The container's chain for source NAT in the oldest layout.
    pub(crate) fn old_snat(attachment: &Attachment) -> Self {
        Self::of(SNAT_PREFIX, attachment.network(), attachment.container_id())
    }

    /// The container's chain for `ipMasq`.
    pub(crate) fn masquerade(attachment: &Attachment) -> Self {
        Self::of(MASQUERADE_PREFIX, attachment.network(), attachment.container_id())
    }
}

/// The chains that a container may have of these kinds.
pub(crate) fn own_chains(attachment: &Attachment, kinds: Kinds) -> Vec<ChainName> {
    let mut chains = Vec::new();
    if kinds.ports() {
        chains.extend([ChainName::dnat(attachment), ChainName::old_snat(attachment)]);
    }
    if kinds.masquerade() {
        chains.push(ChainName::masquerade(attachment));
    }
    chains
}

/// The container that a comment of the reference plugins names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CommentOwner {
    pub(crate) network: String,
    /// The container's ID, or its beginning where `cut` is set.
    pub(crate) container_id: String,
    /// True if the ID did not fit into the comment.
    pub(crate) cut: bool,
}

/// The comment of an entry rule.
pub(crate) fn dnat_comment(attachment: &Attachment) -> String {
    cut(format!("dnat {}", masquerade_comment(attachment)))
}

/// The comment of a rule of `ipMasq`.
pub(crate) fn masquerade_comment(attachment: &Attachment) -> String {
    // The names need no quoting, because the specification restricts their characters.
    cut(format!("name: \"{}\" id: \"{}\"", attachment.network(), attachment.container_id()))
}

/// Shortens a comment that is too long, and ends it with two dots like the reference plugins.
fn cut(mut comment: String) -> String {
    if comment.len() > COMMENT_MAX {
        comment.truncate(COMMENT_MAX - 2);
        comment.push_str("..");
    }
    comment
}

impl CommentOwner {
    /// Parses the comment of an entry rule or of `ipMasq`. None if the comment has another form.
    pub(crate) fn parse(comment: &str) -> Option<Self> {
        let comment =
            ["dnat ", "snat "].iter().find_map(|kind| comment.strip_prefix(kind)).unwrap_or(comment);
        let (network, rest) = comment.strip_prefix("name: \"")?.split_once("\" id: \"")?;
        let (id, cut) = match (rest.strip_suffix('"'), rest.strip_suffix("..")) {
            (Some(id), _) => (id, false),
            (None, Some(id)) => (id, true),
            (None, None) => return None,
        };
        Some(Self { network: network.to_owned(), container_id: id.to_owned(), cut })
    }

    /// True if the owner in a record may be this container. The names may be cut in both places.
    pub(crate) fn may_be(&self, owner: &crate::Owner) -> bool {
        let id = owner.container_id.strip_suffix('~').unwrap_or(&owner.container_id);
        let whole = id.len() == owner.container_id.len();
        crate::owner::NetworkHash::of(&self.network) == owner.network_hash
            && match (whole, self.cut) {
                (true, false) => id == self.container_id,
                _ => id.starts_with(&self.container_id) || self.container_id.starts_with(id),
            }
    }

    /// True if the comment names the attachment's container, as far as the comment is not cut.
    pub(crate) fn is(&self, attachment: &Attachment) -> bool {
        let id = attachment.container_id();
        self.network == attachment.network()
            && if self.cut { id.starts_with(&self.container_id) } else { id == self.container_id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(id: &str) -> Attachment {
        Attachment::new("testnet", id, "eth0").unwrap()
    }

    #[test]
    fn names_are_those_of_the_reference() {
        // Copied from chains that the reference plugins made.
        let a = attachment("cnitool-20b4ff582526573bbe7d");
        assert_eq!(ChainName::dnat(&a).as_str(), "CNI-DN-ae36f577134103263fc7b");
        assert_eq!(ChainName::masquerade(&a).as_str(), "CNI-ae36f577134103263fc7b752");
        assert_eq!(ChainName::old_snat(&a).as_str(), "CNI-SN-ae36f577134103263fc7b");
        assert_eq!(ChainName::dnat(&attachment(&"a".repeat(300))).as_str(), "CNI-DN-31a9d4f713838261a3dd0");
    }

    #[test]
    fn comments_are_those_of_the_reference() {
        let a = attachment("c1");
        assert_eq!(dnat_comment(&a), r#"dnat name: "testnet" id: "c1""#);
        let owner = CommentOwner::parse(&dnat_comment(&a)).unwrap();
        assert_eq!(
            (owner.network.as_str(), owner.container_id.as_str(), owner.cut),
            ("testnet", "c1", false)
        );
        assert!(owner.is(&a) && !owner.is(&attachment("c11")));
        assert_eq!(CommentOwner::parse(&masquerade_comment(&a)), Some(owner));
        for foreign in
            ["", "CNI portfwd masquerade mark", "name: \"x\"", "name: \"x\" id: \"y", "name: x id: y"]
        {
            assert_eq!(CommentOwner::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn long_comments_are_cut_as_the_reference_cuts_them() {
        let a = attachment(&"a".repeat(300));
        let comment = dnat_comment(&a);
        assert_eq!(comment.len(), 255);
        assert!(comment.ends_with("aa.."));
        let owner = CommentOwner::parse(&comment).unwrap();
        assert!(owner.cut && owner.is(&a) && !owner.is(&attachment("a")));
    }
}
