// SPDX-License-Identifier: GPL-2.0-or-later

//! The rpm packages, with rpm of Debian in a system of its own: its database knows no other package.

use slipway_tests::skip;

use crate::{Machine, PACKAGES, folder};

#[test]
fn installation_upgrade_and_removal() {
    let Some(folder) = folder() else { skip!("packages and their systems") };
    let machine = Machine::start(&folder, "rpm");
    // Folders that the package `filesystem` of rpm distributions has.
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
    let plugin = "echo '{\"cniVersion\":\"1.0.0\"}' | CNI_COMMAND=VERSION /usr/lib/slipway/cni/bridge";
    assert!(machine.run(plugin).contains("\"1.1.0\""));
    machine.run("echo SLIPWAYD_OPTIONS=--tunnel=always > /etc/default/slipwayd");
    rpm(&format!("--upgrade {PACKAGES}/new/slipway-*.rpm {PACKAGES}/new/slipwayd-*.rpm"));
    assert_eq!(machine.run("cat /etc/default/slipwayd"), "SLIPWAYD_OPTIONS=--tunnel=always\n");
    assert_eq!(machine.run("rpm --query --all | wc -l").trim(), "2");
    rpm("--erase slipwayd slipway");
    // rpm keeps a configuration that was changed.
    machine.run("rm /etc/default/slipwayd.rpmsave");
    machine.assert_same_files(&before);
}
