// SPDX-License-Identifier: GPL-2.0-or-later

//! `portmap`: publishes a container's ports on the node.

mod config;
mod expected;
mod route_localnet;

use std::net::IpAddr;
use std::path::Path;

use cni_dataplane::{
    AddressFamily, Backend, BackendName, Before, Conditions, ContainerNetns, Dataplane, EntryPort,
    IptablesOptions, Kinds, Loopback, NftablesOptions, PortRequest, Snat, Withdrawal,
};
use cni_kernel::netns::Netns;
use cni_spec::address::check_container;
use cni_spec::{AddResult, CniError, ErrorCode, NetConf};

use crate::expected::Expected;
use crate::interface::shared::networks;
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use config::Config;
use expected::Ports;

/// The `portmap` plugin.
#[derive(Debug)]
pub struct Portmap;

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        "portmap"
    }

    fn summary(&self) -> &'static str {
        "publishes ports of the container on the node"
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
        let networks = request.config.prev_result.as_ref();
        let networks = networks.map(|result| config::container_networks(result, request.attachment.ifname()));
        let config = Config::read(request.config)?;
        let _ports = config::published(&config.mappings, &networks.unwrap_or_default());
        Ok(())
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let config = Config::read(request.config).map_err(unparsed)?;
        add(&config.dataplane()?, config, request, &route_localnet::open)
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        del(&Dataplane::default(), request)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        let config = Config::read(request.config)?;
        check(&config.dataplane()?, config, request)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let Some(valid) = &request.config.valid_attachments else { return Ok(()) };
        Ok(Dataplane::default().retain(&request.config.name, valid, Kinds::Ports)?)
    }

    fn expected(&self, request: &Request<'_>) -> Result<Vec<Box<dyn Expected>>, CniError> {
        let config = Config::read(request.config)?;
        let previous = request.config.prev_result.as_ref();
        let previous = previous.ok_or_else(|| CniError::config("Required prevResult missing"))?;
        let dataplane = config.dataplane()?;
        let ports = wanted(request, config, previous)?.map(|request| Ports { dataplane, request });
        Ok(ports.into_iter().map(|ports| Box::new(ports) as Box<dyn Expected>).collect())
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        let config = Config::read(request.config).map_err(unparsed)?;
        let unavailable = |e: cni_dataplane::Error| CniError::new(ErrorCode::NotAvailable, e.to_string());
        config.dataplane()?.status().map_err(unavailable)
    }
}

/// A configuration's conditions for a family, and true if the configuration leaves the node's loopback alone; none if
/// the configuration cannot be used.
pub fn conditions(config: &NetConf, family: AddressFamily) -> Option<(Vec<String>, bool)> {
    let config = Config::read(config).ok()?;
    let conditions = match family {
        AddressFamily::V4 => config.conditions_v4,
        AddressFamily::V6 => config.conditions_v6,
    };
    Some((conditions, config.loopback == Loopback::Spared))
}

fn add(
    backend: &dyn Backend,
    config: Config,
    request: &Request<'_>,
    open: route_localnet::Open<'_>,
) -> Result<AddResult, CniError> {
    let previous = request.config.prev_result.as_ref();
    let previous = previous.ok_or_else(|| CniError::config("must be called as chained plugin"))?;
    let Some(wanted) = wanted(request, config, previous)? else { return Ok(previous.clone()) };
    let before = backend.publish(&wanted)?;
    // The guard of the loopback is in place only from here on.
    if let Err(error) = route_localnet::open_for(&wanted, open) {
        // The ports of an earlier ADD stay, because its container is running.
        if before == Before::Nothing
            && let Err(left) = backend.withdraw(&Withdrawal::of(&request.attachment, Kinds::Ports))
        {
            return Err(error.with_details(format!("its ports are still published: {left}")));
        }
        return Err(error);
    }
    Ok(previous.clone())
}

/// Lets packets from the node's loopback reach the containers behind these ports.
pub fn open_loopback_for(request: &PortRequest) -> Result<(), CniError> {
    route_localnet::open_for(request, &route_localnet::open)
}

