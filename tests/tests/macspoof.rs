// SPDX-License-Identifier: GPL-2.0-or-later

//! The guard of `macspoofchk`: its elements, their owners, and repairs. The suite `bridge` tests it with frames that
//! have another address.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::process::{Command, Stdio};

use cni_dataplane::macspoof;
use cni_kernel::mac::Mac;
use cni_spec::Attachment;
use slipway_tests::in_namespace;

fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).stdin(Stdio::null()).output().expect("start sh");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{script}\nstdout: {}\nstderr: {}",
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

fn attachment(container: &str) -> Attachment {
    Attachment::new("net", container, "eth0").unwrap()
}

const MAC: Mac = Mac([2, 0, 0, 0, 0, 0x11]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 0x99]);

#[test]
fn an_owner_replaces_its_own_guard_and_displaces_a_former_owner_of_the_interface() {
    in_namespace(|| {
        let elements = || sh("nft list table bridge slipway").matches("comment \"slipway1").count();
        macspoof::protect(&attachment("c1"), "vh1", MAC).unwrap();
        macspoof::protect(&attachment("c1"), "vh1", MAC).unwrap();
        macspoof::protect(&attachment("c1"), "vh1", OTHER).unwrap();
        assert!(macspoof::check(&attachment("c1"), "vh1", MAC).is_err());
        macspoof::check(&attachment("c1"), "vh1", OTHER).unwrap();
        assert_eq!(elements(), 3);
        macspoof::protect(&attachment("c2"), "vh1", MAC).unwrap();
        macspoof::check(&attachment("c2"), "vh1", MAC).unwrap();
        assert!(macspoof::check(&attachment("c1"), "vh1", OTHER).is_err());
        assert_eq!(elements(), 3);
    });
}

#[test]
fn a_flushed_table_is_repaired_and_a_foreign_one_is_left_alone() {
    in_namespace(|| {
        macspoof::protect(&attachment("c1"), "vh1", MAC).unwrap();
        sh("nft flush chain bridge slipway prerouting; nft flush set bridge slipway guarded");
        assert!(macspoof::check(&attachment("c1"), "vh1", MAC).is_err());
        macspoof::protect(&attachment("c1"), "vh1", MAC).unwrap();
        macspoof::check(&attachment("c1"), "vh1", MAC).unwrap();
        sh("nft delete table bridge slipway; nft add table bridge slipway");
        let error = macspoof::protect(&attachment("c1"), "vh1", MAC).unwrap_err().to_string();
        assert!(error.contains("table bridge slipway was not made by slipway"), "{error}");
    });
}

#[test]
fn retain_removes_only_what_is_this_networks_and_not_valid() {
    in_namespace(|| {
        assert_eq!(macspoof::retain("net", &[]).unwrap(), 0);
        let other = Attachment::new("other", "c3", "eth0").unwrap();
        macspoof::protect(&attachment("c1"), "vh1", MAC).unwrap();
        macspoof::protect(&attachment("c2"), "vh2", MAC).unwrap();
        macspoof::protect(&other, "vh3", MAC).unwrap();
        assert_eq!(macspoof::retain("net", &[attachment("c2")]).unwrap(), 1);
        assert!(macspoof::check(&attachment("c1"), "vh1", MAC).is_err());
        macspoof::check(&attachment("c2"), "vh2", MAC).unwrap();
        macspoof::check(&other, "vh3", MAC).unwrap();
        assert_eq!(macspoof::retain("net", &[]).unwrap(), 1);
        macspoof::check(&other, "vh3", MAC).unwrap();
    });
}

#[test]
fn rules_of_the_reference_plugin_are_removed_too() {
    in_namespace(|| {
        for container in ["c1", "c2"] {
            let id = format!("{container}-eth0");
            sh(&format!(
                "nft -f - <<'E'
                add table bridge nat
                add chain bridge nat PREROUTING {{ type filter hook prerouting priority -300 ; }}
                add chain bridge nat cni-br-iface-{id}-mac
                add chain bridge nat cni-br-iface-{id}
                add rule bridge nat PREROUTING iifname \"veth{container}\" jump cni-br-iface-{id} comment \"macspoofchk-{id}\"
                add rule bridge nat cni-br-iface-{id} jump cni-br-iface-{id}-mac comment \"macspoofchk-{id}\"
                add rule bridge nat cni-br-iface-{id}-mac ether saddr 02:00:00:00:00:01 return comment \"macspoofchk-{id}\"
                add rule bridge nat cni-br-iface-{id}-mac drop comment \"macspoofchk-{id}\"
E"
            ));
        }
        macspoof::release(&attachment("c1")).unwrap();
        let left = sh("nft list table bridge nat");
        assert!(!left.contains("c1-eth0"), "{left}");
        assert_eq!(left.matches("macspoofchk-c2-eth0").count(), 4, "{left}");
        macspoof::release(&attachment("c2")).unwrap();
        assert!(sh("nft list table bridge nat").contains("chain PREROUTING"));
    });
}
