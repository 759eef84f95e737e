// SPDX-License-Identifier: MIT OR Apache-2.0

//! The rates in a pod's annotations.

use std::collections::BTreeMap;

use serde_json::{Value, json};

const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The lowest rate, in bits per second.
const LOWEST: f64 = 1e3;
/// The highest rate, in bits per second.
const HIGHEST: f64 = 1e15;

/// The suffixes of Kubernetes's quantities. The longest match decides: `Mi` before `M`.
const SUFFIXES: [(&str, f64); 13] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
];

/// The rates of a pod, in bits per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// Towards the pod.
    pub ingress: Option<u64>,
    /// From the pod.
    pub egress: Option<u64>,
}

/// An annotation that is not a usable rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BandwidthError {
    /// Not a quantity.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Quantity,
    /// Below 1 kbit/s.
    #[error("resource is unreasonably small (< 1kbit)")]
    Small,
    /// Above 1 Pbit/s.
    #[error("resource is unreasonably large (> 1Pbit)")]
    Large,
}

impl Bandwidth {
    /// Reads the annotations `kubernetes.io/ingress-bandwidth` and `kubernetes.io/egress-bandwidth`.
    ///
    /// # Errors
    /// [`BandwidthError`] for the first that is not a usable rate.
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Result<Self, BandwidthError> {
        let rate = |key| annotations.get(key).map(|text| rate(text)).transpose();
        Ok(Self { ingress: rate(INGRESS)?, egress: rate(EGRESS)? })
    }

    /// True if there is a limit.
    #[must_use]
    pub fn is_limited(self) -> bool {
        self.ingress.is_some() || self.egress.is_some()
    }

    /// The value of the capability `bandwidth`, with the burst in bits that goes with a rate.
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

/// A rate in bits per second, rounded up as Kubernetes's quantities are.
fn rate(text: &str) -> Result<u64, BandwidthError> {
    let with_suffix =
        SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (number, factor) = with_suffix.unwrap_or((text, 1.0));
    let (digits, exponent) = match number.split_once(['e', 'E']) {
        // An exponent is a suffix of its own.
        Some((digits, exponent)) if factor == 1.0 => {
            (digits, exponent.parse::<i32>().map_err(|_| BandwidthError::Quantity)?)
        }
        _ => (number, 0),
    };
    let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    let is_number = unsigned.bytes().all(|c| c.is_ascii_digit() || c == b'.')
        && unsigned.bytes().any(|c| c.is_ascii_digit())
        && unsigned.matches('.').count() <= 1;
    if !is_number {
        return Err(BandwidthError::Quantity);
    }
    let value: f64 = digits.parse().map_err(|_| BandwidthError::Quantity)?;
    let rate = (value * factor * 10_f64.powi(exponent)).ceil();
    if rate < LOWEST {
        return Err(BandwidthError::Small);
    }
    if rate > HIGHEST {
        return Err(BandwidthError::Large);
    }
    // Whole and between the limits, so that no bit is lost.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok(rate as u64)
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
