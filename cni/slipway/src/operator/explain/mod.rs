// SPDX-License-Identifier: GPL-2.0-or-later

//! `slipway explain`: follows the first packet of a connection through the node's rules.
//!
//! [`facts`] reads the kernel's state, [`render`] turns it into sentences.

mod facts;
mod render;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use cni_dataplane::Protocol;
use cni_dataplane::explain::Packet;

use facts::Facts;
pub(super) use facts::origin;
use render::Explanation;
pub(super) use render::listener_at;
use slipway_cli::json;
use slipway_cli::{Failure, Given};

/// The packet of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Query {
    protocol: Protocol,
    to: SocketAddr,
    from: Option<IpAddr>,
    link: Option<String>,
}

/// Prints the packet's path.
pub(super) fn run(given: &Given, out: &mut dyn Write, _err: &mut dyn Write) -> Result<u8, Failure> {
    let Query { protocol, to, from, link } = Query::new(given)?;
    let origin = facts::origin(from, link.as_deref(), to.ip()).map_err(Failure::failed)?;
    let facts = Facts::gather(Packet { protocol, to, from, origin }).map_err(Failure::failed)?;
    let explanation = Explanation::of(&facts);
    if given.json() {
        json::print(explanation.document(), out)?;
    } else {
        out.write_all(explanation.text().as_bytes())?;
    }
    Ok(0)
}

/// The end of a packet's way, for another command; none if the kernel's state cannot be read.
pub(super) fn outcome(packet: Packet) -> Option<String> {
    let facts = Facts::gather(packet).ok()?;
    Some(Explanation::of(&facts).outcome().to_owned())
}

/// The last step and the end of a packet's way, for another command; none if the kernel's state cannot be read.
pub(super) fn end(packet: Packet) -> Option<String> {
    let facts = Facts::gather(packet).ok()?;
    let explanation = Explanation::of(&facts);
    let last = explanation.last_step().map(|step| format!("{step}\n")).unwrap_or_default();
    Some(format!("{last}{}", explanation.outcome()))
}

/// The protocol and the destination of a command line.
pub(super) fn query(given: &Given) -> Result<(Protocol, SocketAddr), Failure> {
    let name = given.argument(0);
    let protocol = Protocol::ALL.into_iter().find(|one| one.as_str() == name);
    let protocol = protocol.ok_or_else(|| Failure::usage(format!("{name:?} is not a protocol")))?;
    let to = given.argument(1).parse().map_err(|_| {
        let given = given.argument(1);
        Failure::usage(format!(
            "{given:?} is not an address and a port, as 192.0.2.2:8080 or [2001:db8::2]:8080"
        ))
    })?;
    Ok((protocol, to))
}

impl Query {
    fn new(given: &Given) -> Result<Self, Failure> {
        let (protocol, to) = query(given)?;
        // The older spelling of `--from ADDRESS`.
        let positional = match given.arguments().get(2..).unwrap_or_default() {
            [] => None,
            [word, address] if word == "from" => Some(address.as_str()),
            [other, ..] => return Err(Failure::usage(format!("unexpected argument {other:?}"))),
        };
        let from = given.value("--from").or(positional).map(|text| source(text, to)).transpose()?;
        Ok(Self { protocol, to, from, link: given.value("--iif").map(str::to_owned) })
    }
}

fn source(text: &str, to: SocketAddr) -> Result<IpAddr, Failure> {
    let address: IpAddr = text.parse().map_err(|_| Failure::usage(format!("{text:?} is not an address")))?;
    if address.is_ipv4() != to.is_ipv4() {
        return Err(Failure::usage(format!("{address} and {to} are of different families")));
    }
    Ok(address)
}
