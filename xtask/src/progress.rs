//! A line per stage: live on a terminal, plain otherwise.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::workspace;

/// How often the live line is drawn.
const REDRAW: Duration = Duration::from_millis(200);
/// How often a stage that takes long says so where nobody can see a live line.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// How much of a failed stage's log is shown.
const TAIL_LINES: usize = 200;

/// Runs stages one after the other and keeps their times.
#[derive(Debug)]
pub struct Stages {
    started: Instant,
    live: bool,
    done: Vec<(String, Duration)>,
    logs: PathBuf,
}

/// A running stage's log: what its programs print goes there.
#[derive(Debug)]
pub struct Log {
    /// Open for appending.
    pub file: File,
    /// Its path.
    pub path: PathBuf,
}

impl Stages {
    /// Stages of the task `name`.
    ///
    /// # Errors
    /// The folder for logs cannot be made.
    pub fn new(name: &str) -> Result<Self> {
        let logs = workspace::scratch("logs")?.join(name);
        fs::create_dir_all(&logs).map_err(|e| Error::file("create the directory", &logs, e))?;
        Ok(Self { started: Instant::now(), live: io::stdout().is_terminal(), done: Vec::new(), logs })
    }

    /// Runs one stage. Its log is shown only when it fails. The text that the body returns is put
    /// behind the stage's name (`482 tests`).
    ///
    /// # Errors
    /// What the body returns, after the log's last lines were printed.
    pub fn run(&mut self, name: &str, body: impl FnOnce(&Log) -> Result<String>) -> Result<()> {
        let path = self.logs.join(format!("{}.log", name.replace([' ', '/'], "-")));
        let file = File::options().create(true).append(true).open(&path);
        let log = Log { file: file.map_err(|e| Error::file("open", &path, e))?, path };
        log.file.set_len(0).map_err(|e| Error::file("empty", &log.path, e))?;
        let begun = Instant::now();
        let (stop, stopped) = mpsc::channel::<()>();
        let (live, shown, watched) = (self.live, name.to_owned(), log.path.clone());
        let ticker = thread::spawn(move || tick(live, &shown, &watched, begun, &stopped));
        let result = body(&log);
        drop(stop);
        // The ticker only draws: whatever became of it, the stage is what it is.
        let _ = ticker.join();
        let took = begun.elapsed();
        self.done.push((name.to_owned(), took));
        match &result {
            Ok(note) => println!("  ok    {name:<22} {:>7}  {note}", seconds(took)),
            Err(_) => {
                println!("  FAIL  {name:<22} {:>7}", seconds(took));
                print_tail(&log.path);
            }
        }
        result.map(|_| ())
    }

    /// The closing line: how long everything took, and what took longest.
    pub fn summary(&self) -> String {
        let mut text = format!("{} stages in {}", self.done.len(), seconds(self.started.elapsed()));
        if let Some((name, took)) = self.done.iter().max_by_key(|(_, took)| *took) {
            // Writing to a String cannot fail.
            let _ = write!(text, ", the longest was {name} with {}", seconds(*took));
        }
        text
    }
}

/// Seconds with one decimal, or minutes from two minutes on.
pub(crate) fn seconds(took: Duration) -> String {
    match took.as_secs() {
        0..120 => format!("{:.1} s", took.as_secs_f64()),
        s => format!("{}:{:02} min", s / 60, s % 60),
    }
}

fn tick(live: bool, name: &str, log: &Path, begun: Instant, stopped: &mpsc::Receiver<()>) {
    let pause = if live { REDRAW } else { HEARTBEAT };
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let (took, last) = (seconds(begun.elapsed()), last_line(log));
        let last: String = last.chars().filter(|c| !c.is_control()).take(60).collect();
        if live {
            print!("\r\x1b[2K  ...   {name:<22} {took:>7}  {last}");
        } else {
            println!("  ...   {name:<22} {took:>7}  {last}");
        }
        let _ = io::stdout().flush();
    }
    if live {
        print!("\r\x1b[2K");
    }
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
}
