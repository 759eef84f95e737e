// SPDX-License-Identifier: GPL-2.0-or-later

//! Container images made by the tests: web servers and pause containers from a static busybox, and the image of
//! `slipwayd render`. The web server's page shows the container's name and the client's address.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::binaries::{slipway, slipwayd};
use crate::pace::patience;
use crate::space::Space;
use crate::system::System;

/// The image of a web server, which answers `/cgi-bin/who` (see [`expect`]) at once and `/cgi-bin/drain` after
/// [`DRAIN`].
pub const WEB: &str = "localhost/web:1";

/// The image that holds a pod's namespaces.
pub const PAUSE: &str = "localhost/pause:1";

/// The archive with both images, as a path in the system.
pub const ARCHIVE: &str = "/tmp/images.tar";

/// The name that the tests give to the image of `slipwayd render`.
pub const AGENT: &str = "registry.example/slipway:1";

/// The archive with [`AGENT`], as a path in the system.
pub const AGENT_ARCHIVE: &str = "/tmp/slipway.tar";

/// The web server's page, a CGI script. The container's environment contains `WHO`.
const PAGE: &str =
    "#!/bin/sh\nprintf 'Content-type: text/plain\\r\\n\\r\\n%s %s\\n' \"$WHO\" \"$REMOTE_ADDR\"\n";

/// The time until the page for a drain is complete. kube-proxy writes its rules at most once a second, and later on a
/// busy machine.
pub const DRAIN: Duration = Duration::from_secs(7);

/// The time limit for a connection that must be refused.
const REFUSAL: Duration = Duration::from_millis(700);

/// Writes [`ARCHIVE`] with [`WEB`] and [`PAUSE`].
pub fn make(system: &System) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let layer = folder.path().join("layer");
    for dir in ["bin", "tmp", "www/cgi-bin"] {
        make_dir(&layer.join(dir));
    }
    let drain = format!("#!/bin/sh\nbusybox sleep {}\n{}", DRAIN.as_secs(), PAGE);
    for (name, content) in [("who", PAGE), ("drain", &drain)] {
        let page = layer.join("www/cgi-bin").join(name);
        fs::write(&page, content).expect("write a page");
        fs::set_permissions(&page, fs::Permissions::from_mode(0o755)).expect("make a page a program");
    }
    let busybox = system.path("/bin/busybox");
    let binary = system.space().run(|| fs::read(&busybox)).expect("read busybox");
    fs::write(layer.join("bin/busybox"), binary).expect("write busybox");
    fs::set_permissions(layer.join("bin/busybox"), fs::Permissions::from_mode(0o755))
        .expect("busybox's mode");
    symlink("busybox", layer.join("bin/sh")).expect("link sh");
    // The first process of a PID namespace ignores a SIGTERM for which it has no handler.
    let config = |command: &[&str]| json!({ "Cmd": command, "Env": ["PATH=/bin"], "StopSignal": "SIGKILL" });
    let images = [
        (WEB, config(&["busybox", "httpd", "-f", "-p", "80", "-h", "/www"])),
        (PAUSE, config(&["busybox", "sleep", "86400"])),
    ];
    system.write(ARCHIVE, archive(folder.path(), &images));
}

/// Writes [`AGENT_ARCHIVE`] with [`AGENT`]: `slipway` and `slipwayd` at the paths to which the container file of
/// `slipwayd render` copies them, and the libraries of this machine that they need.
pub fn make_agent(system: &System) {
    static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let layer = folder.path().join("layer");
        for dir in ["usr/local/bin", "tmp", "run", "etc", "var/lib", "proc", "sys", "dev"] {
            make_dir(&layer.join(dir));
        }
        for program in [slipway(), slipwayd()] {
            let to = layer.join("usr/local/bin").join(program.file_name().expect("a program's name"));
            // Symbols make up most of a debug build.
            let strip = Command::new("strip").arg("-o").arg(&to).arg(&program).status();
            if !strip.is_ok_and(|status| status.success()) {
                fs::copy(&program, &to).expect("copy a program");
            }
            for library in libraries(&program) {
                let to = layer.join(library.trim_start_matches('/'));
                make_dir(to.parent().expect("a folder"));
                fs::copy(&library, &to).expect("copy a library");
            }
        }
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let config = json!({ "Entrypoint": ["/usr/local/bin/slipwayd"], "Env": [path] });
        archive(folder.path(), &[(AGENT, config)])
    });
    system.write(AGENT_ARCHIVE, &*CONTENT);
}

/// The libraries that a program needs according to ldd(1), none for a static program.
fn libraries(program: &Path) -> Vec<String> {
    let output = Command::new("ldd").arg(program).output().expect("start ldd");
    let text = String::from_utf8_lossy(&output.stdout);
    let paths = text.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    paths.map(str::to_owned).collect()
}

