// SPDX-License-Identifier: GPL-3.0-or-later

//! Samples, rates, keys and screens together.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cni_dataplane::{
    AddressFamily, BackendName, HostAddress, HostPorts, Listed, Owner, Protocol, PublishedFlow,
    PublishedPort, Traffic,
};
use cni_spec::Attachment;
use cni_state::documents::{Activity, Call, Conntrack, Pool, RepairRecord};
use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use proptest::sample::select;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use slipway_cli::checks::assert_documented;

use super::model::{Model, Rates};
use super::sample::{Drops, Sample};
use super::screen::{Palette, draw};
use super::state::{Action, Key, Mode, State};
use super::table::{Direction, View, cells, cut, fit};
use super::text;
use crate::agent_client::AgentError;

fn listed(number: u16, owner: Option<&str>) -> Listed {
    let address = HostAddress::Any(AddressFamily::V4);
    let host = HostPorts { protocol: Protocol::Tcp, address, first: 8000 + number, last: 8000 + number };
    let port = PublishedPort { host, container: [10, 22, 0, 2].into(), container_port: 80 };
    let owner = owner.map(|id| Owner::of(&Attachment::new("pods", id, "eth0").unwrap()));
    Listed { owner, port, backend: BackendName::Nftables }
}

fn flow(port: usize, client: u16, counted: Option<(u64, u64)>) -> PublishedFlow {
    let at = |last, port| (std::net::Ipv4Addr::new(192, 0, 2, last), port).into();
    PublishedFlow {
        port,
        protocol: 6,
        client: at(9, client),
        host: at(2, 8000),
        counted,
        is_carried: client.is_multiple_of(2),
    }
}

/// A sample with two ports, the flows of the first, and something in each view.
fn sample(at: Instant, flows: Vec<PublishedFlow>) -> Sample {
    let counted = flows.iter().filter_map(|flow| flow.counted).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let traffic = Traffic { connections: flows.len(), counted: Some(counted) };
    let time: Timestamp = "2026-11-24T12:00:01Z".parse().unwrap();
    let call = |verb: &str, code| Call {
        time: time.to_string(),
        verb: verb.to_owned(),
        plugin: "bridge".to_owned(),
        network: "pods".to_owned(),
        microseconds: 2150,
        code,
    };
    let repair = RepairRecord {
        time: time.to_string(),
        damages: vec!["nft deleted table inet slipway".to_owned()],
        restored: 3,
        failed: vec!["port 8080".to_owned()],
        microseconds: 40_000,
    };
    let pool = |range: Option<&str>, used, free| Pool {
        network: "pods".to_owned(),
        range: range.map(str::to_owned),
        used,
        free,
    };
    Sample {
        at,
        time,
        ports: vec![(listed(0, Some("web1")), Some(traffic)), (listed(1, None), Some(Traffic::default()))],
        flows,
        more_flows: 0,
        drops: vec![Drops { by: "bpf", reason: "write_failed", about: "the kernel refused", packets: 7 }],
        conntrack: Some(Conntrack { count: 12, max: 1000 }),
        pools: vec![pool(Some("10.22.0.0/24"), 2, Some(251)), pool(None, 1, None)],
        agent: Ok(Activity {
            node: "node-1".to_owned(),
            calls: vec![call("ADD", None), call("DEL", Some(11))],
            repairs: vec![repair],
        }),
        troubles: Vec::new(),
    }
}

const NO_AGENT: &str = "slipwayd does not run: connect to \"/socket\": entity not found";

/// The error without an agent that listens at this socket.
fn no_agent(socket: &str) -> Arc<AgentError> {
    Arc::new(AgentError::Connect(socket.into(), io::ErrorKind::NotFound.into()))
}

fn seconds_later(before: Instant, seconds: u64) -> Instant {
    before + Duration::from_secs(seconds)
}

