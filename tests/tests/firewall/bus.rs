// SPDX-License-Identifier: GPL-2.0-or-later

//! A dbus-daemon as the node's system bus, and a thread that acts as firewalld on it.
//!
//! The replies match those of firewalld 1.3.3.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use slipway_tests::{Node, SYSTEM_BUS, within};

const SOCKET: &str = "/run/dbus/system_bus_socket";

/// The bus, which runs until it is dropped.
pub(crate) struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// Starts the bus. Returns `None` if dbus-daemon is not installed.
    pub(crate) fn start(node: &Node) -> Option<Self> {
        node.write("/run/bus.conf", SYSTEM_BUS);
        node.cmd("mkdir -p /run/dbus");
        let child = node.run(|| {
            Command::new("dbus-daemon")
                .args(["--config-file=/run/bus.conf", "--nofork", "--nopidfile"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
        });
        let daemon = Self(child.ok()?);
        let begin = Instant::now();
        while node.run(|| UnixStream::connect(SOCKET).is_err()) {
            assert!(begin.elapsed() < within(Duration::from_secs(20)), "dbus-daemon does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        Some(daemon)
    }
}

/// The zone of each source.
pub(crate) type Zones = Arc<Mutex<BTreeMap<String, String>>>;

/// Answers as firewalld until the bus is stopped.
pub(crate) fn firewalld(node: &Node) -> Zones {
    let zones = Zones::default();
    let mut stream = node.run(|| UnixStream::connect(SOCKET)).expect("connect to the bus");
    stream.write_all(b"\0AUTH EXTERNAL 30\r\n").expect("write");
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("the bus answers");
        line.extend(byte);
    }
    assert!(line.starts_with(b"OK "), "{line:?}");
    stream.write_all(b"BEGIN\r\n").expect("write");
    stream.write_all(&call(1, "Hello", &[])).expect("write");
    let mut name = text("org.fedoraproject.FirewallD1");
    pad(&mut name, 4);
    name.extend(0_u32.to_le_bytes());
    stream.write_all(&call_with(2, "RequestName", "su", &name)).expect("write");
    // Once this reply has arrived, the connection owns the name.
    while read(&mut stream).expect("the bus answers").reply_to != Some(2) {}
    let kept = Arc::clone(&zones);
    thread::spawn(move || {
        let mut serial = 2;
        while let Some(message) = read(&mut stream) {
            if message.kind != 1 {
                continue;
            }
            serial += 1;
            let answer = answer(&mut kept.lock().expect("not poisoned"), &message);
            if stream.write_all(&reply(serial, &message, answer)).is_err() {
                break;
            }
        }
    });
    zones
}

/// A bus that refuses authentication, as the real one does for root of a user namespace. The bus runs until the test
/// process ends.
pub(crate) fn refusing(node: &Node) {
    node.cmd("mkdir -p /run/dbus");
    let listener = node.run(|| UnixListener::bind(SOCKET)).expect("listen");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut line = [0; 64];
            let _ = stream.read(&mut line);
            let _ = stream.write_all(b"REJECTED EXTERNAL\r\n");
        }
    });
}

enum Reply {
    Text(String),
    Bool(bool),
    Error(String),
}

fn answer(zones: &mut BTreeMap<String, String>, message: &Message) -> Reply {
    if message.member == "getDefaultZone" {
        return Reply::Text("public".to_owned());
    }
    let [zone, source] = message.texts.as_slice() else {
        return Reply::Error("INVALID_TYPE: two texts".into());
    };
    if !["trusted", "public"].contains(&zone.as_str()) {
        return Reply::Error(format!("INVALID_ZONE: {zone}"));
    }
    let has = zones.get(source).cloned();
    match (message.member.as_str(), has) {
        ("addSource", Some(other)) if other == *zone => {
            Reply::Error(format!("ZONE_ALREADY_SET: '{source}' already bound to '{zone}'"))
        }
        ("addSource", Some(other)) => {
            Reply::Error(format!("ZONE_CONFLICT: '{source}' already bound to '{other}'"))
        }
        ("addSource", None) => {
            zones.insert(source.clone(), zone.clone());
            Reply::Text(zone.clone())
        }
        ("removeSource", Some(other)) if other == *zone => {
            zones.remove(source);
            Reply::Text(zone.clone())
        }
        ("removeSource", Some(_)) => Reply::Error(format!("ZONE_CONFLICT: {source}")),
        ("removeSource", None) => Reply::Error(format!("UNKNOWN_SOURCE: '{source}' is not in any zone")),
        ("querySource", has) => Reply::Bool(has.as_deref() == Some(zone)),
        (member, _) => Reply::Error(format!("no method {member}")),
    }
}

