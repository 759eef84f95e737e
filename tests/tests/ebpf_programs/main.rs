// SPDX-License-Identifier: GPL-2.0-or-later

//! The BPF programs in the kernel, run on single packets (BPF_PROG_TEST_RUN). The tests build the packets
//! byte by byte and verify the results with checksums that share no code with the programs.

mod bed;
mod cost;
mod direct;
mod errors;
mod fragments;
mod martians;
mod masquerade;
mod model;
mod published;
mod tcp;
mod udp;
mod wire;

/// Sets up a [`bed::Rig`]; skips the test if the binary was built without the BPF programs.
macro_rules! rig {
    () => {
        rig!($crate::bed::Sizes::default())
    };
    ($sizes:expr) => {
        match $crate::bed::Rig::new($sizes) {
            Some(rig) => rig,
            None => slipway_tests::skip!("the BPF programs, built by `cargo xtask ebpf`"),
        }
    };
}
use rig;
