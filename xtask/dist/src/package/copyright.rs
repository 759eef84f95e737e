// SPDX-License-Identifier: MIT OR Apache-2.0

//! The copyright file of a package, in Debian's machine-readable form (DEP-5): the sources, the crates, and the C libraries
//! in the binary, with the licences of all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::Format;
use crate::built::{Built, Program};
use crate::crates::{Graph, Package};
use crate::toolchain::Library;
use xtask_base::error::{Error, Result};
use xtask_base::workspace;

const HEADER: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Slipway
Comment: The program is one static binary. The paragraphs for crates/ and
 libraries/ name what is linked into it; each has the licence of its own
 sources. The whole is under the licence of the first paragraph.
";

/// The holder of our own sources, as in `LICENSE-MIT`.
const OWN: &str = "2026 The Slipway developers";

/// A licence whose text each Debian system has.
struct Common {
    /// As an SPDX expression.
    licence: &'static str,
    /// The name in /usr/share/common-licenses, and that of the file in other packages.
    file: &'static str,
    text: &'static str,
}

const fn common(licence: &'static str, file: &'static str, text: &'static str) -> Common {
    Common { licence, file, text }
}

const APACHE: &str = include_str!("../../../../LICENSE-APACHE");
const GPL_2: &str = include_str!("../../../../LICENSE-GPL-2.0");
const GPL_3: &str = include_str!("../../../../LICENSE-GPL-3.0");
const LGPL: &str = include_str!("licences/LGPL-2.1");
const GCC_EXCEPTION: &str = include_str!("licences/GCC-exception-3.1");

const COMMON: [Common; 6] = [
    common("Apache-2.0", "Apache-2.0", APACHE),
    common("GPL-2.0-or-later", "GPL-2", GPL_2),
    common("GPL-2.0-only", "GPL-2", GPL_2),
    common("GPL-3.0-or-later", "GPL-3", GPL_3),
    common("GPL-3.0-or-later WITH GCC-exception-3.1", "GPL-3", GPL_3),
    common("LGPL-2.1-or-later", "LGPL-2.1", LGPL),
];

/// The first words of another licence in the crates' files, and words that a similar one does not have.
const TEXTS: [(&str, &str, &str); 10] = [
    ("0BSD", "Permission to use, copy, modify", ""),
    ("Apache-2.0 WITH LLVM-exception", "LLVM Exceptions to the Apache 2.0 License", ""),
    ("BSD-2-Clause", "Redistribution and use in source and binary forms", ""),
    ("BSD-3-Clause", "Redistribution and use in source and binary forms", "either the name"),
    ("BSL-1.0", "Boost Software License", ""),
    ("ISC", "Permission to use, copy, modify", "above copyright notice"),
    ("MIT", "Permission is hereby granted, free of charge", ""),
    ("Unicode-3.0", "Permission is hereby granted, free of charge", "data files"),
    ("Unlicense", "This is free and unencumbered software", ""),
    ("Zlib", "This software is provided 'as-is'", ""),
];

/// The beginnings of the names of files with licences.
const FILES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "UNLICENSE"];

/// A part of the binary.
struct Part {
    files: String,
    copyright: BTreeSet<String>,
    licence: String,
}

/// The licences of a program's package.
pub(super) struct Copyright {
    /// The paragraphs for files.
    parts: String,
    licences: Vec<Licence>,
}

/// A licence with a paragraph of its own.
struct Licence {
    title: String,
    /// The paragraph's text, without that of `common`.
    text: String,
    common: Option<&'static Common>,
}

impl Copyright {
    /// The copyright file, for a package of this format.
    pub(super) fn file(&self, format: Format) -> String {
        let mut out = self.parts.clone();
        for Licence { title, text, common } in &self.licences {
            out.push_str(&format!("\nLicense: {title}\n{text}"));
            let Some(Common { file, .. }) = common else { continue };
            out.push_str(&match format {
                Format::Deb => {
                    format!(" The full text is in /usr/share/common-licenses/{file} on Debian systems.\n")
                }
                Format::Rpm => format!(" The full text is in the file {file} next to this one.\n"),
            });
        }
        out
    }

    /// The texts that the copyright file refers to, by the names of their files. Debian systems have them.
    pub(super) fn texts(&self) -> BTreeMap<&'static str, &'static str> {
        self.licences.iter().filter_map(|one| one.common).map(|common| (common.file, common.text)).collect()
    }
}

