// SPDX-License-Identifier: GPL-3.0-or-later

//! The agent's HTTP server: `/healthz`, `/readyz` and `/metrics` at an address, and with `/status` and `/recent` at a
//! Unix socket. Probes have an address of their own, with `/healthz` and `/readyz` alone.
//!
//! Anyone who reaches an address can open any number of connections, but none of them keeps a probe waiting:
//! [`connections`](super::connections) closes some of those that wait for a request, and replies that take work have
//! slots of their own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use cni_kernel::unix::bind;
use cni_state::documents::{Document, Form};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::Observer;
use super::connections::{Client, Connections};

/// The usual address.
pub const ADDRESS: &str = "127.0.0.1:9254";
/// The usual address for probes.
pub const PROBE_ADDRESS: &str = "127.0.0.1:9255";

/// The length of the kernel's queue of new connections. It takes `net.core.somaxconn` if that is less, 4096 as a rule.
const QUEUE: u32 = 4096;
/// The most replies at a time that read files or run commands.
const WORKERS: usize = 4;
/// The time for the header of a request.
const HEADER: Duration = Duration::from_secs(5);
/// The time of a connection: its header, the commands for metrics of the dataplane, and the reply.
const CONNECTION: Duration = Duration::from_secs(15);
/// The largest header, in bytes: the least that hyper allows.
const LARGEST_HEADER: usize = 8 << 10;
/// The wait before a failed call is repeated.
const AGAIN: Duration = Duration::from_secs(30);
/// The wait after a connection could not be accepted: the process may have too many files open.
const PAUSE: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A place where the server listens.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The requests that a listener replies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// `/healthz` and `/readyz`.
    Probes,
    /// `/healthz`, `/readyz` and `/metrics`.
    Monitoring,
    /// All requests.
    Root,
}

trait Stream: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Stream for T {}

impl Listener {
    async fn accept(&self) -> io::Result<(Pin<Box<dyn Stream>>, Client)> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                (Box::pin(stream), Client::at(address.ip()))
            }
            Self::Unix(listener) => (Box::pin(listener.accept().await?.0), Client::Local),
        })
    }
}

/// Replies at an address, without end. If it cannot be bound, tries again.
pub async fn serve_address(observer: Arc<Observer>, address: SocketAddr) {
    listen(&observer, address, Scope::Monitoring).await;
}

/// Replies to probes at an address, without end. If it cannot be bound, tries again.
pub async fn serve_probes(observer: Arc<Observer>, address: SocketAddr) {
    listen(&observer, address, Scope::Probes).await;
}

async fn listen(observer: &Arc<Observer>, address: SocketAddr, scope: Scope) {
    loop {
        match bind_address(address) {
            Ok(listener) => serve(observer, &Listener::Tcp(listener), scope).await,
            Err(error) => {
                log::warn!("listen on {address}: {error}; again in {} s", AGAIN.as_secs());
                sleep(AGAIN).await;
            }
        }
    }
}

/// Does the same as [`TcpListener::bind`], but with a longer queue. A client that connects faster than connections are
/// accepted must not fill the queue, because the kernel would resend the first packet of other clients only after a
/// second.
fn bind_address(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(QUEUE)
}

/// Replies at a Unix socket of root, without end. If it cannot be bound, tries again.
pub async fn serve_socket(observer: Arc<Observer>, path: &Path) {
    loop {
        match bind(path, |path| UnixListener::bind(path)) {
            Ok(listener) => serve(&observer, &Listener::Unix(listener), Scope::Root).await,
            Err(error) => {
                log::warn!("listen on {path:?}: {error}; again in {} s", AGAIN.as_secs());
                sleep(AGAIN).await;
            }
        }
    }
}

