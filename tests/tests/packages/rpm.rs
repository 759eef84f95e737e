// SPDX-License-Identifier: GPL-2.0-or-later

//! The rpm packages, with Debian's rpm in a separate system whose rpm database contains no other package.

use std::collections::BTreeSet;

use slipway_tests::skip;

use crate::{Machine, PACKAGES, folder};

#[test]
fn the_rpms_are_installed_upgraded_and_removed() {
    let Some(folder) = folder() else { skip!("packages and their systems") };
    let machine = Machine::start(&folder, "rpm");
    // Folders that belong to the package `filesystem` on rpm distributions.
    machine.run("cd /usr/share && mkdir -p licenses zsh/site-functions fish/vendor_completions.d");
    let before = machine.files();
    machine.run("rpm --initdb");
    let rpm = |words: &str| machine.run(&format!("rpm --nodeps {words}"));
    rpm(&format!("--install {PACKAGES}/old/slipway-*.rpm {PACKAGES}/old/slipwayd-*.rpm"));
    assert_eq!(machine.run("rpm --verify --nodeps slipway slipwayd"), "");
    let requires = machine.run("rpm --query --requires slipwayd");
    assert!(requires.lines().any(|line| line.starts_with("slipway = ")), "{requires}");
    let scripts = machine.run("rpm --query --scripts slipway");
    assert!(scripts.contains("slipway-dhcp.service"), "{scripts}");
    for program in ["/usr/bin/slipway version", "/usr/bin/slipwayd version"] {
        machine.run(program);
    }
    // The systems contain no licence texts, so each package must contain those that it names.
    for package in ["slipway", "slipwayd"] {
        let folder = format!("/usr/share/licenses/{package}");
        let named = machine.run(&format!(
            "sed -n 's/.* in the file \\(.*\\) next to this one[.]$/\\1/p' {folder}/copyright"
        ));
        let named: BTreeSet<&str> = named.lines().collect();
        let there = machine.run(&format!("ls {folder}"));
        assert_eq!(there.lines().filter(|name| *name != "copyright").collect::<BTreeSet<_>>(), named);
        let own = if package == "slipway" { "GPL-2" } else { "GPL-3" };
        assert!(
            named.contains(own) && named.contains("LGPL-2.1") && named.contains("Apache-2.0"),
            "{named:?}"
        );
        machine.run(&format!("grep -q 'END OF TERMS AND CONDITIONS' {folder}/{own}"));
        machine.run(&format!("! grep -q common-licenses {folder}/copyright"));
    }
    let plugin = "echo '{\"cniVersion\":\"1.0.0\"}' | CNI_COMMAND=VERSION /usr/lib/slipway/cni/bridge";
    assert!(machine.run(plugin).contains("\"1.1.0\""));
    // netavark looks for drivers here.
    assert!(machine.run("/usr/lib/netavark/slipway info").contains("\"api_version\""));
    machine.run("echo SLIPWAYD_OPTIONS=--tunnel=always > /etc/default/slipwayd");
    rpm(&format!("--upgrade {PACKAGES}/new/slipway-*.rpm {PACKAGES}/new/slipwayd-*.rpm"));
    assert_eq!(machine.run("cat /etc/default/slipwayd"), "SLIPWAYD_OPTIONS=--tunnel=always\n");
    assert_eq!(machine.run("rpm --query --all | wc -l").trim(), "2");
    rpm("--erase slipwayd slipway");
    // rpm keeps a changed configuration file under this name.
    machine.run("rm /etc/default/slipwayd.rpmsave");
    machine.assert_same_files(&before);
}
