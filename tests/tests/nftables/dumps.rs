// SPDX-License-Identifier: GPL-2.0-or-later

//! Large batches and dumps, and changes that happen during a dump.

use std::cell::Cell;
use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use cni_nftables::{Chain, Element, ElementId, ElementInfo, Socket, Transaction, Value};
use slipway_tests::in_namespace;

use super::{UDP, everything, table, v4};

#[test]
fn sixty_thousand_elements_in_one_batch() {
    in_namespace(|| {
        const COUNT: u32 = 60_000;
        let socket = Socket::open().unwrap();
        socket.commit(&everything(), None).unwrap();
        let mut tx = Transaction::new();
        for n in 0..COUNT {
            let key = vec![UDP, Value::Port(u16::try_from(n).unwrap())];
            let target = Ipv4Addr::from_bits(0x0a00_0000 + n);
            let element = Element::new(ElementId::new(&table(), "ports4", key))
                .values(vec![Value::Ipv4(target), Value::Port(80)])
                .comment(&format!("0123456789abcdef-0123456789abcdef element {n}"));
            tx.add_element(element);
        }
        let since = std::time::Instant::now();
        socket.commit(&tx, None).unwrap();
        let committed = since.elapsed();
        let elements = socket.elements(&table(), "ports4").unwrap();
        eprintln!("60,000 elements: commit {committed:?}, dump {:?}", since.elapsed() - committed);
        let keys: HashSet<Vec<Value>> = elements.iter().map(|element| element.key.clone()).collect();
        assert_eq!((elements.len(), keys.len()), (COUNT as usize + 1, COUNT as usize + 1));
        let last = elements.iter().find(|element| element.key == [UDP, Value::Port(59_999)]).unwrap();
        assert_eq!(last.comment.as_deref(), Some("0123456789abcdef-0123456789abcdef element 59999"));
        let error = socket.commit(&tx, None).unwrap_err();
        assert!(error.is_exists() && error.op_index() == Some(0), "{error}");
    });
}

#[test]
fn a_dump_is_repeated_when_the_ruleset_changes() {
    in_namespace(|| {
        let socket = Socket::open().unwrap();
        socket.commit(&everything(), None).unwrap();
        let fill = |range: std::ops::Range<u16>| {
            let mut tx = Transaction::new();
            for port in range {
                let id = ElementId::new(&table(), "ports4", vec![UDP, Value::Port(port)]);
                tx.add_element(Element::new(id).values(vec![v4("10.0.0.1"), Value::Port(80)]));
            }
            tx
        };
        socket.commit(&fill(0..5000), None).unwrap();
        let other = Socket::open().unwrap();
        let mut disturbances = 0;
        let mut attempts = 0;
        let elements = socket
            .fold_elements(&table(), "ports4", Vec::new, |elements, element| {
                attempts += i32::from(elements.is_empty());
                elements.push(element.key);
                if elements.len() == 10 && disturbances < 3 {
                    let next = 5000 + disturbances;
                    other.commit(&fill(next..next + 1), None).unwrap();
                    disturbances += 1;
                }
            })
            .unwrap();
        eprintln!("{attempts} attempts, {disturbances} disturbances");
        let keys: HashSet<&Vec<Value>> = elements.iter().collect();
        assert_eq!(keys.len(), elements.len());
        assert_eq!(keys.len(), 5000 + 3 + 1);
        // The kernel also interrupts a dump if it enlarges the hash table meanwhile.
        assert!(attempts > 3 && disturbances == 3, "{attempts} attempts, {disturbances} disturbances");
    });
}

/// Elements of the map `ports4` with these ports.
fn numbered(ports: std::ops::Range<u16>) -> Transaction {
    let mut tx = Transaction::new();
    for port in ports {
        let id = ElementId::new(&table(), "ports4", vec![UDP, Value::Port(port)]);
        tx.add_element(Element::new(id).values(vec![v4("10.0.0.1"), Value::Port(80)]));
    }
    tx
}

