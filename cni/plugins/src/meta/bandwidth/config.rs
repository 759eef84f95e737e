// SPDX-License-Identifier: GPL-2.0-or-later

//! bandwidth's keys, decoded and checked.

use cni_kernel::route::TokenBucket;
use cni_spec::{Bandwidth, CniError, NetConf, fold};
use serde::Deserialize;

/// The longest wait of a packet, in microseconds; the reference's value.
const LATENCY_US: u64 = 25_000;

/// The keys, not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    ingress_rate: u64,
    ingress_burst: u64,
    egress_rate: u64,
    egress_burst: u64,
    runtime_config: RuntimeConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    bandwidth: Option<Bandwidth>,
}

/// The limit of each direction, if any.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Into the container.
    pub(super) ingress: Option<TokenBucket>,
    /// Out of the container.
    pub(super) egress: Option<TokenBucket>,
}

impl Limits {
    /// Reads and checks all keys. The runtime's limits count only if the configuration has none.
    ///
    /// # Errors
    /// Code 7 for a value that cannot be used.
    pub(super) fn read(config: &NetConf) -> Result<Self, CniError> {
        const OWN: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
        let keys: Keys = config.decode()?;
        let own = OWN.iter().any(|key| fold::get(&config.raw, key).is_some_and(|value| !value.is_null()));
        let wanted = if own {
            Bandwidth {
                ingress_rate: keys.ingress_rate,
                ingress_burst: keys.ingress_burst,
                egress_rate: keys.egress_rate,
                egress_burst: keys.egress_burst,
            }
        } else {
            keys.runtime_config.bandwidth.unwrap_or_default()
        };
        Ok(Self {
            ingress: bucket("ingress", wanted.ingress_rate, wanted.ingress_burst)?,
            egress: bucket("egress", wanted.egress_rate, wanted.egress_burst)?,
        })
    }

    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The queue for a rate in bits per second and a burst in bits.
fn bucket(direction: &str, rate: u64, burst: u64) -> Result<Option<TokenBucket>, CniError> {
    let wrong = |why: &str| Err(CniError::config(why.to_owned()));
    match (rate, burst) {
        (0, 0) => return Ok(None),
        (0, _) => return wrong("if burst is set, rate must also be set"),
        (_, 0) => return wrong("if rate is set, burst must also be set"),
        _ => {}
    }
    let Some(burst) = u32::try_from(burst / 8).ok().filter(|burst| *burst != u32::MAX) else {
        return wrong("burst cannot be more than 4GB");
    };
    if rate < 8 || burst == 0 {
        let msg = format!(
            "{direction}: a rate below 8 bits per second, or a burst below 8 bits, lets nothing through"
        );
        return Err(CniError::config(msg));
    }
    Ok(Some(TokenBucket::new(rate / 8, burst, LATENCY_US)))
}

#[cfg(test)]
pub(super) fn decodes() -> crate::keys::probe::Fields {
    crate::keys::probe::fields::<Keys>()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_configuration::configuration;

    fn read(keys: &Value) -> Result<Limits, String> {
        Limits::read(&configuration("bandwidth", keys)).map_err(|error| error.msg)
    }

    fn limits(ingress: Option<(u64, u32)>, egress: Option<(u64, u32)>) -> Limits {
        let bucket = |(rate, burst): (u64, u32)| TokenBucket::new(rate / 8, burst / 8, 25_000);
        Limits { ingress: ingress.map(bucket), egress: egress.map(bucket) }
    }

    #[test]
    fn the_configuration_takes_precedence_over_the_runtime() {
        assert_eq!(read(&json!({})), Ok(Limits::default()));
        let zero = json!({"ingressRate": 0, "ingressBurst": 0, "egressRate": 0, "egressBurst": 0});
        assert!(read(&zero).unwrap().is_none());
        let runtime = json!({"bandwidth": {"ingressRate": 80, "ingressBurst": 160, "egressRate": 800, "egressBurst": 1600}});
        let runtimes = limits(Some((80, 160)), Some((800, 1600)));
        assert_eq!(read(&json!({"runtimeConfig": runtime})), Ok(runtimes));
        // A single key of the configuration's own is enough, also with the value 0.
        let own = json!({"egressRate": 8000, "egressBurst": 16000, "runtimeConfig": runtime});
        assert_eq!(read(&own), Ok(limits(None, Some((8000, 16000)))));
        assert_eq!(read(&json!({"ingressRate": 0, "runtimeConfig": runtime})), Ok(Limits::default()));
        assert_eq!(read(&json!({"ingressRate": null, "runtimeConfig": runtime})), Ok(runtimes));
    }

    #[test]
    fn keys_of_containerd_are_capitalised() {
        let runtime =
            json!({"bandwidth": {"IngressRate": 80, "IngressBurst": 160, "EgressRate": 0, "EgressBurst": 0}});
        assert_eq!(read(&json!({"runtimeConfig": runtime})), Ok(limits(Some((80, 160)), None)));
    }

    #[test]
    fn invalid_values_are_refused() {
        let rows = [
            (json!({"ingressRate": 8}), "if rate is set, burst must also be set"),
            (json!({"egressBurst": 8}), "if burst is set, rate must also be set"),
            (
                json!({"egressRate": 8, "egressBurst": 8_u64 * u64::from(u32::MAX)}),
                "burst cannot be more than 4GB",
            ),
            (
                json!({"ingressRate": 7, "ingressBurst": 8}),
                "ingress: a rate below 8 bits per second, or a burst below 8 bits, lets nothing through",
            ),
        ];
        for (keys, msg) in rows {
            assert_eq!(read(&keys), Err(msg.to_owned()), "{keys}");
        }
        let largest = json!({"egressRate": u64::MAX, "egressBurst": 8_u64 * u64::from(u32::MAX) - 8});
        assert!(read(&largest).is_ok());
        assert!(read(&json!({"egressRate": -1})).is_err());
    }
}
