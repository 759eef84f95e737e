// SPDX-License-Identifier: GPL-3.0-or-later

//! The version of Kubernetes that a deployment is for.

use std::fmt;
use std::str::FromStr;

/// The oldest minor version with all other fields of the objects. Tests create the objects there.
const OLDEST: u16 = 20;
/// The minor version from which on a container has the field `appArmorProfile`, in place of an annotation of its pod
/// (KEP-24).
const APP_ARMOR: u16 = 30;

/// The minor version from which on ValidatingAdmissionPolicy is stable (KEP-3488) and a token has its node (KEP-4193).
const POLICIES: u16 = 30;

/// A version of Kubernetes: 1 and a minor version, of at least 20.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubernetesVersion(u16);

/// A text that is not a version, or one that is too old.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a version of Kubernetes from 1.{OLDEST} on, such as 1.{APP_ARMOR}")]
pub struct KubernetesVersionError;

impl KubernetesVersion {
    /// True if containers have the field `appArmorProfile`.
    pub(super) fn has_app_armor_field(self) -> bool {
        self.0 >= APP_ARMOR
    }

    /// True if a policy can limit an agent to the Node of its node.
    pub(super) fn has_policies(self) -> bool {
        self.0 >= POLICIES
    }
}

impl Default for KubernetesVersion {
    /// The oldest version whose API server does not require an annotation in place of a field.
    fn default() -> Self {
        Self(APP_ARMOR)
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.0)
    }
}

impl FromStr for KubernetesVersion {
    type Err = KubernetesVersionError;

    /// As `kubectl version` prints it, too: `v1.29.3`, with whatever a vendor adds.
    fn from_str(text: &str) -> Result<Self, KubernetesVersionError> {
        let rest = text.strip_prefix('v').unwrap_or(text).strip_prefix("1.").ok_or(KubernetesVersionError)?;
        let (minor, patch) = rest.split_once('.').unwrap_or((rest, "0"));
        let has_patch = patch.starts_with(|c: char| c.is_ascii_digit());
        let is_number = minor.bytes().all(|byte| byte.is_ascii_digit());
        match minor.parse() {
            Ok(minor) if minor >= OLDEST && is_number && has_patch => Ok(Self(minor)),
            _ => Err(KubernetesVersionError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_kubectl_prints_them() {
        for (text, version) in
            [("1.20", "1.20"), ("v1.29.3", "1.29"), ("1.30.0", "1.30"), ("v1.33.4-gke.1350000", "1.33")]
        {
            assert_eq!(
                text.parse::<KubernetesVersion>().map(|read| read.to_string()),
                Ok(version.to_owned())
            );
        }
        for text in ["", "1", "1.", "1.19", "2.0", "1.30.", "1.+30", "1.x", "1.30.x", "v", "1.99999", "30"] {
            assert_eq!(text.parse::<KubernetesVersion>(), Err(KubernetesVersionError), "{text}");
        }
    }

    #[test]
    fn the_field_for_apparmor_is_younger_than_the_oldest_version() {
        let has_field = |text: &str| text.parse::<KubernetesVersion>().unwrap().has_app_armor_field();
        assert_eq!(["1.20", "1.29", "1.30", "1.36"].map(has_field), [false, false, true, true]);
    }
}
