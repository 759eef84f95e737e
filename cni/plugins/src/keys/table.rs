// SPDX-License-Identifier: GPL-2.0-or-later

//! The table of known keys.

use super::Kind::{Address, Bool, Hardware, Ipam, Name, Number, Object, Open, Path, Plugin, Settings, Word};
use super::{Key, Kind, Known};

/// The prefix of libcni's own keys.
pub(super) const LIBCNI: &str = "cni.dev/";

const fn key(name: &'static str, kind: Kind) -> Key {
    Key { name, kind }
}

/// Keys of a list of plugins.
pub(super) const LIST: &[Key] = &[
    key("cniVersion", Name),
    key("cniVersions", Name),
    key("name", Name),
    key("disableCheck", Bool),
    key("disableGC", Bool),
    key("loadOnlyInlinedPlugins", Bool),
    key("plugins", Plugin("")),
];

/// Keys that every plugin's configuration may have: those of libcni and of the specification's
/// CONVENTIONS.md.
pub(super) const COMMON: &[Key] = &[
    key("cniVersion", Name),
    key("name", Name),
    key("type", Name),
    key("capabilities", Object(CAPABILITIES)),
    key("ipam", Ipam("")),
    key("dns", Object(DNS)),
    key("args", Open),
    key("runtimeConfig", Object(RUNTIME)),
    key("prevResult", Open),
    key("cni.dev/valid-attachments", Open),
    key("cni.dev/attachments", Open),
];

/// The key of plugins whose link receives packets from other hosts.
const ACCEPT_RA: Key = key("acceptRA", Bool);

/// Keys of every `ipam`.
pub(super) const IPAM: &[Key] = &[key("type", Name)];

const DNS: &[Key] =
    &[key("nameservers", Address), key("domain", Open), key("search", Open), key("options", Open)];

const CAPABILITIES: &[Key] = &[
    key("portMappings", Bool),
    key("ipRanges", Bool),
    key("bandwidth", Bool),
    key("dns", Bool),
    key("ips", Bool),
    key("mac", Bool),
    key("infinibandGUID", Bool),
    key("deviceID", Bool),
    key("aliases", Bool),
    key("cgroupPath", Bool),
    key("CNIDeviceInfoFile", Bool),
    key("io.kubernetes.cri.pod-annotations", Bool),
];

const RUNTIME: &[Key] = &[
    key("portMappings", Object(PORT_MAPPING)),
    key("ipRanges", Object(RANGE)),
    key("bandwidth", Object(RATES)),
    key("dns", Object(RUNTIME_DNS)),
    key("ips", Address),
    key("mac", Hardware),
    key("infinibandGUID", Hardware),
    key("deviceID", Hardware),
    key("aliases", Open),
    key("cgroupPath", Path),
    key("CNIDeviceInfoFile", Path),
    key("io.kubernetes.cri.pod-annotations", Open),
];

const PORT_MAPPING: &[Key] =
    &[key("hostPort", Number), key("containerPort", Number), key("protocol", Word), key("hostIP", Address)];

const RUNTIME_DNS: &[Key] = &[key("servers", Address), key("searches", Open), key("options", Open)];

const RATES: &[Key] = &[
    key("ingressRate", Number),
    key("ingressBurst", Number),
    key("egressRate", Number),
    key("egressBurst", Number),
];

const RANGE: &[Key] =
    &[key("subnet", Address), key("rangeStart", Address), key("rangeEnd", Address), key("gateway", Address)];

const ROUTE: &[Key] = &[
    key("dst", Address),
    key("gw", Address),
    key("mtu", Number),
    key("advmss", Number),
    key("priority", Number),
    key("table", Number),
    key("scope", Number),
];

/// The node's settings, `/etc/cni/slipway.json`.
pub(super) const NODE: &[Key] = &[
    key("backend", Word),
    key("ipMasqBackend", Word),
    key("nonMasqueradeCIDRs", Address),
    key("flowtable", Object(&[key("devices", Name)])),
    key("uplinks", Name),
    key("searchUdpFlows", Word),
    key("udpGroForwarding", Bool),
    key("maps", Object(&[key("flows", Number)])),
    key(
        "log",
        Object(&[key("level", Word), key("file", Path), key("maxSize", Number), key("journal", Bool)]),
    ),
];

