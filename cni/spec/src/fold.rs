// SPDX-License-Identifier: MIT OR Apache-2.0

//! Decodes JSON like the reference's decoder (Go's encoding/json), on top of serde.
//!
//! Configurations for the reference plugins depend on three properties of that decoder:
//!
//! * the keys of an object match the fields of a struct without regard to ASCII case (containerd
//!   sends `HostPort` where the specification has `hostPort`);
//! * `null` leaves a field at its default;
//! * unknown keys are ignored (which is serde's default too).
//!
//! The rules apply to structs at every depth. Keys of maps are data and stay as they are, and so do keys that serde
//! decodes as maps (`#[serde(flatten)]`, untagged enums).
//!
//! Errors name the path of the offending key and its value:
//! `runtimeConfig.portMappings[0].hostPort: invalid value: integer `70000`, expected u16`.

use std::fmt;

use serde::de::{self, DeserializeOwned, DeserializeSeed, Visitor};
use serde_json::{Map, Value};

/// Decodes an object into `T`.
///
/// # Errors
/// [`FoldError`] with the path of the first key whose value does not fit, and the reason.
pub fn from_map<T: DeserializeOwned>(map: &Map<String, Value>) -> Result<T, FoldError> {
    T::deserialize(FoldMap(map))
}

/// Decodes any value into `T`.
///
/// # Errors
/// [`FoldError`] with the path of the first key whose value does not fit, and the reason.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, FoldError> {
    T::deserialize(Fold(value))
}

/// Looks up a key: the exact key, or otherwise the last key that differs only in case. A `null` is returned as it is.
#[must_use]
pub fn get<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    map.get(key).or_else(|| map.iter().rev().find(|(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, v)| v))
}

/// A value that cannot be decoded, with its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldError {
    /// Keys and indices from the outermost one, as spelled in the document. Empty for the document itself.
    path: String,
    message: String,
    /// True if the message contains the value.
    shows_value: bool,
}

impl FoldError {
    /// The path of the value, such as `a.b[0].c`. Empty for the document itself.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The reason, without the path.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Prepends a key to the path.
    #[must_use]
    pub fn under(mut self, key: &str) -> Self {
        let separator = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{key}{separator}{}", self.path);
        self
    }

    fn at(self, index: usize) -> Self {
        self.under(&format!("[{index}]"))
    }

    /// Adds the value to a message that does not show it, such as that of std's address parser.
    fn about(mut self, value: &Value) -> Self {
        let scalar = matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_));
        if scalar && !self.shows_value {
            self.message = format!("invalid value {}: {}", shortened(value), self.message);
            self.shows_value = true;
        }
        self
    }
}

/// A value as JSON, shortened for messages.
fn shortened(value: &Value) -> String {
    const LONGEST: usize = 120;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

impl fmt::Display for FoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}

impl std::error::Error for FoldError {}

impl de::Error for FoldError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { path: String::new(), message: message.to_string(), shows_value: false }
    }

    fn invalid_type(unexpected: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let message = format!("invalid type: {unexpected}, expected {expected}");
        Self { path: String::new(), message, shows_value: true }
    }

    fn invalid_value(unexpected: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let message = format!("invalid value: {unexpected}, expected {expected}");
        Self { path: String::new(), message, shows_value: true }
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let message = format!("{variant:?} is none of {}", expected.join(", "));
        Self { path: String::new(), message, shows_value: true }
    }

    fn missing_field(field: &'static str) -> Self {
        let message = format!("missing key `{field}`");
        Self { path: String::new(), message, shows_value: true }
    }
}

/// A deserializer that matches the keys of structs in any case.
struct Fold<'a>(&'a Value);

impl<'a> Fold<'a> {
    /// Passes a scalar to the visitor, which refuses it if it does not fit. Refuses lists and objects itself.
    fn scalar<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, FoldError> {
        let read: Result<V::Value, FoldError> = match self.0 {
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::String(s) => visitor.visit_borrowed_str(s),
            Value::Number(n) => {
                if let Some(n) = n.as_u64() {
                    visitor.visit_u64(n)
                } else if let Some(n) = n.as_i64() {
                    visitor.visit_i64(n)
                } else {
                    visitor.visit_f64(n.as_f64().unwrap_or(f64::NAN))
                }
            }
            Value::Null => visitor.visit_unit(),
            Value::Array(_) => Err(de::Error::invalid_type(de::Unexpected::Seq, &visitor)),
            Value::Object(_) => Err(de::Error::invalid_type(de::Unexpected::Map, &visitor)),
        };
        read.map_err(|e| e.about(self.0))
    }
}

