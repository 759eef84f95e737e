// SPDX-License-Identifier: MIT OR Apache-2.0

//! The part of D-Bus that firewalld needs: signals, and method calls with text arguments over the system bus, one at
//! a time.
//!
//! The wire format is that of the D-Bus Specification 0.41, sections "Message Protocol" and "Authentication
//! Protocol". A library's client would bring an event loop or tens of dependencies into every plugin process.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::is_transient_io;

/// The time limit for a reply: firewalld may be reloading all of its rules.
const REPLY_LIMIT: Duration = Duration::from_secs(25);
/// The largest reply that is read, in bytes; the bus allows more.
const LARGEST: usize = 1 << 20;

/// The default addresses of the system bus (section "Well-known Message Bus Instances").
const SYSTEM_BUS: &str = "unix:path=/run/dbus/system_bus_socket;unix:path=/var/run/dbus/system_bus_socket";

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// There is no bus that this process can connect to.
    #[error("connect to the system bus of D-Bus: {0}")]
    Unreachable(String),
    /// The connection failed.
    #[error("{operation}: {source}")]
    Io {
        /// The call.
        operation: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A message does not conform to the specification.
    #[error("{operation}: unexpected reply: {reason}")]
    Protocol {
        /// The call.
        operation: String,
        /// What is wrong with the message.
        reason: &'static str,
    },
    /// An error reply.
    #[error("{operation}: {name}: {message}")]
    Refused {
        /// The call.
        operation: String,
        /// The error's name on the bus.
        name: String,
        /// The error's text.
        message: String,
    },
}

impl BusError {
    /// True if this process was short of something, and so does not know whether there is a bus, or who owns a name on
    /// it. A bus that does not answer within the time limit (EAGAIN) is not counted, because it may hang for ever.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        let is_late = |source: &std::io::Error| source.kind() == std::io::ErrorKind::WouldBlock;
        matches!(self, Self::Io { source, .. } if is_transient_io(source) && !is_late(source))
    }
}

/// The destination of a call.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The destination's name on the bus.
    pub name: &'static str,
    /// The object's path.
    pub path: &'static str,
    /// The interface of the method.
    pub interface: &'static str,
}

const BUS: Target =
    Target { name: "org.freedesktop.DBus", path: "/org/freedesktop/DBus", interface: "org.freedesktop.DBus" };

/// The first value of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// No value.
    Empty,
    /// A text, or an object's path.
    Text(String),
    /// A truth value.
    Bool(bool),
    /// A value of another type.
    Other,
}

/// A signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    /// The interface, such as `org.fedoraproject.FirewallD1`.
    pub interface: String,
    /// The signal's name in the interface.
    pub member: String,
    /// The signal's values up to the first one that is not a text.
    pub texts: Vec<String>,
}

/// A connection to the system bus.
#[derive(Debug)]
pub struct Bus {
    stream: UnixStream,
    serial: u32,
}

impl Bus {
    /// Connects as this process's user.
    ///
    /// # Errors
    /// [`BusError::Unreachable`] without a bus; [`BusError::Io`] if it refuses this user, or if the system is short of
    /// something ([`BusError::is_transient`]).
    pub fn system() -> Result<Self, BusError> {
        let named = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
        let stream = connect(if named.is_empty() { SYSTEM_BUS } else { &named })?;
        let io = |source| BusError::Io { operation: "connect to the system bus".to_owned(), source };
        stream.set_read_timeout(Some(REPLY_LIMIT)).map_err(io)?;
        stream.set_write_timeout(Some(REPLY_LIMIT)).map_err(io)?;
        let mut bus = Self { stream, serial: 0 };
        bus.authenticate()?;
        bus.call(BUS, "Hello", &[])?;
        Ok(bus)
    }

    /// True if a process owns that name on the bus.
    ///
    /// # Errors
    /// [`BusError`].
    pub fn has_owner(&mut self, name: &str) -> Result<bool, BusError> {
        Ok(self.call(BUS, "NameHasOwner", &[name])? == Reply::Bool(true))
    }

