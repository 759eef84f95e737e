//! As much of D-Bus as it takes to ask firewalld: method calls with texts over the system bus, one after the
//! other.
//!
//! The wire format is that of the D-Bus Specification 0.41, sections "Message Protocol" and "Authentication
//! Protocol". A client of a library would bring an event loop, or tens of dependencies, into every plugin
//! process.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

/// How long an answer may take: firewalld may be reloading all of its rules.
const PATIENCE: Duration = Duration::from_secs(25);
/// Larger answers are refused, in bytes; the bus itself allows more.
const LARGEST: usize = 1 << 20;

/// Where the system bus is if nobody says otherwise (section "Well-known Message Bus Instances").
const SYSTEM_BUS: &str = "unix:path=/run/dbus/system_bus_socket;unix:path=/var/run/dbus/system_bus_socket";

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum BusError {
    /// There is no bus.
    #[error("the system bus of D-Bus cannot be reached: {0}")]
    Unreachable(String),
    /// The conversation broke off.
    #[error("{operation}: {source}")]
    Io {
        /// What was tried.
        operation: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Something that is not the protocol came.
    #[error("{operation}: unexpected answer: {reason}")]
    Protocol {
        /// What was tried.
        operation: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The other side refused.
    #[error("{operation}: {name}: {message}")]
    Refused {
        /// What was tried.
        operation: String,
        /// The error's name on the bus.
        name: String,
        /// What it says.
        message: String,
    },
}

/// Whom a call goes to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    pub(super) interface: &'static str,
}

const BUS: Target =
    Target { name: "org.freedesktop.DBus", path: "/org/freedesktop/DBus", interface: "org.freedesktop.DBus" };

/// The first value of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Nothing,
    Text(String),
    Bool(bool),
    /// Of a type that nobody here asks for.
    Other,
}

/// A connection to the system bus.
pub(super) struct Bus {
    stream: UnixStream,
    serial: u32,
}

impl Bus {
    /// Connects, as the user that this process is.
    pub(super) fn system() -> Result<Self, BusError> {
        let named = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
        let stream = connect(if named.is_empty() { SYSTEM_BUS } else { &named })?;
        let io = |source| BusError::Io { operation: "connect to the system bus".to_owned(), source };
        stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
        let mut bus = Self { stream, serial: 0 };
        bus.authenticate()?;
        bus.call(BUS, "Hello", &[])?;
        Ok(bus)
    }

    /// Whether somebody has that name on the bus.
    pub(super) fn has_owner(&mut self, name: &str) -> Result<bool, BusError> {
        Ok(self.call(BUS, "NameHasOwner", &[name])? == Answer::Bool(true))
    }

    fn authenticate(&mut self) -> Result<(), BusError> {
        let operation = || "authenticate at the system bus".to_owned();
        let io = |source| BusError::Io { operation: operation(), source };
        // The user's number in decimal digits, each as two hexadecimal ones; a zero byte goes first.
        let user = nix::unistd::geteuid().to_string();
        let digits: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.stream.write_all(format!("\0AUTH EXTERNAL {digits}\r\n").as_bytes()).map_err(io)?;
        let mut line = Vec::new();
        // Byte by byte: what follows the line belongs to somebody else.
        while !line.ends_with(b"\r\n") && line.len() < 512 {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).map_err(io)?;
            line.extend(byte);
        }
        if !line.starts_with(b"OK ") {
            return Err(BusError::Protocol { operation: operation(), reason: "not accepted" });
        }
        self.stream.write_all(b"BEGIN\r\n").map_err(io)
    }

    /// Calls a method with texts and waits for its answer.
    pub(super) fn call(&mut self, target: Target, member: &str, args: &[&str]) -> Result<Answer, BusError> {
        let operation = || format!("{}.{member}({})", target.interface, args.join(", "));
        let io = |source| BusError::Io { operation: operation(), source };
        self.serial += 1;
        let message = method_call(self.serial, target, member, args);
        self.stream.write_all(&message).map_err(io)?;
        loop {
            let message = self.receive().map_err(io)?;
            let wrong = |reason| BusError::Protocol { operation: operation(), reason };
            let message = Message::parse(&message).ok_or_else(|| wrong("malformed"))?;
            if message.reply_to != Some(self.serial) {
                continue; // A signal: the bus tells a new client its name.
            }
            return match message.kind {
                METHOD_RETURN => Ok(message.answer()),
                ERROR => Err(BusError::Refused {
                    operation: operation(),
                    name: message.error.clone().unwrap_or_default(),
                    message: match message.answer() {
                        Answer::Text(text) => text,
                        _ => String::new(),
                    },
                }),
                _ => Err(wrong("neither an answer nor an error")),
            };
        }
    }

    /// One message as it comes.
    fn receive(&mut self) -> std::io::Result<Vec<u8>> {
        let mut message = vec![0; FIXED];
        self.stream.read_exact(&mut message)?;
        let order = Order::of(message[0]);
        let number = |at: usize| usize::try_from(order.u32(&message[at..]).unwrap_or(u32::MAX));
        let length = || {
            let (body, fields) = (number(4).ok()?, number(12).ok()?);
            fields.checked_next_multiple_of(8)?.checked_add(body).filter(|length| *length <= LARGEST)
        };
        let length = length().ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData))?;
        message.resize(FIXED + length, 0);
        self.stream.read_exact(&mut message[FIXED..])?;
        Ok(message)
    }
}

