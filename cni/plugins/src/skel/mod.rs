// SPDX-License-Identifier: GPL-2.0-or-later

//! The protocol between a runtime and a plugin: environment and standard input in, result or error
//! on standard output.
//!
//! Everything comes as a parameter, so that the whole protocol is tested without a process. The
//! order of the checks, their codes and their messages are the reference's, with one exception: the
//! check that the namespace is not the plugin's own comes before the plugin runs, not after.

pub mod delegate;
mod env;
pub mod panic;
pub mod socket_closer;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use cni_dataplane::deferred_close;
use cni_runtime::invoke::failure;
use cni_spec::{
    Attachment, CniError, Declared, Draft, ErrorCode, NetConf, Purpose, Version, incompatible, text,
};
use cni_state::report::{Report, Verb};

use crate::plugin::{Delegates, Env, NodeRequest, Plugin, Plugins, Request};
use crate::{deletion, keys, logging};
pub use env::Vars;

/// The largest configuration that is read, in bytes. Real ones have a few thousand; the limit keeps
/// a broken runtime from filling the memory.
pub const LARGEST_CONFIG: u64 = 16 << 20;

/// Tests if a path is the network namespace that the plugin itself runs in. False for a path that cannot
/// be opened: the plugin reports the cause.
pub type IsOwnNetns<'a> = &'a dyn Fn(&Path) -> bool;

/// The three streams of a plugin.
pub struct Io<'a> {
    /// The configuration.
    pub stdin: &'a mut dyn Read,
    /// The result or the error.
    pub stdout: &'a mut dyn Write,
    /// Help for a person who runs the plugin without a runtime.
    pub stderr: &'a mut dyn Write,
}

impl std::fmt::Debug for Io<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Io").finish_non_exhaustive()
    }
}

/// The plugin that a call is for.
#[derive(Debug, Clone, Copy)]
pub struct Callee<'a> {
    pub plugin: &'a dyn Plugin,
    pub script: Option<&'a dyn Script>,
    /// The plugins that the called plugin may call in process.
    pub plugins: Plugins,
    /// The place where the called plugin finds plugins to delegate to.
    pub delegates: Delegates,
}

/// Output that replaces the plugin's own: `noop` plays other plugins in tests of runtimes.
pub trait Script: Sync + std::fmt::Debug {
    /// The versions to report for VERSION; none for those of [`Plugin::versions`].
    fn versions(&self, env: &Env) -> Option<Vec<String>>;

    /// The output of a call whose environment and configuration are valid; none to call the plugin's method.
    fn output(&self, env: &Env, config: &NetConf) -> Result<Option<Output>, CniError>;
}

/// The output of a call, as written to the streams.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Text for standard output.
    pub stdout: String,
    /// Text for standard error.
    pub stderr: String,
    /// The exit code.
    pub code: u8,
}

/// Answers as `callee` to the environment and standard input of this process, and reports the call to the node's
/// agent. Calls of other plugins in this process are part of it.
pub fn serve(callee: &Callee<'_>, stdout: &mut dyn Write, stderr: &mut dyn Write) -> u8 {
    panic::report_as_error(CniError::print);
    deferred_close::enable();
    let io = Io { stdin: &mut std::io::stdin().lock(), stdout, stderr };
    let (code, report) = run_and_report(callee, &|name| std::env::var_os(name), &is_own_netns, io);
    if let Some(report) = report {
        report.send();
        socket_closer::hand_over(report.verb == Verb::Del);
    }
    code
}

/// Compares namespaces by device and inode: namespaces(7).
fn is_own_netns(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path: &Path| std::fs::metadata(path).map(|data| (data.dev(), data.ino()));
    matches!((id(path), id(Path::new("/proc/self/ns/net"))), (Ok(theirs), Ok(own)) if theirs == own)
}

