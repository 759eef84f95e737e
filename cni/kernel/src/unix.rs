// SPDX-License-Identifier: MIT OR Apache-2.0

//! Unix sockets in the file system that only root may use, and descriptors that are sent through them.
#![allow(unsafe_code, reason = "takes over received descriptors")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use nix::sys::stat::{Mode, umask};

/// The most descriptors in a datagram; the kernel's limit is 253 (`SCM_MAX_FD`).
const MOST: usize = 64;

/// Binds a socket that only root may use, replacing one that a process has left when it ended.
///
/// # Errors
/// Another file has the path, or the system refuses the socket.
pub fn bind<T>(path: &Path, bind: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        _ => {}
    }
    // The file must have its final mode from the start, so that no other user can connect before a chmod(2).
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = bind(path);
    umask(before);
    bound
}

/// Sends descriptors to the process that has bound a datagram socket, without waiting. The sender's own descriptors
/// stay open.
///
/// # Errors
/// No process has the socket, or its queue is full. The receiver may have received only the first descriptors.
pub fn send_descriptors(socket: &Path, descriptors: &[OwnedFd]) -> io::Result<()> {
    let (own, address) = (UnixDatagram::unbound()?, UnixAddr::new(socket)?);
    for part in descriptors.chunks(MOST) {
        let numbers: Vec<RawFd> = part.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        sendmsg(own.as_raw_fd(), &[IoSlice::new(&[0])], &rights, MsgFlags::MSG_DONTWAIT, Some(&address))?;
    }
    Ok(())
}

/// Receives the descriptors of one datagram. They are closed on exec.
///
/// # Errors
/// The system's error, `EAGAIN` if none came within the socket's time limit.
pub fn receive_descriptors(socket: &UnixDatagram) -> io::Result<Vec<OwnedFd>> {
    let mut byte = [0; 1];
    let mut space = cmsg_space!([RawFd; MOST]);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let message =
        recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let numbers = message.cmsgs()?.filter_map(|control| match control {
        ControlMessageOwned::ScmRights(numbers) => Some(numbers),
        _ => None,
    });
    // SAFETY: the kernel has made these descriptors for this message; nothing else knows their numbers.
    Ok(numbers.flatten().map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_socket_that_was_left_is_replaced_and_another_file_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("socket");
        for _ in 0..2 {
            bind(&path, |path| UnixDatagram::bind(path)).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "text").unwrap();
        assert_eq!(
            bind(&path, |path| UnixDatagram::bind(path)).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
    }

    #[test]
    fn descriptors_reach_the_other_process() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("socket");
        let files: Vec<OwnedFd> = (0..MOST + 1)
            .map(|number| {
                let mut file = tempfile::tempfile().unwrap();
                write!(file, "{number}").unwrap();
                file.into()
            })
            .collect();
        assert_eq!(send_descriptors(&path, &files).unwrap_err().kind(), io::ErrorKind::NotFound);
        let inbox = UnixDatagram::bind(&path).unwrap();
        inbox.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        send_descriptors(&path, &files).unwrap();
        drop(files);
        let mut received = Vec::new();
        while let Ok(part) = receive_descriptors(&inbox) {
            received.extend(part);
        }
        let texts: Vec<String> = received
            .into_iter()
            .map(|descriptor| {
                let (mut file, mut text) = (File::from(descriptor), String::new());
                file.rewind().unwrap();
                file.read_to_string(&mut text).unwrap();
                text
            })
            .collect();
        assert_eq!(texts, (0..MOST + 1).map(|number| number.to_string()).collect::<Vec<_>>());
        drop(inbox);
        let file = tempfile::tempfile().unwrap();
        assert_eq!(
            send_descriptors(&path, &[file.into()]).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }
}
