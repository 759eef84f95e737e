//! The BPF programs, packet by packet: built byte by byte, put through a program in the kernel
//! (BPF_PROG_TEST_RUN), and looked at with checksums that share no code with the programs.

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

/// The rig, or the end of the test where the binary has no programs.
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
