// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask docs`: the documentation as a site, rendered by mdBook.

mod browser;
mod contents;
mod stage;
mod verify;

use std::fs;
use std::path::{Path, PathBuf};

use crate::generated;
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::progress::Log;
use xtask_base::run::{self, tool};
use xtask_base::tools::MDBOOK;
use xtask_base::workspace::{self, Lock};

/// mdBook's settings. Pages are plain Markdown: nothing is expanded in them.
const SETTINGS: &str = "[book]\ntitle = \"Slipway\"\nlanguage = \"en\"\n\
    [build]\nuse-default-preprocessors = false\ncreate-missing = false\n\
    [output.html]\nsmart-punctuation = false\ninput-404 = \"\"\nno-section-label = true\nadditional-css = [\"site.css\"]\n\
    [output.html.print]\nenable = false\n\
    [output.html.search]\nuse-boolean-and = true\n";
const STYLE: &str = include_str!("site.css");

/// Seconds that mdBook may take.
const LIMIT: &str = "120";

/// Render the documentation as a site with search.
///
/// The site is files: it can be opened from a disk or copied into any folder of a web server, and loads nothing from
/// other hosts. Links and anchors of the rendered pages are checked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder of the site; it is replaced
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// The address of a tree of sources, as a forge shows it, for links to sources; without it they are paths
    #[arg(long, value_name = "URL")]
    source_url: Option<String>,
    /// Render it twice, and fail if the two differ
    #[arg(long)]
    check: bool,
    /// Open it in Debian's headless Chromium, fetched below target: search a word, and take pictures of some pages
    #[arg(long)]
    browser: bool,
    /// Write docs/json.md and docs/errors.md from the sources, docs/commands.md from the programs in target/debug if both
    /// were built, and nothing else
    #[arg(long, conflicts_with_all = ["to", "check", "browser", "fetch"])]
    write: bool,
    /// Only fetch and build what these options need
    #[arg(long)]
    fetch: bool,
}

/// Runs the task.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.write {
        return write();
    }
    if args.fetch {
        return fetch(args);
    }
    println!("{}", make(args)?);
    Ok(())
}

/// Writes the pages that are made from the sources and from the programs.
fn write() -> Result<()> {
    let root = workspace::root();
    let mut pages = generated::write(root)?;
    let [slipway, slipwayd] =
        ["slipway", "slipwayd"].map(|name| workspace::target().join("debug").join(name));
    if slipway.is_file() && slipwayd.is_file() {
        pages.push(generated::write_commands(root, &slipway, &slipwayd)?);
    }
    println!("written: {}", pages.join(", "));
    Ok(())
}

/// Fetches and builds what the site needs.
fn fetch(args: &Args) -> Result<()> {
    let path = workspace::scratch("docs")?.join("fetch.log");
    let file = files::create(&path)?;
    MDBOOK.ensure(&file)?;
    if args.browser {
        browser::root()?;
    }
    Ok(())
}

fn make(args: &Args) -> Result<String> {
    let dir = workspace::scratch("docs")?;
    let _lock = Lock::take(&dir.join("lock"))?;
    let path = dir.join("log");
    let file = files::create(&path)?;
    let log = Log { file, path };
    let site = dir.join("site");
    render(&dir.join("book"), &site, args.source_url.as_deref(), &log)?;
    let links = verify::check(&site)?;
    if args.check {
        let again = dir.join("again");
        render(&dir.join("book"), &again, args.source_url.as_deref(), &log)?;
        same(&site, &again)?;
    }
    let mut seen = String::new();
    if args.browser {
        let pictures = dir.join("pictures");
        let count = browser::check(&site, &pictures)?;
        seen = format!("; the search finds its page; {count} pictures in {}", pictures.display());
    }
    let to = match &args.to {
        Some(to) => {
            copy(&site, to)?;
            to
        }
        None => &site,
    };
    let (count, size) = (contents::pages().count(), size(to)?);
    Ok(format!("{}: {count} pages, {links} links, {size:.1} MB{seen}", to.join("index.html").display()))
}

fn render(book: &Path, site: &Path, source_url: Option<&str>, log: &Log) -> Result<()> {
    let wrong = contents::check(workspace::root())?;
    if !wrong.is_empty() {
        return Err(Error::Failed(wrong.join("\n    ")));
    }
    let program = MDBOOK.ensure(&log.file)?;
    for old in [book, site] {
        workspace::remove(old)?;
    }
    stage::stage(workspace::root(), &book.join("src"), source_url)?;
    stage::write(&book.join("book.toml"), SETTINGS.as_bytes())?;
    stage::write(&book.join("site.css"), STYLE.as_bytes())?;
    let mut command = tool("timeout", &["--kill-after=5", LIMIT]);
    command.arg(program).arg("build").arg("--dest-dir").arg(site).arg(book);
    run::log(&mut command, &log.file).map_err(|e| Error::Failed(format!("{e}: see {}", log.path.display())))
}

fn same(one: &Path, other: &Path) -> Result<()> {
    run::capture(tool("diff", &["--recursive", "--brief"]).arg(one).arg(other)).map(|_| ())
}

/// Copies a site over an older one, and nothing else.
fn copy(site: &Path, to: &Path) -> Result<()> {
    let is_site = to.join("toc.html").is_file();
    let is_empty = fs::read_dir(to).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty && !is_site {
        return Err(Error::Failed(format!(
            "{} is neither empty nor a site: choose another folder",
            to.display()
        )));
    }
    workspace::remove(to)?;
    for file in files::below(site, |_| true)? {
        let bytes = files::read_bytes(&file)?;
        stage::write(&to.join(file.strip_prefix(site).unwrap_or(&file)), &bytes)?;
    }
    Ok(())
}

/// The size of all files, in megabytes.
fn size(folder: &Path) -> Result<f64> {
    let sizes = files::below(folder, |_| true)?
        .into_iter()
        .map(|file| fs::metadata(&file).map_or(0, |meta| meta.len()));
    let kilobytes = u32::try_from(sizes.sum::<u64>() / 1000).unwrap_or(u32::MAX);
    Ok(f64::from(kilobytes) / 1000.0)
}