    fn authenticate(&mut self) -> Result<(), BusError> {
        let operation = || "authenticate at the system bus".to_owned();
        let io = |source| BusError::Io { operation: operation(), source };
        // A zero byte first; the user ID in decimal digits, each written as two hexadecimal digits.
        let user = nix::unistd::geteuid().to_string();
        let digits: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.stream.write_all(format!("\0AUTH EXTERNAL {digits}\r\n").as_bytes()).map_err(io)?;
        let mut line = Vec::new();
        // The line is read byte by byte, because the bytes after it belong to the next message.
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

    /// Subscribes to the signals that a match rule describes (section "Match Rules").
    ///
    /// # Errors
    /// [`BusError`].
    pub fn subscribe(&mut self, rule: &str) -> Result<(), BusError> {
        self.call(BUS, "AddMatch", &[rule]).map(drop)
    }

    /// Waits for the next signal, for at most `timeout`. Signals that arrive during a call are lost.
    ///
    /// # Errors
    /// [`BusError::Io`] if the bus has ended.
    pub fn next_signal(&mut self, timeout: Duration) -> Result<Option<Signal>, BusError> {
        let operation = || "wait for a signal".to_owned();
        let io = |source| BusError::Io { operation: operation(), source };
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)], wait) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(io(errno.into())),
            }
            let message = self.receive().map_err(io)?;
            let message = Message::parse(&message)
                .ok_or_else(|| BusError::Protocol { operation: operation(), reason: "malformed" })?;
            if message.kind == SIGNAL {
                return Ok(Some(message.signal()));
            }
        }
    }

    /// Calls a method with text arguments and waits for its reply.
    ///
    /// # Errors
    /// [`BusError`]; an error reply is [`BusError::Refused`].
    pub fn call(&mut self, target: Target, member: &str, args: &[&str]) -> Result<Reply, BusError> {
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
                continue; // A signal: the bus sends a new client its name.
            }
            return match message.kind {
                METHOD_RETURN => Ok(message.reply()),
                ERROR => Err(BusError::Refused {
                    operation: operation(),
                    name: message.error.clone().unwrap_or_default(),
                    message: match message.reply() {
                        Reply::Text(text) => text,
                        _ => String::new(),
                    },
                }),
                _ => Err(wrong("neither a method return nor an error")),
            };
        }
    }

    /// Reads one message.
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

/// Tries the addresses one after the other (section "Server Addresses").
fn connect(addresses: &str) -> Result<UnixStream, BusError> {
    let mut why = "no address of a known kind".to_owned();
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
                Err(error) => why = not_connected(value, error)?,
            }
        }
    }
    Err(BusError::Unreachable(why))
}

/// Explains why there is no bus at an address. A bus that has ended leaves a socket behind, which refuses connections.
///
/// # Errors
/// [`BusError::Io`] after an error that says nothing about the bus.
fn not_connected(address: &str, error: std::io::Error) -> Result<String, BusError> {
    if is_transient_io(&error) {
        return Err(BusError::Io { operation: "connect to the system bus".to_owned(), source: error });
    }
    Ok(format!("{address}: {error}"))
}

/// The length of the fixed part of a message: up to and including the length of the header's fields.
const FIXED: usize = 16;
const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
const SIGNAL: u8 = 4;
/// The flag that keeps the bus from starting a service for the call.
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

/// The byte order of a message, which its sender chooses.
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

/// The parts of a message that are used.
struct Message<'a> {
    kind: u8,
    order: Order,
    reply_to: Option<u32>,
    error: Option<String>,
    interface: String,
    member: String,
    signature: String,
    body: &'a [u8],
}

