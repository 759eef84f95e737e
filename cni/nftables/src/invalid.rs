// SPDX-License-Identifier: GPL-2.0-or-later

//! Reasons why a change cannot be encoded.

/// The reason why a change cannot be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A name is empty.
    #[error("a name is empty")]
    NameEmpty,
    /// A name has more than 255 bytes.
    #[error("a name may have at most 255 bytes")]
    NameTooLong,
    /// A name contains a NUL.
    #[error("a name must not contain a NUL")]
    NameHasNul,
    /// A link's name has more than 15 bytes.
    #[error("a link's name has at most 15 bytes")]
    LinkNameTooLong,
    /// A flowtable has more than 255 links.
    #[error("a flowtable may have at most 255 links")]
    TooManyLinks,
    /// A key or data has no type.
    #[error("a key or data needs a type")]
    NoType,
    /// A key or data has more than 64 bytes.
    #[error("a key or data may have at most 64 bytes")]
    ValueTooLong,
    /// A value does not have the type of its field.
    #[error("a value is of another type than its field")]
    WrongType,
    /// A range consists of values in host byte order, which have no order for the kernel.
    #[error("values of this type have no order")]
    NotOrdered,
    /// A range ends before it begins.
    #[error("the range ends before it begins")]
    RangeBackwards,
    /// A range of ports ends before it begins.
    #[error("the range of ports ends before it begins")]
    PortsBackwards,
    /// A prefix is longer than its address.
    #[error("the prefix is longer than the address")]
    PrefixTooLong,
    /// An address has bits beyond its prefix.
    #[error("the address has bits beyond its prefix")]
    BitsBeyondPrefix,
    /// An address is of the other family.
    #[error("the address is of the other family")]
    OtherFamily,
    /// A set contains a pattern of interface names.
    #[error("a set cannot contain a pattern")]
    PatternInSet,
    #[error("a set cannot contain a set")]
    SetInSet,
    /// An anonymous set is empty.
    #[error("an anonymous set is empty")]
    EmptySet,
    /// A concatenation is compared with something other than a named set.
    #[error("a concatenation can only be looked up in a named set")]
    UnnamedConcatenation,
    /// A lookup has no field.
    #[error("a lookup needs a field")]
    NoField,
    /// A mask is compared as a whole.
    #[error("a mask is not compared as a whole: test its bits")]
    MaskCompared,
    /// A key does not fit into the registers.
    #[error("the key is too long")]
    KeyTooLong,
    /// A rule has more than 128 expressions.
    #[error("a rule may have at most 128 expressions")]
    RuleTooLong,
    /// A rule mixes IPv4 and IPv6.
    #[error("the rule mixes IPv4 and IPv6")]
    MixedNetworks,
    /// A rule mixes transport protocols.
    #[error("the rule mixes transport protocols")]
    MixedTransports,
    /// A comment has more than 128 bytes.
    #[error("a comment may have at most 128 bytes")]
    CommentTooLong,
    /// A comment contains a NUL.
    #[error("a comment must not contain a NUL")]
    CommentHasNul,
    /// Comment and userdata exceed 256 bytes.
    #[error("comment and userdata may have at most 256 bytes together")]
    UserdataTooLong,
}
