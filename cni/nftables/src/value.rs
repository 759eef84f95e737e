// SPDX-License-Identifier: GPL-2.0-or-later

//! Typed values, and their encoding in nf_tables' registers.
//!
//! For the kernel, a set's key, a map's data and the right-hand side of a comparison are only bytes. Only user space
//! knows their types: `nft` stores a type number with each set (see its `include/datatype.h`), and uses it to print
//! elements.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of an interface name in the kernel, including the NUL (`IFNAMSIZ` in `linux/if.h`).
pub const IFNAMSIZ: usize = 16;

/// The size of a 32-bit register, to which each part of a concatenation is aligned (`NFT_REG32_SIZE` in
/// `linux/netfilter/nf_tables.h`).
pub(crate) const REGISTER_SIZE: usize = 4;

/// The type of a value, named as in nft's `type …`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataType {
    /// `ipv4_addr`.
    Ipv4Addr,
    /// `ipv6_addr`; also usable for any 128-bit number.
    Ipv6Addr,
    /// `inet_proto`: an IP protocol number.
    InetProto,
    /// `inet_service`: a port, in network byte order.
    InetService,
    /// `mark`: 32 bits in host byte order; also usable for any 32-bit number.
    Mark,
    /// `ifname`.
    Ifname,
    /// `ether_addr`.
    EtherAddr,
    /// `nf_proto`: the address family of a packet (`NFPROTO_*`).
    NfProto,
    /// `fib_addrtype`: the kind of an address according to the routing tables (`RTN_*`).
    FibAddrType,
    /// `ct_state`: a bit mask.
    CtState,
    /// `ct_status`: a bit mask (`IPS_*`).
    CtStatus,
    /// `icmp_type`.
    IcmpType,
    /// `icmpv6_type`.
    Icmpv6Type,
    /// `tcp_flag`: a bit mask of eight bits.
    TcpFlag,
    /// A number of one byte, for instance a TTL. No named set can have this type.
    Integer8,
    /// A number of two bytes in network byte order, for instance a length. No named set can have this type.
    Integer16,
}

impl DataType {
    /// The type's number in `nft` (`enum datatypes` in nftables' `datatype.h`).
    #[must_use]
    pub const fn id(self) -> u32 {
        match self {
            Self::NfProto => 2,
            Self::Integer8 | Self::Integer16 => 4,
            Self::Ipv4Addr => 7,
            Self::Ipv6Addr => 8,
            Self::EtherAddr => 9,
            Self::InetProto => 12,
            Self::InetService => 13,
            Self::IcmpType => 14,
            Self::TcpFlag => 15,
            Self::Mark => 19,
            Self::CtState => 26,
            Self::CtStatus => 28,
            Self::Icmpv6Type => 29,
            Self::FibAddrType => 38,
            Self::Ifname => 41,
        }
    }