fn del(backend: &dyn Backend, request: &Request<'_>) -> Result<(), CniError> {
    let mappings = Config::mappings_for_removal(request.config);
    let ports = config::possible_host_ports(&mappings);
    let ifname = request.attachment.ifname();
    let previous = request.config.prev_result.as_ref();
    let networks = previous.map(|result| config::container_networks(result, ifname)).unwrap_or_default();
    let addresses: Vec<IpAddr> = networks.iter().map(ipnet::IpNet::addr).collect();
    let withdrawal = Withdrawal {
        attachment: &request.attachment,
        // A process that deletes nftables elements waits for an RCU grace period. The masqueraded
        // addresses go with the ports, so that the interface plugin's DEL, which follows, need not wait.
        kinds: Kinds::AllIfPorts,
        ports: &ports,
        addresses: &addresses,
        has_vanished: request.netns.as_deref().is_none_or(is_gone),
        only_in: None,
    };
    Ok(backend.withdraw(&withdrawal)?)
}

/// True if the namespace at the path is gone.
fn is_gone(path: &Path) -> bool {
    Netns::open(path).is_err_and(|error| error.is_gone())
}

fn check(backend: &dyn Backend, config: Config, request: &Request<'_>) -> Result<(), CniError> {
    let previous = request.config.prev_result.as_ref();
    let previous = previous.ok_or_else(|| CniError::config("Required prevResult missing"))?;
    match wanted(request, config, previous)? {
        Some(wanted) => Ok(backend.check_ports(&wanted)?),
        None => Ok(()),
    }
}

/// The ports to publish; none if there are none.
fn wanted(
    request: &Request<'_>,
    config: Config,
    previous: &AddResult,
) -> Result<Option<PortRequest>, CniError> {
    let networks = config::container_networks(previous, request.attachment.ifname());
    let ports = config::published(&config.mappings, &networks);
    if ports.is_empty() {
        return Ok(None);
    }
    networks.iter().try_for_each(|network| check_container(*network))?;
    let path =
        request.netns.as_deref().ok_or_else(|| CniError::internal("no namespace to publish ports of"))?;
    let netns = ContainerNetns::read(path).map_err(|e| {
        CniError::new(ErrorCode::InvalidEnvironment, format!("failed to open netns {path:?}: {e}"))
    })?;
    let conditions = Conditions { v4: config.conditions_v4, v6: config.conditions_v6 };
    let none = Conditions::default();
    let (nftables, iptables) =
        if config.backend == Some(BackendName::Iptables) { (none, conditions) } else { (conditions, none) };
    let entries = config
        .mappings
        .iter()
        .map(|mapping| EntryPort { protocol: mapping.protocol, port: mapping.host_port });
    let elsewhere = match config.snat {
        Snat::Needed => networks::elsewhere(&request.attachment, path, &previous.interfaces),
        Snat::Always | Snat::Never => Vec::new(),
    };
    Ok(Some(PortRequest {
        attachment: request.attachment.clone(),
        netns,
        ports,
        networks,
        elsewhere,
        snat: config.snat,
        loopback: config.loopback,
        mark_bit: config.mark_bit,
        nftables: NftablesOptions { conditions: nftables },
        iptables: IptablesOptions {
            conditions: iptables,
            entry_ports: entries.collect(),
            set_mark_chain: config.set_mark_chain,
        },
    }))
}

