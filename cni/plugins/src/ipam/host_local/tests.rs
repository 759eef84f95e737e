// SPDX-License-Identifier: GPL-2.0-or-later

//! The whole plugin, in a temporary directory.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use cni_kernel::lock::LockError;
use cni_spec::{AddResult, Attachment, CniError, ErrorCode, NetConf};
use cni_state::subnet_file::SubnetFile;
use serde_json::{Value, json};

use super::HostLocal;
use crate::plugin::{Env, NodeRequest, Plugin, Request};

struct Fixture {
    temp: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self { temp: tempfile::tempdir().unwrap() }
    }

    fn config(&self, mut ipam: Value, valid: Option<&[Attachment]>) -> NetConf {
        ipam["type"] = json!("host-local");
        ipam["dataDir"] = json!(self.temp.path());
        let mut config = json!({ "cniVersion": "1.1.0", "name": "net", "type": "test", "ipam": ipam });
        if let Some(valid) = valid {
            let list = valid.iter().map(|a| json!({ "containerID": a.container_id(), "ifname": a.ifname() }));
            config["cni.dev/valid-attachments"] = list.collect();
        }
        NetConf::parse(config.to_string().as_bytes()).unwrap()
    }

    fn call<T>(&self, ipam: Value, who: &str, args: &str, f: impl Fn(&Request<'_>) -> T) -> T {
        let config = self.config(ipam, None);
        let (id, ifname) = who.split_once('/').unwrap_or((who, "eth0"));
        let env = Env { args: args.to_owned(), ..Env::default() };
        let attachment = Attachment::new("net", id, ifname).unwrap();
        f(&Request { attachment, netns: None, args, config: &config, env: &env })
    }

    fn add(&self, ipam: Value, who: &str) -> Result<AddResult, CniError> {
        self.call(ipam, who, "", |request| HostLocal.add(request))
    }

    fn add_text(&self, ipam: Value, who: &str) -> String {
        match self.add(ipam, who) {
            Ok(result) => {
                let texts: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
                texts.join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    fn del(&self, who: &str) -> Result<(), CniError> {
        self.call(json!({}), who, "", |request| HostLocal.del(request))
    }

    fn check(&self, who: &str) -> Result<(), CniError> {
        self.call(json!({}), who, "", |request| HostLocal.check(request))
    }

    fn gc(&self, valid: &[&str]) -> Result<(), CniError> {
        let attachment = |who: &&str| {
            let (id, ifname) = who.split_once('/').unwrap_or((who, "eth0"));
            Attachment::new("net", id, ifname).unwrap()
        };
        let valid: Vec<Attachment> = valid.iter().map(attachment).collect();
        let config = self.config(json!({}), Some(&valid));
        HostLocal.gc(&NodeRequest { config: &config, env: &Env::default() })
    }

    fn status(&self, ipam: Value) -> Result<(), CniError> {
        let config = self.config(ipam, None);
        HostLocal.status(&NodeRequest { config: &config, env: &Env::default() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join("net").join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        std::fs::create_dir_all(self.path("")).unwrap();
        std::fs::write(self.path(name), content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|error| format!("{name}: {error}"))
    }

    /// Names in the network's directory that are addresses.
    fn reserved(&self) -> Vec<IpAddr> {
        let entries = std::fs::read_dir(self.path("")).unwrap();
        let mut found: Vec<IpAddr> =
            entries.filter_map(|e| e.unwrap().file_name().to_str().unwrap().parse().ok()).collect();
        found.sort_unstable();
        found
    }

    /// Asserts that the index on disk is trusted and equals a scan.
    fn assert_index_true(&self) {
        let store = super::Store::open(self.temp.path(), "net").unwrap().unwrap();
        let index = super::index::Index::open(store.index_file().unwrap(), &store.stamp().unwrap());
        let mut known = index.expect("a trusted index").contents().unwrap();
        let mut found = store.contents().unwrap();
        known.owners.sort_unstable();
        found.owners.sort_unstable();
        assert_eq!(known, found);
    }
}

fn small() -> Value {
    json!({ "subnet": "10.1.2.0/29" })
}

fn dual() -> Value {
    json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }], [{ "subnet": "fd00::/64" }]] })
}

