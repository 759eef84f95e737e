// SPDX-License-Identifier: GPL-2.0-or-later

//! Tables that are deleted and created again and again are never reported as foreign.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cni_dataplane::node;
use cni_dataplane::node::OwnTable;
use cni_nftables::{Family, Socket, TableId, Transaction};
use slipway_tests::Node;

/// Reads the table while a thread repeatedly creates and deletes it. The reader fetches tables and chains separately,
/// so they may belong to two generations of the table. The reader must not conclude that another program made it.
#[test]
fn a_table_recreated_during_the_read_is_never_foreign() {
    const LOOKS: usize = 400;
    const LONGEST: Duration = Duration::from_secs(10);
    let space = Node::new();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            space.run(|| {
                let socket = Socket::open().expect("nf_tables");
                while !done.load(Ordering::SeqCst) {
                    node::repair_own_table().expect("no other process changes it");
                    let mut batch = Transaction::new();
                    batch.delete_table(&TableId::new(Family::Inet, "slipway"));
                    socket.commit(&batch, None).expect("delete the table");
                }
            });
        });
        let seen = space.run(|| {
            let mut seen = [0_usize; 2];
            let begun = Instant::now();
            // On a busy host, the other thread may not have run yet during the first reads.
            while (seen.contains(&0) || seen[0] + seen[1] < LOOKS) && begun.elapsed() < LONGEST {
                match node::own_table() {
                    Ok(OwnTable::Absent) => seen[0] += 1,
                    Ok(OwnTable::Ready | OwnTable::Damaged) => seen[1] += 1,
                    Err(error) => {
                        done.store(true, Ordering::SeqCst);
                        panic!("{error}");
                    }
                }
            }
            seen
        });
        done.store(true, Ordering::SeqCst);
        assert!(seen.iter().all(|times| *times > 0), "times seen absent and present: {seen:?}");
    });
}
