// SPDX-License-Identifier: MIT OR Apache-2.0

//! Traffic control: limiting the rate of a link (tc(8), linux/pkt_sched.h).

use cni_netlink::message::{self, find, flag};
use cni_netlink::{Attributes, Message};
use nix::errno::Errno;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use super::RouteSocket;
use super::error::{ReplyError, RouteError};
use super::link::Link;
use super::transport::Verb;
use crate::mac::Mac;

/// One tick of the scheduler's clock in nanoseconds, `PSCHED_TICKS2NS(1)` (`net/pkt_sched.h`).
const TICK: u128 = 64;

/// How many microseconds an aggregated packet (GSO, GRO) may take at the rate. A longer packet is split, so that
/// packets of other flows can be sent in between.
const LONGEST_PACKET_US: u64 = 2_000;
/// The length up to which the kernel aggregates packets, apart from BIG TCP.
const LARGEST_PACKET: u64 = 65_536;
/// How many microseconds a packet waits in a queue without fair queueing. With half of this, a TCP connection loses 7
/// % of the rate.
const WAIT_US: u64 = 10_000;
/// codel's default target in microseconds.
const TARGET_US: u64 = 5_000;
/// What a queue without fair queueing holds at least: this many packets of the link's MTU if longer packets are
/// split, or else this many bytes, which is more than one packet of BIG TCP.
const LEAST_PACKETS: u64 = 8;
const LEAST_BYTES: u64 = 600_000;
/// How many bytes a packet has beyond the MTU, for its link-layer header and VLAN tags.
const HEADERS: u64 = 32;

/// A token bucket filter: a queue that sends at a rate, with bursts (tc-tbf(8)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// Rate in bytes per second.
    pub rate: u64,
    /// Duration of a burst at that rate, in ticks of 64 ns.
    pub burst_ticks: u32,
    /// Length of the queue in bytes.
    pub limit: u32,
}

impl TokenBucket {
    /// A queue that sends `rate` bytes per second, up to `burst` bytes at once, and drops packets that would wait
    /// longer than `latency_us` microseconds. Values beyond the kernel's 32 bits are clamped.
    #[must_use]
    pub fn new(rate: u64, burst: u32, latency_us: u64) -> Self {
        let clamp = |value: u128| u32::try_from(value).unwrap_or(u32::MAX);
        let nanoseconds = u128::from(burst) * 1_000_000_000 / u128::from(rate.max(1));
        let waiting = u128::from(rate) * u128::from(latency_us) / 1_000_000;
        Self { rate, burst_ticks: clamp(nanoseconds / TICK), limit: clamp(waiting + u128::from(burst)) }
    }

    /// The longest packet that is not split, in bytes, on a link with this MTU. None if no packet has to be split.
    fn longest_packet(&self, mtu: u32) -> Option<u32> {
        let bytes = u128::from(self.rate) * u128::from(LONGEST_PACKET_US) / 1_000_000;
        let bytes = u64::try_from(bytes).ok()?.max(u64::from(mtu) + HEADERS);
        u32::try_from(bytes).ok().filter(|_| bytes < LARGEST_PACKET)
    }

    /// Length of the queue in bytes, if the kernel has no fair queueing.
    fn waiting(&self, mtu: u32) -> u32 {
        let least = match self.longest_packet(mtu) {
            Some(_) => LEAST_PACKETS * (u64::from(mtu) + HEADERS),
            None => LEAST_BYTES,
        };
        let bytes = u128::from(self.rate) * u128::from(WAIT_US) / 1_000_000;
        u32::try_from(bytes.max(u128::from(least))).unwrap_or(u32::MAX)
    }

    /// codel's target in microseconds. This is at least the time for two packets of the link's MTU, because codel
    /// would otherwise drop packets that cannot be sent any sooner.
    fn target_us(&self, mtu: u32) -> u32 {
        let two = 2 * (u64::from(mtu) + HEADERS) * 1_000_000 / self.rate.max(1);
        u32::try_from(two.max(TARGET_US)).unwrap_or(u32::MAX)
    }

    /// `struct tc_tbf_qopt`, and a separate attribute for a rate beyond 32 bits.
    fn options(&self, mtu: u32) -> Vec<u8> {
        /// `TC_LINKLAYER_ETHERNET`: no table of transmission times is needed.
        const ETHERNET: u8 = 1;
        let rate = u32::try_from(self.rate).unwrap_or(u32::MAX);
        // struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate
        let mut parameters = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
        parameters.extend(rate.to_ne_bytes());
        // tbf splits packets that are longer than the bucket of the peak rate. The peak rate itself limits nothing
        // here.
        let longest = self.longest_packet(mtu);
        let peak = if longest.is_some() { u32::MAX } else { 0 };
        parameters.extend([0, ETHERNET, 0, 0, 0, 0, 0, 0]);
        parameters.extend(peak.to_ne_bytes());
        parameters.extend(self.limit.to_ne_bytes());
        parameters.extend(self.burst_ticks.to_ne_bytes());
        parameters.extend([0; 4]);
        Attributes::encode(|options| {
            options.attr(TCA_TBF_PARMS, &parameters);
            if let Some(longest) = longest {
                options.u32(TCA_TBF_PBURST, longest);
            }
            if u32::try_from(self.rate).is_err() {
                options.attr(TCA_TBF_RATE64, &self.rate.to_ne_bytes());
            }
        })
    }

