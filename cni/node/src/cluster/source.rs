// SPDX-License-Identifier: GPL-3.0-or-later

//! The current Nodes of the cluster, listed and watched.
//!
//! `kube_runtime::watcher` lists in pages of 500, watches with bookmarks, resumes a watch that ended, and lists again
//! when the server has forgotten its place (410 Gone in the watch). Added here:
//!
//! - Delays after errors grow while the list fails, too: the watcher reports the beginning of each list as a success,
//!   which resets `kube_runtime`'s own backoff.
//! - A list that stalls and a watch that never begins are given up: `kube`'s client has no time limit for a response.
//! - 410 in reply to the watch request itself, and an event that cannot be decoded, lead to a new list: the watcher
//!   would repeat the request, or skip the event.
//! - Credentials are read again after 401: a client certificate may have been replaced.
//!
//! The list is a quorum read. One from the server's cache, which some other server may have filled later, could bring
//! back Nodes that a former list or watch saw deleted.

use std::error::Error as _;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::access::{Access, WATCH};
use super::nodes::{Node, Nodes};
use super::object::NodeObject;
use crate::excerpt::bounded;

/// The Nodes of a page of the list.
const PAGE: u32 = 500;
/// The longest delay after an error, in case the backoff does not return one.
const DELAY: Duration = Duration::from_secs(30);
/// The minimum time between two snapshots. Each snapshot is a copy of the list, so Nodes that change all the time would
/// otherwise keep a processor busy. A change after a rest is published at once.
const PAUSE: Duration = Duration::from_millis(50);
/// The most characters of an error in the log.
const MESSAGE: usize = 500;

/// The Nodes at one moment.
///
/// Until [`Snapshot::synced`] is true no list was complete: a Node that is missing here may exist, so that nothing may
/// be deleted for its absence. Later the Nodes stay as they were last seen while the API server is unreachable.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    nodes: Nodes,
    synced: bool,
    generation: u64,
}

impl Snapshot {
    /// A snapshot of these Nodes, for callers with another source.
    #[must_use]
    pub fn new(nodes: Nodes, synced: bool) -> Self {
        Self { nodes, synced, generation: 0 }
    }

    /// All Nodes by name. Empty until [`Snapshot::synced`].
    #[must_use]
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// True once a list was complete.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// The number of this snapshot: 0 before the first complete list, then one more for each change.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

/// Counters of the connection to the API server.
#[derive(Debug, Default)]
pub struct Counters {
    lists: AtomicU64,
    events: AtomicU64,
    unchanged: AtomicU64,
    failures: AtomicU64,
}

impl Counters {
    /// Complete lists.
    #[must_use]
    pub fn lists(&self) -> u64 {
        self.lists.load(Ordering::Relaxed)
    }

    /// Events of the watch, without bookmarks.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Events of the watch that changed nothing of what is kept: heartbeats.
    #[must_use]
    pub fn unchanged(&self) -> u64 {
        self.unchanged.load(Ordering::Relaxed)
    }

    /// Errors of lists, watches and configuration.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Follows the Nodes. The future must be polled; it ends when all receivers are dropped. It retries after every error.
///
/// A receiver is woken for changes only: not by a heartbeat, nor by a list that repeats what is known.
pub fn follow(
    access: Access,
) -> (watch::Receiver<Arc<Snapshot>>, Arc<Counters>, impl Future<Output = ()> + Send) {
    let (sender, receiver) = watch::channel(Arc::default());
    let counters = Arc::<Counters>::default();
    let mut follower = Follower {
        sender,
        counters: Arc::clone(&counters),
        store: Store::default(),
        backoff: DefaultBackoff::default(),
        page: access.reply,
        published: Instant::now() - PAUSE,
    };
    let work = async move {
        let sender = follower.sender.clone();
        tokio::select! {
            () = follower.run(&access) => {}
            () = sender.closed() => {}
        }
    };
    (receiver, counters, work)
}

struct Follower {
    sender: watch::Sender<Arc<Snapshot>>,
    counters: Arc<Counters>,
    store: Store,
    backoff: DefaultBackoff,
    /// The time for a page of the list.
    page: Duration,
    /// The time of the last snapshot.
    published: Instant,
}

impl Follower {
    /// Connects, and connects again whenever the stream must begin from the start.
    async fn run(&mut self, access: &Access) {
        loop {
            match access.nodes().await {
                Ok(api) => {
                    let config = watcher::Config::default().page_size(PAGE).timeout(WATCH);
                    self.take(watcher::watcher(api, config)).await;
                }
                Err(error) => self.wait(&error.to_string()).await,
            }
        }
    }

