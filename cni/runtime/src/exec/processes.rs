// SPDX-License-Identifier: MIT OR Apache-2.0

//! Plugins as processes.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cni_spec::CniError;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin};
use tokio::time::{sleep, timeout};

use super::output::{STDOUT_LIMIT, Stderr, copy};
use super::{CallFuture, CallOptions, Exec};
use crate::error::CallError;
use crate::invoke::{failure, find};
use crate::verbs::{Outcome, PluginCall};

/// How long output that is still in the pipes is read after the plugin has ended, because processes that the plugin
/// has started may hold the pipes open forever.
const GRACE: Duration = Duration::from_millis(200);
/// How long to wait for a killed plugin, because a process that the kernel does not let die yet must not block the
/// caller.
const REAPING: Duration = Duration::from_secs(1);
/// How often the start of a file that is being written, as during an upgrade, is attempted. There is a second between
/// attempts.
const ATTEMPTS: u32 = 6;

/// Runs plugins as processes, each in a process group of its own. When the time limit has passed or the call is
/// cancelled, the group is killed and the plugin is reaped. Processes that have left the group (setsid(2)) keep
/// running. Dropping the future kills the group, too, and tokio reaps the plugin.
///
/// A process that the plugin leaves behind may keep its pipes open, which delays the result by at most 0.2 s.
#[derive(Debug, Clone, Copy, Default)]
pub struct Processes;

impl Exec for Processes {
    fn exec<'a>(
        &'a self,
        directories: &'a [PathBuf],
        call: &'a PluginCall,
        options: &'a CallOptions,
    ) -> CallFuture<'a> {
        Box::pin(async move {
            let path = find(&call.plugin, directories).map_err(CallError::NotFound)?;
            run(&path, call, options, Group::Own).await
        })
    }
}

/// The process group of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// A new group, which is killed when the time limit has passed.
    Own,
    /// The group of this process, so that a delegate is killed together with the plugin that called it.
    Caller,
}

/// Runs a plugin. Its standard error goes to the sink in the options or, if the plugin succeeds, to that of this
/// process.
pub(crate) async fn run(path: &Path, call: &PluginCall, options: &CallOptions, group: Group) -> Outcome {
    let begin = Instant::now();
    let (mut stdout, mut stderr) = (Vec::new(), Stderr::new(options, call));
    let ended = {
        let stop = stop(options);
        tokio::pin!(stop);
        let failed = |operation: &'static str| {
            move |error: io::Error| {
                CallError::Failed(failure(&format!("{operation} {}: {error}", path.display()), &[], &[]))
            }
        };
        let mut running = tokio::select! {
            biased;
            started = Running::start(command(path, call), group) => started.map_err(failed("run"))?,
            error = &mut stop => return Err(error),
        };
        let ended = tokio::select! {
            biased;
            ended = running.finish(
                &call.stdin,
                |bytes| stdout.extend_from_slice(bytes),
                |bytes| stderr.push(bytes),
            ) => ended.map_err(|error| match error.kind() {
                io::ErrorKind::FileTooLarge => {
                    CallError::Failed(CniError::internal(format!("{}: {error}", path.display())))
                }
                _ => failed("wait for")(error),
            }),
            error = &mut stop => Err(error),
        };
        if ended.is_err() {
            running.kill().await;
        }
        ended
    };
    let stderr = stderr.finish();
    let outcome = outcome(path, begin, ended, stdout, &stderr);
    if outcome.is_ok() && options.stderr.is_none() {
        copy(path, &stderr);
    }
    outcome
}

