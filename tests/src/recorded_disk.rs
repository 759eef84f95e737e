// SPDX-License-Identifier: GPL-2.0-or-later

//! A disk that records what is written to it, to see what a power cut would have left at any moment.
//!
//! ```text
//! ext4  ──▶  /dev/loopN  ──▶  FUSE file /run/recorded/disk  ──▶  this process: the content, and the list of events
//! ```
//!
//! The loop device turns a flush of the disk's cache into an fsync of the file, and waits for it. So whatever was written
//! before a [`DiskEvent::Flush`] is safe from there on, and of the later writes a power cut may keep any part.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, WriteFlags,
};

use crate::{Node, Random};

const FOLDER: &str = "/run/recorded";
const NAME: &str = "disk";
const FILE: INodeNo = INodeNo(2);
const TTL: Duration = Duration::from_secs(3600);
/// The size of the disk in bytes: enough for ext4 with a journal.
const SIZE: usize = 16 << 20;

/// The feature that a [`RecordedDisk`] needs, for [`crate::skip!`].
pub const RECORDED_DISKS: &str = "FUSE, loop devices and mkfs.ext4";

/// Something that the disk was asked to do.
#[derive(Debug)]
pub enum DiskEvent {
    Write {
        at: usize,
        data: Vec<u8>,
    },
    /// Everything that was written before must be on the disk.
    Flush,
}

/// A disk of a node with an ext4 file system.
pub struct RecordedDisk<'a> {
    node: &'a Node,
    device: String,
    /// The content before the first event.
    formatted: Vec<u8>,
    state: Arc<Mutex<State>>,
    session: Option<BackgroundSession>,
}

struct State {
    content: Vec<u8>,
    events: Vec<DiskEvent>,
}

struct Recorder(Arc<Mutex<State>>);

impl<'a> RecordedDisk<'a> {
    /// Makes the disk; none if the kernel or the machine lacks [`RECORDED_DISKS`].
    pub fn new(node: &'a Node) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
            return None;
        }
        let formatted = formatted(node)?;
        let state = Arc::new(Mutex::new(State { content: formatted.clone(), events: Vec::new() }));
        let recorder = Recorder(state.clone());
        let session = node.run(|| {
            std::fs::create_dir_all(FOLDER).expect("make a folder");
            fuser::spawn_mount(recorder, FOLDER, &Config::default())
        });
        let session = Some(session.ok()?);
        let mut disk = Self { node, device: String::new(), formatted, state, session };
        let output = node.try_cmd(&format!("losetup --find --show {FOLDER}/{NAME}"));
        output.stdout.trim().clone_into(&mut disk.device);
        (output.code == Some(0)).then_some(disk)
    }

    pub fn device(&self) -> &str {
        &self.device
    }

    /// The number of events up to now.
    pub fn position(&self) -> usize {
        self.state().events.len()
    }

    /// The positions right after each flush up to `end`.
    pub fn flushes(&self, end: usize) -> Vec<usize> {
        let state = self.state();
        let events = state.events.iter().take(end).enumerate();
        events.filter(|(_, event)| matches!(event, DiskEvent::Flush)).map(|(at, _)| at + 1).collect()
    }

    /// The content that a power cut after the first `position` events leaves. Of what was written after the last flush, the
    /// disk has stored a random part, in any order.
    pub fn after_power_cut(&self, position: usize, random: &mut Random) -> Vec<u8> {
        let state = self.state();
        let events = &state.events[..position];
        let is_flush = |event: &DiskEvent| matches!(event, DiskEvent::Flush);
        let safe = events.iter().rposition(is_flush).map_or(0, |at| at + 1);
        let mut content = self.formatted.clone();
        for (number, event) in events.iter().enumerate() {
            if let DiskEvent::Write { at, data } = event
                && (number < safe || random.below(2) == 0)
            {
                content[*at..at + data.len()].copy_from_slice(data);
            }
        }
        content
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }
}

impl fmt::Debug for RecordedDisk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedDisk")
            .field("device", &self.device)
            .field("events", &self.position())
            .finish()
    }
}

impl Drop for RecordedDisk<'_> {
    fn drop(&mut self) {
        if !self.device.is_empty() {
            // Its file system may be mounted still.
            self.node.try_cmd(&format!("umount --all-targets {}", self.device));
            self.node.try_cmd(&format!("losetup --detach {}", self.device));
        }
        if let Some(session) = self.session.take() {
            // The mount exists in the node's namespace only.
            let _ = self.node.run(|| session.umount_and_join());
        }
    }
}

/// An empty ext4 file system. No feature postpones work to a time when nothing is recorded.
fn formatted(node: &Node) -> Option<Vec<u8>> {
    let file = "/run/formatted";
    node.run(|| std::fs::File::create(file).and_then(|file| file.set_len(SIZE as u64))).expect("make a file");
    let options = "-q -F -b 1024 -E lazy_itable_init=0,lazy_journal_init=0";
    let output = node.try_run(&format!("mkfs.ext4 {options} {file}").split(' ').collect::<Vec<_>>())?;
    (output.code == Some(0)).then(|| node.run(|| std::fs::read(file)).expect("read it"))
}

fn attributes(ino: INodeNo) -> FileAttr {
    let is_file = ino == FILE;
    FileAttr {
        ino,
        size: if is_file { SIZE as u64 } else { 0 },
        blocks: if is_file { SIZE as u64 / 512 } else { 0 },
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_file { FileType::RegularFile } else { FileType::Directory },
        perm: if is_file { 0o600 } else { 0o700 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: 0,
        blksize: 4096,
    }
}

impl Recorder {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("not poisoned")
    }
}

impl Filesystem for Recorder {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&TTL, &attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let from = usize::try_from(offset).unwrap_or(SIZE).min(SIZE);
        let to = (from + size as usize).min(SIZE);
        reply.data(&self.state().content[from..to]);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let at = usize::try_from(offset).unwrap_or(SIZE);
        let mut state = self.state();
        match state.content.get_mut(at..at.saturating_add(data.len())) {
            None => reply.error(Errno::ENOSPC),
            Some(place) => {
                place.copy_from_slice(data);
                state.events.push(DiskEvent::Write { at, data: data.to_vec() });
                reply.written(u32::try_from(data.len()).expect("a request is smaller than 4 GiB"));
            }
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.state().events.push(DiskEvent::Flush);
        reply.ok();
    }
}
