// SPDX-License-Identifier: MIT OR Apache-2.0

//! Traffic control: the filters at a link's hooks, and redirecting the packets that a link receives (tc(8),
//! linux/pkt_cls.h).

use std::fmt;

use cni_netlink::Attributes;
use cni_netlink::message::{self, find, flag};
use nix::errno::Errno;

use super::RouteSocket;
use super::error::{ReplyError, RouteError};
use super::link::Link;
use super::traffic::{RTM_NEWQDISC, Request, TCA_KIND, TCA_OPTIONS, TCMSG};
use super::transport::Verb;

/// A hook of clsact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Packets that a link receives.
    Ingress,
    /// Packets that a link sends.
    Egress,
}

/// A filter at a hook.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Filter {
    /// The preference. The kernel starts with the filter that has the lowest one.
    pub preference: u16,
    /// `bpf`, `u32`, `flower`, …
    pub kind: String,
}

/// A filter for packets that a link receives. The kernel applies the filters in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressFilter {
    /// Preference and kind.
    pub filter: Filter,
    /// What happens to packets that match.
    pub verdict: Verdict,
    protocol: u16,
    handle: u32,
    /// The indices of the links to which the filter redirects or mirrors packets. The index is 0 if the link is gone.
    targets: Vec<u32>,
}

/// What a filter does with packets that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The packet's fate is decided, and no later filter sees it.
    Final,
    /// The packet continues with the next filter (`continue`, or no action at all).
    Continues,
    /// A BPF program decides.
    Unknown,
}

impl fmt::Display for IngressFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "filter {}, preference {}", self.filter.kind, self.filter.preference)
    }
}

impl IngressFilter {
    /// The command that deletes the filter.
    #[must_use]
    pub fn command_to_delete(&self, link: &Link) -> String {
        let Self { filter: Filter { preference, kind }, handle, .. } = self;
        let protocol = match self.protocol {
            EVERY_PROTOCOL => "all".to_owned(),
            number => format!("{number:#06x}"),
        };
        let handle = match kind.as_str() {
            // The handle consists of table, bucket and node.
            "u32" => {
                let bucket = match handle >> 12 & 0xff {
                    0 => String::new(),
                    bucket => format!("{bucket:x}"),
                };
                format!("{:x}:{bucket}:{:x}", handle >> 20, handle & 0xfff)
            }
            _ => format!("{handle:#x}"),
        };
        format!(
            "tc filter del dev {} ingress protocol {protocol} pref {preference} handle {handle} {kind}",
            link.name
        )
    }

    fn redirects_to(&self, link: u32) -> bool {
        self.filter.kind == "u32" && self.targets.contains(&link)
    }
}

// linux/rtnetlink.h
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const TCA_CHAIN: u16 = 11;
// linux/pkt_sched.h
/// `TC_H_INGRESS` and `TC_H_CLSACT`, of which a link has at most one.
const TC_H_INGRESS: u32 = 0xffff_fff1;
const INGRESS_HANDLE: u32 = 0xffff_0000;
/// The ingress hook of clsact.
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const CLSACT_EGRESS: u32 = 0xffff_fff3;
// linux/pkt_cls.h
const TCA_U32_LINK: u16 = 3;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_ACT: u16 = 7;
const TC_U32_TERMINAL: u8 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
/// `TCA_MIRRED_PARMS`, `TCA_GACT_PARMS` and the corresponding attributes of most other actions, all of which begin
/// with `struct tc_gen`.
const TCA_ACTION_PARMS: u16 = 2;
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TCA_BPF_ID: u16 = 11;
/// Offset of the verdict in `struct tc_gen`.
const ACTION_VERDICT: usize = 8;
/// Offset of the link's index in `struct tc_mirred`.
const MIRRED_LINK: usize = 24;

/// The preference of our filter and of the reference plugins', which is the first one. The kernel puts filters
/// without a preference after it.
const PREFERENCE: u16 = 1;
/// `ETH_P_ALL`.
const EVERY_PROTOCOL: u16 = 0x0003;

/// The lower half of `tcm_info` is a protocol in network byte order.
fn info(preference: u16, protocol: u16) -> u32 {
    (u32::from(preference) << 16) | u32::from(protocol.to_be())
}

