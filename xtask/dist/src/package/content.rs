// SPDX-License-Identifier: MIT OR Apache-2.0

//! The entries of the packages.

use std::collections::BTreeMap;
use std::path::Path;

use super::copyright::Copyright;
use super::{Build, Entry, Format, Package, Processor, Role, deb, maintainer, time};
use crate::built::{Built, Program};
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{self, tool};

/// The folder of the plugins.
const PLUGINS: &str = "usr/lib/slipway/cni";
/// The folder of Debian's runtimes, where it has links to the chosen set.
const DEBIAN_PLUGINS: &str = "usr/lib/cni";
const UNITS: &str = "usr/lib/systemd/system";

/// The units of the dhcp daemon in the sources, and in the package: the reference's package has the former names.
const DHCP_UNITS: [(&str, &str); 2] =
    [("cni-dhcp.service", "slipway-dhcp.service"), ("cni-dhcp.socket", "slipway-dhcp.socket")];

/// The content that all formats share.
#[derive(Debug)]
pub(super) struct Source {
    triple: String,
    version: String,
    time: u64,
    maintainer: String,
    plugins: Vec<String>,
    /// slipwayd's unit, as `slipwayd render systemd` prints it.
    unit: String,
    /// Manual pages and completions, by their paths below a share directory.
    share: BTreeMap<String, Vec<u8>>,
    /// The documentation, by paths in the checkout.
    pages: BTreeMap<String, Vec<u8>>,
    /// The units of the dhcp daemon.
    dhcp: Vec<(&'static str, String)>,
}

impl Source {
    /// Reads the documentation of the checkout and what the build has made.
    pub(super) fn read(build: &Build<'_>) -> Result<Self> {
        let Built { share, triple, plugins, unit, .. } = build.built;
        let words = [
            "README.md",
            "CHANGELOG.md",
            "docs/*.md",
            "docs/*.yaml",
            "docs/slipway-dashboard.json",
            "docs/images/*",
        ];
        let mut list = tool("git", &["ls-files", "--cached", "--others", "--exclude-standard", "--"]);
        let listed = run::capture(list.args(words).current_dir(xtask_base::workspace::root()))?;
        let shared = files::below(share, |_| true)?;
        let inner = shared.iter().filter_map(|path| path.strip_prefix(share).ok());
        let shared: Vec<String> = inner.map(|path| path.display().to_string()).collect();
        let units = build.checkout.join("cni/slipway/systemd");
        let dhcp = DHCP_UNITS.iter().map(|(from, to)| Ok((*to, dhcp_unit(&text(&units.join(from))?))));
        Ok(Self {
            triple: triple.clone(),
            version: build.version.to_owned(),
            time: time()?,
            maintainer: maintainer(),
            plugins: plugins.clone(),
            unit: agent_unit(unit)?,
            share: contents(share, &shared)?,
            pages: contents(build.checkout, &listed.lines().map(str::to_owned).collect::<Vec<_>>())?,
            dhcp: dhcp.collect::<Result<_>>()?,
        })
    }
}

fn text(path: &Path) -> Result<String> {
    files::read(path)
}

fn contents(folder: &Path, names: &[String]) -> Result<BTreeMap<String, Vec<u8>>> {
    let read = |name: &String| {
        let path = folder.join(name);
        Ok((name.clone(), files::read_bytes(&path)?))
    };
    names.iter().map(read).collect()
}

/// A unit of the dhcp daemon for the package's paths and names.
fn dhcp_unit(text: &str) -> String {
    let text = text.replace("/opt/cni/bin/dhcp", &format!("/{PLUGINS}/dhcp"));
    let own = DHCP_UNITS.iter().fold(text, |text, (from, to)| text.replace(from, to));
    let [others, _] = ["cni-dhcp.service cni-dhcp.socket", ""];
    own.replace(
        "[Unit]\n",
        &format!("[Unit]\n# The reference's listen on the same socket.\nConflicts={others}\n"),
    )
}

/// The unit that `slipwayd render systemd` prints, with the package's paths, and with options from the file that it reads
/// anyway.
fn agent_unit(rendered: &str) -> Result<String> {
    let own = "ExecStart=/opt/cni/bin/slipwayd run \n";
    if !rendered.contains(own.trim_end()) {
        return Err(Error::Failed(format!("`slipwayd render systemd` prints no {own:?}")));
    }
    let packaged = format!("ExecStart=/usr/bin/slipwayd run --slipway=/{PLUGINS}/slipway $SLIPWAYD_OPTIONS");
    Ok(rendered.replace(own.trim_end(), &packaged))
}

/// The package of a program.
pub(super) fn package(
    program: Program,
    binary: &Path,
    format: Format,
    source: &Source,
    copyright: &Copyright,
) -> Result<Package> {
    let binary = files::read_bytes(binary)?;
    let mut tree = Tree { name: program.name, format, entries: BTreeMap::new() };
    tree.share(source)?;
    tree.copyright(copyright);
    tree.changelog(source)?;
    let about = match program.name {
        "slipway" => {
            tree.plugins(binary, source);
            &SLIPWAY
        }
        _ => {
            tree.agent(binary, source);
            &SLIPWAYD
        }
    };
    Ok(Package {
        name: program.name,
        version: source.version.clone(),
        processor: Processor::of(&source.triple)?,
        summary: about.summary,
        description: about.description,
        licence: about.licence,
        depends: about.depends,
        units: about.units,
        entries: tree.entries,
        plugins: source.plugins.clone(),
        time: source.time,
        maintainer: source.maintainer.clone(),
    })
}

/// The fields that only one package has.
struct About {
    summary: &'static str,
    description: &'static [&'static str],
    licence: &'static str,
    depends: Option<&'static str>,
    units: &'static [&'static str],
}

