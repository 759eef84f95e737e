// SPDX-License-Identifier: GPL-2.0-or-later

//! `tuning`: changes settings and attributes of a container's link.

mod backup;
mod config;
mod expected;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod sysctls;

use cni_kernel::route::{Link, LinkChange, RouteError, RouteSocket};
use cni_spec::{AddResult, Attachment, CniError, ErrorCode};
use nix::errno::Errno;

use crate::expected::Expected;
use crate::interface::shared::container::Container;
use crate::interface::shared::failed;
use crate::meta::layer3::Layer3;
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use crate::undo::Undo;
use backup::{Backup, Backups};
pub use config::DATA_DIR;
use config::{Attributes, Config};
use sysctls::{Allowed, Applied, Sysctl};

/// The `tuning` plugin.
#[derive(Debug)]
pub struct Tuning;

impl Plugin for Tuning {
    fn name(&self) -> &'static str {
        "tuning"
    }

    fn summary(&self) -> &'static str {
        "changes settings and attributes of the container's link"
    }

    fn place(&self) -> Place {
        Place::Chained
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        config::decodes()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        Config::read(request.config, request.args, request.attachment.ifname()).map(drop)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let config = Config::read(request.config, request.args, request.attachment.ifname())?;
        allowed(&config)?;
        let previous = previous(request)?;
        let container = Container::open(request.netns.as_deref())?;
        let mut undo = Undo::new();
        set_sysctls(&container, &config.sysctls, &mut undo)?;
        if config.wanted != Attributes::default() {
            change_link(&container, &config, &request.attachment, &mut undo)?;
        }
        undo.keep();
        Ok(result(previous, request.attachment.ifname(), &config.wanted))
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        let Some(backups) = Backups::open(&config::data_dir(request.config))? else { return Ok(()) };
        let attachment = &request.attachment;
        if !backups.has(attachment)? {
            return Ok(());
        }
        if let Some(backup) = backups.read(attachment)? {
            if !backup.is_of(attachment) {
                return Ok(());
            }
            if let Some(container) = Container::open_if_there(request.netns.as_deref())? {
                restore(&container, attachment.ifname(), &backup)?;
            }
        }
        backups.remove(attachment)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        previous(request)?;
        crate::expected::check(&self.expected(request)?)?;
        // Like the reference, CHECK compares the promiscuous mode also where none is configured.
        let ifname = request.attachment.ifname();
        let config = Config::read(request.config, request.args, ifname)?;
        check_link(&link(&Container::open(request.netns.as_deref())?, ifname)?, &config.wanted)
    }

    fn expected(&self, request: &Request<'_>) -> Result<Vec<Box<dyn Expected>>, CniError> {
        expected::of(request)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let Some(valid) = &request.config.valid_attachments else { return Ok(()) };
        match Backups::open(&config::data_dir(request.config))? {
            Some(backups) => backups.retain(&request.config.name, valid),
            None => Ok(()),
        }
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        // Any name will do, because STATUS does not get the interface's name.
        let config = Config::read(request.config, "", "eth0")?;
        let unavailable = |error: CniError| CniError { code: ErrorCode::NotAvailable, ..error };
        allowed(&config).map_err(unavailable)?;
        Backups::try_out(&config.data_dir).map_err(unavailable)
    }
}

fn previous<'a>(request: &'a Request<'_>) -> Result<&'a AddResult, CniError> {
    let previous = request.config.prev_result.as_ref();
    previous.ok_or_else(|| CniError::config("Required prevResult missing"))
}

/// Checks the settings against the administrator's list.
fn allowed(config: &Config) -> Result<(), CniError> {
    if config.sysctls.is_empty() {
        return Ok(());
    }
    Allowed::read()?.map_or(Ok(()), |allowed| allowed.check(&config.sysctls))
}

