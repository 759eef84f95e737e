// SPDX-License-Identifier: GPL-2.0-or-later

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;

use super::line::timestamp;
use super::*;

fn settings(json: &str) -> Result<Option<LogSettings>, String> {
    serde_json::from_str::<LogKeys>(json)
        .map_err(|error| error.to_string())?
        .check()
        .map_err(|error| error.to_string())
}

#[test]
fn settings_are_read_or_refused_by_name() {
    assert_eq!(settings("{}"), Ok(None));
    assert_eq!(settings(r#"{"level": "debug"}"#), Ok(None));
    assert_eq!(settings(r#"{"later": 1}"#), Ok(None));
    let read = settings(r#"{"level": "debug", "file": "/var/log/a", "maxSize": 100000}"#).unwrap().unwrap();
    assert_eq!((read.level, read.max_size, read.journal), (LevelFilter::Debug, 100_000, false));
    assert_eq!(settings(r#"{"journal": true}"#).unwrap().unwrap().level, LevelFilter::Info);
    for (wrong, named) in [
        (r#"{"level": "loud", "journal": true}"#, "level"),
        (r#"{"file": "var/log/a"}"#, "file"),
        (r#"{"file": "/"}"#, "file"),
        (r#"{"file": "/a", "maxSize": 1}"#, "maxSize"),
    ] {
        assert!(settings(wrong).unwrap_err().contains(named), "{wrong}");
    }
}

#[test]
fn times_are_those_of_the_calendar() {
    for (seconds, wanted) in [
        (0, "1970-01-01T00:00:00.007Z"),
        (951_782_399, "2000-02-28T23:59:59.007Z"),
        (951_782_400, "2000-02-29T00:00:00.007Z"),
        (1_709_251_200, "2024-03-01T00:00:00.007Z"),
        (4_107_542_400, "2100-03-01T00:00:00.007Z"),
    ] {
        assert_eq!(timestamp(UNIX_EPOCH + Duration::new(seconds, 7_000_000)), wanted);
    }
}

#[test]
fn a_line_names_its_call_and_has_one_line_break() {
    let context = Context { plugin: "bridge".to_owned(), container: "a\nb".to_owned(), ..Context::EMPTY };
    let line = line(UNIX_EPOCH, log::Level::Debug, &context, &escaped("x\u{1b}[2J\u{202e}y\n"));
    let pid = std::process::id();
    assert_eq!(
        line,
        format!(
            "1970-01-01T00:00:00.000Z DEBUG pid={pid} plugin=bridge container=a\\nb: x\\u{{1b}}[2J\\u{{202e}}y\\n\n"
        )
    );
    assert_eq!(super::line(UNIX_EPOCH, log::Level::Info, &context, &"é".repeat(9000)).lines().count(), 1);
}

#[test]
fn a_nested_call_is_delegated_and_the_outer_one_returns() {
    let env = |command: &str| plugin::Env { command: command.to_owned(), ..plugin::Env::default() };
    let outer = Call::begin("bridge", &env("ADD"));
    assert!(!outer.is_delegated());
    let inner = Call::begin("host-local", &env("ADD"));
    assert!(inner.is_delegated());
    drop(inner);
    assert!(Call::begin("static", &env("ADD")).is_delegated());
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn a_full_file_is_renamed_and_two_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.log");
    let log = LogFile::new(&path, 100);
    for number in 0..40 {
        log.write(&format!("line {number:04}\n"));
    }
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 2);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let (older, newer) = (read(&dir.path().join("a.log.1")), read(&path));
    assert_eq!(older.len(), 100);
    assert!(newer.ends_with("line 0039\n") && newer.len() <= 100, "{newer}");
    assert_eq!(older.lines().last().map(|line| &line[..5]), Some("line "));
}

/// Links would lead the lines elsewhere; a FIFO would wait for a reader.
#[test]
fn other_files_than_our_own_plain_ones_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("target");
    std::fs::write(&target, "mine").unwrap();
    let [symlink, hard, fifo] = ["symlink", "hard", "fifo"].map(|name| dir.path().join(name));
    std::os::unix::fs::symlink(&target, &symlink).unwrap();
    std::fs::hard_link(&target, &hard).unwrap();
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [&symlink, &hard, &fifo, &dir.path().join("none/a.log"), &dir.path().to_path_buf()] {
        LogFile::new(path, 100).write("line\n");
    }
    assert_eq!(read(&target), "mine");
}

/// Threads take the place of processes, because each write opens the file itself.
#[test]
fn lines_of_eight_writers_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.log");
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let log = LogFile::new(&path, 20_000);
            scope.spawn(move || {
                for number in 0..200 {
                    log.write(&format!("{writer}-{number:04} {}\n", "x".repeat(20)));
                }
            });
        }
    });
    let text = read(&dir.path().join("a.log.1")) + &read(&path);
    assert!(text.lines().count() > 500, "{}", text.lines().count());
    for line in text.lines() {
        assert!(line.len() == 27 && line.ends_with(&"x".repeat(20)), "{line:?}");
    }
}

proptest! {
    #[test]
    fn any_message_is_one_line(message in any::<String>()) {
        let line = line(UNIX_EPOCH, log::Level::Info, &Context::EMPTY, &escaped(&message));
        prop_assert!(line.ends_with('\n') && line.matches(char::is_control).count() == 1);
    }
}
