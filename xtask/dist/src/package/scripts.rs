// SPDX-License-Identifier: MIT OR Apache-2.0

//! The scripts that run when a package is installed or removed.

use super::Package;

/// Debian's scripts with a package's own part.
const DEB: [(&str, &str, &str); 7] = [
    ("slipway", "preinst", include_str!("scripts/slipway.preinst")),
    ("slipway", "postinst", include_str!("scripts/slipway.postinst")),
    ("slipway", "prerm", include_str!("scripts/slipway.prerm")),
    ("slipway", "postrm", include_str!("scripts/slipway.postrm")),
    ("slipwayd", "postinst", BARE),
    ("slipwayd", "prerm", BARE),
    ("slipwayd", "postrm", BARE),
];

/// A script with nothing but the part for systemd.
const BARE: &str = "#!/bin/sh\nset -e\n@SYSTEMD@\n";

/// The parts for systemd.
const SYSTEMD: [(&str, &str); 3] = [
    ("postinst", include_str!("scripts/systemd.postinst")),
    ("prerm", include_str!("scripts/systemd.prerm")),
    ("postrm", include_str!("scripts/systemd.postrm")),
];

/// Activates the package's postinst when another package changes the plugins: deb-triggers(5). dpkg 1.21 names a diverted
/// file by its own path when it is installed, and by the other one when it is removed.
pub(super) const TRIGGERS: (&str, &str) =
    ("slipway", "interest-noawait /usr/lib/cni\ninterest-noawait /usr/lib/slipway/reference\n");

#[derive(Debug)]
pub(super) struct RpmScripts {
    pub(super) after_installation: String,
    pub(super) before_removal: String,
    pub(super) after_removal: String,
}

/// Debian's scripts of a package with their names.
pub(super) fn deb(package: &Package) -> Vec<(&'static str, String)> {
    let own = DEB.iter().filter(|(of, ..)| *of == package.name);
    own.map(|(_, name, text)| {
        let systemd = SYSTEMD.iter().find(|(of, _)| of == name).map_or("", |(_, text)| text.trim_end());
        (*name, filled(&text.replace("@SYSTEMD@", systemd), package))
    })
    .collect()
}

pub(super) fn rpm(package: &Package) -> RpmScripts {
    RpmScripts {
        after_installation: filled(include_str!("scripts/rpm.post"), package),
        before_removal: filled(include_str!("scripts/rpm.preun"), package),
        after_removal: filled(include_str!("scripts/rpm.postun"), package),
    }
}

fn filled(text: &str, package: &Package) -> String {
    let service = package.units.first().copied().unwrap_or_default();
    text.replace("@PLUGINS@", &package.plugins.join(" "))
        .replace("@UNITS@", &package.units.join(" "))
        .replace("@SERVICE@", service)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use xtask_base::run::{self, tool};

    #[test]
    fn the_shell_reads_each_script() {
        for name in ["slipway", "slipwayd"] {
            let package = sample(name);
            let rpm = rpm(&package);
            let scripts = deb(&package).into_iter().map(|(_, text)| text);
            for text in scripts.chain([rpm.after_installation, rpm.before_removal, rpm.after_removal]) {
                run::feed(&mut tool("sh", &["-n"]), &text).unwrap();
                assert!(
                    !["@PLUGINS@", "@SYSTEMD@", "@UNITS@", "@SERVICE@"]
                        .iter()
                        .any(|word| text.contains(word))
                );
            }
        }
    }
}