    /// Takes events until the stream must begin from the start.
    async fn take(&mut self, stream: impl Stream<Item = watcher::Result<Event<NodeObject>>>) {
        let mut stream = pin!(stream);
        let mut listing = true;
        // The time at which the pending change is published, if there is one.
        let mut due: Option<Instant> = None;
        loop {
            let next = async {
                match listing {
                    true => timeout(self.page, stream.next()).await.ok(),
                    false => Some(stream.next().await),
                }
            };
            let next = tokio::select! {
                // Events that have arrived become part of the snapshot.
                biased;
                next = next => Some(next),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => None,
            };
            match next {
                None => {
                    due = None;
                    self.publish();
                }
                Some(None) => return self.wait("list Nodes: no reply").await,
                Some(Some(Some(Ok(event)))) => {
                    listing = matches!(event, Event::Init | Event::InitApply(_));
                    if self.apply(event) && due.is_none() {
                        due = Some(Instant::now().max(self.published + PAUSE));
                    }
                    // While events keep arriving, the stream is always ready and the timer is never polled.
                    if due.is_some_and(|due| due + PAUSE <= Instant::now()) {
                        due = None;
                        self.publish();
                    }
                }
                Some(Some(Some(Err(error)))) => {
                    if due.take().is_some() {
                        self.publish();
                    }
                    self.wait(&message(&error)).await;
                    if must_restart(&error) {
                        return;
                    }
                }
                // The watcher never ends by itself.
                Some(Some(None)) => return,
            }
        }
    }

    /// Applies an event and returns true if a snapshot is due.
    fn apply(&mut self, event: Event<NodeObject>) -> bool {
        let is_of_watch = matches!(event, Event::Apply(_) | Event::Delete(_));
        let is_listed = matches!(event, Event::InitDone);
        let changed = self.store.apply(event);
        if is_of_watch {
            count(&self.counters.events);
            if !changed {
                count(&self.counters.unchanged);
            }
            // The event shows that the watch works. A completed list does not, because the watch after it may fail each
            // time.
            kube::runtime::utils::Backoff::reset(&mut self.backoff);
        }
        if is_listed {
            count(&self.counters.lists);
        }
        changed
    }

    fn publish(&mut self) {
        self.published = Instant::now();
        self.sender.send_modify(|last| {
            let generation = last.generation + 1;
            *last = Arc::new(Snapshot { nodes: self.store.nodes.clone(), synced: true, generation });
        });
    }

    /// Logs an error and waits: 0.8 seconds at first, then longer, with jitter (the delays of client-go's reflector).
    async fn wait(&mut self, error: &str) {
        count(&self.counters.failures);
        let delay = self.backoff.next().unwrap_or(DELAY);
        log::warn!("{}; again in {:.1} s", bounded(error, MESSAGE), delay.as_secs_f32());
        sleep(delay).await;
    }
}

/// The Nodes, and the part of a list that is not complete yet.
#[derive(Debug, Default)]
struct Store {
    nodes: Nodes,
    listed: Option<Nodes>,
    synced: bool,
    /// True if an object without a valid name was logged since the list began.
    logged: bool,
}

impl Store {
    /// Applies an event; true if the Nodes changed, or if they are complete for the first time.
    fn apply(&mut self, event: Event<NodeObject>) -> bool {
        match event {
            Event::Init => {
                self.listed = Some(Nodes::new());
                self.logged = false;
                false
            }
            Event::InitApply(object) => {
                if let (Some(node), Some(listed)) = (read(&object, &mut self.logged), &mut self.listed) {
                    listed.insert(node.name.clone(), Arc::new(node));
                }
                false
            }
            Event::InitDone => {
                let Some(listed) = self.listed.take() else { return false };
                let changed = !self.synced || listed != self.nodes;
                self.synced = true;
                if changed {
                    self.nodes = listed;
                }
                changed
            }
            Event::Apply(object) => {
                let Some(node) = read(&object, &mut self.logged) else { return false };
                let changed = self.nodes.get(&node.name).is_none_or(|known| **known != node);
                if changed {
                    self.nodes.insert(node.name.clone(), Arc::new(node));
                }
                changed
            }
            Event::Delete(object) => {
                let node = read(&object, &mut self.logged);
                node.is_some_and(|node| self.nodes.remove(&node.name).is_some())
            }
        }
    }
}

/// The Node; none without a valid name, which no API server accepts.
fn read(object: &NodeObject, logged: &mut bool) -> Option<Node> {
    Node::read(object)
        .inspect_err(|error| {
            if !std::mem::replace(logged, true) {
                log::warn!("the API server sent an invalid Node: {error}");
            }
        })
        .ok()
}

/// True if the stream would otherwise repeat the error, or skip a change.
fn must_restart(error: &watcher::Error) -> bool {
    let source = match error {
        watcher::Error::InitialListFailed(source) | watcher::Error::WatchStartFailed(source) => source,
        watcher::Error::WatchFailed(source) => source,
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => return false,
    };
    match source {
        kube::Error::Api(status) => matches!(status.code, 401 | 410),
        kube::Error::Auth(_) | kube::Error::SerdeError(_) => true,
        _ => false,
    }
}

/// The error with its causes, or the server's reply.
fn message(error: &watcher::Error) -> String {
    let (action, source) = match error {
        watcher::Error::InitialListFailed(source) => ("list Nodes", source),
        watcher::Error::WatchStartFailed(source) | watcher::Error::WatchFailed(source) => {
            ("watch Nodes", source)
        }
        watcher::Error::WatchError(status) => return format!("watch Nodes: {}", reply(status)),
        watcher::Error::NoResourceVersion => return error.to_string(),
    };
    if let kube::Error::Api(status) = source {
        return format!("{action}: {}", reply(status));
    }
    let mut message = format!("{action}: {source}");
    let mut cause = source.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !message.ends_with(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    message
}

fn reply(status: &kube::core::Status) -> String {
    format!("the API server replied {} {}: {}", status.code, status.reason, status.message)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::{Value, json};

    use super::*;

    fn object(name: &str, cidr: &str) -> NodeObject {
        let text = json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"podCIDRs": [cidr]}});
        serde_json::from_value(text).unwrap()
    }