#[test]
fn files_are_the_references() {
    let f = Fixture::new();
    assert_eq!(f.add_text(dual(), "c1"), "10.1.2.2/24 fd00::2/64");
    assert_eq!(f.read("10.1.2.2"), "c1\r\neth0");
    assert_eq!(f.read("fd00::2"), "c1\r\neth0");
    assert_eq!(f.read("last_reserved_ip.0"), "10.1.2.2");
    assert_eq!(f.read("last_reserved_ip.1"), "fd00::2");
    let mut names: Vec<String> = std::fs::read_dir(f.path(""))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["10.1.2.2", "fd00::2", "last_reserved_ip.0", "last_reserved_ip.1", "lock"]);
    for name in names {
        let mode = std::fs::metadata(f.path(&name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    f.assert_index_true();
    f.check("c1").unwrap();
    f.del("c1").unwrap();
    f.del("c1").unwrap();
    assert_eq!(f.reserved(), [] as [IpAddr; 0]);
    assert_eq!(f.check("c1").unwrap_err().msg, "host-local: Failed to find address added by container c1");
    f.assert_index_true();
}

#[test]
fn addresses_are_allocated_round_robin_until_none_is_free() {
    let f = Fixture::new();
    for expected in 2..=6 {
        assert_eq!(f.add_text(small(), &format!("c{expected}")), format!("10.1.2.{expected}/29"));
    }
    let exhausted =
        "failed to allocate for range 0: no IP addresses available in range set: 10.1.2.1-10.1.2.6";
    let error = f.add(small(), "c7").unwrap_err();
    assert_eq!((error.code.number(), error.msg.as_str()), (999, exhausted));
    let status = f.status(small()).unwrap_err();
    assert_eq!(status.code.number(), 50);
    assert_eq!(status.msg, "no IP addresses available in range set: 10.1.2.1-10.1.2.6");
    f.del("c3").unwrap();
    f.status(small()).unwrap();
    assert_eq!(f.add_text(small(), "c7"), "10.1.2.3/29");
    f.del("c7").unwrap();
    f.del("c2").unwrap();
    assert_eq!(f.add_text(small(), "c8"), "10.1.2.2/29", "not 10.1.2.3, the one reserved last");
    f.assert_index_true();
}

#[test]
fn an_attachment_gets_no_second_address() {
    let f = Fixture::new();
    f.add(small(), "c1").unwrap();
    let twice = "failed to allocate for range 0: 10.1.2.2 has been allocated to c1, duplicate allocation is not allowed";
    assert_eq!(f.add_text(small(), "c1"), twice);
    assert_eq!(f.add_text(small(), "c1/net1"), "10.1.2.3/29");
    assert_eq!(f.reserved().len(), 2);
    f.check("c1").unwrap();
}

#[test]
fn reservations_without_an_interface_belong_to_the_container() {
    let f = Fixture::new();
    f.write("10.1.2.4", b"c1");
    let twice = "failed to allocate for range 0: 10.1.2.4 has been allocated to c1, duplicate allocation is not allowed";
    assert_eq!(f.add_text(small(), "c1"), twice);
    f.check("c1").unwrap();
    f.gc(&["c1/whatever"]).unwrap();
    f.del("c1").unwrap();
    assert_eq!(f.reserved(), [] as [IpAddr; 0]);
}

#[test]
fn torn_reservations_block_nothing() {
    let f = Fixture::new();
    for (n, torn) in [&b""[..], b"\0\0\0\0\0\0", b"\r\n", b"c9\r\neth\0"].iter().enumerate() {
        f.write(&format!("10.1.2.{}", n + 2), torn);
    }
    f.write("10.1.2.6", b"c6\r\neth0");
    f.status(small()).unwrap();
    for expected in 2..=5 {
        assert_eq!(f.add_text(small(), &format!("c{expected}")), format!("10.1.2.{expected}/29"));
        assert_eq!(f.read(&format!("10.1.2.{expected}")), format!("c{expected}\r\neth0"));
    }
    assert!(f.add(small(), "c7").is_err());
    f.assert_index_true();

    f.write("10.1.2.3", b"");
    f.gc(&["c2", "c4", "c5", "c6"]).unwrap();
    assert!(!f.path("10.1.2.3").exists());
    // Truncated after the index was written: the directory's mtime does not change.
    let file = std::fs::File::create(f.path("10.1.2.2")).unwrap();
    drop(file);
    let mut wish = small();
    wish["rangeStart"] = json!("10.1.2.2");
    assert_eq!(f.add_text(wish, "c8"), "10.1.2.3/29");
}

#[test]
fn with_a_torn_last_address_the_search_begins_with_the_first() {
    let f = Fixture::new();
    for torn in [&b""[..], b"\0\0\0", b"10.1.2.", b"\xff\xfe", b"192.168.0.1"] {
        f.write("last_reserved_ip.0", torn);
        assert_eq!(f.add_text(small(), "c1"), "10.1.2.2/29", "{torn:?}");
        f.del("c1").unwrap();
    }
    f.write("last_reserved_ip.0", b"10.1.2.4");
    assert_eq!(f.add_text(small(), "c1"), "10.1.2.5/29");
}

#[test]
fn a_last_address_that_gets_shorter_leaves_no_rest() {
    let f = Fixture::new();
    f.write("last_reserved_ip.0", b"10.1.2.100\n");
    assert_eq!(f.add_text(small(), "c1"), "10.1.2.2/29");
    assert_eq!(f.read("last_reserved_ip.0"), "10.1.2.2");
}

#[test]
fn a_last_address_in_a_file_with_another_name_is_replaced() {
    let f = Fixture::new();
    let other = f.temp.path().join("other");
    std::fs::write(&other, "10.1.2.4").unwrap();
    std::fs::create_dir_all(f.path("")).unwrap();
    std::fs::hard_link(&other, f.path("last_reserved_ip.0")).unwrap();
    assert_eq!(f.add_text(small(), "c1"), "10.1.2.5/29");
    assert_eq!(f.read("last_reserved_ip.0"), "10.1.2.5");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "10.1.2.4");
}

#[test]
fn foreign_files_are_never_touched() {
    let f = Fixture::new();
    std::fs::create_dir_all(f.path("10.1.2.2")).unwrap();
    let secret = f.temp.path().join("secret");
    std::fs::write(&secret, "").unwrap();
    std::os::unix::fs::symlink(&secret, f.path("10.1.2.3")).unwrap();
    nix::unistd::mkfifo(&f.path("10.1.2.4"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    f.write("10.1.2.5", &[b'x'; 5000]);
    assert_eq!(f.add_text(small(), "c1"), "10.1.2.6/29");
    f.gc(&[]).unwrap();
    assert_eq!(f.reserved().len(), 4);
    assert_eq!(std::fs::read(&secret).unwrap(), b"");
}

#[test]
fn changes_by_other_programs_are_seen() {
    let f = Fixture::new();
    f.add(small(), "c1").unwrap();
    f.assert_index_true();
    // Written at once, as the reference would: the file system's clock may show the same tick.
    f.write("10.1.2.3", b"c2\r\neth0");
    assert_eq!(f.add_text(small(), "c3"), "10.1.2.4/29");
    f.write("10.1.2.5", b"c4\r\neth0");
    f.check("c4").unwrap();
    std::fs::remove_file(f.path("10.1.2.3")).unwrap();
    f.check("c2").unwrap_err();
    f.write("10.1.2.6", b"c5\r\neth0");
    f.del("c5").unwrap();
    assert!(!f.path("10.1.2.6").exists());
    std::fs::remove_dir_all(f.path("")).unwrap();
    assert_eq!(f.add_text(small(), "c1"), "10.1.2.2/29");
}

#[test]
fn a_file_rewritten_in_place_is_not_removed() {
    let f = Fixture::new();
    f.add(small(), "c1").unwrap();
    let text = "c2\r\neth0";
    let mut file = std::fs::OpenOptions::new().write(true).open(f.path("10.1.2.2")).unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    f.del("c1").unwrap();
    assert_eq!(f.read("10.1.2.2"), text);
    f.del("c2").unwrap();
    assert!(!f.path("10.1.2.2").exists());
}

/// As if another program had made the file without the lock, and the directory had kept its mtime.
#[test]
fn a_file_that_the_index_lacks_is_noticed_and_nothing_else_stays_reserved() {
    let f = Fixture::new();
    f.add(dual(), "c1").unwrap();
    let store = super::Store::open(f.temp.path(), "net").unwrap().unwrap();
    let forget = |address: &str| {
        let stamp = store.stamp().unwrap();
        let mut index = super::index::Index::open(store.index_file().unwrap(), &stamp).unwrap();
        let owner = super::owner::OwnerKey::of(f.read(address).as_bytes());
        index.remove(owner, address.parse().unwrap()).unwrap();
        index.finish(stamp).unwrap();
    };
    // The search begins with the first address, which is free according to the index.
    f.write("last_reserved_ip.1", b"");
    forget("fd00::2");
    assert_eq!(f.add_text(dual(), "c2"), "10.1.2.3/24 fd00::3/64");
    assert_eq!(f.reserved().len(), 4);
    forget("10.1.2.3");
    let wish = f.call(dual(), "c3", "IP=10.1.2.3", |request| HostLocal.add(request)).unwrap_err();
    assert!(wish.msg.contains("requested IP address 10.1.2.3 is not available"), "{wish}");
    f.assert_index_true();
}

/// A runtime calls DEL several times for each container.
#[test]
fn a_del_that_finds_nothing_does_not_wait_for_the_lock() {
    let f = Fixture::new();
    f.add(small(), "c1").unwrap();
    let store = super::Store::open(f.temp.path(), "net").unwrap().unwrap();
    let lock = store.lock().unwrap();
    f.del("c2").unwrap();
    drop(lock);
    f.del("c1").unwrap();
    assert!(f.reserved().is_empty());
}

#[test]
fn a_lock_that_another_process_holds_is_transient() {
    let path = PathBuf::from("/x/lock");
    let code = |error| CniError::from(super::StoreError::Lock(error)).code;
    let waited = std::time::Duration::from_secs(60);
    assert_eq!(code(LockError::TimedOut { path: path.clone(), waited }), ErrorCode::TryAgainLater);
    assert_eq!(code(LockError::Lock { path, source: std::io::ErrorKind::Other.into() }), ErrorCode::Io);
}

#[test]
fn gc_removes_what_is_not_in_the_list() {
    let f = Fixture::new();
    for who in ["c1", "c1/net1", "c2", "c3"] {
        f.add(small(), who).unwrap();
    }
    std::fs::create_dir_all(f.temp.path().join("other")).unwrap();
    std::fs::write(f.temp.path().join("other/10.1.2.2"), "c9\r\neth0").unwrap();
    f.gc(&["c1", "c3", "unheard-of"]).unwrap();
    f.assert_index_true();
    assert_eq!(f.read("10.1.2.2"), "c1\r\neth0");
    assert_eq!(f.read("10.1.2.5"), "c3\r\neth0");
    assert_eq!(f.reserved().len(), 2);
    f.gc(&[]).unwrap();
    assert_eq!(f.reserved(), [] as [IpAddr; 0]);
    assert!(f.temp.path().join("other/10.1.2.2").exists(), "another network's");
}

#[test]
fn requested_addresses_are_given_or_refused() {
    let f = Fixture::new();
    let args = |args: &str, who: &str| {
        f.call(dual(), who, args, |request| match HostLocal.add(request) {
            Ok(result) => result.ips.iter().map(|ip| ip.address.to_string()).collect::<Vec<_>>().join(" "),
            Err(error) => error.msg,
        })
    };
    assert_eq!(args("IP=10.1.2.77/16", "c1"), "10.1.2.77/24 fd00::2/64");
    assert_eq!(args("IP=fd00::99", "c2"), "10.1.2.78/24 fd00::99/64");
    for (ip, expected) in [
        (
            "10.1.2.77",
            "failed to allocate for range 0: requested IP address 10.1.2.77 is not available in range set 10.1.2.1-10.1.2.254",
        ),
        ("10.1.2.1", "failed to allocate for range 0: requested ip 10.1.2.1 is subnet's gateway"),
        ("10.1.3.1", "failed to allocate all requested IPs: 10.1.3.1"),
        ("10.1.2.255", "failed to allocate all requested IPs: 10.1.2.255"),
    ] {
        assert_eq!(args(&format!("IP={ip}"), "c3"), expected);
    }
    let wrong = f.call(dual(), "c3", "IP=zz", |request| HostLocal.add(request)).unwrap_err();
    assert_eq!(wrong.code, ErrorCode::InvalidEnvironment, "{wrong}");
    assert_eq!(f.reserved().len(), 4, "a failed ADD leaves nothing");
    assert_eq!(f.read("last_reserved_ip.0"), "10.1.2.78");
}

#[test]
fn a_later_set_that_fails_leaves_nothing_of_the_first() {
    let f = Fixture::new();
    let full = json!({ "ranges": [[{ "subnet": "10.1.2.0/24" }],
        [{ "subnet": "fd00::/64", "rangeStart": "fd00::1", "rangeEnd": "fd00::1" }]] });
    let error = f.add_text(full, "c1");
    let expected = "failed to allocate for range 1: no IP addresses available in range set: fd00::1-fd00::1";
    assert_eq!(error, expected);
    assert_eq!(f.reserved(), [] as [IpAddr; 0]);
}

#[test]
fn an_index_is_not_needed() {
    let f = Fixture::new();
    std::fs::write(f.temp.path().join(".slipway"), "in the way").unwrap();
    assert_eq!(f.add_text(small(), "c1"), "10.1.2.2/29");
    assert_eq!(f.add_text(small(), "c2"), "10.1.2.3/29");
    f.check("c1").unwrap();
    f.del("c1").unwrap();
    f.check("c1").unwrap_err();
    f.gc(&[]).unwrap();
    assert_eq!(f.reserved(), [] as [IpAddr; 0]);
    let names = std::fs::read_dir(f.path("")).unwrap().count();
    assert_eq!(names, 2, "lock and last_reserved_ip.0");
}

#[test]
fn teardown_needs_no_ranges() {
    let f = Fixture::new();
    f.del("c1").unwrap();
    f.gc(&[]).unwrap();
    assert!(!f.path("").exists(), "DEL and GC make no directory");
    f.add(small(), "c1").unwrap();
    f.call(json!({ "subnet": "nonsense" }), "c1", "", |request| HostLocal.del(request)).unwrap();
    assert_eq!(f.reserved(), [] as [IpAddr; 0]);
}

#[test]
fn status_names_a_directory_that_cannot_be_used() {
    let f = Fixture::new();
    f.status(small()).unwrap();
    let mut ipam = small();
    std::fs::write(f.temp.path().join("file"), "").unwrap();
    ipam["subnet"] = json!("10.1.2.0/29");
    let mut config = f.config(ipam, None);
    let dir = f.temp.path().join("file/below");
    config.raw["ipam"]["dataDir"] = json!(dir);
    let error = HostLocal.status(&NodeRequest { config: &config, env: &Env::default() }).unwrap_err();
    assert_eq!(error.code.number(), 50);
    assert!(error.msg.contains(dir.to_str().unwrap()) && error.msg.contains("ENOTDIR"), "{error}");
}

#[test]
fn resolv_conf_and_routes_are_passed_on() {
    let f = Fixture::new();
    let path = f.temp.path().join("resolv");
    std::fs::write(&path, "nameserver 10.0.0.1\nsearch a.test\n").unwrap();
    let mut ipam = small();
    ipam["resolvConf"] = json!(path);
    ipam["routes"] = json!([{ "dst": "0.0.0.0/0" }]);
    let result = f.add(ipam.clone(), "c1").unwrap();
    assert_eq!(result.dns.nameservers, ["10.0.0.1"]);
    assert_eq!(result.routes.len(), 1);
    std::fs::remove_file(&path).unwrap();
    let error = f.add(ipam, "c2").unwrap_err();
    assert!(error.msg.starts_with("ipam.resolvConf: read ") && error.msg.contains("ENOENT"), "{error}");
    assert_eq!(f.reserved().len(), 1);
}

/// A file of the node's subnets, and the `ipam` that names it.
fn subnet_file(fixture: &Fixture, subnets: &[&str]) -> (PathBuf, Value) {
    let path = fixture.temp.path().join("subnet.json");
    let subnets = subnets.iter().map(|subnet| subnet.parse().unwrap()).collect();
    SubnetFile { subnets, cluster_cidrs: vec![], mtu: 1450 }.write(&path).unwrap();
    let ipam = json!({ "subnetFile": &path });
    (path, ipam)
}

#[test]
fn ranges_come_from_the_subnet_file() {
    let fixture = Fixture::new();
    let (path, ipam) = subnet_file(&fixture, &["10.9.1.0/24", "fd00:9:1::/64"]);
    let result = fixture.add(ipam.clone(), "c1").unwrap();
    let given: Vec<_> = result.ips.iter().map(|ip| (ip.address.to_string(), ip.gateway.unwrap())).collect();
    let wanted = [("10.9.1.2/24", "10.9.1.1"), ("fd00:9:1::2/64", "fd00:9:1::1")];
    assert_eq!(given, wanted.map(|(address, gateway)| (address.to_owned(), gateway.parse().unwrap())));
    fixture.status(ipam.clone()).unwrap();
    // The node's subnets change, and their order: running containers keep their addresses.
    subnet_file(&fixture, &["fd00:9:1::/64", "10.9.2.0/24"]);
    assert_eq!(fixture.add_text(ipam.clone(), "c2"), "fd00:9:1::3/64 10.9.2.2/24");
    fixture.check("c1").unwrap();
    assert_eq!(fixture.reserved().len(), 4);
    // And back: the reserved address is not given out again.
    subnet_file(&fixture, &["10.9.1.0/29"]);
    assert_eq!(fixture.add_text(ipam.clone(), "c3"), "10.9.1.3/29");
    std::fs::remove_file(&path).unwrap();
    fixture.check("c1").unwrap();
    fixture.gc(&["c1", "c3"]).unwrap();
    assert_eq!(fixture.reserved().len(), 3);
    ["c1", "c3"].iter().for_each(|who| fixture.del(who).unwrap());
    assert!(fixture.reserved().is_empty());
}

#[test]
fn an_add_is_refused_without_a_usable_subnet_file() {
    let fixture = Fixture::new();
    let (path, ipam) = subnet_file(&fixture, &["10.9.1.0/24"]);
    let whole = std::fs::read(&path).unwrap();
    let dual = json!({ "subnetFile": &path, "subnet": "10.1.2.0/24" });
    let refused = |ipam: &Value, code: ErrorCode, text: &str| {
        let error = fixture.add(ipam.clone(), "c1").unwrap_err();
        assert_eq!(error.code, code, "{error}");
        assert!(error.msg.contains(text) && error.msg.contains(path.to_str().unwrap()), "{error}");
        let status = fixture.status(ipam.clone()).unwrap_err();
        assert_eq!((status.code, status.msg), (ErrorCode::NotAvailable, error.msg));
        fixture.gc(&[]).unwrap();
        fixture.call(ipam.clone(), "c1", "", |request| HostLocal.del(request)).unwrap();
        assert!(!fixture.path("").exists(), "nothing is reserved");
    };
    for ipam in [&ipam, &dual] {
        std::fs::remove_file(&path).unwrap();
        refused(ipam, ErrorCode::TryAgainLater, "no such file; the node's agent writes this file");
        std::fs::write(&path, "").unwrap();
        refused(ipam, ErrorCode::TryAgainLater, "the file is empty");
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        refused(ipam, ErrorCode::TryAgainLater, "not a file of subnets");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        refused(ipam, ErrorCode::Io, "ELOOP");
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).unwrap();
        refused(ipam, ErrorCode::Io, "not a regular file");
    }
    // The configuration is refused first: waiting does not help.
    let wrong = json!({ "subnetFile": &path, "gateway": "x" });
    assert_eq!(fixture.add(wrong, "c1").unwrap_err().code, ErrorCode::InvalidConfig);
}

#[test]
fn a_subnet_file_that_overlaps_the_configuration_is_named() {
    let fixture = Fixture::new();
    let (path, mut ipam) = subnet_file(&fixture, &["10.9.1.0/24"]);
    ipam["subnet"] = json!("10.9.0.0/16");
    let expected = format!("host-local: ipam.subnetFile {path:?}: range set 0 overlaps with 1");
    let error = fixture.add(ipam.clone(), "c1").unwrap_err();
    assert_eq!((error.code, error.msg), (ErrorCode::InvalidConfig, expected));
    assert_eq!(fixture.status(ipam).unwrap_err().code, ErrorCode::InvalidConfig);
}
