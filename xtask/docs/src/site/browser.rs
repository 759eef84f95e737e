// SPDX-License-Identifier: MIT OR Apache-2.0

//! Opens the site in Debian's headless Chromium, from its files and without a network.

use std::path::{Path, PathBuf};
use std::process::Command;

use xtask_base::apt_root::{self, AptRoot};
use xtask_base::error::{Error, Result};
use xtask_base::files;
use xtask_base::run::{self, tool};
use xtask_base::workspace;
use xtask_downloads::runtimes;

const SUITE: &str = "trixie";
const PACKAGES: [&str; 2] = ["chromium-headless-shell", "fonts-dejavu-core"];
const PROGRAM: &str = "usr/lib/chromium/chromium-headless-shell";

/// Seconds that a page may take.
const LIMIT: &str = "60";

/// The pages that pictures are taken of, and the widths of a desk and of a telephone.
const PAGES: [&str; 4] = ["index", "docs/plugins/bridge", "docs/errors", "docs/reports/packets"];
const WIDTHS: [u32; 2] = [1280, 420];

/// The bytes of a picture: an empty page has less than half as many, a page of text more than twice.
const EMPTY: usize = 20_000;

/// Words, and a page that a search for them must find: that of a subject, and that of a message.
const SEARCHES: [(&str, &str); 2] = [
    ("masquerade", "docs/dataplane.html"),
    ("the ruleset changed at each of attempts within", "docs/errors.html"),
];

/// Takes pictures into `into`, and searches. Returns the number of pictures.
pub(super) fn check(site: &Path, into: &Path) -> Result<usize> {
    let root = root()?;
    let copy = root.join("site");
    workspace::remove(&copy)?;
    super::copy(site, &copy)?;
    for (words, page) in SEARCHES {
        let address = format!("file:///site/index.html?search={}", words.replace(' ', "%20"));
        let found =
            run::capture(browser(&root).args(["--virtual-time-budget=8000", "--dump-dom"]).arg(address))?;
        if !found.contains(&format!("<a href=\"{page}?highlight=")) {
            return Err(Error::Failed(format!("a search for {words:?} does not find {page}")));
        }
    }
    for page in PAGES {
        for width in WIDTHS {
            // A frame may be narrower than the window of a browser.
            let frame = format!(
                "<iframe style='border:0' width={width} height=1500 src='site/{page}.html'></iframe>"
            );
            stage_picture(&root, &frame)?;
            let size = format!("--window-size={},1520", width + 20);
            run::capture(browser(&root).args([&size, "--screenshot=/tmp/page.png", "file:///frame.html"]))?;
            let picture = files::read_bytes(root.join("tmp/page.png"))?;
            let file = into.join(format!("{}-{width}.png", page.replace('/', "-")));
            super::stage::write(&file, &picture)?;
            if !shows_a_page(&picture, width + 20) {
                return Err(Error::Failed(format!("{} does not show the page", file.display())));
            }
        }
    }
    Ok(PAGES.len() * WIDTHS.len())
}

/// True for a picture of this width with more than an empty or missing page on it. A PNG begins with a signature of 8
/// bytes and the header, whose first number is the width (PNG specification, 11.2.1).
fn shows_a_page(picture: &[u8], width: u32) -> bool {
    let header: Option<&[u8; 4]> = picture.get(16..).and_then(<[u8]>::first_chunk);
    picture.starts_with(b"\x89PNG") && header == Some(&width.to_be_bytes()) && picture.len() > EMPTY
}

fn stage_picture(root: &Path, frame: &str) -> Result<()> {
    workspace::remove(&root.join("tmp/page.png"))?;
    super::stage::write(&root.join("frame.html"), frame.as_bytes())
}

/// The browser's root file system, fetched once.
pub(super) fn root() -> Result<PathBuf> {
    let root = workspace::scratch("docs")?.join("browser");
    if root.join(PROGRAM).is_file() {
        return Ok(root);
    }
    let fresh = root.with_extension("new");
    workspace::remove(&fresh)?;
    apt_root::merged_usr(&fresh)?;
    AptRoot::open(SUITE)?.fetch_all(&PACKAGES, &fresh)?;
    for dir in ["dev", "proc", "tmp"] {
        let dir = fresh.join(dir);
        files::create_dir(&dir)?;
    }
    runtimes::null_device(&fresh.join("dev/null"))?;
    workspace::remove(&root)?;
    files::rename(&fresh, &root)?;
    Ok(root)
}

/// The browser in namespaces that end with it.
fn browser(root: &Path) -> Command {
    let mut command = tool("timeout", &["--kill-after=5", LIMIT, "unshare", "--mount", "--net", "--pid"]);
    command.args(["--fork", "--kill-child", "--mount-proc=/proc"]).arg(format!("--root={}", root.display()));
    command.arg(Path::new("/").join(PROGRAM));
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]);
    command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    // A zygote would need more devices than /dev/null.
    command.args(["--no-zygote", "--user-data-dir=/tmp/profile"]).env("HOME", "/tmp");
    command
}
