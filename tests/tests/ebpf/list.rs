// SPDX-License-Identifier: GPL-2.0-or-later

//! The network of the suites for BPF programs: both families, masquerade, published ports.

use serde_json::{Value, json};

pub(crate) fn list(backend: &str) -> Value {
    json!({
        "name": "fast",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": "10.88.1.0/24"}], [{"subnet": "fd00:88:1::/64"}]],
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                },
            },
            {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
        ],
    })
}
