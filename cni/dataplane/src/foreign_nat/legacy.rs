// SPDX-License-Identifier: GPL-2.0-or-later

//! Rules of the legacy nat tables (`ip_tables`), whose priority is the usual one as well.

use std::net::IpAddr;

use cni_kernel::xtables::{self, RawChain, RawHeader, RawRule};
use cni_nftables::Hook;
use cni_nftables::probe::{Action, Applies, Extension, Probe};

use super::{DEEPEST, Engine, OWN, Place, Translation};
use crate::{AddressFamily, Error};

/// `NF_IP_PRI_NAT_DST`.
const PRIORITY: i32 = -100;
/// `XT_RETURN`. Other negative numbers are verdicts that end the chains; numbers from 0 on are the offset of a rule.
const RETURN: i32 = -5;

/// The command that lists the table of a family.
pub(super) fn command(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "iptables-legacy --table nat",
        AddressFamily::V6 => "ip6tables-legacy --table nat",
    }
}

/// The nat table of a family.
#[derive(Debug)]
pub(super) struct LegacyNat {
    pub(super) family: AddressFamily,
    chains: Vec<RawChain>,
    /// The index of the built-in chain of the hook.
    base: usize,
}

/// Reads the nat tables that this network namespace has. A table with more than `most` rules is left out.
///
/// # Errors
/// A table cannot be read.
pub(super) fn read(hook: Hook, most: usize) -> Result<Vec<LegacyNat>, Error> {
    const TABLE: &str = "nat";
    let failed = |error: xtables::XtablesError| Error::kernel("read the legacy tables", error);
    let number = match hook {
        Hook::Prerouting => 0,
        Hook::Output => 3,
        _ => return Ok(Vec::new()),
    };
    let mut all = Vec::new();
    for family in AddressFamily::BOTH {
        match xtables::info(family, TABLE).map_err(failed)? {
            Some(info) if info.entries <= most => {}
            _ => continue,
        }
        let chains = xtables::rules(family, TABLE).map_err(failed)?;
        if let Some(base) = chains.iter().position(|chain| chain.hook == Some(number)) {
            all.push(LegacyNat { family, chains, base });
        }
    }
    Ok(all)
}

/// How the processing of a chain ends.
enum After {
    Returned,
    Ended,
    Translated(Translation),
}

/// Follows one packet through the chains.
struct Walk<'a> {
    nat: &'a LegacyNat,
    probe: &'a Probe,
    follows_services: bool,
    is_local: &'a dyn Fn(IpAddr) -> bool,
    uncertain: Option<Translation>,
}

impl LegacyNat {
    /// Finds the first rule that translates a packet. A rule that may or may not apply is returned only if no rule
    /// certainly applies.
    pub(super) fn first(
        &self,
        probe: &Probe,
        follows_services: bool,
        is_local: &dyn Fn(IpAddr) -> bool,
    ) -> Option<Translation> {
        let mut walk = Walk { nat: self, probe, follows_services, is_local, uncertain: None };
        match walk.chain(self.base, &mut Vec::new(), true) {
            After::Translated(found) => Some(found),
            After::Returned | After::Ended => walk.uncertain,
        }
    }
}

