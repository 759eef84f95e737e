// SPDX-License-Identifier: MIT OR Apache-2.0

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[test]
fn a_sealed_message_reads_back() {
    let mut message = Message::new(0x0a10, flag::ACK).with_flags(flag::CREATE);
    message.raw(&[1, 0, 0, 10]).text(1, "abc").be32(2, 7).u32(3, 8).nest(4, |inner| {
        inner.attr(5, &[1, 2, 3, 4, 5]);
    });
    let bytes = message.seal(99).to_vec();
    let read: Vec<_> = messages(&bytes).collect();
    let flags = flag::REQUEST | flag::ACK | flag::CREATE;
    assert_eq!(read, [(Header { kind: 0x0a10, flags, sequence: 99 }, message.payload())]);
    let body = &message.payload()[4..];
    assert_eq!(text(find(body, 1).unwrap()), "abc");
    assert_eq!((find(body, 2).and_then(be32), find(body, 3).map(u32_of)), (Some(7), Some(8)));
    assert_eq!(find(find(body, 4).unwrap(), 5), Some(&[1, 2, 3, 4, 5][..]));
    assert_eq!(find(body, 6), None);
}

#[test]
fn a_message_that_is_sent_again_has_only_another_sequence_number() {
    let mut message = Message::new(18, flag::DUMP);
    let (first, second) = (message.seal(1).to_vec(), message.seal(2).to_vec());
    assert_eq!((&first[..8], &first[12..]), (&second[..8], &second[12..]));
    assert_eq!(u32_of(&second[8..]), 2);
}

#[test]
fn space_is_filled_in_its_place() {
    let mut message = Message::new(1, 0);
    message.space(4).copy_from_slice(&[1, 2, 3, 4]);
    message.attr(7, &[9]);
    assert_eq!(message.payload(), [1, 2, 3, 4, 5, 0, 7, 0, 9, 0, 0, 0]);
}

#[test]
fn debug_output_has_no_values() {
    let mut message = Message::new(16, 0);
    message.attr(3, &[0xab; 32]);
    assert_eq!(format!("{message:?}"), "message 16 of 36 bytes");
    assert_eq!(format!("{:?}", *message), "attributes of 52 bytes");
}

#[test]
fn a_value_beyond_the_length_field_is_cut() {
    let bytes = Attributes::encode(|all| {
        all.attr(1, &[7; 70_000]).attr(2, &[8]);
    });
    let lengths: Vec<_> = attributes(&bytes).map(|(kind, value)| (kind, value.len())).collect();
    assert_eq!(lengths, [(1, 65_531), (2, 1)]);
}

#[test]
fn attributes_end_at_the_first_malformed_one() {
    let bytes = [5, 0, 1, 0x80, 9, 0, 0, 0, 4, 0, 2, 0, 3, 0, 7, 0];
    let all: Vec<_> = attributes(&bytes).collect();
    assert_eq!(all, [(1, [9].as_slice()), (2, [].as_slice())]);
}

#[test]
fn messages_end_at_the_first_malformed_one() {
    let mut bytes = Message::new(24, 0).raw(&[7, 8]).0.clone();
    put(&mut bytes, 0, &18_u32.to_ne_bytes());
    bytes.extend([0, 0]);
    bytes.extend(Message::new(25, 0).seal(3));
    // A length that is shorter than the header would make this loop endless.
    bytes.extend(15_u32.to_ne_bytes());
    bytes.extend([0; 12]);
    let all: Vec<_> = messages(&bytes).map(|(header, payload)| (header.kind, payload)).collect();
    assert_eq!(all, [(24, [7, 8].as_slice()), (25, [].as_slice())]);
}

/// Attributes that contain each other, at most three levels deep.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    Value(u16, Vec<u8>),
    Nest(u16, Vec<Node>),
}

fn node() -> impl Strategy<Value = Node> {
    let value = (0..=TYPE_MASK, vec(any::<u8>(), 0..40)).prop_map(|(kind, value)| Node::Value(kind, value));
    value.prop_recursive(3, 64, 8, |inner| {
        (0..=TYPE_MASK, vec(inner, 0..8)).prop_map(|(kind, nodes)| Node::Nest(kind, nodes))
    })
}

fn write(node: &Node, into: &mut Attributes) {
    match node {
        Node::Value(kind, value) => into.attr(*kind, value),
        Node::Nest(kind, nodes) => into.nest(*kind, |inner| nodes.iter().for_each(|node| write(node, inner))),
    };
}

/// Reads attributes, expecting the structure of those that were written.
fn read(shape: &[Node], bytes: &[u8]) -> Vec<Node> {
    let found: Vec<_> = attributes(bytes).collect();
    assert_eq!(found.len(), shape.len());
    let node = |(node, (kind, value)): (&Node, (u16, &[u8]))| match node {
        Node::Value(..) => Node::Value(kind, value.to_vec()),
        Node::Nest(_, inner) => Node::Nest(kind, read(inner, value)),
    };
    shape.iter().zip(found).map(node).collect()
}

proptest! {
    #[test]
    fn what_is_written_reads_back(nodes in vec(node(), 0..8), kind: u16, sequence: u32, others in 0..3_usize) {
        let mut message = Message::new(kind, flag::ACK);
        nodes.iter().for_each(|node| write(node, &mut message));
        let mut datagram = message.seal(sequence).to_vec();
        prop_assert_eq!(datagram.len() % 4, 0);
        for other in 0..others {
            datagram.extend(Message::new(1, 0).seal(u32::try_from(other).unwrap()));
        }
        let all: Vec<_> = messages(&datagram).collect();
        prop_assert_eq!(all.len(), 1 + others);
        prop_assert_eq!(all[0].0, Header { kind, flags: flag::REQUEST | flag::ACK, sequence });
        prop_assert_eq!(read(&nodes, all[0].1), nodes);
    }

    #[test]
    fn text_without_a_nul_reads_back(value in "[^\0]{0,40}") {
        let bytes = Attributes::encode(|all| { all.text(1, &value); });
        prop_assert_eq!(find(&bytes, 1).map(text), Some(value));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>, kind: u16) {
        prop_assert!(attributes(&bytes).count() <= bytes.len() / ATTRIBUTE_HEADER_LEN);
        prop_assert!(messages(&bytes).count() <= bytes.len() / HEADER_LEN);
        let _ = (find(&bytes, kind), text(&bytes), be16(&bytes), be32(&bytes), be64(&bytes));
        let _ = (u8_of(&bytes), u16_of(&bytes), u32_of(&bytes));
    }
}
