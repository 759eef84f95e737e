// SPDX-License-Identifier: GPL-3.0-or-later

//! The log on standard error: as text, or with `--log-format json` one JSON object per line, with the fields of the
//! plugins' lines.

use std::io::Write as _;

use clap::ValueEnum;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

/// The longest message, in bytes, as in the plugins' log.
const LONGEST: usize = 8 << 10;

/// A line, with its fields in this order.
#[derive(Serialize)]
struct Line<'a> {
    /// In UTC by RFC 3339, to the millisecond.
    time: String,
    level: &'static str,
    pid: u32,
    /// The module.
    target: &'a str,
    message: &'a str,
}

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Starts logging at the level that `SLIPWAY_LOG` names, else at the default.
pub(crate) fn start(default: &str, format: LogFormat) {
    let level = env_logger::Env::new().filter_or("SLIPWAY_LOG", default);
    let mut builder = env_logger::Builder::from_env(level);
    if format == LogFormat::Json {
        builder.format(|out, record| {
            let message = record.args().to_string();
            out.write_all(line(Timestamp::now(), record.level(), record.target(), &message).as_bytes())
        });
    }
    builder.target(env_logger::Target::Stderr).init();
}

/// A line with its line break.
fn line(time: Timestamp, level: log::Level, target: &str, message: &str) -> String {
    let line = Line {
        time: time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string(),
        level: level.as_str(),
        pid: std::process::id(),
        target,
        message: &message[..message.floor_char_boundary(LONGEST)],
    };
    // A structure of texts and numbers always has a form.
    let mut text = serde_json::to_string(&line).unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_record_is_one_json_object_on_one_line() {
        let message = "node \"a\"\n\u{1b}[31m\u{2028}é";
        let text = line(Timestamp::UNIX_EPOCH, log::Level::Warn, "slipwayd::cluster", message);
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        assert!(
            text.starts_with("{\"time\":\"1970-01-01T00:00:00.000Z\",\"level\":\"WARN\",\"pid\":"),
            "{text}"
        );
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["target"], &value["message"]), (&json!("slipwayd::cluster"), &json!(message)));
        assert_eq!(value.as_object().unwrap().len(), 5);
        let long = line(Timestamp::now(), log::Level::Info, "a", &"é".repeat(LONGEST));
        let value: Value = serde_json::from_str(&long).unwrap();
        assert_eq!(value["message"].as_str().unwrap().len(), LONGEST);
    }
}
