//! What a move from another backend to the chains needs: making and taking back, with nothing recorded and no
//! conversation cut. The owner's entry is the mover's.

use cni_spec::Attachment;

use super::apply::{self, Others};
use super::tools::Tools;
use super::{Iptables, Recorder, chosen_variant, conditions, kinds_of, plan, presence, withdraw};
use crate::nftables::session::Session;
use crate::{Error, MasqueradeRequest, PortRequest};

impl Iptables {
    /// Whether another living interface of the container has things of that kind in the same chains.
    pub(crate) fn shares_its_chains(
        session: &Session,
        attachment: &Attachment,
        kind: u32,
    ) -> Result<bool, Error> {
        Recorder::others_in(session, kind, attachment).map(|others| others == Others::Living)
    }

    /// Publishes ports.
    pub(crate) fn make_ports(request: &PortRequest) -> Result<(), Error> {
        conditions::check_request(request)?;
        plan::refuse_contradictions(request)?;
        Self::publish_all(&Tools::new(chosen_variant()?), request, &Recorder::open()?)
    }

    /// Masquerades addresses.
    pub(crate) fn make_masquerade(request: &MasqueradeRequest) -> Result<(), Error> {
        let tools = Tools::new(chosen_variant()?);
        let mut plans = plan::masquerade(request).into_iter();
        plans.try_for_each(|plan| apply::masquerade(&tools, &plan, (&request.attachment, Others::None)))
    }

    /// Removes an attachment's chains of the kind of that entry.
    pub(crate) fn unmake(attachment: &Attachment, kind: u32) -> Result<(), Error> {
        let kinds = kinds_of(&[kind]);
        let chains = withdraw::own_chains(attachment, kinds);
        for (variant, family) in presence::of(attachment, kinds)?.places() {
            withdraw::remove_chains(&Tools::new(variant), family, &chains)?;
        }
        Ok(())
    }
}
