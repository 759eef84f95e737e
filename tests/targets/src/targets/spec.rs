// SPDX-License-Identifier: GPL-3.0-or-later

//! Documents of the CNI specification.

use std::fmt::Debug;

use cni_spec::{AddResult, Args, NetConf, NetConfList, Version, check_network};
use serde_json::Map;

const KNOWN: [&str; 3] = ["IP", "MAC", "GATEWAY"];

/// `CNI_ARGS`. Accepted arguments must print as arguments that are accepted again.
pub(crate) fn args(bytes: &[u8]) -> impl Debug {
    let read = Args::parse(&String::from_utf8_lossy(bytes), &KNOWN);
    read.map(|args| {
        let pairs: Vec<String> =
            KNOWN.iter().filter_map(|key| args.get(key).map(|value| format!("{key}={value}"))).collect();
        let again = Args::parse(&pairs.join(";"), &KNOWN).unwrap();
        assert!(KNOWN.iter().all(|key| again.get(key) == args.get(key)));
        KNOWN.map(|key| args.get(key).is_some())
    })
}

/// A configuration list and a single configuration. The input of each of their plugins must be accepted.
pub(crate) fn conflist(bytes: &[u8]) -> impl Debug {
    [NetConfList::parse(bytes), NetConfList::of_single(bytes)].map(|read| {
        read.map(|list| {
            let inputs = list.plugins.iter().map(|plugin| {
                // A result without addresses has no form in the oldest versions.
                let input = list.input(plugin, Some(&AddResult::default()), &Map::new());
                let input = input.map_err(|error| error.to_string())?;
                let read = NetConf::parse(serde_json::to_vec(&input).unwrap());
                if let Err(error) = &read
                    && check_network(&list.name).is_ok()
                    && list.version.known().is_some()
                {
                    // The keys of a plugin may still be wrong, but name and version may not.
                    assert_eq!(error.code.number(), 7, "{error}");
                }
                Ok::<_, String>(read.is_ok())
            });
            inputs.collect::<Vec<_>>()
        })
    })
}

/// A plugin's standard input. Accepted input must have valid names and a published version.
pub(crate) fn netconf(bytes: &[u8]) -> impl Debug {
    NetConf::parse(bytes).map(|conf| {
        check_network(&conf.name).unwrap();
        assert_eq!(conf.bytes, bytes);
        for attachment in conf.valid_attachments.iter().flatten() {
            assert_eq!(attachment.network(), conf.name);
        }
        (conf.runtime_config().is_ok(), conf.prev_result, conf.version)
    })
}

/// The output of a plugin or delegate, read as each version. It must stay the same when it is printed and read again.
pub(crate) fn result(bytes: &[u8]) -> impl Debug {
    let read = Version::ALL.iter().map(|config| {
        let result = AddResult::from_output(*config, bytes)?;
        for version in Version::ALL {
            let Ok(text) = result.print(*version) else {
                assert!(result.ips.is_empty());
                continue;
            };
            let again = AddResult::from_output(*version, text.as_bytes()).unwrap();
            assert_eq!(again.print(*version).unwrap(), text);
        }
        Ok::<_, cni_spec::ResultError>(result)
    });
    read.collect::<Vec<_>>()
}
