// SPDX-License-Identifier: MIT OR Apache-2.0

//! slipwayd with Nodes that all change at once: the API server is a part of this process, because a real one on the same
//! processors could not keep up. It serves the list of Nodes in pages and a watch, by HTTP without TLS, and accepts every write.
//!
//! In each second every Node reports its conditions, as a kubelet does, and one of [`MOVING`] Nodes has another InternalIP.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, oneshot};

use super::agent::{Agent, monitor, wait_for, wait_for_routes};
use super::objects;
use super::report::StormSamples;
use super::server::ADDRESS;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{self, tool};

/// The port of the API server.
const PORT: u16 = 6444;
/// The longest wait for all routes.
const SYNC: Duration = Duration::from_secs(300);
/// A Node out of this many has another address with each of its reports.
const MOVING: u32 = 100;
/// The reports that are sent together: 100 pieces of a second.
const PIECES: u32 = 100;
/// Placeholders for a Node's address and version, in the text from which its reports are made.
const ADDRESS_PLACE: &str = "@address@";
const VERSION_PLACE: &str = "@version@";
/// The number of events by which a watch may be behind.
const QUEUE: usize = 1 << 16;

/// The API server: the Nodes as they were at first, and the events since.
#[derive(Clone)]
struct Server {
    nodes: Arc<Vec<String>>,
    events: broadcast::Sender<Arc<str>>,
}

/// Measures the start, and then `seconds` in which every Node changes once a second; 0 leaves that out.
pub(super) async fn measure(
    program: &Path,
    slipway: &Path,
    nodes: u32,
    seconds: u32,
) -> Result<StormSamples> {
    let directory = Path::new("/var/lib").join(format!("storm-{nodes}"));
    files::create_dir(&directory)?;
    let listener = std::net::TcpListener::bind((ADDRESS, PORT)).map_err(|e| Error::system("listen", e))?;
    listener.set_nonblocking(true).map_err(|e| Error::system("listen", e))?;
    let server = Server {
        nodes: Arc::new((0..=nodes).map(|number| object(number, &objects::address(number), "1")).collect()),
        events: broadcast::channel(QUEUE).0,
    };
    let (end, ended) = oneshot::channel();
    let serving = thread::spawn({
        let server = server.clone();
        move || serve(listener, &server, ended)
    });
    let kubeconfig = directory.join("config");
    files::write(&kubeconfig, config().to_string())?;
    let agent = Agent::start(program, slipway, &kubeconfig, &directory)?;
    wait_for_routes(nodes, SYNC).await?;
    let (first_sync, sync_cpu) = (agent.begun.elapsed(), agent.cpu()?);
    tokio::time::sleep(super::SETTLE).await;
    let memory = agent.memory()?;
    let (begun, cpu) = (Instant::now(), agent.cpu()?);
    let (reports, reactions) = storm(&server, nodes, seconds).await?;
    let busy = (agent.cpu()?.saturating_sub(cpu), begun.elapsed());
    let after = agent.memory()?;
    drop(agent);
    drop(end);
    let served = serving.join().map_err(|_| Error::Failed("the API server panicked".to_owned()))?;
    served.map_err(|e| Error::system("serve Nodes", e))?;
    run::capture(&mut tool("ip", &["route", "flush", "proto", "83"]))?;
    Ok(StormSamples { nodes, first_sync, sync_cpu, memory, after, busy, reports, reactions })
}

