// SPDX-License-Identifier: MIT OR Apache-2.0

//! The order of the site's pages.

use std::path::Path;

use crate::links;
use xtask_base::error::{Error, Result};
use xtask_base::files;

/// Parts of the site with their pages: the four kinds of pages for users, reports of measurements and tests, and what
/// is for contributors. A page of `docs/x/` that follows `docs/x.md` is below it. A part without pages is left out.
const PARTS: [(&str, &[&str]); 6] = [
    (
        "Tutorials",
        &[
            "docs/tutorials/containerd.md",
            "docs/tutorials/podman.md",
            "docs/tutorials/kubernetes.md",
            "docs/tutorials/cluster.md",
            "docs/tutorials/from-the-reference.md",
        ],
    ),
    (
        "Tasks",
        &[
            "docs/operating.md",
            "docs/installing.md",
            "docs/packages.md",
            "docs/runtimes.md",
            "docs/podman.md",
            "docs/choosing-a-backend.md",
            "docs/moving-to-ebpf.md",
            "docs/migrating.md",
            "docs/compatibility.md",
            "docs/second-network.md",
            "docs/uplinks.md",
            "docs/thousand-pods.md",
            "docs/neighbours.md",
            "docs/inspecting.md",
            "docs/logs.md",
            "docs/removing.md",
            "docs/questions/port-does-not-answer.md",
            "docs/questions/ipv6-loopback-does-not-answer.md",
            "docs/questions/add-fails-with-code-11.md",
            "docs/questions/no-address-left.md",
            "docs/questions/node-not-ready.md",
            "docs/questions/container-cannot-reach-outside.md",
            "docs/questions/ruleset-was-flushed.md",
            "docs/questions/after-a-reboot.md",
            "docs/questions/back-to-the-reference-plugins.md",
            "docs/cluster/install.md",
            "docs/cluster/encryption.md",
            "docs/cluster/repairs.md",
        ],
    ),
    (
        "Reference",
        &[
            "docs/plugins.md",
            "docs/plugins/bandwidth.md",
            "docs/plugins/bridge.md",
            "docs/plugins/dhcp.md",
            "docs/plugins/dummy.md",
            "docs/plugins/firewall.md",
            "docs/plugins/flannel.md",
            "docs/plugins/host-device.md",
            "docs/plugins/host-local.md",
            "docs/plugins/ipvlan.md",
            "docs/plugins/loopback.md",
            "docs/plugins/macvlan.md",
            "docs/plugins/noop.md",
            "docs/plugins/portmap.md",
            "docs/plugins/ptp.md",
            "docs/plugins/sbr.md",
            "docs/plugins/static.md",
            "docs/plugins/tap.md",
            "docs/plugins/tuning.md",
            "docs/plugins/vlan.md",
            "docs/plugins/vrf.md",
            "docs/commands.md",
            "docs/errors.md",
            "docs/protocol.md",
            "docs/json.md",
            "docs/metrics.md",
            "docs/settings.md",
            "docs/dataplane/ebpf-reference.md",
            "docs/questions/what-slipway-changes.md",
            "docs/cluster/rights.md",
            "docs/security.md",
            "docs/pods.md",
            "docs/kubenet.md",
            "docs/cnitool.md",
            "docs/glossary.md",
            "docs/licences.md",
        ],
    ),
    (
        "Explanation",
        &[
            "docs/dataplane.md",
            "docs/dataplane/packet.md",
            "docs/dataplane/table.md",
            "docs/dataplane/ebpf.md",
            "docs/dataplane/iptables.md",
            "docs/dataplane/flowtable.md",
            "docs/dataplane/udp-gro.md",
            "docs/dataplane/services.md",
            "docs/dataplane/costs.md",
            "docs/cluster.md",
        ],
    ),
    (
        "Reports",
        &[
            "docs/reports/benchmarks.md",
            "docs/reports/add-and-del.md",
            "docs/reports/bursts.md",
            "docs/reports/callers.md",
            "docs/reports/packets.md",
            "docs/reports/rejected.md",
            "docs/reports/kernels.md",
            "docs/reports/network-matrix.md",
            "docs/reports/cluster.md",
            "docs/reports/reliability.md",
            "docs/reports/fuzzing.md",
        ],
    ),
    (
        "Contributing",
        &[
            ".github/CONTRIBUTING.md",
            "docs/ARCHITECTURE.md",
            "docs/testing.md",
            "docs/adding-a-plugin.md",
            "docs/runtime.md",
            "docs/releasing.md",
            "cni/kernel/README.md",
            "cni/netlink/README.md",
            "cni/runtime/README.md",
            "cni/spec/README.md",
            "ebpf/README.md",
            "vm-tests/README.md",
            "tests/fuzz/README.md",
            "CHANGELOG.md",
            ".github/CODE_OF_CONDUCT.md",
        ],
    ),
];

