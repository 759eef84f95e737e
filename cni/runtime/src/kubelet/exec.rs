// SPDX-License-Identifier: MIT OR Apache-2.0

//! The exec driver: a program that is called with `init`, `setup`, `teardown` and `status`. `init` may change the
//! node, so it is not called by a driver that was started only to inspect pods.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::unistd::{AccessFlags, access};

use super::{HookFuture, InitSettings, NetworkPlugin, Pod, PodNetworkStatus, Purpose};
use crate::exec::{DEFAULT_LIMIT, Excerpt, Group, Running, STDERR_KEPT, shown, status_text};

/// A driver that is a program: `DIR/name/name`, or `DIR/vendor~name/name` for the driver `vendor/name`. The program
/// is called with the action, the pod's namespace, its name and its sandbox. Exit status 0 means success.
#[derive(Debug, Clone)]
pub struct ExecDriver {
    name: String,
    program: PathBuf,
    limit: Duration,
}

/// A failed call of the program.
#[derive(Debug, thiserror::Error)]
pub enum ExecDriverError {
    /// The program is missing or not executable.
    #[error("Invalid exec plugin. Executable '{0}' does not have correct permissions.")]
    NotExecutable(String),
    /// The program could not be started.
    #[error("run {program}: {error}")]
    Run {
        /// The program.
        program: String,
        /// The system's error.
        error: io::Error,
    },
    /// The program failed.
    #[error("{program} {action}: {status}{}{output}", if output.is_empty() { "" } else { ": " })]
    Failed {
        /// The program.
        program: String,
        /// `init`, `setup`, `teardown` or `status`.
        action: &'static str,
        /// The program's exit status, as Go prints it.
        status: String,
        /// The program's output.
        output: String,
    },
    /// The program did not finish in time, and was killed.
    #[error("{program} {action}: no result after {} s: killed", limit.as_secs_f64())]
    TimedOut {
        /// The program.
        program: String,
        /// The action.
        action: &'static str,
        /// The time limit.
        limit: Duration,
    },
}

impl ExecDriver {
    /// The drivers in a directory, sorted by name: one per folder, whether it is valid or not. Empty if the directory
    /// is missing.
    #[must_use]
    pub fn probe(directory: &Path) -> Vec<Self> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.path().is_dir());
        let mut drivers: Vec<Self> =
            folders.filter_map(|entry| Some(Self::new(directory, entry.file_name().to_str()?))).collect();
        drivers.sort_by(|a, b| a.name.cmp(&b.name));
        drivers
    }

    fn new(directory: &Path, folder: &str) -> Self {
        let name = folder.replace('~', "/");
        let program = name.rsplit('/').next().unwrap_or_default();
        Self { program: directory.join(folder).join(program), name, limit: DEFAULT_LIMIT }
    }

    /// Sets the time limit of a call. The default is two minutes.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs the program and returns its standard output. When the time limit has passed, the process group is killed.
    async fn call(&self, action: &'static str, pod: Option<&Pod>) -> Result<Vec<u8>, ExecDriverError> {
        let program = self.program.display().to_string();
        let mut command = Command::new(&self.program);
        command.arg(action).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(pod) = pod {
            command.args([&pod.namespace, &pod.name, &pod.sandbox_id]);
        }
        let (mut stdout, mut stderr) = (Vec::new(), Excerpt::new(STDERR_KEPT));
        let running = async {
            let mut running = Running::start(command, Group::Own).await?;
            let keep_out = |bytes: &[u8]| stdout.extend_from_slice(bytes);
            running.finish(&[], keep_out, |bytes| stderr.push(bytes)).await
        };
        let status = match tokio::time::timeout(self.limit, running).await {
            Ok(Ok(status)) => status,
            Ok(Err(error)) => return Err(ExecDriverError::Run { program, error }),
            Err(_) => return Err(ExecDriverError::TimedOut { program, action, limit: self.limit }),
        };
        let output = shown(&[&stdout[..], &stderr.into_bytes()].concat()).trim().to_owned();
        let status_text = status_text(status);
        log::debug!("{program} {action}: {status_text}, output: {output}");
        if status.success() {
            return Ok(stdout);
        }
        Err(ExecDriverError::Failed { program, action, status: status_text, output })
    }
}

impl NetworkPlugin for ExecDriver {
    fn init(&mut self, settings: InitSettings) -> HookFuture<'_, ()> {
        Box::pin(async move {
            if !self.program.is_file() || access(&self.program, AccessFlags::X_OK).is_err() {
                return Err(ExecDriverError::NotExecutable(self.name.clone()).into());
            }
            if settings.purpose != Purpose::Inspect {
                self.call("init", None).await?;
            }
            Ok(())
        })
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_up_pod<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, ()> {
        Box::pin(async {
            self.call("setup", Some(pod)).await?;
            Ok(())
        })
    }

    fn tear_down_pod<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, ()> {
        Box::pin(async {
            self.call("teardown", Some(pod)).await?;
            Ok(())
        })
    }