/// Sends the reports. Returns their number, and the times from a report to the kernel's notification of its route.
async fn storm(server: &Server, nodes: u32, seconds: u32) -> Result<(u32, Vec<Duration>)> {
    // Serializing an object for each report would take longer than the agent needs to read it.
    let forms: Vec<String> = (0..=nodes).map(|number| object(number, ADDRESS_PLACE, VERSION_PLACE)).collect();
    let (mut version, mut sent, mut reactions) = (2_u64, 0, Vec::new());
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / PIECES);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    for second in 0..seconds {
        // The address of a single moving Node is watched.
        let watched = 1 + second * MOVING % nodes;
        let monitor = monitor()?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut begun = None;
        for piece in 0..PIECES {
            ticks.tick().await;
            for number in (1..=nodes).skip(piece as usize).step_by(PIECES as usize) {
                let address =
                    if number % MOVING == 1 { moved(number, second) } else { objects::address(number) };
                let object = forms[number as usize]
                    .replace(ADDRESS_PLACE, &address)
                    .replace(VERSION_PLACE, &version.to_string());
                version += 1;
                // Without a watch nobody receives it.
                let _nobody =
                    server.events.send(format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n").into());
                sent += 1;
                if number == watched {
                    begun = Some(Instant::now());
                }
            }
        }
        if let Some(begun) = begun {
            let (subnet, gateway) = (objects::pod_cidr(watched), moved(watched, second));
            let seen = tokio::task::spawn_blocking(move || wait_for(&monitor, &subnet, &gateway)).await;
            let seen = seen.map_err(|e| Error::Failed(format!("wait for a route: {e}")))??;
            reactions.push(seen.saturating_duration_since(begun));
        }
    }
    Ok((sent, reactions))
}

/// The address of a moving Node in a second.
fn moved(number: u32, second: u32) -> String {
    format!("10.50.{}.{}", 200 + second % 2 * 20 + number / 25_000, number / MOVING % 250 + 1)
}

/// A Node's JSON text.
fn object(number: u32, address: &str, version: &str) -> String {
    let mut node = objects::node(number);
    node["metadata"]["resourceVersion"] = version.into();
    node["metadata"]["uid"] = format!("00000000-0000-0000-0000-{number:012}").into();
    node["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    node["status"]["addresses"] = objects::moved(number, address)["status"]["addresses"].clone();
    node.to_string()
}

fn config() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{ "name": "bench", "cluster": { "server": format!("http://{ADDRESS}:{PORT}") } }],
        "users": [{ "name": "bench", "user": { "token": "bench" } }],
        "contexts": [{ "name": "bench", "context": { "cluster": "bench", "user": "bench" } }],
    })
}

/// Serves in this thread, so that nothing else of this process keeps a request waiting.
fn serve(
    listener: std::net::TcpListener,
    server: &Server,
    ended: oneshot::Receiver<()>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let accept = async {
            loop {
                let (stream, _) = listener.accept().await?;
                let server = server.clone();
                tokio::spawn(async move {
                    // The client has gone.
                    let _ended = connection(stream, &server).await;
                });
            }
        };
        tokio::select! {
            failed = accept => failed,
            _ = ended => Ok(()),
        }
    })
}

/// Replies to the requests of a connection.
async fn connection(stream: TcpStream, server: &Server) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).await?;
            if header.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = header.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let target = line.split(' ').nth(1).unwrap_or_default();
        if target.contains("watch=true") {
            return watch(stream.into_inner(), server).await;
        }
        // An object that is written comes back as it was sent.
        let reply = if line.starts_with("GET ") { page(target, server).into_bytes() } else { body };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            reply.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&reply).await?;
    }
}

/// A page of the list: `continue` is the number of its first Node.
fn page(target: &str, server: &Server) -> String {
    let parameter = |name: &str| {
        let (_, query) = target.split_once('?')?;
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?.parse::<usize>().ok()
    };
    let first = parameter("continue").unwrap_or(0);
    let end = (first + parameter("limit").unwrap_or(usize::MAX)).min(server.nodes.len());
    let next = if end < server.nodes.len() { end.to_string() } else { String::new() };
    format!(
        r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{{"resourceVersion":"1","continue":"{next}"}},"items":[{}]}}"#,
        server.nodes[first..end].join(",")
    )
}

/// Sends events in chunks until the client is gone or too far behind.
async fn watch(mut stream: TcpStream, server: &Server) -> std::io::Result<()> {
    let mut events = server.events.subscribe();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    while let Ok(event) = events.recv().await {
        let mut ready = VecDeque::from([event]);
        while let Ok(event) = events.try_recv() {
            ready.push_back(event);
        }
        let mut chunks = Vec::new();
        for event in ready {
            chunks.extend_from_slice(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
        }
        stream.write_all(&chunks).await?;
    }
    Ok(())
}
