// SPDX-License-Identifier: GPL-3.0-or-later

//! The pod sandboxes of the node's container runtimes: `ListPodSandbox` of the Container Runtime Interface, by gRPC
//! (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>) over a Unix socket.
//!
//! A single call with an empty request and a flat reply needs only HTTP/2, which `hyper` has, and no code generator.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::header::{CONTENT_TYPE, HeaderMap, TE};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::wire::{self, WireError};
use crate::excerpt::bounded;

/// The usual sockets of containerd and CRI-O.
pub(crate) const SOCKETS: [&str; 2] = ["/run/containerd/containerd.sock", "/run/crio/crio.sock"];

/// The versions of the interface, the current one first: containerd 1.5 and earlier have the second alone.
const VERSIONS: [&str; 2] = ["runtime.v1", "runtime.v1alpha2"];
/// The time limit for a list.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest reply, in bytes: that of kubelet's own client.
const LONGEST: usize = 16 << 20;
/// The bytes before a message: one for compression, four for the length.
const PREFIX: usize = 5;
/// The most characters of a runtime's message in an error.
const MESSAGE: usize = 300;
/// gRPC's code for a method that the server does not have.
const UNIMPLEMENTED: u32 = 12;

/// The runtimes cannot be asked, or one replied with something else than a complete list.
#[derive(Debug, thiserror::Error)]
#[error("list the pod sandboxes by {path:?}: {source}")]
pub struct CriError {
    path: PathBuf,
    source: CallError,
}

/// The failure of a call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The socket cannot be connected to.
    #[error("connect: {0}")]
    Connect(io::Error),
    /// The reply did not arrive in time.
    #[error("no reply within {limit} s", limit = LIMIT.as_secs())]
    TimedOut,
    /// The connection failed.
    #[error("{0}")]
    Connection(#[from] hyper::Error),
    /// The request cannot be written.
    #[error("{0}")]
    Request(#[from] http::Error),
    /// An HTTP status that is not 200.
    #[error("the reply has the HTTP status {0}")]
    Status(StatusCode),
    /// No status of gRPC: the reply ended early.
    #[error("the reply ended without a status")]
    NoStatus,
    /// The runtime has no such interface.
    #[error("it has no Container Runtime Interface")]
    Unimplemented,
    /// The runtime refused the call.
    #[error("the runtime replied {0}: {1}")]
    Refused(u32, String),
    /// The reply is longer than 16 MiB.
    #[error("the reply is longer than {LONGEST} bytes")]
    TooLong,
    /// Not one uncompressed message of the length that it names.
    #[error("the reply is not one whole message")]
    Framing,
    /// The message is not a complete list.
    #[error(transparent)]
    Message(#[from] WireError),
}

/// The sockets of the node's runtimes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtimes {
    sockets: Vec<PathBuf>,
    /// True if each socket was named by the operator.
    are_given: bool,
    /// The root directory of the node, as this process sees it.
    root: PathBuf,
}

impl Runtimes {
    /// The usual sockets: those that exist are asked.
    #[must_use]
    pub fn usual() -> Self {
        Self { sockets: SOCKETS.map(PathBuf::from).into(), are_given: false, root: "/".into() }
    }

    /// The runtimes at the given sockets, all of which must reply.
    #[must_use]
    pub fn at(sockets: Vec<PathBuf>) -> Self {
        Self { sockets, are_given: true, root: "/".into() }
    }

    /// The same sockets below another root directory.
    #[must_use]
    pub fn below(self, root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), ..self }
    }

    /// The sandboxes of all runtimes, in any state; none if there is no runtime.
    ///
    /// With two runtimes on a node, the one that kubelet does not use knows none of its pods: the lists count together, or
    /// not at all.
    ///
    /// # Errors
    /// [`CriError`] if one of them does not reply with a complete list.
    pub async fn sandboxes(&self) -> Result<Option<BTreeSet<String>>, CriError> {
        let mut all = None;
        for socket in &self.sockets {
            let path = self.root.join(socket.strip_prefix("/").unwrap_or(socket));
            let failed = |source| CriError { path: socket.clone(), source };
            match list(&path).await {
                Ok(ids) => all.get_or_insert_with(BTreeSet::new).extend(ids),
                Err(CallError::Connect(error))
                    if !self.are_given && error.kind() == io::ErrorKind::NotFound => {}
                // Docker runs containerd without the interface.
                Err(CallError::Unimplemented) if !self.are_given => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(all)
    }
}

/// The sandboxes of the runtime at a socket.
///
/// # Errors
/// [`CallError`]: the list is complete, or there is none.
pub async fn list(path: &Path) -> Result<BTreeSet<String>, CallError> {
    let [current, former] = VERSIONS;
    let call = async {
        match call(path, current).await {
            Err(CallError::Unimplemented) => call(path, former).await,
            done => done,
        }
    };
    timeout(LIMIT, call).await.unwrap_or(Err(CallError::TimedOut))
}

async fn call(path: &Path, version: &str) -> Result<BTreeSet<String>, CallError> {
    let stream = UnixStream::connect(path).await.map_err(CallError::Connect)?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let exchange = async move {
        let request = Request::post(format!("http://localhost/{version}.RuntimeService/ListPodSandbox"))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .body(Full::new(Bytes::from_static(&[0; PREFIX])))?;
        read(sender.send_request(request).await?).await
    };
    let (mut exchange, mut connection) = (pin!(exchange), pin!(connection));
    let mut is_open = true;
    loop {
        tokio::select! {
            reply = &mut exchange => return reply,
            // The connection copies bytes in both directions. If that fails, the exchange fails with the same error.
            _ = &mut connection, if is_open => is_open = false,
        }
    }
}

async fn read(response: Response<Incoming>) -> Result<BTreeSet<String>, CallError> {
    let (head, mut body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(CallError::Status(head.status));
    }
    let (mut bytes, mut trailers) = (Vec::new(), None);
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) if bytes.len() + data.len() > LONGEST => return Err(CallError::TooLong),
            Ok(data) => bytes.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    // An error without a message has its status in the headers.
    check(trailers.as_ref().unwrap_or(&head.headers))?;
    Ok(wire::sandboxes(message(&bytes)?)?)
}

fn check(headers: &HeaderMap) -> Result<(), CallError> {
    let text = |name: &str| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let status = text("grpc-status").and_then(|status| status.parse().ok());
    match status.ok_or(CallError::NoStatus)? {
        0 => Ok(()),
        UNIMPLEMENTED => Err(CallError::Unimplemented),
        code => {
            let message = text("grpc-message").unwrap_or_default();
            Err(CallError::Refused(code, bounded(&message, MESSAGE)))
        }
    }
}

/// The one message of a reply.
pub(crate) fn message(bytes: &[u8]) -> Result<&[u8], CallError> {
    let (prefix, message) = bytes.split_first_chunk::<PREFIX>().ok_or(CallError::Framing)?;
    let [compressed, length @ ..] = *prefix;
    let is_whole = usize::try_from(u32::from_be_bytes(length)).is_ok_and(|length| length == message.len());
    if compressed == 0 && is_whole { Ok(message) } else { Err(CallError::Framing) }
}

#[cfg(test)]
#[path = "cri_tests.rs"]
mod tests;
