// SPDX-License-Identifier: MIT OR Apache-2.0

//! Proves that the packets went the way of the contender's name.

use serde_json::Value;

use super::contender::{Contender, Kind, Way};
use super::figures::Series;
use super::load::Work;
use xtask::error::{Error, Result};

/// The state of the BPF programs before the traffic.
#[derive(Debug)]
pub(super) struct Evidence {
    programs: Value,
}

/// The operations of all rounds, without the warm-up.
#[derive(Debug, Default)]
struct Done {
    kib: f64,
    transactions: f64,
    connections: f64,
}

impl Done {
    fn of(series: &[&Series], way: Way) -> Self {
        let mut done = Self::default();
        for one in series.iter().filter(|one| one.way == way) {
            let operations: f64 = one.rounds.iter().map(|spent| spent.operations).sum();
            match one.work {
                Work::Stream => done.kib += operations,
                Work::Requests => done.transactions += operations,
                Work::Connections => done.connections += operations,
            }
        }
        done
    }
}

impl Evidence {
    /// Reads that state.
    ///
    /// # Errors
    /// The node's counters cannot be read.
    pub(super) fn before(contender: &Contender) -> Result<Self> {
        Ok(Self { programs: contender.programs()? })
    }

    /// Compares them after the traffic.
    ///
    /// # Errors
    /// The packets went another way, or the node's counters cannot be read.
    pub(super) fn check(&self, contender: &Contender, series: &[&Series]) -> Result<()> {
        let failed = |why: String| Err(Error::Failed(format!("{}: {why}", contender.kind.name())));
        let (tracked, programs) = (contender.tracked()?, contender.programs()?);
        if !matches!(contender.kind, Kind::Ebpf | Kind::EbpfPrograms) {
            if !programs.is_null() {
                return failed("BPF programs are pinned on this node".to_owned());
            }
        } else if let Some(why) = self.missed(contender.kind, &programs, series) {
            return failed(why);
        }
        let connections = [Way::Port, Way::Masquerade].map(|way| Done::of(series, way).connections);
        let many = connections.iter().sum::<f64>() / 20.0;
        // Connections of the node's own sockets need no translation and are tracked, as is the warm-up.
        let own = [Way::Node, Way::NodeDirect].map(|way| Done::of(series, way).connections);
        let allowed = many + 2.0 * own.iter().sum::<f64>();
        match contender.kind {
            Kind::Direct | Kind::Routed => match contender.tables()? {
                tables if tracked == 0 && tables.trim().is_empty() => Ok(()),
                tables => failed(format!("{tracked} connections are tracked; tables: {tables}")),
            },
            Kind::EbpfPrograms if allowed > 10.0 && as_float(tracked) > allowed => {
                failed(format!("the kernel tracks {tracked} connections"))
            }
            Kind::EbpfPrograms => Ok(()),
            _ if as_float(tracked) < many.min(100.0) => {
                failed(format!("the kernel tracks {tracked} connections only"))
            }
            _ => Ok(()),
        }
    }

    /// The shortfall in the BPF programs' counters, if there is one.
    fn missed(&self, kind: Kind, programs: &Value, series: &[&Series]) -> Option<String> {
        let counted = |name: &str| {
            let count = |status: &Value| status["counters"][name].as_f64().unwrap_or(0.0);
            count(programs) - count(&self.programs)
        };
        let [port, out, node] = [Way::Port, Way::Masquerade, Way::Node].map(|way| Done::of(series, way));
        // A connection has a SYN, an ACK and a byte at least, and the replies.
        let packets = |done: &Done| done.transactions + 3.0 * done.connections;
        if kind == Kind::Ebpf {
            // The first packets of a connection, and all of a short one, pass netfilter alone.
            let least = [port, out].map(|done| (done.transactions - 50.0 * done.connections).max(0.0));
            let (carried, least) = (counted("carried_packets"), least.iter().sum::<f64>());
            return (carried < least)
                .then(|| format!("the programs carried {carried} packets, and {least} went there"));
        }
        let expected = [
            ("published_flows", port.connections),
            ("masqueraded_flows", out.connections),
            ("redirected_sockets", node.connections),
            ("to_container_packets", packets(&port) + 2.0 * out.connections + out.transactions),
            ("from_container_packets", packets(&out) + 2.0 * port.connections + port.transactions),
            ("to_container_bytes", port.kib * 1024.0),
            ("from_container_bytes", out.kib * 1024.0),
        ];
        let missed = expected.into_iter().find(|(name, least)| counted(name) < *least);
        missed.map(|(name, least)| {
            format!("the programs counted {} {name}, and {least} went there", counted(name))
        })
    }
}

fn as_float(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}