#[test]
fn elements_that_stay_are_listed_while_others_change_all_the_time() {
    in_namespace(|| {
        let socket = Socket::open().unwrap();
        socket.commit(&everything(), None).unwrap();
        socket.commit(&numbered(0..6000), None).unwrap();
        let other = Socket::open().unwrap();
        let read = Cell::new(0_u16);
        let replace_one = || {
            let port = 5000 + read.get() % 1000;
            let mut tx = Transaction::new();
            tx.delete_element(ElementId::new(&table(), "ports4", vec![UDP, Value::Port(port)]));
            tx.append(numbered(port..port + 1));
            other.commit(&tx, None).unwrap();
        };
        let pass = |_: &ElementInfo| {
            read.set(read.get().wrapping_add(1));
            if read.get().is_multiple_of(501) {
                replace_one();
            }
            true
        };
        let found = socket.changing_elements(&table(), "ports4", pass).unwrap();
        let keys: HashSet<Vec<Value>> = found.into_iter().map(|element| element.key).collect();
        let missing = (0..5000).filter(|port| !keys.contains(&vec![UDP, Value::Port(*port)])).count();
        assert_eq!(missing, 0, "of {} elements", keys.len());
        let error = socket.changing_elements(&table(), "missing", |_| true).unwrap_err();
        assert!(error.is_not_found(), "{error}");
    });
}

#[test]
fn an_element_is_found_without_the_rest_of_its_set() {
    in_namespace(|| {
        let socket = Socket::open().unwrap();
        socket.commit(&everything(), None).unwrap();
        socket.commit(&numbered(0..6000), None).unwrap();
        let read = Cell::new(0);
        let find = |wanted: u16| {
            let pass = |element: &ElementInfo| {
                read.set(read.get() + 1);
                element.key == [UDP, Value::Port(wanted)] || wanted == 0
            };
            Socket::open().unwrap().find_element(&table(), "ports4", pass).unwrap()
        };
        assert!(find(0).is_some() && read.get() == 1);
        assert_eq!(find(5999).unwrap().key, [UDP, Value::Port(5999)]);
        assert_eq!(find(6001), None);
        // The unread lists have not disturbed this socket.
        assert!(socket.elements(&table(), "ports4").unwrap().len() >= 6000);
    });
}

#[test]
fn chains_are_listed_while_others_change_all_the_time() {
    in_namespace(|| {
        const COUNT: usize = 2000;
        let socket = Socket::open().unwrap();
        let mut tx = everything();
        for number in 0..COUNT {
            tx.add_chain(Chain::new(&table(), &format!("many-{number}")));
        }
        socket.commit(&tx, None).unwrap();
        let over = AtomicBool::new(false);
        let (all, encoded) = std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = Socket::open().unwrap();
                while !over.load(Ordering::Relaxed) {
                    let mut tx = Transaction::new();
                    tx.add_chain(Chain::new(&table(), "comes-and-goes"));
                    other.commit(&tx, None).unwrap();
                    let mut tx = Transaction::new();
                    tx.delete_chain(&table(), "comes-and-goes");
                    other.commit(&tx, None).unwrap();
                }
            });
            let listed = (socket.all_chains(), socket.encoded_chains());
            over.store(true, Ordering::Relaxed);
            listed
        });
        let is_one = |name: &str| name.starts_with("many-");
        assert_eq!(all.unwrap().iter().filter(|chain| is_one(&chain.name)).count(), COUNT);
        assert_eq!(encoded.unwrap().iter().filter(|chain| is_one(&chain.name)).count(), COUNT);
    });
}

#[test]
fn a_request_during_another_fails_at_once() {
    in_namespace(|| {
        let socket = Socket::open().unwrap();
        socket.commit(&everything(), None).unwrap();
        let mut errors = Vec::new();
        let elements = socket
            .fold_elements(&table(), "ports4", Vec::new, |found, element| {
                errors.extend(socket.generation().err().and_then(|error| error.errno()));
                found.push(element);
            })
            .unwrap();
        assert_eq!((elements.len(), errors), (1, vec![nix::errno::Errno::EDEADLK]));
        socket.generation().unwrap();
    });
}
