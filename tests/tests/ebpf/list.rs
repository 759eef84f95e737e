// SPDX-License-Identifier: GPL-2.0-or-later

//! The network of the suites for BPF programs, with both families, masquerade and published ports.

use serde_json::{Value, json};
use slipway_tests::host_local;

pub(crate) fn list(backend: &str) -> Value {
    json!({
        "name": "fast",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipMasqBackend": backend,
                "ipam": host_local("10.88.1.0/24", "fd00:88:1::/64"),
            },
            {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}},
        ],
    })
}
