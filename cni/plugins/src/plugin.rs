// SPDX-License-Identifier: GPL-2.0-or-later

//! The trait that each plugin implements, and the requests that it answers.

use std::path::PathBuf;

use cni_spec::{AddResult, Attachment, CniError, NetConf, Version};

use crate::expected::Expected;

/// A CNI plugin. Implementations hold no state: everything comes with the request, and what must
/// last is in the kernel or on disk.
pub trait Plugin: Sync {
    /// The plugin's `type` and the name of its link in the plugin directory.
    fn name(&self) -> &'static str;

    /// A summary in a single line, for help texts.
    fn summary(&self) -> &'static str;

    /// True if the key `ipam.type` may name the plugin.
    fn is_ipam(&self) -> bool {
        false
    }

    /// The plugin's place in a network's list, which decides whether other plugins' DELs follow its own.
    fn place(&self) -> Place {
        Place::Apart
    }

    /// The supported versions of the specification, oldest first.
    fn versions(&self) -> &'static [Version] {
        Version::ALL
    }

    /// Attaches the container: completely, or not at all.
    ///
    /// # Errors
    /// A configuration that cannot be used, a missing object, or the kernel's refusal. By then, everything that the ADD
    /// had made is removed again.
    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError>;

    /// Detaches the container. Needs only the attachment and the configuration; the namespace may
    /// be gone, and the call may come any number of times.
    ///
    /// # Errors
    /// The first object that could not be removed; all others were.
    fn del(&self, request: &Request<'_>) -> Result<(), CniError>;

    /// Compares what `add` made with the present state, inside the container and for the objects of
    /// [`Plugin::expected`].
    ///
    /// # Errors
    /// The first difference.
    fn check(&self, request: &Request<'_>) -> Result<(), CniError>;

    /// Removes what belongs to attachments of this network that are not in
    /// [`NetConf::valid_attachments`]. The caller has checked that this list is present.
    ///
    /// # Errors
    /// The first object that could not be removed; all others were.
    fn gc(&self, _request: &NodeRequest<'_>) -> Result<(), CniError> {
        Ok(())
    }

    /// The objects on the node that the attachment needs and that another program may change while the container is
    /// running, in the order in which the ADD makes them. The request is that of a CHECK.
    ///
    /// # Errors
    /// A configuration or a result that names no object, or a container that cannot be found.
    fn expected(&self, _request: &Request<'_>) -> Result<Vec<Box<dyn Expected>>, CniError> {
        Ok(Vec::new())
    }

    /// Checks that the next `add` can succeed.
    ///
    /// # Errors
    /// Code 50 with the reason if the next `add` would fail.
    fn status(&self, _request: &NodeRequest<'_>) -> Result<(), CniError> {
        Ok(())
    }

    /// Reads the configuration as `add` does, up to the first system call, for fuzzing.
    ///
    /// # Errors
    /// A configuration that cannot be used.
    #[cfg(feature = "fuzzing")]
    fn read(&self, _request: &Request<'_>) -> Result<(), CniError> {
        Ok(())
    }

    /// The keys that the plugin decodes, which a test compares with the table of known keys.
    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        crate::keys::probe::Fields::new()
    }
}

impl std::fmt::Debug for dyn Plugin + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The place of a plugin in a network's list. A DEL calls the plugins in reverse order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The plugin makes the container's link. Its DEL is the last one.
    Link,
    /// The plugin adds something to the link of an earlier plugin, so the link still exists after its DEL.
    Chained,
    /// The plugin has no objects on the node: another plugin calls it (IPAM), or it only calls another one (flannel).
    Apart,
}

/// Plugins of this binary.
pub type Plugins = &'static [&'static dyn Plugin];

/// The place where a delegation finds its plugin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Delegates {
    /// A file in `CNI_PATH`, as the specification demands. If it is this binary, the plugin is called in process.
    #[default]
    Files,
    /// The plugins of this binary: the caller is not a CNI runtime and has no plugin directory.
    InProcess,
}

/// An ADD, DEL or CHECK.
#[derive(Debug)]
pub struct Request<'a> {
    /// The network, the container and the interface.
    pub attachment: Attachment,
    /// `CNI_NETNS`; none if a DEL has none.
    pub netns: Option<PathBuf>,
    /// `CNI_ARGS` as it came.
    pub args: &'a str,
    /// Configuration from standard input.
    pub config: &'a NetConf,
    /// The environment of the call, which a delegate gets too.
    pub env: &'a Env,
}

/// A GC or STATUS: about the network, not about one attachment.
#[derive(Debug)]
pub struct NodeRequest<'a> {
    /// Configuration from standard input.
    pub config: &'a NetConf,
    /// The environment of the call, which a delegate gets too.
    pub env: &'a Env,
}

/// The environment of a call: the runtime's variables, and the plugins that can be called in process.
#[derive(Debug, Clone, Default)]
pub struct Env {
    /// `CNI_COMMAND`.
    pub command: String,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// `CNI_PATH`, split at the colons; empty parts are left out.
    pub path: Vec<PathBuf>,
    /// `CNI_NETNS_OVERRIDE`: the runtime means the plugin's own namespace.
    pub netns_override: String,
    /// The number of delegations above this call.
    pub depth: u32,
    /// The plugins of this binary that a delegation may call in process.
    pub plugins: Plugins,
    /// The place where a delegation finds its plugin.
    pub delegates: Delegates,
}
