// SPDX-License-Identifier: GPL-2.0-or-later

//! The rules that keep the node's loopback private.

use cni_nftables::{Field, Operand, Stmt, Value, Verdict};

use super::base::{self, DEFAULT_MARK_BIT, Rules};
use crate::AddressFamily;

fn from_outside() -> Stmt {
    Stmt::ne(Field::Iifname, Value::Ifname("lo".to_owned()))
}

/// The packets that nobody but the node itself may send: from or to 127/8, on another link than the loopback.
/// `route_localnet`, which the node's own access to published ports needs, would let them in. Packets with ::1 from
/// outside are dropped by the kernel itself (`ip6_rcv_core`).
fn private(field: Field) -> Vec<Stmt> {
    vec![base::one_of(field, base::loopback(AddressFamily::V4)), from_outside()]
}

fn dropping(field: Field) -> Vec<Stmt> {
    private(field).into_iter().chain([Stmt::Verdict(Verdict::Drop)]).collect()
}

/// Drops private packets that begin a flow. A chain of type nat sees the first packet of each flow and no other one,
/// so that packets which are forwarded in a known flow cost nothing here. With the lowest priority that the kernel
/// permits, this chain comes before those of all engines that could translate the packet.
///
/// Later packets cannot join a flow of the loopback from outside either: those that go to the node meet
/// [`to_the_node`], and the kernel drops packets that come in with a source address of its own, such as 127.0.0.1
/// (`fib_validate_source`), before it forwards them.
pub(crate) fn arriving() -> Rules {
    [Field::IpDaddr, Field::IpSaddr].map(dropping).to_vec()
}

/// Drops private packets on their way to the node's own sockets: those of known flows, and those that conntrack does
/// not know, which no chain of type nat sees. Packets of translated flows pass: replies whose destination has become
/// 127.0.0.1 again, and what another engine redirects to the loopback. A reply's source is still the container's here, as
/// that is translated later at this hook.
pub(crate) fn to_the_node() -> Rules {
    let mut reply = private(Field::IpDaddr);
    reply.push(Stmt::AnyBit {
        field: Field::CtStatus,
        bits: Value::CtStatus(Value::CT_SNAT | Value::CT_DNAT),
    });
    reply.push(Stmt::Verdict(Verdict::Accept));
    vec![dropping(Field::IpSaddr), reply, dropping(Field::IpDaddr)]
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
