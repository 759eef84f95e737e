// SPDX-License-Identifier: GPL-2.0-or-later

//! `--capability NAME=VALUE`: capability arguments in a short form.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

/// The forms, for help and errors.
pub(super) const FORMS: &str = "\
port=[HOSTIP:]HOSTPORT:PORT[/PROTOCOL], bandwidth=ingressRate:BITS,ingressBurst:BITS,egressRate:BITS,egressBurst:\
BITS, ips=ADDRESS[,ADDRESS...] or mac=ADDRESS";

/// The keys of `bandwidth`.
const RATES: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];

/// A capability argument that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("--capability {given}: {reason}")]
pub(super) struct CapabilityError {
    given: String,
    reason: Reason,
}

/// The reason why a capability argument cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("must be {FORMS}")]
    Form,
    #[error("a port is a number from 1 to 65535, or 0 where the plugin chooses")]
    Port,
    #[error("the host's address must be an IP address, an IPv6 address in brackets")]
    HostIp,
    #[error("a rate or burst is a number of bits, with K, M or G for thousands, millions or billions")]
    Bits,
    #[error("bandwidth has the keys ingressRate, ingressBurst, egressRate and egressBurst")]
    Key,
}

/// Adds an argument to those of the runtime: a port to the others, anything else in place of an older one.
///
/// # Errors
/// [`CapabilityError`] if the argument has none of the [`FORMS`].
pub(super) fn add(capabilities: &mut Map<String, Value>, given: &str) -> Result<(), CapabilityError> {
    let failed = |reason| CapabilityError { given: given.to_owned(), reason };
    match given.split_once('=') {
        Some(("port", text)) => {
            let port = port(text).map_err(failed)?;
            match capabilities.get_mut("portMappings").and_then(Value::as_array_mut) {
                Some(ports) => ports.push(port),
                None => drop(capabilities.insert("portMappings".to_owned(), json!([port]))),
            }
        }
        Some(("bandwidth", text)) => {
            capabilities.insert("bandwidth".to_owned(), bandwidth(text).map_err(failed)?);
        }
        Some(("ips", text)) if !text.is_empty() => {
            capabilities.insert("ips".to_owned(), text.split(',').collect());
        }
        Some(("mac", text)) if !text.is_empty() => {
            capabilities.insert("mac".to_owned(), text.into());
        }
        _ => return Err(failed(Reason::Form)),
    }
    Ok(())
}

fn port(text: &str) -> Result<Value, Reason> {
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let (rest, container) = ports.rsplit_once(':').ok_or(Reason::Form)?;
    let (address, host) = match rest.rsplit_once(':') {
        Some((address, host)) => (Some(address), host),
        None => (None, rest),
    };
    let number = |text: &str| text.parse::<u16>().map_err(|_| Reason::Port);
    let mut port = json!({
        "hostPort": number(host)?, "containerPort": number(container)?, "protocol": protocol.to_lowercase(),
    });
    if let Some(address) = address {
        let inner = address.strip_prefix('[').and_then(|address| address.strip_suffix(']'));
        let parsed: IpAddr = inner.unwrap_or(address).parse().map_err(|_| Reason::HostIp)?;
        if parsed.is_ipv6() != inner.is_some() {
            return Err(Reason::HostIp);
        }
        port["hostIP"] = parsed.to_string().into();
    }
    Ok(port)
}

fn bandwidth(text: &str) -> Result<Value, Reason> {
    let mut all = Map::new();
    for pair in text.split(',') {
        let (key, value) = pair.split_once(':').ok_or(Reason::Form)?;
        let key = RATES.into_iter().find(|known| known.eq_ignore_ascii_case(key)).ok_or(Reason::Key)?;
        all.insert(key.to_owned(), bits(value)?.into());
    }
    Ok(Value::Object(all))
}

/// Parses a number with a decimal suffix.
fn bits(text: &str) -> Result<u64, Reason> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or(Reason::Bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(given: &[&str]) -> Value {
        let mut capabilities = Map::new();
        given.iter().for_each(|one| add(&mut capabilities, one).unwrap());
        Value::Object(capabilities)
    }

    #[test]
    fn each_form_is_the_capability_of_the_conventions() {
        assert_eq!(
            all(&["port=8080:80", "port=127.0.0.1:53:5353/UDP", "port=[fd00::1]:443:8443/sctp"]),
            json!({"portMappings": [
                {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
                {"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "127.0.0.1"},
                {"hostPort": 443, "containerPort": 8443, "protocol": "sctp", "hostIP": "fd00::1"},
            ]})
        );
        assert_eq!(
            all(&["bandwidth=ingressRate:10M,ingressburst:64k,egressRate:1G,egressBurst:500"]),
            json!({"bandwidth": {
                "ingressRate": 10_000_000, "ingressBurst": 64_000, "egressRate": 1_000_000_000, "egressBurst": 500,
            }})
        );
        assert_eq!(
            all(&["ips=10.0.0.5/24,fd00::5", "mac=02:00:00:00:00:01", "mac=02:00:00:00:00:02"]),
            json!({"ips": ["10.0.0.5/24", "fd00::5"], "mac": "02:00:00:00:00:02"})
        );
    }

    #[test]
    fn a_port_is_added_to_those_of_cap_args() {
        let mut capabilities = Map::new();
        capabilities.insert("portMappings".to_owned(), json!([{"hostPort": 1, "containerPort": 2}]));
        add(&mut capabilities, "port=3:4/tcp").unwrap();
        assert_eq!(capabilities["portMappings"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn other_forms_are_refused_with_the_reason() {
        for (given, reason) in [
            ("port", Reason::Form),
            ("port=80", Reason::Form),
            ("ips=", Reason::Form),
            ("dns=1.1.1.1", Reason::Form),
            ("port=70000:80", Reason::Port),
            ("port=80:x/tcp", Reason::Port),
            ("port=host:80:80", Reason::HostIp),
            ("port=fd00::1:80:80", Reason::HostIp),
            ("bandwidth=ingress:5", Reason::Key),
            ("bandwidth=10M", Reason::Form),
            ("bandwidth=ingressRate:M", Reason::Bits),
            ("bandwidth=ingressRate:99999999999999999999", Reason::Bits),
        ] {
            assert_eq!(add(&mut Map::new(), given).unwrap_err().reason, reason, "{given}");
        }
    }
}
