// SPDX-License-Identifier: GPL-2.0-or-later

//! The key `nonMasqueradeCIDRs`, of plugins and of the node's settings.

use cni_spec::text::parse_net;
use ipnet::IpNet;

/// Why an element of the list cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CidrError {
    #[error("key \"nonMasqueradeCIDRs\": {0:?} is not a network, such as \"10.0.0.0/8\" or \"fd00::/8\"")]
    NoNetwork(String),
    #[error("key \"nonMasqueradeCIDRs\": {given} has host bits set: the network is {network}")]
    HostBits { given: IpNet, network: IpNet },
    #[error("key \"nonMasqueradeCIDRs\": {0} is an IPv4-mapped IPv6 network: write the IPv4 network")]
    Mapped(IpNet),
}

/// Reads the list.
///
/// # Errors
/// [`CidrError`] with the first element that cannot be used.
pub(crate) fn networks(texts: &[String]) -> Result<Vec<IpNet>, CidrError> {
    texts.iter().map(|text| network(text)).collect()
}

fn network(text: &str) -> Result<IpNet, CidrError> {
    let given = parse_net(text).ok_or_else(|| CidrError::NoNetwork(text.to_owned()))?;
    match given {
        IpNet::V6(net) if net.addr().to_ipv4_mapped().is_some() => Err(CidrError::Mapped(given)),
        _ if given != given.trunc() => Err(CidrError::HostBits { given, network: given.trunc() }),
        _ => Ok(given),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_or_refused_by_name() {
        let read = |text: &str| networks(&[text.to_owned()]).map_err(|error| error.to_string());
        for right in ["10.0.0.0/8", "0.0.0.0/0", "192.0.2.1/32", "fd00::/8", "::/0", "2001:db8::1/128"] {
            assert_eq!(read(right), Ok(vec![right.parse().unwrap()]));
        }
        for (wrong, why) in [
            ("10.0.0.0", "\"10.0.0.0\" is not a network"),
            ("", "\"\" is not a network"),
            ("10.0.0.0/33", "\"10.0.0.0/33\" is not a network"),
            ("10.0.0.0/08", "\"10.0.0.0/08\" is not a network"),
            ("010.0.0.0/8", "\"010.0.0.0/8\" is not a network"),
            ("10.1.0.0/8", "10.1.0.0/8 has host bits set: the network is 10.0.0.0/8"),
            ("fd00::1/64", "fd00::1/64 has host bits set: the network is fd00::/64"),
            (
                "::ffff:10.0.0.0/104",
                "::ffff:10.0.0.0/104 is an IPv4-mapped IPv6 network: write the IPv4 network",
            ),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(
                error.starts_with("key \"nonMasqueradeCIDRs\": ") && error.contains(why),
                "{wrong}: {error}"
            );
        }
    }
}
