// SPDX-License-Identifier: GPL-2.0-or-later

//! Errors of the keys `conditionsV4` and `conditionsV6`, in a file of their own because `docs/errors.md` lists the
//! messages of a file in one section, with one code.

use cni_spec::AttachmentError;

/// A text that is not a condition.
#[derive(Debug, thiserror::Error)]
pub enum ConditionError {
    #[error("ends where {0} should follow")]
    End(&'static str),
    #[error("a mask is followed by == or !=")]
    Mask,
    #[error("unknown field \"{0}\"")]
    UnknownField(String),
    #[error("field \"{0}\" is of the other family")]
    FieldOfOtherFamily(String),
    #[error("unknown state \"{0}\"")]
    UnknownState(String),
    #[error("a set of states that does not end in }}")]
    OpenStates,
    /// A set that contains an interface prefix, which the kernel cannot look up.
    #[error("\"{0}\": a prefix of a name cannot be in a set")]
    PrefixInSet(String),
    #[error("a set's elements are separated by commas, its end is }}")]
    OpenSet,
    #[error("\"{0}\" is not a network")]
    Network(String),
    #[error("\"{0}\" is not an address")]
    Address(String),
    #[error("\"{0}\" is of the other family")]
    OtherFamily(String),
    #[error("range \"{0}\" is backwards")]
    Backwards(String),
    #[error("\"{0}\" cannot be a value of this field")]
    Value(String),
    #[error("\"{0}\" is not a number that fits here")]
    Number(String),
    #[error(transparent)]
    Ifname(#[from] AttachmentError),
    /// A name that nft could not read back.
    #[error("\"{0}\" is not the name of an interface")]
    Quotes(String),
    #[error("{0:?} cannot be a word of a rule")]
    Word(String),
    #[error("{0:?} is not a condition")]
    Option(String),
}