#[test]
fn a_ports_rate_is_that_of_its_flows() {
    let begin = Instant::now();
    let before = sample(begin, vec![flow(0, 1, Some((10, 1000))), flow(0, 2, Some((50, 5000)))]);
    // Of the flows, one continues, one has ended and one is new. In the second comparison, the ends of the first one
    // have been used again.
    let mut now = vec![flow(0, 1, Some((30, 3000))), flow(0, 3, Some((4, 400)))];
    let model = Model::after(&before, sample(seconds_later(begin, 2), now.clone()));
    assert_eq!(model.ports[0], Some(Rates { flows: 0.5, counted: Some((12.0, 1200.0)) }));
    assert_eq!(model.ports[1], Some(Rates { flows: 0.0, counted: Some((0.0, 0.0)) }));
    now[0] = flow(0, 1, Some((2, 200)));
    let model = Model::after(&before, sample(seconds_later(begin, 2), now));
    assert_eq!(model.ports[0], Some(Rates { flows: 1.0, counted: Some((3.0, 300.0)) }));
}

#[test]
fn rates_that_cannot_be_known_are_unknown() {
    let begin = Instant::now();
    let before = sample(begin, vec![flow(0, 1, Some((10, 1000)))]);
    assert_eq!(Model::first(before.clone()).ports, [None, None]);
    let at_once = Model::after(&before, sample(begin, Vec::new()));
    assert_eq!((at_once.ports[0], at_once.drop_rate()), (None, None));
    let mut many = sample(seconds_later(begin, 1), Vec::new());
    many.more_flows = 1;
    assert_eq!(Model::after(&before, many).ports, [None, None]);
    let off =
        Model::after(&before, sample(seconds_later(begin, 1), vec![flow(0, 1, None), flow(0, 5, None)]));
    assert_eq!(off.ports[0], Some(Rates { flows: 1.0, counted: None }));
}

#[test]
fn drops_that_went_backwards_began_again() {
    let begin = Instant::now();
    let before = sample(begin, Vec::new());
    let mut now = sample(seconds_later(begin, 2), Vec::new());
    for (packets, rate) in [(7, 0.0), (17, 5.0), (4, 2.0)] {
        now.drops[0].packets = packets;
        assert_eq!(Model::after(&before, now.clone()).drop_rate(), Some(rate));
    }
    now.drops.clear();
    assert_eq!(Model::after(&before, now).drop_rate(), Some(0.0));
}

fn model() -> Model {
    let begin = Instant::now();
    let before = sample(begin, vec![flow(0, 1, Some((10, 1000)))]);
    let flows = vec![flow(0, 1, Some((30, 3000))), flow(0, 4, Some((400, 4_000_000)))];
    Model::after(&before, sample(seconds_later(begin, 2), flows))
}

