// SPDX-License-Identifier: GPL-2.0-or-later

//! Numbers of `linux/netfilter/nf_tables.h` that encoding and decoding share: attributes (`enum
//! nft_*_attributes`) and flags.

pub(crate) const TABLE_NAME: u16 = 1;
pub(crate) const CHAIN_TABLE: u16 = 1;
pub(crate) const CHAIN_NAME: u16 = 3;
pub(crate) const RULE_TABLE: u16 = 1;
pub(crate) const RULE_CHAIN: u16 = 2;
pub(crate) const RULE_EXPRESSIONS: u16 = 4;
pub(crate) const FLOWTABLE_TABLE: u16 = 1;
pub(crate) const FLOWTABLE_NAME: u16 = 2;
pub(crate) const FLOWTABLE_HOOK: u16 = 3;
/// `NFTA_FLOWTABLE_FLAGS`.
pub(crate) const FLOWTABLE_FLAGS: u16 = 7;
/// `NFT_FLOWTABLE_COUNTER`.
pub(crate) const FLOWTABLE_COUNTER: u32 = 2;
/// `NFTA_FLOWTABLE_HOOK_NUM`.
pub(crate) const HOOK_NUMBER: u16 = 1;
/// `NFTA_FLOWTABLE_HOOK_PRIORITY`.
pub(crate) const HOOK_PRIORITY: u16 = 2;
/// `NFTA_FLOWTABLE_HOOK_DEVS`.
pub(crate) const HOOK_DEVICES: u16 = 3;
pub(crate) const DEVICE_NAME: u16 = 1;
/// `NFTA_DEVICE_PREFIX`.
pub(crate) const DEVICE_PREFIX: u16 = 2;
pub(crate) const SET_TABLE: u16 = 1;
pub(crate) const SET_NAME: u16 = 2;
pub(crate) const LIST_TABLE: u16 = 1;
pub(crate) const LIST_SET: u16 = 2;
pub(crate) const LIST_ELEMENTS: u16 = 3;
/// `NFTA_LIST_ELEM`.
pub(crate) const LIST_ITEM: u16 = 1;
pub(crate) const ELEMENT_KEY: u16 = 1;
pub(crate) const ELEMENT_KEY_END: u16 = 10;
/// `NFTA_DATA_VALUE`.
pub(crate) const DATA_VALUE: u16 = 1;
/// `NFTA_DATA_VERDICT`.
pub(crate) const DATA_VERDICT: u16 = 2;

/// `NFT_SET_ANONYMOUS`.
pub(crate) const SET_ANONYMOUS: u32 = 0x1;
/// `NFT_SET_INTERVAL`.
pub(crate) const SET_INTERVAL: u32 = 0x4;
/// `NFT_SET_MAP`.
pub(crate) const SET_MAP: u32 = 0x8;
/// `NFT_DATA_VERDICT`: the data type of verdict maps.
pub(crate) const TYPE_VERDICT: u32 = 0xffff_ff00;
/// `NFT_SET_ELEM_INTERVAL_END`.
pub(crate) const INTERVAL_END: u32 = 1;
