// SPDX-License-Identifier: MIT OR Apache-2.0

//! The stage with other kernels, in virtual machines.

use std::fs;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use xtask_base::error::{Error, Result};
use xtask_base::progress::Stages;
use xtask_base::run;

use super::Args;
use crate::delegate::Crate;

/// The other kernels. Returns a line about what was skipped, if anything was. VMs start when `wait` has ended.
pub(super) fn run(
    args: &Args,
    seed: Option<u64>,
    stages: &Stages,
    wait: &mpsc::Receiver<()>,
) -> Result<String> {
    let mut skipped = String::new();
    stages.run("other kernels", |log| {
        let copy = || log.file.try_clone().map_err(|e| Error::system("duplicate the log's descriptor", e));
        let mut smoke = Crate::Vm.built("smoke");
        smoke.args(args.require.then_some("--require"));
        smoke.args(seed.iter().flat_map(|seed| ["--seed".to_owned(), seed.to_string()]));
        smoke.stdin(Stdio::piped()).stdout(copy()?).stderr(copy()?);
        let mut child = smoke.spawn().map_err(|e| Error::system(run::line(&smoke), e))?;
        // An emulated processor that waits for a real one exceeds the limits of the programs on it. A child that has
        // failed need not be waited for.
        while wait.recv_timeout(Duration::from_secs(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
            if child.try_wait().is_ok_and(|ended| ended.is_some()) {
                break;
            }
        }
        drop(child.stdin.take());
        let status = child.wait().map_err(|e| Error::system("wait for the virtual machines", e))?;
        let printed = fs::read_to_string(&log.path).map_err(|e| Error::file("read", &log.path, e))?;
        let last = printed.lines().last().unwrap_or_default().to_owned();
        if !status.success() {
            let how = format!("ended with {status}: {last}");
            return Err(Error::Command { command: run::line(&smoke), how, output: String::new() });
        }
        if last.starts_with("SKIP") {
            skipped = format!("; {last}, see {}", log.path.display());
        }
        Ok(last)
    })?;
    Ok(skipped)
}
