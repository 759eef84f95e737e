// SPDX-License-Identifier: GPL-2.0-or-later

//! The packets that `slipway explain` and `slipway trace` are about.

use std::net::SocketAddr;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use cni_dataplane::Protocol;

use super::values::ValueError;

/// Where the packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub(super) struct Destination {
    /// The protocol
    #[arg(value_name = "PROTOCOL", value_parser = protocols())]
    pub(super) protocol: Protocol,
    #[arg(value_name = "ADDRESS:PORT", help = "The destination; IPv6 as [2001:db8::2]:8080", value_parser = socket)]
    pub(super) to: SocketAddr,
}

fn protocols() -> impl clap::builder::TypedValueParser<Value = Protocol> {
    PossibleValuesParser::new(Protocol::ALL.map(Protocol::as_str)).try_map(|word| {
        let named = Protocol::ALL.into_iter().find(|one| one.as_str().eq_ignore_ascii_case(&word));
        named.ok_or("a protocol")
    })
}

fn socket(text: &str) -> Result<SocketAddr, ValueError> {
    text.parse().map_err(|_| ValueError::Socket)
}
