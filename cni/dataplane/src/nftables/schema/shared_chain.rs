// SPDX-License-Identifier: GPL-2.0-or-later

//! The chains to which the elements of several attachments lead. A chain's name contains everything from which its
//! rules are made.

use cni_nftables::{Field, Operand, Stmt, Value, Verdict};
use ipnet::IpNet;

use super::base::{
    DEFAULT_MARK_BIT, address_fields, family_of, loopback, mark_bits, multicast, one_of, prefix,
};
use super::exempt::ExemptId;
use super::flowtable;
use super::layout::Layout;
use crate::AddressFamily;

/// A regular chain to which the elements of several attachments lead.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum SharedChain {
    /// Masquerades packets that leave the networks, except for those to multicast groups.
    Masquerade {
        /// The network, with its host bits zero.
        network: IpNet,
        /// More networks to which packets keep their source, if there are any.
        exempt: Option<ExemptId>,
    },
    /// Masquerades sources in this network and on the node's loopback, if the mark's bit is set.
    Hairpin {
        /// The network, with its host bits zero.
        network: IpNet,
        /// The networks to which the container is connected by its other interfaces. The container would send replies
        /// to clients there past the node. In canonical form, see [`other_networks`].
        others: Vec<IpNet>,
        bit: u8,
    },
    /// Masquerades all sources, if the mark's bit is set.
    HairpinAll {
        /// The family, which only the name needs.
        family: AddressFamily,
        bit: u8,
    },
    /// Masquerades no source, but clears the mark's bit, because rules of other engines, such as the reference
    /// plugin's, may act on that bit.
    HairpinNone {
        /// The family, which only the name needs.
        family: AddressFamily,
        bit: u8,
    },
}

/// How many host bits a network must have at least to get an element in the maps of networks. The number of these
/// elements should not grow with the number of containers.
const LEAST_HOST_BITS: u8 = 3;

/// The longest name of a chain, in bytes (`NFT_CHAIN_MAXNAMELEN` in `linux/netfilter/nf_tables.h`, without the NUL).
const CHAIN_NAME_MAX: usize = 255;

/// The networks of `elsewhere` to which a container in `network` would not reply through the node, in canonical
/// form.
pub(crate) fn other_networks(network: &IpNet, elsewhere: &[IpNet]) -> Vec<IpNet> {
    let others = elsewhere.iter().map(IpNet::trunc);
    let others = others.filter(|other| family_of(other) == family_of(network) && !network.contains(other));
    IpNet::aggregate(&others.collect())
}

impl SharedChain {
    /// The chain for a container in `network` that has other networks, too. If there are more of them than a name can
    /// contain, the chain masquerades all sources.
    pub(crate) fn hairpin(network: IpNet, elsewhere: &[IpNet], bit: u8) -> Self {
        let others = other_networks(&network, elsewhere);
        let chain = Self::Hairpin { network: network.trunc(), others, bit };
        if chain.name().len() > CHAIN_NAME_MAX {
            return Self::HairpinAll { family: family_of(&network), bit };
        }
        chain
    }

    /// The name describes the chain completely, so that the chain can be made again from the name alone. nft allows
    /// no colons in names, so they are replaced with underscores.
    pub(crate) fn name(&self) -> String {
        let word = |network: &IpNet| network.to_string().replace(':', "_");
        match self {
            Self::Masquerade { network, exempt: None } => format!("masquerade-{}", word(network)),
            Self::Masquerade { network, exempt: Some(id) } => {
                format!("masquerade-{}-{}", word(network), id.word())
            }
            Self::Hairpin { network, others, bit } => {
                let words: Vec<String> = [network].into_iter().chain(others).map(word).collect();
                format!("hairpin-{}-{bit}", words.join("-"))
            }
            Self::HairpinAll { family, bit } => format!("hairpin-all{}-{bit}", family.version()),
            Self::HairpinNone { family, bit } => format!("hairpin-none{}-{bit}", family.version()),
        }
    }