impl RouteSocket {
    /// Redirects the packets that a link receives to another link, before all other filters. Existing filters with
    /// the first preference stay before the redirection, and are returned. Does nothing if the redirection is already
    /// in place.
    /// # Errors
    /// ENOENT if the kernel has no clsact, u32 or mirred.
    pub fn redirect_ingress(&self, link: &Link, to: &Link) -> Result<Vec<IngressFilter>, RouteError> {
        let parent = self.ingress_hook(link)?;
        let mut filters = self.filters_of(link, parent)?;
        let preference = place(&filters);
        let in_place =
            |one: &IngressFilter| one.filter.preference <= preference && one.redirects_to(to.index);
        if let Some(at) = filters.iter().position(in_place) {
            filters.truncate(at);
            return Ok(filters);
        }
        let request = Request { link: link.index, handle: 0, parent, info: info(preference, EVERY_PROTOCOL) };
        self.transport.run(
            Verb::CreateWith(flag::EXCLUSIVE),
            request.message_with(RTM_NEWTFILTER, "u32", &redirection(to)),
            format_args!("redirect ingress of {} to {}", link.name, to.name),
        )?;
        // Redirections that come later, or that lead to a link that is gone, are removed only now, so that no packet
        // passes in between.
        let (earlier, others): (Vec<_>, Vec<_>) =
            filters.into_iter().partition(|one| is_redirection(one, &[to.index]));
        self.delete_filters(link, parent, &earlier)?;
        Ok(others.into_iter().filter(|one| one.filter.preference <= preference).collect())
    }

    /// Removes the redirections of [`RouteSocket::redirect_ingress`] to these links, by index, and to links that are
    /// gone.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel refuses it.
    pub fn delete_redirections(&self, link: &Link, to: &[u32]) -> Result<(), RouteError> {
        let Some(parent) = self.existing_ingress_hook(link)? else { return Ok(()) };
        let mut filters = self.filters_of(link, parent)?;
        filters.retain(|one| is_redirection(one, to));
        self.delete_filters(link, parent, &filters)
    }

    fn delete_filters(&self, link: &Link, parent: u32, filters: &[IngressFilter]) -> Result<(), RouteError> {
        for IngressFilter { filter, protocol, handle, .. } in filters {
            let info = info(filter.preference, *protocol);
            let mut message =
                Request { link: link.index, handle: *handle, parent, info }.message(RTM_DELTFILTER);
            message.text(TCA_KIND, &filter.kind);
            let action = format_args!("delete the redirection of {}", link.name);
            match self.transport.run(Verb::Change, message, action) {
                Err(error) if error.is_not_found() => {}
                deleted => deleted?,
            }
        }
        Ok(())
    }

    /// The filters that come before the redirection of a link's received packets to the link with index `to`. None if
    /// there is no such redirection.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list the filters.
    pub fn before_redirection(&self, link: &Link, to: u32) -> Result<Option<Vec<IngressFilter>>, RouteError> {
        let Some(parent) = self.existing_ingress_hook(link)? else { return Ok(None) };
        let mut filters = self.filters_of(link, parent)?;
        let at = filters.iter().position(|one| one.redirects_to(to));
        Ok(at.map(|at| {
            filters.truncate(at);
            filters
        }))
    }

    /// The indices of the links to which a link's received packets are redirected or mirrored.
    ///
    /// # Errors
    /// [`RouteError`] if the kernel cannot list the filters.
    pub fn redirections(&self, link: &Link) -> Result<Vec<u32>, RouteError> {
        let Some(parent) = self.existing_ingress_hook(link)? else { return Ok(Vec::new()) };
        let filters = self.filters_of(link, parent)?.into_iter().filter(|one| one.filter.kind == "u32");
        Ok(filters.flat_map(|filter| filter.targets).collect())
    }

    fn filters_of(&self, link: &Link, parent: u32) -> Result<Vec<IngressFilter>, RouteError> {
        let request = Request { link: link.index, handle: 0, parent, info: 0 };
        let action = format_args!("list filters of {}", link.name);
        self.transport.list(request.message(RTM_GETTFILTER), action, ingress_filter)
    }

    /// The id of the BPF program at clsact's ingress hook of the link with index `link`, in the filter of
    /// this priority and handle. None if there is no such filter. Takes one request.
    ///
    /// # Errors
    /// [`RouteError::is_not_found`] if there is no such link.
    pub fn program_at(&self, link: u32, priority: u16, handle: u32) -> Result<Option<u32>, RouteError> {
        let info = info(priority, EVERY_PROTOCOL);
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
            // Either the filter or clsact does not exist.
            Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => Ok(None),
            other => other.map(Option::flatten),
        }
    }

    /// The filters at one hook of clsact on the link with index `link`, in order. Empty without clsact.
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
        // The kernel lists each element of a filter separately, such as a hash table of u32.
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// The hook for received packets: that of clsact, which BPF programs use as well, or that of the older qdisc
    /// `ingress` if the link has it. Adds clsact if the link has neither.
    fn ingress_hook(&self, link: &Link) -> Result<u32, RouteError> {
        if let Some(parent) = self.existing_ingress_hook(link)? {
            return Ok(parent);
        }
        let request = Request { link: link.index, handle: INGRESS_HANDLE, parent: TC_H_INGRESS, info: 0 };
        let mut message = request.message(RTM_NEWQDISC);
        message.text(TCA_KIND, "clsact");
        let added = self.transport.run(Verb::Create, message, format_args!("add clsact to {}", link.name));
        match (added, self.existing_ingress_hook(link)?) {
            // Another process has added it meanwhile.
            (Err(error), Some(parent)) if error.already_exists() => Ok(parent),
            (added, _) => added.map(|()| CLSACT_INGRESS),
        }
    }

    fn existing_ingress_hook(&self, link: &Link) -> Result<Option<u32>, RouteError> {
        let found = self.queue(link, TC_H_INGRESS)?;
        Ok(found.map(|(kind, _)| if kind == "clsact" { CLSACT_INGRESS } else { INGRESS_HANDLE }))
    }
}

