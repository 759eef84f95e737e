// SPDX-License-Identifier: GPL-2.0-or-later

//! Installations in temporary directories.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;
use slipway_cli::checks;

const PLUGINS: &[&str] = &["bridge", "host-local", "portmap"];

struct World {
    root: TempDir,
    dir: std::path::PathBuf,
    binary: std::path::PathBuf,
}

fn program() -> Command {
    Command::new("slipway")
        .version("0.1.0")
        .about("A program")
        .subcommand(Command::new("ports").about("Ports"))
}

fn world() -> World {
    let root = tempfile::tempdir().unwrap();
    let (dir, binary) = (root.path().join("cni/bin"), root.path().join("built"));
    fs::write(&binary, b"the binary").unwrap();
    World { root, dir, binary }
}

impl World {
    fn options(&self) -> Options {
        Options { dir: self.dir.clone(), ..Options::default() }
    }

    fn install(&self, options: &Options) -> Result<Vec<Step>, InstallError> {
        install(&self.binary, PLUGINS, options, &program(), &mut Vec::new())
    }

    fn replace(&self) -> Vec<Step> {
        self.install(&Options { replace: true, ..self.options() }).unwrap()
    }

    fn uninstall(&self) -> Vec<Step> {
        uninstall(&self.options(), &program(), &mut Vec::new()).unwrap()
    }

    /// Name and content (or link target) of everything in the directory and in the backup directory.
    fn listing(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (prefix, dir) in [("", self.dir.clone()), ("kept/", self.dir.join(BACKUP_DIR))] {
            for entry in fs::read_dir(dir).into_iter().flatten() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                match entry.file_type().unwrap() {
                    t if t.is_symlink() => {
                        found.push(format!(
                            "{prefix}{name}@{}",
                            fs::read_link(entry.path()).unwrap().display()
                        ));
                    }
                    t if t.is_file() => {
                        found.push(format!("{prefix}{name}={}", fs::read_to_string(entry.path()).unwrap()));
                    }
                    _ if name == BACKUP_DIR => {}
                    _ => found.push(format!("{prefix}{name}/")),
                }
            }
        }
        found.sort();
        found
    }
}

const INSTALLED: &[&str] = &["bridge@slipway", "host-local@slipway", "portmap@slipway", "slipway=the binary"];

#[test]
fn a_missing_directory_is_created() {
    let world = world();
    world.install(&world.options()).unwrap();
    assert_eq!(world.listing(), INSTALLED);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&world.dir.join("bridge")), 0o755, "through the link: the binary can be executed");
    assert_eq!(mode(&world.dir) & 0o022, 0, "only the owner may write");
}

#[test]
fn a_second_time_changes_nothing_but_the_binary() {
    let world = world();
    world.install(&world.options()).unwrap();
    fs::write(&world.binary, b"a newer binary").unwrap();
    let running = fs::File::open(world.dir.join("slipway")).unwrap();
    let steps = world.install(&world.options()).unwrap();
    assert_eq!(steps[0], Step::Copy);
    assert!(steps[1..].iter().all(|s| matches!(s, Step::Keep(_))), "{steps:?}");
    assert_eq!(fs::read_to_string(world.dir.join("portmap")).unwrap(), "a newer binary");
    // A plugin that is running keeps the file it was started from.
    assert_eq!(std::io::read_to_string(running).unwrap(), "the binary");
}

#[test]
fn the_installed_binary_can_install_itself() {
    let world = world();
    world.install(&world.options()).unwrap();
    fs::remove_file(world.dir.join("bridge")).unwrap();
    let steps =
        install(&world.dir.join("slipway"), PLUGINS, &world.options(), &program(), &mut Vec::new()).unwrap();
    assert_eq!(steps[..2], [Step::Keep("slipway".into()), Step::Link("bridge".into())]);
    assert_eq!(world.listing(), INSTALLED);
}

#[test]
fn files_of_other_programs_are_kept() {
    let world = world();
    fs::create_dir_all(&world.dir).unwrap();
    fs::write(world.dir.join("flannel"), b"theirs").unwrap();
    world.install(&world.options()).unwrap();
    assert!(world.listing().contains(&"flannel=theirs".to_owned()));
    world.uninstall();
    assert_eq!(world.listing(), ["flannel=theirs"]);
}

