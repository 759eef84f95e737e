// SPDX-License-Identifier: GPL-2.0-or-later

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Part of every secret.
const MARK: &str = "Hunter2";

/// Keys that people keep secrets in.
const SECRET_KEYS: &str = "password passwd pass pwd pw passphrase passcode pin secret secretKey \
    secret_key clientSecret client_secret appSecret sharedSecret sharedsecret hmac hmacKey token \
    authToken auth_token accessToken access_token refreshToken refresh_token idToken bearer bearerToken jwt \
    apiKey api_key api-key apikey xApiKey key keys keyData key_data client-key-data client-key \
    clientKey privateKey private_key privkey priv sshKey ssh_key sshPrivateKey rsaKey ecKey pem \
    cert certificate tlsKey tls_key tls.key caKey ca_key pkcs12 p12 pfx keystore \
    keystorePassword truststorePassword psk preSharedKey pre_shared_key presharedkey wpaPsk \
    wireguard_key wireguardPrivateKey wgKey wgPresharedKey ipsecKey ipsec_psk ikePsk espKey encryptionKey \
    encryption_key encryptKey aesKey cipherKey masterKey signingKey signing_key seed mnemonic \
    salt nonce iv otp totp totpSecret mfa credential credentials creds cred auth \
    authorization basicAuth basic_auth httpAuth proxyAuth proxyPassword Authorization Cookie cookie \
    session sessionId sessionKey session_token csrf xsrf login user username account \
    accessKey access_key accessKeyId AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID aws_session_token \
    AZURE_CLIENT_SECRET GOOGLE_APPLICATION_CREDENTIALS gcpKey serviceAccountKey kubeconfig \
    k8s_auth_token k8sAuthToken etcdPassword etcd_password etcd_key etcd_key_file_content etcdCertData vault \
    vaultToken VAULT_TOKEN consulToken nomadToken databaseUrl database_url DATABASE_URL dsn redisUrl \
    mongoUri amqpUrl connectionString connection_string webhook webhookUrl slackToken githubToken GITHUB_TOKEN \
    gitlabToken npmToken dockerAuth dockerconfigjson registryAuth imagePullSecret snmpCommunity community \
    bgpPassword bgp_password ospfKey md5Key tcpMd5 radiusSecret ldapBindPassword bindPw bind_pw \
    smtpPassword ftpPassword sudoPassword rootpw root_password adminPass adminPassword unlockCode \
    license licenseKey activationKey hash digest fingerprint signature sig env environment \
    annotations labels comment description note extra data blob raw value content config options";

/// Forms that a secret has in a value.
fn forms() -> Vec<Value> {
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{MARK}\n-----END PRIVATE KEY-----");
    vec![
        json!(MARK),
        json!(format!("http://a:2379,http://root:{MARK}@b:2379")),
        json!(format!("https://{MARK}@host/path")),
        json!(format!("https://host/?access_token={MARK}")),
        json!([format!("X_PASSWORD={MARK}")]),
        json!({"name": "X_PASSWORD", "value": MARK}),
        json!([{"deep": [{"er": MARK}]}]),
        json!(pem),
        json!({ MARK: true }),
        json!(format!("Basic {MARK}==")),
    ]
}

fn shown(value: &Value) -> String {
    Rule::Network.apply(&value.to_string())
}

