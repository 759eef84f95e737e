//! Traffic control: the rate at which a link sends, and what happens to packets that it receives
//! (tc(8), linux/pkt_sched.h, linux/pkt_cls.h).

use nix::errno::Errno;
use rtnetlink::packet_core::{NLM_F_EXCL, NLM_F_REPLACE};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use super::error::RouteError;
use super::link::Link;
use super::transport::{Message, Verb};
use super::{RouteSocket, wire};
use crate::mac::Mac;

/// One tick of the scheduler's clock in nanoseconds, `PSCHED_TICKS2NS(1)` of `net/pkt_sched.h`.
const TICK: u128 = 64;

/// Microseconds that a packet which the kernel put together (GSO, GRO) may take at the rate; a longer one is split,
/// so that packets of other flows get between.
const LONGEST_PACKET_US: u64 = 2_000;
/// The length from which on the kernel puts no packets together, but for BIG TCP.
const LARGEST_PACKET: u64 = 65_536;
/// Microseconds that a packet waits in a queue without fair queueing. Half of it costs a TCP connection 7 % of the rate.
const WAIT_US: u64 = 10_000;
/// Microseconds that codel lets packets wait, as it has it itself.
const TARGET_US: u64 = 5_000;
/// The least that a queue without fair queueing holds: packets of the link's where longer ones are split, else bytes
/// that are more than a packet of BIG TCP.
const LEAST_PACKETS: u64 = 8;
const LEAST_BYTES: u64 = 600_000;
/// Beyond the length of packets that the link says: its header, VLAN tags.
const HEADERS: u64 = 32;

/// A queue that sends at a rate, with bursts (tc-tbf(8)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// Bytes in a second.
    pub rate: u64,
    /// How long a burst lasts at that rate, in ticks of 64 ns.
    pub burst_ticks: u32,
    /// How many bytes may wait.
    pub limit: u32,
}

impl TokenBucket {
    /// A queue that sends `rate` bytes in a second, `burst` bytes at once, and keeps those that need not wait
    /// longer than `latency_us` microseconds. What does not fit the kernel's 32 bits is as large as it can be.
    #[must_use]
    pub fn new(rate: u64, burst: u32, latency_us: u64) -> Self {
        let clamp = |value: u128| u32::try_from(value).unwrap_or(u32::MAX);
        let nanoseconds = u128::from(burst) * 1_000_000_000 / u128::from(rate.max(1));
        let waiting = u128::from(rate) * u128::from(latency_us) / 1_000_000;
        Self { rate, burst_ticks: clamp(nanoseconds / TICK), limit: clamp(waiting + u128::from(burst)) }
    }

    /// The bytes that a packet may have on a link with this MTU; a longer one is split. None if packets need no
    /// splitting.
    fn longest_packet(&self, mtu: u32) -> Option<u32> {
        let bytes = u128::from(self.rate) * u128::from(LONGEST_PACKET_US) / 1_000_000;
        let bytes = u64::try_from(bytes).ok()?.max(u64::from(mtu) + HEADERS);
        u32::try_from(bytes).ok().filter(|_| bytes < LARGEST_PACKET)
    }

    /// The bytes that wait where the kernel has no fair queueing.
    fn waiting(&self, mtu: u32) -> u32 {
        let least = match self.longest_packet(mtu) {
            Some(_) => LEAST_PACKETS * (u64::from(mtu) + HEADERS),
            None => LEAST_BYTES,
        };
        let bytes = u128::from(self.rate) * u128::from(WAIT_US) / 1_000_000;
        u32::try_from(bytes.max(u128::from(least))).unwrap_or(u32::MAX)
    }

    /// Microseconds that codel lets packets wait: two of the link's, or it would drop what cannot go sooner.
    fn target_us(&self, mtu: u32) -> u32 {
        let two = 2 * (u64::from(mtu) + HEADERS) * 1_000_000 / self.rate.max(1);
        u32::try_from(two.max(TARGET_US)).unwrap_or(u32::MAX)
    }

