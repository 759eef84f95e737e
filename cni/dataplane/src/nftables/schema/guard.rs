// SPDX-License-Identifier: GPL-2.0-or-later

//! The rules that keep the node's loopback private.

use cni_nftables::{Field, Operand, Stmt, Value, Verdict};

use super::base::{self, DEFAULT_MARK_BIT, Rules};
use crate::AddressFamily;

fn from_outside() -> Stmt {
    Stmt::ne(Field::Iifname, Value::Ifname("lo".to_owned()))
}

/// Drops packets from or to 127/8 that come in by another interface than the loopback: `route_localnet`,
/// which the node's own access to published ports needs, would let them in. The hook's priority is before any
/// translation, so that replies pass whose destination becomes 127.0.0.1 later. The kernel itself drops ::1
/// from outside (`ip6_rcv_core`). Every packet passes here, so the address is compared first: that is cheaper
/// than the interface's name.
pub(crate) fn arriving() -> Rules {
    [Field::IpDaddr, Field::IpSaddr]
        .map(|field| {
            let stmt = base::one_of(field, base::loopback(AddressFamily::V4));
            vec![stmt, from_outside(), Stmt::Verdict(Verdict::Drop)]
        })
        .to_vec()
}

/// Drops the first packet of a connection that a map of ours has translated to the node's loopback or to a
/// multicast group. No ADD makes such an element, but an administrator can. The mark's bit and the conntrack
/// status show that the translation was ours; those of other engines are left alone. A chain of type nat at
/// the input hook sees only the first packets to the node.
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
