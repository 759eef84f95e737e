// SPDX-License-Identifier: GPL-3.0-or-later

//! The agent's HTTP server: `/healthz`, `/readyz` and `/metrics` at an address, and with `/status` and `/recent` at a Unix socket.

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
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::Observer;

/// The usual address.
pub const ADDRESS: &str = "127.0.0.1:9254";

/// The most connections at a time; others wait in the kernel's queue.
const CONNECTIONS: usize = 16;
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

trait Stream: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Stream for T {}

impl Listener {
    async fn accept(&self) -> io::Result<Pin<Box<dyn Stream>>> {
        Ok(match self {
            Self::Tcp(listener) => Box::pin(listener.accept().await?.0),
            Self::Unix(listener) => Box::pin(listener.accept().await?.0),
        })
    }
}

/// Replies at an address, without end. If it cannot be bound, tries again.
pub async fn serve_address(observer: Arc<Observer>, address: SocketAddr) {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => serve(&observer, &Listener::Tcp(listener)).await,
            Err(error) => {
                log::warn!("listen on {address}: {error}; again in {} s", AGAIN.as_secs());
                sleep(AGAIN).await;
            }
        }
    }
}

/// Replies at a Unix socket of root, without end. If it cannot be bound, tries again.
pub async fn serve_socket(observer: Arc<Observer>, path: &Path) {
    loop {
        match bind(path, |path| UnixListener::bind(path)) {
            Ok(listener) => serve(&observer, &Listener::Unix(listener)).await,
            Err(error) => {
                log::warn!("listen on {path:?}: {error}; again in {} s", AGAIN.as_secs());
                sleep(AGAIN).await;
            }
        }
    }
}

async fn serve(observer: &Arc<Observer>, listener: &Listener) {
    let is_local = matches!(listener, Listener::Unix(_));
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                log::debug!("accept a connection: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let observer = Arc::clone(observer);
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| async {
                let (head, _body) = request.into_parts();
                Ok::<_, Infallible>(respond(&observer, &head.method, head.uri.path(), is_local).await)
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADER).max_buf_size(LARGEST_HEADER);
            let connection = http.keep_alive(false).serve_connection(TokioIo::new(stream), service);
            match timeout(CONNECTION, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => log::debug!("reply to a request: {error}"),
                Err(_) => log::debug!("reply to a request: not read within {} s", CONNECTION.as_secs()),
            }
            drop(permit);
        });
    }
}

/// The reply to a request. `is_local` allows what only root may read.
async fn respond(observer: &Observer, method: &Method, path: &str, is_local: bool) -> Response<String> {
    if ![Method::GET, Method::HEAD].contains(method) {
        let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/healthz" => checked(observer.healthy()),
        "/readyz" => checked(observer.ready()),
        "/metrics" => match observer.print_metrics().await {
            Ok(text) => response(StatusCode::OK, OPENMETRICS, text),
            Err(fmt::Error) => response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "no metrics\n".to_owned()),
        },
        "/recent" if is_local => printed(observer.activity()),
        "/status" if is_local => printed(observer.status().await),
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
    use tokio::net::UnixStream;

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
            () = serve(&observer, &listener) => unreachable!("it has no end"),
            () = body(&path) => {}
        }
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
    async fn the_address_has_no_status() {
        let reply = respond(&observer(), &Method::GET, "/status", false).await;
        assert_eq!(reply.status(), StatusCode::NOT_FOUND);
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

    /// Clients that send nothing hold connections for the time of a header, and no longer.
    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn silent_clients_are_disconnected() {
        with_server(async |path| {
            let mut silent = Vec::new();
            for _ in 0..CONNECTIONS {
                silent.push(UnixStream::connect(path).await.unwrap());
            }
            let begin = tokio::time::Instant::now();
            let reply = exchange(path, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
            let waited = begin.elapsed();
            assert!((HEADER..CONNECTION).contains(&waited), "{waited:?}");
        })
        .await;
    }
}