    /// `struct tc_tbf_qopt`, and the rate by itself where it has no room in there.
    fn options(&self, mtu: u32) -> Attributes {
        /// `TC_LINKLAYER_ETHERNET`: no table of transmission times is needed.
        const ETHERNET: u8 = 1;
        let rate = u32::try_from(self.rate).unwrap_or(u32::MAX);
        // struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate
        let mut parameters = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
        parameters.extend(rate.to_ne_bytes());
        // tbf splits what is longer than the bucket of its peak rate: one that is no limit.
        let longest = self.longest_packet(mtu);
        let peak = if longest.is_some() { u32::MAX } else { 0 };
        parameters.extend([0, ETHERNET, 0, 0, 0, 0, 0, 0]);
        parameters.extend(peak.to_ne_bytes());
        parameters.extend(self.limit.to_ne_bytes());
        parameters.extend(self.burst_ticks.to_ne_bytes());
        parameters.extend([0; 4]);
        let mut options = Attributes::default().with(TCA_TBF_PARMS, &parameters);
        if let Some(longest) = longest {
            options = options.with(TCA_TBF_PBURST, &longest.to_ne_bytes());
        }
        match u32::try_from(self.rate) {
            Ok(_) => options,
            Err(_) => options.with(TCA_TBF_RATE64, &self.rate.to_ne_bytes()),
        }
    }

    fn decode(options: &[u8]) -> Option<Self> {
        let parameters = find(options, TCA_TBF_PARMS)?;
        let number = |at: usize| parameters.get(at..).map_or(0, wire::u32_of);
        let large = find(options, TCA_TBF_RATE64).and_then(|value| value.first_chunk().copied());
        Some(Self {
            rate: large.map_or_else(|| u64::from(number(8)), u64::from_ne_bytes),
            limit: number(24),
            burst_ticks: number(28),
        })
    }
}

/// Attributes being written.
#[derive(Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        const NLATTR: usize = 4;
        let length = u16::try_from(NLATTR + value.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn text(self, kind: u16, value: &str) -> Self {
        self.with(kind, &[value.as_bytes(), &[0]].concat())
    }

    fn nested(self, kind: u16, inner: &Self) -> Self {
        self.with(kind, &inner.0)
    }
}

/// `struct tcmsg` of `linux/rtnetlink.h`, with what follows it.
struct Request<'a> {
    link: &'a Link,
    handle: u32,
    parent: u32,
    info: u32,
}

impl Request<'_> {
    fn message(&self, kind: u16, attributes: Attributes) -> Message {
        tc_message(kind, [self.link.index, self.handle, self.parent, self.info], attributes)
    }
}

