// SPDX-License-Identifier: GPL-3.0-or-later

//! `slipwayd top`: takes samples, and shows them on the terminal or prints them.

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use cni_runtime::config;
use nix::sys::signal::{Signal as Number, raise};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};
use ratatui::layout::{Position, Rect};
use slipway_cli::{Failure, Output, json};
use slipwayd::agent_client::AgentOptions;
use slipwayd::top::model::Model;
use slipwayd::top::sample::Sample;
use slipwayd::top::screen::{Palette, draw};
use slipwayd::top::state::{Action, Key, State};
use slipwayd::top::{read, text};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use super::block_on;
use super::values::time;

const EXAMPLES: &str = "\
Examples:
  slipwayd top --interval 5s
  slipwayd top --once --output json
  slipwayd top --once --interval 10s";

/// The usual time between two samples.
const INTERVAL: Duration = Duration::from_secs(2);

/// Show a live view of this node
///
/// Shows published ports and their flows with rates, dropped packets, conntrack, used and free addresses of networks; and
/// from the running agent the last ADD and DEL of plugins and repairs. The key h shows the keys. Without a terminal, with
/// TERM=dumb or JSON it prints a sample after each interval. It changes nothing.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The time between two samples, such as 1s or 1m [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = time, allow_hyphen_values = true)]
    interval: Option<Duration>,
    /// Print one sample; with --interval, the rates of that time
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    agent: AgentOptions,
    /// The configuration directory
    #[arg(long, value_name = "DIRECTORY", default_value = config::DIRECTORY, value_hint = ValueHint::DirPath)]
    cni_conf_dir: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Options {
    fn interval(&self) -> Duration {
        self.interval.unwrap_or(INTERVAL)
    }
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] of the terminal or the output.
pub(super) fn execute(options: &Options, out: &mut dyn Write) -> Result<u8, Failure> {
    let is_json = options.output.json();
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    block_on(async {
        if options.once {
            print(&once(options).await, is_json, out)?;
        } else if is_dumb || is_json || !io::stdout().is_terminal() {
            follow(options, is_json, out).await?;
        } else {
            show(options).await.map_err(|error| Failure::failed(format!("use the terminal: {error}")))?;
        }
        Ok(0)
    })
}

async fn sample(options: &Options) -> Sample {
    let agent = options.agent.ask("/recent").await;
    let config_dir = options.cni_conf_dir.clone();
    // Keys are read while the kernel's state is being read.
    match tokio::task::spawn_blocking(move || read::sample(&config_dir, agent)).await {
        Ok(sample) => sample,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// One sample; with an interval, the rates of that time.
async fn once(options: &Options) -> Model {
    let first = sample(options).await;
    let Some(interval) = options.interval else { return Model::first(first) };
    sleep(interval).await;
    Model::after(&first, sample(options).await)
}

fn print(model: &Model, is_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    Ok(if is_json { json::print(text::document(model), out) } else { text::print(model, out) }?)
}

/// Prints a sample after each interval, until a signal ends the process.
async fn follow(options: &Options, is_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let mut model = Model::first(sample(options).await);
    loop {
        print(&model, is_json, out)?;
        out.flush()?;
        sleep(options.interval()).await;
        model = Model::after(&model.sample, sample(options).await);
        if !is_json {
            writeln!(out)?;
        }
    }
}

/// The signals that the view handles. Keys of the terminal send none, as it is in raw mode.
struct Signals {
    end: [Signal; 4],
    suspend: Signal,
    resume: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let ends =
            [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
        let [a, b, c, d] = ends.map(signal);
        let of = |number: Number| signal(SignalKind::from_raw(number as i32));
        Ok(Self { end: [a?, b?, c?, d?], suspend: of(Number::SIGTSTP)?, resume: of(Number::SIGCONT)? })
    }

    async fn next(&mut self) -> Action {
        let [a, b, c, d] = &mut self.end;
        tokio::select! {
            _ = a.recv() => Action::Quit,
            _ = b.recv() => Action::Quit,
            _ = c.recv() => Action::Quit,
            _ = d.recv() => Action::Quit,
            _ = self.suspend.recv() => Action::Suspend,
            // Another program may have used the terminal.
            _ = self.resume.recv() => Action::Redraw,
        }
    }
}

/// Shows the view until a key or a signal ends it.
async fn show(options: &Options) -> io::Result<()> {
    // A line of the log would be written across the screen; the view has the troubles.
    log::set_max_level(log::LevelFilter::Off);
    let mut signals = Signals::new()?;
    // Restores the terminal before a panic is printed, too.
    let mut terminal = ratatui::try_init()?;
    let done = follow_keys(options, &mut terminal, &mut signals).await;
    let restored = ratatui::try_restore();
    done.and(restored)
}

async fn follow_keys(
    options: &Options,
    terminal: &mut DefaultTerminal,
    signals: &mut Signals,
) -> io::Result<()> {
    let palette = if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        Palette::Plain
    } else {
        Palette::Colours
    };
    let mut events = read_events()?;
    let mut state = State::default();
    let mut model = Model::first(sample(options).await);
    let mut due = interval_at(Instant::now() + options.interval(), options.interval());
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        terminal.draw(|frame| draw(frame, &model, &mut state, options.interval(), palette))?;
        let action = tokio::select! {
            action = signals.next() => action,
            event = events.recv() => match event {
                Some(event) => pressed(&mut state, &event?),
                None => return Ok(()),
            },
            _ = due.tick() => if state.is_paused { Action::Draw } else { Action::Sample },
        };
        match action {
            Action::Draw => {}
            Action::Quit => return Ok(()),
            Action::Sample => model = Model::after(&model.sample, sample(options).await),
            Action::Suspend => suspend(terminal)?,
            Action::Redraw => resume(terminal)?,
        }
    }
}

/// Gives the terminal back and stops this process. Returns when it continues.
fn suspend(terminal: &mut DefaultTerminal) -> io::Result<()> {
    ratatui::try_restore()?;
    terminal.show_cursor()?;
    // SIGTSTP has a handler here, but SIGSTOP cannot be caught.
    raise(Number::SIGSTOP)?;
    resume(terminal)
}

/// Takes the terminal again, and has everything drawn.
fn resume(terminal: &mut DefaultTerminal) -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    // `clear` would ask the terminal for the cursor, and wait for a reply that the thread of keys reads.
    let size = terminal.size()?;
    terminal.resize(Rect::from((Position::ORIGIN, size)))
}

/// Reads the terminal's events in a thread, because the library blocks.
fn read_events() -> io::Result<mpsc::Receiver<io::Result<Event>>> {
    let (sender, receiver) = mpsc::channel(16);
    let read = move || {
        loop {
            let event = event::read();
            let ended = event.is_err();
            if sender.blocking_send(event).is_err() || ended {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".to_owned()).spawn(read)?;
    Ok(receiver)
}

fn pressed(state: &mut State, event: &Event) -> Action {
    match event {
        Event::Key(key) if key.is_press() => key_of(key).map_or(Action::Draw, |key| state.press(key)),
        // The next drawing takes the new size.
        _ => Action::Draw,
    }
}

fn key_of(key: &KeyEvent) -> Option<Key> {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c') if is_control => Key::Interrupt,
        KeyCode::Char('z') if is_control => Key::Suspend,
        KeyCode::Char('l') if is_control => Key::Redraw,
        KeyCode::Char(character) if !is_control => Key::Char(character),
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        _ => return None,
    })
}
