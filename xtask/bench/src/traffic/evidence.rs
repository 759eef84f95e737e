// SPDX-License-Identifier: MIT OR Apache-2.0

//! Proves that the packets took the path that the contender's name says.

use serde_json::Value;

use super::contender::{Contender, Kind, Way};
use super::figures::Series;
use super::load::Work;
use xtask_base::error::{Error, Result};

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
    datagrams: f64,
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
                Work::Datagrams
                | Work::LargeDatagrams
                | Work::DatagramsOfMany
                | Work::LargeDatagramsOfMany => done.datagrams += operations,
            }
        }
        done
    }
}

impl Evidence {
    pub(super) fn before(contender: &Contender) -> Result<Self> {
        Ok(Self { programs: contender.programs()? })
    }

    /// Compares them after the traffic.
    pub(super) fn check(&self, contender: &Contender, series: &[&Series]) -> Result<()> {
        let failed = |why: String| Err(Error::Failed(format!("{}: {why}", contender.kind.name())));
        let (tracked, programs) = (contender.tracked()?, contender.programs()?);
        if contender.kind != Kind::Ebpf {
            if !programs.is_null() {
                return failed("BPF programs are pinned on this node".to_owned());
            }
        } else if let Some(why) = self.missed(&programs, series) {
            return failed(why);
        }
        // The warm-up is tracked, too.
        let many = [Way::Port, Way::Masquerade].map(|way| Done::of(series, way).connections);
        let least = (many.iter().sum::<f64>() / 20.0).min(100.0);
        match contender.kind {
            Kind::Direct | Kind::Routed => match contender.tables()? {
                tables if tracked == 0 && tables.trim().is_empty() => Ok(()),
                tables => failed(format!("{tracked} connections are tracked; tables: {tables}")),
            },
            _ if as_float(tracked) < least => failed(format!("the kernel tracks {tracked} connections only")),
            _ => Ok(()),
        }
    }

    /// The shortfall in the BPF programs' counters, if there is one.
    fn missed(&self, programs: &Value, series: &[&Series]) -> Option<String> {
        let counted = |status: &Value| status["counters"]["carried_packets"].as_f64().unwrap_or(0.0);
        let carried = counted(programs) - counted(&self.programs);
        let done = [Way::Port, Way::Masquerade].map(|way| Done::of(series, way));
        // Two packets for each transaction, and at most 64 KiB in one. All packets of short connections, and the first of
        // others, pass netfilter alone; of datagrams a sample once a second.
        let least: f64 =
            done.iter().map(|done| done.transactions + done.kib / 64.0 + done.datagrams / 2.0).sum();
        (carried < least).then(|| {
            let counters = &programs["counters"];
            format!("the programs carried {carried} packets, and {least} went there: {counters}")
        })
    }
}

fn as_float(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}