/// `fields`: the link's number, handle, parent and info.
fn tc_message(kind: u16, fields: [u32; 4], attributes: Attributes) -> Message {
    // The family and its padding.
    let mut payload = vec![0; 4];
    for field in fields {
        payload.extend(field.to_ne_bytes());
    }
    payload.extend(attributes.0);
    Message::Bytes { kind, payload }
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
/// Of clsact: the hook for packets that come in.
const CLSACT_INGRESS: u32 = 0xffff_fff2;
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
/// Where the number of the link is in `struct tc_mirred`.
const MIRRED_LINK: usize = 24;

/// The handle of the queue, as the reference and most people call it.
const ROOT_HANDLE: u32 = 0x0001_0000;
/// Where tbf has its child.
const CHILD: u32 = ROOT_HANDLE | 1;
/// codel's own interval is so many targets.
const TARGETS: u32 = 20;
/// The place of our filter. The kernel counts down from here for those who say nothing: others that mean to
/// decide before it say a lower one.
const PREFERENCE: u32 = 0xc000;
/// `ETH_P_ALL`, in network order, below the preference.
const EVERY_PROTOCOL: u32 = 0x0003;

fn filter_info() -> u32 {
    (PREFERENCE << 16) | u32::from(u16::try_from(EVERY_PROTOCOL).unwrap_or_default().to_be())
}

fn find(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    wire::attributes(attributes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

impl RouteSocket {
    /// Makes an intermediate device: what is sent through it goes on as if it had come in where it was
    /// redirected from. It is up at once.
    ///
    /// # Errors
    /// [`RouteError::already_exists`] when the name is taken.
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

    /// Lets a link send at a rate. A queue that it has already gives way. What waits, waits in a fair queue
    /// (tc-fq_codel(8)), so that a flow below the limit does not wait behind one that fills it; where the kernel has
    /// none, in a short one.
    ///
    /// # Errors
    /// ENOENT when the kernel has no tbf.
    pub fn set_token_bucket(&self, link: &Link, bucket: &TokenBucket) -> Result<(), RouteError> {
        let root = Request { link, handle: ROOT_HANDLE, parent: TC_H_ROOT, info: 0 };
        self.set_queue(&root, "tbf", &bucket.options(link.mtu))?;
        // The kernel chooses the handle: with one of ours it would not replace a child of another kind.
        let child = Request { link, handle: 0, parent: CHILD, info: 0 };
        let target = bucket.target_us(link.mtu);
        let fair = Attributes::default()
            .with(TCA_FQ_CODEL_TARGET, &target.to_ne_bytes())
            .with(TCA_FQ_CODEL_INTERVAL, &target.saturating_mul(TARGETS).to_ne_bytes());
        match self.set_queue(&child, "fq_codel", &fair) {
            Err(error) if error.is_not_found() => {
                log::info!("{error}: its flows share one queue");
                // struct tc_fifo_qopt
                let short = Attributes(bucket.waiting(link.mtu).to_ne_bytes().to_vec());
                self.set_queue(&child, "bfifo", &short)
            }
            set => set,
        }
    }

    fn set_queue(&self, place: &Request<'_>, kind: &str, options: &Attributes) -> Result<(), RouteError> {
        let attributes = Attributes::default().text(TCA_KIND, kind).nested(TCA_OPTIONS, options);
        self.transport.run(
            Verb::CreateWith(NLM_F_REPLACE),
            place.message(RTM_NEWQDISC, attributes),
            format_args!("limit the rate of {} by {kind}", place.link.name),
        )
    }

    /// The rate that a link sends at; none if it has no such queue.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn token_bucket(&self, link: &Link) -> Result<Option<TokenBucket>, RouteError> {
        let found = self.queue(link, TC_H_ROOT)?;
        Ok(found.filter(|(kind, _)| kind == "tbf").and_then(|(_, options)| TokenBucket::decode(&options)))
    }

    /// Takes the queue of [`RouteSocket::set_token_bucket`] away.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] when there is none.
    pub fn delete_token_bucket(&self, link: &Link) -> Result<(), RouteError> {
        let request = Request { link, handle: ROOT_HANDLE, parent: TC_H_ROOT, info: 0 };
        let message = request.message(RTM_DELQDISC, Attributes::default());
        self.transport.run(Verb::Change, message, format_args!("delete the queue of {}", link.name))
    }

    /// Sends what comes in by a link to another one. Whatever else looks at packets that come in goes first.
    ///
    /// # Errors
    /// ENOENT when the kernel has no clsact, u32 or mirred.
    pub fn redirect_ingress(&self, link: &Link, to: &Link) -> Result<(), RouteError> {
        let parent = self.ingress_hook(link)?;
        let request = Request { link, handle: 0, parent, info: filter_info() };
        let attributes = Attributes::default().text(TCA_KIND, "u32").nested(TCA_OPTIONS, &redirection(to));
        self.delete_redirection(link)
            .or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })?;
        self.transport.run(
            Verb::CreateWith(NLM_F_EXCL),
            request.message(RTM_NEWTFILTER, attributes),
            format_args!("redirect what comes in by {} to {}", link.name, to.name),
        )
    }

    /// Takes the redirection of [`RouteSocket::redirect_ingress`] away.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] when there is none.
    pub fn delete_redirection(&self, link: &Link) -> Result<(), RouteError> {
        let action = format_args!("delete the redirection of {}", link.name);
        let Some(parent) = self.present_hook(link)? else {
            return Err(self.transport.not_found(action, Errno::ENOENT));
        };
        let request = Request { link, handle: 0, parent, info: filter_info() };
        self.transport.run(Verb::Change, request.message(RTM_DELTFILTER, Attributes::default()), action)
    }

    /// Numbers of the links that what comes in by a link is redirected to.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn redirections(&self, link: &Link) -> Result<Vec<u32>, RouteError> {
        let Some(parent) = self.present_hook(link)? else { return Ok(Vec::new()) };
        let request = Request { link, handle: 0, parent, info: 0 };
        let message = request.message(RTM_GETTFILTER, Attributes::default());
        let action = format_args!("list filters of {}", link.name);
        let found = self.transport.list(&message, action, |payload| {
            Ok(Some(redirected_to(payload.get(TCMSG..).unwrap_or_default())))
        })?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The number of the BPF program that looks at what comes in by a link, at this place among the filters (priority
    /// and handle) below clsact, by the link's number: one question. None if there is no such filter.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] when there is no such link.
    pub fn program_at(&self, link: u32, priority: u16, handle: u32) -> Result<Option<u32>, RouteError> {
        let info = (u32::from(priority) << 16) | filter_info() & 0xffff;
        let message = tc_message(RTM_GETTFILTER, [link, handle, CLSACT_INGRESS, info], Attributes::default());
        let answer = self.transport.ask(
            Verb::Get,
            message,
            format_args!("look for a program at link {link}"),
            |payload| {
                let attributes = payload.get(TCMSG..).ok_or("a filter without a header")?;
                let options = find(attributes, TCA_OPTIONS).unwrap_or_default();
                Ok(find(options, TCA_BPF_ID).map(wire::u32_of))
            },
        );
        match answer {
            // Neither the filter nor clsact is there.
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => Ok(None),
            answer => answer.map(Option::flatten),
        }
    }

    /// The hook for packets that come in: that of clsact, which eBPF programs have in common with others; or
    /// of the older ingress, where somebody has made that one.
    fn ingress_hook(&self, link: &Link) -> Result<u32, RouteError> {
        if let Some(parent) = self.present_hook(link)? {
            return Ok(parent);
        }
        let request = Request { link, handle: INGRESS_HANDLE, parent: TC_H_INGRESS, info: 0 };
        let message = request.message(RTM_NEWQDISC, Attributes::default().text(TCA_KIND, "clsact"));
        let made = self.transport.run(Verb::Create, message, format_args!("add clsact to {}", link.name));
        match (made, self.present_hook(link)?) {
            // Somebody else was faster.
            (Err(error), Some(parent)) if error.already_exists() => Ok(parent),
            (made, _) => made.map(|()| CLSACT_INGRESS),
        }
    }

    fn present_hook(&self, link: &Link) -> Result<Option<u32>, RouteError> {
        let found = self.queue(link, TC_H_INGRESS)?;
        Ok(found.map(|(kind, _)| if kind == "clsact" { CLSACT_INGRESS } else { INGRESS_HANDLE }))
    }

    /// Kind and options of a queue; none where there is none, or the one that every link has.
    fn queue(&self, link: &Link, parent: u32) -> Result<Option<(String, Vec<u8>)>, RouteError> {
        let request = Request { link, handle: 0, parent, info: 0 };
        let message = request.message(RTM_GETQDISC, Attributes::default());
        let action = format_args!("read the queue of {}", link.name);
        let answer = self.transport.ask(Verb::Echo, message, action, |payload| {
            let attributes = payload.get(TCMSG..).ok_or("a queue without a header")?;
            let kind = find(attributes, TCA_KIND).map(wire::text).unwrap_or_default();
            Ok((kind, find(attributes, TCA_OPTIONS).unwrap_or_default().to_vec()))
        });
        match answer {
            // The one that is built in is not told: with EINVAL, or, where one was deleted at the hook of
            // packets that come in, with no word (tc_get_qdisc in net/sched/sch_api.c).
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => Ok(None),
            answer => answer,
        }
    }
}

/// The options of a u32 filter that matches all packets and redirects them.
fn redirection(to: &Link) -> Attributes {
    const TC_U32_TERMINAL: u8 = 1;
    const TC_ACT_STOLEN: u32 = 4;
    const TCA_EGRESS_REDIR: u32 = 1;
    // struct tc_u32_sel with one struct tc_u32_key: no bit of the packet counts.
    let mut selector = vec![TC_U32_TERMINAL, 0, 1, 0];
    selector.resize(16 + 16, 0);
    // struct tc_mirred: index, capab, action, refcnt, bindcnt, eaction, ifindex
    let mirred: Vec<u8> = [0, 0, TC_ACT_STOLEN, 0, 0, TCA_EGRESS_REDIR, to.index]
        .into_iter()
        .flat_map(u32::to_ne_bytes)
        .collect();
    let options = Attributes::default().with(TCA_MIRRED_PARMS, &mirred);
    let action = Attributes::default().text(TCA_ACT_KIND, "mirred").nested(TCA_ACT_OPTIONS, &options);
    // The first of a list of actions.
    let actions = Attributes::default().nested(1, &action);
    Attributes::default().with(TCA_U32_SEL, &selector).nested(TCA_U32_ACT, &actions)
}

/// The links that a filter redirects to.
fn redirected_to(attributes: &[u8]) -> Vec<u32> {
    let options = find(attributes, TCA_OPTIONS).unwrap_or_default();
    let actions = find(options, TCA_U32_ACT).unwrap_or_default();
    let of_action = |action: &[u8]| {
        let options = find(action, TCA_ACT_OPTIONS)?;
        find(options, TCA_MIRRED_PARMS)?.get(MIRRED_LINK..).map(wire::u32_of)
    };
    wire::attributes(actions).filter_map(|(_, action)| of_action(action)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_reads_back_the_same() {
        for rate in [1, 1_000_000, u64::from(u32::MAX), 12_500_000_000] {
            let bucket = TokenBucket::new(rate, 125_000, 25_000);
            assert_eq!(TokenBucket::decode(&bucket.options(1500).0), Some(bucket), "{rate}");
        }
        assert_eq!(TokenBucket::decode(&[]), None);
    }

    /// As the reference computes them: for 1 MB/s and 125,000 bytes.
    #[test]
    fn the_numbers_are_the_kernels() {
        let bucket = TokenBucket::new(1_000_000, 125_000, 25_000);
        assert_eq!(bucket, TokenBucket { rate: 1_000_000, burst_ticks: 1_953_125, limit: 150_000 });
        let slow = TokenBucket::new(1, u32::MAX, 25_000);
        assert_eq!((slow.burst_ticks, slow.limit), (u32::MAX, u32::MAX));
    }

    #[test]
    fn a_packet_takes_two_milliseconds_at_most_unless_the_link_says_more() {
        let at = |rate| TokenBucket::new(rate, 1_000_000, 25_000);
        // 8 Mbit/s, 100 Mbit/s, 1 Gbit/s, and as slow as can be.
        let rows =
            [(1_000_000, Some(2000)), (12_500_000, Some(25_000)), (125_000_000, None), (1, Some(1532))];
        for (rate, longest) in rows {
            assert_eq!(at(rate).longest_packet(1500), longest, "{rate}");
            // The queue holds more than the longest packet: one that is larger never gets through.
            assert!(at(rate).waiting(1500) > longest.unwrap_or(512 * 1024), "{rate}");
            assert_eq!(
                find(&at(rate).options(1500).0, TCA_TBF_PBURST).is_some(),
                longest.is_some(),
                "{rate}"
            );
        }
        assert_eq!(at(1_000_000).longest_packet(9000), Some(9032));
        assert_eq!((at(12_500_000).target_us(1500), at(125_000).target_us(1500)), (5000, 24_512));
    }

    #[test]
    fn a_redirection_reads_back() {
        let mut all = Attributes::default().text(TCA_KIND, "u32");
        let mut link = crate::route::link::decode(&[0; 16]).unwrap();
        link.index = 77;
        all = all.nested(TCA_OPTIONS, &redirection(&link));
        assert_eq!(redirected_to(&all.0), [77]);
        for length in 0..all.0.len() {
            let _ = redirected_to(&all.0[..length]);
        }
    }

    #[test]
    fn attributes_are_padded() {
        let bytes = Attributes::default().text(1, "abcd").with(2, &[7]).0;
        let all: Vec<_> = wire::attributes(&bytes).collect();
        assert_eq!(all, [(1, b"abcd\0".as_slice()), (2, [7].as_slice())]);
        assert_eq!(bytes.len() % 4, 0);
    }
}
