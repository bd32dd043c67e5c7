//! One key's part of an agreement, tokens or places, and how a request is decided by it.

use super::super::bucket::Shortage;
use super::super::{Ask, Enforce, Receipt, refusal};
use super::bands::Bands;
use super::{LeasedConfig, PERIOD, Standing};
use crate::context::Context;
use crate::meter::Cost;
use crate::share::{
    Grant, HistoryConfig, Holder, HolderId, Load, OnLoss, Places, Report, Rules, Share,
};
use crate::time::{Instant, Span};
use crate::verdict::Rejection;

/// How long a key is kept that nobody asks for.
const IDLE: Span = Span::from_secs(30);
/// In `Receipt::to`, of a request that paid a limit of its criticality's own too.
pub(super) const CAPPED: u32 = 1 << 31;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// As receipts name it.
    pub(super) number: u32,
    /// When somebody asked last.
    pub(super) asked: Instant,
    what: What,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "most are the large one")]
enum What {
    Tokens(Holder, Bands),
    Places(Places),
}

/// What a part begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beginning {
    /// Since when its safe share saves up.
    pub(super) since: Instant,
    pub(super) safe: Share,
    pub(super) on_loss: OnLoss,
    pub(super) rules: Rules,
}

impl Part {
    pub(super) fn new(places: bool, id: HolderId, number: u32, begin: &Beginning) -> Self {
        let Beginning { since, safe, on_loss, rules } = *begin;
        let what = if places {
            What::Places(Places::unheard(since, id, safe.burst, on_loss, PERIOD))
        } else {
            let history = HistoryConfig::default();
            let mut holder = Holder::unheard(since, id, safe, on_loss, PERIOD, history);
            holder.set_rules(rules);
            What::Tokens(holder, Bands::default())
        };
        Self { number, asked: since, what }
    }

    /// Its tokens, where it is about these.
    pub(super) fn holder(&mut self) -> Option<&mut Holder> {
        match &mut self.what {
            What::Tokens(holder, _) => Some(holder),
            What::Places(_) => None,
        }
    }

    pub(super) fn set_id(&mut self, id: HolderId) {
        match &mut self.what {
            What::Tokens(holder, _) => holder.set_id(id),
            What::Places(places) => places.set_id(id),
        }
    }

    pub(super) fn poll(&mut self, now: Instant) -> Option<Report> {
        match &mut self.what {
            What::Tokens(holder, _) => holder.poll(now),
            What::Places(places) => places.poll(now),
        }
    }

    pub(super) fn leave(&mut self, now: Instant) -> Report {
        match &mut self.what {
            What::Tokens(holder, _) => holder.leave(now),
            What::Places(places) => places.leave(now),
        }
    }

    pub(super) fn on_grant(&mut self, now: Instant, grant: &Grant) -> bool {
        match &mut self.what {
            What::Tokens(holder, _) => holder.on_grant(now, grant),
            What::Places(places) => places.on_grant(now, grant),
        }
    }

    pub(super) fn rules(&self) -> &Rules {
        match &self.what {
            What::Tokens(holder, _) => holder.rules(),
            What::Places(places) => places.rules(),
        }
    }