fn set_sysctls<'a>(
    container: &'a Container,
    sysctls: &[Sysctl],
    undo: &mut Undo<'a>,
) -> Result<(), CniError> {
    if sysctls.is_empty() {
        return Ok(());
    }
    let Applied { before, result } = container.run(|| sysctls::apply(sysctls))?;
    undo.on_failure("settings below /proc/sys/net", move || {
        container.run(|| sysctls::put_back(&before).map_err(failed))?
    });
    result.map_err(failed)
}

fn link(container: &Container, ifname: &str) -> Result<Link, CniError> {
    let link = container.route.find_link(ifname).map_err(failed)?;
    link.ok_or_else(|| CniError::internal(format!("Cannot find container link {ifname}")))
}

fn change_link<'a>(
    container: &'a Container,
    config: &Config,
    attachment: &'a Attachment,
    undo: &mut Undo<'a>,
) -> Result<(), CniError> {
    let link = link(container, attachment.ifname())?;
    let had = config.wanted.of(&link);
    let backups = Backups::create(&config.data_dir)?;
    let earlier = backups.read(attachment)?;
    if let Some(other) = earlier.as_ref().filter(|backup| !backup.is_of(attachment)) {
        return Err(CniError::internal(format!("the backup of {attachment} would replace {other:?}")));
    }
    let backup = Backup::new(attachment, container.id(), &had);
    let backup = match &earlier {
        Some(earlier) => backup.keep(earlier),
        None => backup,
    };
    let written = backups.write(attachment, &backup);
    // The undo is needed also after a failed write, because the file may exist without being durable.
    undo.on_failure("backup", move || match earlier {
        Some(earlier) => backups.write(attachment, &earlier),
        None => backups.remove(attachment),
    });
    written?;
    // The undo is registered first, because some changes may succeed before one fails.
    let (restored, at) = (had, link.clone());
    undo.on_failure("attributes", move || apply(&container.route, &at, &restored).map_err(failed));
    apply(&container.route, &link, &config.wanted).map_err(failed)
}

/// Makes all the changes, in one request where the link's driver can.
fn apply(route: &RouteSocket, link: &Link, wanted: &Attributes) -> Result<(), RouteError> {
    match route.change_link(link, &wanted.change()) {
        Err(error) if error.errno() == Some(Errno::EBUSY) && wanted.mac.is_some() => {
            while_down(route, link, &wanted.change())
        }
        done => done,
    }
}

/// Makes changes while the link is down, for a driver that changes the MAC address only then. Then restores what the
/// link has lost by going down.
fn while_down(route: &RouteSocket, link: &Link, change: &LinkChange) -> Result<(), RouteError> {
    let before = Layer3::of(route, link)?;
    route.change_link(link, &LinkChange::new().down())?;
    let changed = route.change_link(link, change);
    if link.up {
        route.change_link(link, &LinkChange::new().up())?;
        before.put_back(route, link)?;
    }
    changed
}

