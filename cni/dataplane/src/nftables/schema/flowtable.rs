//! The flowtable: established flows that this table has translated go past all chains.
//!
//! ```text
//! flowtable flows    at the ingress of containers' bridges and links and of the node's links to elsewhere
//! chain forward      ct mark & 0x2000 == 0x2000 ct status assured meta l4proto { tcp, udp } flow add @flows
//! ```
//!
//! Whether a flow is ours is known when its source is decided on, in the chains `hairpin-…` (bit 13 of the
//! packet mark says that the destination was translated here) and `masquerade-…`: these set a bit of the
//! connection's mark, with which the flow is known for as long as it lives. Addresses would not tell: a
//! container that publishes a port may be a Service's endpoint, too. The elements of containers are the same
//! with and without a flowtable, and so is the number of rules in every other chain: the table has a
//! flowtable if it has the chain `forward`, and an older version of Slipway finds nothing wrong with it.

use cni_nftables::{
    BaseChain, Chain, ChainKind, Cmp, Field, Flowtable, Hook, Links, Operand, Policy, Stmt, TableId, Value,
};

use super::base::{self, Fixed};
use super::layout::{Kernel, Layout, Protocols};

/// The flowtable's name.
pub(crate) const FLOWTABLE: &str = "flows";
/// The chain that puts flows into it. Its presence says that the table has a flowtable.
pub(crate) const CHAIN: &str = "forward";
/// The bit of the connection's mark: the same as the usual one of the packet's.
const CT_MARK: u32 = 1 << base::DEFAULT_MARK_BIT;
/// Behind other engines' chains at this hook (`NF_IP_PRI_FILTER` is 0, `NF_IP_PRI_SECURITY` 50), so that
/// no flow is offloaded whose packets one of them drops.
const LAST: i32 = 200;

/// The statement by which a chain that knows a flow for ours marks its connection, if there is a flowtable.
pub(super) fn remember(layout: Layout) -> Option<Stmt> {
    layout.offloading.map(|_| Stmt::set_ct_mark_bits(CT_MARK))
}

/// The chain that puts flows into the flowtable.
pub(crate) fn chain(protocols: Protocols) -> Fixed {
    let base =
        BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: LAST, policy: Policy::Accept };
    let chain = Chain::new(&base::table(), CHAIN).base(base);
    Fixed { chain, rules: vec![rule(protocols)] }
}

/// Only flows that were answered and confirmed: neither a flood of SYN nor a question and its answer over
/// UDP, which would take a place in the flowtable each and gain nothing.
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

/// The flowtable at these links. It counts where the kernel can: `slipway ports` reads conntrack's accounting, which
/// would miss packets that pass by the chains.
pub(crate) fn flowtable(table: &TableId, devices: &[Links]) -> Flowtable {
    Flowtable::new(table, FLOWTABLE, devices).counter(Kernel::this().counts())
}
