//! The chains that keep the node's loopback to the node.

use cni_nftables::{Field, Operand, Stmt, Value, Verdict};

use super::base::{self, DEFAULT_MARK_BIT, Rules};
use crate::AddressFamily;

fn from_outside() -> Stmt {
    Stmt::ne(Field::Iifname, Value::Ifname("lo".to_owned()))
}

/// Nothing from or for 127/8 comes in on another interface than the loopback: `route_localnet`,
/// which the node's own access to published ports needs, would let it in. Raw comes before any
/// translation, so that replies, whose destination becomes 127.0.0.1 later, pass. The kernel itself
/// drops ::1 from outside (`ip6_rcv_core`). Every packet comes by here: the address is compared first, which costs
/// it less than its interface's name.
pub(crate) fn arriving() -> Rules {
    [Field::IpDaddr, Field::IpSaddr]
        .map(|field| {
            let stmt = base::one_of(field, base::loopback(AddressFamily::V4));
            vec![stmt, from_outside(), Stmt::Verdict(Verdict::Drop)]
        })
        .to_vec()
}

/// The first packet of a connection that a map of ours has led to the node's loopback, or to a group. No ADD makes such
/// an element; a hand may. The mark's bit and the state say that the translation was ours: that of another engine is its
/// own affair. Of type nat and at the input hook, the chain sees nothing but first packets for the node.
pub(crate) fn translated() -> Rules {
    let rule = |family: AddressFamily| {
        let daddr = base::address_fields(family).1;
        let to = Operand::OneOf(vec![base::loopback(family), base::multicast(family)]);
        vec![
            Stmt::mark_has(base::mark_bits(DEFAULT_MARK_BIT)),
            Stmt::AnyBit { field: Field::CtStatus, bits: Value::CtStatus(Value::CT_DNAT) },
            base::one_of(daddr, to),
            from_outside(),
            Stmt::Verdict(Verdict::Drop),
        ]
    };
    AddressFamily::BOTH.map(rule).to_vec()
}
