// SPDX-License-Identifier: GPL-2.0-or-later

//! The settings that the BPF programs read, and the network namespace that the programs serve.

use std::path::PathBuf;

use slipway_ebpf_abi::{Config, VERSION};

use super::pins::Pins;
use super::{netns_cookie, object, tables};
use crate::{Error, PortRange};

/// The BPF programs of this binary.
pub(super) fn programs_of_this_binary() -> Result<&'static [u8], Error> {
    object().ok_or_else(|| Error::NoEbpf("this binary was built without the BPF programs".to_owned()))
}

/// The folder of this binary's programs.
pub(super) fn programs(pins: &Pins) -> Result<PathBuf, Error> {
    programs_of_this_binary().map(|_| pins.programs())
}

pub(super) fn is_set_up(pins: &Pins) -> bool {
    configured(pins).is_ok_and(|config| config.version == VERSION)
}

/// True if the programs serve this network namespace. Others may share the BPF file system. Where the kernel
/// does not return a namespace's cookie, the programs are taken for this one's.
pub(super) fn is_at_home(pins: &Pins) -> bool {
    refuse_abroad(pins).is_ok()
}

/// The pins, if they exist and belong to this network namespace.
pub(super) fn at_home() -> Option<Pins> {
    Pins::find().filter(is_at_home)
}

/// Refuses to work from another network namespace than the one that the programs serve: the maps name links
/// by index and containers by address, which identify other objects there.
///
/// # Errors
/// [`Error::NoEbpf`] with a remedy.
pub(super) fn refuse_abroad(pins: &Pins) -> Result<(), Error> {
    configured(pins).map_or(Ok(()), |config| refuse_another(&config))
}

pub(super) fn refuse_another(config: &Config) -> Result<(), Error> {
    let here = netns_cookie::of_this_namespace();
    if here == 0 || config.netns_cookie == 0 || here == config.netns_cookie {
        return Ok(());
    }
    Err(Error::NoEbpf(format!(
        "the BPF programs serve another network namespace, from which they have to be looked after (if that one is \
         gone, `rm -r {}` takes away what it has left)",
        Pins::all().display(),
    )))
}

pub(super) fn without_masquerade(config: Config) -> Config {
    Config { masquerade_first: u16::MAX, masquerade_last: 0, ..config }
}

/// True if the programs know the node's addresses, without which they translate nothing that is addressed to
/// it.
pub(super) fn knows_addresses(pins: &Pins) -> Result<bool, Error> {
    let (v4, v6) = tables::locals(pins)?;
    Ok(!v4.all()?.is_empty() || !v6.all()?.is_empty())
}

pub(super) fn configure(pins: &Pins, config: Config) -> Result<(), Error> {
    tables::config(pins)?.set(0, config, 0).map_err(|e| Error::kernel("write to the BPF map config", e))
}

pub(super) fn configured(pins: &Pins) -> Result<Config, Error> {
    tables::config(pins)?.get(&0, 0).map_err(|e| Error::kernel("read the BPF map config", e))
}

pub(super) fn masquerade_ports(config: Config) -> Option<PortRange> {
    let (first, last) = (config.masquerade_first, config.masquerade_last);
    (first <= last).then_some(PortRange { first, last })
}

/// The ports that only the programs may masquerade with, if there are programs on this node: one system call
/// where there are none.
pub(super) fn reserved_ports() -> Option<PortRange> {
    configured(&at_home()?).ok().and_then(masquerade_ports)
}
