// SPDX-License-Identifier: GPL-3.0-or-later

//! The options of `slipwayd run` about garbage.

use std::path::PathBuf;
use std::time::Duration;

use slipwayd::cluster::reconcile::Settings;
use slipwayd::garbage;
use slipwayd::garbage::cri::Runtimes;
use slipwayd::garbage::inventory::Directories;

/// The node's root directory, as a container with the host's PIDs sees it.
const HOST_ROOT: &str = "/proc/1/root";

/// Reads the options; none if garbage is left.
///
/// # Errors
/// The option and the reason, in words.
pub(crate) fn read(
    words: &slipway_cli::Given,
    settings: &Settings,
) -> Result<Option<garbage::Settings>, String> {
    let sockets: Vec<&str> = words.values("--cri-socket").collect();
    if sockets.len() > 1 && sockets.contains(&"none") {
        return Err("--cri-socket none and a path exclude each other".to_owned());
    }
    if let Some(other) = sockets.iter().find(|path| **path != "none" && !path.starts_with('/')) {
        return Err(format!("--cri-socket {other:?} is no absolute path"));
    }
    let runtimes = match sockets[..] {
        ["none"] => return Ok(None),
        [] => Runtimes::usual(),
        _ => Runtimes::at(sockets.iter().map(PathBuf::from).collect()),
    };
    let grace = match words.value("--gc-grace") {
        None => garbage::GRACE,
        Some(text) => time(text).ok_or_else(|| {
            format!("--gc-grace {text:?} is no time: a number with s, m or h, of at least 1s")
        })?,
    };
    Ok(Some(garbage::Settings {
        directories: Directories::usual(&settings.network),
        conflist: settings.conflist.clone(),
        // A container has no mount of the sockets: a runtime that starts again makes new ones.
        runtimes: if words.has("--host-mounts") { runtimes.below(HOST_ROOT) } else { runtimes },
        grace,
    }))
}

/// A time such as `90s`, `10m` or `1h`; none for others, and for no time at all.
pub(crate) fn time(text: &str) -> Option<Duration> {
    let (unit, seconds) =
        [('s', 1), ('m', 60), ('h', 3600)].into_iter().find(|(unit, _)| text.ends_with(*unit))?;
    let number: u32 = text.strip_suffix(unit)?.parse().ok()?;
    Some(Duration::from_secs(u64::from(number) * seconds)).filter(|time| !time.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_command::tests::given;

    #[test]
    fn garbage_is_read_with_its_runtimes() {
        let garbage = |words: &str| {
            given(&format!("--node-name a {words}"))
                .map(|given| given.garbage.map(|garbage| (garbage.runtimes, garbage.grace)))
        };
        let seconds = Duration::from_secs;
        assert_eq!(garbage(""), Ok(Some((Runtimes::usual(), seconds(600)))));
        assert_eq!(garbage("--cri-socket none --gc-grace 5m"), Ok(None));
        let two = Runtimes::at(vec!["/run/a.sock".into(), "/run/b.sock".into()]).below("/proc/1/root");
        let words = "--cri-socket /run/a.sock --cri-socket /run/b.sock --gc-grace 90s --host-mounts";
        assert_eq!(garbage(words), Ok(Some((two, seconds(90)))));
        for (words, error) in [
            ("--cri-socket none --cri-socket /a", "--cri-socket none and a path exclude each other"),
            ("--cri-socket a.sock", "--cri-socket \"a.sock\" is no absolute path"),
            ("--gc-grace 0s", "--gc-grace \"0s\" is no time: a number with s, m or h, of at least 1s"),
            ("--gc-grace 5d", "--gc-grace \"5d\" is no time: a number with s, m or h, of at least 1s"),
            ("--gc-grace m", "--gc-grace \"m\" is no time: a number with s, m or h, of at least 1s"),
        ] {
            assert_eq!(garbage(words), Err(error.to_owned()));
        }
        assert_eq!(time("2h"), Some(seconds(7200)));
    }
}
