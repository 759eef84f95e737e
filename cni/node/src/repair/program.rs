// SPDX-License-Identifier: GPL-3.0-or-later

//! The installed `slipway`, called as a program.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::thread;
use std::time::Duration;

use cni_spec::Attachment;
use cni_state::documents::{
    self, BpfNode, Detach, DetachState, DocumentError, Form, Restore, RestoreItem, RestoreState,
};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::excerpt::bounded;
use crate::host::mounts;

/// The time limit of a call. A restoration of 1,000 containers takes seconds.
const LIMIT: Duration = Duration::from_secs(120);
/// The longest output that is read, in bytes: that of some 100,000 ports.
const LONGEST: u64 = 64 << 20;
/// The most bytes of an error message that are reported.
const MESSAGE: usize = 500;

/// The installed `slipway`.
#[derive(Debug, Clone)]
pub struct Program {
    /// The program's path, in the host's mount namespace if `in_host_mounts` is set.
    pub path: PathBuf,
    /// True to run the program in the mount namespace of process 1, because the agent is in a container and only the
    /// host's mounts show which containers run.
    pub in_host_mounts: bool,
    /// True to load the BPF programs if they are missing. Otherwise only loaded ones are attached again.
    pub loads_programs: bool,
    /// The directory of the kernel's settings in which limits are raised for the node's networks; none to leave the limits.
    pub limits: Option<PathBuf>,
    /// The runtime's cache, if it is in another place than usual.
    pub cache: Option<PathBuf>,
}

/// A call failed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No thread or runtime could be started for the call.
    #[error("start a thread for {0}: {1}")]
    Thread(String, io::Error),
    /// The host's mount namespace cannot be entered.
    #[error("enter the mount namespace of process 1 for {0}: {1}")]
    Mounts(String, io::Error),
    /// The program could not be run.
    #[error("run {0}: {1}")]
    Run(String, io::Error),
    /// The program exceeded its time limit and was killed.
    #[error("{0}: no result after {limit} s: killed", limit = .1.as_secs_f32())]
    TimedOut(String, Duration),
    /// The program failed.
    #[error("{0}: {1}")]
    Failed(String, String),
    /// The program is of another version.
    #[error("{0}: unexpected output: {1}: install the slipway of this version")]
    Version(String, DocumentError),
    /// The program's output is not a document of the expected form.
    #[error("{0}: unexpected output: {reason}", reason = bounded(&.1.to_string(), MESSAGE))]
    Output(String, serde_json::Error),
}

/// The result of `slipway restore`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restoration {
    /// The restored objects with their owners and reasons, a line each.
    pub restored: Vec<String>,
    /// The objects that could not be restored, with their owners and reasons.
    pub failed: Vec<String>,
}

/// The condition of `slipway detach --only-if`: the attachment belongs to a pod's sandbox, and its namespace is in this state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetachCondition {
    /// The namespace is gone.
    Gone,
    /// The namespace is gone, or has no process.
    Unused,
}

/// The result of `slipway detach`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetachOutcome {
    /// DEL succeeded.
    Done,
    /// The condition does not hold, for this reason.
    Kept(String),
}