    /// Length of a value in bytes, without padding.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::InetProto | Self::NfProto | Self::IcmpType | Self::Icmpv6Type => 1,
            Self::TcpFlag | Self::Integer8 => 1,
            Self::InetService | Self::Integer16 => 2,
            Self::Ipv4Addr | Self::Mark | Self::FibAddrType | Self::CtState | Self::CtStatus => 4,
            Self::EtherAddr => 6,
            Self::Ipv6Addr | Self::Ifname => 16,
        }
    }

    /// Length of a value as one part of a concatenation.
    #[must_use]
    pub(crate) const fn padded_len(self) -> usize {
        self.size().next_multiple_of(REGISTER_SIZE)
    }

    /// True if the bytes are in host byte order (marks and masks), or are an interface's name.
    #[must_use]
    pub(crate) const fn is_host_order(self) -> bool {
        matches!(self, Self::Mark | Self::FibAddrType | Self::CtState | Self::CtStatus | Self::Ifname)
    }

    /// The name in nft's syntax.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipv4Addr => "ipv4_addr",
            Self::Ipv6Addr => "ipv6_addr",
            Self::InetProto => "inet_proto",
            Self::InetService => "inet_service",
            Self::Mark => "mark",
            Self::Ifname => "ifname",
            Self::EtherAddr => "ether_addr",
            Self::NfProto => "nf_proto",
            Self::FibAddrType => "fib_addrtype",
            Self::CtState => "ct_state",
            Self::CtStatus => "ct_status",
            Self::IcmpType => "icmp_type",
            Self::Icmpv6Type => "icmpv6_type",
            Self::TcpFlag => "tcp_flag",
            Self::Integer8 | Self::Integer16 => "integer",
        }
    }

    /// The type with this number, if named sets can have that type.
    #[must_use]
    pub(crate) fn from_id(id: u32) -> Option<Self> {
        const ALL: [DataType; 14] = [
            DataType::Ipv4Addr,
            DataType::Ipv6Addr,
            DataType::InetProto,
            DataType::InetService,
            DataType::Mark,
            DataType::Ifname,
            DataType::EtherAddr,
            DataType::NfProto,
            DataType::FibAddrType,
            DataType::CtState,
            DataType::CtStatus,
            DataType::IcmpType,
            DataType::Icmpv6Type,
            DataType::TcpFlag,
        ];
        ALL.into_iter().find(|known| known.id() == id)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One typed value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Value {
    Ipv4(Ipv4Addr),
    /// An IPv6 address, or any 128 bits.
    Ipv6(Ipv6Addr),
    /// An IP protocol number (6 TCP, 17 UDP, 132 SCTP).
    Proto(u8),
    Port(u16),
    /// A packet mark, or any 32 bits.
    Mark(u32),
    /// An interface's name. [`Value::encode`] cuts a name that is too long, so check its length first.
    Ifname(String),
    /// The prefix of interface names (`eth*` in nft), which is possible only in comparisons, not in sets.
    IfnamePrefix(String),
    /// A link-layer address.
    Ether([u8; 6]),
    /// The packet's family: [`Value::NFPROTO_IPV4`] or [`Value::NFPROTO_IPV6`].
    NfProto(u8),
    /// A `RTN_*` number, such as [`Value::RTN_LOCAL`].
    AddrType(u32),
    /// A mask of `ct state` bits, such as [`Value::CT_ESTABLISHED`].
    CtState(u32),
    /// A mask of `ct status` bits (`IPS_*`), such as [`Value::CT_DNAT`].
    CtStatus(u32),
    IcmpType(u8),
    Icmpv6Type(u8),
    TcpFlags(u8),
    /// A number of one byte.
    U8(u8),
    /// A number of two bytes.
    U16(u16),
}

impl Value {
    /// `NFPROTO_IPV4` (`linux/netfilter.h`).
    pub const NFPROTO_IPV4: u8 = 2;
    /// `NFPROTO_IPV6`.
    pub const NFPROTO_IPV6: u8 = 10;
    /// `RTN_LOCAL` (`linux/rtnetlink.h`): an address of this host.
    pub const RTN_LOCAL: u32 = 2;
    /// `NF_CT_STATE_INVALID_BIT`.
    pub const CT_INVALID: u32 = 1;
    /// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`.
    pub const CT_ESTABLISHED: u32 = 2;
    /// `NF_CT_STATE_BIT(IP_CT_RELATED)`.
    pub const CT_RELATED: u32 = 4;
    /// `NF_CT_STATE_BIT(IP_CT_NEW)`.
    pub const CT_NEW: u32 = 8;
    /// `IPS_SRC_NAT` (`linux/netfilter/nf_conntrack_common.h`).
    pub const CT_SNAT: u32 = 16;
    /// `IPS_DST_NAT`.
    pub const CT_DNAT: u32 = 32;
    /// `IPS_ASSURED`: the flow is kept when the table is full. For TCP, the handshake is complete.
    pub const CT_ASSURED: u32 = 4;

    /// The value's type.
    #[must_use]
    pub const fn data_type(&self) -> DataType {
        match self {
            Self::Ipv4(_) => DataType::Ipv4Addr,
            Self::Ipv6(_) => DataType::Ipv6Addr,
            Self::Proto(_) => DataType::InetProto,
            Self::Port(_) => DataType::InetService,
            Self::Mark(_) => DataType::Mark,
            Self::Ifname(_) | Self::IfnamePrefix(_) => DataType::Ifname,
            Self::Ether(_) => DataType::EtherAddr,
            Self::NfProto(_) => DataType::NfProto,
            Self::AddrType(_) => DataType::FibAddrType,
            Self::CtState(_) => DataType::CtState,
            Self::CtStatus(_) => DataType::CtStatus,
            Self::IcmpType(_) => DataType::IcmpType,
            Self::Icmpv6Type(_) => DataType::Icmpv6Type,
            Self::TcpFlags(_) => DataType::TcpFlag,
            Self::U8(_) => DataType::Integer8,
            Self::U16(_) => DataType::Integer16,
        }
    }

    /// The bytes that the kernel compares, without padding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Ipv4(address) => address.octets().to_vec(),
            Self::Ipv6(address) => address.octets().to_vec(),
            Self::Proto(byte) | Self::NfProto(byte) | Self::U8(byte) => vec![*byte],
            Self::IcmpType(byte) | Self::Icmpv6Type(byte) | Self::TcpFlags(byte) => vec![*byte],
            Self::Port(number) | Self::U16(number) => number.to_be_bytes().to_vec(),
            Self::Mark(bits) | Self::AddrType(bits) | Self::CtState(bits) | Self::CtStatus(bits) => {
                bits.to_ne_bytes().to_vec()
            }
            Self::Ifname(name) => {
                let mut bytes = name.as_bytes().to_vec();
                bytes.truncate(IFNAMSIZ - 1);
                bytes.resize(IFNAMSIZ, 0);
                bytes
            }
            Self::IfnamePrefix(prefix) => {
                let mut bytes = prefix.as_bytes().to_vec();
                bytes.truncate(IFNAMSIZ - 1);
                bytes
            }
            Self::Ether(address) => address.to_vec(),
        }
    }

    /// Decodes a value of type `data_type` from the beginning of `bytes`. None if there are too few bytes.
    #[must_use]
    pub fn decode(data_type: DataType, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..data_type.size())?;
        let u32_ne = || Some(u32::from_ne_bytes(bytes.try_into().ok()?));
        let u16_be = || Some(u16::from_be_bytes(bytes.try_into().ok()?));
        let byte = || bytes.first().copied();
        Some(match data_type {
            DataType::Ipv4Addr => Self::Ipv4(<[u8; 4]>::try_from(bytes).ok()?.into()),
            DataType::Ipv6Addr => Self::Ipv6(<[u8; 16]>::try_from(bytes).ok()?.into()),
            DataType::InetProto => Self::Proto(byte()?),
            DataType::NfProto => Self::NfProto(byte()?),
            DataType::IcmpType => Self::IcmpType(byte()?),
            DataType::Icmpv6Type => Self::Icmpv6Type(byte()?),
            DataType::TcpFlag => Self::TcpFlags(byte()?),
            DataType::Integer8 => Self::U8(byte()?),
            DataType::InetService => Self::Port(u16_be()?),
            DataType::Integer16 => Self::U16(u16_be()?),
            DataType::Mark => Self::Mark(u32_ne()?),
            DataType::FibAddrType => Self::AddrType(u32_ne()?),
            DataType::CtState => Self::CtState(u32_ne()?),
            DataType::CtStatus => Self::CtStatus(u32_ne()?),
            DataType::EtherAddr => Self::Ether(bytes.try_into().ok()?),
            DataType::Ifname => {
                // A name in any other form would be encoded as that of another link.
                let end = bytes.iter().position(|byte| *byte == 0)?;
                Self::Ifname(String::from_utf8(bytes.get(..end)?.to_vec()).ok()?)
            }
        })
    }

    /// The protocol with this name, if it is one that is printed by name.
    #[must_use]
    pub fn protocol(name: &str) -> Option<Self> {
        PROTOCOLS.iter().find(|(_, known)| *known == name).map(|(number, _)| Self::Proto(*number))
    }

    /// An address of either family.
    #[must_use]
    pub const fn address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::Ipv4(address),
            IpAddr::V6(address) => Self::Ipv6(address),
        }
    }
}

