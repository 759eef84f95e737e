// SPDX-License-Identifier: GPL-2.0-or-later

//! Installation and removal, in any order with the reference plugins' package.

use slipway_tests::skip;

use crate::{Machine, PACKAGES, PLUGINS, folder};

/// The plugin whose link shows which set is chosen.
const BRIDGE: &str = "/usr/lib/cni/bridge";
const OWN: &str = "/usr/lib/slipway/cni/slipway";
const REFERENCE: &str = "/usr/lib/slipway/reference/bridge";

/// The plugin sets that an administrator can choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    Slipway,
    Reference,
}

impl Machine {
    pub(crate) fn install(&self, package: &str) {
        self.run(&format!("dpkg --force-depends -i {PACKAGES}/{package}_*.deb"));
        self.audit();
    }

    fn dpkg(&self, words: &str) {
        self.run(&format!("dpkg --force-depends {words}"));
        self.audit();
    }

    /// Asserts that dpkg finds no package in an intermediate state.
    pub(crate) fn audit(&self) {
        assert_eq!(self.run("dpkg --audit"), "");
    }

    /// Installs the reference plugins' package of the system's suite, without its dependencies, which are not needed
    /// here.
    fn install_reference(&self, suite: &str) {
        self.run(&format!("dpkg --force-depends -i {PACKAGES}/reference/{suite}.deb"));
        self.audit();
    }

    /// Unpacks the reference plugins without a package, as their archive does.
    fn unpack_reference(&self, suite: &str) {
        self.run(&format!(
            "dpkg-deb --fsys-tarfile {PACKAGES}/reference/{suite}.deb | tar -x --keep-directory-symlink -C / \
             ./usr/lib/cni"
        ));
    }

    /// Lets the binary install itself, as on a node without packages.
    fn install_by_itself(&self, words: &str) {
        self.run(&format!(
            "dpkg-deb -x {PACKAGES}/new/slipway_*.deb /tmp/unpacked\n\
             /tmp/unpacked/usr/lib/slipway/cni/slipway install --to {PLUGINS} {words}"
        ));
    }

    /// Makes another package that contains a file of this one, a conflict that dpkg notices late.
    fn install_obstacle(&self) {
        self.run(
            "mkdir -p /tmp/other/DEBIAN /tmp/other/usr/share/doc/slipway\n\
             touch /tmp/other/usr/share/doc/slipway/README.md\n\
             printf '%s\\n' 'Package: other' 'Version: 1' 'Architecture: all' \
             'Maintainer: a <a@example.org>' 'Description: other' > /tmp/other/DEBIAN/control\n\
             dpkg-deb --build /tmp/other /tmp/other.deb && dpkg -i /tmp/other.deb",
        );
    }

    /// Asserts that an installation fails with this message and leaves the system as it was.
    #[track_caller]
    fn assert_refused(&self, message: &str) {
        let before = self.files();
        let failed = self.try_run(&format!("dpkg -i {PACKAGES}/new/slipway_*.deb"));
        assert!(failed.code != Some(0) && failed.stderr.contains(message), "{failed}");
        self.audit();
        self.assert_same_files(&before);
        assert_eq!(self.run("dpkg-divert --list | grep -c slipway || true").trim(), "0");
    }

    #[track_caller]
    fn assert_answers(&self, plugin: &str) {
        self.run(&format!("echo '{{\"cniVersion\":\"1.0.0\"}}' | CNI_COMMAND=VERSION {PLUGINS}/{plugin}"));
    }

    fn choose(&self, set: Set) {
        let folder = if set == Set::Slipway { "cni" } else { "reference" };
        self.run(&format!("update-alternatives --set cni-plugins /usr/lib/slipway/{folder}"));
    }

    /// Asserts which set a runtime gets, judged by the plugin bridge, and that the reference plugins are complete.
    #[track_caller]
    fn assert_chosen(&self, set: Set) {
        let want = if set == Set::Slipway { OWN } else { REFERENCE };
        assert_eq!(self.run(&format!("readlink -f {BRIDGE}")).trim(), want);
        let answer = self.run(&format!("echo '{{\"cniVersion\":\"1.0.0\"}}' | CNI_COMMAND=VERSION {BRIDGE}"));
        // The reference plugins of neither suite support CNI 1.1.0.
        assert_eq!(answer.contains("\"1.1.0\""), set == Set::Slipway, "{answer}");
        assert_eq!(self.run("dpkg --verify slipway"), "");
        self.assert_reference_whole("/usr/lib/slipway/reference");
    }

