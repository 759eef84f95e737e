// SPDX-License-Identifier: MIT OR Apache-2.0

//! Quantities of Kubernetes, such as `10M` or `1.5Gi`.

use cni_spec::text;

/// How many digits of a fraction are read. If there are more, the value is rounded up.
const FRACTION: usize = 18;

/// Why a text is not a usable quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text is not a quantity.
    #[error("{} is not a quantity such as 10M or 1.5Gi", text::quote(.0))]
    Form(String),
    /// The quantity is larger than 2^63-1.
    #[error("quantity {} is too large", text::quote(.0))]
    TooLarge(String),
}

/// The factor of a suffix: a number, or a power of ten.
#[derive(Debug, Clone, Copy)]
enum Factor {
    Times(u128),
    Ten(i32),
}

/// The value of a quantity, rounded up to an integer. A quantity is a number with a suffix `n`, `u`, `m`, `k`, `M`,
/// `G`, `T`, `P`, `E`, `Ki`, `Mi`, `Gi`, `Ti`, `Pi` or `Ei`, or with a decimal exponent.
///
/// # Errors
/// [`QuantityError::Form`] if the text is not a quantity, [`QuantityError::TooLarge`] if it exceeds 2^63-1.
pub fn quantity(text: &str) -> Result<i64, QuantityError> {
    let form = || QuantityError::Form(text.to_owned());
    let too_large = || QuantityError::TooLarge(text.to_owned());
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(form());
    }
    let factor = factor(suffix).ok_or_else(form)?;
    let (read, rest) = fraction.split_at(fraction.len().min(FRACTION));
    let mut digits: u128 = 0;
    for digit in whole.bytes().chain(read.bytes()) {
        let digit = u128::from(digit - b'0');
        digits = digits.checked_mul(10).and_then(|all| all.checked_add(digit)).ok_or_else(too_large)?;
    }
    // Rounding up means away from zero for a positive number, and towards zero for a negative one.
    let is_negative = text.starts_with('-');
    if !is_negative && rest.bytes().any(|digit| digit != b'0') {
        digits = digits.checked_add(1).ok_or_else(too_large)?;
    }
    // Cannot fail, because the length is at most FRACTION.
    let places = i32::try_from(read.len()).unwrap_or_default();
    let (times, exponent) = match factor {
        Factor::Times(times) => (times, -places),
        Factor::Ten(exponent) => (1, exponent.saturating_sub(places)),
    };
    let scaled = digits.checked_mul(times).ok_or_else(too_large)?;
    let value = shift(scaled, exponent, is_negative).ok_or_else(too_large)?;
    let value = i64::try_from(value).map_err(|_| too_large())?;
    Ok(if is_negative { -value } else { value })
}

/// `number * 10^exponent`, rounded down if `floor` is true and up otherwise. None if the result does not fit.
fn shift(number: u128, exponent: i32, floor: bool) -> Option<u128> {
    let power = 10u128.checked_pow(exponent.unsigned_abs());
    match (power, exponent >= 0) {
        _ if number == 0 => Some(0),
        (Some(power), true) => number.checked_mul(power),
        (None, true) => None,
        (Some(power), false) if floor => Some(number / power),
        (Some(power), false) => Some(number.div_ceil(power)),
        (None, false) => Some(u128::from(!floor)),
    }
}

fn factor(suffix: &str) -> Option<Factor> {
    let binary = |power: u32| Some(Factor::Times(1 << (10 * power)));
    let decimal = |exponent: i32| Some(Factor::Ten(exponent));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let is_number =
                exponent.strip_prefix(['+', '-']).unwrap_or(exponent).bytes().all(|b| b.is_ascii_digit());
            exponent.parse().ok().filter(|_| is_number).map(Factor::Ten)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_of_kubernetes() {
        for (text, want) in [
            ("10M", 10_000_000),
            ("1.5Gi", 3 << 29),
            ("1", 1),
            ("1.", 1),
            (".5k", 500),
            ("+2k", 2000),
            ("-2k", -2000),
            ("100m", 1),
            ("-100m", 0),
            ("1n", 1),
            ("1e3", 1000),
            ("1E3", 1000),
            ("12e-1", 2),
            ("1E", 1_000_000_000_000_000_000),
            ("7Ei", 7 << 60),
            ("0.0000000000000000000000001", 1),
            ("0e999999999", 0),
            ("1e-999999999", 1),
        ] {
            assert_eq!(quantity(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", ".", "-", "M", "1 M", "1KB", "1mi", "1e", "1e+-1", "1.2.3", "ten", "1Mi ", "٣M"] {
            assert_eq!(quantity(text), Err(QuantityError::Form(text.to_owned())), "{text}");
        }
        for text in ["8Ei", "10E", "1e99999", "9223372036854775808", &"9".repeat(60)] {
            assert_eq!(quantity(text), Err(QuantityError::TooLarge(text.to_owned())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*|[-+]?[0-9.]{0,40}([numkMGTPE]?i?|[eE][-+]?[0-9]{0,12})") {
            if let Ok(value) = quantity(&text) {
                prop_assert!(value >= 0 || text.starts_with('-'));
            }
        }

        #[test]
        fn suffixes_multiply(number in 0..1_000_000i64) {
            for (suffix, times) in [("", 1), ("k", 1000), ("M", 1_000_000), ("Ki", 1024), ("e3", 1000), ("Gi", 1 << 30)] {
                prop_assert_eq!(quantity(&format!("{number}{suffix}")), Ok(number * times));
            }
            prop_assert_eq!(quantity(&format!("{number}m")), Ok((number + 999) / 1000));
        }
    }
}
