// SPDX-License-Identifier: GPL-2.0-or-later

//! The errors that system calls may give for reasons outside the program.

use crate::interrupt::{Point, every_call};
use crate::random::Random;
use crate::sample::{one_in, sample, seed};

/// Left out are calls that only ask for memory, because a program without memory is aborted; waits for other threads,
/// which cannot fail; and `close`, because strace would leave the descriptor open.
const ERRORS: &[(&str, &[&str])] = &[
    ("bind", &["EPERM", "ENOMEM"]),
    ("bpf", &["EPERM", "ENOMEM", "EAGAIN", "EMFILE"]),
    ("clone", &["EAGAIN", "ENOMEM"]),
    ("clone3", &["EAGAIN", "ENOMEM"]),
    ("copy_file_range", &["ENOSPC", "EIO", "ENOMEM"]),
    ("epoll_create1", &["EMFILE", "ENOMEM"]),
    ("eventfd2", &["EMFILE", "ENOMEM"]),
    ("fchmod", &["EPERM", "EIO"]),
    ("flock", &["ENOLCK", "EINTR"]),
    ("fsync", &["EIO", "ENOSPC"]),
    ("ftruncate", &["EIO", "ENOSPC", "EINTR"]),
    ("getdents64", &["EIO", "ENOMEM"]),
    ("ioctl", &["EPERM", "ENOMEM"]),
    ("linkat", &["ENOSPC", "EIO", "EPERM"]),
    ("mkdir", &["ENOSPC", "EIO", "EPERM"]),
    ("mkdirat", &["ENOSPC", "EIO", "EPERM"]),
    ("mount", &["EPERM", "ENOMEM"]),
    ("openat", &["EMFILE", "ENOMEM", "EIO", "EPERM", "EINTR", "ENOSPC"]),
    ("pipe2", &["EMFILE"]),
    ("pwrite64", &["ENOSPC", "EIO", "EINTR"]),
    ("read", &["EIO", "EINTR", "ENOMEM"]),
    ("recvfrom", &["ENOBUFS", "ENOMEM", "EINTR", "EAGAIN"]),
    ("recvmsg", &["ENOBUFS", "ENOMEM", "EINTR", "EAGAIN"]),
    ("rename", &["ENOSPC", "EIO", "EPERM"]),
    ("renameat", &["ENOSPC", "EIO", "EPERM"]),
    ("renameat2", &["ENOSPC", "EIO", "EPERM"]),
    ("sendmsg", &["EPERM", "ENOBUFS", "ENOMEM", "EINTR", "EAGAIN"]),
    ("sendto", &["EPERM", "ENOBUFS", "ENOMEM", "EINTR", "EAGAIN"]),
    ("setns", &["EPERM", "ENOMEM"]),
    ("setsockopt", &["EPERM", "ENOMEM", "ENOBUFS"]),
    ("socket", &["EPERM", "EMFILE", "ENOBUFS", "ENOMEM"]),
    ("socketpair", &["EMFILE", "ENOMEM"]),
    ("symlinkat", &["ENOSPC", "EIO", "EPERM"]),
    ("unlink", &["EIO", "EPERM"]),
    ("unlinkat", &["EIO", "EPERM"]),
    ("unshare", &["EPERM", "ENOMEM", "ENOSPC"]),
    ("utimensat", &["EPERM", "EIO"]),
    ("vfork", &["EAGAIN", "ENOMEM"]),
    ("write", &["ENOSPC", "EIO", "EINTR", "EAGAIN"]),
];

/// The calls to let fail, each with an error that it can give: one in `step` of them, with one error. The seed of the
/// sample, and `salt`, choose which. With [`every_call`] these are all calls with each of their errors. [`sample`] then
/// takes a part.
pub fn failures(found: Vec<Point>, salt: usize, step: usize) -> Vec<(Point, &'static str)> {
    let known = found.into_iter().filter_map(|point| {
        let (_, errors) = ERRORS.iter().find(|(name, _)| *name == point.syscall)?;
        Some((point, *errors))
    });
    if every_call() {
        return sample(
            known.flat_map(|(point, errors)| errors.iter().map(move |error| (point.clone(), *error))),
        );
    }
    let mut random = Random::new(seed() as u64);
    let one = known.map(move |(point, errors)| (point, *random.pick(errors)));
    sample(one_in(one, salt, step))
}
