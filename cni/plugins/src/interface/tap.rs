// SPDX-License-Identifier: GPL-2.0-or-later

//! `tap`: gives a container a link whose frames a program reads and writes, for virtual machines for
//! instance.

use std::ops::RangeInclusive;
use std::process::{Command, Stdio};
use std::{fs, io};

use cni_kernel::mac::Mac;
use cni_kernel::route::{DuplicateDetection, Link, LinkChange, LinkKind};
use cni_kernel::tap::{self, NewTap, Queues, TapError};
use cni_spec::{AddResult, CniError, Dns, NetConf, check_ifname};
use serde::Deserialize;

use super::shared::advertisements::Advertisements;
use super::shared::expected::Objects;
use super::shared::failed;
use super::shared::keys::mtu;
use super::shared::single::check::{Expected, check, not_of_type};
use super::shared::single::expected;
use super::shared::single::keys::{mac, unavailable};
use super::shared::single::{Addresses, Recipe, Site, remove};
use crate::plugin::{NodeRequest, Place, Plugin, Request};
use crate::skel::delegate;

/// The kernel's limits: `ETH_MIN_MTU` of `linux/if_ether.h`, and `ETH_MAX_MTU` without the header
/// (`tun_net_initialize` in `drivers/net/tun.c`).
const MTU: RangeInclusive<i64> = 68..=65_521;
/// The file for the SELinux context of the next program that the thread executes.
const EXEC_CONTEXT: &str = "/proc/thread-self/attr/exec";

/// Why a tap cannot be made.
#[derive(Debug, thiserror::Error)]
enum MakeError {
    #[error(transparent)]
    Create(#[from] TapError),
    #[error("failed set socket label: write {EXEC_CONTEXT}: {0}")]
    Context(io::Error),
    #[error("run ip tuntap: {0}")]
    Run(io::Error),
    #[error("ip tuntap: {0}")]
    Refused(String),
}

/// The `tap` plugin.
#[derive(Debug)]
pub struct Tap;

impl Plugin for Tap {
    fn name(&self) -> &'static str {
        "tap"
    }

    fn summary(&self) -> &'static str {
        "gives a container a link whose frames a program reads and writes"
    }

    fn place(&self) -> Place {
        Place::Link
    }

    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        use super::shared::{advertisements, single::keys};
        &(&keys::decodes_mac() | &advertisements::decodes()) | &crate::keys::probe::fields::<Keys>()
    }

    #[cfg(feature = "fuzzing")]
    fn read(&self, request: &Request<'_>) -> Result<(), CniError> {
        Settings::new(request.config, request.args).map(drop)
    }

    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError> {
        let settings = Settings::new(request.config, request.args)?;
        let recipe = Recipe {
            request,
            plugin: "tap",
            addresses: Addresses::of(request),
            advertisements: Advertisements::with_ipam(request.config)?,
            dns: Some(settings.dns.clone()),
            ipam_failed: "",
            settings: &[],
            // No program has opened the other end yet, so no probe would be answered.
            detection: DuplicateDetection::Skip,
        };
        recipe.add(|site| settings.make(site))
    }

    fn del(&self, request: &Request<'_>) -> Result<(), CniError> {
        remove::del(request, |kind| *kind == LinkKind::Tun)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CniError> {
        Settings::new(request.config, request.args)?;
        let is_tap = |link: &Link| match link.kind {
            LinkKind::Tun => Ok(()),
            _ => Err(not_of_type(link, "tap")),
        };
        check(request, &Expected { no_result: "Required prevResult missing", link: &is_tap }).map(drop)
    }

    fn expected(&self, request: &Request<'_>) -> Result<Objects, CniError> {
        expected::inside(request)
    }

    fn gc(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        remove::gc(request)
    }

    fn status(&self, request: &NodeRequest<'_>) -> Result<(), CniError> {
        Settings::new(request.config, "")?;
        tap::available().map_err(|error| unavailable(&error))?;
        if request.config.ipam.is_empty() { Ok(()) } else { delegate::ipam_status(request) }
    }
}

/// The configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Settings {
    queues: Queues,
    owner: Option<u32>,
    group: Option<u32>,
    context: Option<String>,
    bridge: Option<String>,
    mtu: Option<u32>,
    mac: Option<Mac>,
    dns: Dns,
}

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    multi_queue: bool,
    owner: Option<u32>,
    group: Option<u32>,
    selinux_context: String,
    bridge: String,
    mtu: i64,
    dns: Dns,
}