/// Numbers, strings and booleans. In a list or map, `null` means the zero value, as in Go.
macro_rules! scalars {
    ($($method:ident => $zero:expr,)*) => {$(
        fn $method<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, FoldError> {
            if self.0.is_null() {
                #[allow(clippy::redundant_closure_call, reason = "the zero differs per method")]
                return ($zero)(visitor);
            }
            self.scalar(visitor)
        }
    )*};
}

impl<'a> de::Deserializer<'a> for Fold<'a> {
    type Error = FoldError;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, FoldError> {
        match self.0 {
            Value::Array(items) => visitor.visit_seq(Items::new(items)),
            Value::Object(map) => visitor.visit_map(Entries::of_map(map)),
            _ => self.scalar(visitor),
        }
    }

    scalars! {
        deserialize_bool => |v: V| v.visit_bool(false),
        deserialize_i8 => |v: V| v.visit_i64(0),
        deserialize_i16 => |v: V| v.visit_i64(0),
        deserialize_i32 => |v: V| v.visit_i64(0),
        deserialize_i64 => |v: V| v.visit_i64(0),
        deserialize_u8 => |v: V| v.visit_u64(0),
        deserialize_u16 => |v: V| v.visit_u64(0),
        deserialize_u32 => |v: V| v.visit_u64(0),
        deserialize_u64 => |v: V| v.visit_u64(0),
        deserialize_f32 => |v: V| v.visit_f64(0.0),
        deserialize_f64 => |v: V| v.visit_f64(0.0),
        deserialize_str => |v: V| v.visit_borrowed_str(""),
        deserialize_string => |v: V| v.visit_borrowed_str(""),
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, FoldError> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, FoldError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, FoldError> {
        match self.0 {
            Value::Array(items) => visitor.visit_seq(Items::new(items)),
            Value::Null => visitor.visit_seq(Items::new(&[])),
            _ => self.scalar(visitor),
        }
    }

    fn deserialize_tuple<V: Visitor<'a>>(self, _len: usize, visitor: V) -> Result<V::Value, FoldError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'a>>(
        self,
        _name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, FoldError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, FoldError> {
        match self.0 {
            Value::Object(map) => visitor.visit_map(Entries::of_map(map)),
            Value::Null => visitor.visit_map(Entries::none()),
            _ => self.scalar(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'a>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FoldError> {
        match self.0 {
            Value::Object(map) => FoldMap(map).deserialize_struct(name, fields, visitor),
            Value::Null => visitor.visit_map(Entries::none()),
            _ => self.scalar(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FoldError> {
        // No configuration key of the specification is an enum with data, so serde_json's decoding of `"variant"` and
        // `{"variant": data}` is sufficient.
        self.0.deserialize_enum(name, variants, visitor).map_err(<FoldError as de::Error>::custom)
    }

    fn deserialize_ignored_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, FoldError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        <W: Visitor<'a>>
        i128 u128 char bytes byte_buf unit unit_struct identifier
    }
}

/// The same deserializer for an object that is not in a [`Value`].
struct FoldMap<'a>(&'a Map<String, Value>);

impl<'a> de::Deserializer<'a> for FoldMap<'a> {
    type Error = FoldError;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, FoldError> {
        visitor.visit_map(Entries::of_map(self.0))
    }

    fn deserialize_struct<V: Visitor<'a>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FoldError> {
        visitor.visit_map(Entries::of_struct(self.0, fields))
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, FoldError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, FoldError> {
        visitor.visit_some(self)
    }

    serde::forward_to_deserialize_any! {
        <W: Visitor<'a>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// An entry: the name that the struct or map knows, the key in the document, and the value.
type Entry<'a> = (&'a str, &'a str, &'a Value);

/// The entries of an object, with keys renamed to the fields that they match.
struct Entries<'a> {
    entries: std::vec::IntoIter<Entry<'a>>,
    current: Option<Entry<'a>>,
}

impl<'a> Entries<'a> {
    fn none() -> Self {
        Self { entries: Vec::new().into_iter(), current: None }
    }

    fn of_map(map: &'a Map<String, Value>) -> Self {
        let entries: Vec<Entry<'a>> = map.iter().map(|(k, v)| (k.as_str(), k.as_str(), v)).collect();
        Self { entries: entries.into_iter(), current: None }
    }

    /// At most one entry per field: the one with the exact key, or otherwise the last one. A `null` leaves its field at
    /// the default. Unknown keys are passed on, for structs that count them.
    fn of_struct(map: &'a Map<String, Value>, fields: &'static [&'static str]) -> Self {
        let mut entries: Vec<Entry<'a>> = Vec::with_capacity(map.len());
        for (key, value) in map {
            let field = fields
                .iter()
                .find(|f| **f == key)
                .or_else(|| fields.iter().find(|f| f.eq_ignore_ascii_case(key)))
                .copied();
            let Some(field) = field else {
                entries.push((key, key, value));
                continue;
            };
            if value.is_null() {
                continue;
            }
            match entries.iter_mut().find(|(f, ..)| *f == field) {
                Some(earlier) if earlier.1 == field => {}
                Some(earlier) => *earlier = (field, key, value),
                None => entries.push((field, key, value)),
            }
        }
        Self { entries: entries.into_iter(), current: None }
    }
}

impl<'a> de::MapAccess<'a> for Entries<'a> {
    type Error = FoldError;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>, FoldError> {
        let Some(entry) = self.entries.next() else { return Ok(None) };
        self.current = Some(entry);
        let key: de::value::BorrowedStrDeserializer<'a, FoldError> =
            de::value::BorrowedStrDeserializer::new(entry.0);
        seed.deserialize(MapKey(key)).map(Some).map_err(|e| e.under(entry.1))
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, FoldError> {
        let Some((_, key, value)) = self.current.take() else {
            return Err(de::Error::custom("a value was asked for before its key"));
        };
        seed.deserialize(Fold(value)).map_err(|e| e.under(key))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len())
    }
}

/// The key of an object, which is a string or a newtype of one.
struct MapKey<'a>(de::value::BorrowedStrDeserializer<'a, FoldError>);

impl<'a> de::Deserializer<'a> for MapKey<'a> {
    type Error = FoldError;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, FoldError> {
        self.0.deserialize_any(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, FoldError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FoldError> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        <W: Visitor<'a>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// The elements of a list.
struct Items<'a> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Value>>,
}

impl<'a> Items<'a> {
    fn new(items: &'a [Value]) -> Self {
        Self { items: items.iter().enumerate() }
    }
}

impl<'a> de::SeqAccess<'a> for Items<'a> {
    type Error = FoldError;

    fn next_element_seed<T: DeserializeSeed<'a>>(&mut self, seed: T) -> Result<Option<T::Value>, FoldError> {
        let Some((index, value)) = self.items.next() else { return Ok(None) };
        seed.deserialize(Fold(value)).map(Some).map_err(|e| e.at(index))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Port {
        host_port: u16,
        container_port: u16,
        #[serde(rename = "hostIP")]
        host_ip: String,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Conf {
        is_gateway: bool,
        vlan: i32,
        gateway: Option<IpAddr>,
        names: Vec<String>,
        port_mappings: Vec<Port>,
        labels: BTreeMap<String, String>,
    }

    fn conf(value: Value) -> Result<Conf, String> {
        let Value::Object(map) = value else { panic!("an object") };
        from_map(&map).map_err(|e| e.to_string())
    }

    #[test]
    fn keys_match_in_any_case_at_any_depth() {
        let got = conf(json!({
            "ISGATEWAY": true, "Vlan": 3,
            "PortMappings": [{"HostPort": 80, "ContainerPort": 8080, "HostIP": "::1"}],
        }));
        let port = Port { host_port: 80, container_port: 8080, host_ip: "::1".into() };
        let want = Conf { is_gateway: true, vlan: 3, port_mappings: vec![port], ..Conf::default() };
        assert_eq!(got, Ok(want));
    }

    #[test]
    fn the_exact_key_wins_and_then_the_last() {
        assert_eq!(conf(json!({"VLAN": 1, "vlan": 2, "vlaN": 3})).map(|c| c.vlan), Ok(2));
        assert_eq!(conf(json!({"VLAN": 1, "Vlan": 2})).map(|c| c.vlan), Ok(2));
        // The exact key comes before the other one.
        let port = from_value::<Port>(&json!({"hostIP": "::1", "hostIp": "::2"})).unwrap();
        assert_eq!(port.host_ip, "::1");
        let map = json!({"TYPE": 1, "Type": 2});
        assert_eq!(get(map.as_object().unwrap(), "type"), Some(&json!(2)));
        let map = json!({"TYPE": 1, "type": 2, "tYpe": 3});
        assert_eq!(get(map.as_object().unwrap(), "type"), Some(&json!(2)));
    }

    #[test]
    fn null_is_the_default() {
        let got = conf(json!({
            "isGateway": null, "vlan": null, "gateway": null, "names": [null, "a"],
            "portMappings": [null, {"hostPort": null}], "labels": null,
        }));
        let want = Conf {
            names: vec![String::new(), "a".into()],
            port_mappings: vec![Port::default(), Port::default()],
            ..Conf::default()
        };
        assert_eq!(got, Ok(want));
    }

    #[test]
    fn the_keys_of_maps_keep_their_case() {
        let got = conf(json!({"Labels": {"A": "1", "a": "2"}})).unwrap();
        assert_eq!(got.labels, BTreeMap::from([("A".into(), "1".into()), ("a".into(), "2".into())]));
    }

    #[test]
    fn errors_name_the_path_and_the_value() {
        let cases = [
            (json!({"vlan": "x"}), "vlan: invalid type: string \"x\", expected i32"),
            (json!({"vlan": 1.5}), "vlan: invalid type: floating point `1.5`, expected i32"),
            (json!({"Gateway": "10.1"}), "Gateway: invalid value \"10.1\": invalid IP address syntax"),
            (
                json!({"PortMappings": [{}, {"hostPort": 70000}]}),
                "PortMappings[1].hostPort: invalid value: integer `70000`, expected u16",
            ),
            (json!({"portMappings": {}}), "portMappings: invalid type: map, expected a sequence"),
            (json!({"portMappings": [[]]}), "portMappings[0]: invalid type: sequence, expected struct Port"),
            (json!({"names": [1]}), "names[0]: invalid type: integer `1`, expected a string"),
            (json!({"labels": {"k": 1}}), "labels.k: invalid type: integer `1`, expected a string"),
        ];
        for (value, want) in cases {
            assert_eq!(conf(value.clone()), Err(want.to_owned()), "{value}");
        }
    }

    #[test]
    fn an_error_has_its_path_and_its_reason_apart() {
        let error = from_value::<Vec<Port>>(&json!([{}, {"HostPort": "x"}])).unwrap_err();
        assert_eq!(error.path(), "[1].HostPort");
        assert_eq!(error.message(), "invalid type: string \"x\", expected u16");
        assert_eq!(error.under("ports").path(), "ports[1].HostPort");
    }

    /// The keys of plugins that are not ours are kept as they are.
    #[test]
    fn values_without_a_type_are_kept() {
        let value = json!({"A": [1, -1, 1.5, "x", true, null, {"b": []}], "a": {}});
        assert_eq!(from_value::<Value>(&value), Ok(value));
    }

    #[test]
    fn null_in_a_list_is_an_empty_element() {
        let list = json!([null, {"K": null}]);
        let empty = BTreeMap::from([("K".to_owned(), String::new())]);
        assert_eq!(from_value::<Vec<BTreeMap<String, String>>>(&list), Ok(vec![BTreeMap::new(), empty]));
        let list = json!([null, "10.0.0.1"]);
        assert_eq!(from_value::<Vec<Option<IpAddr>>>(&list), Ok(vec![None, "10.0.0.1".parse().ok()]));
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Strict {
        subnet: String,
    }

    #[test]
    fn required_keys() {
        let got = from_value::<Vec<Strict>>(&json!([{"Subnet": "a"}, {"subnet": null}]));
        assert_eq!(got.unwrap_err().to_string(), "[1]: missing key `subnet`");
    }
}
