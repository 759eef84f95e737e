// SPDX-License-Identifier: GPL-2.0-or-later

//! The header at the beginning of all messages of netfilter: `struct nfgenmsg` (`linux/netfilter/nfnetlink.h`).

use cni_netlink::Message;
use cni_netlink::message::HEADER_LEN;

/// Length of `struct nfgenmsg`.
const NFGENMSG: usize = 4;
/// The length of the netlink header and `struct nfgenmsg`.
pub(crate) const BODY: usize = HEADER_LEN + NFGENMSG;

/// Begins a request. The upper byte of `kind` is the subsystem. `family` is `nfgen_family`, and `resource` is
/// `res_id`.
pub(crate) fn request(kind: u16, flags: u16, family: u8, resource: u16) -> Message {
    let mut message = Message::new(kind, flags);
    message.raw(&[family, 0]).raw(&resource.to_be_bytes());
    message
}

/// The family and the attributes of a message.
pub(crate) fn split(payload: &[u8]) -> (u8, &[u8]) {
    (payload.first().copied().unwrap_or_default(), payload.get(NFGENMSG..).unwrap_or_default())
}