struct Message {
    kind: u8,
    serial: u32,
    reply_to: Option<u32>,
    sender: String,
    member: String,
    texts: Vec<String>,
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    while !bytes.len().is_multiple_of(to) {
        bytes.push(0);
    }
}

/// Reads a message. All messages come from processes on this machine, which is little-endian.
fn read(stream: &mut UnixStream) -> Option<Message> {
    let mut fixed = [0; 16];
    stream.read_exact(&mut fixed).ok()?;
    assert_eq!(fixed[0], b'l', "not a little-endian message");
    let (body_len, fields_len) = (number(&fixed[4..]) as usize, number(&fixed[12..]) as usize);
    let mut fields = vec![0; fields_len.next_multiple_of(8)];
    stream.read_exact(&mut fields).ok()?;
    let mut body = vec![0; body_len];
    stream.read_exact(&mut body).ok()?;
    let mut message = Message {
        kind: fixed[1],
        serial: number(&fixed[8..]),
        reply_to: None,
        sender: String::new(),
        member: String::new(),
        texts: Vec::new(),
    };
    let (mut at, mut texts) = (0, 0);
    while at < fields_len {
        let (code, kind) = (fields[at], fields[at + 2]);
        at += 4;
        match kind {
            b'u' => {
                if code == 5 {
                    message.reply_to = Some(number(&fields[at..]));
                }
                at += 4;
            }
            b'g' => {
                let length = fields[at] as usize;
                if code == 8 {
                    texts = fields[at + 1..at + 1 + length].iter().filter(|one| **one == b's').count();
                }
                at += length + 2;
            }
            _ => {
                let length = number(&fields[at..]) as usize;
                let value = String::from_utf8_lossy(&fields[at + 4..at + 4 + length]).into_owned();
                match code {
                    3 => message.member = value,
                    7 => message.sender = value,
                    _ => {}
                }
                at += length + 5;
            }
        }
        at = at.next_multiple_of(8);
    }
    if message.kind == 1 {
        let mut at = 0_usize;
        for _ in 0..texts {
            at = at.next_multiple_of(4);
            let length = number(&body[at..]) as usize;
            message.texts.push(String::from_utf8_lossy(&body[at + 4..at + 4 + length]).into_owned());
            at += length + 5;
        }
    }
    Some(message)
}

fn text(value: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(value.len()).expect("short").to_le_bytes().to_vec();
    bytes.extend(value.as_bytes());
    bytes.push(0);
    bytes
}

fn field(fields: &mut Vec<u8>, code: u8, kind: u8, value: &[u8]) {
    pad(fields, 8);
    fields.extend([code, 1, kind, 0]);
    fields.extend(value);
}

fn signature(value: &str) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(value.len()).expect("short")];
    bytes.extend(value.as_bytes());
    bytes.push(0);
    bytes
}

fn assemble(kind: u8, serial: u32, fields: &[u8], body: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("short").to_le_bytes();
    let mut message = vec![b'l', kind, 0, 1];
    message.extend(length(body));
    message.extend(serial.to_le_bytes());
    message.extend(length(fields));
    message.extend(fields);
    pad(&mut message, 8);
    message.extend(body);
    message
}

fn call(serial: u32, member: &str, body: &[u8]) -> Vec<u8> {
    call_with(serial, member, "", body)
}

fn call_with(serial: u32, member: &str, kinds: &str, body: &[u8]) -> Vec<u8> {
    let mut fields = Vec::new();
    field(&mut fields, 1, b'o', &text("/org/freedesktop/DBus"));
    field(&mut fields, 2, b's', &text("org.freedesktop.DBus"));
    field(&mut fields, 3, b's', &text(member));
    field(&mut fields, 6, b's', &text("org.freedesktop.DBus"));
    if !kinds.is_empty() {
        field(&mut fields, 8, b'g', &signature(kinds));
    }
    assemble(1, serial, &fields, body)
}

fn reply(serial: u32, to: &Message, content: Reply) -> Vec<u8> {
    let mut fields = Vec::new();
    field(&mut fields, 5, b'u', &to.serial.to_le_bytes());
    field(&mut fields, 6, b's', &text(&to.sender));
    let (kind, kinds, body) = match content {
        Reply::Text(value) => (2, "s", text(&value)),
        Reply::Bool(value) => (2, "b", u32::from(value).to_le_bytes().to_vec()),
        Reply::Error(value) => {
            field(&mut fields, 4, b's', &text("org.fedoraproject.FirewallD1.Exception"));
            (3, "s", text(&value))
        }
    };
    field(&mut fields, 8, b'g', &signature(kinds));
    assemble(kind, serial, &fields, &body)
}