impl Settings {
    fn new(config: &NetConf, args: &str) -> Result<Self, CniError> {
        let keys: Keys = config.decode()?;
        let given = |text: String| (!text.is_empty()).then_some(text);
        let bridge = given(keys.bridge);
        if let Some(name) = &bridge {
            check_ifname(name).map_err(|error| CniError::config(format!("key \"bridge\": {error}")))?;
        }
        let context = given(keys.selinux_context);
        if context.as_ref().is_some_and(|context| context.contains(['\0', '\n'])) {
            return Err(CniError::config("key \"selinuxContext\": it contains a NUL or a line's end"));
        }
        Ok(Self {
            queues: if keys.multi_queue { Queues::Several } else { Queues::One },
            owner: keys.owner,
            group: keys.group,
            context,
            bridge,
            mtu: mtu(keys.mtu, MTU)?,
            mac: mac(config, args)?,
            dns: keys.dns,
        })
    }

    fn make(&self, site: &Site) -> Result<LinkChange, CniError> {
        let mut change = LinkChange::new().arp_notify();
        if let Some(name) = &self.bridge {
            let missing = || CniError::internal(format!("failed to get bridge {name}: Link not found"));
            let bridge = site.container.route.find_link(name).map_err(failed)?.ok_or_else(missing)?;
            change = change.master(&bridge);
        }
        if let Some(mtu) = self.mtu {
            change = change.mtu(mtu);
        }
        if let Some(mac) = self.mac {
            change = change.mac(mac);
        }
        let name = site.name.as_str();
        let create = || match &self.context {
            None => tap::create(&self.tap(name)).map_err(MakeError::Create),
            Some(context) => self.create_in_context(name, context),
        };
        let made = site.container.namespace().run(create).map_err(failed)?;
        made.map_err(|error| CniError::internal(format!("failed to create tap: {error}")))?;
        Ok(change)
    }

    fn tap<'a>(&self, name: &'a str) -> NewTap<'a> {
        NewTap { name, owner: self.owner, group: self.group, queues: self.queues }
    }

    /// Makes the tap by ip(8), as the reference does. A tap gets the SELinux context of the process that
    /// makes it, and a process with several threads may change its own context only to a bounded one. The
    /// calling thread must end afterwards.
    fn create_in_context(&self, name: &str, context: &str) -> Result<(), MakeError> {
        fs::write(EXEC_CONTEXT, context).map_err(MakeError::Context)?;
        let output = Command::new("ip")
            .args(self.arguments(name))
            .stdin(Stdio::null())
            .output()
            .map_err(MakeError::Run)?;
        match output.status.success() {
            true => Ok(()),
            false => Err(MakeError::Refused(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }

    /// The arguments for ip-tuntap(8).
    fn arguments(&self, name: &str) -> Vec<String> {
        let mut words = ["tuntap", "add", "mode", "tap", "name", name].map(str::to_owned).to_vec();
        if self.queues == Queues::Several {
            words.push("multi_queue".to_owned());
        }
        for (word, id) in [("user", self.owner), ("group", self.group)] {
            if let Some(id) = id {
                words.extend([word.to_owned(), id.to_string()]);
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    fn settings(keys: &Value) -> Result<Settings, CniError> {
        Settings::new(&configuration("tap", keys), "")
    }

    #[test]
    fn every_key_is_read() {
        let keys = json!({
            "multiQueue": true, "owner": 107, "group": 0, "mac": "02:00:00:00:00:01", "mtu": 1400,
            "selinuxContext": "system_u:system_r:container_t:s0", "bridge": "br0", "dns": {"domain": "a"},
        });
        let expected = Settings {
            queues: Queues::Several,
            owner: Some(107),
            group: Some(0),
            context: Some("system_u:system_r:container_t:s0".to_owned()),
            bridge: Some("br0".to_owned()),
            mtu: Some(1400),
            mac: Some("02:00:00:00:00:01".parse().unwrap()),
            dns: Dns { domain: "a".to_owned(), ..Dns::default() },
        };
        let settings = settings(&keys).unwrap();
        assert_eq!(settings, expected);
        let words = settings.arguments("tap0").join(" ");
        assert_eq!(words, "tuntap add mode tap name tap0 multi_queue user 107 group 0");
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        for (keys, text) in [
            (json!({"mtu": 67}), "key \"mtu\": invalid MTU 67 (must be 0 or between 68 and 65521)"),
            (json!({"bridge": "a/b"}), "key \"bridge\": "),
            (json!({"selinuxContext": "a\nb"}), "key \"selinuxContext\": "),
            (json!({"owner": -1}), "failed to load netconf: owner: "),
        ] {
            let error = settings(&keys).unwrap_err();
            assert!(error.msg.starts_with(text), "{error}");
            assert_eq!(error.code.number(), 7);
        }
    }
}