/// All plugins, in the registry's order.
pub(super) const PLUGINS: &[Known] = &[
    of_plugin("bandwidth", RATES),
    of_plugin("bridge", BRIDGE),
    of_ipam("dhcp", DHCP),
    of_plugin("dummy", &[]),
    of_plugin(
        "firewall",
        &[
            key("backend", Word),
            key("iptablesAdminChainName", Name),
            key("firewalldZone", Name),
            key("ingressPolicy", Word),
        ],
    ),
    of_plugin(
        "flannel",
        &[
            key("subnetFile", Path),
            key("dataDir", Path),
            key("delegate", Plugin("bridge")),
            key("ipam", Ipam("host-local")),
        ],
    ),
    of_plugin(
        "host-device",
        &[
            key("device", Name),
            key("hwaddr", Hardware),
            key("kernelpath", Path),
            key("pciBusID", Hardware),
            ACCEPT_RA,
        ],
    ),
    of_ipam("host-local", HOST_LOCAL),
    of_plugin(
        "ipvlan",
        &[
            key("master", Name),
            key("linkInContainer", Bool),
            key("mode", Word),
            key("mtu", Number),
            ACCEPT_RA,
        ],
    ),
    of_plugin("loopback", &[]),
    of_plugin("macvlan", MACVLAN),
    of_plugin("noop", &[key("debugFile", Path), key("commandLog", Path)]),
    of_plugin("portmap", PORTMAP),
    of_plugin(
        "ptp",
        &[
            key("ipMasq", Bool),
            key("ipMasqBackend", Word),
            key("nonMasqueradeCIDRs", Address),
            key("mtu", Number),
            ACCEPT_RA,
        ],
    ),
    of_plugin("sbr", &[key("table", Number), key("gateways", Address), key("addSourceHints", Bool)]),
    of_ipam("static", STATIC),
    of_plugin("tap", TAP),
    of_plugin("tuning", TUNING),
    of_plugin(
        "vlan",
        &[
            key("master", Name),
            key("linkInContainer", Bool),
            key("vlanId", Number),
            key("mtu", Number),
            ACCEPT_RA,
        ],
    ),
    of_plugin("vrf", &[key("vrfname", Name), key("table", Number)]),
];

const fn of_plugin(plugin: &'static str, keys: &'static [Key]) -> Known {
    Known { plugin, keys, ipam: &[] }
}

const fn of_ipam(plugin: &'static str, ipam: &'static [Key]) -> Known {
    Known { plugin, keys: &[], ipam }
}

/// The keys of that plugin; none if this binary does not have the plugin.
pub(super) fn of(plugin: &str) -> Option<&'static Known> {
    PLUGINS.iter().find(|known| known.plugin == plugin)
}

const BRIDGE: &[Key] = &[
    key("bridge", Name),
    key("isGateway", Bool),
    key("isDefaultGateway", Bool),
    key("forceAddress", Bool),
    key("ipMasq", Bool),
    key("ipMasqBackend", Word),
    key("nonMasqueradeCIDRs", Address),
    key("mtu", Number),
    key("hairpinMode", Bool),
    key("promiscMode", Bool),
    key("portIsolation", Bool),
    key("vlan", Number),
    key("vlanTrunk", Object(&[key("minID", Number), key("maxID", Number), key("id", Number)])),
    key("preserveDefaultVlan", Bool),
    key("macspoofchk", Bool),
    key("enabledad", Bool),
    key("disableContainerInterface", Bool),
    ACCEPT_RA,
];

const MACVLAN: &[Key] = &[
    key("master", Name),
    key("linkInContainer", Bool),
    key("mode", Word),
    key("mtu", Number),
    key("mac", Hardware),
    key("bcqueuelen", Number),
    ACCEPT_RA,
];

const TAP: &[Key] = &[
    key("multiQueue", Bool),
    key("owner", Number),
    key("group", Number),
    key("bridge", Name),
    key("mtu", Number),
    key("mac", Hardware),
    key("selinuxContext", Open),
    ACCEPT_RA,
];

const PORTMAP: &[Key] = &[
    key("backend", Word),
    key("snat", Bool),
    key("masqAll", Bool),
    key("excludeLoopback", Bool),
    key("markMasqBit", Number),
    key("externalSetMarkChain", Name),
    key("conditionsV4", Open),
    key("conditionsV6", Open),
];

const TUNING: &[Key] = &[
    key("sysctl", Settings),
    key("mac", Hardware),
    key("promisc", Bool),
    key("mtu", Number),
    key("allmulti", Bool),
    key("txQLen", Number),
    key("dataDir", Path),
];

const DHCP: &[Key] = &[
    key("daemonSocketPath", Path),
    key("priority", Number),
    key("request", Object(&[key("option", Name), key("skipDefault", Bool)])),
    key("provide", Object(&[key("option", Name), key("value", Open), key("fromArg", Name)])),
];

const HOST_LOCAL: &[Key] = &[
    key("ranges", Object(RANGE)),
    key("subnet", Address),
    key("rangeStart", Address),
    key("rangeEnd", Address),
    key("gateway", Address),
    key("routes", Object(ROUTE)),
    key("dataDir", Path),
    key("resolvConf", Path),
    key("subnetFile", Path),
];

const STATIC: &[Key] = &[
    key("addresses", Object(&[key("address", Address), key("gateway", Address)])),
    key("routes", Object(ROUTE)),
    key("dns", Object(DNS)),
];