const SLIPWAY: About = About {
    summary: "CNI plugins with an nftables and eBPF dataplane",
    description: &[
        "Slipway replaces the reference CNI plugins: names, configuration, results\n\
         and reservations on disk stay the same. Published ports and masquerade are\n\
         elements of nftables maps or BPF programs, so that neither a packet nor an\n\
         ADD nor a DEL gets slower with the number of containers.",
        "The plugins can be installed next to those of the reference; either set\n\
         can be chosen.",
    ],
    licence: "GPL-2.0-or-later",
    depends: None,
    units: &["slipway-dhcp.service", "slipway-dhcp.socket"],
};

const SLIPWAYD: About = About {
    summary: "Node agent for the network of a Kubernetes cluster",
    description: &["slipwayd keeps a node's routes, tunnels and rules as the Nodes of its\n\
         Kubernetes cluster need them, repairs what other programs damage, and\n\
         attaches pods to several networks."],
    licence: "GPL-3.0-or-later",
    depends: Some("slipway"),
    units: &["slipwayd.service"],
};

/// The file with the environment of slipwayd's unit.
const DEFAULTS: &str = "\
# Environment of slipwayd.service: slipwayd-run(8). Changes take effect with `systemctl restart slipwayd`.

# Options, as in: --cluster-cidr=10.244.0.0/16 --tunnel=always
SLIPWAYD_OPTIONS=\"\"

# The name of this node's Node, if it is not the host's.
#NODE_NAME=

# The access to the API server.
#KUBECONFIG=/etc/kubernetes/slipwayd.conf
";

/// The entries of a package as they are collected.
struct Tree {
    name: &'static str,
    format: Format,
    entries: BTreeMap<String, Entry>,
}

impl Tree {
    fn file(&mut self, path: String, content: impl Into<Vec<u8>>, role: Role) {
        self.entries.insert(path, Entry::File(content.into(), role));
    }

    fn link(&mut self, path: &str, target: &str) {
        self.entries.insert(path.to_owned(), Entry::Link(target.to_owned()));
    }