    fn pod_network_status<'a>(&'a self, pod: &'a Pod) -> HookFuture<'a, Option<PodNetworkStatus>> {
        Box::pin(async {
            let output = self.call("status", Some(pod)).await?;
            Ok(PodNetworkStatus::decode(&output, &pod.name)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::tests::settings;
    use super::*;

    /// A driver whose script writes its arguments to a file, and then does `rest`.
    fn script(directory: &Path, folder: &str, rest: &str) -> ExecDriver {
        let driver = ExecDriver::new(directory, folder);
        std::fs::create_dir_all(driver.program.parent().unwrap()).unwrap();
        let calls = directory.join("calls");
        let text = format!("#!/bin/sh\necho \"$@\" >> {}\n{rest}\n", calls.display());
        std::fs::write(&driver.program, text).unwrap();
        std::fs::set_permissions(&driver.program, PermissionsExt::from_mode(0o755)).unwrap();
        driver
    }

    #[tokio::test]
    async fn the_program_is_called_with_the_action_and_the_pod() {
        let directory = tempfile::tempdir().unwrap();
        let rest = r#"[ "$1" = status ] && echo '{"ip": "10.1.0.5"}'; exit 0"#;
        let mut driver = script(directory.path(), "mycompany~mysdn", rest);
        assert_eq!(driver.program(), directory.path().join("mycompany~mysdn/mysdn"));
        let pod = Pod::new("shop", "web", "c1");
        driver.init(settings()).await.unwrap();
        driver.set_up_pod(&pod).await.unwrap();
        let status = driver.pod_network_status(&pod).await.unwrap().unwrap();
        assert_eq!(status.ip.to_string(), "10.1.0.5");
        driver.tear_down_pod(&pod).await.unwrap();
        let calls = std::fs::read_to_string(directory.path().join("calls")).unwrap();
        assert_eq!(calls, "init\nsetup shop web c1\nstatus shop web c1\nteardown shop web c1\n");
    }

    #[tokio::test]
    async fn drivers_are_the_folders_of_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        script(directory.path(), "sdn", "");
        script(directory.path(), "mycompany~mysdn", "");
        std::fs::create_dir(directory.path().join("empty")).unwrap();
        let mut found = ExecDriver::probe(directory.path());
        assert_eq!(
            found.iter().map(NetworkPlugin::name).collect::<Vec<_>>(),
            ["empty", "mycompany/mysdn", "sdn"]
        );
        assert_eq!(
            found[0].init(settings()).await.unwrap_err().to_string(),
            "Invalid exec plugin. Executable 'empty' does not have correct permissions."
        );
        assert!(ExecDriver::probe(&directory.path().join("missing")).is_empty());
    }

    #[tokio::test]
    async fn a_failed_program_is_reported_with_its_output() {
        let directory = tempfile::tempdir().unwrap();
        let pod = Pod::new("shop", "web", "c1");
        let driver = script(directory.path(), "sdn", "echo no uplink >&2; exit 3");
        let error = driver.set_up_pod(&pod).await.unwrap_err().to_string();
        assert!(error.ends_with("sdn/sdn setup: exit status 3: no uplink"), "{error}");
        let slow = script(directory.path(), "slow", "exec sleep 60").limit(Duration::from_millis(50));
        let error = slow.tear_down_pod(&pod).await.unwrap_err().to_string();
        assert!(error.ends_with("slow/slow teardown: no result after 0.05 s: killed"), "{error}");
    }

    /// The letter for a process's state. None if the process does not exist.
    fn state(pid: &str) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(") ").next()?.chars().next()
    }

    #[tokio::test]
    async fn the_time_limit_ends_the_program_and_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let rest = "sleep 600 & echo $! >$0.child; echo $$ >$0.pid; wait";
        let driver = script(directory.path(), "slow", rest).limit(Duration::from_millis(500));
        let error = driver.set_up_pod(&Pod::new("shop", "web", "c1")).await.unwrap_err().to_string();
        assert!(error.ends_with("slow/slow setup: no result after 0.5 s: killed"), "{error}");
        let pid = |name: &str| std::fs::read_to_string(driver.program.with_extension(name)).unwrap();
        let ended = async {
            // The program has been reaped. Its child is then a child of init.
            while state(pid("pid").trim()).is_some()
                || state(pid("child").trim()).is_some_and(|now| now != 'Z')
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), ended).await.expect("both have ended");
    }

    #[tokio::test]
    async fn a_process_that_holds_the_output_open_delays_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let rest = r#"setsid sleep 600 & echo $! >$0.child; echo '{"ip": "10.1.0.5"}'"#;
        let driver = script(directory.path(), "sdn", rest).limit(Duration::from_secs(20));
        let status = driver.pod_network_status(&Pod::new("shop", "web", "c1")).await;
        let child = std::fs::read_to_string(driver.program.with_extension("child")).unwrap();
        let killed = std::process::Command::new("kill").arg(child.trim()).status().unwrap();
        assert_eq!(status.unwrap().unwrap().ip.to_string(), "10.1.0.5");
        // A process that has left the group keeps running.
        assert!(killed.success());
    }
}
