// SPDX-License-Identifier: GPL-2.0-or-later

//! The rules that keep the node's loopback private.

use cni_nftables::{Field, Operand, Stmt, Value, Verdict};

use super::base::{self, DEFAULT_MARK_BIT, Rules};
use crate::AddressFamily;

fn from_outside() -> Stmt {
    Stmt::ne(Field::Iifname, Value::Ifname("lo".to_owned()))
}

/// Matches packets that nobody but the node itself may send: those from or to 127/8 on another link than the
/// loopback. `route_localnet`, which the node needs for its own access to published ports, would let them in. The
/// kernel itself drops packets with ::1 that come from outside (`ip6_rcv_core`).
fn private(field: Field) -> Vec<Stmt> {
    vec![base::one_of(field, base::loopback(AddressFamily::V4)), from_outside()]
}

fn dropping(field: Field) -> Vec<Stmt> {
    private(field).into_iter().chain([Stmt::Verdict(Verdict::Drop)]).collect()
}

/// Drops such packets if they begin a flow. A chain of type nat sees only the first packet of each flow, so packets
/// that are forwarded in a known flow cost nothing here. The chain has the lowest priority that the kernel permits,
/// so it comes before the chains of all engines that could translate the packet.
///
/// Later packets from outside cannot join a flow of the loopback either. Those to the node reach [`to_the_node`], and
/// the kernel drops packets that arrive with a source address of its own, such as 127.0.0.1 (`fib_validate_source`),
/// before it forwards them.
pub(crate) fn arriving() -> Rules {
    [Field::IpDaddr, Field::IpSaddr].map(dropping).to_vec()
}

/// Drops such packets on their way to the node's own sockets: those of known flows, and those that conntrack does not
/// track, which no chain of type nat sees. Packets of translated flows pass, because these are replies whose
/// destination has been translated back to 127.0.0.1, or packets that another engine redirects to the loopback. The
/// source of a reply is still the container's address here, because it is translated later at this hook.
pub(crate) fn to_the_node() -> Rules {
    let mut reply = private(Field::IpDaddr);
    reply.push(Stmt::AnyBit {
        field: Field::CtStatus,
        bits: Value::CtStatus(Value::CT_SNAT | Value::CT_DNAT),
    });
    reply.push(Stmt::Verdict(Verdict::Accept));
    vec![dropping(Field::IpSaddr), reply, dropping(Field::IpDaddr)]
}

/// Drops the first packet of a connection that one of our maps has translated to the node's loopback or to a
/// multicast group. No ADD makes such an element, but an administrator can. The mark's bit and the conntrack status
/// show that the translation was ours; translations of other engines are left alone. A chain of type nat at the input
/// hook sees only the first packet of each connection to the node.
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