async fn serve(observer: &Arc<Observer>, listener: &Listener, scope: Scope) {
    let connections = Arc::<Connections>::default();
    let workers = Arc::new(Semaphore::new(WORKERS));
    loop {
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                log::debug!("accept a connection: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let (open, closed) = connections.add(client);
        let (observer, workers) = (Arc::clone(observer), Arc::clone(&workers));
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| async {
                open.replies();
                let (head, _body) = request.into_parts();
                Ok::<_, Infallible>(respond(&observer, &workers, &head.method, head.uri.path(), scope).await)
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADER).max_buf_size(LARGEST_HEADER);
            let connection = http.keep_alive(false).serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ = closed => log::debug!("closed a connection of {client:?}, as there were too many"),
                done = timeout(CONNECTION, connection) => match done {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => log::debug!("reply to a request: {error}"),
                    Err(_) => log::debug!("reply to a request: not read within {} s", CONNECTION.as_secs()),
                },
            }
        });
        // The new task reads its request now, before connections that come later may close it.
        tokio::task::yield_now().await;
    }
}

/// Returns the reply to a request. If that takes work, the reply waits for one of the `workers`.
async fn respond(
    observer: &Observer,
    workers: &Semaphore,
    method: &Method,
    path: &str,
    scope: Scope,
) -> Response<String> {
    if ![Method::GET, Method::HEAD].contains(method) {
        let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/healthz" => return checked(observer.healthy()),
        "/readyz" => return checked(observer.ready()),
        _ => {}
    }
    // The semaphore is never closed.
    let _worker = workers.acquire().await;
    match path {
        "/metrics" if scope != Scope::Probes => match observer.print_metrics().await {
            Ok(text) => response(StatusCode::OK, OPENMETRICS, text),
            Err(fmt::Error) => response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "no metrics\n".to_owned()),
        },
        "/recent" if scope == Scope::Root => printed(observer.activity()),
        "/status" if scope == Scope::Root => printed(observer.status().await),
        _ => response(StatusCode::NOT_FOUND, TEXT, "not found\n".to_owned()),
    }
}

