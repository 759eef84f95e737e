// SPDX-License-Identifier: MIT OR Apache-2.0

//! Plugins as processes.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::{CallOptions, Cancel, Exec, StderrSink};
use crate::error::CallError;
use crate::invoke::failure;
use crate::verbs::PluginCall;

/// The time for output that is still in the pipes after the end of the plugin: processes that it has started
/// may hold them open forever.
pub(crate) const GRACE: Duration = Duration::from_millis(200);
/// The interval of looks at the plugin where the kernel has no pidfd_open(2).
const STEP: Duration = Duration::from_millis(20);
/// Attempts to start a file that is being written, as during an upgrade, a second apart.
pub(crate) const ATTEMPTS: u32 = 6;

/// Runs plugins as processes, each in a process group of its own. At the time limit and on cancellation the
/// group is killed and the plugin reaped. Processes that leave the group (setsid(2)) are left running.
///
/// A process that the plugin leaves behind may hold its pipes open: that delays the result by 0.2 s at most.
#[derive(Debug, Clone, Copy, Default)]
pub struct Processes;

impl Exec for Processes {
    fn exec(&self, path: &Path, call: &PluginCall, options: &CallOptions) -> Result<Vec<u8>, CallError> {
        run(path, call, options, Group::Own)
    }
}

/// The process group of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// A new one, which is killed at the time limit.
    Own,
    /// The group of this process: a delegate is killed with the plugin that called it.
    Caller,
}

/// Runs a plugin. Its standard error goes to the options' sink or, if it succeeds, to that of this process.
pub(crate) fn run(
    path: &Path,
    call: &PluginCall,
    options: &CallOptions,
    group: Group,
) -> Result<Vec<u8>, CallError> {
    let begin = Instant::now();
    let deadline = begin.checked_add(options.limit);
    let mut run = start(path, call, options, deadline, group)?;
    let ended = run.wait(options, deadline);
    let (stdout, mut stderr) = (std::mem::take(&mut run.stdout), run.stderr.take());
    drop(run);
    stderr.flush();
    outcome(path, begin, ended, stdout, &stderr)
}

/// The result of a plugin that has ended or was killed.
pub(crate) fn outcome(
    path: &Path,
    begin: Instant,
    ended: Result<ExitStatus, CallError>,
    stdout: Vec<u8>,
    stderr: &Lines<'_>,
) -> Result<Vec<u8>, CallError> {
    let took = begin.elapsed().as_secs_f64() * 1e3;
    let shown = ended.as_ref().map_or_else(ToString::to_string, |status| status_text(*status));
    log::debug!("exec {}: {shown} in {took:.1} ms", path.display());
    let status = ended?;
    if status.success() {
        stderr.copy(path);
        return Ok(stdout);
    }
    Err(CallError::Failed(failure(&status_text(status), &stdout, &stderr.all)))
}

/// The command of a plugin's call, with pipes.
pub(crate) fn command(path: &Path, call: &PluginCall) -> Command {
    let mut command = Command::new(path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(call.env.iter().map(|(name, value)| (name, value)));
    command
}

/// Formats a status as Go does, which users and tools know.
pub(crate) fn status_text(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// A plugin's standard error, complete and line by line.
pub(crate) struct Lines<'a> {
    pub(crate) all: Vec<u8>,
    sink: Option<(&'a StderrSink, &'a PluginCall)>,
    /// The start of the line that is not complete yet.
    line: usize,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(options: &'a CallOptions, call: &'a PluginCall) -> Self {
        Self { all: Vec::new(), sink: options.stderr.as_ref().map(|sink| (sink, call)), line: 0 }
    }

    /// All that came so far; later lines go nowhere.
    fn take(&mut self) -> Self {
        Self { all: std::mem::take(&mut self.all), sink: self.sink.take(), line: self.line }
    }

    /// Appends what the plugin wrote, and passes complete lines on.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.all.extend_from_slice(bytes);
        while let Some(length) = self.all[self.line..].iter().position(|byte| *byte == b'\n') {
            self.pass(self.line + length);
            self.line += length + 1;
        }
    }

    /// Passes on the last line, which may have no line feed.
    pub(crate) fn flush(&mut self) {
        if self.line < self.all.len() {
            self.pass(self.all.len());
            self.line = self.all.len();
        }
    }

    /// Copies all to this process's standard error, unless there is a sink: messages for people are not lost.
    pub(crate) fn copy(&self, path: &Path) {
        if self.sink.is_none()
            && let Err(error) = io::stderr().write_all(&self.all)
        {
            log::debug!("copy the standard error of {}: {error}", path.display());
        }
    }

    fn pass(&self, end: usize) {
        if let Some((sink, call)) = self.sink {
            sink(call, &String::from_utf8_lossy(&self.all[self.line..end]));
        }
    }
}

