// SPDX-License-Identifier: MIT OR Apache-2.0

//! Both drivers behind one interface.
#![allow(dead_code, reason = "each test program uses a part")]

use cni_runtime::runtime::Builder;
use cni_runtime::{CallOptions, Container, GcScope, Network, NetworkError, Runtime, asynchronous};
use cni_spec::AddResult;

pub(crate) enum Driver {
    Blocking(Runtime),
    Tokio(asynchronous::Runtime),
}

pub(crate) fn tokio_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

impl Driver {
    /// The builder is called once for each driver.
    pub(crate) fn both(builder: impl Fn(&str) -> Builder) -> [Self; 2] {
        [Self::Blocking(builder("blocking").build()), Self::Tokio(builder("tokio").build_async())]
    }

    pub(crate) fn with(&self, options: CallOptions) -> Self {
        match self {
            Self::Blocking(runtime) => Self::Blocking(runtime.with(options)),
            Self::Tokio(runtime) => Self::Tokio(runtime.with(options)),
        }
    }

    pub(crate) fn add(&self, network: &Network, container: &Container) -> Result<AddResult, NetworkError> {
        match self {
            Self::Blocking(runtime) => runtime.add(network, container),
            Self::Tokio(runtime) => tokio_runtime().block_on(runtime.add(network, container)),
        }
    }

    pub(crate) fn del(&self, network: &Network, container: &Container) -> Result<(), NetworkError> {
        match self {
            Self::Blocking(runtime) => runtime.del(network, container),
            Self::Tokio(runtime) => tokio_runtime().block_on(runtime.del(network, container)),
        }
    }

    pub(crate) fn check(&self, network: &Network, container: &Container) -> Result<(), NetworkError> {
        match self {
            Self::Blocking(runtime) => runtime.check(network, container),
            Self::Tokio(runtime) => tokio_runtime().block_on(runtime.check(network, container)),
        }
    }

    pub(crate) fn gc(&self, network: &Network, scope: GcScope<'_>) -> Result<(), NetworkError> {
        match self {
            Self::Blocking(runtime) => runtime.gc(network, scope),
            Self::Tokio(runtime) => tokio_runtime().block_on(runtime.gc(network, scope)),
        }
    }

    pub(crate) fn status(&self, network: &Network) -> Result<(), NetworkError> {
        match self {
            Self::Blocking(runtime) => runtime.status(network),
            Self::Tokio(runtime) => tokio_runtime().block_on(runtime.status(network)),
        }
    }

    pub(crate) fn validate(&self, network: &Network) -> Result<(), NetworkError> {
        match self {
            Self::Blocking(runtime) => runtime.validate(network),
            Self::Tokio(runtime) => tokio_runtime().block_on(runtime.validate(network)),
        }
    }

    pub(crate) fn attachments(&self, id: &str) -> Vec<cni_runtime::Cached> {
        let all = match self {
            Self::Blocking(runtime) => runtime.attachments(id),
            Self::Tokio(runtime) => tokio_runtime().block_on(runtime.attachments(id)),
        };
        all.unwrap()
    }

    pub(crate) fn cache(&self) -> &std::path::Path {
        match self {
            Self::Blocking(runtime) => runtime.cache_dir(),
            Self::Tokio(runtime) => runtime.cache_dir(),
        }
    }
}