/// The licences of a program's package.
pub(super) fn of(program: Program, built: &Built) -> Result<Copyright> {
    let binary = Graph::of_program(program.package, program.name, &built.triple)?;
    let programs = (program.name == "slipway").then(Graph::of_bpf_programs).transpose()?;
    let root = &binary.packages[&binary.root];
    let own = Part { files: "*".to_owned(), copyright: holders(&[OWN]), licence: root.licence.clone() };
    let all: BTreeMap<String, &Package> = [&binary]
        .into_iter()
        .chain(&programs)
        .flat_map(|graph| graph.packages.values())
        .filter(|package| package.name != root.name)
        .map(|package| (package.title(), package))
        .collect();
    let (published, members): (Vec<&Package>, Vec<&Package>) =
        all.values().copied().partition(|package| package.published);
    let mut parts = vec![own];
    parts.extend(members.iter().map(|package| member(package)));
    parts.extend(published.iter().map(|package| published_crate(package)));
    parts.extend(built.libraries.iter().map(library));
    parts.extend(toolchain());
    let mut out = HEADER.to_owned();
    let mut licences = BTreeSet::new();
    for part in &parts {
        let copyright: Vec<&str> = part.copyright.iter().map(String::as_str).collect();
        out.push_str(&format!(
            "\nFiles: {}\nCopyright: {}\nLicense: {}\n",
            part.files,
            copyright.join("\n           "),
            debian(&part.licence)
        ));
        licences.extend(licences_of(&part.licence));
    }
    let licences = licences.iter().map(|licence| paragraph(licence, &published)).collect::<Result<_>>()?;
    Ok(Copyright { parts: out, licences })
}

fn holders(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn member(package: &Package) -> Part {
    let folder = package.folder.strip_prefix(workspace::root()).unwrap_or(&package.folder);
    let files = format!("{}/*", folder.display());
    Part { files, copyright: holders(&[OWN]), licence: package.licence.clone() }
}

fn published_crate(package: &Package) -> Part {
    let mut copyright: BTreeSet<String> =
        texts(package).iter().flat_map(|text| text.lines().filter_map(holder)).collect();
    if copyright.is_empty() {
        copyright.extend(package.authors.iter().cloned());
    }
    if copyright.is_empty() {
        copyright.insert(format!("the authors of {}", package.name));
    }
    let files = format!("crates/{}-{}/*", package.name, package.version);
    Part { files, copyright, licence: package.licence.clone() }
}

fn library(library: &Library) -> Part {
    let files = format!("libraries/{}-{}/*", library.name, library.version);
    Part { files, copyright: holders(library.copyright), licence: library.licence.to_owned() }
}

/// The parts that come with the compilers.
fn toolchain() -> [Part; 2] {
    [
        Part {
            files: "libraries/libgcc/*".to_owned(),
            copyright: holders(&["1989-2026 Free Software Foundation, Inc."]),
            licence: "GPL-3.0-or-later WITH GCC-exception-3.1".to_owned(),
        },
        Part {
            files: "libraries/rust-std/*".to_owned(),
            copyright: holders(&["The Rust Project contributors"]),
            licence: "MIT OR Apache-2.0".to_owned(),
        },
    ]
}

/// The texts of a crate's files with licences, in the order of their names.
fn texts(package: &Package) -> Vec<String> {
    let entries = fs::read_dir(&package.folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
            path.is_file() && FILES.iter().any(|start| name.starts_with(start))
        })
        .collect();
    paths.sort();
    paths
        .iter()
        .filter_map(|path| fs::read(path).ok())
        .map(|b| String::from_utf8_lossy(&b).into_owned())
        .collect()
}

/// The holder in a line such as `Copyright (c) 2015 The Rust developers`; none in the text of a licence.
fn holder(line: &str) -> Option<String> {
    let line = line.trim().trim_start_matches(['*', '/', ' ']);
    let rest = line.strip_prefix("Copyright")?.trim_start();
    let rest = rest.strip_prefix(':').unwrap_or(rest).trim_start();
    let is_sign = |sign: &&str| rest.get(..sign.len()).is_some_and(|start| start.eq_ignore_ascii_case(sign));
    let sign = ["(c)", "\u{a9}"].into_iter().find(is_sign);
    let name = rest[sign.map_or(0, str::len)..].trim().trim_end_matches("All rights reserved.").trim();
    let is_named = sign.is_some() || name.starts_with(|c: char| c.is_ascii_digit());
    let is_sample = ["[", "{", "<", "yyyy"].iter().any(|start| name.starts_with(start));
    (is_named && !is_sample && !name.is_empty()).then(|| name.to_owned())
}

/// An SPDX expression as Debian writes it. A comma stands for the parentheses of `(A OR B) AND C`.
fn debian(expression: &str) -> String {
    let parts: Vec<String> = expression
        .split(") AND ")
        .map(|part| {
            let part = part.replace(['(', ')'], "").replace(" OR ", " or ").replace(" AND ", " and ");
            let part = part.replace(" WITH LLVM-exception", " with LLVM exception");
            part.replace(" WITH GCC-exception-3.1", " with GCC exception")
        })
        .collect();
    parts.join(", and ")
}

