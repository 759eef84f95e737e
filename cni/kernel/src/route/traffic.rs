// SPDX-License-Identifier: MIT OR Apache-2.0

//! Traffic control: limiting the rate of a link and redirecting what it receives (tc(8), linux/pkt_sched.h,
//! linux/pkt_cls.h).

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

/// Microseconds that an aggregated packet (GSO, GRO) may take at the rate; a longer one is split, so that
/// packets of other flows get between.
const LONGEST_PACKET_US: u64 = 2_000;
/// The length up to which the kernel aggregates packets, except for BIG TCP.
const LARGEST_PACKET: u64 = 65_536;
/// Microseconds that a packet waits in a queue without fair queueing. Half of it costs a TCP connection 7 %
/// of the rate.
const WAIT_US: u64 = 10_000;
/// codel's default target in microseconds.
const TARGET_US: u64 = 5_000;
/// The least that a queue without fair queueing holds: in packets of the link's MTU where longer ones are
/// split, else in bytes, more than one packet of BIG TCP.
const LEAST_PACKETS: u64 = 8;
const LEAST_BYTES: u64 = 600_000;
/// Bytes of a packet beyond the MTU: its link-layer header, VLAN tags.
const HEADERS: u64 = 32;

/// A hook of clsact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Packets that a link receives.
    Ingress,
    /// Packets that it sends.
    Egress,
}

