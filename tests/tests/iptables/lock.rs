// SPDX-License-Identifier: GPL-2.0-or-later

//! The lock of the legacy tools, for which the backend waits with a time limit.

use std::fs::File;
use std::time::{Duration, Instant};

use crate::Stage;

/// A node with the legacy variant, whose lock this process holds.
fn locked() -> (Stage, File) {
    let stage = Stage::new("legacy");
    let file = stage.node.run(|| {
        let file = File::create("/run/xtables.lock").expect("make the lock file");
        file.lock().expect("take the lock");
        file
    });
    (stage, file)
}

#[test]
fn the_error_about_a_held_lock_names_its_holder() {
    let (stage, lock) = locked();
    let began = Instant::now();
    let error = stage.plain("ADD").run().error();
    let waited = began.elapsed();
    assert_eq!(error.code, 11, "{error:?}");
    let holder = format!("the lock of xtables is held by process {} (", std::process::id());
    assert!(error.msg.contains(&holder), "{error:?}");
    assert!((Duration::from_secs(10)..Duration::from_secs(30)).contains(&waited), "{waited:?}");
    drop(lock);
    stage.assert_gone();
}

#[test]
fn an_add_waits_for_a_lock_that_is_released() {
    let (stage, lock) = locked();
    let holder = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(2));
        drop(lock);
    });
    let call = stage.plain("ADD");
    call.ok();
    holder.join().expect("the holder ends");
    call.clone().verb("CHECK").ok();
    call.verb("DEL").ok();
    stage.assert_gone();
}
