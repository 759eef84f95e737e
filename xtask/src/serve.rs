// SPDX-License-Identifier: MIT OR Apache-2.0

//! The demo's web server, which answers each request with its name and the client's address.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::Signal;

use xtask_base::error::{Error, Result};

/// Time limit for a client's request.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most lines of a request's head that are read.
const HEAD_LINES: usize = 100;

/// Answer web requests with a name and the client's address (what the demo's pods run).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The name to answer with
    #[arg(long)]
    name: String,
    /// The TCP port, on every address of both families
    #[arg(long)]
    port: u16,
    /// Keep running when the parent process ends
    #[arg(long)]
    stay: bool,
}

/// Serves until it is killed. Prints a line as soon as it listens.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.stay {
        prctl::set_pdeathsig(Signal::SIGTERM).map_err(|e| Error::system("set the parent-death signal", e))?;
    }
    // On Linux a socket on [::] accepts IPv4, too, unless net.ipv6.bindv6only is set.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, args.port))
        .map_err(|e| Error::system(format!("listen on port {}", args.port), e))?;
    println!("listening");
    for stream in listener.incoming().filter_map(std::result::Result::ok) {
        let name = args.name.clone();
        thread::spawn(move || {
            // The client may have closed the connection.
            let _ = answer(&stream, &name);
        });
    }
    Ok(())
}

fn answer(mut stream: &TcpStream, name: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let client = stream.peer_addr()?;
    // The head ends with an empty line (RFC 9112, section 2.1).
    for line in BufReader::new(stream).lines().take(HEAD_LINES) {
        if line?.is_empty() {
            break;
        }
    }
    stream.write_all(response(name, client).as_bytes())
}

fn response(name: &str, client: SocketAddr) -> String {
    let body = format!("this is {name}; you are {}\n", client.ip().to_canonical());
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_client_is_shown_as_one() {
        let text = response("web", "[::ffff:192.0.2.7]:5000".parse().unwrap());
        assert!(text.ends_with("\r\n\r\nthis is web; you are 192.0.2.7\n"), "{text}");
    }

    #[test]
    fn a_request_gets_the_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        answer(&listener.accept().unwrap().0, "web").unwrap();
        let text = std::io::read_to_string(client).unwrap();
        assert!(text.contains("200 OK") && text.ends_with("this is web; you are 127.0.0.1\n"), "{text}");
    }
}