#[test]
fn two_hundred_kinds_of_secrets_are_not_shown_wherever_they_are() {
    let keys: Vec<&str> = SECRET_KEYS.split_whitespace().collect();
    assert!(keys.len() >= 200, "{}", keys.len());
    let all = Value::Array(forms());
    for key in keys {
        for form in [&forms()[0], &forms()[1], &all] {
            let here = json!({ key: form });
            for place in [
                json!({ "name": "n", key: form, "plugins": [] }),
                json!({"plugins": [{"type": "bridge", key: form}]}),
                json!({"plugins": [{"type": "calico", key: form}]}),
                json!({"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"nokey": form}]], key: form}}),
                json!({"type": "bridge", "ipam": {"type": "other", key: form}}),
                json!({"type": "flannel", "delegate": here}),
                json!({"type": "bridge", "args": {"cni": here, key: form}, "runtimeConfig": here}),
                json!({"type": "bridge", "capabilities": here, "prevResult": here, "cni.dev/x": here}),
                json!({"type": "tuning", "sysctl": here}),
                json!({"type": "static", "ipam": {"type": "static", "dns": here}}),
            ] {
                let text = shown(&place);
                assert!(!text.contains(MARK), "{place}\n{text}");
            }
        }
    }
}

/// The value of a known key is shown only in that key's form, such as a name or a number: a URL, a list or an
/// object in its place is hidden.
#[test]
fn known_keys_show_only_what_they_are_for() {
    for form in forms().into_iter().skip(1) {
        for key in ["name", "cniVersion", "type", "bridge", "mtu", "isGateway", "ipam", "dns", "vlanTrunk"] {
            let text = shown(&json!({"type": "bridge", key: form}));
            assert!(!text.contains(MARK), "{key}: {form}\n{text}");
        }
        for key in ["backend", "conditionsV4", "snat", "externalSetMarkChain"] {
            let text = shown(&json!({"type": "portmap", key: form}));
            assert!(!text.contains(MARK), "{key}: {form}\n{text}");
        }
    }
    // A word could be the name of a link, but not an address, path, number, MAC address, text or setting.
    for value in [
        json!({"type": "tap", "mtu": MARK, "mac": MARK, "selinuxContext": MARK, "multiQueue": MARK}),
        json!({"type": "tuning", "sysctl": {"net.ipv4.tcp_fastopen_key": MARK, MARK: "1"}, "dataDir": MARK}),
        json!({"type": "bridge", "dns": {"search": [MARK], "domain": MARK, "options": [MARK]}, "vlan": MARK}),
        json!({"type": "macvlan", "mode": MARK, "ipMasqBackend": MARK}),
        json!({"type": "portmap", "backend": MARK, "markMasqBit": MARK}),
        json!({"type": "bridge", "ipam": {"type": "dhcp", "provide": [{"option": "12", "value": MARK}]}}),
        json!({"type": "bridge", "ipam": {"type": "host-local", "subnet": MARK, "resolvConf": MARK}}),
    ] {
        let text = shown(&value);
        assert!(!text.contains(MARK), "{value}\n{text}");
    }
    let token = format!("{MARK}-eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9");
    assert!(!shown(&json!({ "name": token })).contains(MARK), "too long for a name");
}

#[test]
fn what_a_report_needs_is_shown() {
    let value = json!({
        "cniVersion": "1.1.0", "name": "pods", "disableCheck": true,
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "mtu": 1500, "ipmasc": true,
                "ipam": {
                    "type": "host-local", "ranges": [[{"subnet": "10.22.0.0/16", "gateway": "10.22.0.1"}]],
                    "dataDir": "/run/networks", "routes": [{"dst": "0.0.0.0/0"}],
                },
                "dns": {"nameservers": ["1.1.1.1"], "search": ["corp.example"]},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}, "conditionsV4": ["-s", "10.0.0.0/8"]},
            {"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}, "mac": "02:00:00:00:00:01"},
            {"type": "calico", "etcd_endpoints": "http://a"},
        ],
    });
    expect_test::expect![[r#"
        {
          "cniVersion": "1.1.0",
          "disableCheck": true,
          "name": "pods",
          "plugins": [
            {
              "(unknown key 3, 6 characters, like \"ipMasq\")": "(bool)",
              "bridge": "cni0",
              "dns": {
                "nameservers": [
                  "1.1.1.1"
                ],
                "search": "(list of 1)"
              },
              "ipam": {
                "dataDir": "/run/networks",
                "ranges": [
                  [
                    {
                      "gateway": "10.22.0.1",
                      "subnet": "10.22.0.0/16"
                    }
                  ]
                ],
                "routes": [
                  {
                    "dst": "0.0.0.0/0"
                  }
                ],
                "type": "host-local"
              },
              "isGateway": true,
              "mtu": 1500,
              "type": "bridge"
            },
            {
              "capabilities": {
                "portMappings": true
              },
              "conditionsV4": "(list of 2)",
              "type": "portmap"
            },
            {
              "mac": "02:00:00:00:00:01",
              "sysctl": {
                "net.core.somaxconn": "500"
              },
              "type": "tuning"
            },
            {
              "(unknown key 0, 14 characters)": "(text of 8 characters)",
              "type": "calico"
            }
          ]
        }
    "#]]
    .assert_eq(&shown(&value));
    let node = Rule::Node
        .apply(r#"{"backend": "ebpf", "uplinks": ["eth0"], "tokn": "Hunter2", "maps": {"flows": 5}}"#);
    assert!(node.contains("\"ebpf\"") && node.contains("eth0") && !node.contains(MARK), "{node}");
}

#[test]
fn a_parsers_error_quotes_nothing() {
    for text in ["Hunter2", "{\"Hunter2\": Hunter2", "[\"Hunter2\"]", "\"Hunter2\"", "{\"a\": \"Hunter2"] {
        for rule in [Rule::Network, Rule::Node] {
            assert!(!rule.apply(text).contains(MARK), "{text}");
        }
    }
}

#[test]
fn our_own_words_quote_only_what_is_harmless() {
    for (text, wanted) in [
        ("unknown backend \"Hunter2\"\n", "unknown backend (text of 7 characters)\n"),
        (
            "unknown field `Hunter2`, expected `backend`\n",
            "unknown field (text of 7 characters), expected `backend`\n",
        ),
        ("a \"Hunter2\\\" x\" b\n", "a (text of 11 characters) b\n"),
        ("a \"Hunter2\n", "a (text of 7 characters)\n"),
        ("see https://u:Hunter2@h now\n", "see (text of 19 characters) now\n"),
        ("open \"/etc/cni\": gone\n", "open \"/etc/cni\": gone\n"),
        (
            "missing  /etc/cni/slipway.json: unknown Hunter2\n",
            "missing  /etc/cni/slipway.json: (text of 15 characters)\n",
        ),
    ] {
        assert_eq!(Rule::Text.apply(text), wanted);
    }
    let rows = "failed    pods web eth0: its ports\n            invalid address: Hunter2\npresent   x\n            it is\n";
    let shown = Rule::Outcomes.apply(rows);
    assert!(!shown.contains(MARK) && shown.contains("            it is\n"), "{shown}");
}

proptest! {
    #[test]
    fn nothing_of_an_unknown_key_is_left(key in "[a-zA-Z_-]{0,14}Q", depth in 0usize..4) {
        let mut value = json!({ key: {"a": [MARK, {"b": MARK}], MARK: 1} });
        for _ in 0..depth {
            value = json!([{"x": value}]);
        }
        let value = json!({"type": "bridge", "y": value});
        prop_assert!(!shown(&value).contains(MARK));
    }

    #[test]
    fn any_text_can_be_reduced(text in "[\"`a-z\\\\\n @:/é]{0,80}") {
        for rule in [Rule::Text, Rule::Outcomes, Rule::Network, Rule::Node] {
            let _shown = rule.apply(&text);
        }
    }
}