fn unparsed(error: CniError) -> CniError {
    CniError { msg: format!("failed to parse config: {}", error.msg), ..error }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use cni_dataplane::fake::Fake;
    use cni_spec::Attachment;

    use super::*;
    use crate::plugin::Env;

    fn conf(extra: &str) -> NetConf {
        let text = format!(
            r#"{{"cniVersion":"1.1.0","name":"n","type":"portmap","prevResult":{{"cniVersion":"1.1.0",
            "interfaces":[{{"name":"eth0","sandbox":"/ns"}}],"ips":[{{"address":"10.0.0.3/24","interface":0}}]}},
            "runtimeConfig":{{"portMappings":[{{"hostPort":8080,"containerPort":80,"protocol":"tcp"}}]}}{extra}}}"#
        );
        NetConf::parse(text).unwrap()
    }

    fn read(request: &Request<'_>) -> Config {
        Config::read(request.config).unwrap()
    }

    fn with<T>(config: &NetConf, run: impl FnOnce(&Request<'_>) -> T) -> T {
        let env = Env::default();
        run(&Request {
            attachment: Attachment::new("n", "c1", "eth0").unwrap(),
            // Any file has a device and an inode number; the fake does not enter the namespace.
            netns: Some(PathBuf::from("/proc/self/ns/net")),
            args: "",
            config,
            env: &env,
        })
    }

    #[test]
    fn an_add_publishes_and_opens_the_loopback_afterwards() {
        let (fake, opened) = (Fake::new(), RefCell::new(Vec::new()));
        let open = |address: IpAddr| {
            opened.borrow_mut().push((address.to_string(), fake.calls().len()));
            Ok(())
        };
        let config = conf("");
        let result = with(&config, |request| add(&fake, read(request), request, &open)).unwrap();
        assert_eq!(Some(&result), config.prev_result.as_ref());
        assert_eq!(*opened.borrow(), [("10.0.0.3".to_owned(), 1)]);
        with(&config, |request| check(&fake, read(request), request)).unwrap();
        with(&config, |request| del(&fake, request)).unwrap();
        assert!(fake.is_empty());
        let gone = with(&config, |request| check(&fake, read(request), request)).unwrap_err();
        assert!(gone.msg.contains("differ"), "{gone}");
    }

    #[test]
    fn without_snat_the_loopback_stays_closed() {
        let fake = Fake::new();
        let open = |_| Err(CniError::internal("must not be called"));
        with(&conf(r#","snat":false"#), |request| add(&fake, read(request), request, &open)).unwrap();
        assert_eq!(fake.list().unwrap().len(), 1);
    }

    #[test]
    fn a_failed_add_leaves_nothing() {
        let fake = Fake::new();
        let open = |_| Err(CniError::internal("route_localnet: EROFS"));
        let error = with(&conf(""), |request| add(&fake, read(request), request, &open)).unwrap_err();
        assert_eq!(error.msg, "route_localnet: EROFS");
        assert!(fake.is_empty());
        fake.fail("withdraw");
        let error = with(&conf(""), |request| add(&fake, read(request), request, &open)).unwrap_err();
        assert!(error.details.contains("still published"), "{error}");
    }

    #[test]
    fn a_failed_repetition_leaves_the_ports_of_the_first_add() {
        let fake = Fake::new();
        with(&conf(""), |request| add(&fake, read(request), request, &|_| Ok(()))).unwrap();
        let open = |_| Err(CniError::internal("route_localnet: EROFS"));
        let error = with(&conf(""), |request| add(&fake, read(request), request, &open)).unwrap_err();
        assert_eq!(error.msg, "route_localnet: EROFS");
        assert_eq!(fake.list().unwrap().len(), 1);
    }

    #[test]
    fn a_conflict_is_to_be_tried_again_and_names_the_owner() {
        let fake = Fake::new();
        let open = |_: IpAddr| Ok(());
        with(&conf(""), |request| add(&fake, read(request), request, &open)).unwrap();
        let config = conf("");
        let env = Env::default();
        let attachment = Attachment::new("n", "c2", "eth0").unwrap();
        let netns = Some(PathBuf::from("/proc/self/ns/net"));
        let other = Request { attachment, netns, args: "", config: &config, env: &env };
        let error = add(&fake, read(&other), &other, &open).unwrap_err();
        assert_eq!(error.code, ErrorCode::TryAgainLater);
        assert_eq!(error.msg, "tcp/0.0.0.0:8080 is taken by network n, container c1, interface eth0");
    }

    #[test]
    fn it_must_be_chained() {
        let config = NetConf::parse(r#"{"cniVersion":"1.1.0","name":"n","type":"portmap"}"#).unwrap();
        let error =
            with(&config, |request| add(&Fake::new(), read(request), request, &|_| Ok(()))).unwrap_err();
        assert_eq!(error.msg, "must be called as chained plugin");
        let error = with(&config, |request| check(&Fake::new(), read(request), request)).unwrap_err();
        assert_eq!(error.msg, "Required prevResult missing");
        with(&config, |request| del(&Fake::new(), request)).unwrap();
    }
}
