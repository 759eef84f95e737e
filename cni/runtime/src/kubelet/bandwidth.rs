// SPDX-License-Identifier: MIT OR Apache-2.0

//! The rates in a pod's annotations.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::quantity::{QuantityError, quantity};

const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The lowest rate, in bits per second.
const LOWEST: u64 = 1_000;
/// The highest rate, in bits per second.
const HIGHEST: u64 = 1_000_000_000_000_000;

/// The rates of a pod, in bits per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// The rate towards the pod.
    pub ingress: Option<u64>,
    /// The rate from the pod.
    pub egress: Option<u64>,
}

/// Why an annotation is not a usable rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BandwidthError {
    /// The text is not a quantity.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Quantity,
    /// The rate is below 1 kbit/s.
    #[error("resource is unreasonably small (< 1kbit)")]
    Small,
    /// The rate is above 1 Pbit/s.
    #[error("resource is unreasonably large (> 1Pbit)")]
    Large,
}

impl Bandwidth {
    /// Reads the annotations `kubernetes.io/ingress-bandwidth` and `kubernetes.io/egress-bandwidth`.
    ///
    /// # Errors
    /// [`BandwidthError`] for the first annotation that is not a usable rate.
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Result<Self, BandwidthError> {
        let rate = |key| annotations.get(key).map(|text| rate(text)).transpose();
        Ok(Self { ingress: rate(INGRESS)?, egress: rate(EGRESS)? })
    }

    /// True if at least one direction is limited.
    #[must_use]
    pub fn is_limited(self) -> bool {
        self.ingress.is_some() || self.egress.is_some()
    }

    /// The value of the capability `bandwidth`. `burst` returns the burst in bits that goes with a rate.
    #[must_use]
    pub fn capability(self, burst: impl Fn(u64) -> u64) -> Value {
        let mut value = json!({});
        for (direction, rate) in [("ingress", self.ingress), ("egress", self.egress)] {
            if let Some(rate) = rate {
                value[format!("{direction}Rate")] = rate.into();
                value[format!("{direction}Burst")] = burst(rate).into();
            }
        }
        value
    }
}

/// A rate in bits per second.
fn rate(text: &str) -> Result<u64, BandwidthError> {
    let rate = quantity(text).map_err(|error| match error {
        QuantityError::Form(_) => BandwidthError::Quantity,
        QuantityError::TooLarge(_) => BandwidthError::Large,
    })?;
    match u64::try_from(rate) {
        Ok(rate) if rate > HIGHEST => Err(BandwidthError::Large),
        Ok(rate) if rate >= LOWEST => Ok(rate),
        _ => Err(BandwidthError::Small),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_quantities_of_kubernetes() {
        for (text, bits) in [
            ("10M", 10_000_000),
            ("1.5M", 1_500_000),
            ("1Mi", 1_048_576),
            ("1k", 1000),
            ("1000", 1000),
            ("1e6", 1_000_000),
            ("1E3", 1000),
            ("+2G", 2_000_000_000),
            ("1000500m", 1001),
            ("1P", 1_000_000_000_000_000),
        ] {
            assert_eq!(rate(text), Ok(bits), "{text}");
        }
        for text in ["", "M", "10 M", "10Mb", "1.2.3M", "0x10", "1e", "nan", "inf", "--1", "1e3M", "."] {
            assert_eq!(rate(text), Err(BandwidthError::Quantity), "{text}");
        }
        for text in ["999", "0", "-5M", "1m"] {
            assert_eq!(rate(text), Err(BandwidthError::Small), "{text}");
        }
        assert_eq!(rate("2P"), Err(BandwidthError::Large));
        assert_eq!(rate("1e999"), Err(BandwidthError::Large));
    }

    #[test]
    fn only_annotated_directions_are_limited() {
        let none = Bandwidth::from_annotations(&BTreeMap::new()).unwrap();
        assert!(!none.is_limited());
        assert_eq!(none.capability(|rate| rate), json!({}));
        let annotations = BTreeMap::from([(INGRESS.to_owned(), "10M".to_owned())]);
        let bandwidth = Bandwidth::from_annotations(&annotations).unwrap();
        assert!(bandwidth.is_limited());
        assert_eq!(
            bandwidth.capability(|rate| rate * 2),
            json!({"ingressRate": 10_000_000, "ingressBurst": 20_000_000})
        );
    }
}