/// Waits for the cancellation or the time limit.
async fn stop(options: &CallOptions) -> CallError {
    let cancelled = async {
        match &options.cancel {
            Some(cancel) => cancel.cancelled().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = cancelled => CallError::Cancelled,
        () = sleep(options.limit) => CallError::TimedOut(options.limit),
    }
}

/// The result of a plugin that has ended or was killed.
fn outcome(
    path: &Path,
    begin: Instant,
    ended: Result<ExitStatus, CallError>,
    stdout: Vec<u8>,
    stderr: &[u8],
) -> Result<Vec<u8>, CallError> {
    let took = begin.elapsed().as_secs_f64() * 1e3;
    let shown = ended.as_ref().map_or_else(ToString::to_string, |status| status_text(*status));
    log::debug!("exec {}: {shown} in {took:.1} ms", path.display());
    let status = ended?;
    if status.success() {
        return Ok(stdout);
    }
    Err(CallError::Failed(failure(&status_text(status), &stdout, stderr)))
}

/// The command of a plugin's call, with pipes.
fn command(path: &Path, call: &PluginCall) -> std::process::Command {
    let mut command = std::process::Command::new(path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(call.env.iter().map(|(name, value)| (name, value)));
    command
}

/// Formats a status like Go does, because users and tools know that form.
pub(crate) fn status_text(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// A running program. Dropping this value kills the program and its group.
pub(crate) struct Running {
    child: Child,
    group: Group,
}

impl Running {
    /// Starts a program. Retries while its file is being written.
    pub(crate) async fn start(command: std::process::Command, group: Group) -> io::Result<Self> {
        let mut command = tokio::process::Command::from(command);
        command.kill_on_drop(true);
        if group == Group::Own {
            command.process_group(0);
        }
        for _ in 1..ATTEMPTS {
            match command.spawn() {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                    let program = Path::new(command.as_std().get_program());
                    log::warn!("{} is being written, trying again", program.display());
                    sleep(Duration::from_secs(1)).await;
                }
                done => return done.map(|child| Self { child, group }),
            }
        }
        command.spawn().map(|child| Self { child, group })
    }

    /// Runs the program to its end, and passes on what it prints. If it leaves a process behind that has its pipes
    /// open, this takes 0.2 s longer at most. Fails with [`io::ErrorKind::FileTooLarge`] when the standard output
    /// exceeds the limit, in which case the program is still running.
    pub(crate) async fn finish(
        &mut self,
        input: &[u8],
        stdout: impl FnMut(&[u8]),
        stderr: impl FnMut(&[u8]),
    ) -> io::Result<ExitStatus> {
        let child = &mut self.child;
        let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = write(stdin, input);
        let pipes =
            async { tokio::try_join!(read(out, stdout, Some(STDOUT_LIMIT)), read(err, stderr, None)) };
        tokio::pin!(write, pipes);
        let (mut written, mut closed) = (false, false);
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                () = &mut write, if !written => written = true,
                read = &mut pipes, if !closed => {
                    read?;
                    closed = true;
                }
            }
        };
        if !closed {
            match timeout(GRACE, pipes).await {
                Ok(read) => drop(read?),
                Err(_) => log::debug!("another process holds the output open"),
            }
        }
        Ok(status)
    }

    /// Kills and reaps the program.
    async fn kill(&mut self) {
        let Some(pid) = self.child.id() else { return };
        kill(pid, self.group);
        match timeout(REAPING, self.child.wait()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => log::debug!("wait for the end of a killed plugin: {error}"),
            Err(_) => log::warn!("plugin process {pid} is killed but has not ended"),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // There is no PID once the program has been reaped, because another process may have that number by then.
        if let Some(pid) = self.child.id() {
            kill(pid, self.group);
        }
    }
}

/// Kills a plugin that has not been reaped yet, so no other process can have its PID.
fn kill(pid: u32, group: Group) {
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

async fn write(stdin: Option<ChildStdin>, config: &[u8]) {
    let Some(mut pipe) = stdin else { return };
    // A plugin does not have to read its input. Only its output counts.
    if let Err(error) = pipe.write_all(config).await {
        log::debug!("write the configuration: {error}");
    }
}

/// Reads to the end, at most `limit` bytes.
async fn read(
    pipe: Option<impl AsyncRead + Unpin>,
    mut take: impl FnMut(&[u8]),
    limit: Option<usize>,
) -> io::Result<()> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let mut buffer = vec![0; 16 << 10];
    let mut total = 0_usize;
    loop {
        match pipe.read(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(length) => {
                total = total.saturating_add(length);
                if limit.is_some_and(|limit| total > limit) {
                    let text =
                        format!("wrote more than {} MiB to standard output: killed", STDOUT_LIMIT >> 20);
                    return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
                }
                take(&buffer[..length]);
            }
            Err(error) => {
                log::debug!("read the output: {error}");
                return Ok(());
            }
        }
    }
}