#[test]
fn a_foreign_plugin_stops_everything_before_the_first_change() {
    let world = world();
    fs::create_dir_all(&world.dir).unwrap();
    fs::write(world.dir.join("portmap"), b"theirs").unwrap();
    let error = world.install(&world.options()).unwrap_err().to_string();
    assert!(error.contains("cni/bin/portmap belongs to another plugin set"), "{error}");
    assert_eq!(world.listing(), ["portmap=theirs"]);
}

#[test]
fn replace_keeps_a_copy_that_uninstall_puts_back() {
    let world = world();
    fs::create_dir_all(&world.dir).unwrap();
    fs::write(world.dir.join("portmap"), b"theirs").unwrap();
    symlink("../elsewhere/bridge", world.dir.join("bridge")).unwrap();
    world.replace();
    let expected: Vec<&str> =
        [INSTALLED, &["kept/bridge@../elsewhere/bridge", "kept/portmap=theirs"]].concat().to_vec();
    let mut expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
    expected.sort();
    assert_eq!(world.listing(), expected);
    world.uninstall();
    assert_eq!(world.listing(), ["bridge@../elsewhere/bridge", "portmap=theirs"]);
    assert!(!world.dir.join(BACKUP_DIR).exists());
}

#[test]
fn a_plugin_that_was_installed_later_stays_and_so_does_the_older_copy() {
    let world = world();
    fs::create_dir_all(&world.dir).unwrap();
    fs::write(world.dir.join("portmap"), b"theirs").unwrap();
    world.replace();
    // A package's upgrade does the same.
    fs::remove_file(world.dir.join("portmap")).unwrap();
    fs::write(world.dir.join("portmap"), b"theirs, newer").unwrap();
    assert!(world.uninstall().contains(&Step::Leave("portmap".into())));
    assert_eq!(world.listing(), ["kept/portmap=theirs", "portmap=theirs, newer"]);
    world.replace();
    world.uninstall();
    assert_eq!(world.listing(), ["portmap=theirs, newer"]);
}

#[test]
fn a_directory_in_the_place_of_a_plugin_is_never_replaced() {
    let world = world();
    fs::create_dir_all(world.dir.join("bridge")).unwrap();
    let options = Options { replace: true, ..world.options() };
    let error = world.install(&options).unwrap_err().to_string();
    assert!(error.contains("cni/bin/bridge is a directory; nothing was changed"), "{error}");
    assert_eq!(world.listing(), ["bridge/"]);
}

#[test]
fn a_file_in_the_place_of_the_directory_is_named() {
    let world = world();
    fs::create_dir_all(world.dir.parent().unwrap()).unwrap();
    fs::write(&world.dir, b"").unwrap();
    let error = world.install(&world.options()).unwrap_err().to_string();
    assert!(error.contains("open the directory") && error.contains("cni/bin"), "{error}");
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let world = world();
    // Not even root can create files in sysfs.
    let options = Options { dir: "/sys/kernel".into(), ..world.options() };
    let error = world.install(&options).unwrap_err().to_string();
    assert!(error.starts_with("create /sys/kernel/.slipway-new: "), "{error}");
}

#[test]
fn the_leftovers_of_a_killed_installation_are_removed() {
    let world = world();
    fs::create_dir_all(&world.dir).unwrap();
    fs::write(world.dir.join(".slipway-new"), b"half of").unwrap();
    world.install(&world.options()).unwrap();
    assert_eq!(world.listing(), INSTALLED);
}

#[test]
fn the_leftovers_of_a_killed_replacement_are_removed() {
    let theirs = |world: &World| {
        fs::create_dir_all(world.dir.join(BACKUP_DIR)).unwrap();
        fs::write(world.dir.join("bridge"), b"theirs").unwrap();
        // The copy is kept, our link was never made, and a second call was killed at the same point.
        for name in ["bridge", ".slipway-new"] {
            fs::hard_link(world.dir.join("bridge"), world.dir.join(BACKUP_DIR).join(name)).unwrap();
        }
    };
    let once = world();
    theirs(&once);
    once.replace();
    assert!(once.listing().contains(&"kept/bridge=theirs".to_owned()), "{:?}", once.listing());
    once.uninstall();
    let never = world();
    theirs(&never);
    never.uninstall();
    for world in [once, never] {
        assert_eq!(world.listing(), ["bridge=theirs"]);
        assert!(!world.dir.join(BACKUP_DIR).exists());
    }
}