    /// Parses a name. None if another kind of chain has this name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let network = |word: &str| word.replace('_', ":").parse::<IpNet>().ok();
        let chain = if let Some(word) = name.strip_prefix("masquerade-") {
            match word.rsplit_once('-') {
                None => Self::Masquerade { network: network(word)?, exempt: None },
                Some((word, hash)) => {
                    let network = network(word)?;
                    Self::Masquerade {
                        network,
                        exempt: Some(ExemptId::from_word(family_of(&network), hash)?),
                    }
                }
            }
        } else {
            let (word, bit) = name.strip_prefix("hairpin-")?.rsplit_once('-')?;
            let bit = bit.parse().ok().filter(|bit| *bit < 32)?;
            match word {
                "all4" => Self::HairpinAll { family: AddressFamily::V4, bit },
                "all6" => Self::HairpinAll { family: AddressFamily::V6, bit },
                "none4" => Self::HairpinNone { family: AddressFamily::V4, bit },
                "none6" => Self::HairpinNone { family: AddressFamily::V6, bit },
                _ => {
                    let mut networks = word.split('-').map(network);
                    let first = networks.next()??;
                    Self::Hairpin { network: first, others: networks.collect::<Option<_>>()?, bit }
                }
            }
        };
        (chain.name() == name).then_some(chain)
    }

    /// The network to whose containers the chain may apply without an element for each of them: the chain is the one
    /// that a default configuration makes, and the network has so many addresses that it does not belong to a single
    /// container.
    pub(crate) fn of_network(&self) -> Option<IpNet> {
        let network = match self {
            Self::Masquerade { network, .. } => *network,
            Self::Hairpin { network, others, bit: DEFAULT_MARK_BIT } if others.is_empty() => *network,
            _ => return None,
        };
        (network.max_prefix_len() - network.prefix_len() >= LEAST_HOST_BITS).then_some(network)
    }

    /// The networks that the chain exempts from masquerade, apart from its own network.
    pub(crate) fn exempt(&self) -> Option<ExemptId> {
        match self {
            Self::Masquerade { exempt, .. } => *exempt,
            _ => None,
        }
    }

    /// The rules of the chain. Their number is the same in every layout.
    pub(crate) fn rules(&self, layout: Layout) -> Vec<Vec<Stmt>> {
        let masquerade = || Stmt::Masquerade(Default::default());
        match self {
            Self::Masquerade { network, exempt } => {
                let (_, daddr) = address_fields(family_of(network));
                let stay = Operand::OneOf(vec![prefix(network), multicast(family_of(network))]);
                let mut rules = vec![vec![one_of(daddr, stay), Stmt::Verdict(Verdict::Return)]];
                rules.extend(exempt.map(|id| vec![id.matches(), Stmt::Verdict(Verdict::Return)]));
                rules.push(flowtable::remember(layout).into_iter().chain([masquerade()]).collect());
                rules
            }
            Self::Hairpin { network, others, bit } => {
                let (saddr, _) = address_fields(family_of(network));
                let sources = Operand::OneOf(vec![prefix(network), loopback(family_of(network))]);
                let mut rules = unless_marked(*bit, layout);
                rules.push(vec![one_of(saddr, sources), masquerade()]);
                // Each network has a rule of its own, because a set must not contain networks that overlap or touch.
                rules.extend(others.iter().map(|other| vec![one_of(saddr, prefix(other)), masquerade()]));
                rules
            }
            Self::HairpinAll { bit, .. } => {
                let mut rules = unless_marked(*bit, layout);
                rules.push(vec![masquerade()]);
                rules
            }
            Self::HairpinNone { bit, .. } => unless_marked(*bit, layout),
        }
    }
}

/// Returns from the chain if the bit is not set, and clears it otherwise.
fn unless_marked(bit: u8, layout: Layout) -> Vec<Vec<Stmt>> {
    let bits = mark_bits(bit);
    let unset = Stmt::Masked {
        field: Field::Mark,
        mask: Value::Mark(bits),
        cmp: cni_nftables::Cmp::Eq,
        value: Value::Mark(0),
    };
    let clear = [Stmt::clear_mark_bits(bits)].into_iter().chain(flowtable::remember(layout)).collect();
    vec![vec![unset, Stmt::Verdict(Verdict::Return)], clear]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(all: &[&str]) -> Vec<IpNet> {
        all.iter().map(|one| one.parse().unwrap()).collect()
    }

    #[test]
    fn other_networks_are_in_one_form() {
        let own: IpNet = "10.22.0.2/16".parse().unwrap();
        let elsewhere = ["10.23.1.7/24", "fd00::2/64", "10.22.5.1/24", "10.23.0.9/24", "10.23.0.1/16"];
        assert_eq!(other_networks(&own, &networks(&elsewhere)), networks(&["10.23.0.0/16"]));
        assert_eq!(other_networks(&own, &networks(&["10.0.0.1/8"])), networks(&["10.0.0.0/8"]));
        assert_eq!(SharedChain::hairpin(own, &[], 13).name(), "hairpin-10.22.0.0/16-13");
        let chain = SharedChain::hairpin(own, &networks(&elsewhere), 13);
        assert_eq!(chain.name(), "hairpin-10.22.0.0/16-10.23.0.0/16-13");
        assert_eq!(SharedChain::from_name(&chain.name()), Some(chain));
    }

    #[test]
    fn too_many_networks_are_all_sources() {
        let many: Vec<IpNet> = (0..40).map(|i| format!("10.{}.0.1/24", 2 * i).parse().unwrap()).collect();
        let chain = SharedChain::hairpin("192.0.2.7/24".parse().unwrap(), &many, 13);
        assert_eq!(chain, SharedChain::HairpinAll { family: AddressFamily::V4, bit: 13 });
    }
}