/// Starts the plugin. Retries while its file is being written.
fn start<'a>(
    path: &Path,
    call: &'a PluginCall,
    options: &'a CallOptions,
    deadline: Option<Instant>,
    group: Group,
) -> Result<Run<'a>, CallError> {
    let mut command = command(path, call);
    if group == Group::Own {
        command.process_group(0);
    }
    let failed = |e: io::Error| CallError::Failed(failure(&format!("run {}: {e}", path.display()), &[], &[]));
    for attempt in 1.. {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && attempt < ATTEMPTS => {
                log::warn!("{} is being written, trying again", path.display());
                pause(options, deadline)?;
            }
            done => return Run::new(done.map_err(failed)?, call, options, group).map_err(failed),
        }
    }
    Err(CallError::TimedOut(options.limit))
}

/// Waits a second.
fn pause(options: &CallOptions, deadline: Option<Instant>) -> Result<(), CallError> {
    let second = Instant::now() + Duration::from_secs(1);
    let end = deadline.map_or(second, |deadline| deadline.min(second));
    let cancel = options.cancel.as_ref().map(|cancel| PollFd::new(cancel.as_fd(), PollFlags::POLLIN));
    let mut fds: Vec<PollFd<'_>> = cancel.into_iter().collect();
    poll_until(&mut fds, Some(end)).map_err(|e| CallError::Failed(failure(&e.to_string(), &[], &[])))?;
    if options.is_cancelled() {
        return Err(CallError::Cancelled);
    }
    if end < second { Err(CallError::TimedOut(options.limit)) } else { Ok(()) }
}

/// A running plugin.
struct Run<'a> {
    child: Child,
    group: Group,
    /// Readable when the plugin has ended; none where the kernel has no such descriptor.
    end: Option<OwnedFd>,
    reaped: bool,
    stdin: Option<ChildStdin>,
    unwritten: &'a [u8],
    stdout: Vec<u8>,
    stderr: Lines<'a>,
}

/// A descriptor that a run waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Wake,
    Stdin,
    Stdout,
    Stderr,
}

