//! The arguments of commands that list what containers have: whose, and in which form.

use cni_dataplane::Owner;

/// What is wanted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) network: Option<String>,
    pub(super) container: Option<String>,
    pub(super) json: bool,
}

impl Filter {
    /// Reads `[--network NAME] [--container ID] [--output table|json]`.
    pub(super) fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (name, inline) = match arg.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (arg.as_str(), None),
            };
            if name == "--json" {
                options.json = true;
                continue;
            }
            if !["--network", "--container", "--output", "-o"].contains(&name) {
                return Err(format!("unknown argument {arg:?}"));
            }
            let value =
                inline.or_else(|| args.next().cloned()).ok_or_else(|| format!("{name} needs a value"))?;
            match name {
                "--network" => options.network = Some(value),
                "--container" => options.container = Some(value),
                _ => options.json = parse_output(&value)?,
            }
        }
        Ok(options)
    }

    /// Whether something with this owner is wanted.
    pub(super) fn includes(&self, owner: Option<&Owner>) -> bool {
        let network = |wanted: &String| owner.is_some_and(|owner| same(&owner.network, wanted));
        let container = |wanted: &String| {
            owner
                .is_some_and(|o| o.container_id.starts_with(wanted.as_str()) || same(&o.container_id, wanted))
        };
        self.network.as_ref().is_none_or(network) && self.container.as_ref().is_none_or(container)
    }
}

fn parse_output(value: &str) -> Result<bool, String> {
    match value {
        "json" => Ok(true),
        "table" => Ok(false),
        other => Err(format!("--output is table or json, not {other:?}")),
    }
}

/// Whether a name as elements carry it (cut to fit, `~` at the end) can be the one that is wanted.
fn same(carried: &str, wanted: &str) -> bool {
    match carried.strip_suffix('~') {
        Some(begin) => wanted.starts_with(begin),
        None => carried == wanted,
    }
}

#[cfg(test)]
mod tests {
    use cni_spec::Attachment;

    use super::*;

    #[test]
    fn arguments() {
        let parse = |args: &[&str]| Filter::parse(&args.iter().map(|&a| a.to_owned()).collect::<Vec<_>>());
        assert!(parse(&["--output=json"]).unwrap().json && parse(&["--json"]).unwrap().json);
        assert_eq!(parse(&["--network", "a"]).unwrap().network.as_deref(), Some("a"));
        assert_eq!(parse(&["--output", "xml"]).unwrap_err(), "--output is table or json, not \"xml\"");
        assert_eq!(parse(&["--network"]).unwrap_err(), "--network needs a value");
        assert_eq!(parse(&["what"]).unwrap_err(), "unknown argument \"what\"");
    }

    #[test]
    fn filters_know_cut_names() {
        let owner = Owner::of(&Attachment::new("k8s-pod-network", "0123456789", "eth0").unwrap());
        let filter = Filter { network: Some("k8s-pod-network".to_owned()), ..Filter::default() };
        assert!(filter.includes(Some(&owner)) && !filter.includes(None));
        let by_id = Filter { container: Some("0123".to_owned()), ..Filter::default() };
        assert!(by_id.includes(Some(&owner)));
        assert!(same("abc~", "abcdef") && !same("abc~", "abX"));
    }
}