/// Reads values one after the other. Positions count from the beginning of the message, because alignment does, too.
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
            interface: String::new(),
            member: String::new(),
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
                (INTERFACE, "s") => message.interface = reader.text()?,
                (MEMBER, "s") => message.member = reader.text()?,
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

    fn signal(&self) -> Signal {
        let mut reader = Reader { bytes: self.body, at: 0, order: self.order };
        let texts = self.signature.chars().map_while(|kind| match kind {
            's' | 'o' => reader.text(),
            _ => None,
        });
        Signal { texts: texts.collect(), interface: self.interface.clone(), member: self.member.clone() }
    }

    fn reply(&self) -> Reply {
        let mut reader = Reader { bytes: self.body, at: 0, order: self.order };
        let read = match self.signature.chars().next() {
            None => Some(Reply::Empty),
            Some('s' | 'o') => reader.text().map(Reply::Text),
            Some('b') => reader.number().map(|number| Reply::Bool(number != 0)),
            Some(_) => Some(Reply::Other),
        };
        read.unwrap_or(Reply::Other)
    }
}

/// Decodes a message of a peer both as a signal and as a reply, for fuzzing.
#[cfg(feature = "fuzzing")]
pub(crate) fn read(bytes: &[u8]) -> Option<(Signal, Reply)> {
    let message = Message::parse(bytes)?;
    Some((message.signal(), message.reply()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that `dbus-send` writes.
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
        assert_eq!(parsed.reply(), Reply::Text("xy".to_owned()));
    }

    #[test]
    fn a_missing_or_dead_socket_is_no_bus() {
        let dir = tempfile::tempdir().unwrap();
        let (missing, dead) = (dir.path().join("missing"), dir.path().join("dead"));
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
        let both = format!("unix:path={};unix:path={}", missing.display(), dead.display());
        for addresses in ["tcp:host=localhost", &both] {
            let error = connect(addresses).unwrap_err();
            assert!(matches!(error, BusError::Unreachable(_)) && !error.is_transient(), "{error}");
        }
    }

    #[test]
    fn a_process_that_is_short_of_something_does_not_know_whether_there_is_a_bus() {
        for errno in [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM] {
            let error = not_connected("/run/bus", errno.into()).unwrap_err();
            assert!(error.is_transient(), "{error}");
        }
        assert!(not_connected("/run/bus", Errno::EACCES.into()).unwrap().starts_with("/run/bus: "));
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
    fn replies_of_either_byte_order_are_read() {
        let yes = reply(Order::Big, METHOD_RETURN, "b", &1_u32.to_be_bytes());
        let parsed = Message::parse(&yes).unwrap();
        assert_eq!((parsed.reply_to, parsed.reply()), (Some(3), Reply::Bool(true)));
        let no = reply(Order::Little, METHOD_RETURN, "b", &0_u32.to_le_bytes());
        assert_eq!(Message::parse(&no).unwrap().reply(), Reply::Bool(false));
        let nothing = reply(Order::Little, METHOD_RETURN, "", &[]);
        assert_eq!(Message::parse(&nothing).unwrap().reply(), Reply::Empty);
    }

    #[test]
    fn a_signal_has_its_texts() {
        let target = Target { name: "a.b", path: "/a", interface: "org.freedesktop.DBus" };
        let mut message = method_call(7, target, "NameOwnerChanged", &["a.b", "", ":1.7"]);
        message[1] = SIGNAL;
        let signal = Message::parse(&message).unwrap().signal();
        assert_eq!(
            (signal.interface.as_str(), signal.member.as_str()),
            (target.interface, "NameOwnerChanged")
        );
        assert_eq!(signal.texts, ["a.b", "", ":1.7"]);
    }

    #[test]
    fn malformed_messages_are_refused() {
        let good = reply(Order::Little, ERROR, "s", &[2, 0, 0, 0, b'n', b'o', 0]);
        assert_eq!(Message::parse(&good).unwrap().reply(), Reply::Text("no".to_owned()));
        for length in 0..good.len() {
            let _ = Message::parse(&good[..length]).map(|message| message.reply());
        }
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = Message::parse(&bad).map(|message| message.reply());
            }
        }
    }
}