/// The first preference at which a filter like ours can be added, because all filters of one preference must have the
/// same kind and protocol.
fn place(filters: &[IngressFilter]) -> u16 {
    let is_taken = |preference: &u16| {
        filters.iter().any(|one| {
            one.filter.preference == *preference
                && (one.filter.kind != "u32" || one.protocol != EVERY_PROTOCOL)
        })
    };
    (PREFERENCE..u16::MAX).find(|preference| !is_taken(preference)).unwrap_or(u16::MAX)
}

/// True if a filter redirects to one of these links, or to one that is gone.
fn is_redirection(filter: &IngressFilter, to: &[u32]) -> bool {
    filter.redirects_to(0) || to.iter().any(|link| filter.redirects_to(*link))
}

/// The options of a u32 filter that matches all packets and redirects them.
fn redirection(to: &Link) -> Vec<u8> {
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
            // The first element of the list of actions.
            actions.nest(1, |action| {
                action.text(TCA_ACT_KIND, "mirred").nest(TCA_ACT_OPTIONS, |options| {
                    options.attr(TCA_ACTION_PARMS, &mirred);
                });
            });
        });
    })
}

/// Decodes the filter in a message. The preference is in the upper half of `tcm_info`.
fn filter(payload: &[u8]) -> Result<Filter, ReplyError> {
    let (header, attributes) = payload.split_at_checked(TCMSG).ok_or(ReplyError::NoHeader("a filter"))?;
    let preference = u16::try_from(message::u32_of(&header[TCMSG - 4..]) >> 16).unwrap_or_default();
    Ok(Filter { preference, kind: find(attributes, TCA_KIND).map(message::text).unwrap_or_default() })
}

/// Decodes a filter from a list. None for entries that do not count: filters of other chains, and entries that only
/// describe the filters' structure.
pub(super) fn ingress_filter(payload: &[u8]) -> Result<Option<IngressFilter>, ReplyError> {
    let filter = filter(payload)?;
    let (header, attributes) = payload.split_at_checked(TCMSG).ok_or(ReplyError::NoHeader("a filter"))?;
    let handle = message::u32_of(&header[8..]);
    let is_elsewhere = find(attributes, TCA_CHAIN).is_some_and(|chain| message::u32_of(chain) != 0);
    let Some(options) = find(attributes, TCA_OPTIONS).filter(|_| handle != 0 && !is_elsewhere) else {
        return Ok(None);
    };
    let is_u32 = filter.kind == "u32";
    let selector = find(options, TCA_U32_SEL).filter(|_| is_u32);
    if is_u32 && selector.is_none() {
        return Ok(None);
    }
    let protocol = u16::from_be_bytes([header[TCMSG - 4], header[TCMSG - 3]]);
    let actions = actions_of(&filter.kind, options);
    let is_asked_only = selector.is_some_and(|selector| {
        selector.first().is_none_or(|flags| flags & TC_U32_TERMINAL == 0)
            && find(options, TCA_U32_LINK).is_none()
    });
    let verdict = match actions.last() {
        _ if filter.kind == "bpf" => Verdict::Unknown,
        _ if is_asked_only => Verdict::Continues,
        Some(last) if last.verdict == Some(TC_ACT_UNSPEC) => Verdict::Continues,
        _ => Verdict::Final,
    };
    let targets = actions.iter().filter_map(|action| action.target).collect();
    Ok(Some(IngressFilter { filter, verdict, protocol, handle, targets }))
}

/// An action of a filter.
struct Action {
    verdict: Option<u32>,
    /// The link of a mirred action.
    target: Option<u32>,
}

