//! `slipway explain`: what would happen to a packet, step by step, and why.
//!
//! `facts` asks the kernel, `story` makes sentences of it.

mod facts;
mod story;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use cni_dataplane::Protocol;
use cni_dataplane::explain::Packet;

use facts::Facts;

use crate::operator::said;

/// Arguments of `slipway explain`.
pub const USAGE: &str = "tcp|udp|sctp ADDRESS:PORT [from ADDRESS] [--iif LINK]";

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Question {
    protocol: Protocol,
    to: SocketAddr,
    from: Option<IpAddr>,
    link: Option<String>,
}

/// Prints the packet's way: exit code 0 whatever becomes of the packet, 1 when the kernel cannot be asked, 2
/// for wrong arguments.
pub fn explain_command(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let question = match parse(args) {
        Ok(question) => question,
        Err(reason) => return said(writeln!(err, "slipway explain: {reason}"), 2),
    };
    let Question { protocol, to, from, link } = question;
    let gathered = facts::origin(from, link.as_deref(), to.ip())
        .and_then(|origin| Facts::gather(Packet { protocol, to, from, origin }));
    match gathered {
        Ok(facts) => said(out.write_all(story::tell(&facts).as_bytes()), 0),
        Err(reason) => said(writeln!(err, "slipway explain: {reason}"), 1),
    }
}

fn parse(args: &[String]) -> Result<Question, String> {
    let [protocol, to, rest @ ..] = args else {
        return Err(format!("a protocol and a destination are needed: {USAGE}"));
    };
    let lower = protocol.to_ascii_lowercase();
    let known = Protocol::ALL.into_iter().find(|one| one.as_str() == lower);
    let protocol = known.ok_or_else(|| format!("{protocol:?} is not tcp, udp or sctp"))?;
    let to: SocketAddr = to.parse().map_err(|_| {
        format!("{to:?} is not an address and a port, as 192.0.2.2:8080 or [2001:db8::2]:8080")
    })?;
    let (mut from, mut link) = (None, None);
    let mut rest = rest.iter();
    while let Some(arg) = rest.next() {
        let (name, inline) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (arg.as_str(), None),
        };
        if !["from", "--from", "--iif"].contains(&name) {
            return Err(format!("unknown argument {arg:?}"));
        }
        let value = inline.or_else(|| rest.next().cloned()).ok_or_else(|| format!("{name} needs a value"))?;
        if name == "--iif" {
            link = Some(value);
            continue;
        }
        let address: IpAddr = value.parse().map_err(|_| format!("{value:?} is not an address"))?;
        if address.is_ipv4() != to.is_ipv4() {
            return Err(format!("{address} and {to} are of different families"));
        }
        from = Some(address);
    }
    Ok(Question { protocol, to, from, link })
}
