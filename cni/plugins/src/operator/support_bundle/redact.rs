//! Takes out of a configuration what nobody else should see.

use serde_json::Value;

/// What stands in place of a value.
const REDACTED: &str = "(redacted)";
/// Parts of keys, in lower case, whose values are taken out whatever they are.
const KEYS: [&str; 11] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "apikey",
    "privatekey",
    "psk",
    "auth",
    "cookie",
];

/// Replaces the values of keys that sound like secrets, and texts that look like one.
pub(super) fn redact(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                if is_secret(key) && !matches!(value, Value::Bool(_) | Value::Null) {
                    *value = REDACTED.into();
                } else {
                    redact(value);
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(redact),
        Value::String(text) if looks_secret(text) => *text = REDACTED.to_owned(),
        _ => {}
    }
}

fn is_secret(key: &str) -> bool {
    let plain: String =
        key.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    KEYS.iter().any(|part| plain.contains(part)) || plain == "key" || plain.ends_with("keydata")
}

/// A key or certificate in the armour of RFC 7468, or an address with a password in it (RFC 3986, section
/// 3.2.1).
fn looks_secret(text: &str) -> bool {
    let with_password = || {
        let rest = text.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
        rest.and_then(|authority| authority.rsplit_once('@')).is_some_and(|(user, _)| user.contains(':'))
    };
    text.contains("-----BEGIN") || with_password()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_replaced_and_the_rest_stays() {
        let mut value = json!({
            "name": "pods", "ipMasq": true, "useToken": false, "mtu": 1500, "externalSetMarkChain": "KEY",
            "plugins": [{
                "type": "bridge", "etcd": {"Password": "hunter2", "api_key": 7, "url": "https://u:hunter2@host/x"},
                "kubernetes": {"k8s_auth_token": ["hunter2"], "client-key-data": "hunter2"},
                "pem": "-----BEGIN PRIVATE KEY-----\nhunter2", "see": "https://host/a:b@c",
            }],
        });
        redact(&mut value);
        assert!(!value.to_string().contains("hunter2"), "{value:#}");
        assert_eq!(value["plugins"][0]["see"], "https://host/a:b@c");
        for (key, wanted) in [
            ("name", json!("pods")),
            ("ipMasq", json!(true)),
            ("useToken", json!(false)),
            ("mtu", json!(1500)),
        ] {
            assert_eq!(value[key], wanted);
        }
        assert_eq!(value["externalSetMarkChain"], "KEY");
    }

    proptest! {
        #[test]
        fn nothing_below_a_secret_key_is_left(key in "[a-zA-Z_-]{0,4}([pP]assword|TOKEN|secret|api[_-]?key)[a-zA-Z]{0,4}", depth in 0usize..4) {
            let mut value = json!({ key: {"a": ["hunter2", {"b": "hunter2"}]} });
            for _ in 0..depth {
                value = json!([{"x": value}]);
            }
            redact(&mut value);
            prop_assert!(!value.to_string().contains("hunter2"));
        }
    }
}