/// Calls a plugin of this binary in this process, and returns its output.
pub fn call(callee: &Callee<'_>, vars: Vars<'_>, config: &[u8]) -> Result<Vec<u8>, CniError> {
    let (mut stdin, mut stdout, mut stderr) = (config, Vec::new(), Vec::new());
    let io = Io { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
    match run(callee, vars, &is_own_netns, io) {
        0 => Ok(stdout),
        code => Err(failure(&format!("exit status {code}"), &stdout, &stderr)),
    }
}

/// Answers one call. Returns the exit code: 0, or 1 with an error on `io.stdout`.
pub fn run(callee: &Callee<'_>, vars: Vars<'_>, is_own_netns: IsOwnNetns<'_>, io: Io<'_>) -> u8 {
    run_and_report(callee, vars, is_own_netns, io).0
}

/// Answers one call. Returns the exit code, and the report of a call with a verb and a valid environment.
fn run_and_report(
    callee: &Callee<'_>,
    vars: Vars<'_>,
    is_own_netns: IsOwnNetns<'_>,
    io: Io<'_>,
) -> (u8, Option<Report>) {
    let Io { stdin, stdout, stderr } = io;
    let mut report = None;
    let output = match env::read(vars, callee.plugins, callee.delegates) {
        // The caller is a person, not a runtime.
        _ if vars("CNI_COMMAND").is_none_or(|command| command.is_empty()) => {
            return (exit_code(stderr.write_all(about(callee.plugin).as_bytes())), None);
        }
        Ok(env) if env.command == "VERSION" => Ok(version(callee, &env).into()),
        Ok(env) => {
            let run = |call: &_| answer(callee, &env, call, is_own_netns, stdin);
            logged(callee.plugin, &env, run, &mut report)
        }
        Err(error) => Err(error),
    };
    let output =
        output.unwrap_or_else(|error| Output { stdout: error.print(), code: 1, ..Output::default() });
    // Written in one piece, so that a result is either complete or missing.
    let to_stdout = stdout.write_all(output.stdout.as_bytes()).and_then(|()| stdout.flush());
    let to_stderr = stderr.write_all(output.stderr.as_bytes());
    let written = exit_code(to_stdout.and(to_stderr));
    if written != 0
        && let Some(report) = &mut report
    {
        // The runtime has no answer, so for the runtime the call has failed.
        report.code.get_or_insert(ErrorCode::Io.number());
    }
    (written.max(output.code), report)
}

/// Runs a call, logs its begin and its end, and makes its report.
fn logged(
    plugin: &dyn Plugin,
    env: &Env,
    run: impl FnOnce(&logging::Call) -> Result<Output, CniError>,
    report: &mut Option<Report>,
) -> Result<Output, CniError> {
    let call = logging::Call::begin(plugin.name(), env);
    let begin = Instant::now();
    log::debug!(
        "{} {} begins: CNI_NETNS {:?}, CNI_ARGS of {} bytes",
        plugin.name(),
        env.command,
        env.netns,
        env.args.len()
    );
    let output = run(&call);
    let duration = begin.elapsed();
    *report = Verb::of(&env.command).map(|verb| Report {
        plugin: plugin.name().to_owned(),
        verb,
        network: logging::network(),
        took: duration,
        code: output.as_ref().err().map(|error| error.code.number()),
    });
    let took = duration.as_secs_f64() * 1e3;
    match &output {
        Ok(_) => log::info!("{} {} succeeded in {took:.1} ms", plugin.name(), env.command),
        Err(error) => {
            log::info!(
                "{} {} failed in {took:.1} ms: code {}: {error}",
                plugin.name(),
                env.command,
                error.code.number()
            );
        }
    }
    output
}

fn exit_code(written: std::io::Result<()>) -> u8 {
    match written {
        Ok(()) => 0,
        Err(error) => {
            log::error!("write the answer: {error}");
            1
        }
    }
}

fn about(plugin: &dyn Plugin) -> String {
    let versions: Vec<&str> = plugin.versions().iter().map(|v| v.as_str()).collect();
    format!(
        "CNI {} plugin slipway-{}\nCNI protocol versions supported: {}\n",
        plugin.name(),
        env!("CARGO_PKG_VERSION"),
        versions.join(", ")
    )
}

/// The output of VERSION: always in the plugin's own newest version; the input is not read.
fn version(callee: &Callee<'_>, env: &Env) -> String {
    let newest = Version::ALL.last().map_or("", |v| v.as_str());
    if let Some(versions) = callee.script.and_then(|script| script.versions(env)) {
        return format!(
            "{{\"cniVersion\":{},\"supportedVersions\":{}}}\n",
            text::compact(newest),
            text::compact(&versions)
        );
    }
    let versions: Vec<&str> = callee.plugin.versions().iter().map(|v| v.as_str()).collect();
    format!(
        "{{\"cniVersion\":{},\"supportedVersions\":{}}}\n",
        text::compact(versions.last().unwrap_or(&newest)),
        text::compact(&versions)
    )
}

/// Everything but VERSION.
fn answer(
    callee: &Callee<'_>,
    env: &Env,
    call: &logging::Call,
    is_own_netns: IsOwnNetns<'_>,
    stdin: &mut dyn Read,
) -> Result<Output, CniError> {
    let plugin = callee.plugin;
    let draft = Draft::parse(read_config(stdin)?)?;
    let settle = |draft: Draft, purpose| {
        let config = settle(plugin, draft, purpose)?;
        logging::set_network(&config.name);
        // A delegated call has the outer call's keys, which are checked already.
        if purpose != Purpose::Removal && !call.is_delegated() {
            warn_of_unknown_keys(plugin, &config);
        }
        Ok::<_, CniError>(config)
    };
    match env.command.as_str() {
        "ADD" => {
            let config = settle(draft, Purpose::Setup)?;
            let request = request(env, &config, is_own_netns)?;
            deletion::before_add(plugin, &request.attachment);
            scripted(callee, env, &config, || add(plugin, &request))
        }
        "DEL" => {
            let config = settle(draft, Purpose::Removal)?;
            let request = request(env, &config, is_own_netns)?;
            scripted(callee, env, &config, || silent(deletion::during_del(plugin, &request)))
        }
        "CHECK" => {
            not_before(plugin, &draft, Version::V0_4_0, "CHECK")?;
            let config = settle(draft, Purpose::Setup)?;
            // The reference does not compare the namespaces here.
            let request = request(env, &config, &|_| false)?;
            scripted(callee, env, &config, || silent(plugin.check(&request)))
        }
        "GC" => {
            not_before(plugin, &draft, Version::V1_1_0, "GC")?;
            let config = settle(draft, Purpose::Node)?;
            scripted(callee, env, &config, || silent(gc(plugin, &NodeRequest { config: &config, env })))
        }
        "STATUS" => {
            not_before(plugin, &draft, Version::V1_1_0, "STATUS")?;
            let config = settle(draft, Purpose::Node)?;
            let request = NodeRequest { config: &config, env };
            scripted(callee, env, &config, || silent(plugin.status(&request)))
        }
        unknown => {
            let msg = format!("unknown CNI_COMMAND: {unknown}");
            Err(CniError::new(ErrorCode::InvalidEnvironment, msg))
        }
    }
}

/// Logs keys that no plugin knows. The decoder ignores them, as the specification demands.
fn warn_of_unknown_keys(plugin: &dyn Plugin, config: &NetConf) {
    if log::log_enabled!(log::Level::Warn) {
        for key in keys::unknown(plugin.name(), &config.raw) {
            log::warn!("{}: {key}", plugin.name());
        }
    }
}

/// The script's output, else what the plugin's method returns for standard output.
fn scripted(
    callee: &Callee<'_>,
    env: &Env,
    config: &NetConf,
    method: impl FnOnce() -> Result<String, CniError>,
) -> Result<Output, CniError> {
    if let Some(script) = callee.script
        && let Some(output) = script.output(env, config)?
    {
        return Ok(output);
    }
    method().map(Output::from)
}

/// All verbs except ADD print nothing when they succeed.
fn silent(done: Result<(), CniError>) -> Result<String, CniError> {
    done.map(|()| String::new())
}

impl From<String> for Output {
    fn from(stdout: String) -> Self {
        Self { stdout, ..Self::default() }
    }
}

fn read_config(stdin: &mut dyn Read) -> Result<Vec<u8>, CniError> {
    let failed =
        |e: &dyn std::fmt::Display| CniError::new(ErrorCode::Io, format!("error reading from stdin: {e}"));
    let mut bytes = Vec::new();
    stdin.take(LARGEST_CONFIG + 1).read_to_end(&mut bytes).map_err(|e| failed(&e))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > LARGEST_CONFIG) {
        return Err(failed(&format_args!("the configuration is larger than {LARGEST_CONFIG} bytes")));
    }
    Ok(bytes)
}

