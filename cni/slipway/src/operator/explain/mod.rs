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

use super::destination::Destination;
use super::values::ValueError;
use facts::Facts;
pub(super) use facts::origin;
use render::Explanation;
pub(super) use render::listener_at;
use slipway_cli::json;
use slipway_cli::{Failure, Output};

/// Follow the first packet of a connection through the node's rules
///
/// Makes the kernel's lookups one by one and prints each step with its reason. No packet is sent. Without --from and --iif
/// the packet comes from another host, or from the node itself if it goes to a loopback address. The exit code is 0
/// whatever becomes of the packet.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  slipway explain tcp 192.0.2.2:8080
  slipway explain udp 192.0.2.2:53 --from 10.22.0.7 --iif cni0 -o json")]
pub(super) struct Args {
    #[command(flatten)]
    destination: Destination,
    /// The source
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    from: Option<IpAddr>,
    /// The link that the packet arrives on; lo: the node sends it
    #[arg(long, value_name = "LINK")]
    iif: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// The packet of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Query {
    protocol: Protocol,
    to: SocketAddr,
    from: Option<IpAddr>,
    link: Option<String>,
}

/// Prints the packet's path.
pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<u8, Failure> {
    let Query { protocol, to, from, link } = Query::new(args)?;
    let origin = facts::origin(from, link.as_deref(), to.ip()).map_err(Failure::failed)?;
    let facts = Facts::gather(Packet { protocol, to, from, origin }).map_err(Failure::failed)?;
    let explanation = Explanation::of(&facts);
    if args.output.json() {
        json::print(explanation.document(), out)?;
    } else {
        out.write_all(explanation.text().as_bytes())?;
    }
    Ok(0)
}

/// What becomes of a packet, for another command; none if the kernel's state cannot be read.
pub(super) fn outcome(packet: Packet) -> Option<String> {
    let facts = Facts::gather(packet).ok()?;
    Some(Explanation::of(&facts).outcome().to_owned())
}

/// The last step of a packet and what becomes of it, for another command; none if the kernel's state cannot be read.
pub(super) fn end(packet: Packet) -> Option<String> {
    let facts = Facts::gather(packet).ok()?;
    let explanation = Explanation::of(&facts);
    let last = explanation.last_step().map(|step| format!("{step}\n")).unwrap_or_default();
    Some(format!("{last}{}", explanation.outcome()))
}

impl Query {
    fn new(args: &Args) -> Result<Self, Failure> {
        let Destination { protocol, to } = args.destination;
        if let Some(from) = args.from.filter(|from| from.is_ipv4() != to.is_ipv4()) {
            return Err(Failure::usage(format!("{from} and {to} are of different families")));
        }
        Ok(Self { protocol, to, from: args.from, link: args.iif.clone() })
    }
}

fn address(text: &str) -> Result<IpAddr, ValueError> {
    text.parse().map_err(|_| ValueError::Address)
}
