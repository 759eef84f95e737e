// SPDX-License-Identifier: GPL-3.0-or-later

//! Keys and values of the BPF maps. Any bytes are a valid value, so the functions must accept all of them.

use std::fmt::Debug;
use std::net::IpAddr;

use slipway_ebpf_abi::{
    Addr4, Addr6, Arrival, Count, Departure, Entry, FlowKey, KEYS, Keyed, PROOF, Port, Record, Stage, Way,
};

/// Reads numbers from the input, and 0 after its end.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn u32(&mut self) -> u32 {
        let (first, rest) = self.0.split_at(self.0.len().min(4));
        self.0 = rest;
        let mut bytes = [0; 4];
        bytes[..first.len()].copy_from_slice(first);
        u32::from_ne_bytes(bytes)
    }

    fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    fn u16(&mut self) -> u16 {
        self.u32().to_le_bytes().first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))
    }

    fn port(&mut self) -> Port {
        Port(self.u16())
    }

    fn key<A>(&mut self, address: impl Fn(&mut Self) -> A) -> FlowKey<A> {
        FlowKey {
            source: address(self),
            destination: address(self),
            source_port: self.port(),
            destination_port: self.port(),
            interface: self.u32(),
            protocol: self.u32(),
        }
    }

    fn entry<A>(&mut self, address: impl Fn(&mut Self) -> A) -> Entry<A> {
        Entry {
            packets: self.u64(),
            bytes: self.u64(),
            bytes_at_second: self.u64(),
            bytes_before: self.u64(),
            queued: self.u64(),
            epoch: self.u32(),
            checked: self.u32(),
            asked: self.u32(),
            fits: self.u32(),
            fits_checked: self.u32(),
            last_length: self.u32(),
            is_trusted: self.u32(),
            copied: self.u32(),
            noted: self.u32(),
            reserved: self.u32(),
            dscp: self.u32(),
            acknowledgment: self.u32(),
            way: Way {
                source: address(self),
                destination: address(self),
                source_port: self.port(),
                destination_port: self.port(),
                interface: self.u32(),
                mark: self.u32(),
                priority: self.u32(),
                ethernet: [self.u32(), self.u32(), self.u32()],
                flags: self.u32(),
            },
        }
    }

    fn stage(&mut self) -> Stage {
        match self.u32() % 3 {
            0 => Stage::Original,
            1 => Stage::Clone,
            _ => Stage::Returned,
        }
    }
}

/// Values for all maps, and a packet that is handled with them.
pub(crate) fn values(bytes: &[u8]) -> impl Debug {
    let mut numbers = Numbers(bytes);
    let [epoch, now, first] = [numbers.u32(), numbers.u32(), numbers.u32()];
    let packet = Arrival { length: numbers.u32(), dscp: numbers.u32(), ttl: numbers.u32().to_le_bytes()[0] };
    let count = Count(numbers.u32());
    let keys: [u64; KEYS] = std::array::from_fn(|_| numbers.u64());
    let hash = keys.iter().fold(Keyed::new(first.into()), |hash, key| hash.word(*key, epoch)).hash();
    let counted = (count.state(hash, first), count.next(hash, || now % 2 == 0), count.step(first));
    let v4 = numbers.key(|numbers| Addr4(numbers.u32()));
    let of_v4 = flow(v4, numbers.entry(|numbers| Addr4(numbers.u32())), packet, [epoch, now]);
    let six = |numbers: &mut Numbers<'_>| Addr6(std::array::from_fn(|_| numbers.u32()));
    let v6 = numbers.key(six);
    let of_v6 = flow(v6, numbers.entry(six), packet, [epoch, now]);
    let record = Record {
        key: v4,
        epoch: numbers.u32(),
        tick: numbers.u32(),
        proof: std::array::from_fn::<u32, PROOF, _>(|_| numbers.u32()),
        length: numbers.u32(),
        ttl: numbers.u32() & 0xff,
        tos: numbers.u32(),
        stage: numbers.stage(),
        queued: numbers.u32(),
        came_out: numbers.u32(),
    };
    let out = Departure {
        proof: record.proof,
        protocol: v4.protocol,
        length: record.length,
        interface: numbers.u32(),
    };
    let outcome = (record.outcome(&out, now), record.is_clone([first, epoch], now), record.is_in_use(now));
    (counted, of_v4, of_v6, outcome, record.is_reproducible(packet.ttl, packet.ttl))
}

/// The life of an entry with arbitrary contents.
fn flow<A: Copy + Into<IpAddr>>(
    key: FlowKey<A>,
    mut entry: Entry<A>,
    packet: Arrival,
    [epoch, now]: [u32; 2],
) -> impl Debug {
    let ends: [IpAddr; 2] = [key.source.into(), key.destination.into()];
    let before = entry.state(epoch, now);
    let step = entry.arrive(packet, epoch, now, || epoch.is_multiple_of(2));
    entry.leave_queue(packet.length);
    entry.queue();
    entry.confirm(packet.length, epoch, now);
    let is_far = entry.is_far(packet.length, epoch);
    entry.suspend();
    entry.bar(now);
    assert!(entry.is_barred(now) || now == 0, "an entry that was barred is not");
    entry.begin(packet, epoch, now);
    (ends.map(|end| end.is_ipv4()), before, step, is_far, entry.state(epoch, now))
}
