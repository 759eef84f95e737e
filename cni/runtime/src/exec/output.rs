// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads what a plugin writes, in linear time and within bounds.

use std::io::{self, Write as _};
use std::path::Path;

use super::{CallOptions, StderrSink};
use crate::verbs::PluginCall;

/// The most bytes of a plugin's standard output. This is as much as a plugin accepts as its configuration, which
/// contains the result of the previous plugin.
pub(crate) const STDOUT_LIMIT: usize = 16 << 20;
/// How many bytes from the beginning of standard error are kept, and how many from its end.
pub(crate) const STDERR_KEPT: usize = 512 << 10;
/// How many bytes from the beginning of the output an error message shows, and how many from its end.
const SHOWN: usize = 8 << 10;
/// The longest line that the sink gets, in bytes.
const LONGEST_LINE: usize = 1 << 20;

/// A text of which only the beginning and the end are kept.
#[derive(Debug)]
pub(crate) struct Excerpt {
    kept: usize,
    beginning: Vec<u8>,
    end: Vec<u8>,
    left_out: usize,
}

impl Excerpt {
    /// An empty text, of which `kept` bytes at the beginning and at least as many at the end will be kept.
    pub(crate) fn new(kept: usize) -> Self {
        Self { kept, beginning: Vec::new(), end: Vec::new(), left_out: 0 }
    }

    /// An excerpt of this text.
    pub(crate) fn of(text: &[u8], kept: usize) -> Self {
        let mut excerpt = Self::new(kept);
        excerpt.push(text);
        excerpt
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.kept - self.beginning.len()));
        self.beginning.extend_from_slice(first);
        self.end.extend_from_slice(rest);
        // Only at twice the size, so that each byte is moved once on average.
        if self.end.len() > 2 * self.kept {
            let surplus = self.end.len() - self.kept;
            self.end.drain(..surplus);
            self.left_out += surplus;
        }
    }

    /// The text. Where bytes were left out, it says how many.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let Self { beginning, end, left_out, .. } = self;
        let gap = if left_out == 0 { String::new() } else { format!("\n[{left_out} bytes left out]\n") };
        [beginning, gap.into_bytes(), end].concat()
    }
}

/// A plugin's standard error: an excerpt, and line by line for the sink.
pub(super) struct Stderr<'a> {
    excerpt: Excerpt,
    sink: Option<(&'a StderrSink, &'a PluginCall)>,
    /// The beginning of a line that is not yet complete.
    line: Vec<u8>,
}

impl<'a> Stderr<'a> {
    pub(super) fn new(options: &'a CallOptions, call: &'a PluginCall) -> Self {
        let sink = options.stderr.as_ref().map(|sink| (sink, call));
        Self { excerpt: Excerpt::new(STDERR_KEPT), sink, line: Vec::new() }
    }

    /// Takes what the plugin has written, and passes complete lines on. A very long line is passed on in parts.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.excerpt.push(bytes);
        if self.sink.is_none() {
            return;
        }
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let content = part.strip_suffix(b"\n");
            self.line.extend_from_slice(content.unwrap_or(part));
            while self.line.len() > LONGEST_LINE {
                self.pass(boundary(&self.line, LONGEST_LINE));
            }
            if content.is_some() {
                self.pass(self.line.len());
            }
        }
    }

    /// Returns the excerpt. The last line is passed on even if it has no line feed.
    pub(super) fn finish(mut self) -> Vec<u8> {
        if !self.line.is_empty() {
            self.pass(self.line.len());
        }
        self.excerpt.into_bytes()
    }

    fn pass(&mut self, length: usize) {
        if let Some((sink, call)) = self.sink {
            sink(call, &String::from_utf8_lossy(&self.line[..length]));
        }
        self.line.drain(..length);
    }
}