/// Encodes one value or a concatenation.
///
/// A single value has no padding. In a concatenation, each part, including the last one, is padded with zeros to full
/// 32-bit registers, as `nft` does and as the kernel's payload and meta expressions leave the registers.
#[must_use]
pub(crate) fn encode_concat(values: &[Value]) -> Vec<u8> {
    if let [single] = values {
        return single.encode();
    }
    let mut bytes = Vec::new();
    for value in values {
        bytes.extend(value.encode());
        bytes.resize(bytes.len().next_multiple_of(REGISTER_SIZE), 0);
    }
    bytes
}

/// Decodes the bytes of [`encode_concat`]. None if there are too few bytes.
#[must_use]
pub(crate) fn decode_concat(types: &[DataType], mut bytes: &[u8]) -> Option<Vec<Value>> {
    let mut values = Vec::with_capacity(types.len());
    for data_type in types {
        values.push(Value::decode(*data_type, bytes)?);
        bytes = bytes.get(data_type.padded_len()..).unwrap_or_default();
    }
    Some(values)
}

/// The length in bytes of one value or a concatenation of these types.
#[must_use]
pub(crate) fn concat_len(types: &[DataType]) -> usize {
    match types {
        [single] => single.size(),
        many => many.iter().map(|part| part.padded_len()).sum(),
    }
}

