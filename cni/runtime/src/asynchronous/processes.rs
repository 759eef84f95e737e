// SPDX-License-Identifier: MIT OR Apache-2.0

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{sleep, timeout};

use super::{CallFuture, Exec};
use crate::error::CallError;
use crate::exec::{ATTEMPTS, CallOptions, GRACE, Group, Lines, command, kill, outcome};
use crate::invoke::{failure, find};
use crate::verbs::{Outcome, PluginCall};

/// Runs plugins as processes, as [`crate::exec::Processes`] does. Dropping the future kills the plugin's process
/// group, and tokio reaps the plugin.
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
            run(&path, call, options).await
        })
    }
}

async fn run(path: &Path, call: &PluginCall, options: &CallOptions) -> Outcome {
    let begin = Instant::now();
    let (mut stdout, mut stderr) = (Vec::new(), Lines::new(options, call));
    let ended = {
        let plugin = run_group(
            command(path, call),
            &call.stdin,
            |bytes| stdout.extend_from_slice(bytes),
            |bytes| stderr.push(bytes),
        );
        let cancelled = async {
            match &options.cancel {
                Some(cancel) => cancel.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ended = plugin => ended.map_err(|RunError { operation, error }| {
                CallError::Failed(failure(&format!("{operation} {}: {error}", path.display()), &[], &[]))
            }),
            () = cancelled => Err(CallError::Cancelled),
            () = sleep(options.limit) => Err(CallError::TimedOut(options.limit)),
        }
    };
    stderr.flush();
    outcome(path, begin, ended, stdout, &stderr)
}

/// A program that could not be started, or not waited for.
pub(crate) struct RunError {
    pub(crate) operation: &'static str,
    pub(crate) error: io::Error,
}

/// Runs a program to its end, in a process group of its own, and passes on what it prints. A process that it leaves
/// behind with its pipes open delays the end by 0.2 s at most. Dropping the future kills the group.
pub(crate) async fn run_group(
    command: std::process::Command,
    input: &[u8],
    stdout: impl FnMut(&[u8]),
    stderr: impl FnMut(&[u8]),
) -> Result<ExitStatus, RunError> {
    let failed = |operation: &'static str| move |error: io::Error| RunError { operation, error };
    let program = command.get_program().to_owned();
    let mut running = Running::start(command).await.map_err(failed("run"))?;
    let child = &mut running.child;
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = write(stdin, input);
    let pipes = async { tokio::join!(read(out, stdout), read(err, stderr)) };
    tokio::pin!(write, pipes);
    let (mut written, mut closed) = (false, false);
    let status = loop {
        tokio::select! {
            status = running.child.wait() => break status.map_err(failed("wait for"))?,
            () = &mut write, if !written => written = true,
            _ = &mut pipes, if !closed => closed = true,
        }
    };
    if !closed && timeout(GRACE, pipes).await.is_err() {
        log::debug!("{}: another process holds its output open", Path::new(&program).display());
    }
    Ok(status)
}

/// A program that is killed, with its group, when it is dropped.
struct Running {
    child: Child,
}

impl Running {
    /// Starts the program. Retries while its file is being written.
    async fn start(command: std::process::Command) -> io::Result<Self> {
        let mut command = Command::from(command);
        let program = command.as_std().get_program().to_owned();
        command.process_group(0).kill_on_drop(true);
        for _ in 1..ATTEMPTS {
            match command.spawn() {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                    log::warn!("{} is being written, trying again", Path::new(&program).display());
                    sleep(Duration::from_secs(1)).await;
                }
                done => return done.map(|child| Self { child }),
            }
        }
        command.spawn().map(|child| Self { child })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // None after the program was reaped: another process may have the number.
        if let Some(pid) = self.child.id() {
            kill(pid, Group::Own);
        }
    }
}

async fn write(stdin: Option<ChildStdin>, config: &[u8]) {
    let Some(mut pipe) = stdin else { return };
    // A plugin need not read its input; only its output counts.
    if let Err(error) = pipe.write_all(config).await {
        log::debug!("write the configuration: {error}");
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, mut take: impl FnMut(&[u8])) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; 16 << 10];
    loop {
        match pipe.read(&mut buffer).await {
            Ok(0) => return,
            Ok(length) => take(&buffer[..length]),
            Err(error) => {
                log::debug!("read the output: {error}");
                return;
            }
        }
    }
}
