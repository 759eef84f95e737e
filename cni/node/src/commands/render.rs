// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd render`: the options, and the files.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, ValueHint};
use slipway_cli::Failure;
use slipwayd::cluster::taint::StartupTaint;
use slipwayd::render::files::{FILES, File};
use slipwayd::render::{Deployment, KubernetesVersion};

use super::run::conflict::ConflictError;
use super::run::paths::DeployedOptions;
use super::values::{Prefixes, ValueError, WithWords, startup_taint};

const EXAMPLES: &str = "\
Examples:
  slipwayd render --image registry.example/slipway:1 --cluster-cidr 10.244.0.0/16 --service-cidr 10.96.0.0/12
  slipwayd render --image registry.example/slipway:1 --cluster-cidr 10.244.0.0/16 --output-dir deploy
  slipwayd render systemd --cluster-cidr 10.244.0.0/16 --encrypt wireguard --path-mtu 1400
  slipwayd render kind --cluster-cidr 10.244.0.0/16";

/// Print the files of a deployment in a cluster
///
/// Prints the objects of Kubernetes (service account, rights and their limit, DaemonSet) as YAML, or another file: the
/// container file, a kustomize base, a configuration for kind, or a systemd unit for nodes without a DaemonSet. Options of
/// `slipwayd run` become arguments of the agent. Nothing is sent to a cluster.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The file to print; without it the manifests
    #[arg(value_name = "FILE", conflicts_with = "output_dir")]
    file: Option<FileName>,
    /// The container image, which manifests need: there is no published one
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// The namespace of the pods
    #[arg(long, value_name = "NAME", default_value = "kube-system", value_parser = namespace)]
    namespace: String,
    /// The oldest version of the API server that is to take the objects, from 1.20 on
    #[arg(long, value_name = "VERSION", default_value_t)]
    kubernetes_version: KubernetesVersion,
    #[command(flatten)]
    deployed: WithWords<DeployedOptions>,
    /// A taint of new nodes that the agent removes when the network is in place; any number of times
    #[arg(long, value_name = "KEY[:EFFECT]", value_parser = startup_taint)]
    startup_taint: Vec<StartupTaint>,
    /// Write all files into this directory
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    output_dir: Option<PathBuf>,
}

/// A file, by the word that names it.
#[derive(Debug, Clone, Copy)]
struct FileName(File);

