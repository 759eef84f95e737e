// SPDX-License-Identifier: MIT OR Apache-2.0

//! A failed ADD without plugins, as in a unit test: `cargo run -p cni-runtime --example fake`.
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::sync::Arc;

use cni_runtime::exec::{Expected, Fake};
use cni_runtime::verbs::Command;
use cni_runtime::{CallError, Container, Network, Runtime};
use cni_spec::CniError;
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let network = Network::builder("pods")
        .plugin(json!({"type": "bridge"}))
        .plugin(json!({"type": "portmap"}))
        .build()?;
    let taken = CallError::Failed(CniError::internal("port 8080 is taken"));
    let fake = Fake::new([
        Expected::call("bridge", Command::Add)
            .prints(json!({"ips": [{"address": "10.22.0.2/24"}]}).to_string()),
        Expected::call("portmap", Command::Add).fails(taken),
        // The undo, in reverse order.
        Expected::call("portmap", Command::Del),
        Expected::call("bridge", Command::Del),
    ]);
    let cache = tempfile::tempdir()?;
    let runtime =
        Runtime::builder().cache(cache.path()).undo_failed_add().exec(Arc::new(fake.clone())).build();
    let Err(error) = runtime.add(&network, &Container::new("c1", "eth0").netns("/run/netns/c1")) else {
        return Err("the ADD succeeded".into());
    };
    println!("{error}");
    for call in fake.calls() {
        println!("{} {} {}", call.plugin, call.command, String::from_utf8_lossy(&call.stdin));
    }
    Ok(())
}