/// Restores the link's attributes. Only logs what the kernel refuses, as the link is about to be deleted. A shortage of
/// memory is no refusal: the next DEL restores a link that goes back to the node, since the backup is still there.
fn restore(container: &Container, ifname: &str, backup: &Backup) -> Result<(), CniError> {
    if !backup.is_in(container.id()) {
        return Ok(());
    }
    let Some(link) = container.route.find_link(ifname).map_err(failed)? else { return Ok(()) };
    for one in backup.attributes().each() {
        match apply(&container.route, &link, &one) {
            Err(error) if error.errno().is_none() || error.is_transient() => return Err(failed(error)),
            Err(error) => log::warn!("restore: {error}"),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// The previous result with the link's new attributes.
fn result(previous: &AddResult, ifname: &str, wanted: &Attributes) -> AddResult {
    let mut result = previous.clone();
    for interface in result.interfaces.iter_mut().filter(|one| one.name == ifname && !one.sandbox.is_empty())
    {
        if let Some(mac) = wanted.mac {
            interface.mac = mac.to_string();
        }
        // Only if the previous result has an MTU.
        if let Some(mtu) = wanted.mtu.filter(|_| interface.mtu != 0) {
            interface.mtu = mtu;
        }
    }
    result
}

fn check_link(link: &Link, wanted: &Attributes) -> Result<(), CniError> {
    let name = &link.name;
    let wrong = |what: &str, expected: &dyn std::fmt::Display, current: &dyn std::fmt::Display| {
        let msg =
            format!("Error: Tuning configured {what} of {name} is {expected}, current value is {current}");
        Err(CniError::internal(msg))
    };
    if let Some(mac) = wanted.mac.filter(|mac| link.mac != Some(*mac)) {
        let current = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        return wrong("Ethernet", &mac, &current);
    }
    let promisc = wanted.promisc.unwrap_or(false);
    if promisc != link.promiscuous {
        return Err(CniError::internal(format!(
            "Error: Tuning link {name} configured promisc is {promisc}, current value is {}",
            u8::from(link.promiscuous)
        )));
    }
    if let Some(mtu) = wanted.mtu.filter(|mtu| link.mtu != *mtu) {
        return wrong("MTU", &mtu, &link.mtu);
    }
    if let Some(all) = wanted.allmulti.filter(|all| link.all_multicast != *all) {
        return wrong("all-multicast mode", &all, &link.all_multicast);
    }
    if let Some(length) = wanted.tx_queue.filter(|length| link.tx_queue != *length) {
        return wrong("Transmit Queue Length", &length, &link.tx_queue);
    }
    Ok(())
}

impl Attributes {
    /// The link's values of the attributes that are set here.
    fn of(&self, link: &Link) -> Self {
        Self {
            mac: self.mac.and(link.mac),
            promisc: self.promisc.map(|_| link.promiscuous),
            mtu: self.mtu.map(|_| link.mtu),
            allmulti: self.allmulti.map(|_| link.all_multicast),
            tx_queue: self.tx_queue.map(|_| link.tx_queue),
        }
    }

    fn change(&self) -> LinkChange {
        let mut change = LinkChange::new();
        if let Some(mac) = self.mac {
            change = change.mac(mac);
        }
        if let Some(mtu) = self.mtu {
            change = change.mtu(mtu);
        }
        if let Some(length) = self.tx_queue {
            change = change.tx_queue(length);
        }
        change = match self.promisc {
            Some(true) => change.promiscuous(),
            Some(false) => change.not_promiscuous(),
            None => change,
        };
        match self.allmulti {
            Some(true) => change.all_multicast(),
            Some(false) => change.not_all_multicast(),
            None => change,
        }
    }

    /// Splits the attributes into values that each set only one of them.
    fn each(&self) -> Vec<Self> {
        let none = Self::default;
        let all = [
            Self { mac: self.mac, ..none() },
            Self { promisc: self.promisc, ..none() },
            Self { mtu: self.mtu, ..none() },
            Self { allmulti: self.allmulti, ..none() },
            Self { tx_queue: self.tx_queue, ..none() },
        ];
        all.into_iter().filter(|one| *one != none()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use cni_kernel::AddressFamily;
    use cni_kernel::mac::Mac;
    use cni_kernel::netns::Netns;
    use cni_kernel::route::{DuplicateDetection, Existing, NewVeth, Route, RouteKind};
    use cni_spec::Interface;

    use super::*;
    use crate::meta::probe;

    #[test]
    fn the_result_changes_for_the_containers_link_only() {
        let link = |name: &str, sandbox: &str, mtu| Interface {
            name: name.into(),
            mac: "old".into(),
            sandbox: sandbox.into(),
            mtu,
            ..Interface::default()
        };
        let interfaces = vec![link("eth0", "", 0), link("eth0", "/ns", 0), link("eth0", "/ns", 1500)];
        let previous = AddResult { interfaces, ..AddResult::default() };
        let wanted = Attributes { mac: Some(Mac([2; 6])), mtu: Some(1400), ..Attributes::default() };
        let changed = result(&previous, "eth0", &wanted);
        let seen: Vec<_> = changed.interfaces.iter().map(|one| (one.mac.as_str(), one.mtu)).collect();
        assert_eq!(seen, [("old", 0), ("02:02:02:02:02:02", 0), ("02:02:02:02:02:02", 1400)]);
        assert_eq!(result(&previous, "eth1", &wanted), previous);
    }

    /// The test uses a veth, although its driver would not need the link to be down.
    #[test]
    fn what_a_link_loses_while_it_is_down_comes_back() {
        let done = probe::in_new_namespace(|route| {
            let here = Netns::open(Path::new("/proc/thread-self/ns/net")).unwrap();
            let pair = NewVeth {
                name: "t0",
                mac: None,
                peer_name: "t1",
                peer_mac: None,
                peer_netns: &here,
                mtu: None,
            };
            route.create_veth(&pair)?;
            for name in ["t1", "t0"] {
                route.change_link(&route.link(name)?, &LinkChange::new().up())?;
            }
            let link = route.link("t0")?;
            for net in ["10.9.0.2/24", "fd00:9::2/64"] {
                route.add_address(&link, net.parse().unwrap(), DuplicateDetection::Skip)?;
            }
            let add = |dst: &str, gateway: Option<&str>, table: u32, protocol: u8| {
                let gateway = gateway.map(|gateway| gateway.parse().unwrap());
                let to = Route::to(dst.parse().unwrap());
                let new = Route { gateway, link: Some(link.index), table, protocol, ..to };
                route.add_route(&new, Existing::Refuse)
            };
            add("10.8.0.1/32", None, 254, 3)?;
            add("0.0.0.0/0", Some("10.8.0.1"), 254, 3)?;
            // Like sbr, this moves the networks of the addresses to separate tables.
            for (net, gateway, all, table) in
                [("10.9.0.0/24", "10.9.0.1", "0.0.0.0/0", 100), ("fd00:9::/64", "fd00:9::1", "::/0", 101)]
            {
                add(net, None, table, 2)?;
                add(all, Some(gateway), table, 3)?;
                let moved = Route { link: Some(link.index), ..Route::to(net.parse().unwrap()) };
                route.delete_route(&moved)?;
            }
            let state = || {
                let mut all = Vec::new();
                for family in AddressFamily::BOTH {
                    let routes = route.routes(family, 0).unwrap().into_iter();
                    let unicast =
                        routes.filter(|has| has.kind == RouteKind::Unicast && has.link == Some(link.index));
                    all.extend(unicast.map(|has| format!("{has:?}")));
                }
                let addresses = route.addresses(&link).unwrap().into_iter();
                all.extend(addresses.filter(|one| one.global).map(|one| one.net.to_string()));
                all.sort();
                all
            };
            let before = state();
            assert!(before.len() >= 8, "{before:?}");
            let mac = Mac([2, 0, 0, 0, 0, 7]);
            while_down(route, &link, &LinkChange::new().mac(mac))?;
            assert_eq!(before, state());
            let after = route.link("t0")?;
            assert!(after.up && after.mac == Some(mac), "{after:?}");
            Ok(())
        });
        match done {
            Err(error) if error.msg.starts_with("make a network namespace: ") => {
                eprintln!("not tried: {error}");
            }
            done => done.unwrap(),
        }
    }

    #[test]
    fn attributes_are_restored_one_at_a_time() {
        let all = Attributes { mtu: Some(1), allmulti: Some(false), ..Attributes::default() };
        let each = all.each();
        assert_eq!(each.len(), 2);
        assert!(each.iter().all(|one| one.each() == [one.clone()]));
        assert_eq!(Attributes::default().each(), []);
    }
}
