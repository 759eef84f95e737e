// SPDX-License-Identifier: GPL-3.0-or-later

//! Values of options that several commands take, and options with the words by which they were given.

use std::str::FromStr;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches, Id};
use cni_spec::text::parse_net;
use ipnet::IpNet;
use slipwayd::cluster::taint::StartupTaint;

/// The form that the value of an option must have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("a number with s, m or h, of at least 1s")]
    Time,
    #[error("an address with a prefix length")]
    Prefix,
    #[error("a prefix without host bits, such as {0}")]
    HostBits(IpNet),
    #[error("a name that a link can have")]
    LinkName,
    #[error("ADDRESS:PORT or none")]
    Listen,
    #[error("an absolute path or none")]
    Socket,
    #[error("NAMESPACE/NAME")]
    PodName,
    #[error("a DNS label of lower-case letters, digits and \"-\"")]
    Namespace,
    #[error("a DNS subdomain of lower-case letters, digits, \"-\" and \".\"")]
    NodeName,
    #[error("KEY or KEY:EFFECT, with the effect NoSchedule, PreferNoSchedule or NoExecute")]
    Taint,
    #[error("an ID of letters, digits, \"_\", \".\" and \"-\"")]
    Sandbox,
    #[error("an IP address")]
    Address,
    #[error("an Ethernet address")]
    Mac,
    #[error("[IP:]HOST:POD[/PROTOCOL]")]
    Port,
    #[error("KEY=VALUE")]
    Annotation,
    #[error("RATE or RATE:RATE, such as 10M")]
    Bandwidth,
    #[error("BITS or BITS:BITS, such as 4M, from 8 to 34359738352")]
    Burst,
}

/// The taint that the agent removes.
pub(crate) fn startup_taint(text: &str) -> Result<StartupTaint, ValueError> {
    text.parse().map_err(|_| ValueError::Taint)
}

/// A time such as `90s`, `10m` or `1h`.
pub(crate) fn time(text: &str) -> Result<Duration, ValueError> {
    let mut units = [('s', 1), ('m', 60), ('h', 3600)].into_iter();
    let (number, seconds) = units
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))
        .ok_or(ValueError::Time)?;
    let number: u32 = number.parse().map_err(|_| ValueError::Time)?;
    let time = Duration::from_secs(u64::from(number) * seconds);
    if time.is_zero() { Err(ValueError::Time) } else { Ok(time) }
}

/// Prefixes with commas between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prefixes(Vec<IpNet>);

impl FromStr for Prefixes {
    type Err = ValueError;

    fn from_str(list: &str) -> Result<Self, ValueError> {
        let prefix = |text: &str| {
            let net = parse_net(text).ok_or(ValueError::Prefix)?;
            if net.trunc() == net { Ok(net) } else { Err(ValueError::HostBits(net.trunc())) }
        };
        list.split(',').map(prefix).collect::<Result<_, _>>().map(Self)
    }
}

impl Prefixes {
    /// The prefixes of all lists, in order.
    pub(crate) fn all(lists: &[Self]) -> Vec<IpNet> {
        lists.iter().flat_map(|list| &list.0).copied().collect()
    }
}

/// An option on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    /// With its dashes.
    pub(crate) name: String,
    /// As it was written.
    pub(crate) value: String,
}

/// Options with the words by which they were given, in the order of the command line. Defaults are left out.
#[derive(Debug, Clone)]
pub(crate) struct WithWords<T> {
    pub(crate) options: T,
    pub(crate) words: Vec<Word>,
}

impl<T> WithWords<T> {
    /// The first of these options that was given.
    pub(crate) fn first_of<'a>(&self, names: &[&'a str]) -> Option<&'a str> {
        names.iter().find(|name| self.words.iter().any(|word| word.name == **name)).copied()
    }
}

impl<T: Args> Args for WithWords<T> {
    fn augment_args(command: clap::Command) -> clap::Command {
        T::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        T::augment_args_for_update(command)
    }
}

impl<T: Args> FromArgMatches for WithWords<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let command = T::augment_args(clap::Command::default());
        let mut words = Vec::new();
        for argument in command.get_arguments() {
            let name = format!("--{}", argument.get_long().unwrap_or_default());
            let id = argument.get_id();
            for (place, value) in in_places(matches, id, |id| matches.get_raw(id)) {
                words.push((place, Word { name: name.clone(), value: value.to_string_lossy().into_owned() }));
            }
        }
        words.sort_by_key(|(place, _)| *place);
        let words = words.into_iter().map(|(_, word)| word).collect();
        Ok(Self { options: T::from_arg_matches(matches)?, words })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The values of an option on the command line, each with its place there.
pub(crate) fn in_places<V: Iterator>(
    matches: &ArgMatches,
    id: &Id,
    values: impl FnOnce(&str) -> Option<V>,
) -> Vec<(usize, V::Item)> {
    if matches.value_source(id.as_str()) != Some(ValueSource::CommandLine) {
        return Vec::new();
    }
    let places = matches.indices_of(id.as_str()).into_iter().flatten();
    places.zip(values(id.as_str()).into_iter().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_have_no_host_bits_and_no_leading_zeros() {
        let all = |list: &str| list.parse().map(|prefixes| Prefixes::all(&[prefixes]).len());
        assert_eq!(all("10.0.0.0/8,fd00::/64"), Ok(2));
        for list in ["", "10.0.0.0", "10.0.0.0/8,", "010.0.0.0/8", "10.0.0.0/08", "fd00::/064", "10.0.0.0/33"]
        {
            assert_eq!(all(list), Err(ValueError::Prefix), "{list:?}");
        }
        assert!(matches!(all("10.0.0.1/8"), Err(ValueError::HostBits(_))));
    }

    #[test]
    fn a_time_has_a_unit_and_is_not_zero() {
        assert_eq!(time("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        for text in ["", "5", "m", "0s", "5d", "ss", "5ss", "-1s"] {
            assert_eq!(time(text), Err(ValueError::Time), "{text:?}");
        }
    }
}
