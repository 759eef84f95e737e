// SPDX-License-Identifier: GPL-3.0-or-later

//! The part of core/v1 Node that is decoded.
//!
//! A Node's JSON has some tens of kilobytes, mostly images and managed fields, and every kubelet writes it again every
//! few minutes. The decoder skips all fields that `nodes` does not read, without an allocation. It takes each
//! field in any shape: one Node with nonsense must not make a page of the list, or an event of the watch, unreadable.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::annotations::{VXLAN_MAC, VXLAN_PORT, WIREGUARD_KEY, WIREGUARD_PORT};

/// The most bytes of a text that are kept. No name, address or prefix is as long.
const TEXT: usize = 256;
/// The most elements of a list that are kept.
const LIST: usize = 16;

/// A Node as the API server sends it.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeObject {
    /// Name and resource version, as `kube` needs them. The rest is empty.
    meta: ObjectMeta,
    pub(super) metadata: Field<Metadata>,
    pub(super) spec: Field<Spec>,
    pub(super) status: Field<Status>,
}

/// `metadata`.
#[derive(Debug, Clone, Default)]
pub(super) struct Metadata {
    pub(super) name: Field<Text>,
    pub(super) uid: Field<Text>,
    resource_version: Field<Text>,
    pub(super) creation_timestamp: Field<Text>,
    pub(super) annotations: Field<AnnotationFields>,
}

/// Annotations of ours.
#[derive(Debug, Clone, Default)]
pub(super) struct AnnotationFields {
    pub(super) mac: Field<Text>,
    pub(super) port: Field<Text>,
    pub(super) wireguard_key: Field<Text>,
    pub(super) wireguard_port: Field<Text>,
}

/// `spec`.
#[derive(Debug, Clone, Default)]
pub(super) struct Spec {
    pub(super) pod_cidr: Field<Text>,
    pub(super) pod_cidrs: Field<List<Field<Text>>>,
}

/// `status`.
#[derive(Debug, Clone, Default)]
pub(super) struct Status {
    pub(super) addresses: Field<List<Field<Address>>>,
}

/// An element of `status.addresses`.
#[derive(Debug, Clone, Default)]
pub(super) struct Address {
    pub(super) kind: Field<Text>,
    pub(super) address: Field<Text>,
}

/// A value that may be missing or of another type.
#[derive(Debug, Clone, Default)]
pub(super) enum Field<T> {
    /// Missing or null.
    #[default]
    Missing,
    /// A value of another JSON type.
    Other,
    /// A value.
    Is(T),
}

/// The first [`TEXT`] bytes of a text; a longer one ends in "…", which makes it invalid wherever it is used.
#[derive(Debug, Clone)]
pub(super) struct Text(pub(super) String);

/// The first [`LIST`] elements of a list.
#[derive(Debug, Clone)]
pub(super) struct List<T> {
    pub(super) items: Vec<T>,
    /// The number of further elements.
    pub(super) more: usize,
}

impl Text {
    fn new(text: &str) -> Self {
        if text.len() <= TEXT {
            return Self(text.to_owned());
        }
        Self(format!("{}…", &text[..text.floor_char_boundary(TEXT)]))
    }
}

impl Field<Text> {
    /// The text, if there is one.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Is(Text(text)) => Some(text),
            Self::Missing | Self::Other => None,
        }
    }
}

impl Resource for NodeObject {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Node".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "nodes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

impl<'de> Deserialize<'de> for NodeObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Field::Is(mut object) = Field::<Self>::deserialize(deserializer)? else {
            return Err(D::Error::custom("a Node must be a JSON object"));
        };
        if let Field::Is(metadata) = &object.metadata {
            object.meta.name = metadata.name.text().map(str::to_owned);
            object.meta.resource_version = metadata.resource_version.text().map(str::to_owned);
        }
        Ok(object)
    }
}

/// A type that is decoded from some fields of a JSON object.
trait Fields: Default {
    /// A field that is decoded.
    type Key;

    /// The field of this name; none if it is skipped.
    fn key(name: &str) -> Option<Self::Key>;

