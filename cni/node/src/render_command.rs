// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd render`: the options, and the files.

use std::io::Write;
use std::path::Path;

use ipnet::IpNet;
use slipway_cli::{Failure, parse};
use slipwayd::render::Deployment;
use slipwayd::render::files::{FILES, File};

use crate::cli::PROGRAM;
use crate::{RUN, cluster_command};

/// The options of `slipwayd run` that a deployment has, too.
const OPTIONS: [&str; 12] = [
    "--cluster-cidr",
    "--service-cidr",
    "--node-cidr",
    "--tunnel",
    "--vxlan-vni",
    "--vxlan-port",
    "--cri-socket",
    "--gc-grace",
    "--log-format",
    "--encrypt",
    "--wireguard-port",
    "--path-mtu",
];
/// The namespace without `--namespace`.
const NAMESPACE: &str = "kube-system";

/// Prints a file, or writes all into a directory.
///
/// # Errors
/// Wrong options; a file that cannot be written.
pub(crate) fn run(given: &slipway_cli::Given, out: &mut dyn Write) -> Result<u8, Failure> {
    let (deployment, file) = read(given).map_err(Failure::Usage)?;
    match given.value("--output-dir") {
        None => out.write_all(deployment.text(file).map_err(Failure::failed)?.as_bytes())?,
        Some(directory) => write_all(&deployment, directory.as_ref(), out)?,
    }
    Ok(0)
}

/// The deployment, and the file to print.
fn read(given: &slipway_cli::Given) -> Result<(Deployment, File), String> {
    let name = Some(given.argument(0)).filter(|name| !name.is_empty()).unwrap_or(FILES[0].1);
    let file = FILES.iter().find(|(_, word, _)| *word == name).map_or(File::Manifests, |(file, _, _)| *file);
    let writes_all = given.has("--output-dir");
    if writes_all && !given.argument(0).is_empty() {
        return Err(format!("{name} and --output-dir exclude each other: that writes all files"));
    }
    let image = given.value("--image").unwrap_or_default();
    if image.is_empty() && file == File::Manifests {
        return Err("--image IMAGE is missing: there is no published one".to_owned());
    }
    let options: Vec<String> = given
        .options()
        .filter(|(name, _)| OPTIONS.contains(name))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let deployment = Deployment {
        namespace: given.value("--namespace").unwrap_or(NAMESPACE).to_owned(),
        image: image.to_owned(),
        options,
        cluster_cidrs: cidrs(given, "--cluster-cidr"),
        service_cidrs: cidrs(given, "--service-cidr"),
        startup_taints: given.values("--startup-taint").map(str::to_owned).collect(),
    };
    check(&deployment)?;
    Ok((deployment, file))
}

/// Refuses what the agent would refuse, by its own reader, and names that no namespace can have.
fn check(deployment: &Deployment) -> Result<(), String> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let namespace = &deployment.namespace;
    let ends = [namespace.bytes().next(), namespace.bytes().last()];
    let is_label = namespace.len() <= 63
        && ends.iter().all(|end| end.is_some_and(is_inner))
        && namespace.bytes().all(|byte| is_inner(byte) || byte == b'-');
    if !is_label {
        return Err(format!(
            "--namespace {namespace:?}: not a DNS label of lower-case letters, digits and \"-\""
        ));
    }
    let taints = deployment.startup_taints.iter().map(|taint| format!("--remove-taint={taint}"));
    let words = ["--node-name=node".to_owned()].into_iter().chain(deployment.options.iter().cloned());
    let words: Vec<String> = words.chain(taints).collect();
    let command = PROGRAM.find(RUN).ok_or("no command run")?;
    let given = parse(command, &words).map_err(|stop| format!("{stop:?}"))?;
    cluster_command::read(&given)
        .map(drop)
        .map_err(|error| error.replace("--remove-taint", "--startup-taint"))
}

/// The valid prefixes of an option; the agent's reader reports others.
fn cidrs(given: &slipway_cli::Given, name: &str) -> Vec<IpNet> {
    given.values(name).flat_map(|list| list.split(',')).filter_map(|text| text.parse().ok()).collect()
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

    /// Runs `slipwayd render` with these words: the output, or the error.
    fn render(line: &str) -> Result<String, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let given = parse(PROGRAM.find("render").unwrap(), &words).map_err(|stop| format!("{stop:?}"))?;
        let mut out = Vec::new();
        match run(&given, &mut out) {
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
            ("", "--image IMAGE is missing"),
            ("manifests", "--image IMAGE is missing"),
            ("--output-dir /tmp/x", "--image IMAGE is missing"),
            ("kind --output-dir /tmp/x --image i", "kind and --output-dir exclude each other"),
            ("--image i --cluster-cidr 10.244.0.1/16", "--cluster-cidr \"10.244.0.1/16\": it has host bits"),
            ("systemd --vxlan-vni 0", "--vxlan-vni \"0\" is no such number"),
            ("systemd --encrypt wireguard", "--encrypt wireguard needs --cluster-cidr"),
            ("systemd --startup-taint a:Never", "--startup-taint \"a:Never\": not KEY or KEY:EFFECT"),
            ("--image i --namespace Net", "--namespace \"Net\": not a DNS label"),
            ("systemd --gc-grace 5", "--gc-grace \"5\" is no time: a number with s, m or h"),
            ("--image i --tunnel perhaps", "Usage(\"--tunnel must be auto, always or never"),
        ] {
            let error = render(line).unwrap_err();
            assert!(error.starts_with(want), "{line}: {error}");
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
