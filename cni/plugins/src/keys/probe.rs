// SPDX-License-Identifier: GPL-2.0-or-later

//! Lists the keys that a type decodes: serde passes the fields of each struct to its deserializer.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};

/// Paths of keys, `ipam.ranges.subnet`. Lists have no index.
pub(crate) type Fields = BTreeSet<String>;

/// The keys that `T` decodes, at every depth. Leaves out those behind `#[serde(flatten)]` or in an untagged enum, which
/// serde decodes as maps.
pub(crate) fn fields<T: DeserializeOwned>() -> Fields {
    let mut all = Fields::new();
    let mut paths = vec![Vec::new()];
    while let Some(path) = paths.pop() {
        for field in level::<T>(&path) {
            let below: Vec<&'static str> = path.iter().copied().chain([field]).collect();
            assert!(below.len() < 9, "{below:?} has no end");
            all.insert(below.join("."));
            paths.push(below);
        }
    }
    all
}

/// The fields of the struct at a path.
fn level<T: DeserializeOwned>(path: &[&'static str]) -> Vec<&'static str> {
    let found = RefCell::new(Vec::new());
    // The error comes after the fields were recorded.
    let _decoded = T::deserialize(Probe { path, found: &found });
    found.into_inner()
}

#[derive(Clone, Copy)]
struct Probe<'a> {
    /// The rest of the path.
    path: &'a [&'static str],
    found: &'a RefCell<Vec<&'static str>>,
}

#[derive(Debug)]
struct Seen;

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("seen")
    }
}

impl std::error::Error for Seen {}

impl de::Error for Seen {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

impl<'de> de::Deserializer<'de> for Probe<'_> {
    type Error = Seen;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Seen> {
        Err(Seen)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Seen> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Seen> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Seen> {
        visitor.visit_seq(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Seen> {
        match self.path {
            [] => {
                self.found.borrow_mut().extend(fields);
                Err(Seen)
            }
            _ => visitor.visit_map(self),
        }
    }

    serde::forward_to_deserialize_any! {
        <W: Visitor<'de>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de> de::SeqAccess<'de> for Probe<'_> {
    type Error = Seen;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Seen> {
        seed.deserialize(*self).map(Some)
    }
}

impl<'de> de::MapAccess<'de> for Probe<'_> {
    type Error = Seen;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Seen> {
        let field = self.path.first().ok_or(Seen)?;
        seed.deserialize((*field).into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Seen> {
        let (_, path) = self.path.split_first().ok_or(Seen)?;
        seed.deserialize(Probe { path, found: self.found })
    }
}
