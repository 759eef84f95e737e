// SPDX-License-Identifier: MIT OR Apache-2.0

//! The bursts that go with rates. Both are in bits, as in the configuration of the bandwidth plugin, while tc counts
//! bytes.

/// kubelet's burst for the annotations of a pod, whatever the rate is: 2^31 - 1 bits, or 268 MB.
pub const KUBELET_BURST: u64 = 0x7fff_ffff;
/// The smallest result of [`burst`]: two packets of 64 KiB, the largest that virtual links pass on unsplit.
const SMALLEST: u64 = 1 << 20;
/// The largest result of [`burst`], because the bandwidth plugin refuses 2^32 - 1 bytes.
const LARGEST: u64 = (u32::MAX as u64 - 1) * 8;

/// The burst for a rate that has none of its own: what passes in an eighth of a second at this rate, but at least two
/// packets of the largest size and at most what the bandwidth plugin accepts.
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
        // The condition of the reference plugin: burst / 8 is less than 2^32 - 1.
        assert!(
            burst(u64::MAX) / 8 < u64::from(u32::MAX) && burst(300_000_000_000) / 8 < u64::from(u32::MAX)
        );
    }
}