    /// Decodes the value of a field.
    ///
    /// # Errors
    /// Invalid JSON.
    fn set<'de, A: MapAccess<'de>>(&mut self, key: Self::Key, map: &mut A) -> Result<(), A::Error>;
}

/// Implements [`Fields`] from pairs of a name in JSON and a field.
macro_rules! fields {
    ($type:ty: $($name:expr => $field:ident),+) => {
        const _: () = {
            #[allow(non_camel_case_types, reason = "the fields' names")]
            #[derive(Clone, Copy)]
            pub(super) enum Key { $($field),+ }
            impl Fields for $type {
                type Key = Key;
                fn key(name: &str) -> Option<Key> {
                    $(if name == $name { return Some(Key::$field); })+
                    None
                }
                fn set<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
                    match key { $(Key::$field => self.$field = map.next_value()?),+ }
                    Ok(())
                }
            }
        };
    };
}

fields!(NodeObject: "metadata" => metadata, "spec" => spec, "status" => status);
fields!(Metadata: "name" => name, "uid" => uid, "resourceVersion" => resource_version,
    "creationTimestamp" => creation_timestamp, "annotations" => annotations);
fields!(AnnotationFields: VXLAN_MAC => mac, VXLAN_PORT => port, WIREGUARD_KEY => wireguard_key,
    WIREGUARD_PORT => wireguard_port);
fields!(Spec: "podCIDR" => pod_cidr, "podCIDRs" => pod_cidrs);
fields!(Status: "addresses" => addresses);
fields!(Address: "type" => kind, "address" => address);

/// A key of a JSON object: a field of `T`, or none.
struct Key<T: Fields>(Option<T::Key>);

impl<'de, T: Fields> Deserialize<'de> for Key<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name<T>(PhantomData<T>);
        impl<T: Fields> Visitor<'_> for Name<T> {
            type Value = Key<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_str<E>(self, name: &str) -> Result<Key<T>, E> {
                Ok(Key(T::key(name)))
            }
        }
        deserializer.deserialize_identifier(Name(PhantomData))
    }
}

/// Implements the methods of a visitor for JSON types that a field must not have.
macro_rules! other_types {
    ($($type:ident)+) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON value")
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Field::Missing)
        }
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok(Field::Other)
        }
        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok(Field::Other)
        }
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok(Field::Other)
        }
        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok(Field::Other)
        }
        $(other_types!(@ $type);)+
    };
    (@ text) => {
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok(Field::Other)
        }
    };
    (@ list) => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(Field::Other)
        }
    };
    (@ object) => {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok(Field::Other)
        }
    };
}

/// Decodes a `Field<T>`.
struct Decoder<T>(PhantomData<T>);

impl<'de> Visitor<'de> for Decoder<Text> {
    type Value = Field<Text>;
    other_types!(list object);

    fn visit_str<E>(self, text: &str) -> Result<Field<Text>, E> {
        Ok(Field::Is(Text::new(text)))
    }
}

impl<'de> Deserialize<'de> for Field<Text> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Decoder::<Text>(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Decoder<List<T>> {
    type Value = Field<List<T>>;
    other_types!(text object);

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while items.len() < LIST {
            let Some(item) = list.next_element()? else { break };
            items.push(item);
        }
        let mut more = 0;
        while items.len() == LIST && list.next_element::<IgnoredAny>()?.is_some() {
            more += 1;
        }
        Ok(Field::Is(List { items, more }))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<List<T>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Decoder::<List<T>>(PhantomData))
    }
}

/// Decodes a `Field<T>` from a JSON object.
struct ObjectDecoder<T>(PhantomData<T>);

impl<'de, T: Fields> Visitor<'de> for ObjectDecoder<T> {
    type Value = Field<T>;
    other_types!(text list);

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut value = T::default();
        while let Some(Key(key)) = map.next_key::<Key<T>>()? {
            match key {
                Some(key) => value.set(key, &mut map)?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Field::Is(value))
    }
}

impl<'de, T: Fields> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ObjectDecoder::<T>(PhantomData))
    }
}