    /// The names of the Nodes with their first pod CIDR.
    fn known(nodes: &Nodes) -> Vec<String> {
        nodes.values().map(|node| format!("{} {}", node.name, node.pod_cidrs[0])).collect()
    }

    /// Applies events and returns for each if it changed something.
    fn apply(store: &mut Store, events: impl IntoIterator<Item = Event<NodeObject>>) -> Vec<bool> {
        events.into_iter().map(|event| store.apply(event)).collect()
    }

    #[test]
    fn a_list_counts_when_it_is_complete() {
        let mut store = Store::default();
        let (a, b) = (|| object("a", "10.1.0.0/24"), || object("b", "10.2.0.0/24"));
        let listed = apply(&mut store, [Event::Init, Event::InitApply(a()), Event::InitApply(b())]);
        assert_eq!((listed, store.nodes.len()), (vec![false; 3], 0));
        assert_eq!(apply(&mut store, [Event::InitDone]), [true]);
        assert_eq!(known(&store.nodes), ["a 10.1.0.0/24", "b 10.2.0.0/24"]);
        // A list that fails and begins again does not count twice, and the Nodes stay until it is complete.
        let again = [Event::Init, Event::InitApply(a()), Event::Init, Event::InitApply(b())];
        assert_eq!(apply(&mut store, again), [false; 4]);
        assert_eq!(store.nodes.len(), 2);
        assert_eq!(apply(&mut store, [Event::InitDone]), [true]);
        assert_eq!(known(&store.nodes), ["b 10.2.0.0/24"]);
        // The same list again.
        assert_eq!(apply(&mut store, [Event::Init, Event::InitApply(b()), Event::InitDone]), [false; 3]);
    }

    #[test]
    fn an_empty_cluster_is_complete() {
        let mut store = Store::default();
        assert_eq!(apply(&mut store, [Event::Init, Event::InitDone]), [false, true]);
        assert_eq!(apply(&mut store, [Event::Init, Event::InitDone]), [false, false]);
    }

    #[test]
    fn events_change_nodes_and_heartbeats_do_not() {
        let mut store = Store::default();
        apply(&mut store, [Event::Init, Event::InitDone]);
        let added = || Event::Apply(object("a", "10.1.0.0/24"));
        assert_eq!(apply(&mut store, [added(), added()]), [true, false]);
        assert_eq!(apply(&mut store, [Event::Apply(object("a", "10.9.0.0/24"))]), [true]);
        assert_eq!(known(&store.nodes), ["a 10.9.0.0/24"]);
        let deleted = || Event::Delete(object("a", "10.9.0.0/24"));
        assert_eq!(apply(&mut store, [deleted(), deleted()]), [true, false]);
        // An object without a valid name is skipped.
        assert_eq!(apply(&mut store, [Event::Apply(object("../a", "10.1.0.0/24"))]), [false]);
        assert!(store.nodes.is_empty());
    }

