//! The default backend: one table `inet slipway` whose maps hold everything, so that publishing
//! and withdrawing touch elements alone.

use cni_spec::Attachment;

use crate::{Backend, Error, Kinds, Listed, MasqueradeRequest, PortRequest, Withdrawal};

/// The nftables backend on the network namespace of the calling thread.
#[derive(Debug, Default)]
pub struct Nftables {}

impl Nftables {
    /// The backend. Opens nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {}
    }
}

impl Backend for Nftables {
    fn publish(&self, request: &PortRequest) -> Result<(), Error> {
        Err(Error::kernel(format!("publish the ports of {}", request.attachment), "not built yet"))
    }

    fn masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        Err(Error::kernel(format!("masquerade {}", request.attachment), "not built yet"))
    }

    fn withdraw(&self, withdrawal: &Withdrawal<'_>) -> Result<(), Error> {
        Err(Error::kernel(format!("withdraw {}", withdrawal.attachment), "not built yet"))
    }

    fn check_ports(&self, request: &PortRequest) -> Result<(), Error> {
        Err(Error::kernel(format!("check the ports of {}", request.attachment), "not built yet"))
    }

    fn check_masquerade(&self, request: &MasqueradeRequest) -> Result<(), Error> {
        Err(Error::kernel(format!("check the masquerade of {}", request.attachment), "not built yet"))
    }

    fn retain(&self, network: &str, _valid: &[Attachment], _kinds: Kinds) -> Result<(), Error> {
        Err(Error::kernel(format!("collect garbage of network {network}"), "not built yet"))
    }

    fn list(&self) -> Result<Vec<Listed>, Error> {
        Err(Error::kernel("list published ports", "not built yet"))
    }

    fn status(&self) -> Result<(), Error> {
        Err(Error::kernel("open nf_tables", "not built yet"))
    }
}