    pub(super) fn decode(options: &[u8]) -> Option<Self> {
        let parameters = find(options, TCA_TBF_PARMS)?;
        let number = |at: usize| parameters.get(at..).map_or(0, message::u32_of);
        let large = find(options, TCA_TBF_RATE64).and_then(|value| value.first_chunk().copied());
        Some(Self {
            rate: large.map_or_else(|| u64::from(number(8)), u64::from_ne_bytes),
            limit: number(24),
            burst_ticks: number(28),
        })
    }
}

/// `struct tcmsg` (`linux/rtnetlink.h`).
pub(super) struct Request {
    pub(super) link: u32,
    pub(super) handle: u32,
    pub(super) parent: u32,
    pub(super) info: u32,
}

impl Request {
    pub(super) fn message(&self, kind: u16) -> Message {
        let mut message = Message::new(kind, 0);
        // The family and its padding.
        message.raw(&[0; 4]);
        for field in [self.link, self.handle, self.parent, self.info] {
            message.raw(&field.to_ne_bytes());
        }
        message
    }

    /// The message with the kind of a queue or filter, and its options.
    pub(super) fn message_with(&self, kind: u16, name: &str, options: &[u8]) -> Message {
        let mut message = self.message(kind);
        message.text(TCA_KIND, name).attr(TCA_OPTIONS, options);
        message
    }
}

/// Length of `struct tcmsg`.
pub(super) const TCMSG: usize = 20;

// linux/rtnetlink.h
pub(super) const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_GETQDISC: u16 = 38;
pub(super) const TCA_KIND: u16 = 1;
pub(super) const TCA_OPTIONS: u16 = 2;
// linux/pkt_sched.h
const TC_H_ROOT: u32 = 0xffff_ffff;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_PBURST: u16 = 7;
const TCA_FQ_CODEL_TARGET: u16 = 1;
const TCA_FQ_CODEL_INTERVAL: u16 = 3;