/// The licences in an SPDX expression.
fn licences_of(expression: &str) -> Vec<String> {
    let plain = expression.replace(['(', ')'], "").replace(" AND ", " OR ");
    plain.split(" OR ").map(|name| name.trim().to_owned()).collect()
}

/// A licence's own paragraph.
fn paragraph(licence: &str, crates: &[&Package]) -> Result<Licence> {
    let common = COMMON.iter().find(|common| common.licence == licence);
    let text = match common {
        Some(_) if licence.contains("GCC-exception") => format!("{} .\n", indented(GCC_EXCEPTION)),
        Some(_) => String::new(),
        None => indented(&text_in(licence, crates)?),
    };
    Ok(Licence { title: debian(licence), text, common })
}

/// The text of a licence in the first crate that has it.
fn text_in(licence: &str, crates: &[&Package]) -> Result<String> {
    let missing = || Error::Failed(format!("no crate has the text of the licence {licence}"));
    let (_, start, words) = TEXTS.iter().find(|(name, ..)| *name == licence).ok_or_else(missing)?;
    let has_it = |package: &&&Package| licences_of(&package.licence).iter().any(|name| name == licence);
    let found = crates.iter().filter(has_it).flat_map(|package| texts(package)).find_map(|text| {
        let at = text.find(start)?;
        text.to_lowercase().contains(&words.to_lowercase()).then(|| text[at..].to_owned())
    });
    found.ok_or_else(missing)
}

/// The lines of a field's text.
fn indented(text: &str) -> String {
    let lines = text.trim_end().lines().map(|line| match line.trim_end() {
        "" => " .\n".to_owned(),
        line => format!(" {}\n", line.trim_start_matches(' ')),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_those_that_a_file_names() {
        for (line, want) in [
            ("Copyright (c) 2015 The Rust developers", Some("2015 The Rust developers")),
            ("  Copyright 2019 A Person <a@example.org>", Some("2019 A Person <a@example.org>")),
            ("Copyright \u{a9} 1991-2023 Unicode, Inc.", Some("1991-2023 Unicode, Inc.")),
            ("Copyright [yyyy] [name of copyright owner]", None),
            ("Copyright and Related Rights.", None),
            ("The above copyright notice", None),
        ] {
            assert_eq!(holder(line).as_deref(), want, "{line}");
        }
    }

    #[test]
    fn an_rpm_has_the_texts_that_a_debian_system_has() {
        let names = ["GPL-2.0-or-later", "GPL-3.0-or-later WITH GCC-exception-3.1", "LGPL-2.1-or-later"];
        let licences = names.map(|name| paragraph(name, &[]).unwrap()).into();
        let copyright = Copyright { parts: HEADER.to_owned(), licences };
        let texts = copyright.texts();
        for (name, title) in [
            ("GPL-2", "GNU GENERAL PUBLIC LICENSE Version 2, June 1991"),
            ("GPL-3", "GNU GENERAL PUBLIC LICENSE Version 3, 29 June 2007"),
            ("LGPL-2.1", "GNU LESSER GENERAL PUBLIC LICENSE Version 2.1, February 1999"),
        ] {
            let words: Vec<&str> = texts[name].split_whitespace().collect();
            assert!(words.join(" ").starts_with(title), "{name}");
            let of = |format| copyright.file(format);
            assert!(of(Format::Rpm).contains(&format!(" in the file {name} next to this one.\n")));
            assert!(of(Format::Deb).contains(&format!(" /usr/share/common-licenses/{name} on ")));
            assert!(!of(Format::Rpm).contains("common-licenses"));
            assert!(of(Format::Rpm).contains("\n GCC RUNTIME LIBRARY EXCEPTION\n .\n"));
        }
        assert_eq!(texts.len(), names.len());
    }

    #[test]
    fn expressions_are_written_as_debian_does() {
        for (spdx, want, licences) in [
            ("MIT OR Apache-2.0", "MIT or Apache-2.0", vec!["MIT", "Apache-2.0"]),
            (
                "(MIT OR Apache-2.0) AND Unicode-3.0",
                "MIT or Apache-2.0, and Unicode-3.0",
                vec!["MIT", "Apache-2.0", "Unicode-3.0"],
            ),
            ("Apache-2.0 AND ISC", "Apache-2.0 and ISC", vec!["Apache-2.0", "ISC"]),
            (
                "Apache-2.0 WITH LLVM-exception",
                "Apache-2.0 with LLVM exception",
                vec!["Apache-2.0 WITH LLVM-exception"],
            ),
        ] {
            assert_eq!(
                (debian(spdx).as_str(), licences_of(spdx)),
                (want, licences.iter().map(|l| (*l).to_owned()).collect())
            );
        }
    }
}
