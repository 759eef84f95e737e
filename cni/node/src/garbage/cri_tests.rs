// SPDX-License-Identifier: GPL-3.0-or-later

//! Servers that do not reply with a complete list. Real runtimes are in the suite `real`.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::header::HeaderValue;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;

use super::*;

/// A reply: the HTTP status, parts of the body, and gRPC's status if it has one.
#[derive(Clone)]
struct Reply {
    http: u16,
    parts: Vec<Vec<u8>>,
    status: Option<u32>,
}

impl Reply {
    fn new(parts: Vec<Vec<u8>>, status: Option<u32>) -> Self {
        Self { http: 200, parts, status }
    }

    fn response(
        self,
    ) -> Response<StreamBody<impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>>>> {
        let mut frames: Vec<Result<Frame<Bytes>, Infallible>> =
            self.parts.into_iter().map(|part| Ok(Frame::data(part.into()))).collect();
        if let Some(status) = self.status {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", status.into());
            trailers.insert("grpc-message", HeaderValue::from_static("server is not initialized yet"));
            frames.push(Ok(Frame::trailers(trailers)));
        }
        let mut response = Response::new(StreamBody::new(futures_util::stream::iter(frames)));
        *response.status_mut() = StatusCode::from_u16(self.http).unwrap();
        response
    }
}

/// A message with its prefix, which names this length.
fn framed(length: u32, message: &[u8]) -> Vec<u8> {
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// Runs `body` with a server at a socket that replies to each request; returns the paths of the requests.
async fn with_server(reply: Reply, body: impl AsyncFnOnce(&Path)) -> Vec<String> {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("cri.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let paths = Arc::new(Mutex::new(Vec::new()));
    let serve = async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (reply, paths) = (reply.clone(), Arc::clone(&paths));
            tokio::spawn(async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    paths.lock().unwrap().push(request.uri().path().to_owned());
                    let reply = reply.clone();
                    async move { Ok::<_, Infallible>(reply.response()) }
                });
                // A client that has seen enough closes the connection.
                let _ended =
                    Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            });
        }
    };
    tokio::select! {
        () = serve => unreachable!("it has no end"),
        () = body(&path) => {}
    }
    let paths = paths.lock().unwrap();
    paths.clone()
}

async fn error_of(reply: Reply) -> String {
    let mut error = String::new();
    with_server(reply, async |path| error = list(path).await.unwrap_err().to_string()).await;
    error
}

#[tokio::test(flavor = "current_thread")]
async fn a_reply_that_is_not_a_whole_list_is_an_error() {
    let one = b"\x0a\x03\x0a\x01a";
    let partial = b"\x0a\x03\x0a\x01a\x12\x04next";
    for (reply, error) in [
        (Reply::new(vec![framed(5, one)], None), "the reply ended without a status"),
        (Reply::new(vec![framed(5, one)], Some(14)), "the runtime replied 14: server is not initialized yet"),
        (Reply::new(vec![framed(100, one)], Some(0)), "the reply is not one whole message"),
        (Reply::new(vec![framed(5, one), framed(5, one)], Some(0)), "the reply is not one whole message"),
        (Reply::new(vec![vec![1, 0, 0, 0, 0]], Some(0)), "the reply is not one whole message"),
        (Reply::new(vec![], Some(0)), "the reply is not one whole message"),
        (Reply::new(vec![framed(4, &one[..4])], Some(0)), "the message is cut"),
        (Reply::new(vec![framed(11, partial)], Some(0)), "the list is only a part: it names a next page"),
        (
            Reply { http: 503, ..Reply::new(vec![], None) },
            "the reply has the HTTP status 503 Service Unavailable",
        ),
        (Reply::new(vec![vec![0; 1 << 20]; 17], Some(0)), "the reply is longer than 16777216 bytes"),
    ] {
        assert_eq!(error_of(reply).await, error);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn the_former_version_is_tried_where_the_current_one_is_missing() {
    let reply = Reply::new(vec![], Some(UNIMPLEMENTED));
    let paths = with_server(reply, async |path| {
        assert!(matches!(list(path).await, Err(CallError::Unimplemented)));
        // As Docker's containerd replies.
        let runtimes = Runtimes { are_given: false, ..Runtimes::at(vec![path.to_owned()]) };
        assert_eq!(runtimes.sandboxes().await.unwrap(), None);
        let error = Runtimes::at(vec![path.to_owned()]).sandboxes().await.unwrap_err().to_string();
        assert!(error.ends_with("/cri.sock\": it has no Container Runtime Interface"), "{error}");
    })
    .await;
    let versions = VERSIONS.map(|version| format!("/{version}.RuntimeService/ListPodSandbox"));
    assert_eq!(paths, [&versions[..]; 3].concat());
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_server_that_hangs_is_not_waited_for() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("cri.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    assert!(matches!(list(&path).await, Err(CallError::TimedOut)));
}

#[tokio::test(flavor = "current_thread")]
async fn a_connection_that_breaks_is_an_error() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("cri.sock");
    let listener = UnixListener::bind(&path).unwrap();
    for reply in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0xff; 64]] {
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _read = stream.read(&mut [0; 24]).await.unwrap();
            stream.write_all(reply).await.unwrap();
        };
        let (listed, ()) = tokio::join!(list(&path), serve);
        assert!(matches!(listed, Err(CallError::Connection(_))), "{listed:?}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_node_without_a_runtime_has_no_list() {
    let temp = tempfile::tempdir().unwrap();
    assert_eq!(Runtimes::usual().below(temp.path()).sandboxes().await.unwrap(), None);
    // A socket that was named must reply.
    let named = Runtimes::at(vec!["/run/other.sock".into()]).below(temp.path());
    let error = named.sandboxes().await.unwrap_err().to_string();
    assert!(
        error.starts_with("list the pod sandboxes by \"/run/other.sock\": connect: No such file"),
        "{error}"
    );
    // A socket that a runtime has left behind does not answer.
    let run = temp.path().join("run/crio");
    std::fs::create_dir_all(&run).unwrap();
    drop(UnixListener::bind(run.join("crio.sock")).unwrap());
    let error = Runtimes::usual().below(temp.path()).sandboxes().await.unwrap_err().to_string();
    assert!(error.starts_with("list the pod sandboxes by \"/run/crio/crio.sock\": connect: "), "{error}");
}
