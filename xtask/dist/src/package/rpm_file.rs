// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes a package as an rpm.

use rpm::{BuildConfig, CompressionType, Dependency, FileOptions, PackageBuilder};

use super::{Entry, Package, REVISION, Role, scripts};
use xtask_base::error::{Error, Result};

/// The folders that belong to a package alone, below those of a bare system.
const OWN_FOLDERS: [&str; 4] =
    ["usr/lib/netavark", "usr/lib/slipway", "usr/share/doc/", "usr/share/licenses/"];

/// The file of a package: its name and its bytes.
pub(super) fn write(package: &Package) -> Result<(String, Vec<u8>)> {
    let name = format!("{}-{}-{REVISION}.{}.rpm", package.name, package.version, package.processor.rpm);
    let bytes = written(package).map_err(|e| Error::Failed(format!("write {name}: {e}")))?;
    Ok((name, bytes))
}

fn written(package: &Package) -> std::result::Result<Vec<u8>, rpm::Error> {
    let time = u32::try_from(package.time).unwrap_or(u32::MAX);
    let processor = package.processor.rpm;
    let mut builder =
        PackageBuilder::new(package.name, &package.version, package.licence, processor, package.summary);
    // gzip, which this library has without a C compiler.
    builder.using_config(BuildConfig::v4().source_date(time).compression(CompressionType::Gzip));
    builder.release(REVISION).description(package.description.join("\n\n")).packager(&package.maintainer);
    builder.build_host("localhost").group("System Environment/Base");
    builder.add_changelog_entry(
        format!("{} - {}-{REVISION}", package.maintainer, package.version),
        format!("- Version {}: see CHANGELOG.md", package.version),
        time,
    );
    if let Some(other) = package.depends {
        builder.requires(Dependency::eq(other, &package.version));
    }
    for (path, entry) in &package.entries {
        let dest = format!("/{path}");
        match entry {
            Entry::Folder => builder.with_dir_entry(FileOptions::dir(dest))?,
            Entry::Link(target) => builder.with_symlink(FileOptions::symlink(dest, target))?,
            Entry::File(content, role) => {
                let mode = if *role == Role::Program { 0o755 } else { 0o644 };
                let options = FileOptions::new(dest).permissions(mode);
                let options = match role {
                    Role::Configuration => options.config().noreplace(),
                    Role::Documentation => options.doc(),
                    Role::Licence => options.license(),
                    Role::Program | Role::Other => options,
                };
                builder.with_file_contents(content.clone(), options)?
            }
        };
    }
    for folder in own_folders(package) {
        builder.with_dir_entry(FileOptions::dir(format!("/{folder}")))?;
    }
    let scripts = scripts::rpm(package);
    builder.post_install_script(scripts.after_installation);
    builder.pre_uninstall_script(scripts.before_removal);
    builder.post_uninstall_script(scripts.after_removal);
    let mut bytes = Vec::new();
    builder.build()?.write(&mut bytes)?;
    Ok(bytes)
}

/// The folders to remove with the package: rpm removes only those that a package owns.
fn own_folders(package: &Package) -> Vec<&str> {
    let mut folders: Vec<&str> = package
        .entries
        .keys()
        .flat_map(|path| path.match_indices('/').map(|(end, _)| &path[..end]))
        .collect();
    folders.sort_unstable();
    folders.dedup();
    folders.retain(|folder| OWN_FOLDERS.iter().any(|own| folder.starts_with(own)));
    folders
}
