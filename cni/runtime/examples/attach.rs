// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attaches a network namespace to a network and detaches it again, as a runtime does:
//!
//! ```console
//! # ip netns add web
//! # cargo run -p cni-runtime --example attach -- /opt/cni/bin /etc/cni/net.d pods web /run/netns/web
//! ```
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use cni_runtime::{CallOptions, Container, Runtime, config};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [plugins, directory, network, id, netns] = args.as_slice() else {
        return Err("usage: attach PLUGIN_DIR CONFIG_DIR NETWORK CONTAINER_ID NETNS".into());
    };
    let network = config::load(Path::new(directory), network)?;
    let runtime = Runtime::builder()
        .plugin_dir(plugins)
        .options(CallOptions::new().limit(Duration::from_secs(30)))
        .undo_failed_add()
        .keep_deleting()
        .build();
    runtime.validate(&network)?;

    let container = Container::new(id, "eth0").netns(netns).arg("IgnoreUnknown", "1");
    let result = runtime.add(&network, &container)?;
    for ip in &result.ips {
        println!("{id} has {}", ip.address);
    }
    // A runtime that has lost its own state can find the attachment in the cache.
    for cached in runtime.attachments(id)? {
        runtime.del(&cached.network(), &cached.container())?;
        println!("{} is detached", cached.attachment);
    }
    Ok(())
}