/// The number of a concatenated type in `nft`: six bits for each part, with the last part in the lowest bits
/// (`concat_subtype_add` in nftables' `datatype.h`).
#[must_use]
pub(crate) fn concat_id(types: &[DataType]) -> u32 {
    types.iter().fold(0, |id, part| id << 6 | part.id())
}

/// The parts of a concatenated type. None if [`DataType`] lacks one of them.
#[must_use]
pub(crate) fn concat_from_id(mut id: u32) -> Option<Vec<DataType>> {
    let mut types = Vec::new();
    while id != 0 {
        types.push(DataType::from_id(id & 0x3f)?);
        id >>= 6;
    }
    types.reverse();
    (!types.is_empty()).then_some(types)
}

/// Formats a string in nft's syntax.
///
/// nft's syntax has no escapes, so characters that would end the string and unprintable characters are replaced with
/// question marks. The text is only printed, never sent to the kernel.
pub(crate) fn quoted(text: &str) -> String {
    let inside: String =
        text.chars().map(|c| if c == '"' || c == '\\' || c.is_control() { '?' } else { c }).collect();
    format!("\"{inside}\"")
}

fn bit_names(f: &mut fmt::Formatter<'_>, bits: u32, names: &[(u32, &str)]) -> fmt::Result {
    let named: u32 = names.iter().map(|(bit, _)| bit).sum();
    if bits == 0 || bits & !named != 0 {
        return write!(f, "{bits:#x}");
    }
    let set: Vec<&str> = names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    f.write_str(&set.join(","))
}

