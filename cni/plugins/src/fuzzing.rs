// SPDX-License-Identifier: GPL-2.0-or-later

//! The parsers that are not public, for fuzzing. Each takes any bytes and returns what it has read.

use std::ffi::OsString;
use std::fmt::Debug;

use cni_spec::{Attachment, CniError, NetConf};

pub use crate::ipam::dhcp::fuzzing::{call as dhcp_call, lease as dhcp_lease, packet as dhcp_packet};
pub use crate::ipam::host_local::fuzzing::{index as reservation_index, reservation, resolv_conf};
use crate::meta::flannel::saved;
pub use crate::meta::tuning::fuzzing::allowed_sysctls;
use crate::node_defaults::NodeDefaults;
use crate::plugin::{Delegates, Env, Plugin, Request};
use crate::registry;
use crate::skel::{self, Callee, Io, Output, Script};

/// `slipway.json`.
pub fn node_settings(bytes: &[u8]) -> impl Debug {
    let read = NodeDefaults::parse(bytes);
    read.map(|settings| settings.unknown_keys_text()).map_err(|error| error.to_string())
}

/// The delegate's configuration that flannel has saved.
pub fn saved_delegate(bytes: &[u8]) -> impl Debug {
    saved::whole(bytes)
}

/// Replaces a plugin's verbs by reading the configuration only.
#[derive(Debug)]
struct UpToTheKernel(&'static dyn Plugin);

impl Script for UpToTheKernel {
    fn versions(&self, _env: &Env) -> Option<Vec<String>> {
        None
    }

    fn output(&self, env: &Env, config: &NetConf) -> Result<Option<Output>, CniError> {
        // GC and STATUS do not concern an attachment, so the environment may have no container ID.
        let id: &str = if env.container_id.is_empty() { "c1" } else { &env.container_id };
        let ifname: &str = if env.ifname.is_empty() { "eth0" } else { &env.ifname };
        let attachment = Attachment::new(&config.name, id, ifname).map_err(CniError::from)?;
        let netns = Some(env.netns.clone().into());
        self.0.read(&Request { attachment, netns, args: &env.args, config, env })?;
        Ok(Some(Output::default()))
    }
}

/// Answers a call of a plugin as the plugin's process would, but only up to the first system call of the verb. Returns
/// the exit code and the output. None for an unknown plugin.
#[must_use]
pub fn call(
    name: &str,
    variables: &dyn Fn(&str) -> Option<OsString>,
    mut stdin: &[u8],
) -> Option<(u8, Vec<u8>)> {
    let plugin = registry::find(name)?;
    let script = UpToTheKernel(plugin);
    let callee =
        Callee { plugin, script: Some(&script), plugins: registry::PLUGINS, delegates: Delegates::Files };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let io = Io { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
    let code = skel::run(&callee, variables, &|_| false, io);
    Some((code, stdout))
}
