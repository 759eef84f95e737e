// SPDX-License-Identifier: GPL-2.0-or-later

//! Builds libnftnl's expression objects from [`Expr`].

use std::ffi::CString;
use std::ptr::NonNull;

use nftnl::nftnl_sys as sys;

use crate::lower::{Expr, VERDICT_REGISTER};
use crate::raw::Expression;
use crate::stmt::Verdict;

/// `NFT_LOOKUP_F_INV` in `linux/netfilter/nf_tables.h`.
const LOOKUP_INVERT: u32 = 1;
/// `NFT_RANGE_NEQ`.
const RANGE_NE: u32 = 1;
/// `NFT_DYNSET_OP_UPDATE`.
const DYNSET_UPDATE: u32 = 1;
/// `NFT_NAT_DNAT`.
const NAT_DNAT: u32 = 1;

/// A name as a C string. Names that contain a NUL were refused earlier.
fn c(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

fn sized(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// The kernel's code of a verdict (`NF_*` in `linux/netfilter.h`, `NFT_*` in `linux/netfilter/nf_tables.h`),
/// and its chain.
pub(crate) fn verdict_code(verdict: &Verdict) -> (i32, Option<&str>) {
    match verdict {
        Verdict::Drop => (0, None),
        Verdict::Accept => (1, None),
        Verdict::Continue => (-1, None),
        Verdict::Jump(chain) => (-3, Some(chain)),
        Verdict::Goto(chain) => (-4, Some(chain)),
        Verdict::Return => (-5, None),
    }
}

impl Expr {
    /// Builds libnftnl's object for the expression, following the conventions of `nft`.
    pub(crate) fn build(&self) -> Expression {
        let mut e = Expression::new(&c(self.name()));
        match self {
            Self::MetaLoad { key, register } => {
                e.u32(sys::NFTNL_EXPR_META_KEY, *key).u32(sys::NFTNL_EXPR_META_DREG, *register);
            }
            Self::MetaSet { key, register } => {
                e.u32(sys::NFTNL_EXPR_META_KEY, *key).u32(sys::NFTNL_EXPR_META_SREG, *register);
            }
            Self::CtLoad { key, register } => {
                e.u32(sys::NFTNL_EXPR_CT_KEY, *key).u32(sys::NFTNL_EXPR_CT_DREG, *register);
            }
            Self::CtSet { key, register } => {
                e.u32(sys::NFTNL_EXPR_CT_KEY, *key).u32(sys::NFTNL_EXPR_CT_SREG, *register);
            }
            Self::Payload { base, offset, len, register } => {
                e.u32(sys::NFTNL_EXPR_PAYLOAD_BASE, *base)
                    .u32(sys::NFTNL_EXPR_PAYLOAD_OFFSET, *offset)
                    .u32(sys::NFTNL_EXPR_PAYLOAD_LEN, *len)
                    .u32(sys::NFTNL_EXPR_PAYLOAD_DREG, *register);
            }
            Self::Fib { flags, result, register } => {
                e.u32(sys::NFTNL_EXPR_FIB_FLAGS, *flags)
                    .u32(sys::NFTNL_EXPR_FIB_RESULT, *result)
                    .u32(sys::NFTNL_EXPR_FIB_DREG, *register);
            }
            Self::Cmp { op, register, data } => {
                e.u32(sys::NFTNL_EXPR_CMP_SREG, *register)
                    .u32(sys::NFTNL_EXPR_CMP_OP, *op)
                    .data(sys::NFTNL_EXPR_CMP_DATA, data);
            }
            Self::RangeNotIn { register, from, to } => {
                e.u32(sys::NFTNL_EXPR_RANGE_SREG, *register)
                    .u32(sys::NFTNL_EXPR_RANGE_OP, RANGE_NE)
                    .data(sys::NFTNL_EXPR_RANGE_FROM_DATA, from)
                    .data(sys::NFTNL_EXPR_RANGE_TO_DATA, to);
            }
            Self::Bitwise { register, mask, xor } => {
                e.u32(sys::NFTNL_EXPR_BITWISE_SREG, *register)
                    .u32(sys::NFTNL_EXPR_BITWISE_DREG, *register)
                    .u32(sys::NFTNL_EXPR_BITWISE_LEN, sized(mask))
                    .data(sys::NFTNL_EXPR_BITWISE_MASK, mask)
                    .data(sys::NFTNL_EXPR_BITWISE_XOR, xor);
            }
            Self::Load { register, data } => {
                e.u32(sys::NFTNL_EXPR_IMM_DREG, *register).data(sys::NFTNL_EXPR_IMM_DATA, data);
            }
            Self::Counter => {}
            Self::Update { set, source } => {
                e.u32(sys::NFTNL_EXPR_DYNSET_SREG_KEY, *source)
                    .u32(sys::NFTNL_EXPR_DYNSET_OP, DYNSET_UPDATE)
                    .text(sys::NFTNL_EXPR_DYNSET_SET_NAME, &c(set));
            }
            Self::Limit { rate, burst } => {
                // The unit is a second.
                e.u64(sys::NFTNL_EXPR_LIMIT_RATE, u64::from(*rate))
                    .u64(sys::NFTNL_EXPR_LIMIT_UNIT, 1)
                    .u32(sys::NFTNL_EXPR_LIMIT_BURST, *burst);
            }
            Self::Offload { flowtable } => {
                e.text(sys::NFTNL_EXPR_FLOW_TABLE_NAME, &c(flowtable));
            }
            Self::Lookup { .. } | Self::Verdict(_) | Self::Dnat { .. } | Self::Masquerade { .. } => {
                self.build_rest(&mut e);
            }
        }
        e
    }

    /// Builds the expressions that have optional attributes.
    fn build_rest(&self, e: &mut Expression) {
        match self {
            Self::Lookup { set, id, source, target, invert } => {
                e.u32(sys::NFTNL_EXPR_LOOKUP_SREG, *source).text(sys::NFTNL_EXPR_LOOKUP_SET, &c(set));
                if let Some(id) = id {
                    e.u32(sys::NFTNL_EXPR_LOOKUP_SET_ID, *id);
                }
                if let Some(target) = target {
                    e.u32(sys::NFTNL_EXPR_LOOKUP_DREG, *target);
                }
                if *invert {
                    e.u32(sys::NFTNL_EXPR_LOOKUP_FLAGS, LOOKUP_INVERT);
                }
            }
            Self::Verdict(verdict) => {
                let (code, chain) = verdict_code(verdict);
                e.u32(sys::NFTNL_EXPR_IMM_DREG, VERDICT_REGISTER)
                    .u32(sys::NFTNL_EXPR_IMM_VERDICT, code.cast_unsigned());
                if let Some(chain) = chain {
                    e.text(sys::NFTNL_EXPR_IMM_CHAIN, &c(chain));
                }
            }
            Self::Dnat { family, address, port } => {
                e.u32(sys::NFTNL_EXPR_NAT_TYPE, NAT_DNAT)
                    .u32(sys::NFTNL_EXPR_NAT_FAMILY, u32::from(*family))
                    .u32(sys::NFTNL_EXPR_NAT_REG_ADDR_MIN, *address);
                if let Some(port) = port {
                    e.u32(sys::NFTNL_EXPR_NAT_REG_PROTO_MIN, *port);
                }
            }
            Self::Masquerade { flags, ports } if *flags != 0 => {
                e.u32(sys::NFTNL_EXPR_MASQ_FLAGS, *flags);
                if let Some([first, last]) = ports {
                    e.u32(sys::NFTNL_EXPR_MASQ_REG_PROTO_MIN, *first)
                        .u32(sys::NFTNL_EXPR_MASQ_REG_PROTO_MAX, *last);
                }
            }
            _ => {}
        }
    }
}

impl nftnl::expr::Expression for Expr {
    fn to_expr(&self, _rule: &nftnl::Rule<'_>) -> NonNull<sys::nftnl_expr> {
        self.build().into_raw()
    }
}