/// Tries the addresses in turn, as section "Server Addresses" has them.
fn connect(addresses: &str) -> Result<UnixStream, BusError> {
    let mut why = "no address of a kind that is known".to_owned();
    for address in addresses.split(';') {
        let Some(keys) = address.strip_prefix("unix:") else { continue };
        let pairs = keys.split(',').filter_map(|pair| pair.split_once('='));
        for (key, value) in pairs {
            let connected = match key {
                "path" => UnixStream::connect(Path::new(value)),
                "abstract" => SocketAddr::from_abstract_name(value)
                    .and_then(|address| UnixStream::connect_addr(&address)),
                _ => continue,
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => why = format!("{value}: {error}"),
            }
        }
    }
    Err(BusError::Unreachable(why))
}

/// Length of the fixed part of a message: up to and with the length of the header's fields.
const FIXED: usize = 16;
const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
/// Nobody is started for our sake.
const NO_AUTO_START: u8 = 2;
const VERSION: u8 = 1;
// Section "Header Fields".
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

fn align(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    align(bytes, 4);
    bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.push(0);
}

fn put_signature(bytes: &mut Vec<u8>, signature: &str) {
    bytes.push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
    bytes.extend(signature.as_bytes());
    bytes.push(0);
}

fn method_call(serial: u32, target: Target, member: &str, args: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    args.iter().for_each(|text| put_text(&mut body, text));
    let mut fields = Vec::new();
    let texts = [
        (PATH, "o", target.path),
        (INTERFACE, "s", target.interface),
        (MEMBER, "s", member),
        (DESTINATION, "s", target.name),
    ];
    for (code, kind, text) in texts {
        align(&mut fields, 8);
        fields.push(code);
        put_signature(&mut fields, kind);
        put_text(&mut fields, text);
    }
    if !args.is_empty() {
        align(&mut fields, 8);
        fields.push(SIGNATURE);
        put_signature(&mut fields, "g");
        put_signature(&mut fields, &"s".repeat(args.len()));
    }
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    let mut message = vec![b'l', METHOD_CALL, NO_AUTO_START, VERSION];
    message.extend(length(&body));
    message.extend(serial.to_le_bytes());
    message.extend(length(&fields));
    message.extend(&fields);
    align(&mut message, 8);
    message.extend(body);
    message
}

/// The order of a message's bytes: its sender's.
#[derive(Debug, Clone, Copy)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn of(mark: u8) -> Self {
        if mark == b'B' { Self::Big } else { Self::Little }
    }

    fn u32(self, bytes: &[u8]) -> Option<u32> {
        let bytes = *bytes.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        })
    }
}

/// What is of interest of a message.
struct Message<'a> {
    kind: u8,
    order: Order,
    reply_to: Option<u32>,
    error: Option<String>,
    signature: String,
    body: &'a [u8],
}

/// Reads values one after the other; places count from the message's beginning, as alignment does.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    order: Order,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize, alignment: usize) -> Option<&'a [u8]> {
        let start = self.at.checked_next_multiple_of(alignment)?;
        let end = start.checked_add(length)?;
        let taken = self.bytes.get(start..end)?;
        self.at = end;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1, 1)?.first().copied()
    }

    fn number(&mut self) -> Option<u32> {
        let bytes = self.take(4, 4)?;
        self.order.u32(bytes)
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        let text = String::from_utf8_lossy(self.take(length, 1)?).into_owned();
        self.take(1, 1)?;
        Some(text)
    }

    fn signature(&mut self) -> Option<String> {
        let length = usize::from(self.byte()?);
        let text = String::from_utf8_lossy(self.take(length, 1)?).into_owned();
        self.take(1, 1)?;
        Some(text)
    }
}

