// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! The configuration of the BPF programs, and their clock.

use crate::flow::{STATES, State};

/// The clock of the flows: ticks of 2^30 ns (1.07 s) of CLOCK_MONOTONIC. A shift replaces the division for
/// each packet, and 32 bits last for 146 years.
pub const TICK_SHIFT: u32 = 30;

/// Converts seconds to ticks, rounding up.
#[must_use]
pub const fn ticks(seconds: u32) -> u32 {
    let nanoseconds = seconds as u64 * 1_000_000_000;
    // 2^32 s are fewer than 2^32 ticks, as a tick is longer than a second.
    #[allow(clippy::cast_possible_truncation, reason = "see the line above")]
    let ticks = nanoseconds.div_ceil(1 << TICK_SHIFT) as u32;
    ticks
}

/// Timeouts of flows without packets in ticks, indexed by [`State`].
pub type Timeouts = [u32; STATES];

/// The only element of map [`config`](crate::maps::CONFIG).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Cookie of the node's network namespace (`SO_NETNS_COOKIE`). Sockets of other namespaces are not
    /// translated.
    pub netns_cookie: u64,
    /// Cookie of a socket (`SO_COOKIE`) in the node's network namespace; 0: none. When it connects, the BPF
    /// program stores the namespace's cookie in this element: before Linux 5.14 only a BPF program can read
    /// it.
    pub probe_socket: u64,
    /// [`VERSION`](crate::VERSION) of the writer.
    pub version: u32,
    /// First source port of masquerade, in host byte order.
    pub masquerade_first: u16,
    /// Last source port of masquerade. Less than `masquerade_first`: the BPF programs masquerade nothing.
    pub masquerade_last: u16,
    /// Timeouts of flows.
    pub timeouts: Timeouts,
}

impl Config {
    /// The default source ports of masquerade: above the ephemeral ports of Linux (`ip_local_port_range`,
    /// 32768 to 60999).
    pub const DEFAULT_PORTS: (u16, u16) = (61000, 65535);

    /// conntrack's defaults in seconds (Documentation/networking/nf_conntrack-sysctl.rst).
    pub const DEFAULT_SECONDS: Timeouts = {
        let mut seconds = [0; STATES];
        seconds[State::SynSent as usize] = 120;
        seconds[State::SynReceived as usize] = 60;
        seconds[State::Established as usize] = 432_000;
        seconds[State::FinWait as usize] = 120;
        seconds[State::CloseWait as usize] = 60;
        seconds[State::LastAck as usize] = 30;
        seconds[State::TimeWait as usize] = 120;
        seconds[State::Close as usize] = 10;
        seconds[State::Unreplied as usize] = 30;
        seconds[State::Stream as usize] = 120;
        seconds[State::Echo as usize] = 30;
        seconds[State::Replied as usize] = 30;
        seconds
    };

    /// The default configuration for the namespace with this cookie.
    #[must_use]
    pub const fn new(netns_cookie: u64) -> Self {
        let mut timeouts = Self::DEFAULT_SECONDS;
        let mut state = 0;
        while state < STATES {
            timeouts[state] = ticks(timeouts[state]);
            state += 1;
        }
        let (masquerade_first, masquerade_last) = Self::DEFAULT_PORTS;
        Self {
            netns_cookie,
            probe_socket: 0,
            version: crate::VERSION,
            masquerade_first,
            masquerade_last,
            timeouts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_rounded_up_and_do_not_overflow() {
        assert_eq!(ticks(0), 0);
        assert_eq!(ticks(1), 1);
        assert_eq!(ticks(120), 112);
        assert_eq!(ticks(432_000), 402_332);
        assert!(ticks(u32::MAX) < u32::MAX);
    }

    #[test]
    fn every_state_has_a_timeout() {
        let config = Config::new(7);
        for state in State::ALL {
            assert_ne!(config.timeouts[state as usize], 0, "{state:?}");
        }
        assert_eq!(config.timeouts[0], 0);
        assert_eq!(config.netns_cookie, 7);
    }

    #[test]
    fn the_element_has_no_hidden_padding() {
        assert_eq!(size_of::<Config>(), 8 + 8 + 4 + 2 + 2 + 4 * STATES);
        assert_eq!(core::mem::offset_of!(Config, timeouts), 24);
    }
}