/// Refuses a configuration or a plugin that is older than the verb: CHECK, GC and STATUS came with later
/// versions.
fn not_before(plugin: &dyn Plugin, draft: &Draft, minimum: Version, verb: &str) -> Result<(), CniError> {
    let declared = draft.version()?;
    let decode = |e: cni_spec::VersionError| CniError::new(ErrorCode::Decode, e.to_string());
    // Without details, as in the reference: tools compare the whole text.
    let refuse = |who: &str| {
        let supported = text::quote_all(plugin.versions().iter().map(|v| v.as_str()));
        log::warn!("config is {}, plugin supports {supported}", text::quote(declared.as_str()));
        CniError::new(ErrorCode::IncompatibleVersion, format!("{who} version does not allow {verb}"))
    };
    if declared.compare(minimum).map_err(decode)?.is_lt() {
        return Err(refuse("config"));
    }
    for version in plugin.versions() {
        if declared.compare(*version).map_err(decode)?.is_le() {
            return Ok(());
        }
    }
    Err(refuse("plugin"))
}

/// Finds the version that both sides support, and reads the configuration in that version.
fn settle(plugin: &dyn Plugin, draft: Draft, purpose: Purpose) -> Result<NetConf, CniError> {
    let declared: Declared = draft.version()?;
    let version = declared
        .known()
        .filter(|version| plugin.versions().contains(version))
        .ok_or_else(|| incompatible(&declared, plugin.versions()))?;
    draft.finish(version, purpose)
}