impl<'a> Message<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let order = Order::of(*bytes.first()?);
        let mut message = Self {
            kind: *bytes.get(1)?,
            order,
            reply_to: None,
            error: None,
            signature: String::new(),
            body: &[],
        };
        let fields = usize::try_from(order.u32(bytes.get(12..)?)?).ok()?;
        let end = FIXED.checked_add(fields)?;
        let mut reader = Reader { bytes: bytes.get(..end)?, at: FIXED, order };
        while reader.at < end {
            let code = reader.take(1, 8)?[0];
            match (code, reader.signature()?.as_str()) {
                (REPLY_SERIAL, "u") => message.reply_to = Some(reader.number()?),
                (ERROR_NAME, "s") => message.error = Some(reader.text()?),
                (SIGNATURE, "g") => message.signature = reader.signature()?,
                (_, "s" | "o") => drop(reader.text()?),
                (_, "g") => drop(reader.signature()?),
                (_, "u") => drop(reader.number()?),
                _ => return None,
            }
        }
        message.body = bytes.get(end.checked_next_multiple_of(8)?..)?;
        Some(message)
    }

    fn answer(&self) -> Answer {
        let mut reader = Reader { bytes: self.body, at: 0, order: self.order };
        let read = match self.signature.chars().next() {
            None => Some(Answer::Nothing),
            Some('s' | 'o') => reader.text().map(Answer::Text),
            Some('b') => reader.number().map(|number| Answer::Bool(number != 0)),
            Some(_) => Some(Answer::Other),
        };
        read.unwrap_or(Answer::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message of the specification's own kind: what `dbus-send` writes, byte by byte.
    #[test]
    fn a_call_is_marshalled() {
        let target = Target { name: "a.b", path: "/a", interface: "a.i" };
        let message = method_call(7, target, "M", &["xy"]);
        let expected: &[u8] = &[
            b'l', 1, 2, 1, 7, 0, 0, 0, 7, 0, 0, 0, 71, 0, 0, 0, // fixed
            1, 1, b'o', 0, 2, 0, 0, 0, b'/', b'a', 0, 0, 0, 0, 0, 0, // path
            2, 1, b's', 0, 3, 0, 0, 0, b'a', b'.', b'i', 0, 0, 0, 0, 0, // interface
            3, 1, b's', 0, 1, 0, 0, 0, b'M', 0, 0, 0, 0, 0, 0, 0, // member
            6, 1, b's', 0, 3, 0, 0, 0, b'a', b'.', b'b', 0, 0, 0, 0, 0, // destination
            8, 1, b'g', 0, 1, b's', 0, 0, // signature, padded
            2, 0, 0, 0, b'x', b'y', 0,
        ];
        assert_eq!(message, expected);
        let parsed = Message::parse(&message).unwrap();
        assert_eq!((parsed.kind, parsed.signature.as_str()), (METHOD_CALL, "s"));
        assert_eq!(parsed.answer(), Answer::Text("xy".to_owned()));
    }

    fn reply(order: Order, kind: u8, signature: &str, body: &[u8]) -> Vec<u8> {
        let number = |n: u32| match order {
            Order::Little => n.to_le_bytes(),
            Order::Big => n.to_be_bytes(),
        };
        let mut fields = vec![REPLY_SERIAL, 1, b'u', 0];
        fields.extend(number(3));
        fields.extend([SIGNATURE, 1, b'g', 0]);
        put_signature(&mut fields, signature);
        let mark = if matches!(order, Order::Big) { b'B' } else { b'l' };
        let mut message = vec![mark, kind, 0, 1];
        message.extend(number(u32::try_from(body.len()).unwrap()));
        message.extend(number(9));
        message.extend(number(u32::try_from(fields.len()).unwrap()));
        message.extend(fields);
        align(&mut message, 8);
        message.extend(body);
        message
    }

    #[test]
    fn answers_of_either_order_are_read() {
        let yes = reply(Order::Big, METHOD_RETURN, "b", &1_u32.to_be_bytes());
        let parsed = Message::parse(&yes).unwrap();
        assert_eq!((parsed.reply_to, parsed.answer()), (Some(3), Answer::Bool(true)));
        let no = reply(Order::Little, METHOD_RETURN, "b", &0_u32.to_le_bytes());
        assert_eq!(Message::parse(&no).unwrap().answer(), Answer::Bool(false));
        let nothing = reply(Order::Little, METHOD_RETURN, "", &[]);
        assert_eq!(Message::parse(&nothing).unwrap().answer(), Answer::Nothing);
    }

    #[test]
    fn garbage_is_no_message() {
        let good = reply(Order::Little, ERROR, "s", &[2, 0, 0, 0, b'n', b'o', 0]);
        assert_eq!(Message::parse(&good).unwrap().answer(), Answer::Text("no".to_owned()));
        for length in 0..good.len() {
            let _ = Message::parse(&good[..length]).map(|message| message.answer());
        }
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = Message::parse(&bad).map(|message| message.answer());
            }
        }
    }
}