/// What a plugin printed, as a part of an error message.
pub(crate) fn shown(output: &[u8]) -> String {
    String::from_utf8_lossy(&Excerpt::of(output, SHOWN).into_bytes()).into_owned()
}

/// The last position up to `end` that does not split a UTF-8 character, or `end` if there is none nearby.
fn boundary(text: &[u8], end: usize) -> usize {
    let is_start = |at: &usize| text.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    (end.saturating_sub(3)..=end).rev().find(is_start).filter(|at| *at > 0).unwrap_or(end)
}

/// Copies a plugin's standard error to that of this process, so that messages for people are not lost.
pub(super) fn copy(path: &Path, stderr: &[u8]) {
    if let Err(error) = io::stderr().write_all(stderr) {
        log::debug!("copy the standard error of {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;

    use super::*;
    use crate::verbs::Command;

    fn call() -> PluginCall {
        let plugin = "bridge".to_owned();
        PluginCall { plugin, command: Command::Add, env: Vec::new(), stdin: Vec::new(), undo: false }
    }

    /// The lines that a sink gets, and the excerpt.
    fn written(pieces: &[&[u8]]) -> (Vec<String>, Vec<u8>) {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&lines);
        let options = CallOptions::new().stderr(move |_, line| kept.lock().unwrap().push(line.to_owned()));
        let call = call();
        let mut stderr = Stderr::new(&options, &call);
        pieces.iter().for_each(|piece| stderr.push(piece));
        let excerpt = stderr.finish();
        let lines = lines.lock().unwrap().clone();
        (lines, excerpt)
    }

    #[test]
    fn a_line_without_an_end_is_passed_on_in_parts_and_kept_in_part() {
        let piece = vec![b'x'; 16 << 10];
        let pieces = vec![piece.as_slice(); (60 << 20) / piece.len()];
        let (lines, excerpt) = written(&pieces);
        assert!(lines.iter().all(|line| line.len() <= LONGEST_LINE));
        assert_eq!(lines.iter().map(String::len).sum::<usize>(), 60 << 20);
        assert!(excerpt.len() < 4 * STDERR_KEPT, "{} bytes are kept", excerpt.len());
        let text = String::from_utf8(excerpt).unwrap();
        let left_out: usize = text.lines().nth(1).unwrap()[1..].split(' ').next().unwrap().parse().unwrap();
        let shown = text.bytes().filter(|byte| *byte == b'x').count();
        assert_eq!(shown + left_out, 60 << 20);
    }

    #[test]
    fn no_character_is_divided_between_parts() {
        let text = "ü".repeat(LONGEST_LINE);
        let odd = format!("x{text}");
        let (lines, _) = written(&[odd.as_bytes()]);
        assert!(lines.len() > 1 && lines.concat() == odd);
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_the_pieces(text in "[ab\n]{0,60}", at in 0..60usize) {
            let (first, second) = text.as_bytes().split_at(at.min(text.len()));
            let (lines, excerpt) = written(&[first, second]);
            let wanted: Vec<&str> = text.lines().collect();
            prop_assert_eq!(lines, wanted);
            prop_assert_eq!(excerpt, text.as_bytes());
        }

        #[test]
        fn beginning_and_end_are_kept(pieces in prop::collection::vec("[a-z]{0,40}", 0..40)) {
            let mut excerpt = Excerpt::new(32);
            pieces.iter().for_each(|piece| excerpt.push(piece.as_bytes()));
            let (all, left_out) = (pieces.concat(), excerpt.left_out);
            let kept = String::from_utf8(excerpt.into_bytes()).unwrap();
            prop_assert!(kept.len() <= 128);
            match left_out {
                0 => prop_assert_eq!(kept, all),
                _ => {
                    prop_assert!(kept.starts_with(&all[..32]) && kept.ends_with(&all[all.len() - 32..]));
                    let gap = format!("\n[{left_out} bytes left out]\n");
                    prop_assert!(kept.contains(&gap));
                }
            }
        }
    }
}
