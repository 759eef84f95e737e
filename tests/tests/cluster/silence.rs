// SPDX-License-Identifier: GPL-2.0-or-later

//! An API server that accepts requests and never replies to some of them. Also tests what the agent writes into a Node
//! that was deleted and created again.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};
use slipway_tests::{Node, patience, within};
use slipwayd::cluster::access::Access;
use slipwayd::cluster::announce::{self, Announcement, Unavailable};
use slipwayd::cluster::events::{self, Notice};
use slipwayd::cluster::source;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::name;

/// The time limit for a reply in tests where some requests get none.
const SHORT: Duration = Duration::from_millis(500);

/// A request that the server has received.
#[derive(Debug)]
struct Request {
    method: String,
    /// The path with the query.
    path: String,
    body: Value,
}

impl Request {
    /// Reads the next request of a connection, or none at the connection's end.
    async fn read(stream: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.ok().filter(|length| *length > 0)?;
            match line.trim_end() {
                "" => break,
                text => lines.push(text.to_lowercase()),
            }
        }
        let length = lines.iter().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a number"))];
        stream.read_exact(&mut body).await.ok()?;
        let mut words = lines.first()?.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        Some(Self { method, path, body: serde_json::from_slice(&body).unwrap_or_default() })
    }
}

/// Replies to the requests of a connection and counts them.
async fn serve(
    stream: TcpStream,
    reply: Reply,
    received: mpsc::UnboundedSender<Request>,
    count: Rc<Cell<usize>>,
) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = Request::read(&mut stream).await {
        let body = reply(count.replace(count.get() + 1), &request);
        let _ended = received.send(request);
        let Some(body) = body.map(|body| body.to_string()) else { return std::future::pending().await };
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json";
        let text = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Returns the reply to a request with this number (from 0), or none if the server is to stay silent.
type Reply = fn(usize, &Request) -> Option<Value>;
type Requests = mpsc::UnboundedReceiver<Request>;

/// Runs `body` on a node with a server. Requests to the server have this time limit.
fn with_server(limit: Duration, reply: Reply, body: impl AsyncFnOnce(Access, Requests) + Send) {
    Node::new().run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        LocalSet::new().block_on(&runtime.expect("a tokio runtime"), at_server(limit, reply, body));
    });
}

async fn at_server(limit: Duration, reply: Reply, body: impl AsyncFnOnce(Access, Requests)) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let temp = tempfile::tempdir().expect("a directory");
    let path = temp.path().join("config");
    // Without an authority in the kubeconfig, the client would read the system's certificates, and a VM has none.
    let authority = base64::engine::general_purpose::STANDARD.encode(include_str!("authority.pem"));
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": authority}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "users": [{"name": "test", "user": {}}],
    });
    std::fs::write(&path, config.to_string()).expect("write the kubeconfig");
    let (received, requests) = mpsc::unbounded_channel();
    spawn_local(async move {
        let count = Rc::default();
        while let Ok((stream, _)) = listener.accept().await {
            spawn_local(serve(stream, reply, received.clone(), Rc::clone(&count)));
        }
    });
    let access = Access { reply: limit, silence: limit, ..Access::new(Some(path)) };
    timeout(within(Duration::from_secs(60)), body(access, requests)).await.expect("it ends");
}

/// Fails unless these are the next requests.
async fn expect(requests: &mut Requests, expected: &[(&str, &str)]) {
    for (method, path) in expected {
        let request = requests.recv().await.expect("a request");
        let is_so = request.method == *method && request.path.split('?').next() == Some(path);
        assert!(is_so, "{method} {path}: {request:?}");
    }
}

const NODE: &str = "/api/v1/nodes/node-1";
const STATUS: &str = "/api/v1/nodes/node-1/status";

/// The agent's own Node, with a startup taint.
fn node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "resourceVersion": "1"},
        "spec": {"taints": [{"key": "starting", "effect": "NoSchedule"}]},
    })
}

