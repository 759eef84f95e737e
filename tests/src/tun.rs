// SPDX-License-Identifier: GPL-2.0-or-later

//! Links without Ethernet headers, as tunnels have.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use cni_kernel::tap;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::Space;

/// Two tun devices with a wire between them. Dropping the wire removes them.
#[derive(Debug)]
pub struct TunWire {
    cut: Arc<AtomicBool>,
    ends: Vec<JoinHandle<()>>,
}

impl TunWire {
    /// Makes a tun device of this name in each of two spaces.
    pub fn new(one: &Space, other: &Space, name: &str) -> Self {
        let make = || tap::tun(name).unwrap_or_else(|e| panic!("make a tun: {e}"));
        let (one, other) = (one.run(make), other.run(make));
        let cut = Arc::new(AtomicBool::new(false));
        let twin = |file: &File| file.try_clone().expect("duplicate a file");
        let ends =
            vec![carry(twin(&one), twin(&other), Arc::clone(&cut)), carry(other, one, Arc::clone(&cut))];
        Self { cut, ends }
    }
}

impl Drop for TunWire {
    fn drop(&mut self) {
        self.cut.store(true, Ordering::Relaxed);
        for end in self.ends.drain(..) {
            let _ = end.join();
        }
    }
}

fn carry(mut from: File, mut to: File, cut: Arc<AtomicBool>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut packet = vec![0; 65_536];
        while !cut.load(Ordering::Relaxed) {
            let mut waiting = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
            if poll(&mut waiting, PollTimeout::from(50_u8)).unwrap_or(0) == 0 {
                continue;
            }
            // A link that is down neither delivers nor accepts packets.
            if let Ok(length) = from.read(&mut packet) {
                let _ = to.write(&packet[..length]);
            }
        }
    })
}
