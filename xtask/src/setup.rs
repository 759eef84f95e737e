// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask setup`: lists what this machine lacks and installs it.

mod needs;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::Command;

use nix::unistd::Uid;

use needs::{NEEDS, Need};
use xtask_base::apt_root::AptRoot;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{self, tool};

/// The suite whose libmnl-dev holds a static library: Debian 12's does not.
const STATIC_SUITE: &str = "trixie";

/// Find out what this machine lacks, and install it.
///
/// As root it is installed with apt-get; otherwise the one command that does it is printed, and the
/// task fails. Where there is no apt-get, what is missing is named.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Do not ask before installing
    #[arg(long)]
    yes: bool,
    /// Only list what is missing; fails if that is required
    #[arg(long, conflicts_with = "yes")]
    check: bool,
    /// Install what is optional too
    #[arg(long)]
    optional: bool,
    /// Fetch a static libmnl, for `build --static` where the system's packages have none
    #[arg(long)]
    static_libs: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let missing = report();
    let wanted: Vec<&Need> = missing.into_iter().filter(|need| need.required() || args.optional).collect();
    if wanted.is_empty() {
        println!("nothing that is required is missing");
    } else {
        install(&wanted, args)?;
    }
    components(args.check)?;
    if args.static_libs {
        println!("static libmnl: {}", static_libmnl()?.display());
    }
    Ok(())
}

/// Installs what is required, without asking. Other tasks call it first. Returns a summary.
pub fn ensure() -> Result<String> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| need.required() && !need.is_there()).collect();
    if missing.is_empty() {
        return components(false).map(|()| "nothing is missing".to_owned());
    }
    let args = Args { yes: true, check: false, optional: false, static_libs: false };
    install(&missing, &args)?;
    components(false)?;
    Ok(format!("installed {}", packages(&missing).join(" ")))
}

/// The folder with libnftnl.a, which every libnftnl-dev has.
pub fn static_libnftnl() -> Result<PathBuf> {
    needs::library_dir("libnftnl")
        .filter(|dir| dir.join("libnftnl.a").is_file())
        .ok_or_else(|| Error::Failed("no libnftnl.a: run `cargo xtask setup`".to_owned()))
}

/// The folder with libmnl.a: the system's when it has one, else a fetched one.
pub fn static_libmnl() -> Result<PathBuf> {
    if let Some(dir) = needs::library_dir("libmnl").filter(|dir| dir.join("libmnl.a").is_file()) {
        return Ok(dir);
    }
    let unpacked = AptRoot::open(STATIC_SUITE)?.fetch("libmnl-dev")?;
    let libraries = unpacked.join("usr/lib");
    files::list(&libraries)?
        .into_iter()
        .find(|dir| dir.join("libmnl.a").is_file())
        .ok_or_else(|| Error::Failed(format!("libmnl-dev of {STATIC_SUITE} has no libmnl.a")))
}

/// Prints a line per need and returns those that are not met.
fn report() -> Vec<&'static Need> {
    let mut missing = Vec::new();
    for need in NEEDS {
        let state = match (need.is_there(), need.required()) {
            (true, _) => "ok      ",
            (false, true) => "MISSING ",
            (false, false) => "optional",
        };
        println!("  {state}  {:<28} {}", need.name, need.purpose);
        if !need.is_there() {
            missing.push(need);
        }
    }
    missing
}

fn install(missing: &[&Need], args: &Args) -> Result<()> {
    let packages = packages(missing);
    let names: Vec<&str> = missing.iter().map(|need| need.name).collect();
    if run::which("apt-get").is_none() {
        return Err(Error::Failed(format!(
            "missing: {}. There is no apt-get here; Debian's packages with these are {}",
            names.join(", "),
            packages.join(" ")
        )));
    }
    let line = format!("apt-get update && apt-get install -y --no-install-recommends {}", packages.join(" "));
    if args.check {
        return Err(Error::Failed(format!("missing: {}. To install: {line}", names.join(", "))));
    }
    if !Uid::effective().is_root() {
        let sudo = line.replace("apt-get ", "sudo apt-get ");
        return Err(Error::Failed(format!("missing: {}. To install:\n\n    {sudo}\n", names.join(", "))));
    }
    if !args.yes && io::stdin().is_terminal() && !agreed(&line)? {
        return Err(Error::Failed("nothing was installed".to_owned()));
    }
    println!("installing {}", packages.join(" "));
    run::capture(&mut apt_get(&["update"]))?;
    run::capture(apt_get(&["install", "-y", "--no-install-recommends"]).args(&packages))?;
    let still: Vec<&str> = missing.iter().filter(|need| !need.is_there()).map(|need| need.name).collect();
    if still.is_empty() {
        return Ok(());
    }
    Err(Error::Failed(format!("still missing after {line}: {}", still.join(", "))))
}

fn apt_get(args: &[&str]) -> Command {
    let mut command = tool("apt-get", &["-q"]);
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn agreed(line: &str) -> Result<bool> {
    print!("{line}\nRun this now? [Y/n] ");
    io::stdout().flush().map_err(|e| Error::system("write to the terminal", e))?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|e| Error::system("read the answer", e))?;
    Ok(matches!(answer.trim(), "" | "y" | "Y" | "yes"))
}

fn packages(needs: &[&Need]) -> Vec<&'static str> {
    let mut packages: Vec<&str> = needs.iter().flat_map(|need| need.packages.iter().copied()).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// rustfmt and clippy come with the toolchain; rustup can add them.
fn components(check_only: bool) -> Result<()> {
    let missing: Vec<&str> = [("rustfmt", "fmt"), ("clippy", "clippy")]
        .into_iter()
        .filter(|(_, subcommand)| run::capture(&mut run::cargo(&[subcommand, "--version"])).is_err())
        .map(|(component, _)| component)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let line = format!("rustup component add {}", missing.join(" "));
    if check_only || run::which("rustup").is_none() {
        return Err(Error::Failed(format!("the toolchain lacks {}: {line}", missing.join(", "))));
    }
    println!("{line}");
    run::show(tool("rustup", &["component", "add"]).args(&missing).current_dir(xtask_base::workspace::root()))
}