/// Handle of the root queue, which is the same as that of the reference plugins.
const ROOT_HANDLE: u32 = 0x0001_0000;
/// The parent of the queue inside tbf.
const CHILD: u32 = ROOT_HANDLE | 1;
/// codel's default interval, as a multiple of its target.
const TARGETS: u32 = 20;
impl RouteSocket {
    /// Creates an ifb, which is up. Packets that are sent through it continue as if they had been received by the
    /// link from which they were redirected.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] if the name is taken.
    pub fn create_ifb(&self, name: &str, mac: Mac, mtu: u32) -> Result<(), RouteError> {
        let mut message = LinkMessage::default();
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::Address(mac.0.to_vec()));
        message.attributes.push(LinkAttribute::Mtu(mtu));
        message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Ifb)]));
        let action = format_args!("create ifb {name}");
        self.transport.run(Verb::Create, RouteNetlinkMessage::NewLink(message), action)
    }

    /// Limits the rate at which a link sends, replacing its queue. Waiting packets are queued fairly
    /// (tc-fq_codel(8)), so that a flow below the limit does not wait behind a flow that fills the queue. If the
    /// kernel has no fq_codel, packets wait in a short queue.
    ///
    /// # Errors
    /// ENOENT if the kernel has no tbf.
    pub fn set_token_bucket(&self, link: &Link, bucket: &TokenBucket) -> Result<(), RouteError> {
        let root = Request { link: link.index, handle: ROOT_HANDLE, parent: TC_H_ROOT, info: 0 };
        let options = bucket.options(link.mtu);
        match self.set_queue(link, &root, "tbf", &options) {
            // Another program's queue of a different kind has our handle, and the kernel does not replace such a
            // queue.
            Err(error) if error.errno() == Some(Errno::EINVAL) && self.token_bucket(link)?.is_none() => {
                self.delete_token_bucket(link)?;
                self.set_queue(link, &root, "tbf", &options)?;
            }
            set => set?,
        }
        // The kernel chooses the handle, because if one is given, it does not replace a child of another kind.
        let child = Request { link: link.index, handle: 0, parent: CHILD, info: 0 };
        let target = bucket.target_us(link.mtu);
        let fair = Attributes::encode(|options| {
            options.u32(TCA_FQ_CODEL_TARGET, target);
            options.u32(TCA_FQ_CODEL_INTERVAL, target.saturating_mul(TARGETS));
        });
        match self.set_queue(link, &child, "fq_codel", &fair) {
            Err(error) if error.is_not_found() => {
                log::info!("{error}: its flows share one queue");
                // struct tc_fifo_qopt
                let short = bucket.waiting(link.mtu).to_ne_bytes();
                self.set_queue(link, &child, "bfifo", &short)
            }
            set => set,
        }
    }

    fn set_queue(
        &self,
        link: &Link,
        request: &Request,
        kind: &str,
        options: &[u8],
    ) -> Result<(), RouteError> {
        self.transport.run(
            Verb::CreateWith(flag::REPLACE),
            request.message_with(RTM_NEWQDISC, kind, options),
            format_args!("limit the rate of {} by {kind}", link.name),
        )
    }

    /// The rate limit of a link. None if there is no limit.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot read the queue.
    pub fn token_bucket(&self, link: &Link) -> Result<Option<TokenBucket>, RouteError> {
        let found = self.queue(link, TC_H_ROOT)?;
        Ok(found.filter(|(kind, _)| kind == "tbf").and_then(|(_, options)| TokenBucket::decode(&options)))
    }

    /// Removes the rate limit of a link.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if there is none.
    pub fn delete_token_bucket(&self, link: &Link) -> Result<(), RouteError> {
        let request = Request { link: link.index, handle: ROOT_HANDLE, parent: TC_H_ROOT, info: 0 };
        let message = request.message(RTM_DELQDISC);
        self.transport.run(Verb::Change, message, format_args!("delete the queue of {}", link.name))
    }

    /// Kind and options of a queue. None if there is only the built-in one.
    pub(super) fn queue(&self, link: &Link, parent: u32) -> Result<Option<(String, Vec<u8>)>, RouteError> {
        let request = Request { link: link.index, handle: 0, parent, info: 0 };
        let message = request.message(RTM_GETQDISC);
        let action = format_args!("read the queue of {}", link.name);
        let queue = self.transport.ask(Verb::Echo, message, action, |payload| {
            let attributes = payload.get(TCMSG..).ok_or(ReplyError::NoHeader("a queue"))?;
            let kind = find(attributes, TCA_KIND).map(message::text).unwrap_or_default();
            Ok((kind, find(attributes, TCA_OPTIONS).unwrap_or_default().to_vec()))
        });
        match queue {
            // The kernel does not report the built-in queue. The error is EINVAL, or at ingress, after another queue
            // was deleted, there is no reply at all (tc_get_qdisc in net/sched/sch_api.c).
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => Ok(None),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_bucket_decodes_to_the_same() {
        for rate in [1, 1_000_000, u64::from(u32::MAX), 12_500_000_000] {
            let bucket = TokenBucket::new(rate, 125_000, 25_000);
            assert_eq!(TokenBucket::decode(&bucket.options(1500)), Some(bucket), "{rate}");
        }
        assert_eq!(TokenBucket::decode(&[]), None);
    }

    /// Compares with the reference plugin's values for 1 MB/s and 125,000 bytes.
    #[test]
    fn burst_and_limit_are_in_the_kernels_units() {
        let bucket = TokenBucket::new(1_000_000, 125_000, 25_000);
        assert_eq!(bucket, TokenBucket { rate: 1_000_000, burst_ticks: 1_953_125, limit: 150_000 });
        let slow = TokenBucket::new(1, u32::MAX, 25_000);
        assert_eq!((slow.burst_ticks, slow.limit), (u32::MAX, u32::MAX));
    }

    #[test]
    fn a_packet_takes_two_milliseconds_at_most_unless_the_mtu_needs_more() {
        let at = |rate| TokenBucket::new(rate, 1_000_000, 25_000);
        // 8 Mbit/s, 100 Mbit/s, 1 Gbit/s, and the lowest rate.
        let rows =
            [(1_000_000, Some(2000)), (12_500_000, Some(25_000)), (125_000_000, None), (1, Some(1532))];
        for (rate, longest) in rows {
            assert_eq!(at(rate).longest_packet(1500), longest, "{rate}");
            // The queue must hold more than the longest packet, because a longer one would never be sent.
            assert!(at(rate).waiting(1500) > longest.unwrap_or(512 * 1024), "{rate}");
            assert_eq!(find(&at(rate).options(1500), TCA_TBF_PBURST).is_some(), longest.is_some(), "{rate}");
        }
        assert_eq!(at(1_000_000).longest_packet(9000), Some(9032));
        assert_eq!((at(12_500_000).target_us(1500), at(125_000).target_us(1500)), (5000, 24_512));
    }
}
