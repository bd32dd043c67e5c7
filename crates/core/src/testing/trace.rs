//! Scripted traces: arrivals and service times in, verdicts out, the same for every driver.
//!
//! A trace file is a gate's TOML block, a line `---`, and one line per request:
//!
//! ```text
//! # at   id  service  rank  caller  deadline -> expected
//! 0us    a   10us     24,0  1       -        -> serve 0us
//! 3us    b   10us     24,0  1       5us      -> refuse infeasible 3us
//! ```
//!
//! `caller` and `deadline` (after arrival) may be `-`. Expected is the moment the handler starts, or
//! the reason and moment of the refusal. At one moment, finishes come before arrivals, and one
//! dispatch follows all of them.

use std::collections::BTreeMap;
use std::fmt;

use crate::context::{CallerId, Context};
use crate::gate::{Action, Gate, GateConfig};
use crate::meter::Cost;
use crate::rank::Rank;
use crate::request::RequestId;
use crate::time::{Instant, Span};
use crate::verdict::{Outcome, Reason};

/// A parsed trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The gate to play it through.
    pub gate: GateConfig,
    /// Requests in order of arrival.
    pub arrivals: Vec<Arrival>,
}

/// One request of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// Its name in the file.
    pub name: String,
    /// When it arrives.
    pub at: Instant,
    /// How long its handler runs.
    pub service: Span,
    /// What it comes with.
    pub context: Context,
    /// What should become of it.
    pub expected: Ending,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its handler starts at this moment.
    Serve(Instant),
    /// It is refused at this moment.
    Refuse(Reason, Instant),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serve(at) => write!(f, "serve {at}"),
            Self::Refuse(reason, at) => write!(f, "refuse {} {at}", reason.token()),
        }
    }
}

/// Why a text is not a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// Line in the file, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for TraceError {}

impl Trace {
    /// Reads a trace file.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let (config, script) = text.split_once("\n---\n").ok_or_else(|| TraceError {
            line: 1,
            problem: "a line `---` must follow the gate".to_owned(),
        })?;
        let gate = GateConfig::from_toml(config)
            .map_err(|error| TraceError { line: 1, problem: error.to_string() })?;
        let first_line = config.lines().count() + 2;
        let mut arrivals = Vec::new();
        for (number, line) in script.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let arrival = parse_arrival(line).ok_or_else(|| TraceError {
                line: first_line + number,
                problem: format!("`{line}` is not `at id service B,U caller deadline -> expected`"),
            })?;
            arrivals.push(arrival);
        }
        Ok(Self { gate, arrivals })
    }

    /// Plays the trace through a bare gate and returns what became of each request.
    pub fn play(&self) -> Vec<Option<Ending>> {
        let mut gate = Gate::new(&self.gate, Instant::ZERO, 1).expect("parsed traces are valid");
        let mut endings = vec![None; self.arrivals.len()];
        let mut waiting: BTreeMap<RequestId, usize> = BTreeMap::new();
        let mut finishes: Vec<(Instant, usize, RequestId)> = Vec::new();
        let mut next = 0;
        loop {
            let arrival = self.arrivals.get(next).map(|arrival| arrival.at);
            let finish = finishes.iter().map(|(at, ..)| *at).min();
            let Some(now) = arrival.into_iter().chain(finish).chain(gate.next_wakeup()).min()
            else {
                break;
            };
            if arrival.is_none() && finish.is_none() {
                break;
            }
            finishes.sort();
            while finishes.first().is_some_and(|(at, ..)| *at <= now) {
                let (_, index, id) = finishes.remove(0);
                gate.finish(now, id, Outcome::Serve, Cost::from(self.arrivals[index].service));
            }
            while self.arrivals.get(next).is_some_and(|arrival| arrival.at <= now) {
                match gate.arrive(now, &self.arrivals[next].context) {
                    Ok(id) => drop(waiting.insert(id, next)),
                    Err(rejection) => endings[next] = Some(Ending::Refuse(rejection.reason, now)),
                }
                next += 1;
            }
            gate.dispatch(now);
            while let Some(action) = gate.poll() {
                match action {
                    Action::Start { id, .. } => {
                        let index = waiting[&id];
                        endings[index] = Some(Ending::Serve(now));
                        finishes.push((now + self.arrivals[index].service, index, id));
                    }
                    Action::Refuse { id, rejection } => {
                        endings[waiting[&id]] = Some(Ending::Refuse(rejection.reason, now));
                    }
                    Action::Notify { .. } => {}
                }
            }
            gate.invariants();
        }
        endings
    }
}

fn parse_arrival(line: &str) -> Option<Arrival> {
    let (request, expected) = line.split_once("->")?;
    let [at, name, service, rank, caller, deadline] =
        request.split_whitespace().collect::<Vec<_>>().try_into().ok()?;
    let at = Instant::ZERO + at.parse().ok()?;
    let (business, user) = rank.split_once(',')?;
    let deadline = match deadline {
        "-" => Instant::FAR,
        after => at + after.parse().ok()?,
    };
    let caller = match caller {
        "-" => CallerId::UNKNOWN,
        id => CallerId(id.parse().ok()?),
    };
    let rank = Rank::new(business.parse().ok()?, user.parse().ok()?);
    let context = Context { rank, caller, deadline, ..Context::default() };
    let expected = match expected.split_whitespace().collect::<Vec<_>>()[..] {
        ["serve", at] => Ending::Serve(Instant::ZERO + at.parse().ok()?),
        ["refuse", reason, at] => {
            Ending::Refuse(Reason::from_token(reason)?, Instant::ZERO + at.parse().ok()?)
        }
        _ => return None,
    };
    Some(Arrival { name: name.to_owned(), at, service: service.parse().ok()?, context, expected })
}