impl Program {
    /// The program at a path, which attaches loaded BPF programs only and knows the usual caches.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), in_host_mounts: false, loads_programs: false, limits: None, cache: None }
    }

    /// Restores what is missing.
    ///
    /// # Errors
    /// [`ProgramError`] if there is no report. Objects that cannot be restored are in the report.
    pub async fn restore(&self) -> Result<Restoration, ProgramError> {
        let mut words = vec!["restore".into(), "--output".into(), "json".into()];
        words.extend(
            self.cache.iter().flat_map(|cache| ["--cache-dir".into(), cache.clone().into_os_string()]),
        );
        let output = self.call(&words, LIMIT).await?;
        let Restore { items, .. } = self.document(&words, &output)?;
        Ok(report(items))
    }

    /// Detaches a container from its network, if the condition holds. `conflist` is the network's configuration, for an
    /// attachment that no cache has. The plugins are those next to the program.
    ///
    /// # Errors
    /// [`ProgramError`] if a plugin fails, or the condition cannot be checked.
    pub async fn detach(
        &self,
        attachment: &Attachment,
        condition: DetachCondition,
        conflist: &Path,
    ) -> Result<DetachOutcome, ProgramError> {
        let condition = match condition {
            DetachCondition::Gone => "gone",
            DetachCondition::Unused => "unused",
        };
        let (network, id, interface) = (attachment.network(), attachment.container_id(), attachment.ifname());
        let words =
            ["detach", network, id, interface, "--only-if", condition, "--output", "json", "--conflist"];
        let mut words: Vec<OsString> = words.map(OsString::from).into();
        words.push(conflist.into());
        if let Some(directory) = self.path.parent() {
            words.extend([OsString::from("--plugin-dir"), directory.into()]);
        }
        words.extend(
            self.cache.iter().flat_map(|cache| ["--cache-dir".into(), cache.clone().into_os_string()]),
        );
        let output = self.call(&words, LIMIT).await?;
        let Detach { state, reason, .. } = self.document(&words, &output)?;
        Ok(match state {
            DetachState::Detached => DetachOutcome::Done,
            DetachState::Kept => DetachOutcome::Kept(bounded(reason.as_deref().unwrap_or_default(), MESSAGE)),
        })
    }

    /// The document of a call, which other exit codes than 0 may have, too.
    fn document<T: DeserializeOwned + Form>(
        &self,
        words: &[OsString],
        output: &Output,
    ) -> Result<T, ProgramError> {
        documents::parse(&output.stdout).map_err(|error| match error {
            DocumentError::Schema { .. } => ProgramError::Version(self.name(words), error),
            DocumentError::Form(_) if !output.status.success() => self.failed(words, output),
            DocumentError::Form(error) => ProgramError::Output(self.name(words), error),
        })
    }

    /// Raises the kernel's limits and, if the BPF programs are loaded or shall be, attaches them where they are
    /// missing. Returns true if it attached some. Limits that cannot be raised are only logged, because only full nodes
    /// need them.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub(crate) async fn set_up_node(&self) -> Result<bool, ProgramError> {
        let node = match self.raise_limits().await {
            Some(node) => node,
            None => self.read(&["node", "status", "--output", "json"].map(OsString::from), LIMIT).await?,
        };
        let is_wanted = node.loaded || self.loads_programs && node.built_in;
        if is_wanted {
            self.successful(&["node", "setup"].map(OsString::from), LIMIT).await?;
        }
        Ok(is_wanted)
    }

    /// The node's state after its limits were raised, if they are to be and can be.
    async fn raise_limits(&self) -> Option<BpfNode> {
        let directory = self.limits.as_ref()?;
        let mut words = ["node", "limits", "--output", "json"].map(OsString::from).to_vec();
        // In the host's mount namespace the settings are at the usual place.
        if !self.in_host_mounts {
            words.extend(["--sysctl-dir".into(), directory.into()]);
        }
        self.read(&words, LIMIT).await.inspect_err(|error| log::warn!("{error}")).ok()
    }

    /// The document that a command prints, which must succeed within the limit.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub(crate) async fn read<T: DeserializeOwned + Form>(
        &self,
        words: &[OsString],
        limit: Duration,
    ) -> Result<T, ProgramError> {
        let output = self.successful(words, limit).await?;
        self.document(words, &output)
    }

    async fn successful(&self, words: &[OsString], limit: Duration) -> Result<Output, ProgramError> {
        let output = self.call(words, limit).await?;
        if output.status.success() { Ok(output) } else { Err(self.failed(words, &output)) }
    }

    /// Runs the program in a thread of its own, because a thread that enters a mount namespace stays there.
    async fn call(&self, words: &[OsString], limit: Duration) -> Result<Output, ProgramError> {
        let (name, program, words) = (self.name(words), self.clone(), words.to_vec());
        let (sender, receiver) = oneshot::channel();
        let work = {
            let name = name.clone();
            move || {
                let _ = sender.send(program.run(name, &words, limit));
            }
        };
        thread::Builder::new()
            .name("slipway".to_owned())
            .spawn(work)
            .map_err(|error| ProgramError::Thread(name.clone(), error))?;
        let gone = |_| ProgramError::Thread(name, io::ErrorKind::BrokenPipe.into());
        receiver.await.map_err(gone)?
    }

    fn run(&self, name: String, words: &[OsString], limit: Duration) -> Result<Output, ProgramError> {
        if self.in_host_mounts
            && let Err(error) = mounts::enter()
        {
            return Err(ProgramError::Mounts(name, error));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return Err(ProgramError::Thread(name, error)),
        };
        runtime.block_on(async {
            let mut command = Command::new(&self.path);
            command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            match timeout(limit, output(command.kill_on_drop(true))).await {
                Ok(Ok(output)) => Ok(output),
                Ok(Err(error)) => Err(ProgramError::Run(name, error)),
                Err(_) => Err(ProgramError::TimedOut(name, limit)),
            }
        })
    }

    fn name(&self, words: &[OsString]) -> String {
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        format!("{} {}", self.path.display(), words.join(" "))
    }

    fn failed(&self, words: &[OsString], output: &Output) -> ProgramError {
        let text = String::from_utf8_lossy(&output.stderr);
        let text = text.trim();
        let text = if text.is_empty() { output.status.to_string() } else { bounded(text, MESSAGE) };
        ProgramError::Failed(self.name(words), text)
    }
}

