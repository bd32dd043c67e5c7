//! `tidegate top ADDR…`: running sidecars at a glance, in the terminal.
//!
//! A thread per sidecar asks its `/state` once a second, so that one that does not answer holds up
//! no other; the screen shows what they found. Rates are taken from two states in a row.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

use super::admin::{json, request};
use super::explain::word;
use super::{Error, Format, print};

/// Watch running sidecars in the terminal: a line and a small chart for each. `q` ends it.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    /// Admin addresses, such as 127.0.0.1:9901.
    #[arg(required = true, value_name = "ADDR")]
    addresses: Vec<String>,
    /// Look once, and print one JSON object per sidecar.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Time between two looks.
const TICK: Duration = Duration::from_secs(1);
/// Looks that the small charts show.
const HISTORY: usize = 120;

/// What is known of one sidecar.
#[derive(Debug, Default)]
struct Seen {
    /// The latest state and when it came.
    latest: Option<(Instant, Value)>,
    /// What went wrong at the last look.
    trouble: Option<String>,
    rates: Rates,
    /// Served per second, the newest last.
    history: Vec<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rates {
    served: f64,
    refused: f64,
    /// In milliseconds.
    p99: Option<f64>,
}

impl Top {
    pub(crate) fn run(self) -> Result<(), Error> {
        if self.format == Format::Json {
            return self.once();
        }
        let sidecars: Vec<(String, Arc<Mutex<Seen>>)> =
            self.addresses.iter().map(|address| (address.clone(), Arc::default())).collect();
        for (address, seen) in &sidecars {
            let (address, seen) = (address.clone(), Arc::clone(seen));
            thread::spawn(move || {
                loop {
                    let state = request(&address, "GET", "/state", None, "");
                    let state = state.and_then(|text| json(&text));
                    lock(&seen).hear(Instant::now(), state.map_err(|error| error.to_string()));
                    thread::sleep(TICK);
                }
            });
        }
        let mut terminal = ratatui::try_init().map_err(|error| {
            Error::Failed(format!("this is no terminal: {error}; --format json needs none"))
        })?;
        let result = loop {
            let drawn = terminal.draw(|frame| draw(frame, &sidecars));
            if let Err(error) = drawn {
                break Err(error);
            }
            match wants_to_end() {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        ratatui::restore();
        result.map_err(|error| Error::Failed(format!("the terminal is gone: {error}")))
    }

    fn once(&self) -> Result<(), Error> {
        for address in &self.addresses {
            let state = json(&request(address, "GET", "/state", None, "")?)?;
            let line = serde_json::json!({ "address": address, "state": state });
            print(format_args!("{line}\n"))?;
        }
        Ok(())
    }
}

/// Waits a little for a key.
fn wants_to_end() -> std::io::Result<bool> {
    if !event::poll(Duration::from_millis(200))? {
        return Ok(false);
    }
    let Event::Key(key) = event::read()? else { return Ok(false) };
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
    let quit = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
    Ok(key.kind == KeyEventKind::Press && (interrupt || quit))
}

impl Seen {
    fn hear(&mut self, now: Instant, state: Result<Value, String>) {
        let state = match state {
            Ok(state) => state,
            Err(trouble) => {
                self.trouble = Some(trouble);
                return;
            }
        };
        self.trouble = None;
        if let Some((then, before)) = &self.latest {
            self.rates = Rates::between(before, &state, now - *then);
            self.history.push(self.rates.served.round() as u64);
            let extra = self.history.len().saturating_sub(HISTORY);
            self.history.drain(..extra);
        }
        self.latest = Some((now, state));
    }
}

impl Rates {
    fn between(before: &Value, now: &Value, time: Duration) -> Self {
        // A process that was restarted counts from zero.
        let rate = |count: &dyn Fn(&Value) -> f64| {
            (count(now) - count(before)).max(0.0) / time.as_secs_f64().max(1e-3)
        };
        Self {
            served: rate(&served),
            refused: rate(&|state| total(&state["refused"])),
            p99: p99(&before["request_seconds"], &now["request_seconds"]),
        }
    }
}

fn served(state: &Value) -> f64 {
    let bands = state["finished"].as_object().into_iter().flatten();
    bands.map(|(_, band)| band["served"].as_f64().unwrap_or(0.0)).sum()
}

/// All numbers in a tree.
fn total(tree: &Value) -> f64 {
    match tree {
        Value::Object(parts) => parts.values().map(total).sum(),
        other => other.as_f64().unwrap_or(0.0),
    }
}

/// Of what was served between two states: within a class taken to be spread evenly.
fn p99(before: &Value, now: &Value) -> Option<f64> {
    let count = |histogram: &Value| histogram["count"].as_f64().unwrap_or(0.0);
    let all = count(now) - count(before);
    if all <= 0.0 {
        return None;
    }
    let (mut below, mut bound) = (0.0, 0.0);
    for (n, bucket) in now["buckets"].as_array()?.iter().enumerate() {
        let sum = bucket[1].as_f64()? - before["buckets"][n][1].as_f64().unwrap_or(0.0);
        let next = bucket[0].as_f64()? * 1e3;
        if sum >= 0.99 * all {
            return Some(bound + (next - bound) * (0.99 * all - below) / (sum - below).max(1.0));
        }
        (below, bound) = (sum, next);
    }
    Some(bound)
}

fn draw(frame: &mut Frame<'_>, sidecars: &[(String, Arc<Mutex<Seen>>)]) {
    let heights = [Constraint::Length(1), Constraint::Length(sidecars.len() as u16 + 3)];
    let charts = sidecars.iter().map(|_| Constraint::Max(6));
    let areas = Layout::vertical(heights.into_iter().chain(charts)).split(frame.area());
    let bold = Style::default().add_modifier(Modifier::BOLD);
    let title = vec![Span::styled("tidegate top", bold), Span::raw("   q ends")];
    frame.render_widget(Paragraph::new(Line::from(title)), areas[0]);
    let rows = sidecars.iter().map(|(address, seen)| row(address, &lock(seen)));
    let widths = [
        Constraint::Min(18),
        Constraint::Length(11),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(12),
        Constraint::Length(8),
    ];
    let names = Row::new([
        "sidecar",
        "policy",
        "served/s",
        "refused/s",
        "p99",
        "delay",
        "running",
        "waiting",
        "credits",
        "last rank",
        "enforced",
    ]);
    let table = Table::new(rows, widths).header(names.style(bold)).block(Block::bordered());
    frame.render_widget(table, areas[1]);
    for ((address, seen), area) in sidecars.iter().zip(areas.iter().skip(2)) {
        let seen = lock(seen);
        let block = Block::bordered().title(format!("{address}: served per second"));
        frame.render_widget(Sparkline::default().data(&seen.history).block(block), *area);
    }
}

fn row(address: &str, seen: &Seen) -> Row<'static> {
    let address = address.to_owned();
    if let Some(trouble) = &seen.trouble {
        return Row::new([address, format!("no answer: {trouble}")]);
    }
    let Some((_, state)) = &seen.latest else { return Row::new([address, "asking".to_owned()]) };
    let Rates { served, refused, p99 } = seen.rates;
    let or = |value: &Value, without: &str| match value {
        Value::Null => without.to_owned(),
        value => word(value),
    };
    let last = state["last_rank"].as_array().map_or_else(
        || "all".to_owned(),
        |rank| rank.iter().map(Value::to_string).collect::<Vec<_>>().join(", "),
    );
    Row::new([
        address,
        word(&state["policy"]),
        format!("{served:.0}"),
        format!("{refused:.0}"),
        p99.map_or_else(|| "–".to_owned(), |p99| format!("{p99:.0} ms")),
        format!("{:.0} ms", state["delay_seconds"].as_f64().unwrap_or(0.0) * 1e3),
        format!("{}/{}", state["running"], state["slots"]),
        state["waiting"].to_string(),
        or(&state["credits"], "–"),
        last,
        format!("{} %", state["enforce_percent"]),
    ])
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state(served: u64, refused: u64) -> Value {
        json!({
            "policy": "tide", "running": 3, "slots": 4, "waiting": 7, "credits": null,
            "delay_seconds": 0.02, "last_rank": [24, 7], "enforce_percent": 100,
            "finished": { "critical": { "served": served, "failed": 9 } },
            "refused": { "critical": { "rank": refused } },
            "request_seconds": { "count": served, "buckets": [[0.1, 0], [0.2, served]] },
        })
    }

    #[test]
    fn rates_come_from_two_states() {
        let mut seen = Seen::default();
        let begin = Instant::now();
        seen.hear(begin, Ok(state(100, 10)));
        seen.hear(begin + Duration::from_secs(2), Ok(state(500, 50)));
        let Rates { served, refused, p99 } = seen.rates;
        assert_eq!((served, refused), (200.0, 20.0));
        assert!((p99.expect("some were served") - 199.0).abs() < 1e-9);
        assert_eq!(seen.history, [200]);
        // Restarted.
        seen.hear(begin + Duration::from_secs(3), Ok(state(0, 0)));
        assert_eq!(seen.rates, Rates { served: 0.0, refused: 0.0, p99: None });
        seen.hear(begin + Duration::from_secs(4), Err("gone".to_owned()));
        assert_eq!(seen.trouble.as_deref(), Some("gone"));
    }
}
