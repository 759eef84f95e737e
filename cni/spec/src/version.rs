// SPDX-License-Identifier: MIT OR Apache-2.0

//! Versions of the specification.

use std::fmt;

/// A published version of the CNI specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 0.1.0, the default for a configuration without a version.
    V0_1_0,
    /// 0.2.0, in which VERSION lists the supported versions.
    V0_2_0,
    /// 0.3.0, in which results have interfaces and plugins can be chained.
    V0_3_0,
    /// 0.3.1, which is 0.3.0 with corrected examples.
    V0_3_1,
    /// 0.4.0, which adds CHECK.
    V0_4_0,
    /// 1.0.0, in which addresses have no version key any more.
    V1_0_0,
    /// 1.1.0, which adds GC and STATUS.
    V1_1_0,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: &'static [Self] =
        &[Self::V0_1_0, Self::V0_2_0, Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    /// The version as it is written in a configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Parses a published version. None for any other text. The empty string does not mean 0.1.0 here (see
    /// [`Declared`]).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|v| v.as_str() == text)
    }

    fn numbers(self) -> [u64; 3] {
        match self {
            Self::V0_1_0 => [0, 1, 0],
            Self::V0_2_0 => [0, 2, 0],
            Self::V0_3_0 => [0, 3, 0],
            Self::V0_3_1 => [0, 3, 1],
            Self::V0_4_0 => [0, 4, 0],
            Self::V1_0_0 => [1, 0, 0],
            Self::V1_1_0 => [1, 1, 0],
        }
    }
}

/// The version that a configuration declares, published or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared(String);

/// An invalid version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// The version has more parts than major, minor and patch.
    #[error("invalid version {0:?}: too many parts")]
    TooManyParts(String),
    /// A part is not a number.
    #[error("failed to convert {part} version part {text:?} of {version:?}: not a number")]
    Part {
        /// The name of the part: `major`, `minor` or `micro`.
        part: &'static str,
        /// The text of the part.
        text: String,
        /// The whole version.
        version: String,
    },
}

impl Declared {
    /// Stores the value of `cniVersion`, in which the empty string means 0.1.0.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(if text.is_empty() { Version::V0_1_0.as_str().to_owned() } else { text.to_owned() })
    }

    /// The version as declared.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The published version with this text. None if it is not a published version.
    #[must_use]
    pub fn known(&self) -> Option<Version> {
        Version::parse(&self.0)
    }

    /// The numbers major, minor and patch. Missing parts are 0.
    ///
    /// # Errors
    /// [`VersionError`] if a part is not a number, or there are more than three.
    pub fn numbers(&self) -> Result<[u64; 3], VersionError> {
        const PARTS: [&str; 3] = ["major", "minor", "micro"];
        let mut numbers = [0; 3];
        for (index, text) in self.0.split('.').enumerate() {
            let (Some(number), Some(part)) = (numbers.get_mut(index), PARTS.get(index)) else {
                return Err(VersionError::TooManyParts(self.0.clone()));
            };
            *number = text.parse().map_err(|_| VersionError::Part {
                part,
                text: text.to_owned(),
                version: self.0.clone(),
            })?;
        }
        Ok(numbers)
    }

    /// Compares the numbers with those of a published version.
    ///
    /// # Errors
    /// [`VersionError`] if a part is not a number, or there are more than three.
    pub fn compare(&self, other: Version) -> Result<std::cmp::Ordering, VersionError> {
        Ok(self.numbers()?.cmp(&other.numbers()))
    }
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;

    #[test]
    fn published_versions_are_in_order() {
        assert!(Version::ALL.is_sorted());
        for version in Version::ALL {
            assert_eq!(Version::parse(version.as_str()), Some(*version));
            assert_eq!(Declared::new(version.as_str()).compare(*version), Ok(Ordering::Equal));
        }
        assert_eq!(Version::parse(""), None);
    }

    #[test]
    fn declared_versions_compare_by_number() {
        assert_eq!(Declared::new("").known(), Some(Version::V0_1_0));
        assert_eq!(Declared::new("0.10.0").compare(Version::V0_4_0), Ok(Ordering::Greater));
        assert_eq!(Declared::new("1").compare(Version::V1_0_0), Ok(Ordering::Equal));
        assert_eq!(Declared::new("9.9.9").known(), None);
        let too_many = Declared::new("1.0.0.0").numbers().unwrap_err().to_string();
        assert_eq!(too_many, "invalid version \"1.0.0.0\": too many parts");
        let part = Declared::new("1.x").numbers().unwrap_err().to_string();
        assert_eq!(part, "failed to convert minor version part \"x\" of \"1.x\": not a number");
    }
}
