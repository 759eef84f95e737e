// SPDX-License-Identifier: GPL-2.0-or-later

//! The flowtable: established flows that this table has translated bypass all chains.
//!
//! ```text
//! flowtable flows    at the ingress of containers' bridges and links and of the node's uplinks
//! chain forward      ct mark & 0x2000 == 0x2000 ct status assured meta l4proto { tcp, udp } flow add @flows
//! ```
//!
//! The chains `hairpin-…` (for packets whose mark has bit 13, because their destination was translated here) and
//! `masquerade-…` recognise a flow as ours. They set a bit of the connection's mark, which lasts as long as the flow.
//! Addresses would not suffice, because a container that publishes a port may be an endpoint of a Service, too. The
//! elements of containers are the same with and without a flowtable, and so is the number of rules in all other
//! chains. The table has a flowtable if it has the chain `forward`.

use cni_nftables::{
    BaseChain, ChainKind, Cmp, Field, Flowtable, Hook, Links, Operand, Policy, Stmt, TableId, Value,
};

use super::base::{self, Fixed};
use super::layout::{Kernel, Layout, Protocols};

pub(crate) const FLOWTABLE: &str = "flows";
/// The chain that adds flows to the flowtable. The table has a flowtable if this chain exists.
pub(crate) const CHAIN: &str = "forward";
/// The bit of the connection's mark, which is the same as the default bit of the packet's mark.
const CT_MARK: u32 = 1 << base::DEFAULT_MARK_BIT;
/// After the chains of other engines at this hook (`NF_IP_PRI_FILTER` is 0, `NF_IP_PRI_SECURITY` 50), so that no flow
/// is offloaded whose packets one of them drops.
const LAST: i32 = 200;

/// The statement that marks a connection as ours. None if there is no flowtable.
pub(super) fn remember(layout: Layout) -> Option<Stmt> {
    layout.offloading.map(|_| Stmt::set_ct_mark_bits(CT_MARK))
}

/// The chain that adds flows to the flowtable.
pub(crate) fn chain(protocols: Protocols) -> Fixed {
    let base =
        BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: LAST, policy: Policy::Accept };
    Fixed::base(CHAIN, base, vec![rule(protocols)])
}

/// Adds only assured flows. A SYN flood, or single requests and replies over UDP, would fill the flowtable and gain
/// nothing.
fn rule(protocols: Protocols) -> Vec<Stmt> {
    let (tcp, udp) = (Operand::Value(Value::Proto(6)), Operand::Value(Value::Proto(17)));
    let protocols = match protocols {
        Protocols::Tcp => tcp,
        Protocols::TcpAndUdp => Operand::OneOf(vec![tcp, udp]),
    };
    vec![
        Stmt::Masked {
            field: Field::CtMark,
            mask: Value::Mark(CT_MARK),
            cmp: Cmp::Eq,
            value: Value::Mark(CT_MARK),
        },
        Stmt::AnyBit { field: Field::CtStatus, bits: Value::CtStatus(Value::CT_ASSURED) },
        Stmt::Match { fields: vec![Field::L4Proto], cmp: Cmp::Eq, to: protocols },
        Stmt::Offload(FLOWTABLE.to_owned()),
    ]
}

/// The flowtable at these links. It counts packets if the kernel supports that, because `slipway ports` reads the
/// accounting of conntrack, which would otherwise miss packets that bypass the chains.
pub(crate) fn flowtable(table: &TableId, devices: &[Links]) -> Flowtable {
    Flowtable::new(table, FLOWTABLE, devices).counter(Kernel::this().counts())
}
