//! What a plugin is: the trait that the registry holds and the protocol code drives.

use std::path::PathBuf;

use cni_spec::{AddResult, Attachment, CniError, NetConf, Version};

/// One CNI plugin. Implementations hold no state: everything comes with the request, and what must
/// last is in the kernel or on disk.
pub trait Plugin: Sync {
    /// The plugin's `type` and the name of its link in the plugin directory.
    fn name(&self) -> &'static str;

    /// One line for help texts.
    fn summary(&self) -> &'static str;

    /// True if the key `ipam.type` may name it.
    fn is_ipam(&self) -> bool {
        false
    }

    /// The versions of the specification it speaks, oldest first.
    fn versions(&self) -> &'static [Version] {
        Version::ALL
    }

    /// Attaches the container. Leaves everything or nothing.
    ///
    /// # Errors
    /// What failed, and on which object.
    fn add(&self, request: &Request<'_>) -> Result<AddResult, CniError>;

    /// Detaches the container. Needs only the attachment and the configuration; the namespace may
    /// be gone, and the call may come any number of times.
    ///
    /// # Errors
    /// What failed; everything else was removed all the same.
    fn del(&self, request: &Request<'_>) -> Result<(), CniError>;

    /// Tells whether what `add` made is still there.
    ///
    /// # Errors
    /// The first difference found.
    fn check(&self, request: &Request<'_>) -> Result<(), CniError>;

    /// Removes what belongs to attachments of this network that are not in
    /// [`NetConf::valid_attachments`] (which the caller has checked to be there).
    ///
    /// # Errors
    /// What failed; everything else was removed all the same.
    fn gc(&self, _request: &NodeRequest<'_>) -> Result<(), CniError> {
        Ok(())
    }

    /// What the attachment has on the node that others may take away while the container lives, and
    /// that can be put back without disturbing it. The request is that of a CHECK.
    ///
    /// # Errors
    /// What is wrong with the configuration, or cannot be read.
    fn belongings(&self, _request: &Request<'_>) -> Result<Vec<Box<dyn Belonging>>, CniError> {
        Ok(Vec::new())
    }

    /// Tells whether the next `add` can succeed.
    ///
    /// # Errors
    /// Code 50 or 51 with the reason.
    fn status(&self, _request: &NodeRequest<'_>) -> Result<(), CniError> {
        Ok(())
    }

    /// The keys that it decodes, which the table of known keys is compared with.
    #[cfg(test)]
    fn decodes(&self) -> crate::keys::probe::Fields {
        crate::keys::probe::Fields::new()
    }

    /// Answers a call down to the bytes, for a plugin that plays another one in tests. Nothing: the
    /// method of the verb is called.
    ///
    /// # Errors
    /// What is printed as the plugin's error.
    fn verbatim(&self, _env: &Env, _config: &NetConf) -> Result<Option<Verbatim>, CniError> {
        Ok(None)
    }

    /// What such a plugin says to VERSION. Nothing: [`Plugin::versions`].
    fn told_versions(&self, _env: &Env) -> Option<Vec<String>> {
        None
    }
}

/// An answer down to the bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verbatim {
    /// What goes to standard output.
    pub stdout: String,
    /// What goes to standard error.
    pub stderr: String,
    /// The exit code.
    pub code: u8,
}

/// Something of an attachment in the node's ruleset.
pub trait Belonging {
    /// What people call it.
    fn name(&self) -> String;

    /// Tells whether it is there.
    ///
    /// # Errors
    /// The first difference.
    fn check(&self) -> Result<(), CniError>;

    /// Makes it as the ADD did. Nothing of another living attachment is taken.
    ///
    /// # Errors
    /// What failed; the call can be repeated.
    fn put_back(&self) -> Result<(), CniError>;

    /// Takes it away again, for a container that left while it was put back. What a later ADD has made
    /// is left alone.
    ///
    /// # Errors
    /// What failed; the call can be repeated.
    fn take_away(&self) -> Result<(), CniError>;
}

/// An ADD, DEL or CHECK.
#[derive(Debug)]
pub struct Request<'a> {
    /// Who it is about.
    pub attachment: Attachment,
    /// `CNI_NETNS`; none when a DEL came without.
    pub netns: Option<PathBuf>,
    /// `CNI_ARGS` as it came.
    pub args: &'a str,
    /// Configuration from standard input.
    pub config: &'a NetConf,
    /// What a delegate needs to be called with the same environment.
    pub env: &'a Env,
}

/// A GC or STATUS: about the network, not about one attachment.
#[derive(Debug)]
pub struct NodeRequest<'a> {
    /// Configuration from standard input.
    pub config: &'a NetConf,
    /// What a delegate needs to be called with the same environment.
    pub env: &'a Env,
}

/// The environment that the runtime called the plugin with.
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
    /// `CNI_NETNS_OVERRIDE`, with which a runtime says that it means its own namespace.
    pub netns_override: String,
    /// The number of delegations above this call.
    pub depth: u32,
}