/// The screen as text, without blanks at the ends of lines.
fn screen(model: &Model, state: &mut State, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let interval = Duration::from_secs(2);
    terminal.draw(|frame| draw(frame, model, state, interval, Palette::Colours)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

#[test]
fn the_screen_has_ports_with_rates() {
    let lines = screen(&model(), &mut State::default(), (80, 24));
    let expected = [
        "slipwayd top  node-1  12:00:01 UTC  every 2 s",
        "conntrack 12 of 1000 (1%)  ports 2  flows 2  drops 7, 0 /s",
        "last calls 2, failed 1  last repairs 1",
        "[1 Ports]  2 Flows   3 Drops   4 Pools   5 Events",
    ];
    assert_eq!(lines[..4], expected);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let header = words(&lines[4]);
    for title in ["PROTO", "HOST", "CONTAINER", "CONNS", "NEW/S", "PKT/S", "BYTE/Sv"] {
        assert!(header.iter().any(|word| word == title), "{title}: {lines:#?}");
    }
    let first = words(&lines[5]);
    for cell in ["tcp", "0.0.0.0:8000", "web1", "2", "0.5", "210", "2.0M"] {
        assert!(first.iter().any(|word| word == cell), "{cell}: {lines:#?}");
    }
    assert!(words(&lines[6]).contains(&"0.0.0.0:8001".to_owned()), "{lines:#?}");
    assert_eq!(lines[23], "1-5 view  s sort  r reverse  / filter  p pause  h help  q quit");
}

#[test]
fn small_screens_keep_what_matters() {
    let lines = screen(&model(), &mut State::default(), (40, 10));
    assert!(lines.iter().all(|line| line.chars().count() <= 40));
    assert!(
        lines[4].contains("HOST") && lines[4].contains("BYTE/Sv") && lines[5].contains("0.0.0.0:8000"),
        "{lines:#?}"
    );
    assert_eq!(lines[9], "h help  q quit");
    let wide = screen(&model(), &mut State::default(), (200, 60));
    for title in ["TARGET", "NETWORK", "BACKEND", "PACKETS", "BYTES"] {
        assert!(wide[4].contains(title), "{wide:#?}");
    }
    let least = screen(&model(), &mut State::default(), (12, 3));
    assert_eq!((least[0].as_str(), least[2].as_str()), ("slipwayd to~", "h help  q q~"));
}

#[test]
fn each_view_has_its_rows() {
    let (model, mut state) = (model(), State::default());
    for (key, row) in [
        ('2', "192.0.2.9:4"),
        ('3', "write_failed"),
        ('4', "10.22.0.0/24"),
        ('5', "error 11: try again"),
        ('1', "0.0.0.0:8000"),
    ] {
        assert_eq!(state.press(Key::Char(key)), Action::Draw);
        let lines = screen(&model, &mut state, (100, 24));
        assert!(lines.iter().any(|line| line.contains(row)), "{row}: {lines:#?}");
    }
    let mut without = model;
    without.sample.agent = Err(no_agent("/socket"));
    state.press(Key::Char('5'));
    let lines = screen(&without, &mut state, (80, 24));
    assert!(lines[2].contains("no events: slipwayd does not run"), "{lines:#?}");
    assert_eq!(lines[5], NO_AGENT);
}

#[test]
fn keys_sort_filter_pause_and_end() {
    let (model, mut state) = (model(), State::default());
    assert_eq!(state.rows(&model), [0, 1]);
    state.press(Key::Char('r'));
    assert_eq!((state.rows(&model), state.sort().direction), (vec![1, 0], Direction::Ascending));
    for key in "/WEB".chars().map(Key::Char) {
        state.press(key);
    }
    assert_eq!((state.rows(&model), state.mode), (vec![0], Mode::Filter));
    state.press(Key::Enter);
    assert_eq!((state.rows(&model), state.mode), (vec![0], Mode::Commands));
    state.press(Key::Escape);
    assert_eq!(state.rows(&model).len(), 2);
    let before = state.sort().column;
    state.press(Key::Char('s'));
    state.press(Key::Char('S'));
    assert_eq!(state.sort().column, before);
    assert_eq!((state.press(Key::Char('p')), state.is_paused), (Action::Draw, true));
    assert!(screen(&model, &mut state, (80, 24))[0].ends_with("PAUSED"));
    assert_eq!((state.press(Key::Char('p')), state.is_paused), (Action::Sample, false));
    state.press(Key::Char('h'));
    assert!(screen(&model, &mut state, (80, 24)).iter().any(|line| line.contains("reverse the order")));
    assert_eq!((state.press(Key::Char('x')), state.mode), (Action::Draw, Mode::Commands));
    assert_eq!(state.press(Key::Char('q')), Action::Quit);
    assert_eq!(state.press(Key::Suspend), Action::Suspend);
    // While a filter is being typed, q is a letter, but Control-C still ends the program.
    state.press(Key::Char('/'));
    assert_eq!((state.press(Key::Char('q')), state.press(Key::Interrupt)), (Action::Draw, Action::Quit));
}

#[test]
fn the_document_is_as_documented() {
    let mut without = model();
    without.sample.agent = Err(no_agent("/socket"));
    without.sample.conntrack = None;
    without.sample.troubles.push("flows: not read".to_owned());
    without.sample.ports[0].1 = None;
    without.sample.flows = vec![flow(1, 9, None)];
    let without = Model::first(without.sample);
    let documents = [text::document(&model()), text::document(&without)];
    assert_documented("slipwayd top", &documents);
    assert_eq!(documents[0].ports[0].rates.bytes_per_second, Some(2_001_000.0));
    assert_eq!(documents[1].agent_error.as_deref(), Some(NO_AGENT));
}

#[test]
fn tables_have_all_views() {
    let mut printed = Vec::new();
    text::print(&model(), &mut printed).unwrap();
    let printed = String::from_utf8(printed).unwrap();
    for text in [
        "conntrack  12 of 1000",
        "\nPorts\n",
        "\nFlows\n",
        "\nDrops\n",
        "\nPools\n",
        "\nEvents\n",
        "the kernel refused",
    ] {
        assert!(printed.contains(text), "{text}: {printed}");
    }
    assert!(!printed.contains('\u{1b}'), "{printed}");
}

fn any_flow() -> impl Strategy<Value = PublishedFlow> {
    let counted = proptest::option::of((any::<u64>(), any::<u64>()));
    (0..4_usize, 0..6_u16, counted).prop_map(|(port, client, counted)| flow(port, client, counted))
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let owner = proptest::option::of(select(vec!["web1", "a", "0123456789abcdef0123456789abcdef"]));
    let ports = proptest::collection::vec((any::<u16>(), owner, any::<bool>()), 0..5);
    let flows = proptest::collection::vec(any_flow(), 0..8);
    let pools = proptest::collection::vec((any::<u64>(), proptest::option::of(any::<u64>())), 0..3);
    let rest = (
        any::<u64>(),
        proptest::option::of((any::<u64>(), any::<u64>())),
        "\\PC{0,90}",
        0..3_usize,
        any::<bool>(),
    );
    (ports, flows, pools, rest).prop_map(|(ports, flows, pools, (packets, conntrack, text, more, runs))| {
        let mut made = sample(Instant::now(), Vec::new());
        let port = |(number, owner, is_read): (u16, Option<&str>, bool)| {
            (listed(number % 1000, owner), is_read.then(Traffic::default))
        };
        made.ports = ports.into_iter().map(port).collect();
        (made.flows, made.more_flows) = (flows, more / 2);
        made.conntrack = conntrack.map(|(count, max)| Conntrack { count, max });
        made.drops[0].packets = packets;
        let pool = |(used, free)| Pool { network: text.clone(), range: Some(text.clone()), used, free };
        made.pools = pools.into_iter().map(pool).collect();
        made.troubles = vec![text.clone(); more];
        if !runs {
            made.agent = Err(no_agent(&text));
        }
        made
    })
}

fn any_key() -> impl Strategy<Value = Key> {
    let others = [
        Key::Tab,
        Key::BackTab,
        Key::Enter,
        Key::Escape,
        Key::Backspace,
        Key::Up,
        Key::Down,
        Key::PageUp,
        Key::PageDown,
        Key::Home,
        Key::End,
        Key::Redraw,
    ];
    prop_oneof![
        any::<char>().prop_map(Key::Char),
        select("12345sSrpuhG/".chars().collect::<Vec<_>>()).prop_map(Key::Char),
        select(others.to_vec())
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// No sample, size or key may cause a panic. A network, a port or a flow may vanish, and counters may change in any
    /// way.
    #[test]
    fn any_sample_is_drawn_in_any_size(
        samples in proptest::collection::vec(any_sample(), 1..3),
        keys in proptest::collection::vec(any_key(), 0..12),
        width in 0..130_u16,
        height in 0..40_u16,
        milliseconds in 0..5000_u64,
    ) {
        let mut samples = samples.into_iter();
        let mut model = Model::first(samples.next().unwrap());
        let mut state = State::default();
        for mut next in samples {
            next.at = model.sample.at + Duration::from_millis(milliseconds);
            model = Model::after(&model.sample, next);
        }
        screen(&model, &mut state, (width.max(1), height.max(1)));
        for key in keys {
            state.press(key);
            screen(&model, &mut state, (width.max(1), height.max(1)));
        }
        for rates in model.ports.iter().chain(&model.flows).flatten() {
            let (packets, bytes) = rates.counted.unwrap_or_default();
            prop_assert!(rates.flows >= 0.0 && packets >= 0.0 && bytes >= 0.0);
        }
        prop_assert!(serde_json::to_value(text::document(&model)).unwrap().is_object());
        text::print(&model, &mut Vec::new()).unwrap();
    }

    /// No line is longer than the screen, and the columns that stay are the same in all lines.
    #[test]
    fn lines_fit(sample in any_sample(), width in 0..200_usize) {
        let model = Model::first(sample);
        for view in View::ALL {
            let shown: Vec<_> = (0..3).map(|row| cells(&model, view, row)).collect();
            let lines = fit(view.columns(), Some(view.usual()), &shown, width);
            prop_assert_eq!(lines.len(), 4);
            prop_assert!(lines.iter().all(|line| line.chars().count() <= width), "{:?}", lines);
        }
        prop_assert_eq!(cut("abc", 2), "a~");
    }
}
