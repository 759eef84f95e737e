// SPDX-License-Identifier: GPL-2.0-or-later

//! Links whose router advertisements the kernel ignores since the node forwards IPv6 packets.

use cni_kernel::route::{Link, RouteSocket};

use super::{Finding, State, judged};

/// A finding for each link on which a router was learnt before forwarding was switched on by another program. (A plugin
/// keeps these routes, see `cni_kernel::forwarding`.)
pub(super) fn findings() -> Vec<Finding> {
    judged("router advertisements", RouteSocket::open().and_then(|route| route.links()), |links| {
        links.iter().filter(|link| ignores_its_router(link)).map(ignored).collect::<Vec<_>>()
    })
}

/// True if the kernel has accepted an advertisement on the link, which sets the flag, but does not accept any now. A
/// kernel that forwards accepts advertisements only if `accept_ra` is 2. With 0, another program (networkd,
/// NetworkManager) handles them.
fn ignores_its_router(link: &Link) -> bool {
    link.up && link.has_router && link.forwards_ipv6 && !matches!(link.accept_ra, 0 | 2)
}

fn ignored(link: &Link) -> Finding {
    let name = &link.name;
    let setting = match name.contains('.') {
        // sysctl(8) reads both forms.
        true => format!("net/ipv6/conf/{name}/accept_ra"),
        false => format!("net.ipv6.conf.{name}.accept_ra"),
    };
    Finding::new(
        format!("router advertisements at {name}"),
        State::Warning,
        format!("ignored: the node forwards IPv6 packets, and {setting} is {}", link.accept_ra),
    )
    .reason("IPv6 routes and addresses that a router advertised there are lost, or expire")
    .fix(format!(
        "`sysctl -w {setting}=2`, and the line `{setting} = 2` in a file below /etc/sysctl.d; the router's next \
         advertisement brings the routes back, at once after `rdisc6 {name}` (package ndisc6)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_link_whose_router_is_ignored_counts() {
        let lost = Link {
            name: "eth0.5".to_owned(),
            up: true,
            has_router: true,
            forwards_ipv6: true,
            accept_ra: 1,
            ..Link::default()
        };
        assert!(ignores_its_router(&lost));
        for sound in [
            Link { accept_ra: 0, ..lost.clone() },
            Link { accept_ra: 2, ..lost.clone() },
            Link { has_router: false, ..lost.clone() },
            Link { forwards_ipv6: false, ..lost.clone() },
            Link { up: false, ..lost.clone() },
        ] {
            assert!(!ignores_its_router(&sound), "{sound:?}");
        }
        let fix = ignored(&lost).fix;
        assert!(fix.contains("`sysctl -w net/ipv6/conf/eth0.5/accept_ra=2`"), "{fix}");
    }
}