    /// Compares the reference plugins with the checksums of their package, if that is installed. (`dpkg --verify` in
    /// Debian 13 does not know about diversions.)
    #[track_caller]
    fn assert_reference_whole(&self, folder: &str) {
        let sums = "/var/lib/dpkg/info/containernetworking-plugins.md5sums";
        let script = format!(
            "if [ -f {sums} ]; then sed -n 's| usr/lib/cni/| {folder}/|p' {sums} | md5sum --check --strict --quiet; fi"
        );
        assert_eq!(self.run(&script), "");
    }

    /// Asserts that the reference plugins are where their package installs them.
    fn assert_reference_alone(&self) {
        assert_eq!(self.run(&format!("find {PLUGINS} ! -type d ! -type f")), "");
        self.assert_reference_whole(PLUGINS);
        let diverted = self.run("dpkg-divert --list | grep -c slipway || true");
        assert_eq!(diverted.trim(), "0");
    }
}

/// Starts a system, or skips the calling test if there is none.
macro_rules! machine {
    ($suite:expr) => {
        match folder() {
            Some(folder) => Machine::start(&folder, $suite),
            None => skip!("packages and their systems"),
        }
    };
}

fn nothing_is_left(machine: &Machine, _suite: &str) {
    let before = machine.files();
    machine.install("new/slipway");
    machine.install("new/slipwayd");
    machine.assert_chosen(Set::Slipway);
    let unit = machine.run("cat /usr/lib/systemd/system/slipwayd.service");
    assert!(unit.contains("\nExecStart=/usr/bin/slipwayd run "), "{unit}");
    machine.run("slipway version && slipwayd version && test -s /usr/share/man/man8/slipway.8.gz");
    // netavark looks for drivers here.
    assert_eq!(machine.run("readlink -f /usr/lib/netavark/slipway").trim(), OWN);
    assert!(machine.run("/usr/lib/netavark/slipway info").contains("\"api_version\""));
    // Neither unit is enabled, because the administrator has not enabled it.
    assert_eq!(machine.run("find /etc/systemd/system -name 'slipway*'"), "");
    for package in ["new/slipwayd", "new/slipway"] {
        machine.install(package);
    }
    machine.assert_chosen(Set::Slipway);
    machine.run("echo SLIPWAYD_OPTIONS=--tunnel=always > /etc/default/slipwayd");
    machine.install("new/slipwayd");
    assert_eq!(machine.run("cat /etc/default/slipwayd"), "SLIPWAYD_OPTIONS=--tunnel=always\n");
    machine.dpkg("--remove slipwayd slipway");
    machine.run("test -f /etc/default/slipwayd && test ! -e /usr/lib/slipway && test ! -e /usr/lib/cni");
    machine.run("mkdir -p /var/lib/cni/dhcp && touch /var/lib/cni/dhcp/net:pod:eth0");
    machine.dpkg("--purge slipwayd slipway");
    machine.assert_same_files(&before);
    assert_eq!(machine.run("dpkg --get-selections 'slipway*' 2>/dev/null || true"), "");
}

fn slipway_before_the_reference(machine: &Machine, suite: &str) {
    let before = machine.files();
    machine.install("old/slipway");
    machine.install_reference(suite);
    machine.assert_chosen(Set::Slipway);
    machine.choose(Set::Reference);
    machine.assert_chosen(Set::Reference);
    // The choice survives new versions of both packages.
    machine.install_reference(suite);
    machine.install("new/slipway");
    machine.assert_chosen(Set::Reference);
    // If the chosen set is removed, the other one is used. Its return does not change that.
    machine.dpkg("--purge containernetworking-plugins");
    machine.assert_chosen(Set::Slipway);
    machine.install_reference(suite);
    machine.assert_chosen(Set::Slipway);
    machine.dpkg("--purge slipway");
    machine.assert_reference_alone();
    machine.dpkg("--purge containernetworking-plugins");
    machine.assert_same_files(&before);
}

fn the_reference_before_slipway(machine: &Machine, suite: &str) {
    let before = machine.files();
    machine.install_reference(suite);
    let with_reference = machine.files();
    machine.install("new/slipway");
    machine.assert_chosen(Set::Reference);
    machine.choose(Set::Slipway);
    machine.install("new/slipway");
    machine.assert_chosen(Set::Slipway);
    machine.dpkg("--remove slipway");
    machine.assert_reference_alone();
    machine.install("new/slipway");
    machine.assert_chosen(Set::Reference);
    machine.dpkg("--purge slipway");
    machine.assert_same_files(&with_reference);
    machine.install("new/slipway");
    machine.dpkg("--remove containernetworking-plugins");
    machine.assert_chosen(Set::Slipway);
    machine.dpkg("--purge slipway");
    machine.dpkg("--purge containernetworking-plugins");
    machine.assert_same_files(&before);
}

/// After the failure, the reference plugins are back in their places.
fn a_failed_installation_is_undone(machine: &Machine, suite: &str) {
    machine.install_reference(suite);
    machine.install_obstacle();
    machine.assert_refused("which is also in package other");
    machine.assert_reference_alone();
}

