// SPDX-License-Identifier: GPL-2.0-or-later

//! A server for kube-proxy to use if there is no API server. Its objects never change.
//!
//! kube-proxy lists and watches Services and EndpointSlices, and reads its node.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};
use slipway_tests::{Cluster, at};

use crate::kube::{CORE, SLICES, name_of, node_object};
use crate::services::SERVICES;

/// The objects by the paths at which they are read.
type Objects = BTreeMap<String, Value>;

/// Starts the server in the control plane's namespace and returns its URL. Its threads end with the test process.
pub(crate) fn serve(cluster: &Cluster) -> String {
    let address = at(cluster.control.addresses[0], 8080);
    let objects = Arc::new(objects(cluster));
    let listener = cluster.control.run(|| TcpListener::bind(address).expect("listen"));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let objects = Arc::clone(&objects);
            // An error ends the connection, and kube-proxy then opens another one.
            thread::spawn(move || serve_connection(&stream, &objects));
        }
    });
    format!("http://{address}")
}

fn objects(cluster: &Cluster) -> Objects {
    let node = &cluster.nodes[0];
    let services = SERVICES.iter().map(|service| {
        let mut object = service.object();
        // This is what an API server would set by default.
        object["spec"]["sessionAffinity"] = "None".into();
        object["status"] = service.status();
        object
    });
    let slices = SERVICES.iter().flat_map(|service| {
        let endpoints = ["IPv4", "IPv6"].into_iter().zip(service.endpoint(node.addresses));
        endpoints.map(|(family, ip)| service.slice(family, ip, &name_of(node)))
    });
    let nodes =
        cluster.nodes.iter().map(|node| (format!("{CORE}/nodes/{}", name_of(node)), node_object(node)));
    let mut objects: Objects = nodes.collect();
    objects.insert(format!("{CORE}/services"), list("ServiceList", "v1", services));
    let slices = list("EndpointSliceList", "discovery.k8s.io/v1beta1", slices);
    objects.insert(format!("{SLICES}/endpointslices"), slices);
    objects
}

fn list(kind: &str, version: &str, items: impl Iterator<Item = Value>) -> Value {
    let items: Vec<Value> = items
        .map(|mut item| {
            item["metadata"]["namespace"] = "default".into();
            item
        })
        .collect();
    json!({"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": items})
}

/// Replies to the requests of one connection (HTTP/1.1), one after the other.
fn serve_connection(stream: &TcpStream, objects: &Objects) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut stream = stream;
    while let Some(target) = read_request(&mut reader)? {
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        if query.contains("watch=true") {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")?;
            stream.write_all(b"Transfer-Encoding: chunked\r\n\r\n")?;
            // A watch: no event comes until the client closes the connection.
            reader.read_line(&mut String::new())?;
            return Ok(());
        }
        let missing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404});
        let (status, object) = match objects.get(path) {
            Some(object) => ("200 OK", object),
            None => ("404 Not Found", &missing),
        };
        let body = object.to_string();
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
    }
    Ok(())
}

/// Reads a request with its body, and returns its path and query. None at the end of the connection.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    io::copy(&mut reader.take(length), &mut io::sink())?;
    Ok(first.split(' ').nth(1).map(str::to_owned))
}