/// An archive of images with the layer in `folder`, in the format of `docker save` (Docker image specification 1.2),
/// which podman and containerd read. An image is given as a name and a `config`.
fn archive(folder: &Path, images: &[(&str, Value)]) -> Vec<u8> {
    let layer = folder.join("layer.tar");
    tar(&folder.join("layer"), &layer, &["."]);
    let content = fs::read(&layer).expect("read the layer");
    let digest: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut manifest = Vec::new();
    let mut files = vec!["manifest.json".to_owned(), "layer.tar".to_owned()];
    for (number, (name, config)) in images.iter().enumerate() {
        let file = format!("config-{number}.json");
        let config = json!({
            "architecture": architecture(), "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
            "history": [{"created_by": "test"}],
        });
        fs::write(folder.join(&file), config.to_string()).expect("write an image's configuration");
        manifest.push(json!({"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]}));
        files.push(file);
    }
    fs::write(folder.join("manifest.json"), Value::from(manifest).to_string()).expect("write the manifest");
    let archive = folder.join("images.tar");
    tar(folder, &archive, &files.iter().map(String::as_str).collect::<Vec<_>>());
    fs::read(&archive).expect("read the archive")
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn make_dir(path: &Path) {
    fs::create_dir_all(path).unwrap_or_else(|e| panic!("make {}: {e}", path.display()));
}

fn tar(from: &Path, to: &Path, what: &[&str]) {
    let mut command = Command::new("tar");
    command.args(["--owner=0", "--group=0", "--numeric-owner", "--create", "--file"]).arg(to);
    let status = command.arg("--directory").arg(from).args(what).status().expect("start tar");
    assert!(status.success(), "tar {}: {status}", to.display());
}

/// Requests the page at `address` from `space` until the server answers, and asserts that the page names `who`. Returns
/// the client's address as the server saw it.
#[track_caller]
pub fn expect(space: &Space, address: impl Into<SocketAddr>, who: &str) -> IpAddr {
    let address = address.into();
    let (name, peer) = ask(space, address);
    assert_eq!(name, who, "{}: ask {address}", space.name());
    peer
}

/// Requests the page at `address` from `space` until the server answers. Returns the container's name, and the client's
/// address as the server saw it.
#[track_caller]
pub fn ask(space: &Space, address: impl Into<SocketAddr>) -> (String, IpAddr) {
    let address = address.into();
    let begin = Instant::now();
    loop {
        match ask_once(space, address, patience()) {
            Ok(answer) => return answer,
            Err(e) => assert!(begin.elapsed() < patience(), "{}: ask {address}: {e}", space.name()),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn ask_once(space: &Space, address: SocketAddr, limit: Duration) -> std::io::Result<(String, IpAddr)> {
    let body = get(space, address, limit)?;
    let (name, peer) = answer(&body);
    Ok((name.to_owned(), peer))
}

/// A command line for the containers' shell that requests the page. busybox's wget does not work, because it is linked
/// statically and needs files of the C library.
pub fn request(ip: impl Into<IpAddr>, port: u16) -> String {
    format!("printf 'GET /cgi-bin/who HTTP/1.0\\r\\n\\r\\n' | nc -w 4 {} {port}", ip.into())
}

/// Parses the page: the container's name and the client's address.
#[track_caller]
pub fn answer(text: &str) -> (&str, IpAddr) {
    let fields = text.lines().last().and_then(|line| line.split_once(' '));
    let (name, peer) = fields.unwrap_or_else(|| panic!("invalid page: {text:?}"));
    let peer = peer.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    (name, peer.unwrap_or_else(|e| panic!("{text:?}: {e}")).to_canonical())
}

/// Asserts that no server accepts a connection to `address`.
#[track_caller]
pub fn expect_closed(space: &Space, address: impl Into<SocketAddr>) {
    let address = address.into();
    let open = space.run(|| std::net::TcpStream::connect_timeout(&address, REFUSAL).is_ok());
    assert!(!open, "{}: {address} still takes connections", space.name());
}

/// Requests the page with HTTP 1.0 (RFC 1945) and returns its body.
fn get(space: &Space, address: SocketAddr, limit: Duration) -> std::io::Result<String> {
    use std::io::{Error, Read, Write};
    let text = space.run(|| {
        let mut stream = std::net::TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(b"GET /cgi-bin/who HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    })?;
    let (head, body) =
        text.split_once("\r\n\r\n").ok_or_else(|| Error::other(format!("no HTTP: {text:?}")))?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(Error::other(format!("not 200: {head:?}"))),
    }
}