/// Runs a command to its end.
async fn output(command: &mut Command) -> io::Result<Output> {
    let mut child = command.spawn()?;
    let (stdout, stderr) = tokio::try_join!(whole(child.stdout.take()), whole(child.stderr.take()))?;
    Ok(Output { status: child.wait().await?, stdout, stderr })
}

async fn whole(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        stream.take(LONGEST + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other(format!("more than {LONGEST} bytes of output")));
    }
    Ok(bytes)
}

fn report(items: Vec<RestoreItem>) -> Restoration {
    let mut report = Restoration::default();
    for item in items {
        let owner = [&item.network, &item.container, &item.interface].map(Option::as_deref);
        let owner = owner.into_iter().flatten().collect::<Vec<_>>().join(" ");
        let line = [owner, item.item, item.reason].into_iter().filter(|part| !part.is_empty());
        let line = line.collect::<Vec<_>>().join(": ");
        match item.state {
            RestoreState::Restored => report.restored.push(line),
            RestoreState::Failed => report.failed.push(line),
            RestoreState::Present | RestoreState::Missing | RestoreState::Skipped => {}
        }
    }
    report
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use cni_state::documents::Document;
    use serde::Serialize;

    use super::*;

    /// A program with this script. Another process writes the file: a child that another test starts meanwhile would
    /// inherit this process's descriptor, and the kernel does not execute a file that is open for writing (ETXTBSY).
    pub(crate) fn script(directory: &Path, text: &str) -> Program {
        let path = directory.join("slipway");
        let mut write = std::process::Command::new("sh");
        write
            .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh", text])
            .arg(&path);
        assert!(write.status().unwrap().success());
        Program::new(path)
    }

    /// The command that prints a document.
    pub(crate) fn echo(content: impl Serialize + Form) -> String {
        format!("echo '{}'", serde_json::to_string(&Document::new(content)).unwrap())
    }

    #[tokio::test]
    async fn a_report_with_failures_is_a_report() {
        let directory = tempfile::tempdir().unwrap();
        let item = |item: &str, state| RestoreItem {
            network: Some("pods".to_owned()),
            container: Some("web".to_owned()),
            interface: Some("eth0".to_owned()),
            item: item.to_owned(),
            state,
            reason: "it was gone".to_owned(),
        };
        let items = vec![
            item("masquerade", RestoreState::Restored),
            item("ports", RestoreState::Failed),
            item("guard", RestoreState::Present),
        ];
        let program = script(directory.path(), &format!("{}; exit 1", echo(Restore { ok: false, items })));
        let report = program.restore().await.unwrap();
        assert_eq!(report.restored, ["pods web eth0: masquerade: it was gone"]);
        assert_eq!(report.failed, ["pods web eth0: ports: it was gone"]);
    }

    #[tokio::test]
    async fn errors_name_the_command_and_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("slipway").display().to_string();
        for (text, expected) in [
            ("echo no kernel >&2; exit 1", "no kernel"),
            ("exit 3", "exit status: 3"),
            ("echo nonsense", "unexpected output"),
            (r#"echo '{"schema":2,"items":[]}'"#, "schema 2, not 1"),
        ] {
            let error = script(directory.path(), text).restore().await.unwrap_err().to_string();
            assert!(error.starts_with(&format!("{path} restore")) && error.contains(expected), "{error}");
        }
        let words = ["ports".into()];
        let limit = Duration::from_millis(100);
        let hangs =
            script(directory.path(), "exec sleep 600").read::<Restore>(&words, limit).await.unwrap_err();
        assert_eq!(hangs.to_string(), format!("{path} ports: no result after 0.1 s: killed"));
        let error = Program::new("/nonexistent").restore().await.unwrap_err().to_string();
        assert!(error.starts_with("run /nonexistent restore"), "{error}");
    }

    #[tokio::test]
    async fn an_attachment_is_detached_kept_or_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let attachment = Attachment::new("pods", "8f3a", "eth0").unwrap();
        let detach = async |text: &str| {
            let program = script(directory.path(), text);
            program.detach(&attachment, DetachCondition::Unused, Path::new("/run/a.conflist")).await
        };
        let document = |state, reason: Option<&str>| {
            let [network, container, interface] = ["pods", "8f3a", "eth0"].map(str::to_owned);
            echo(Detach { network, container, interface, state, reason: reason.map(str::to_owned) })
        };
        let here = directory.path().display();
        let called = format!(
            "[ \"$*\" = 'detach pods 8f3a eth0 --only-if unused --output json --conflist /run/a.conflist --plugin-dir \
             {here}' ] || exit 1"
        );
        let done = detach(&format!("{called}\n{}", document(DetachState::Detached, None))).await;
        assert_eq!(done.unwrap(), DetachOutcome::Done);
        let kept = detach(&format!("{}; exit 3", document(DetachState::Kept, Some("it runs")))).await;
        assert_eq!(kept.unwrap(), DetachOutcome::Kept("it runs".to_owned()));
        for (text, expected) in [
            (
                document(DetachState::Kept, None).replace("kept", "lost"),
                "unexpected output: unknown variant `lost`",
            ),
            ("echo no plugin >&2; exit 1".to_owned(), "no plugin"),
            // An earlier version has no such command.
            ("echo unknown command >&2; exit 2".to_owned(), "unknown command"),
        ] {
            let error = detach(&text).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[tokio::test]
    async fn programs_are_set_up_where_they_are_loaded_or_wanted() {
        let directory = tempfile::tempdir().unwrap();
        let node = |built_in: bool, loaded: bool| {
            let document = echo(BpfNode { built_in, loaded, ..BpfNode::default() });
            format!("case $2 in status) {document};; setup) exit 0;; *) exit 1;; esac")
        };
        for (built_in, loaded, loads, expected) in [
            (true, true, false, true),
            (true, false, false, false),
            (true, false, true, true),
            (false, false, true, false),
        ] {
            let mut program = script(directory.path(), &node(built_in, loaded));
            program.loads_programs = loads;
            assert_eq!(program.set_up_node().await.unwrap(), expected, "{built_in} {loaded} {loads}");
        }
    }

    #[tokio::test]
    async fn limits_are_raised_where_they_may_be_and_are_no_condition() {
        let directory = tempfile::tempdir().unwrap();
        let called = directory.path().join("called");
        let document = echo(BpfNode { built_in: true, loaded: true, ..BpfNode::default() });
        let record = format!("echo \"$*\" >> {}", called.display());
        let calls =
            || std::fs::read_to_string(&called).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
        let limits = "node limits --output json --sysctl-dir /host/proc/sys";
        let mut program = script(directory.path(), &format!("{record}\n{document}"));
        assert!(program.set_up_node().await.unwrap());
        program.limits = Some("/host/proc/sys".into());
        assert!(program.set_up_node().await.unwrap());
        let setup = "node setup";
        assert_eq!(calls(), ["node status --output json", setup, limits, setup]);
        std::fs::remove_file(&called).unwrap();
        // The limits cannot be raised with a read-only /proc/sys.
        let mut program =
            script(directory.path(), &format!("{record}\n[ $2 != limits ] || exit 1\n{document}"));
        program.limits = Some("/host/proc/sys".into());
        assert!(program.set_up_node().await.unwrap());
        assert_eq!(calls(), [limits, "node status --output json", setup]);
    }
}
