// SPDX-License-Identifier: GPL-3.0-or-later

//! The commands.

use std::collections::BTreeSet;
use std::io;

use cni_runtime::kubelet::{BoxError, HookError, SelectErrors};
use cni_runtime::pods::{Manager, Pod, PodError, parse_args};
use cni_runtime::{CallOptions, Cancel, NetworkError, Runtime};
use cni_spec::check_container_id;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::{Command, Given};
use crate::netns::{self, NetnsError};
use crate::{kubelet, output};

/// A failed command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Pod(#[from] PodError),
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error("start the asynchronous runtime: {0}")]
    Runtime(io::Error),
    #[error("wait for signals: {0}")]
    Signals(io::Error),
    #[error("write the output: {0}")]
    Output(io::Error),
    #[error(transparent)]
    Start(#[from] SelectErrors),
    #[error(transparent)]
    Hook(#[from] HookError),
    #[error("{0}")]
    Plugin(BoxError),
    #[error(transparent)]
    Agent(#[from] crate::cluster_command::RunError),
    #[error(transparent)]
    RunDir(#[from] slipwayd::host::run_dir::RunDirError),
    #[error(transparent)]
    AgentStatus(#[from] crate::status_command::StatusError),
    #[error("cancelled")]
    Cancelled,
}

/// The signals that end a command.
pub(crate) struct Ends {
    terminate: Signal,
    interrupt: Signal,
}

impl Ends {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Runs a command. A signal cancels it: a set-up is undone.
///
/// # Errors
/// [`Failure`] of the command.
pub(crate) async fn run(given: Given) -> Result<(), Failure> {
    let mut ends = Ends::new().map_err(Failure::Signals)?;
    if given.command == Command::Networks && given.watch {
        return watch(&given, &mut ends).await;
    }
    let cancel = Cancel::new().map_err(Failure::Signals)?;
    let options = CallOptions::new().cancel(cancel.clone());
    let work = async {
        if given.kubelet.network_plugin.is_empty() {
            return execute(&given, &options).await;
        }
        kubelet::execute(&given, &cancel).await
    };
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = ends.next() => cancel.cancel(),
        }
    }
}

async fn execute(given: &Given, options: &CallOptions) -> Result<(), Failure> {
    let manager = builder(given).open();
    let printed = match given.command {
        Command::Up => return up(&manager, given, options).await,
        Command::Down => return down(&manager, &given.pod, options).await,
        Command::Status if given.pod.name.is_empty() => return Ok(manager.ready(options).await?),
        Command::Status => {
            let pod = located(&given.pod)?;
            output::attached(&pod, &manager.status(&pod, options).await?, given.json)
        }
        Command::List => {
            let pending = manager.pending().await?;
            output::listed(&manager.attachments().await?, &pending, given.json)
        }
        Command::Gc => return gc(&manager, &given.keep, options).await,
        Command::Networks => output::networks(&*manager.resync().await?, given.json),
    };
    printed.map_err(Failure::Output)
}

fn builder(given: &Given) -> cni_runtime::pods::Builder {
    let runtime = Runtime::builder().plugin_dirs(given.plugin_dirs()).cache(&given.cache_dir);
    let args = std::env::var("CNI_ARGS").unwrap_or_default();
    let builder = Manager::builder(runtime).config_dir(&given.config_dir).args(parse_args(&args));
    match &given.default_network {
        Some(name) => builder.default_network(name),
        None => builder,
    }
}

async fn up(manager: &Manager, given: &Given, options: &CallOptions) -> Result<(), Failure> {
    let mut pod = given.pod.clone();
    check(&pod)?;
    if given.create_netns {
        pod.netns = netns::create(&pod.sandbox)?.display().to_string();
    }
    match manager.set_up(&pod, options).await {
        Ok(attached) => output::attached(&pod, &attached, given.json).map_err(Failure::Output),
        Err(error) => {
            if given.create_netns
                && let Err(error) = netns::delete(&pod.sandbox)
            {
                log::warn!("{error}");
            }
            Err(error.into())
        }
    }
}

async fn down(manager: &Manager, pod: &Pod, options: &CallOptions) -> Result<(), Failure> {
    let pod = located(pod)?;
    manager.tear_down(&pod, options).await?;
    // With `--network` other attachments may be left.
    if attached(manager).await?.contains(&pod.sandbox) {
        return Ok(());
    }
    Ok(netns::delete(&pod.sandbox)?)
}

/// The sandboxes with attachments, cached or pending.
async fn attached(manager: &Manager) -> Result<BTreeSet<String>, Failure> {
    let (pending, cached) = (manager.pending().await?, manager.attachments().await?);
    let cached = cached.into_iter().map(|one| one.attachment.container_id().to_owned());
    Ok(pending.into_iter().map(|one| one.container.id).chain(cached).collect())
}

async fn gc(manager: &Manager, keep: &[String], options: &CallOptions) -> Result<(), Failure> {
    let valid: Vec<Pod> =
        keep.iter().map(|sandbox| Pod { sandbox: sandbox.clone(), ..Pod::default() }).collect();
    for pod in &valid {
        check(pod)?;
    }
    manager.gc(&valid, options).await?;
    // A network with `disableGC` keeps its attachments.
    let left = attached(manager).await?;
    let is_valid = |sandbox: &String| keep.contains(sandbox) || left.contains(sandbox);
    for sandbox in netns::sandboxes()?.iter().filter(|sandbox| !is_valid(sandbox)) {
        netns::delete(sandbox)?;
    }
    Ok(())
}

/// The pod with the namespace of `--create-netns`, unless another one is given.
pub(crate) fn located(pod: &Pod) -> Result<Pod, Failure> {
    check(pod)?;
    let mut pod = pod.clone();
    let own = netns::path_of(&pod.sandbox);
    if pod.netns.is_empty() && own.exists() {
        pod.netns = own.display().to_string();
    }
    Ok(pod)
}

/// The sandbox's ID becomes a part of paths.
fn check(pod: &Pod) -> Result<(), Failure> {
    check_container_id(&pod.sandbox).map_err(|error| PodError::from(NetworkError::from(error)).into())
}

async fn watch(given: &Given, ends: &mut Ends) -> Result<(), Failure> {
    let manager = builder(given).start().await?;
    let mut changes = manager.subscribe();
    loop {
        let networks = changes.borrow_and_update().clone();
        output::networks(&networks, given.json).map_err(Failure::Output)?;
        tokio::select! {
            // The manager keeps the sender.
            _ = changes.changed() => {}
            () = ends.next() => break,
        }
    }
    manager.shut_down().await;
    Ok(())
}