/// The actions in a filter's options. Each kind of filter has them in a different attribute.
fn actions_of(kind: &str, options: &[u8]) -> Vec<Action> {
    let attribute = match kind {
        "u32" => TCA_U32_ACT,
        // TCA_FLOWER_ACT, TCA_BASIC_ACT
        "flower" | "basic" => 3,
        // TCA_MATCHALL_ACT
        "matchall" => 2,
        // TCA_FW_ACT
        "fw" => 4,
        _ => return Vec::new(),
    };
    let actions = find(options, attribute).unwrap_or_default();
    let decode = |(_, action): (u16, &[u8])| {
        let options = find(action, TCA_ACT_OPTIONS).unwrap_or_default();
        let parameters = find(options, TCA_ACTION_PARMS).unwrap_or_default();
        let number = |at: usize| parameters.get(at..at + 4).map(message::u32_of);
        let is_mirred = find(action, TCA_ACT_KIND).map(message::text).as_deref() == Some("mirred");
        Action { verdict: number(ACTION_VERDICT), target: number(MIRRED_LINK).filter(|_| is_mirred) }
    };
    message::attributes(actions).map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message about a filter, as the kernel sends it.
    fn payload(preference: u16, kind: &str, options: &[u8]) -> Vec<u8> {
        let request =
            Request { link: 1, handle: 0x8000_0800, parent: 0, info: info(preference, EVERY_PROTOCOL) };
        request.message_with(RTM_NEWTFILTER, kind, options).payload().to_vec()
    }

    fn link(index: u32) -> Link {
        Link { index, ..crate::route::link::decode(&[0; 16]).unwrap() }
    }

    #[test]
    fn an_encoded_redirection_decodes_to_the_same() {
        let all = payload(1, "u32", &redirection(&link(77)));
        let decoded = ingress_filter(&all).unwrap().unwrap();
        assert_eq!((decoded.verdict, decoded.protocol), (Verdict::Final, EVERY_PROTOCOL));
        assert!(is_redirection(&decoded, &[77]) && !is_redirection(&decoded, &[78]));
        assert_eq!(decoded.to_string(), "filter u32, preference 1");
        let command = decoded.command_to_delete(&Link { name: "veth1".to_owned(), ..link(1) });
        assert_eq!(command, "tc filter del dev veth1 ingress protocol all pref 1 handle 800::800 u32");
        for length in 0..all.len() {
            let _ = ingress_filter(&all[..length]);
        }
    }

    #[test]
    fn a_redirection_to_a_link_that_is_gone_is_one() {
        let gone = ingress_filter(&payload(1, "u32", &redirection(&link(0)))).unwrap().unwrap();
        assert!(is_redirection(&gone, &[]));
    }

    #[test]
    fn our_filter_goes_to_the_first_preference_that_can_have_it() {
        let filter = |preference, kind: &str| {
            ingress_filter(&payload(preference, kind, &redirection(&link(5)))).unwrap().unwrap()
        };
        assert_eq!(place(&[]), 1);
        assert_eq!(place(&[filter(1, "u32"), filter(2, "bpf")]), 1);
        assert_eq!(place(&[filter(1, "flower"), filter(2, "bpf"), filter(9, "u32")]), 3);
    }

    #[test]
    fn verdicts() {
        let verdict = |kind: &str, options: Vec<u8>| {
            ingress_filter(&payload(9, kind, &options)).unwrap().map(|filter| filter.verdict)
        };
        let actions = |attribute, verdict: u32| {
            let generic: Vec<u8> = [0, 0, verdict].into_iter().flat_map(u32::to_ne_bytes).collect();
            Attributes::encode(|options| {
                options.nest(attribute, |actions| {
                    actions.nest(1, |action| {
                        action.text(TCA_ACT_KIND, "gact").nest(TCA_ACT_OPTIONS, |options| {
                            options.attr(TCA_ACTION_PARMS, &generic);
                        });
                    });
                });
            })
        };
        assert_eq!(verdict("flower", actions(3, 0)), Some(Verdict::Final));
        assert_eq!(verdict("flower", actions(3, TC_ACT_UNSPEC)), Some(Verdict::Continues));
        assert_eq!(verdict("matchall", actions(2, TC_ACT_UNSPEC)), Some(Verdict::Continues));
        assert_eq!(verdict("bpf", actions(1, 0)), Some(Verdict::Unknown));
        assert_eq!(verdict("matchall", Vec::new()), Some(Verdict::Final));
        let selector = |flags: u8| {
            Attributes::encode(|options| {
                options.attr(TCA_U32_SEL, &[flags; 32]);
            })
        };
        assert_eq!(verdict("u32", selector(0)), Some(Verdict::Continues));
        assert_eq!(verdict("u32", selector(TC_U32_TERMINAL)), Some(Verdict::Final));
        assert_eq!(verdict("u32", Vec::new()), None, "a hash table");
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