    /// The binary, a link for each plugin next to it, and the units of the dhcp daemon.
    fn plugins(&mut self, binary: Vec<u8>, source: &Source) {
        self.file(format!("{PLUGINS}/slipway"), binary, Role::Program);
        self.link("usr/bin/slipway", "../lib/slipway/cni/slipway");
        self.link(&format!("{PLUGINS}/cnitool"), "slipway");
        // Where podman looks for drivers of netavark.
        self.link("usr/lib/netavark/slipway", "../slipway/cni/slipway");
        for name in &source.plugins {
            self.link(&format!("{PLUGINS}/{name}"), "slipway");
            if self.format == Format::Deb {
                self.link(&format!("{DEBIAN_PLUGINS}/{name}"), &format!("../slipway/chosen/{name}"));
            }
        }
        if self.format == Format::Deb {
            self.entries.insert("usr/lib/slipway/reference".to_owned(), Entry::Folder);
        }
        for (name, text) in &source.dhcp {
            self.file(format!("{UNITS}/{name}"), text.as_bytes(), Role::Other);
        }
        for (name, content) in &source.pages {
            self.file(format!("usr/share/doc/slipway/{name}"), content.clone(), Role::Documentation);
        }
    }

    fn agent(&mut self, binary: Vec<u8>, source: &Source) {
        self.file("usr/bin/slipwayd".to_owned(), binary, Role::Program);
        self.file(format!("{UNITS}/slipwayd.service"), source.unit.as_bytes(), Role::Other);
        self.file("etc/default/slipwayd".to_owned(), DEFAULTS, Role::Configuration);
    }

    /// The program's manual pages and completions.
    fn share(&mut self, source: &Source) -> Result<()> {
        for (path, content) in &source.share {
            let file = path.rsplit('/').next().unwrap_or_default();
            let words = file.trim_start_matches('_').split(['.', '-']).next();
            if words != Some(self.name) {
                continue;
            }
            let path = match self.format {
                Format::Deb => path.replace("zsh/site-functions", "zsh/vendor-completions"),
                Format::Rpm => path.clone(),
            };
            if path.starts_with("man/") {
                let content = compressed(content)?;
                self.file(format!("usr/share/{path}.gz"), content, Role::Documentation);
            } else {
                self.file(format!("usr/share/{path}"), content.clone(), Role::Other);
            }
        }
        Ok(())
    }

    fn copyright(&mut self, copyright: &Copyright) {
        let name = self.name;
        let text = copyright.file(self.format);
        match self.format {
            Format::Deb => self.file(format!("usr/share/doc/{name}/copyright"), text, Role::Documentation),
            Format::Rpm => {
                let folder = format!("usr/share/licenses/{name}");
                self.file(format!("{folder}/copyright"), text, Role::Licence);
                for (file, text) in copyright.texts() {
                    self.file(format!("{folder}/{file}"), text, Role::Licence);
                }
            }
        }
    }

    fn changelog(&mut self, source: &Source) -> Result<()> {
        let name = self.name;
        if self.format == Format::Rpm {
            return Ok(());
        }
        let changes = source.pages.get("CHANGELOG.md").map_or(&[][..], Vec::as_slice);
        self.file(format!("usr/share/doc/{name}/changelog.gz"), compressed(changes)?, Role::Documentation);
        let date =
            run::capture(tool("date", &["--utc", "--rfc-email", "--date"]).arg(format!("@{}", source.time)))?;
        let entry = format!(
            "slipway ({}-{}) stable; urgency=medium\n\n  * Version {}: see changelog.gz.\n\n -- {}  {}\n",
            source.version,
            super::REVISION,
            source.version,
            source.maintainer,
            date.trim(),
        );
        let path = format!("usr/share/doc/{name}/changelog.Debian.gz");
        self.file(path, compressed(entry.as_bytes())?, Role::Documentation);
        let overrides = super::lint::overrides(name);
        self.file(format!("usr/share/lintian/overrides/{name}"), overrides, Role::Other);
        Ok(())
    }
}

fn compressed(bytes: &[u8]) -> Result<Vec<u8>> {
    deb::compressed(bytes).map_err(|e| Error::system("compress a page", e))
}
