//! The latest refusals, for whoever asks why.

use std::collections::VecDeque;

use serde_json::{Value, json};
use tidegate_core::event::Event;
use tidegate_core::{Instant, Rank, Rejection, Workflow};
use tidegate_http::wire::Names;

use crate::admin::refusal;

/// Refusals kept: enough to see what goes on, 80 kB in all.
pub(crate) const KEPT: usize = 1024;

/// A bounded list, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    list: VecDeque<Refused>,
    total: u64,
}

#[derive(Clone, Copy, Debug)]
struct Refused {
    at: Instant,
    rank: Rank,
    workflow: Workflow,
    label: u16,
    rejection: Rejection,
    enforced: bool,
}

impl Refusals {
    /// Keeps the event if it is a refusal.
    pub(crate) fn note(&mut self, at: Instant, event: &Event, enforced: bool) {
        let Event::Refuse { rank, workflow, label, rejection, .. } = *event else { return };
        if self.list.len() == KEPT {
            self.list.pop_front();
        }
        self.list.push_back(Refused { at, rank, workflow, label, rejection, enforced });
        self.total += 1;
    }

    /// The newest `most`, newest first. `unix_ms` is the wall clock at `now`.
    pub(crate) fn report(
        &self,
        most: usize,
        now: Instant,
        unix_ms: u64,
        (names, titles): (&Names, &Names),
    ) -> Value {
        let newest = self.list.iter().rev().take(most);
        let list: Vec<Value> = newest
            .map(|refused| {
                let mut entry = refusal(&refused.rejection);
                let ago = now.since(refused.at).as_nanos() / 1_000_000;
                entry["unix_ms"] = unix_ms.saturating_sub(ago).into();
                entry["ago_ms"] = ago.into();
                entry["rank"] = json!([refused.rank.business(), refused.rank.user()]);
                entry["band"] = refused.rank.criticality().name().into();
                entry["workflow"] = names.name(refused.workflow).into();
                entry["rule"] = titles.name(Workflow(refused.label)).into();
                entry["enforced"] = refused.enforced.into();
                entry
            })
            .collect();
        json!({ "total": self.total, "kept": self.list.len(), "limit": KEPT, "refusals": list })
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Advice, Reason, Span};

    use super::*;

    #[test]
    fn the_newest_are_kept_and_told_first() {
        let mut refusals = Refusals::default();
        let names = Names::default();
        let (workflow, titles) = (names.number("checkout"), Names::default());
        let label = titles.number("pay").0;
        let rejection = Rejection::new(Reason::Rank, 3.0, 2.0, Advice::Never);
        for n in 0..KEPT as u64 + 10 {
            let rank = Rank::new(40, n as u16);
            let event = Event::Refuse { rank, workflow, label, admitted: false, rejection };
            refusals.note(Instant::ZERO + Span::from_millis(n), &event, n % 2 == 0);
        }
        refusals.note(Instant::ZERO, &Event::Slots { slots: 1 }, true);
        let now = Instant::ZERO + Span::from_millis(KEPT as u64 + 9);
        let report = refusals.report(2, now, 5_000, (&names, &titles));
        assert_eq!((&report["total"], &report["kept"]), (&json!(KEPT + 10), &json!(KEPT)));
        let list = report["refusals"].as_array().expect("a list");
        assert_eq!(list.len(), 2);
        let last = &list[1];
        assert_eq!(last["unix_ms"], 4_999);
        assert_eq!((&last["ago_ms"], &last["enforced"]), (&json!(1), &json!(true)));
        assert_eq!(last["rank"], json!([40, KEPT + 8]));
        assert_eq!(last["rule"], "pay");
        assert_eq!((&last["workflow"], &last["reason"]), (&json!("checkout"), &json!("rank")));
        assert_eq!((&last["measured"], &last["limit"]), (&json!(3.0), &json!(2.0)));
    }
}