fn request<'a>(
    env: &'a Env,
    config: &'a NetConf,
    is_own_netns: IsOwnNetns<'_>,
) -> Result<Request<'a>, CniError> {
    let netns = (!env.netns.is_empty()).then(|| PathBuf::from(&env.netns));
    let meant = env.netns_override == "1" || env.netns_override.eq_ignore_ascii_case("true");
    if let Some(path) = netns.as_deref().filter(|path| !meant && is_own_netns(path)) {
        let msg = "plugin's netns and netns from CNI_NETNS should not be the same";
        return Err(CniError::new(ErrorCode::InvalidNetns, msg)
            .with_details(format!("CNI_NETNS is {}", text::quote(&path.to_string_lossy()))));
    }
    let attachment = Attachment::new(&config.name, &env.container_id, &env.ifname)?;
    Ok(Request { attachment, netns, args: &env.args, config, env })
}

fn add(plugin: &dyn Plugin, request: &Request<'_>) -> Result<String, CniError> {
    let result = plugin.add(request)?;
    result.print(request.config.version).map_err(|error| {
        // The container must not keep anything that its runtime does not know about.
        if let Err(undo) = plugin.del(request) {
            log::error!("undo the ADD of {}: {undo}", request.attachment);
        }
        CniError::internal(error.to_string())
    })
}

/// Does nothing without a list of valid attachments: specification 1.1.0, section "GC".
fn gc(plugin: &dyn Plugin, request: &NodeRequest<'_>) -> Result<(), CniError> {
    match request.config.valid_attachments {
        Some(_) => plugin.gc(request),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
