//! Who is let in when it has arrived, whatever it was told, and how long it may wait.

use super::config::Derived;
use super::sway::Sway;
use super::waits::Waits;
use crate::context::Context;
use crate::credit::Holder;
use crate::request::Request;
use crate::signal::Backlog;
use crate::time::{Instant, Span};

/// How long a request waits that its caller was told not to send but the cursor of the round lets in, in the delays up to which callers are told to send it:
/// a word may be lost. By simulation: with half of the feedback lost, 10 µs have 0.04 points more than without; with all of it who ignores
/// what it is told succeeds 1.1 % more often than who does not.
const UNHEARD: f64 = 0.5;

/// Step 5: the longest predicted wait at which a request is let in, and whether it may push out
/// others for it. Whoever does as it was told may; what it was told may be old, which is no fault
/// of its own. So may everybody with a rank that is always let in.
#[inline(always)]
pub(super) fn allowed_wait(
    (sway, waits, derived): (&Sway, &Waits, &Derived),
    now: Instant,
    backlog: &Backlog,
    request: &Request,
    caller: Option<&mut Holder>,
) -> (Span, bool) {
    let Context { rank, .. } = request.context;
    if sway.strict.last.admits(rank) {
        return (waits.longest_for(request), true);
    }
    // What crossed our last words on its way was sent by one before.
    let sent_by = now - derived.crossing;
    match caller.and_then(|caller| caller.may_send(rank, sent_by, sway.rest.last)) {
        Some(true) => (waits.longest_for(request), true),
        // It gains nothing by not listening, but an idle service turns nobody away: what it was told may be wrong.
        Some(false) if backlog.inside() == 0 => (waits.longest(), false),
        // Or it has not heard it: what everybody may send waits a little.
        Some(false) if sway.rest.last.admits(rank) => {
            (sway.wait_for(rank, waits.longest()).scale(UNHEARD), false)
        }
        Some(false) => (Span::ZERO, false),
        None => (sway.wait_for(rank, waits.longest()).max(derived.beyond), false),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing;
    use super::super::TideConfig;
    use super::super::sway::Cursors;
    use super::*;
    use crate::context::CallerId;
    use crate::credit::{PoolForm, Share, Windows, Word};
    use crate::meter::Weight;
    use crate::rank::{Cursor, Rank};

    /// A caller was told 900 ranks while the queue was full; the round has 1,000.
    #[test]
    fn what_the_round_lets_in_waits_half_as_long_where_its_caller_was_told_otherwise() {
        let now = Instant::from_nanos(1_000_000);
        let derived = TideConfig::default().derive(Span::from_micros(200));
        let waits = Waits::new(derived.objective, derived.drop);
        let cursors = |ranks| Cursors { free: Cursor::first(ranks), last: Cursor::first(ranks) };
        let sway = Sway::between(cursors(1_000), cursors(1_100), cursors(800));
        let mut backlog = Backlog::new(false);
        backlog.on_enqueue(now, 0, now, Weight::ONE);
        let mut windows = Windows::new();
        let share = Share {
            total: 10,
            per_caller: 10,
            form: PoolForm::Paper,
            overcommit: true,
            turn: None,
        };
        let word = Word { cursor: Cursor::first(900), ..Word::OPEN };
        windows.assign(now, CallerId(1), &share, word);
        let mut wait = |key: u32, caller: u64| {
            let mut request = testing::request(now);
            request.context.rank = Rank::from_key(key);
            let holder = windows.hear(now, CallerId(caller)).0;
            allowed_wait((&sway, &waits, &derived), now, &backlog, &request, holder)
        };
        let told = sway.wait_for(Rank::from_key(950), derived.drop);
        assert_eq!(wait(850, 1), (derived.drop, true), "it was told so");
        assert_eq!(wait(950, 1), (told.scale(UNHEARD), false), "it may not have heard");
        assert_eq!(wait(950, 2), (told, false), "it was told nothing");
        assert_eq!(wait(1_050, 1), (Span::ZERO, false), "nobody is to send that");
    }
}
