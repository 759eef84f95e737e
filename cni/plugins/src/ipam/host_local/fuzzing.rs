// SPDX-License-Identifier: GPL-2.0-or-later

//! The files that host-local reads, for fuzzing.

use std::fmt::Debug;

use cni_spec::{AddResult, Version};

use super::index::{decode_block, decode_crowded, decode_owner, encode_block, encode_owner};
use super::owner::{Content, OwnerKey, address, names};
use super::resolv;

/// Parses resolv.conf(5). The settings that were read must survive printing as a result.
pub fn resolv_conf(text: &[u8]) -> impl Debug {
    let dns = resolv::parse(&String::from_utf8_lossy(text));
    let result = AddResult { dns: dns.clone(), ..AddResult::default() };
    for version in Version::ALL.iter().filter(|version| **version >= Version::V1_0_0) {
        let printed = result.print(*version).unwrap_or_default();
        let again = AddResult::from_output(*version, printed.as_bytes());
        assert_eq!(again.ok().map(|again| again.dns), Some(dns.clone()));
    }
    dns
}

/// A reservation: its name and its content.
pub fn reservation(bytes: &[u8]) -> impl Debug {
    let text = String::from_utf8_lossy(bytes);
    let (id, ifname) = names(&text);
    let content = Content::of(bytes);
    if let Content::Owned(owner) = &content {
        assert_eq!(OwnerKey::of(owner), OwnerKey::of(bytes), "white space at the ends changes the owner");
    }
    (address(&text), id.to_owned(), ifname.map(str::to_owned), content)
}

/// Slots of the index. A slot that can be read can still be read after it was written again.
pub fn index(slot: &[u8]) -> impl Debug {
    let owner = decode_owner(slot);
    if let Some((owner, address)) = owner {
        assert_eq!(decode_owner(&encode_owner(owner, address)), Some((owner, address)));
    }
    let block = decode_block(slot).map(|(block, bits)| decode_block(&encode_block(block, &bits)).is_some());
    assert_ne!(block, Some(false));
    (owner.is_some(), decode_crowded(slot).is_some(), block)
}