#[test]
fn a_dry_run_changes_nothing_and_plans_the_same() {
    let world = world();
    let dry = Options { mode: Mode::DryRun, ..world.options() };
    let planned = world.install(&dry).unwrap();
    assert!(!world.dir.exists());
    assert_eq!(world.install(&world.options()).unwrap(), planned);
    let planned = uninstall(&dry, &program(), &mut Vec::new()).unwrap();
    assert_eq!(world.listing(), INSTALLED);
    assert_eq!(world.uninstall(), planned);
    assert!(world.listing().is_empty());
}

#[test]
fn uninstall_where_nothing_is_does_nothing() {
    let world = world();
    assert_eq!(world.uninstall(), []);
    assert!(!world.dir.exists());
    assert!(world.root.path().exists());
}

#[test]
fn manual_and_completions_come_with_a_share_directory_and_go() {
    let world = world();
    let share = world.root.path().join("share");
    fs::create_dir_all(share.join("man/man8")).unwrap();
    fs::write(share.join("man/man8/other.8"), "theirs").unwrap();
    let with = Options { share_dir: Some(share.clone()), ..world.options() };
    let dry = Options { mode: Mode::DryRun, ..with.clone() };
    world.install(&dry).unwrap();
    assert!(!share.join("man/man8/slipway.8").exists());
    world.install(&with).unwrap();
    for file in ["man/man8/slipway.8", "man/man8/slipway-ports.8", "bash-completion/completions/slipway"] {
        assert!(share.join(file).is_file(), "{file}");
    }
    // The next installation knows the place, replaces what is older and removes what is not needed any more.
    let page = |name: &str| share.join("man/man8").join(name);
    let current = fs::read_to_string(page("slipway-ports.8")).unwrap();
    fs::write(page("slipway-ports.8"), format!("{current}older")).unwrap();
    fs::write(page("slipway-gone.8"), &current).unwrap();
    world.install(&world.options()).unwrap();
    assert_eq!(fs::read_to_string(page("slipway-ports.8")).unwrap(), current);
    assert!(!page("slipway-gone.8").exists());
    // A killed installation.
    fs::write(page("slipway-ports.8.slipway-new"), &current).unwrap();
    // Another place takes over.
    let elsewhere = world.root.path().join("elsewhere");
    world.install(&Options { share_dir: Some(elsewhere.clone()), ..world.options() }).unwrap();
    assert_eq!(fs::read_dir(share.join("man/man8")).unwrap().count(), 1, "the other program's page");
    assert!(elsewhere.join("man/man8/slipway.8").is_file());
    world.uninstall();
    assert_eq!(world.listing(), Vec::<String>::new());
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "empty directories are removed");
    assert_eq!(fs::read_to_string(page("other.8")).unwrap(), "theirs");
}

#[test]
fn a_manual_page_of_another_program_stops_everything_before_the_first_change() {
    let world = world();
    let page = world.root.path().join("share/man/man8/slipway.8");
    fs::create_dir_all(page.parent().unwrap()).unwrap();
    fs::write(&page, "theirs").unwrap();
    let with = Options { share_dir: Some(world.root.path().join("share")), ..world.options() };
    let error = world.install(&with).unwrap_err().to_string();
    assert!(error.ends_with("man8/slipway.8 was not generated by slipway; nothing was changed"), "{error}");
    assert_eq!(world.listing(), Vec::<String>::new());
    assert_eq!(fs::read_to_string(&page).unwrap(), "theirs");
}

#[test]
fn the_commands_print_what_they_do() {
    let world = world();
    let to = format!("--to={}", world.dir.display());
    let args = checks::args(&to).unwrap();
    let mut out = Vec::new();
    assert_eq!(install_command(&args, PLUGINS, &program(), &mut out).unwrap(), 0);
    let out = String::from_utf8(out).unwrap();
    assert!(out.starts_with("copy    slipway\nlink    bridge -> slipway\n"), "{out}");
    assert!(out.ends_with("cni/bin: 4 of 4 names changed\n"), "{out}");
    // The state of the machine that runs the tests is left alone.
    let keep = checks::args(&format!("{to} --keep-state")).unwrap();
    assert_eq!(uninstall_command(&keep, &program(), &mut Vec::new(), &mut Vec::new()).unwrap(), 0);
}
