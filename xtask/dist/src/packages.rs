// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks the packages that are published on crates.io.

use serde_json::Value;

use xtask_base::checkout;
use xtask_base::error::{Error, Result};
use xtask_base::run::{self, cargo};

const FILES: [&str; 4] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "src/lib.rs"];

/// Folders of tests that need other crates of the workspace, or a checkout.
const LEFT_OUT: [&str; 2] = ["api/", "tests/"];

/// Lists the files of each package that may be published, and looks at its manifest. Returns their names.
pub(crate) fn check() -> Result<Vec<String>> {
    let metadata = checkout::metadata()?;
    let mut names = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        // An empty list means that the package is published nowhere.
        if package["publish"].is_array() {
            continue;
        }
        let name = package["name"].as_str().unwrap_or_default();
        let words = ["package", "--list", "--allow-dirty", "--offline", "--package", name];
        let listed = run::capture(&mut cargo(&words))?;
        let wrong: Vec<String> = faults(package).chain(faults_of_files(&listed)).collect();
        if !wrong.is_empty() {
            return Err(Error::Failed(format!("the package {name} {}", wrong.join("; "))));
        }
        names.push(name.to_owned());
    }
    names.sort();
    if names.is_empty() {
        return Err(Error::Failed("no package of the workspace may be published".to_owned()));
    }
    Ok(names)
}

/// The faults of a package in cargo's metadata. crates.io takes up to five keywords and categories.
fn faults(package: &Value) -> impl Iterator<Item = String> {
    let text = |key: &str| package[key].as_str().is_some_and(|text| !text.is_empty());
    let list = |key: &str| (1..=5).contains(&package[key].as_array().map_or(0, Vec::len));
    let checks = [
        ("description", text("description")),
        ("license", package["license"] == "MIT OR Apache-2.0"),
        ("readme", package["readme"] == "README.md"),
        ("keywords", list("keywords")),
        ("categories", list("categories")),
    ];
    checks.into_iter().filter(|(_, is_right)| !is_right).map(|(key, _)| format!("has no valid {key}"))
}

fn faults_of_files(listed: &str) -> impl Iterator<Item = String> {
    let lacking = FILES.iter().filter(move |file| !listed.lines().any(|line| line == **file));
    let unwanted = listed.lines().filter(|line| LEFT_OUT.iter().any(|folder| line.starts_with(folder)));
    lacking.map(|file| format!("lacks {file}")).chain(unwanted.map(|file| format!("has {file}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_packages_of_this_workspace_can_be_published() {
        assert_eq!(check().unwrap(), ["cni-kernel", "cni-netlink", "cni-runtime", "cni-spec"]);
    }

    #[test]
    fn what_a_package_lacks_is_named() {
        let package = json!({ "description": "x", "license": "MIT", "readme": null, "keywords": [],
                              "categories": ["a"] });
        let found: Vec<String> = faults(&package).collect();
        assert_eq!(found, ["has no valid license", "has no valid readme", "has no valid keywords"]);
        let files: Vec<String> =
            faults_of_files("LICENSE-MIT\nREADME.md\nsrc/lib.rs\ntests/a.rs\n").collect();
        assert_eq!(files, ["lacks LICENSE-APACHE", "has tests/a.rs"]);
    }
}