impl ValueEnum for FileName {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [FileName; FILES.len()] = {
            let mut all = [FileName(File::Manifests); FILES.len()];
            let mut place = 0;
            while place < all.len() {
                all[place] = FileName(FILES[place].0);
                place += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        FILES.iter().find(|(file, ..)| *file == self.0).map(|(_, word, _)| (*word).into())
    }
}

/// The options do not describe a deployment.
#[derive(Debug, thiserror::Error)]
enum DeploymentError {
    #[error("--image is missing: there is no published image")]
    NoImage,
    #[error(transparent)]
    Conflict(#[from] ConflictError),
}

/// A DNS label (RFC 1123), as a namespace has for its name.
fn namespace(name: &str) -> Result<String, ValueError> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [name.bytes().next(), name.bytes().last()];
    let is_label = name.len() <= 63
        && ends.iter().all(|end| end.is_some_and(is_inner))
        && name.bytes().all(|byte| is_inner(byte) || byte == b'-');
    if is_label { Ok(name.to_owned()) } else { Err(ValueError::Namespace) }
}

impl Options {
    /// The deployment, and the file to print.
    fn deployment(&self) -> Result<(Deployment, File), DeploymentError> {
        let file = self.file.map_or(File::Manifests, |name| name.0);
        let image = self.image.clone().unwrap_or_default();
        if image.is_empty() && file == File::Manifests {
            return Err(DeploymentError::NoImage);
        }
        // The agent would refuse these conflicts at its start.
        self.deployed.path_settings(Vec::new())?;
        let DeployedOptions { paths, garbage, .. } = &self.deployed.options;
        garbage.check()?;
        let words = self.deployed.words.iter();
        let deployment = Deployment {
            namespace: self.namespace.clone(),
            image,
            options: words.map(|word| format!("{}={}", word.name, word.value)).collect(),
            cluster_cidrs: Prefixes::all(&paths.cluster_cidr),
            service_cidrs: Prefixes::all(&paths.service_cidr),
            startup_taints: self.startup_taint.iter().map(ToString::to_string).collect(),
            kubernetes: self.kubernetes_version,
        };
        Ok((deployment, file))
    }
}

/// Prints a file, or writes all into a directory.
///
/// # Errors
/// Wrong options; a file that cannot be written.
pub(super) fn execute(options: &Options, out: &mut dyn Write) -> Result<u8, Failure> {
    let (deployment, file) = options.deployment().map_err(Failure::usage)?;
    match &options.output_dir {
        None => out.write_all(deployment.text(file).map_err(Failure::failed)?.as_bytes())?,
        Some(directory) => write_all(&deployment, directory, out)?,
    }
    Ok(0)
}

/// Writes all files and prints their paths.
fn write_all(deployment: &Deployment, directory: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::Failed(format!("create {}: {error}", directory.display())))?;
    for (file, _, name) in FILES {
        let path = directory.join(name);
        let text = deployment.text(file).map_err(Failure::failed)?;
        std::fs::write(&path, text)
            .map_err(|error| Failure::Failed(format!("write {}: {error}", path.display())))?;
        writeln!(out, "{}", path.display())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{Command, tests::parsed};

    /// Runs `slipwayd render` with these words: the output, or the error.
    fn render(line: &str) -> Result<String, String> {
        let Command::Render(options) = parsed(&format!("render {line}"))? else { panic!("{line}") };
        let mut out = Vec::new();
        match execute(&options, &mut out) {
            Ok(_) => Ok(String::from_utf8(out).unwrap()),
            Err(Failure::Usage(text) | Failure::Failed(text)) => Err(text),
            Err(Failure::Report(error)) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_agents_options_reach_its_arguments() {
        let text = render(
            "--image i:1 --namespace net --cluster-cidr 10.244.0.0/16 --cluster-cidr fd44::/32 --service-cidr \
             10.96.0.0/16 --node-cidr 192.168.50.0/24 --tunnel always --vxlan-vni 7 --vxlan-port 8472 \
             --startup-taint a.example/starting --cri-socket /run/a.sock --gc-grace 20m --log-format json",
        )
        .unwrap();
        for option in [
            "--cluster-cidr=10.244.0.0/16",
            "--cluster-cidr=fd44::/32",
            "--service-cidr=10.96.0.0/16",
            "--node-cidr=192.168.50.0/24",
            "--tunnel=always",
            "--vxlan-vni=7",
            "--vxlan-port=8472",
            "--remove-taint=a.example/starting",
            "--sysctl-dir=/host/proc/sys",
            "--cri-socket=/run/a.sock",
            "--gc-grace=20m",
            "--log-format=json",
        ] {
            let line = text.lines().find(|line| line.contains(option));
            let item = line.and_then(|line| line.trim().strip_prefix("- "));
            assert_eq!(item.map(|item| item.trim_matches(['"', '\''])), Some(option), "{text}");
        }
        assert_eq!(text.matches("namespace: net\n").count(), 3, "{text}");
        assert_eq!(text, render(&text_options_in_another_order()).unwrap());
    }

    #[test]
    fn the_options_of_encryption_reach_the_agent() {
        let options = "--cluster-cidr 10.244.0.0/16 --encrypt wireguard --wireguard-port 7 --path-mtu 1400";
        let unit = render(&format!("systemd {options}")).unwrap();
        let arguments = "slipwayd run --cluster-cidr=10.244.0.0/16 --encrypt=wireguard --wireguard-port=7 --path-mtu=1400\n";
        assert!(unit.contains(arguments), "{unit}");
    }

    fn text_options_in_another_order() -> String {
        "manifests --startup-taint a.example/starting --cluster-cidr 10.244.0.0/16 --cluster-cidr fd44::/32 \
         --service-cidr 10.96.0.0/16 --node-cidr 192.168.50.0/24 --tunnel always --vxlan-vni 7 --vxlan-port 8472 \
         --namespace net --image i:1 --cri-socket /run/a.sock --gc-grace 20m --log-format json"
            .to_owned()
    }

    #[test]
    fn what_the_agent_would_refuse_is_refused() {
        for (line, want) in [
            ("", "--image is missing"),
            ("manifests", "--image is missing"),
            ("--output-dir /tmp/x", "--image is missing"),
            ("kind --output-dir /tmp/x --image i", "--output-dir"),
            ("--image i --cluster-cidr 10.244.0.1/16", "a prefix without host bits, such as 10.244.0.0/16"),
            ("systemd --vxlan-vni 0", "a number between 1 and 16777215"),
            ("systemd --encrypt wireguard", "--encrypt wireguard needs --cluster-cidr"),
            ("systemd --cri-socket none --cri-socket /a", "--cri-socket none and a path exclude each other"),
            ("systemd --startup-taint a:Never", "KEY or KEY:EFFECT"),
            ("--image i --namespace Net", "a DNS label"),
            ("systemd --gc-grace 5", "a number with s, m or h"),
            ("--image i --tunnel perhaps", "--tunnel"),
        ] {
            let error = render(line).unwrap_err();
            assert!(error.contains(want), "{line}: {error}");
        }
    }

    #[test]
    fn all_files_are_written_into_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("deploy");
        let options = "--image i:1 --cluster-cidr 10.244.0.0/16";
        let printed = render(&format!("{options} --output-dir {}", into.display())).unwrap();
        for (file, word, name) in FILES {
            let path = into.join(name);
            assert!(printed.contains(&format!("{}\n", path.display())), "{file:?}: {printed}");
            let alone = render(&format!("{word} {options}")).unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), alone);
        }
        assert_eq!(printed.lines().count(), FILES.len());
    }
}
