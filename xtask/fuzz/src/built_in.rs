// SPDX-License-Identifier: GPL-3.0-or-later

//! A run with the mutator of `tests/targets`.

use std::time::{Duration, Instant};

use slipway_fuzz_targets::campaign::Campaign;
use slipway_fuzz_targets::{Target, corpus};
use xtask_base::error::{Error, Result};

use crate::report::{Report, write_artifact};

/// The most seeds that a run adds for a target.
const MOST_SEEDS: usize = 16;

/// The end of a target's run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Amount {
    Time(Duration),
    Inputs(u64),
}

pub(crate) fn run(target: &'static Target, amount: Amount, seed: u64, adds_seeds: bool) -> Result<Report> {
    let mut campaign = Campaign::new(target, seeds(target)?, seed);
    match amount {
        Amount::Time(time) => campaign.mutate(u64::MAX, Some(Instant::now() + time)),
        Amount::Inputs(inputs) => campaign.mutate(inputs, None),
    }
    let new_seeds = if adds_seeds { add(target, &campaign)? } else { 0 };
    let mut findings = Vec::new();
    for finding in campaign.findings() {
        let path = write_artifact(target, &finding.input)?;
        findings.push(format!("{}: {}", path.display(), finding.problem));
    }
    let reached = Some(campaign.shapes() as u64);
    let (inputs, per_second) = (campaign.tried(), campaign.per_second());
    let report = Report { target, inputs, per_second, reached, new_seeds, findings };
    report.print();
    Ok(report)
}

pub(crate) fn seeds(target: &Target) -> Result<Vec<Vec<u8>>> {
    let folder = corpus::folder();
    corpus::seeds(&folder, target).map_err(|e| Error::file("read", &folder.join(target.name), e))
}

/// Adds a campaign's inputs with new results to the committed seeds.
pub(crate) fn add(target: &Target, campaign: &Campaign) -> Result<usize> {
    let folder = corpus::folder();
    let added = corpus::add(&folder, target, &campaign.interesting(), MOST_SEEDS);
    added.map_err(|e| Error::file("write", &folder.join(target.name), e))
}