fn announcement(uid: &str, unavailable: Unavailable) -> Announcement {
    Announcement { uid: Some(uid.into()), unavailable: Some(unavailable), ..Announcement::default() }
}

#[test]
fn a_patch_without_a_reply_is_sent_again() {
    with_server(
        within(SHORT),
        |number, _| (number > 0).then(node),
        async |access, mut requests| {
            let (sender, announcements) = watch::channel(announcement("1", Unavailable::No));
            let body = async {
                expect(&mut requests, &[("patch", STATUS), ("patch", STATUS)]).await;
                sender.send(announcement("1", Unavailable::Because("a test".to_owned()))).expect("it runs");
                let request = requests.recv().await.expect("a request");
                assert_eq!(request.body["status"]["conditions"][0]["message"], "a test", "{request:?}");
            };
            tokio::select! {
                () = announce::follow(access, name(1), announcements, Vec::new()) => panic!("it ended"),
                () = body => {}
            }
        },
    );
}

#[test]
fn an_event_without_a_reply_does_not_keep_the_next_one() {
    with_server(
        within(SHORT),
        |number, request| (number > 0).then(|| request.body.clone()),
        async |access, mut requests| {
            let (sender, notices) = mpsc::channel(2);
            for text in ["one", "two"] {
                let notice = Notice { node: name(1), reason: "Test".to_owned(), text: text.to_owned() };
                sender.send(notice).await.expect("room");
            }
            let body = async {
                for text in ["one", "two"] {
                    let request = requests.recv().await.expect("a request");
                    assert_eq!((request.method.as_str(), &request.body["message"]), ("post", &text.into()));
                }
            };
            tokio::select! {
                () = events::follow(access, name(1), notices) => panic!("it ended"),
                () = body => {}
            }
        },
    );
}

#[test]
fn a_list_and_a_watch_without_a_reply_begin_again() {
    let list = |number: usize, _: &Request| {
        let list = json!({
            "apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": [node()],
        });
        (number == 1).then_some(list)
    };
    with_server(within(SHORT), list, async |access, mut requests| {
        let (snapshots, _, follow) = source::follow(access);
        let body = async {
            for is_watch in [false, false, true, true] {
                let request = requests.recv().await.expect("a request");
                assert_eq!(request.path.contains("watch=true"), is_watch, "{request:?}");
            }
            assert_eq!(snapshots.borrow().nodes().len(), 1);
        };
        tokio::select! {
            () = follow => panic!("it ended"),
            () = body => {}
        }
    });
}

/// A Node that is deleted and created again has lost the condition and the annotations, and has its startup taints
/// again.
#[test]
fn a_node_that_is_created_again_is_written_again() {
    const FIRST: [(&str, &str); 3] = [("patch", STATUS), ("get", NODE), ("patch", NODE)];
    with_server(
        patience(),
        |_, _| Some(node()),
        async |access, mut requests| {
            let (sender, announcements) = watch::channel(Announcement::default());
            let send = |announcement| sender.send(announcement).expect("it runs");
            let body = async {
                send(announcement("1", Unavailable::No));
                expect(&mut requests, &FIRST).await;
                // First the agent notices that the Node is missing, and the second time it does not.
                send(Announcement::default());
                sleep(Duration::from_millis(100)).await;
                for uid in ["2", "3"] {
                    send(announcement(uid, Unavailable::No));
                    expect(&mut requests, &FIRST).await;
                }
                // The condition may change, but each Node is set up only once.
                send(announcement("3", Unavailable::Because("a test".to_owned())));
                expect(&mut requests, &[("patch", STATUS)]).await;
                send(announcement("3", Unavailable::No));
                expect(&mut requests, &[("patch", STATUS)]).await;
                send(announcement("4", Unavailable::No));
                expect(&mut requests, &FIRST).await;
            };
            let taints = vec!["starting".parse().expect("a taint")];
            tokio::select! {
                () = announce::follow(access, name(1), announcements, taints) => panic!("it ended"),
                () = body => {}
            }
        },
    );
}