    /// Whether nobody asks for it, and nothing of it is in use.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        let held = matches!(&self.what, What::Places(places) if places.held() > 0);
        now.since(self.asked) > IDLE && !held
    }

    /// Whether its requests hold places that are no longer this process's.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        matches!(&self.what, What::Places(places) if places.is_overdue(now))
    }

    /// Whether a request passes, what it paid, and whether it passed although there was nothing for it.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        ask: &Ask<'_>,
        config: &LeasedConfig,
    ) -> Result<(Receipt, bool), Rejection> {
        let rules = self.rules();
        let in_time = rules.enforce == Enforce::Always || ask.delay >= config.overload_delay;
        let enforced = in_time && rules.hold(ask.context.rank);
        match &mut self.what {
            What::Tokens(holder, bands) => {
                let asked = Asked { ask, config, enforced, to: self.number };
                asked.for_tokens(now, holder, bands)
            }
            What::Places(places) => {
                let receipt = Receipt { paid: 1.0, to: self.number, ..Receipt::default() };
                match places.take(now) {
                    Ok(()) => Ok((receipt, false)),
                    Err(shortage) if enforced => {
                        let limit = Share::new(Default::default(), places.share(now)).limit();
                        Err(refusal(now, limit, places.held() as f64 + 1.0, soon(now, shortage)))
                    }
                    Err(_) => {
                        places.take_beyond(now);
                        Ok((receipt, true))
                    }
                }
            }
        }
    }

    /// A request that paid was refused further on.
    pub(super) fn refund(&mut self, now: Instant, context: &Context, receipt: Receipt) {
        match &mut self.what {
            What::Tokens(holder, bands) => {
                holder.refund(now, receipt.paid);
                if receipt.to & CAPPED != 0 {
                    bands.refund(now, context.rank.criticality().index(), receipt.paid);
                }
            }
            What::Places(places) => places.give_back(now),
        }
    }

    /// A request that paid has ended.
    pub(super) fn finish(
        &mut self,
        now: Instant,
        receipt: Receipt,
        config: &LeasedConfig,
        cost: Cost,
    ) {
        match &mut self.what {
            What::Tokens(holder, _) if !config.unit.is_prepaid() && !holder.is_open(now) => {
                let actual = config.tokens(cost);
                let debt = holder.whole().burst as f64;
                // What was forgiven is neither charged now nor given back.
                let settled = receipt.paid.max(actual.min(receipt.paid + receipt.forgiven));
                holder.settle_cost(now, settled, actual, debt);
            }
            What::Tokens(..) => {}
            What::Places(places) => places.give_back(now),
        }
    }

    pub(super) fn standing(&self, now: Instant) -> Standing {
        match &self.what {
            What::Tokens(holder, _) => {
                let mut holder = holder.clone();
                Standing {
                    whole: holder.whole(),
                    bound: holder.bound(),
                    tokens: holder.tokens(now),
                    held: 0,
                    share: holder.share(now),
                    safe: holder.safe(),
                    connected: holder.is_connected(now),
                    on_loss: holder.on_loss(),
                    load: holder.load(now),
                }
            }
            What::Places(places) => {
                let of = |count| Share::new(Default::default(), count);
                let load = Load { backlog: places.asked(), ..Load::default() };
                Standing {
                    whole: of(places.whole()),
                    bound: places.bound(),
                    tokens: places.share(now).saturating_sub(places.held()) as f64,
                    held: places.held(),
                    share: of(places.share(now)),
                    safe: of(places.safe()),
                    connected: places.is_connected(now),
                    on_loss: places.on_loss(),
                    load,
                }
            }
        }
    }

    pub(super) fn invariants(&self) {
        match &self.what {
            What::Tokens(holder, _) => holder.invariants(),
            What::Places(places) => places.invariants(),
        }
    }
}

/// A request, and whether it is held to what there is.
struct Asked<'a> {
    ask: &'a Ask<'a>,
    config: &'a LeasedConfig,
    enforced: bool,
    to: u32,
}

impl Asked<'_> {
    fn for_tokens(
        &self,
        now: Instant,
        holder: &mut Holder,
        bands: &mut Bands,
    ) -> Result<(Receipt, bool), Rejection> {
        let Self { ask, config, enforced, to } = *self;
        let amount = config.tokens(ask.cost);
        let prepaid = config.unit.is_prepaid();
        holder.on_cost(now, amount);
        if holder.is_open(now) {
            return Ok((Receipt { paid: 0.0, to, ..Receipt::default() }, false));
        }
        let share = holder.share(now);
        // An estimate above the burst is no reason to refuse for ever: the rest is owed afterwards.
        let paid = if prepaid { amount } else { amount.min((share.burst as f64).max(1.0)) };
        let band = ask.context.rank.criticality().index();
        let taken = bands.take(now, holder, band, paid, prepaid);
        holder.on_waiting(now, u64::from(taken.is_err()));
        match taken {
            Ok(capped) => {
                let to = if capped { to | CAPPED } else { to };
                Ok((Receipt { paid, to, ..Receipt::default() }, false))
            }
            Err(shortage) if enforced => {
                let missing = paid - holder.tokens(now);
                Err(refusal(now, share.limit(), missing, soon(now, shortage)))
            }
            Err(_) => {
                let forgiven = holder.settle_cost(now, 0.0, paid, 0.0);
                Ok((Receipt { paid: paid - forgiven, forgiven, to }, true))
            }
        }
    }
}

/// With a share of next to nothing the next token is hours away; another share may be there within two
/// periods.
fn soon(now: Instant, shortage: Shortage) -> Shortage {
    match shortage {
        Shortage::Until(due) => Shortage::Until(due.min(now + PERIOD + PERIOD)),
        Shortage::Never => Shortage::Never,
    }
}
