// SPDX-License-Identifier: GPL-2.0-or-later

//! The administrator's list, for fuzzing.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::sysctls::{Allowed, resolve};

/// A line with the key of a setting, and the list of allowed ones.
pub fn allowed_sysctls(bytes: &[u8]) -> impl Debug {
    let text = String::from_utf8_lossy(bytes);
    let (key, list) = text.split_once('\n').unwrap_or((&text, ""));
    let settings = resolve(&BTreeMap::from([(key.to_owned(), "1".to_owned())]), "eth0");
    for setting in settings.iter().flatten() {
        assert!(
            !setting.path.split('/').any(|part| matches!(part, "" | "." | "..")),
            "{setting:?} leads away"
        );
    }
    let allowed = Allowed::parse(list);
    let checked = allowed.as_ref().ok().zip(settings.as_ref().ok());
    (checked.map(|(allowed, settings)| allowed.check(settings).is_ok()), allowed, settings)
}
