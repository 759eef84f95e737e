// SPDX-License-Identifier: MIT OR Apache-2.0

//! A line per stage: live on a terminal, plain otherwise.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::files;
use crate::workspace;

/// The time between two drawings of the live line.
const REDRAW: Duration = Duration::from_millis(200);
/// The time between two lines of a running stage where there is no terminal.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// The number of lines that are shown of a failed stage's log.
const TAIL_LINES: usize = 200;
/// The number of stages that the summary names.
const LONGEST: usize = 4;
/// The number of characters for the last log lines of all running stages.
const LINE: usize = 60;

/// The stages of a task and their times. Stages may overlap: each prints its line when it ends.
#[derive(Debug)]
pub struct Stages {
    started: Instant,
    live: bool,
    logs: PathBuf,
    done: Mutex<Vec<(String, Duration)>>,
    /// The errors of the stages that failed, for people.
    failed: Mutex<Vec<String>>,
    running: Mutex<Vec<Running>>,
}

/// A stage that has not ended.
#[derive(Debug)]
struct Running {
    name: String,
    begun: Instant,
    log: PathBuf,
}

/// The log of a stage, for the output of its programs.
#[derive(Debug)]
pub struct Log {
    /// Open for appending.
    pub file: File,
    pub path: PathBuf,
}

impl Stages {
    /// Stages of the task `name`.
    pub fn new(name: &str) -> Result<Self> {
        let logs = workspace::scratch("logs")?.join(name);
        files::create_dir(&logs)?;
        let live = io::stdout().is_terminal();
        Ok(Self {
            started: Instant::now(),
            live,
            logs,
            done: Mutex::default(),
            failed: Mutex::default(),
            running: Mutex::default(),
        })
    }

    /// Runs one stage and prints its line: the name, the time, and the text that `body` returns (`482 tests`).
    ///
    /// # Errors
    /// The error of `body`. If a command failed, the last lines of the log are printed first.
    pub fn run(&self, name: &str, body: impl FnOnce(&Log) -> Result<String>) -> Result<()> {
        let path = self.logs.join(format!("{}.log", name.replace([' ', '/'], "-")));
        let file = File::options().create(true).append(true).open(&path);
        let log = Log { file: file.map_err(|e| Error::file("open", &path, e))?, path };
        log.file.set_len(0).map_err(|e| Error::file("empty", &log.path, e))?;
        let begun = Instant::now();
        lock(&self.running).push(Running { name: name.to_owned(), begun, log: log.path.clone() });
        let (stop, stopped) = mpsc::channel::<()>();
        let result = thread::scope(|scope| {
            scope.spawn(move || self.tick(name, &stopped));
            let result = body(&log);
            drop(stop);
            result
        });
        let took = begun.elapsed();
        lock(&self.done).push((name.to_owned(), took));
        // Held while the line is printed, so that no other stage draws into it.
        let mut running = lock(&self.running);
        running.retain(|stage| stage.name != name);
        self.clear_line();
        match &result {
            Ok(note) => println!("  ok    {name:<22} {:>9}  {note}", seconds(took)),
            Err(error) => {
                println!("  FAIL  {name:<22} {:>9}", seconds(took));
                lock(&self.failed).push(format!("{name}: {error}"));
                if matches!(error, Error::Command { .. }) {
                    print_tail(&log.path);
                }
            }
        }
        result.map(|_| ())
    }

    /// The closing line: the time of all stages, and the longest ones.
    pub fn summary(&self) -> String {
        let mut done = lock(&self.done).clone();
        done.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        let longest: Vec<String> =
            done.iter().take(LONGEST).map(|(name, took)| format!("{name} {}", seconds(*took))).collect();
        format!("{} stages in {} ({})", done.len(), seconds(self.started.elapsed()), longest.join(", "))
    }

    /// The errors of all stages that failed, in the order in which these ended.
    pub fn failures(&self) -> Vec<String> {
        lock(&self.failed).clone()
    }

    /// Shows that the stage `name` runs, until it ends.
    fn tick(&self, name: &str, stopped: &mpsc::Receiver<()>) {
        let pause = if self.live { REDRAW } else { HEARTBEAT };
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let running = lock(&self.running);
            if !self.live {
                running.iter().filter(|stage| stage.name == name).for_each(|stage| {
                    println!("  ...   {}", stage.line(60));
                });
            } else if running.first().is_some_and(|first| first.name == name) {
                // All running stages share one line, which the oldest of them draws.
                let width = LINE.div_ceil(running.len());
                let parts: Vec<String> = running.iter().map(|stage| stage.line(width)).collect();
                print!("\r\x1b[2K  ...   {}", parts.join(" | "));
            }
            let _ = io::stdout().flush();
        }
    }

    fn clear_line(&self) {
        if self.live {
            print!("\r\x1b[2K");
        }
    }
}

impl Running {
    /// The stage's name, its time, and the beginning of the last line in its log.
    fn line(&self, width: usize) -> String {
        let last: String = last_line(&self.log).chars().filter(|c| !c.is_control()).take(width).collect();
        format!("{:<22} {:>9}  {last}", self.name, seconds(self.begun.elapsed()))
    }
}

/// Seconds with one decimal, or minutes from two minutes on.
pub fn seconds(took: Duration) -> String {
    match took.as_secs() {
        0..120 => format!("{:.1} s", took.as_secs_f64()),
        s => format!("{}:{:02} min", s / 60, s % 60),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn last_line(path: &Path) -> String {
    let tail = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let end = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(end.saturating_sub(400)))?;
        let mut bytes = Vec::new();
        file.take(400).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned())
    };
    tail().unwrap_or_default()
}

fn print_tail(path: &Path) {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL_LINES);
    if from > 0 {
        println!("        … {from} earlier lines in {}", path.display());
    }
    for line in &lines[from..] {
        println!("        {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(seconds(Duration::from_millis(1234)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(125)), "2:05 min");
    }

    #[test]
    fn overlapping_stages_are_all_summed_up() {
        let stages = Stages::new("progress-test").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| stages.run("one", |_| Ok(String::new())));
            assert!(stages.run("two", |_| Err(Error::Failed("broken".to_owned()))).is_err());
            assert!(stages.run("three", |_| Err(Error::Failed("torn".to_owned()))).is_err());
        });
        assert_eq!(stages.failures(), ["two: broken", "three: torn"]);
        let summary = stages.summary();
        assert!(summary.starts_with("3 stages in ") && summary.contains("one ") && summary.contains("two "));
        assert!(lock(&stages.running).is_empty());
    }
}
