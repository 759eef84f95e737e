// SPDX-License-Identifier: MIT OR Apache-2.0

//! Prints the networks of a configuration directory, again after each change, until its input ends:
//!
//! ```console
//! # cargo run -p cni-runtime --example watch -- /etc/cni/net.d
//! ```
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::Path;

use cni_runtime::config;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| config::DIRECTORY.to_owned());
    let changes = Inotify::init(InitFlags::IN_CLOEXEC)?;
    // A file that is written in place is complete when it is closed.
    let events = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_DELETE;
    changes.add_watch(Path::new(&directory), events)?;
    let mut input = std::io::stdin();
    loop {
        print(Path::new(&directory))?;
        let mut fds =
            [PollFd::new(changes.as_fd(), PollFlags::POLLIN), PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::NONE)?;
        let [changed, typed] = fds.map(|fd| fd.any().unwrap_or(false));
        if typed && input.read(&mut [0; 64])? == 0 {
            return Ok(());
        }
        if changed {
            drop(changes.read_events()?);
        }
    }
}

/// Prints one line for each file, because an invalid file does not hide the others.
fn print(directory: &Path) -> Result<(), config::LoadError> {
    for file in config::load_all(directory)? {
        match file.network {
            Ok(network) => println!(
                "{}: network {}, version {}, {} plugins",
                file.path.display(),
                network.name(),
                network.version().as_str(),
                network.list().plugins.len()
            ),
            Err(error) => println!("unusable: {error}"),
        }
    }
    println!();
    Ok(())
}
