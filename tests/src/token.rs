// SPDX-License-Identifier: GPL-2.0-or-later

//! Tokens of service accounts that expire when a test needs them to.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::kube::ApiServer;

/// How long the API server accepts a token after its expiry: the leeway of go-jose, the library with which the server
/// reads tokens.
const LEEWAY: Duration = Duration::from_secs(60);
/// The size in bytes of each of the two numbers in a P-256 signature (RFC 7518, section 3.4).
const NUMBER: usize = 32;

impl ApiServer<'_> {
    /// A token like that of [`ApiServer::token`], but accepted for this time only. The server itself issues no token
    /// for less than ten minutes, so the test signs this one with the server's key.
    pub fn token_for(&self, namespace: &str, account: &str, time: Duration) -> String {
        let token = self.token(namespace, account);
        let parts: Vec<&str> = token.split('.').collect();
        let [header, claims, _] = parts[..] else { panic!("no token: {token}") };
        let claims = URL_SAFE_NO_PAD.decode(claims).expect("base64");
        let mut claims: Value = serde_json::from_slice(&claims).expect("JSON");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        claims["exp"] = (now + time).saturating_sub(LEEWAY).as_secs().into();
        let begin = now.saturating_sub(Duration::from_secs(3600)).as_secs();
        claims["iat"] = begin.into();
        claims["nbf"] = begin.into();
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let mut command = Command::new("openssl");
        command.args(["dgst", "-sha256", "-hex", "-sign", crate::kube::KEY]);
        let output = self.control().exec(command, signed.as_bytes());
        assert_eq!(output.code, Some(0), "{output}");
        let text = output.stdout.rsplit_once("= ").map_or("", |(_, text)| text.trim());
        let signature = numbers(&bytes(text)).unwrap_or_else(|| panic!("no signature: {output}"));
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn bytes(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2).filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
}

/// Converts a signature from DER (RFC 3279, section 2.2.3) to the format of tokens, in which both numbers follow each
/// other.
fn numbers(der: &[u8]) -> Option<Vec<u8>> {
    let [0x30, _, rest @ ..] = der else { return None };
    let mut rest = rest;
    let mut all = Vec::new();
    for _ in 0..2 {
        let [2, length, after @ ..] = rest else { return None };
        let (number, after) = after.split_at_checked(usize::from(*length))?;
        // DER adds a leading 0 to keep a number positive, and omits leading zeros of a short one.
        let digits: Vec<u8> = number.iter().copied().skip_while(|byte| *byte == 0).collect();
        all.extend(std::iter::repeat_n(0, NUMBER.checked_sub(digits.len())?));
        all.extend(digits);
        rest = after;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_signature_have_32_bytes_each() {
        let long = "00".to_owned() + &"c7".repeat(32);
        let der = bytes(&format!("30340221{long}020f{}", "3e".repeat(15)));
        let mut expected = vec![0xc7; 32];
        expected.extend([0; 17]);
        expected.extend([0x3e; 15]);
        assert_eq!(numbers(&der), Some(expected));
        assert_eq!(numbers(&der[..20]), None);
        assert_eq!(numbers(&[]), None);
    }
}