/// A document that another command reads.
fn printed(document: impl Serialize + Form) -> Response<String> {
    match serde_json::to_string(&Document::new(document)) {
        Ok(text) => response(StatusCode::OK, JSON, text),
        Err(error) => response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}

fn checked(outcome: Result<(), impl fmt::Display>) -> Response<String> {
    match outcome {
        Ok(()) => response(StatusCode::OK, TEXT, "ok\n".to_owned()),
        Err(reason) => response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{reason}\n")),
    }
}

fn response(status: StatusCode, kind: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpStream, UnixStream};

    use super::super::connections::ALL;
    use super::super::tests::observer;
    use super::*;

    /// Sends bytes, and returns the reply up to its end.
    async fn exchange(path: &Path, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut reply = Vec::new();
        // Closing a socket with unread bytes would reset the connection.
        let _reset = stream.read_to_end(&mut reply).await;
        String::from_utf8(reply).unwrap()
    }

    /// Runs `body` with a server at a socket.
    async fn with_server(body: impl AsyncFnOnce(&Path)) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("slipwayd.sock");
        let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
        let observer = Arc::new(observer());
        tokio::select! {
            () = serve(&observer, &listener, Scope::Root) => unreachable!("it has no end"),
            () = body(&path) => {}
        }
    }

    /// Runs `body` with a server at a loopback address.
    async fn with_address(scope: Scope, body: impl AsyncFnOnce(SocketAddr)) {
        let listener = bind_address("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let (observer, listener) = (Arc::new(observer()), Listener::Tcp(listener));
        tokio::select! {
            () = serve(&observer, &listener, scope) => unreachable!("it has no end"),
            () = body(address) => {}
        }
    }

    /// The time that a probe takes, which must succeed.
    async fn probe(address: SocketAddr) -> Duration {
        let begin = tokio::time::Instant::now();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
        begin.elapsed()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn requests_get_replies() {
        with_server(async |path| {
            for (request, status, body) in [
                ("GET /healthz", "200 OK", "\r\n\r\nok\n"),
                ("HEAD /healthz", "200 OK", "\r\n\r\n"),
                ("GET /healthz?verbose", "200 OK", "\r\n\r\nok\n"),
                ("GET /readyz", "503 Service Unavailable", "\r\n\r\nthe list of Nodes is not complete\n"),
                ("GET /", "404 Not Found", "\r\n\r\nnot found\n"),
                ("POST /metrics", "405 Method Not Allowed", "only GET and HEAD\n"),
                ("GET /metrics", "200 OK", "\n# EOF\n"),
                ("GET /status", "200 OK", "}"),
                ("GET /recent", "200 OK", r#"{"schema":1,"node":"node-1","calls":[],"repairs":[]}"#),
            ] {
                let reply = exchange(path, format!("{request} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await;
                let is_so = reply.starts_with(&format!("HTTP/1.1 {status}\r\n")) && reply.ends_with(body);
                assert!(is_so, "{request}: {reply}");
            }
        })
        .await;
    }

    #[tokio::test(flavor = "current_thread")]
    async fn addresses_have_fewer_documents_than_the_socket() {
        let (observer, workers) = (observer(), Semaphore::new(WORKERS));
        let get = async |path, scope| respond(&observer, &workers, &Method::GET, path, scope).await.status();
        assert_eq!(get("/status", Scope::Monitoring).await, StatusCode::NOT_FOUND);
        assert_eq!(get("/metrics", Scope::Monitoring).await, StatusCode::OK);
        assert_eq!(get("/metrics", Scope::Probes).await, StatusCode::NOT_FOUND);
        assert_eq!(get("/healthz", Scope::Probes).await, StatusCode::OK);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_large_header_is_refused() {
        with_server(async |path| {
            let request =
                format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(3 * LARGEST_HEADER));
            let reply = exchange(path, request.as_bytes()).await;
            assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 431 "), "{reply}");
        })
        .await;
    }

    /// Clients that send nothing are disconnected after the time limit for a header, and keep no probe waiting until
    /// then.
    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn silent_clients_are_disconnected_and_hold_nothing() {
        with_server(async |path| {
            let mut silent = Vec::new();
            for _ in 0..2 * ALL {
                silent.push(UnixStream::connect(path).await.unwrap());
                tokio::task::yield_now().await;
            }
            let begin = tokio::time::Instant::now();
            let reply = exchange(path, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
            assert_eq!(begin.elapsed(), Duration::ZERO);
            let mut end = [0];
            assert_eq!(silent.last_mut().unwrap().read(&mut end).await.unwrap(), 0);
            assert!((HEADER..CONNECTION).contains(&begin.elapsed()), "{:?}", begin.elapsed());
        })
        .await;
    }

    /// Slow clients send incomplete headers, or do not read their replies. A probe must still take less than a second.
    #[tokio::test(flavor = "current_thread")]
    async fn slow_clients_keep_no_probe_waiting() {
        with_address(Scope::Monitoring, async |address| {
            let mut clients = Vec::new();
            for number in 0..2 * ALL {
                let mut stream = TcpStream::connect(address).await.unwrap();
                let sent: &[u8] = match number % 3 {
                    0 => b"G",
                    1 => b"GET /healthz HTTP/1.1\r\n",
                    _ => b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
                };
                // The connection may have been closed by now.
                let _closed = stream.write_all(sent).await;
                clients.push(stream);
                if number % 64 == 0 {
                    assert!(probe(address).await < Duration::from_secs(1));
                }
            }
            assert!(probe(address).await < Duration::from_secs(1));
        })
        .await;
    }

    /// A client connects again and again. Its connections are in the kernel's queue before the connection of each
    /// probe.
    #[tokio::test(flavor = "current_thread")]
    async fn a_flood_of_connections_keeps_no_probe_waiting() {
        with_address(Scope::Probes, async |address| {
            let mut held = std::collections::VecDeque::new();
            for _ in 0..20 {
                // This thread accepts the connections while its probe waits. There are too few of them to fill the queue, in
                // which every client would have to wait.
                held.extend((0..100).map(|_| std::net::TcpStream::connect(address).unwrap()));
                while held.len() > 2 * ALL {
                    held.pop_front();
                }
                // A kubelet waits this long for a probe.
                assert!(probe(address).await < Duration::from_secs(5));
            }
        })
        .await;
    }
}