/// A filter at a hook.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Filter {
    /// The lowest is asked first.
    pub preference: u16,
    /// `bpf`, `u32`, `flower`, …
    pub kind: String,
}

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
    /// A queue that sends `rate` bytes per second, `burst` bytes at once, and drops packets that would wait
    /// longer than `latency_us` microseconds. Values that exceed the kernel's 32 bits are clamped.
    #[must_use]
    pub fn new(rate: u64, burst: u32, latency_us: u64) -> Self {
        let clamp = |value: u128| u32::try_from(value).unwrap_or(u32::MAX);
        let nanoseconds = u128::from(burst) * 1_000_000_000 / u128::from(rate.max(1));
        let waiting = u128::from(rate) * u128::from(latency_us) / 1_000_000;
        Self { rate, burst_ticks: clamp(nanoseconds / TICK), limit: clamp(waiting + u128::from(burst)) }
    }

    /// The longest packet that is not split, in bytes, on a link with this MTU. None if no packet needs
    /// splitting.
    fn longest_packet(&self, mtu: u32) -> Option<u32> {
        let bytes = u128::from(self.rate) * u128::from(LONGEST_PACKET_US) / 1_000_000;
        let bytes = u64::try_from(bytes).ok()?.max(u64::from(mtu) + HEADERS);
        u32::try_from(bytes).ok().filter(|_| bytes < LARGEST_PACKET)
    }

    /// Length in bytes of the queue where the kernel has no fair queueing.
    fn waiting(&self, mtu: u32) -> u32 {
        let least = match self.longest_packet(mtu) {
            Some(_) => LEAST_PACKETS * (u64::from(mtu) + HEADERS),
            None => LEAST_BYTES,
        };
        let bytes = u128::from(self.rate) * u128::from(WAIT_US) / 1_000_000;
        u32::try_from(bytes.max(u128::from(least))).unwrap_or(u32::MAX)
    }

    /// codel's target in microseconds: at least the time of two packets of the link's MTU, as codel would
    /// otherwise drop packets that cannot be sent sooner.
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
        // tbf splits packets longer than the bucket of the peak rate. This peak rate is no limit.
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

    fn decode(options: &[u8]) -> Option<Self> {
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
struct Request {
    link: u32,
    handle: u32,
    parent: u32,
    info: u32,
}

impl Request {
    fn message(&self, kind: u16) -> Message {
        let mut message = Message::new(kind, 0);
        // The family and its padding.
        message.raw(&[0; 4]);
        for field in [self.link, self.handle, self.parent, self.info] {
            message.raw(&field.to_ne_bytes());
        }
        message
    }

    /// With the kind of a queue or filter, and its options.
    fn message_with(&self, kind: u16, name: &str, options: &[u8]) -> Message {
        let mut message = self.message(kind);
        message.text(TCA_KIND, name).attr(TCA_OPTIONS, options);
        message
    }
}

/// Length of `struct tcmsg`.
const TCMSG: usize = 20;

// linux/rtnetlink.h
const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
// linux/pkt_sched.h
const TC_H_ROOT: u32 = 0xffff_ffff;
/// `TC_H_INGRESS` and `TC_H_CLSACT`: a link has one of them at most.
const TC_H_INGRESS: u32 = 0xffff_fff1;
const INGRESS_HANDLE: u32 = 0xffff_0000;
/// The ingress hook of clsact.
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const CLSACT_EGRESS: u32 = 0xffff_fff3;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_PBURST: u16 = 7;
const TCA_FQ_CODEL_TARGET: u16 = 1;
const TCA_FQ_CODEL_INTERVAL: u16 = 3;
// linux/pkt_cls.h
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TCA_BPF_ID: u16 = 11;
/// Offset of the link's index in `struct tc_mirred`.
const MIRRED_LINK: usize = 24;

/// Handle of the root queue, the same as that of the reference plugins.
const ROOT_HANDLE: u32 = 0x0001_0000;
/// Parent of tbf's child.
const CHILD: u32 = ROOT_HANDLE | 1;
/// codel's interval in targets, by its default.
const TARGETS: u32 = 20;
/// Preference of our filter. The kernel counts down from here for filters without one: a filter that must
/// decide before ours has a lower preference.
const PREFERENCE: u32 = 0xc000;
/// `ETH_P_ALL`, in network byte order in the lower half of `tcm_info`.
const EVERY_PROTOCOL: u32 = 0x0003;

fn filter_info() -> u32 {
    (PREFERENCE << 16) | u32::from(u16::try_from(EVERY_PROTOCOL).unwrap_or_default().to_be())
}

impl RouteSocket {
    /// Creates an ifb, which is up: packets sent through it continue as if received by the link from which
    /// they were redirected.
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

    /// Limits the rate at which a link sends; replaces its queue. Waiting packets are queued fairly
    /// (tc-fq_codel(8)), so that a flow below the limit does not wait behind one that fills it; without
    /// fq_codel in the kernel, in a short queue.
    ///
    /// # Errors
    /// ENOENT if the kernel has no tbf.
    pub fn set_token_bucket(&self, link: &Link, bucket: &TokenBucket) -> Result<(), RouteError> {
        let root = Request { link: link.index, handle: ROOT_HANDLE, parent: TC_H_ROOT, info: 0 };
        self.set_queue(link, &root, "tbf", &bucket.options(link.mtu))?;
        // The kernel chooses the handle: with a handle it would not replace a child of another kind.
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

    /// The limit of a link's rate; none if there is none.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot read the queue.
    pub fn token_bucket(&self, link: &Link) -> Result<Option<TokenBucket>, RouteError> {
        let found = self.queue(link, TC_H_ROOT)?;
        Ok(found.filter(|(kind, _)| kind == "tbf").and_then(|(_, options)| TokenBucket::decode(&options)))
    }

    /// Removes the limit of a link's rate.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if there is none.
    pub fn delete_token_bucket(&self, link: &Link) -> Result<(), RouteError> {
        let request = Request { link: link.index, handle: ROOT_HANDLE, parent: TC_H_ROOT, info: 0 };
        let message = request.message(RTM_DELQDISC);
        self.transport.run(Verb::Change, message, format_args!("delete the queue of {}", link.name))
    }

    /// Redirects the packets that a link receives to another link, after all other filters.
    ///
    /// # Errors
    /// ENOENT if the kernel has no clsact, u32 or mirred.
    pub fn redirect_ingress(&self, link: &Link, to: &Link) -> Result<(), RouteError> {
        let parent = self.ingress_hook(link)?;
        let request = Request { link: link.index, handle: 0, parent, info: filter_info() };
        self.delete_redirection(link)
            .or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })?;
        self.transport.run(
            Verb::CreateWith(flag::EXCLUSIVE),
            request.message_with(RTM_NEWTFILTER, "u32", &redirection(to)),
            format_args!("redirect ingress of {} to {}", link.name, to.name),
        )
    }

    /// Removes the redirection of [`RouteSocket::redirect_ingress`].
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if there is none.
    pub fn delete_redirection(&self, link: &Link) -> Result<(), RouteError> {
        let action = format_args!("delete the redirection of {}", link.name);
        let Some(parent) = self.existing_ingress_hook(link)? else {
            return Err(self.transport.not_found(action, Errno::ENOENT));
        };
        let request = Request { link: link.index, handle: 0, parent, info: filter_info() };
        self.transport.run(Verb::Change, request.message(RTM_DELTFILTER), action)
    }

    /// Indices of the links to which a link's received packets are redirected.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list the filters.
    pub fn redirections(&self, link: &Link) -> Result<Vec<u32>, RouteError> {
        let Some(parent) = self.existing_ingress_hook(link)? else { return Ok(Vec::new()) };
        let request = Request { link: link.index, handle: 0, parent, info: 0 };
        let message = request.message(RTM_GETTFILTER);
        let action = format_args!("list filters of {}", link.name);
        let found = self.transport.list(message, action, |payload| {
            Ok(Some(redirected_to(payload.get(TCMSG..).unwrap_or_default())))
        })?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The id of the BPF program at clsact's ingress hook of the link with index `link`, in the filter of
    /// this priority and handle; none if there is no such filter. Takes one request.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if there is no such link.
    pub fn program_at(&self, link: u32, priority: u16, handle: u32) -> Result<Option<u32>, RouteError> {
        let info = (u32::from(priority) << 16) | filter_info() & 0xffff;
        let request = Request { link, handle, parent: CLSACT_INGRESS, info };
        let program = self.transport.ask(
            Verb::Get,
            request.message(RTM_GETTFILTER),
            format_args!("read the program of link {link}"),
            |payload| {
                let attributes = payload.get(TCMSG..).ok_or(ReplyError::NoHeader("a filter"))?;
                let options = find(attributes, TCA_OPTIONS).unwrap_or_default();
                Ok(find(options, TCA_BPF_ID).map(message::u32_of))
            },
        );
        match program {
            // The filter is missing, or clsact is.
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => Ok(None),
            other => other.map(Option::flatten),
        }
    }

    /// The filters at a hook of clsact of the link with index `link`, in their order; none without clsact.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list them.
    pub fn filters(&self, link: u32, hook: Hook) -> Result<Vec<Filter>, RouteError> {
        let parent = match hook {
            Hook::Ingress => CLSACT_INGRESS,
            Hook::Egress => CLSACT_EGRESS,
        };
        let request = Request { link, handle: 0, parent, info: 0 };
        let message = request.message(RTM_GETTFILTER);
        let action = format_args!("list filters of link {link}");
        let mut found = self.transport.list(message, action, |payload| Ok(Some(filter(payload)?)))?;
        // The kernel lists each element of a filter, such as a hash table of u32.
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// The hook for packets received: that of clsact, which is shared with BPF programs, or of the older
    /// `ingress` if the link has that one. Adds clsact if it has none.
    fn ingress_hook(&self, link: &Link) -> Result<u32, RouteError> {
        if let Some(parent) = self.existing_ingress_hook(link)? {
            return Ok(parent);
        }
        let request = Request { link: link.index, handle: INGRESS_HANDLE, parent: TC_H_INGRESS, info: 0 };
        let mut message = request.message(RTM_NEWQDISC);
        message.text(TCA_KIND, "clsact");
        let added = self.transport.run(Verb::Create, message, format_args!("add clsact to {}", link.name));
        match (added, self.existing_ingress_hook(link)?) {
            // Another process added it.
            (Err(error), Some(parent)) if error.already_exists() => Ok(parent),
            (added, _) => added.map(|()| CLSACT_INGRESS),
        }
    }

    fn existing_ingress_hook(&self, link: &Link) -> Result<Option<u32>, RouteError> {
        let found = self.queue(link, TC_H_INGRESS)?;
        Ok(found.map(|(kind, _)| if kind == "clsact" { CLSACT_INGRESS } else { INGRESS_HANDLE }))
    }

    /// Kind and options of a queue; none if there is only the built-in one.
    fn queue(&self, link: &Link, parent: u32) -> Result<Option<(String, Vec<u8>)>, RouteError> {
        let request = Request { link: link.index, handle: 0, parent, info: 0 };
        let message = request.message(RTM_GETQDISC);
        let action = format_args!("read the queue of {}", link.name);
        let queue = self.transport.ask(Verb::Echo, message, action, |payload| {
            let attributes = payload.get(TCMSG..).ok_or(ReplyError::NoHeader("a queue"))?;
            let kind = find(attributes, TCA_KIND).map(message::text).unwrap_or_default();
            Ok((kind, find(attributes, TCA_OPTIONS).unwrap_or_default().to_vec()))
        });
        match queue {
            // The kernel does not send the built-in queue: the error is EINVAL, or at ingress, after another
            // queue was deleted, there is no reply (tc_get_qdisc in net/sched/sch_api.c).
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => Ok(None),
            other => other,
        }
    }
}

/// The options of a u32 filter that matches all packets and redirects them.
fn redirection(to: &Link) -> Vec<u8> {
    const TC_U32_TERMINAL: u8 = 1;
    const TC_ACT_STOLEN: u32 = 4;
    const TCA_EGRESS_REDIR: u32 = 1;
    // struct tc_u32_sel with one struct tc_u32_key: the mask is zero.
    let mut selector = vec![TC_U32_TERMINAL, 0, 1, 0];
    selector.resize(16 + 16, 0);
    // struct tc_mirred: index, capab, action, refcnt, bindcnt, eaction, ifindex
    let mirred: Vec<u8> = [0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, to.index]
        .into_iter()
        .flat_map(u32::to_ne_bytes)
        .collect();
    Attributes::encode(|options| {
        options.attr(TCA_U32_SEL, &selector).nest(TCA_U32_ACT, |actions| {
            // The first in a list of actions.
            actions.nest(1, |action| {
                action.text(TCA_ACT_KIND, "mirred").nest(TCA_ACT_OPTIONS, |options| {
                    options.attr(TCA_MIRRED_PARMS, &mirred);
                });
            });
        });
    })
}

/// The filter in a message: the preference is in the upper half of `tcm_info`.
fn filter(payload: &[u8]) -> Result<Filter, ReplyError> {
    let (header, attributes) = payload.split_at_checked(TCMSG).ok_or(ReplyError::NoHeader("a filter"))?;
    let preference = u16::try_from(message::u32_of(&header[TCMSG - 4..]) >> 16).unwrap_or_default();
    Ok(Filter { preference, kind: find(attributes, TCA_KIND).map(message::text).unwrap_or_default() })
}

/// The links that a filter redirects to.
fn redirected_to(attributes: &[u8]) -> Vec<u32> {
    let options = find(attributes, TCA_OPTIONS).unwrap_or_default();
    let actions = find(options, TCA_U32_ACT).unwrap_or_default();
    let of_action = |action: &[u8]| {
        let options = find(action, TCA_ACT_OPTIONS)?;
        find(options, TCA_MIRRED_PARMS)?.get(MIRRED_LINK..).map(message::u32_of)
    };
    message::attributes(actions).filter_map(|(_, action)| of_action(action)).collect()
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

    /// As the reference plugin computes them, for 1 MB/s and 125,000 bytes.
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
            // The queue holds more than the longest packet: a longer one would never be sent.
            assert!(at(rate).waiting(1500) > longest.unwrap_or(512 * 1024), "{rate}");
            assert_eq!(find(&at(rate).options(1500), TCA_TBF_PBURST).is_some(), longest.is_some(), "{rate}");
        }
        assert_eq!(at(1_000_000).longest_packet(9000), Some(9032));
        assert_eq!((at(12_500_000).target_us(1500), at(125_000).target_us(1500)), (5000, 24_512));
    }

    #[test]
    fn an_encoded_redirection_decodes_to_the_same() {
        let mut link = crate::route::link::decode(&[0; 16]).unwrap();
        link.index = 77;
        let request = Request { link: 1, handle: 0, parent: 0, info: 0 };
        let message = request.message_with(RTM_NEWTFILTER, "u32", &redirection(&link));
        let all = &message.payload()[TCMSG..];
        assert_eq!(redirected_to(all), [77]);
        for length in 0..all.len() {
            let _ = redirected_to(&all[..length]);
        }
    }

    #[test]
    fn a_filters_preference_is_the_upper_half() {
        let mut payload = vec![0; TCMSG - 4];
        payload.extend((21_325_u32 << 16 | 0x0300).to_ne_bytes());
        payload.extend(Attributes::encode(|all| {
            all.text(TCA_KIND, "bpf");
        }));
        assert_eq!(filter(&payload).unwrap(), Filter { preference: 21_325, kind: "bpf".to_owned() });
        assert!(filter(&payload[..TCMSG - 1]).is_err());
    }
}