impl<'a> Run<'a> {
    fn new(
        mut child: Child,
        call: &'a PluginCall,
        options: &'a CallOptions,
        group: Group,
    ) -> io::Result<Self> {
        let stdin = child.stdin.take();
        let end = cni_kernel::process::pidfd(child.id());
        let end = end.inspect_err(|e| log::debug!("pidfd_open: {e}; looking every {STEP:?}")).ok();
        let run = Self {
            child,
            group,
            end,
            reaped: false,
            stdin,
            unwritten: &call.stdin,
            stdout: Vec::new(),
            stderr: Lines::new(options, call),
        };
        // A plugin may write before it has read all input: neither may block.
        if let Some(pipe) = &run.stdin {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(run)
    }

    /// Waits for the end of the plugin and of its output.
    fn wait(&mut self, options: &CallOptions, deadline: Option<Instant>) -> Result<ExitStatus, CallError> {
        let failed = |e: io::Error| CallError::Failed(failure(&format!("wait: {e}"), &[], &[]));
        let mut ended = None;
        let mut until = deadline;
        loop {
            self.serve(options, until).map_err(failed)?;
            if ended.is_none() {
                ended = self.child.try_wait().map_err(failed)?;
                if ended.is_some() {
                    self.reaped = true;
                    self.stdin = None;
                    until = Instant::now().checked_add(GRACE);
                }
            }
            let closed = self.child.stdout.is_none() && self.child.stderr.is_none();
            let late = until.is_some_and(|until| Instant::now() >= until);
            match ended {
                Some(status) if closed || late => return Ok(status),
                Some(_) => {}
                None if options.is_cancelled() => return Err(CallError::Cancelled),
                None if late => return Err(CallError::TimedOut(options.limit)),
                None => {}
            }
        }
    }

    /// Waits for an event and moves the data that is there.
    fn serve(&mut self, options: &CallOptions, until: Option<Instant>) -> io::Result<()> {
        for source in self.ready(options, until)? {
            let open = match source {
                Source::Wake => true,
                Source::Stdin => self.write(),
                Source::Stdout => read(&mut self.child.stdout, |bytes| self.stdout.extend_from_slice(bytes)),
                Source::Stderr => read(&mut self.child.stderr, |bytes| self.stderr.push(bytes)),
            };
            match source {
                _ if open => {}
                Source::Wake => {}
                Source::Stdin => self.stdin = None,
                Source::Stdout => self.child.stdout = None,
                Source::Stderr => self.child.stderr = None,
            }
        }
        Ok(())
    }

    fn ready(&self, options: &CallOptions, mut until: Option<Instant>) -> io::Result<Vec<Source>> {
        let mut all = vec![
            (Source::Stdin, self.stdin.as_ref().map(AsFd::as_fd), PollFlags::POLLOUT),
            (Source::Stdout, self.child.stdout.as_ref().map(AsFd::as_fd), PollFlags::POLLIN),
            (Source::Stderr, self.child.stderr.as_ref().map(AsFd::as_fd), PollFlags::POLLIN),
        ];
        if !self.reaped {
            all.push((Source::Wake, self.end.as_ref().map(AsFd::as_fd), PollFlags::POLLIN));
            all.push((Source::Wake, options.cancel.as_ref().map(Cancel::as_fd), PollFlags::POLLIN));
            if self.end.is_none() {
                let step = Instant::now() + STEP;
                until = Some(until.map_or(step, |until| until.min(step)));
            }
        }
        let present =
            all.into_iter().filter_map(|(source, fd, flags)| Some((source, PollFd::new(fd?, flags))));
        let (sources, mut fds): (Vec<Source>, Vec<PollFd<'_>>) = present.unzip();
        poll_until(&mut fds, until)?;
        let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
        Ok(sources.into_iter().zip(&fds).filter(|(_, fd)| is_ready(fd)).map(|(source, _)| source).collect())
    }

    /// Writes what the pipe takes. False at the end.
    fn write(&mut self) -> bool {
        let Some(pipe) = &mut self.stdin else { return false };
        match pipe.write(self.unwritten) {
            Ok(written) => {
                self.unwritten = self.unwritten.get(written..).unwrap_or_default();
                !self.unwritten.is_empty()
            }
            Err(error) if is_transient(&error) => true,
            // A plugin need not read its input; only its output counts.
            Err(error) => {
                log::debug!("write the configuration: {error}");
                false
            }
        }
    }
}

impl Drop for Run<'_> {
    /// Kills and reaps a plugin that has not ended.
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        kill(self.child.id(), self.group);
        // A process that the kernel does not let die yet must not block the caller.
        let deadline = Instant::now() + Duration::from_secs(1);
        let end = self.end.as_ref().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
        let waited = poll_until(end.into_iter().collect::<Vec<_>>().as_mut_slice(), Some(deadline));
        if let Err(error) = waited {
            log::debug!("wait for the end of a killed plugin: {error}");
        }
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        log::warn!("plugin process {} is killed but has not ended", self.child.id());
    }
}

/// Kills a plugin that has not been reaped: until then no other process gets its number.
pub(crate) fn kill(pid: u32, group: Group) {
    let Ok(pid) = i32::try_from(pid).map(Pid::from_raw) else { return };
    let done = match group {
        Group::Own => killpg(pid, Signal::SIGKILL),
        Group::Caller => nix::sys::signal::kill(pid, Signal::SIGKILL),
    };
    if let Err(errno) = done
        && errno != Errno::ESRCH
    {
        log::warn!("kill plugin process {pid}: {errno}");
    }
}

/// Reads what is there. False at the end of the pipe.
fn read(pipe: &mut Option<impl io::Read>, mut take: impl FnMut(&[u8])) -> bool {
    let Some(pipe) = pipe else { return false };
    let mut buffer = [0; 16 << 10];
    match pipe.read(&mut buffer) {
        Ok(0) => false,
        Ok(length) => {
            take(&buffer[..length]);
            true
        }
        Err(error) if is_transient(&error) => true,
        Err(error) => {
            log::debug!("read the output: {error}");
            false
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Waits for an event, at most until then.
fn poll_until(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<()> {
    let timeout = match until {
        None => PollTimeout::NONE,
        Some(until) => {
            // Rounded up: a wait that ends early would be repeated without a pause.
            let left = until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        }
    };
    match poll(fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
