// SPDX-License-Identifier: MIT OR Apache-2.0

//! The bursts that go with rates. Both are in bits, as in the configuration of the plugin bandwidth; tc counts in bytes.

/// kubelet's burst for the annotations of a pod, which does not depend on the rate: 2^31 - 1 bits, or 268 MB.
pub const KUBELET_BURST: u64 = 0x7fff_ffff;
/// The smallest burst of [`burst`]: two packets of 64 KiB, the largest that virtual links pass on whole.
const SMALLEST: u64 = 1 << 20;
/// The largest burst of [`burst`]: the plugin bandwidth refuses 2^32 - 1 bytes.
const LARGEST: u64 = (u32::MAX as u64 - 1) * 8;

/// The burst of a rate that has none of its own: what passes in an eighth of a second at this rate, but at least two packets
/// of the largest size and at most what the plugin bandwidth takes.
#[must_use]
pub fn burst(rate: u64) -> u64 {
    (rate / 8).clamp(SMALLEST, LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_what_passes_in_an_eighth_of_a_second_within_bounds() {
        assert_eq!(burst(80_000_000), 10_000_000);
        assert_eq!(burst(1000), 2 * (64 << 10) * 8);
        // The reference's condition: burst / 8 is less than 2^32 - 1.
        assert!(
            burst(u64::MAX) / 8 < u64::from(u32::MAX) && burst(300_000_000_000) / 8 < u64::from(u32::MAX)
        );
    }
}
