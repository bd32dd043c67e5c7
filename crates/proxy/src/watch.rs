//! Looks at the gate at regular times: counts its events, and says when overload begins and ends.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::{Criticality, Instant, Reason, Span};
use tidegate_driver::SharedGate;

use crate::dashboard::detail::Detail;
use crate::metrics::{BANDS, Metrics, REASONS};
use crate::refusals::Refusals;
use crate::sideline::{Sideline, Told};

/// Time without a refusal after which an overload is over. Shorter tells one overload as several.
const CALM: Span = Span::from_secs(3);

/// The gate's numbers, for whoever asks.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    gate: SharedGate,
    sideline: Arc<Sideline>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    metrics: Metrics,
    detail: Detail,
    refusals: Refusals,
    overload: Overload,
}

impl Watch {
    pub(crate) fn new(gate: SharedGate, sideline: Arc<Sideline>) -> Self {
        gate.input(|gate, _| gate.events().keep(true));
        Self { gate, sideline, state: Arc::default() }
    }

    /// Counts what has happened since the last time. Returns a line for the log, if there is
    /// something to say.
    pub(crate) fn collect(&self) -> Option<Line> {
        let mut state = self.lock();
        // Under this lock, so that whoever reads the numbers finds all that was drained.
        let (events, lost) = self.gate.input(|gate, _| {
            let events = gate.events();
            let told = |(at, event)| Told { at, event, enforced: true };
            (events.drain().map(told).collect::<Vec<_>>(), events.lost())
        });
        let (told, lost_aside) = self.sideline.drain();
        let State { metrics, detail, refusals, overload } = &mut *state;
        for Told { at, event, enforced } in events.into_iter().chain(told) {
            metrics.count(&event, enforced);
            detail.count(&event);
            refusals.note(at, &event, enforced);
        }
        metrics.lost = lost + lost_aside;
        overload.look(self.gate.now(), metrics)
    }

    /// The numbers up to this moment, and a line for the log, if there is something to say.
    pub(crate) fn metrics(&self) -> (Metrics, Option<Line>) {
        let line = self.collect();
        (self.lock().metrics.clone(), line)
    }

    /// The finer numbers, as of the last time they were counted.
    pub(crate) fn detail(&self) -> Detail {
        self.lock().detail.clone()
    }

    /// For how long there has been an overload; none if there is none.
    pub(crate) fn overload(&self) -> Option<Span> {
        let now = self.gate.now();
        self.lock().overload.now.map(|episode| now.since(episode.began))
    }

    /// Another policy begins: what belonged to the last one is no more.
    pub(crate) fn forget(&self) {
        self.lock().detail.forget();
    }

    /// Looks at the latest refusals.
    pub(crate) fn refusals<R>(&self, look: impl FnOnce(&Refusals) -> R) -> R {
        look(&self.lock().refusals)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One overload after another.
#[derive(Debug, Default)]
struct Overload {
    /// Numbers at the last look.
    refused: [u64; BANDS],
    /// By reason.
    reasons: [u64; REASONS],
    /// How many of them were enforced.
    enforced: u64,
    now: Option<Episode>,
}

/// An overload that lasts.
#[derive(Clone, Copy, Debug)]
struct Episode {
    began: Instant,
    /// The last look that found a refusal.
    last: Instant,
    /// Numbers when it began.
    served: u64,
    refused: [u64; BANDS],
}

impl Overload {
    fn look(&mut self, now: Instant, metrics: &Metrics) -> Option<Line> {
        let line = self.compare(now, metrics);
        self.enforced = metrics.enforced();
        self.reasons = metrics.reasons();
        line
    }

    fn compare(&mut self, now: Instant, metrics: &Metrics) -> Option<Line> {
        let refused = metrics.refusals();
        let before = std::mem::replace(&mut self.refused, refused);
        match &mut self.now {
            None if refused != before => {
                let served = metrics.served();
                self.now = Some(Episode { began: now, last: now, served, refused: before });
                let reasons = metrics.reasons();
                let given = |at: &usize| reasons[*at] - self.reasons[*at];
                let most =
                    (0..REASONS).max_by_key(given).map_or(Reason::Delay, |at| Reason::ALL[at]);
                Some(Line::Begins { enforced: metrics.enforced() > self.enforced, why: most })
            }
            Some(episode) if refused != before => {
                episode.last = now;
                None
            }
            Some(episode) if now.since(episode.last) >= CALM => {
                let line = Line::Ends {
                    lasted: episode.last.since(episode.began),
                    served: metrics.served() - episode.served,
                    refused: std::array::from_fn(|band| refused[band] - episode.refused[band]),
                };
                self.now = None;
                Some(line)
            }
            _ => None,
        }
    }
}

/// A line for the log: one when overload begins and one when it ends, never one per request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Something was refused, for the first time in a while.
    Begins {
        /// Whether really: otherwise it was served all the same.
        enforced: bool,
        /// Mostly why.
        why: Reason,
    },
    /// Nothing has been refused for a while.
    Ends {
        /// From the first refusal to the last.
        lasted: Span,
        /// Requests served since it began.
        served: u64,
        /// Requests refused, by band.
        refused: [u64; BANDS],
    },
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begins { enforced, why } => {
                let refused = if *enforced { "are refused" } else { "would be refused" };
                write!(
                    f,
                    "overload begins: requests {refused} ({}: {})",
                    why.token(),
                    why.describe()
                )
            }
            Self::Ends { lasted, served, refused } => {
                write!(f, "overload has ended after {:.1} s: ", lasted.as_secs_f64())?;
                write!(f, "{served} served, {} refused", refused.iter().sum::<u64>())?;
                for (band, refused) in Criticality::ALL.iter().zip(refused) {
                    if *refused > 0 {
                        write!(f, ", {refused} {}", band.name())?;
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overload_is_told_twice_however_many_are_refused() {
        let mut overload = Overload::default();
        let mut metrics = Metrics::default();
        let mut look = |tenths: u64, refused: u64, served: u64| {
            metrics.refused[3][0] += refused;
            metrics.finished[1][0] += served;
            overload.look(Instant::ZERO + Span::from_millis(100 * tenths), &metrics)
        };
        let begins = Some(Line::Begins { enforced: true, why: Reason::Delay });
        assert_eq!(look(0, 0, 5), None);
        assert_eq!(look(1, 7, 5), begins);
        assert_eq!(look(2, 7, 5), None);
        assert_eq!(look(3, 0, 5), None);
        assert_eq!(look(21, 1, 5), None);
        assert_eq!(look(50, 0, 0), None);
        let ends = look(51, 0, 0).expect("three seconds without a refusal");
        let (lasted, served) = (Span::from_secs(2), 15);
        assert_eq!(ends, Line::Ends { lasted, served, refused: [0, 0, 0, 15] });
        let text = "overload has ended after 2.0 s: 15 served, 15 refused, 15 sheddable";
        assert_eq!(ends.to_string(), text);
        assert_eq!(look(60, 0, 0), None);
        assert_eq!(look(61, 1, 0), begins);
    }
}