fn plugins_that_installed_themselves_give_way(machine: &Machine, _suite: &str) {
    let before = machine.files();
    machine.install_by_itself("--share-dir /srv");
    machine.install_obstacle();
    machine.assert_refused("which is also in package other");
    machine.run("dpkg --purge other");
    // A runtime may call the plugins between unpacking and configuration.
    machine.run(&format!("dpkg --unpack {PACKAGES}/new/slipway_*.deb"));
    machine.assert_answers("bridge");
    machine.run("dpkg --configure slipway");
    machine.assert_chosen(Set::Slipway);
    assert_eq!(machine.run("ls -A /usr/lib/slipway/reference"), "");
    assert_eq!(machine.run(&format!("find {PLUGINS} ! -type d ! -lname '../slipway/chosen/*'")), "");
    machine.install("new/slipway");
    machine.assert_chosen(Set::Slipway);
    machine.dpkg("--purge slipway");
    machine.assert_same_files(&before);
}

fn plugins_that_were_replaced_are_the_reference_again(machine: &Machine, suite: &str) {
    machine.install_reference(suite);
    let with_reference = machine.files();
    machine.install_by_itself("--replace");
    machine.install("new/slipway");
    machine.assert_chosen(Set::Slipway);
    machine.choose(Set::Reference);
    machine.assert_chosen(Set::Reference);
    machine.dpkg("--purge slipway");
    machine.assert_reference_alone();
    machine.assert_same_files(&with_reference);
}

fn plugins_of_no_package_return(machine: &Machine, suite: &str) {
    machine.unpack_reference(suite);
    let before = machine.files();
    machine.install("new/slipway");
    machine.assert_chosen(Set::Reference);
    machine.choose(Set::Slipway);
    machine.assert_chosen(Set::Slipway);
    machine.dpkg("--purge slipway");
    machine.assert_same_files(&before);
}

fn links_lead_where_they_did(machine: &Machine, suite: &str) {
    machine.unpack_reference(suite);
    // The links lead to another directory, to another file in this one, and to nothing.
    machine.run(&format!(
        "mkdir -p /opt/cni/bin && cd {PLUGINS} && mv bridge /opt/cni/bin && mv host-local other && rm tuning\n\
         ln -s ../../../opt/cni/bin/bridge bridge && ln -s other host-local && ln -s gone tuning"
    ));
    let before = machine.files();
    machine.install("new/slipway");
    for plugin in ["bridge", "host-local", "portmap"] {
        machine.assert_answers(plugin);
    }
    assert_eq!(
        machine.run(&format!("readlink -f {BRIDGE} {PLUGINS}/host-local")),
        "/opt/cni/bin/bridge\n/usr/lib/cni/other\n"
    );
    machine.choose(Set::Slipway);
    machine.assert_chosen(Set::Slipway);
    machine.dpkg("--purge slipway");
    machine.assert_same_files(&before);
}

fn links_to_nothing_are_no_reference(machine: &Machine, _suite: &str) {
    machine.run(&format!("mkdir {PLUGINS} && ln -s /opt/gone/bridge {BRIDGE}"));
    let before = machine.files();
    machine.install("new/slipway");
    machine.assert_chosen(Set::Slipway);
    machine.dpkg("--purge slipway");
    machine.assert_same_files(&before);
}

/// dpkg would remove the link together with the package, and move the plugins behind it.
fn a_linked_directory_is_refused(machine: &Machine, suite: &str) {
    let refusal = "/usr/lib/cni is a symbolic link";
    machine.run(&format!("ln -s /opt/cni/bin {PLUGINS}"));
    machine.assert_refused(refusal);
    machine.run("mkdir -p /opt/cni/bin");
    machine.unpack_reference(suite);
    machine.run("test -f /opt/cni/bin/bridge");
    machine.assert_refused(refusal);
}

/// Generates the tests, each for these suites of Debian.
macro_rules! tests {
    ($($suite:ident)* => $names:tt) => { $(tests! { @$suite $names })* };
    (@$suite:ident { $($name:ident)* }) => {
        mod $suite {
            use super::*;

            $(
                #[test]
                fn $name() {
                    super::$name(&machine!(stringify!($suite)), stringify!($suite));
                }
            )*
        }
    };
}

tests! { bookworm trixie => {
    nothing_is_left
    slipway_before_the_reference
    the_reference_before_slipway
    a_failed_installation_is_undone
    plugins_that_installed_themselves_give_way
    plugins_that_were_replaced_are_the_reference_again
    plugins_of_no_package_return
    links_lead_where_they_did
    links_to_nothing_are_no_reference
    a_linked_directory_is_refused
} }
