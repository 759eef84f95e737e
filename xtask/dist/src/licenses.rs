// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks that each source begins with the licence of its package.

use std::fs;
use std::path::{Path, PathBuf};

use xtask_base::error::{Error, Result};
use xtask_base::files;

/// Begins the first line of a source: <https://spdx.dev/learn/handling-license-info/>.
const TAG: &str = "// SPDX-License-Identifier: ";

/// The licence of sources next to a workspace's manifest, which has no package.
const WORKSPACES: [(&str, &str); 1] = [("ebpf", "MIT OR GPL-2.0-only")];

/// Compares the first line of each Rust source with the `license` of its package; returns the number of sources.
pub(crate) fn check(root: &Path) -> Result<usize> {
    let mut wrong = Vec::new();
    let sources = sources(root, None)?;
    for (path, license) in &sources {
        let text = files::read(path)?;
        let line = format!("{TAG}{license}");
        if text.lines().next() != Some(line.as_str()) {
            wrong.push(format!("{}: {line}", path.strip_prefix(root).unwrap_or(path).display()));
        }
    }
    if wrong.is_empty() {
        return Ok(sources.len());
    }
    Err(Error::Failed(format!(
        "sources whose first line is not their licence:\n    {}",
        wrong.join("\n    ")
    )))
}

/// The sources below a folder, each with the licence of the nearest package above it.
fn sources(folder: &Path, above: Option<&str>) -> Result<Vec<(PathBuf, String)>> {
    let manifest = folder.join("Cargo.toml");
    let own = fs::read_to_string(&manifest).ok().and_then(|text| license(&text));
    let workspace = WORKSPACES.iter().find(|(name, _)| folder.ends_with(name)).map(|(_, license)| *license);
    let license = own.as_deref().or(above).or(workspace);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| Error::file("list", folder, e))? {
        let entry = entry.map_err(|e| Error::file("list", folder, e))?;
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().map_err(|e| Error::file("look at", &path, e))?;
        if kind.is_dir() && !name.to_string_lossy().starts_with('.') && name != "target" {
            found.extend(sources(&path, license)?);
        } else if kind.is_file() && path.extension().is_some_and(|end| end == "rs") {
            let license =
                license.ok_or_else(|| Error::Failed(format!("{}: in no package", path.display())))?;
            found.push((path, license.to_owned()));
        }
    }
    Ok(found)
}

/// The value of `license` in a manifest.
fn license(manifest: &str) -> Option<String> {
    let line = manifest.lines().find(|line| line.starts_with("license = "))?;
    line.split('"').nth(1).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_needs_the_licence_of_the_nearest_package() {
        let dir = xtask_base::workspace::scratch("licenses-test").unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/Cargo.toml", "[package]\nlicense = \"MIT\"\n");
        write("a/src/lib.rs", "// SPDX-License-Identifier: MIT\n");
        write("a/fuzz/Cargo.toml", "[package]\nlicense = \"GPL-2.0-only\"\n");
        write("a/fuzz/x.rs", "// SPDX-License-Identifier: GPL-2.0-only\n");
        assert_eq!(check(&dir).unwrap(), 2);
        write("a/fuzz/x.rs", "fn main() {}\n");
        let error = check(&dir).unwrap_err().to_string();
        assert!(error.ends_with("\n    a/fuzz/x.rs: // SPDX-License-Identifier: GPL-2.0-only"), "{error}");
    }
}
