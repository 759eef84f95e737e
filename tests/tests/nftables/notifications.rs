// SPDX-License-Identifier: GPL-2.0-or-later

//! The kernel's notifications about commits.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use cni_nftables::notify::{Generation, Notification, Notifications, TableChange};
use cni_nftables::{DataType, Element, ElementId, Family, Set, Socket, Table, TableId, Transaction, Value};
use slipway_tests::{in_namespace, within};

use super::{add_sets, nft, nft_load, table};

/// Waits for the next commit.
fn next_generation(notifications: &mut Notifications) -> Generation {
    match notifications.next(within(Duration::from_secs(10))).unwrap() {
        Some(Notification::Generation(generation)) => generation,
        other => panic!("{other:?}"),
    }
}

/// Runs nft to its end and returns its process ID.
fn spawn_nft(args: &[&str]) -> u32 {
    let mut child = Command::new("nft").args(args).spawn().expect("start nft");
    let status = child.wait().unwrap();
    assert!(status.success(), "nft {args:?}");
    child.id()
}

#[test]
fn commits_are_reported_with_their_tables_and_process() {
    in_namespace(|| {
        nft_load(
            "table inet t { set s { type ipv4_addr; }; chain c { counter; }; }
             table ip other { map m { type ipv4_addr : mark; elements = { 192.0.2.1 : 1 }; }; }",
        );
        let socket = Socket::open().unwrap();
        let mut notifications = Notifications::open().unwrap();
        assert_eq!(notifications.read().unwrap(), None, "nothing changed yet");
        let other = TableId::new(Family::Ip, "other");
        let mut commits = vec![
            (
                vec!["add", "element", "inet", "t", "s", "{ 192.0.2.1, 192.0.2.2 }"],
                vec![(table(), TableChange::ElementsAdded)],
            ),
            (
                vec!["delete", "element", "inet", "t", "s", "{ 192.0.2.1 }"],
                vec![(table(), TableChange::ElementsDeleted)],
            ),
            (vec!["flush", "chain", "inet", "t", "c"], vec![(table(), TableChange::Contents)]),
            (
                vec!["delete", "table", "ip", "other; add element inet t s { 192.0.2.3 }"],
                vec![(table(), TableChange::ElementsAdded), (other.clone(), TableChange::Deleted)],
            ),
            (
                vec!["flush table inet t; delete table inet t; add table inet t"],
                vec![(table(), TableChange::Contents)],
            ),
            (vec!["add", "table", "ip", "other"], vec![(other.clone(), TableChange::Contents)]),
        ];
        commits.push((
            vec!["flush", "ruleset"],
            vec![(table(), TableChange::Deleted), (other, TableChange::Deleted)],
        ));
        for (args, tables) in commits {
            let pid = spawn_nft(&args);
            let seen = next_generation(&mut notifications);
            assert_eq!(seen.tables, tables.into_iter().collect(), "nft {args:?}");
            let process = seen.process.unwrap();
            assert_eq!((process.pid, process.name.as_str()), (pid, "nft"), "nft {args:?}");
            assert_eq!(seen.number, socket.generation().unwrap(), "nft {args:?}");
        }
        assert_eq!(notifications.read().unwrap(), None);
    });
}

/// The process's own commits are reported like all others. A refused one is not.
#[test]
fn own_commits_are_reported_and_refused_ones_are_not() {
    in_namespace(|| {
        let socket = Socket::open().unwrap();
        let mut notifications = Notifications::open().unwrap();
        let mut tx = Transaction::new();
        tx.add_table(Table::new(&table()));
        add_sets(&mut tx);
        socket.dry_run(&tx).unwrap();
        assert_eq!(notifications.read().unwrap(), None);
        socket.commit(&tx, None).unwrap();
        let seen = next_generation(&mut notifications);
        assert_eq!(seen.tables, [(table(), TableChange::Contents)].into());
        let own = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        assert_eq!(seen.process.unwrap().name, own.trim_end());

        let mut tx = Transaction::new();
        for number in 0..20_000_u32 {
            let address = Value::Ipv4(Ipv4Addr::from_bits(0x0a00_0000 + number));
            tx.add_element(Element::new(ElementId::new(&table(), "nets_plain", vec![address])));
        }
        let mut sets = Transaction::new();
        sets.add_set(Set::new(&table(), "nets_plain", &[DataType::Ipv4Addr]));
        socket.commit(&sets, None).unwrap();
        next_generation(&mut notifications);
        socket.commit(&tx, None).unwrap();
        let seen = next_generation(&mut notifications);
        assert_eq!(seen.tables, [(table(), TableChange::ElementsAdded)].into(), "20,000 elements");
    });
}

#[test]
fn a_slow_reader_of_commits_sees_the_loss_and_all_that_follows() {
    in_namespace(|| {
        let socket = Socket::open().unwrap();
        let mut notifications = Notifications::open().unwrap();
        notifications.set_receive_buffer(4096).unwrap();
        for number in 0..50 {
            let mut tx = Transaction::new();
            tx.add_table(Table::new(&TableId::new(Family::Ip, &format!("t{number}"))));
            socket.commit(&tx, None).unwrap();
        }
        assert_eq!(notifications.read().unwrap(), Some(Notification::Lost));
        assert_eq!(notifications.read().unwrap(), None, "nothing from before");
        // If the queue had not been emptied, the kernel would drop this notification.
        nft(&["delete", "table", "ip", "t7"]);
        let seen = next_generation(&mut notifications);
        assert_eq!(seen.tables, [(TableId::new(Family::Ip, "t7"), TableChange::Deleted)].into());
        assert_eq!(seen.number, socket.generation().unwrap());
    });
}