/// The front page.
pub(super) const FRONT: &str = "README.md";

/// Not part of the site: a form.
const LEFT_OUT: &str = ".github/pull_request_template.md";

/// All pages, by their paths from the root.
pub(super) fn pages() -> impl Iterator<Item = &'static str> {
    std::iter::once(FRONT).chain(PARTS.iter().flat_map(|(_, pages)| pages.iter().copied()))
}

/// The page's path in the site, with the ending `.md`: no hidden folders.
pub(super) fn place(page: &str) -> String {
    let page = page.strip_prefix(".github/").unwrap_or(page);
    if page == FRONT { "index.md".to_owned() } else { page.to_owned() }
}

/// mdBook's list of pages, with their first headings as titles.
pub(super) fn summary(root: &Path) -> Result<String> {
    let mut text = format!("# Summary\n\n[{}](index.md)\n", title(root, FRONT)?);
    for (part, pages) in PARTS.iter().filter(|(_, pages)| !pages.is_empty()) {
        text.push_str(&format!("\n# {part}\n\n"));
        let mut above = String::new();
        for page in *pages {
            let is_below = !above.is_empty() && page.starts_with(&above);
            if !is_below {
                above = page.strip_suffix(".md").map(|name| format!("{name}/")).unwrap_or_default();
            }
            let indent = if is_below { "    " } else { "" };
            text.push_str(&format!("{indent}- [{}]({})\n", title(root, page)?, place(page)));
        }
    }
    Ok(text)
}

fn title(root: &Path, page: &str) -> Result<String> {
    let path = root.join(page);
    let text = files::read(&path)?;
    let heading = text.lines().find_map(|line| line.strip_prefix("# "));
    heading
        .map(str::to_owned)
        .ok_or_else(|| Error::Failed(format!("{page} has no heading of the first level")))
}

/// The pages that the table lacks, has twice, or has although there is no such page.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let listed: Vec<&str> = pages().collect();
    let mut wrong = Vec::new();
    let mut found = Vec::new();
    for path in links::pages(root)? {
        let page = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        match listed.iter().filter(|listed| **listed == page).count() {
            0 if page != LEFT_OUT => wrong.push(format!("xtask/docs/src/site/contents.rs lacks {page}")),
            0 | 1 => {}
            times => wrong.push(format!("xtask/docs/src/site/contents.rs has {page} {times} times")),
        }
        found.push(page);
    }
    let gone = listed.iter().filter(|page| !found.iter().any(|found| found == *page));
    wrong
        .extend(gone.map(|page| format!("xtask/docs/src/site/contents.rs has {page}, which does not exist")));
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtask_base::workspace;

    #[test]
    fn each_page_is_in_the_site_once() {
        assert_eq!(check(workspace::root()).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn the_list_has_titles_and_pages_below_others() {
        let text = summary(workspace::root()).unwrap();
        assert!(text.starts_with("# Summary\n\n[Slipway](index.md)\n\n# T"), "{text}");
        assert!(text.contains("\n# Reference\n\n- [All plugins](docs/plugins.md)\n"), "{text}");
        assert!(text.contains("\n    - [bridge](docs/plugins/bridge.md)\n"), "{text}");
        assert!(text.contains("\n- [Contributing](CONTRIBUTING.md)\n"), "{text}");
    }
}