/// The protocols that are printed by name, as nft does.
const PROTOCOLS: [(u8, &str); 5] = [(1, "icmp"), (6, "tcp"), (17, "udp"), (58, "ipv6-icmp"), (132, "sctp")];

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ipv4(address) => address.fmt(f),
            Self::Ipv6(address) => address.fmt(f),
            Self::NfProto(Self::NFPROTO_IPV4) => f.write_str("ipv4"),
            Self::NfProto(Self::NFPROTO_IPV6) => f.write_str("ipv6"),
            Self::AddrType(Self::RTN_LOCAL) => f.write_str("local"),
            Self::Proto(byte) => match PROTOCOLS.iter().find(|(number, _)| number == byte) {
                Some((_, name)) => f.write_str(name),
                None => byte.fmt(f),
            },
            Self::NfProto(byte) | Self::U8(byte) => byte.fmt(f),
            Self::IcmpType(byte) | Self::Icmpv6Type(byte) => byte.fmt(f),
            Self::Port(number) | Self::U16(number) => number.fmt(f),
            Self::Mark(bits) => write!(f, "{bits:#010x}"),
            Self::AddrType(number) => number.fmt(f),
            Self::CtState(bits) => bit_names(
                f,
                *bits,
                &[
                    (Self::CT_INVALID, "invalid"),
                    (Self::CT_ESTABLISHED, "established"),
                    (Self::CT_RELATED, "related"),
                    (Self::CT_NEW, "new"),
                ],
            ),
            Self::CtStatus(bits) => {
                let names = [(Self::CT_ASSURED, "assured"), (Self::CT_SNAT, "snat"), (Self::CT_DNAT, "dnat")];
                bit_names(f, *bits, &names)
            }
            Self::TcpFlags(bits) => write!(f, "{bits:#x}"),
            Self::Ifname(name) => f.write_str(&quoted(name)),
            Self::IfnamePrefix(prefix) => f.write_str(&quoted(&format!("{prefix}*"))),
            Self::Ether([a, b, c, d, e, g]) => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"),
        }
    }
}

/// Formats a concatenation in nft's syntax.
pub(crate) fn join(values: &[Value]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" . ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concatenations_are_padded_to_registers() {
        let key = [Value::Proto(6), Value::Port(8080)];
        assert_eq!(encode_concat(&key), [6, 0, 0, 0, 0x1f, 0x90, 0, 0]);
        assert_eq!(encode_concat(&key[..1]), [6]);
        assert_eq!(concat_len(&[DataType::InetProto, DataType::InetService]), 8);
        let decoded = decode_concat(&[DataType::InetProto, DataType::InetService], &encode_concat(&key));
        assert_eq!(decoded.as_deref(), Some(&key[..]));
    }

    #[test]
    fn an_ethernet_address_in_a_concatenation_takes_two_registers() {
        let key = [Value::Ifname("veth0".into()), Value::Ether([2, 0, 0, 0, 0, 1])];
        let bytes = encode_concat(&key);
        assert_eq!(bytes.len(), 24);
        assert_eq!(&bytes[16..], [2, 0, 0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn a_links_name_that_would_be_written_differently_is_no_value() {
        let decode = |bytes: &[u8; 16]| Value::decode(DataType::Ifname, bytes);
        assert_eq!(decode(b"eth0\0\0\0\0\0\0\0\0\0\0\0\0"), Some(Value::Ifname("eth0".to_owned())));
        assert_eq!(decode(b"\xffth0\0\0\0\0\0\0\0\0\0\0\0\0"), None, "not UTF-8");
        assert_eq!(decode(b"0123456789abcdef"), None, "without an end");
    }

    #[test]
    fn type_numbers_round_trip() {
        let types = [DataType::Ipv4Addr, DataType::InetProto, DataType::InetService];
        assert_eq!(concat_id(&types), (7 << 12) | (12 << 6) | 13);
        assert_eq!(concat_from_id(concat_id(&types)).as_deref(), Some(&types[..]));
        assert_eq!(concat_from_id(0), None);
    }

    #[test]
    fn nothing_ends_a_quoted_string_early() {
        assert_eq!(quoted("a\"; flush ruleset; \"\n"), "\"a?; flush ruleset; ??\"");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(id: u32, bytes: Vec<u8>) {
            if let Some(types) = concat_from_id(id)
                && let Some(values) = decode_concat(&types, &bytes)
            {
                proptest::prop_assert_eq!(values.len(), types.len());
            }
        }

        #[test]
        fn keys_round_trip(address: u128, proto: u8, port: u16, mark: u32) {
            let key = [Value::Ipv6(address.into()), Value::Proto(proto), Value::Port(port), Value::Mark(mark)];
            let types: Vec<DataType> = key.iter().map(Value::data_type).collect();
            let decoded = decode_concat(&types, &encode_concat(&key));
            proptest::prop_assert_eq!(decoded.as_deref(), Some(&key[..]));
        }
    }
}