impl Walk<'_> {
    fn chain(&mut self, index: usize, path: &mut Vec<String>, is_certain: bool) -> After {
        let Some(chain) = self.nat.chains.get(index).filter(|_| path.len() < DEEPEST) else {
            return After::Returned;
        };
        if chain.name.starts_with("KUBE-") && !self.follows_services {
            return After::Returned;
        }
        path.push(chain.name.clone());
        let after = self.rules(chain, path, is_certain);
        path.pop();
        after
    }

    fn rules(&mut self, chain: &RawChain, path: &mut Vec<String>, is_certain: bool) -> After {
        for rule in &chain.rules {
            let sure = match self.applies(rule) {
                Applies::No => continue,
                Applies::Yes => is_certain,
                Applies::Maybe => false,
            };
            if let Some(next) = rule.leads_to {
                match self.chain(next, path, sure) {
                    After::Returned if rule.is_goto && sure => return After::Returned,
                    After::Returned => {}
                    After::Ended if !sure => {}
                    after => return after,
                }
                continue;
            }
            if rule.target.name.is_empty() {
                match verdict(rule) {
                    Some(RETURN) if sure => return After::Returned,
                    Some(..0) if sure => return After::Ended,
                    _ => {}
                }
                continue;
            }
            let target = &rule.target;
            let revision = u32::from(target.revision);
            let target = Extension { name: &target.name, revision, data: &target.data };
            let (to, port) = match target.action(self.nat.family) {
                Some(Action::Translate(to, port)) => (to, port),
                Some(Action::Redirect(port)) => (None, Some(port.unwrap_or(self.probe.port))),
                Some(Action::Verdict(_)) if sure => return After::Ended,
                _ => continue,
            };
            if chain.name.starts_with(OWN) {
                if sure {
                    return After::Ended;
                }
                continue;
            }
            let found = Translation {
                place: Place::Legacy(self.nat.family, rule.number),
                chain: chain.name.clone(),
                base: path.first().cloned().unwrap_or_default(),
                priority: PRIORITY,
                engine: Engine::of_chains(path),
                to,
                port,
                is_certain: sure,
            };
            if sure {
                return After::Translated(found);
            }
            self.uncertain.get_or_insert(found);
        }
        After::Returned
    }

    fn applies(&self, rule: &RawRule) -> Applies {
        if rule.protocol != 0 && rule.protocol != self.probe.protocol {
            return Applies::No;
        }
        let of_extensions = rule.matches.iter().map(|one| {
            let revision = u32::from(one.revision);
            Extension { name: &one.name, revision, data: &one.data }.applies(self.probe)
        });
        let mut all = Applies::Yes;
        for part in of_extensions.chain(self.header(&rule.header)) {
            match part {
                Applies::No => return Applies::No,
                Applies::Maybe => all = Applies::Maybe,
                Applies::Yes => {}
            }
        }
        all
    }

    fn header(&self, header: &RawHeader) -> [Applies; 4] {
        let of_destination = header.destination.as_ref().map(|asked| {
            let (address, mask) = asked.value;
            match self.probe.to {
                Some(to) => Applies::of(is_in(to, address, mask) != asked.is_negated),
                // All that is known about the destination is that it is an address of the node.
                None if is_host(mask) && !(self.is_local)(address) => Applies::of(asked.is_negated),
                None => Applies::Maybe,
            }
        });
        let of_source = header.source.as_ref().map(|asked| {
            let (address, mask) = asked.value;
            self.probe
                .from
                .map_or(Applies::Maybe, |from| Applies::of(is_in(from, address, mask) != asked.is_negated))
        });
        let of_link = header.link.as_ref().map(|asked| {
            let is_named = |link: &String| match asked.value.strip_suffix('+') {
                Some(begin) => link.starts_with(begin),
                None => *link == asked.value,
            };
            let link = self.probe.link.as_ref();
            link.map_or(Applies::Maybe, |link| Applies::of(is_named(link) != asked.is_negated))
        });
        let more = if header.asks_for_more { Applies::Maybe } else { Applies::Yes };
        [of_destination, of_source, of_link, Some(more)].map(|part| part.unwrap_or(Applies::Yes))
    }
}

/// The verdict of a rule that has no target or the standard one.
fn verdict(rule: &RawRule) -> Option<i32> {
    Some(i32::from_ne_bytes(*rule.target.data.first_chunk()?))
}

fn is_in(to: IpAddr, address: IpAddr, mask: IpAddr) -> bool {
    match (to, address, mask) {
        (IpAddr::V4(to), IpAddr::V4(address), IpAddr::V4(mask)) => to & mask == address & mask,
        (IpAddr::V6(to), IpAddr::V6(address), IpAddr::V6(mask)) => to & mask == address & mask,
        _ => false,
    }
}

fn is_host(mask: IpAddr) -> bool {
    match mask {
        IpAddr::V4(mask) => mask.to_bits() == u32::MAX,
        IpAddr::V6(mask) => mask.to_bits() == u128::MAX,
    }
}