    fn status(code: u16) -> Box<Status> {
        Box::new(Status { code, message: "a\n".repeat(1000), ..Status::default() })
    }

    #[test]
    fn the_stream_begins_again_if_it_would_repeat_or_skip() {
        use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
        let not_json = || kube::Error::SerdeError(serde_json::from_str::<Value>("{").unwrap_err());
        for (error, restarts) in [
            (WatchStartFailed(kube::Error::Api(status(410))), true),
            (WatchStartFailed(kube::Error::Api(status(401))), true),
            (WatchStartFailed(kube::Error::Api(status(403))), false),
            (InitialListFailed(kube::Error::Api(status(500))), false),
            (WatchFailed(not_json()), true),
            // The watcher lists again by itself.
            (WatchError(status(410)), false),
        ] {
            assert_eq!(must_restart(&error), restarts, "{error:?}");
            assert!(bounded(&message(&error), MESSAGE).len() < 8 * MESSAGE);
            assert!(!bounded(&message(&error), MESSAGE).contains('\n'));
        }
    }

    fn follower(sender: watch::Sender<Arc<Snapshot>>) -> Follower {
        Follower {
            sender,
            counters: Arc::default(),
            store: Store::default(),
            backoff: DefaultBackoff::default(),
            page: Duration::from_secs(70),
            published: Instant::now() - PAUSE,
        }
    }

    /// Nodes that change all the time are published at intervals, not one by one, and the last change is.
    #[test]
    fn a_storm_of_changes_becomes_few_snapshots() {
        let (sender, receiver) = watch::channel(Arc::<Snapshot>::default());
        let mut follower = follower(sender);
        let listed = [Event::Init, Event::InitDone].into_iter();
        let changes = (0..20_000_u32)
            .map(|number| Event::Apply(object("a", &format!("10.{}.{}.0/24", number / 256, number % 256))));
        let stream = futures_util::stream::iter(listed.chain(changes).map(Ok));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let begin = Instant::now();
        let taken = async {
            timeout(Duration::from_secs(60), follower.take(stream.chain(futures_util::stream::pending())))
                .await
        };
        let seen = async {
            loop {
                let snapshot = Arc::clone(&receiver.borrow());
                if known(snapshot.nodes()) == ["a 10.78.31.0/24"] {
                    return snapshot.generation();
                }
                sleep(PAUSE / 10).await;
            }
        };
        let snapshots = runtime.block_on(async {
            tokio::select! {
                _ = taken => panic!("the last change is not published"),
                snapshots = seen => snapshots,
            }
        });
        let most = begin.elapsed().as_millis() / PAUSE.as_millis() + 2;
        assert!(u128::from(snapshots) <= most, "{snapshots} snapshots, {most} at most");
    }

    /// A stream of events reaches the receivers as snapshots: one for a burst, none for a heartbeat.
    #[test]
    fn receivers_are_woken_for_changes_only() {
        let (sender, mut receiver) = watch::channel(Arc::<Snapshot>::default());
        let mut follower = follower(sender);
        let mut take = |events: Vec<Event<NodeObject>>| {
            let stream =
                futures_util::stream::iter(events.into_iter().map(Ok)).chain(futures_util::stream::pending());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let limit = 3 * PAUSE;
            assert!(runtime.block_on(async { timeout(limit, follower.take(stream)).await }).is_err());
        };
        assert!(!receiver.borrow_and_update().synced());
        let a = || object("a", "10.1.0.0/24");
        take(vec![
            Event::Init,
            Event::InitApply(a()),
            Event::InitDone,
            Event::Apply(object("b", "10.2.0.0/24")),
        ]);
        assert!(receiver.has_changed().unwrap());
        let snapshot = Arc::clone(&receiver.borrow_and_update());
        assert_eq!((snapshot.synced(), snapshot.generation(), snapshot.nodes().len()), (true, 1, 2));
        take(vec![
            Event::Init,
            Event::InitApply(a()),
            Event::InitApply(object("b", "10.2.0.0/24")),
            Event::InitDone,
        ]);
        take(vec![
            Event::Init,
            Event::InitApply(a()),
            Event::InitApply(object("b", "10.2.0.0/24")),
            Event::InitDone,
            Event::Apply(a()),
        ]);
        assert!(!receiver.has_changed().unwrap(), "a repeated list and a heartbeat");
        take(vec![Event::Init, Event::InitDone]);
        assert_eq!(receiver.borrow_and_update().nodes().len(), 0);
    }
}
