// SPDX-License-Identifier: GPL-3.0-or-later

//! Requests to the agent that runs on this node.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use cni_state::documents::{self, DocumentError, Form};
use http_body_util::{BodyExt as _, Limited};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The usual socket of the agent.
const SOCKET: &str = "/run/slipway/slipwayd.sock";
/// The time limit for the reply.
const LIMIT: Duration = Duration::from_secs(5);
/// The longest reply that is read, in bytes.
const LONGEST: usize = 4 << 20;

/// The agent's state cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("slipwayd does not run: connect to {0:?}: {1}")]
    Connect(PathBuf, io::Error),
    #[error("read from {0:?}: no reply within {limit} s", limit = LIMIT.as_secs())]
    TimedOut(PathBuf),
    #[error("read from {0:?}: {1}")]
    Read(PathBuf, Box<dyn std::error::Error + Send + Sync>),
    #[error("the agent replied {0}")]
    Refused(StatusCode),
    #[error("the agent is of another version: {0}")]
    Document(#[from] DocumentError),
}

/// The agent to ask.
#[derive(Debug, Clone, Args)]
pub struct AgentOptions {
    /// The socket of the agent
    #[arg(long, value_name = "FILE", default_value = SOCKET, value_hint = ValueHint::FilePath)]
    socket: PathBuf,
}

impl AgentOptions {
    /// Reads a document of the running agent.
    ///
    /// # Errors
    /// [`AgentError`] if no agent runs, or it does not reply with a document.
    pub async fn ask<T: DeserializeOwned + Form>(&self, page: &str) -> Result<T, AgentError> {
        let path = &self.socket;
        let stream = UnixStream::connect(path).await;
        let stream = stream.map_err(|error| AgentError::Connect(path.clone(), error))?;
        match timeout(LIMIT, request(stream, page)).await {
            Ok(Ok((StatusCode::OK, body))) => Ok(documents::parse(&body)?),
            Ok(Ok((status, _))) => Err(AgentError::Refused(status)),
            Ok(Err(error)) => Err(AgentError::Read(path.clone(), error)),
            Err(_) => Err(AgentError::TimedOut(path.clone())),
        }
    }
}

async fn request(
    stream: UnixStream,
    page: &str,
) -> Result<(StatusCode, Vec<u8>), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let reply = async {
        let request = Request::get(page).header(HOST, "slipwayd").body(String::new())?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((
            head.status,
            Limited::new(body, LONGEST).collect().await?,
        ))
    };
    // The connection's future copies the bytes, and may end first.
    let (reply, _ended) = tokio::join!(reply, connection);
    reply.map(|(status, body)| (status, body.to_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use cni_state::documents::AgentStatus;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn an_agent_that_does_not_run_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        let socket = temp.path().join("slipwayd.sock");
        let options = AgentOptions { socket: socket.clone() };
        let error = options.ask::<AgentStatus>("/status").await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("slipwayd does not run: connect to {socket:?}: No such file")),
            "{error}"
        );
    }
}
