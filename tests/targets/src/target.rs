// SPDX-License-Identifier: GPL-3.0-or-later

//! A parser as a fuzz target.

use crate::shape::Shape;

/// A parser, with assertions about its results.
#[derive(Debug)]
pub struct Target {
    pub name: &'static str,
    /// A description of the input for people.
    pub input: &'static str,
    /// Reads an input. Panics if an assertion does not hold.
    pub read: fn(&[u8]) -> Shape,
    /// Words of the input's language, which mutations insert.
    pub words: &'static [&'static str],
}
