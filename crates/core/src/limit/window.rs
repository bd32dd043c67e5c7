//! `window`: so much per minute, hour, day, week or month of the calendar.
//!
//! What contracts and bills say: a count that starts anew when the calendar turns. It promises
//! nothing about rates, two windows may be used up within a moment of each other, so it belongs
//! beside a `rate`, not in its place.
//!
//! The core has no calendar; a driver says what it reads ([`Limiter::on_calendar`]). Before that,
//! windows count from the driver's epoch. A larger quota in mid-window takes effect at once: what was
//! used stays used, the rest is there.

use serde::{Deserialize, Serialize};

use super::{Ask, CarryOver, Each, LimitConfig, Limiter, Receipt, Unit, check_factor};
use crate::config::Problems;
use crate::context::{Context, Workflow, Workflows};
use crate::meter::Cost;
use crate::table;
use crate::time::{Instant, Span};
use crate::verdict::{Advice, Reason, Rejection};

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// Counts by calendar.
#[derive(Clone, Debug)]
pub struct Window {
    config: WindowConfig,
    /// What the calendar read at which moment, since 1970 in UTC.
    calendar: (Instant, Span),
    /// The window as receipts name it; never 0, which is that of a void one. By number, not by its end:
    /// another reading of the calendar moves the end, and what was paid stays paid.
    number: u32,
    /// When the window ends.
    ends: Instant,
    /// Used in this window, by workflow number; one count where all share it.
    used: Vec<f64>,
    /// What a workflow starts from that has no count yet: what was used before each had its own.
    unseen: f64,
}

impl Window {
    /// A window of which nothing is used.
    pub fn new(config: &WindowConfig, now: Instant) -> Self {
        let calendar = (Instant::ZERO, Span::ZERO);
        let (config, ends) = (config.clone(), now);
        let (number, used, unseen) = (1, Vec::new(), 0.0);
        let mut window = Self { config, calendar, number, ends, used, unseen };
        window.turn(now);
        window
    }

    /// Begins the window that `now` is in.
    fn turn(&mut self, now: Instant) {
        let (read, unix) = self.calendar;
        let zone = i64::from(self.config.zone_minutes) * MINUTE;
        let today = unix + now.since(read);
        let local = i64::try_from(today.as_nanos() / 1_000_000_000).unwrap_or(i64::MAX / 2) + zone;
        let (_, until) = self.config.period.around(local);
        let moment = |local: i64| {
            let unix_then = Span::from_secs(u64::try_from(local - zone).unwrap_or(0));
            if unix_then >= unix {
                read + unix_then.saturating_sub(unix)
            } else {
                read - unix.saturating_sub(unix_then)
            }
        };
        self.ends = moment(until).max(now + Span::from_nanos(1));
    }

    /// Begins another window if this one is over.
    fn settle(&mut self, now: Instant) {
        if now >= self.ends {
            self.turn(now);
            self.number = self.number.wrapping_add(1).max(1);
            self.used.clear();
            self.unseen = 0.0;
        }
    }

    fn count(&mut self, now: Instant, context: &Context) -> &mut f64 {
        self.settle(now);
        let at = match self.config.each {
            Each::Workflow => usize::from(context.workflow.0).min(Workflows::LIMIT),
            _ => 0,
        };
        table::at(&mut self.used, at, || self.unseen)
    }

    /// Used by `workflow` in the window that `now` is in.
    pub fn used(&mut self, now: Instant, workflow: Workflow) -> f64 {
        *self.count(now, &Context { workflow, ..Context::default() })
    }
}

impl Limiter for Window {
    fn name(&self) -> &'static str {
        "window"
    }

    fn on_arrival(&mut self, now: Instant, ask: &Ask<'_>) -> Result<Receipt, Rejection> {
        let paid = self.config.unit.amount(ask.cost, self.config.factor);
        let quota = self.config.quota;
        let used = self.count(now, ask.context);
        // Costs known only afterwards may go over by the last request's.
        let fits = *used + paid <= quota || (paid > quota && *used == 0.0);
        if fits {
            *used += paid;
            return Ok(Receipt { paid, to: self.number, ..Receipt::default() });
        }
        let asked = *used + paid;
        let advice = Advice::Later(self.ends.since(now));
        Err(Rejection::new(Reason::Window, asked, quota, advice))
    }

    fn refund(&mut self, now: Instant, context: &Context, receipt: Receipt) {
        let used = self.count(now, context);
        let rest = (*used - receipt.paid).max(0.0);
        // What was paid in a window that is over has lapsed with it.
        if receipt.to == self.number {
            *self.count(now, context) = rest;
        }
    }

    fn on_finish(&mut self, now: Instant, context: &Context, receipt: Receipt, cost: Cost) {
        if self.config.unit.is_prepaid() {
            return;
        }
        let actual = self.config.unit.amount(cost, self.config.factor);
        let used = self.count(now, context);
        let settled = (*used + actual - receipt.paid).max(0.0);
        if receipt.to == self.number || receipt == Receipt::default() {
            *self.count(now, context) = settled;
        }
    }

    fn on_calendar(&mut self, now: Instant, unix: Span) {
        self.calendar = (now, unix);
        // What was used stays used: another reading is no other window.
        self.turn(now);
    }

    /// What was used stays used, whatever is counted from now on: of another period, by all for each
    /// workflow or by all workflows together; in another unit, as the same share of the quota.
    fn reconfigure(&mut self, now: Instant, config: &LimitConfig) -> CarryOver {
        let LimitConfig::Window(config) = config else { return CarryOver::Nothing };
        self.settle(now);
        let before = std::mem::replace(&mut self.config, config.clone());
        if config.each != before.each {
            let more = |used: &f64| used - self.unseen;
            self.unseen = (self.unseen + self.used.iter().map(more).sum::<f64>()).max(0.0);
            self.used.clear();
        }
        if config.unit != before.unit {
            for used in self.used.iter_mut().chain([&mut self.unseen]) {
                let share = if before.quota > 0.0 { *used / before.quota } else { 1.0 };
                *used = share * config.quota;
            }
        }
        if (config.period, config.zone_minutes) != (before.period, before.zone_minutes) {
            self.turn(now);
        }
        if config.counts() == before.counts() { CarryOver::Whole } else { CarryOver::Level }
    }

    fn invariants(&self) {
        assert!(self.used.iter().all(|used| *used >= 0.0), "what is used is not negative");
    }

    fn clone_box(&self) -> Box<dyn Limiter> {
        Box::new(self.clone())
    }
}

/// A length of time in the calendar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Period {
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// From midnight to midnight.
    #[default]
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
}

impl Period {
    /// When the period around `local` seconds since 1970 began, and when the next one does.
    fn around(self, local: i64) -> (i64, i64) {
        // 1970 began on a Thursday: Monday was three days before.
        let (length, shift) = match self {
            Self::Minute => (MINUTE, 0),
            Self::Hour => (HOUR, 0),
            Self::Day => (DAY, 0),
            Self::Week => (7 * DAY, 3 * DAY),
            Self::Month => return month_around(local),
        };
        let from = (local + shift).div_euclid(length) * length - shift;
        (from, from + length)
    }
}

fn month_around(local: i64) -> (i64, i64) {
    let (year, month) = month_of(local.div_euclid(DAY));
    let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    (first_day(year, month) * DAY, first_day(next_year, next_month) * DAY)
}

/// Days from 1970 to the first of a month in the Gregorian calendar, years beginning in March so that
/// the leap day comes last.
fn first_day(year: i64, month: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let months_since_march = (month + 9) % 12;
    let days_since_march = (153 * months_since_march + 2) / 5;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // 719,468 days from 1 March of the year 0 to 1970.
    365 * year + leap_days + days_since_march - 719_468
}

/// Year and month of a day since 1970: a guess by mean lengths, then the right one near it.
fn month_of(day: i64) -> (i64, i64) {
    let mut months = (day as f64 / 30.436_875).floor() as i64 + 1970 * 12 + 1;
    let first = |months: i64| first_day(months.div_euclid(12), months.rem_euclid(12) + 1);
    while first(months) > day {
        months -= 1;
    }
    (months.div_euclid(12), months.rem_euclid(12) + 1)
}

/// Parameters of windows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WindowConfig {
    /// What may pass in one window, in `unit`. Default 1,000,000 (judgement: set what was agreed).
    pub quota: f64,
    /// `minute`, `hour`, `day`, `week` (from Monday) or `month`. Default day.
    pub period: Period,
    /// Who has a count: `all` together, or each `workflow`. Default all.
    pub each: Each,
    /// What is counted: `requests`, `cpu-seconds`, or `cost` as the driver counts it. Default
    /// requests.
    pub unit: Unit,
    /// Work this machine does in a second, as a multiple of a standard machine's. Default 1.
    pub factor: f64,
    /// Where midnight is: minutes that local time is ahead of UTC. Default 0.
    pub zone_minutes: i32,
}

impl Default for WindowConfig {
    fn default() -> Self {
        Self {
            quota: 1e6,
            period: Period::Day,
            each: Each::All,
            unit: Unit::Requests,
            factor: 1.0,
            zone_minutes: 0,
        }
    }
}

impl WindowConfig {
    /// What it counts, for how long, and for whom.
    pub(super) fn counts(&self) -> (Period, Each, Unit) {
        (self.period, self.each, self.unit)
    }

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        problems.range("quota", self.quota, self.unit.least_burst(), 1e15);
        check_factor(problems, self.factor);
        let zone = self.zone_minutes;
        problems.check("zone_minutes", zone, (-840..=840).contains(&zone), "-840 to 840");
        let fine = matches!(self.each, Each::All | Each::Workflow);
        let each = format!("{:?}", self.each).to_lowercase();
        problems.check("each", each, fine, "all or workflow: others come and go");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secs(seconds: u64) -> Instant {
        Instant::ZERO + Span::from_secs(seconds)
    }

    fn window(quota: f64, period: Period) -> Window {
        Window::new(&WindowConfig { quota, period, ..Default::default() }, secs(0))
    }

    fn ask(window: &mut Window, now: Instant) -> Result<Receipt, Rejection> {
        let context = Context::default();
        window.on_arrival(now, &Ask { context: &context, cost: Cost(1), delay: Span::ZERO })
    }

    #[test]
    fn starts_anew_when_the_calendar_turns() {
        let mut window = window(2.0, Period::Minute);
        // The process began 40 s into a minute.
        window.on_calendar(secs(0), Span::from_secs(1_700_000_020));
        let ends = 1_700_000_040 - 1_700_000_020;
        assert!(ask(&mut window, secs(1)).is_ok() && ask(&mut window, secs(2)).is_ok());
        let refused = ask(&mut window, secs(5)).unwrap_err();
        assert_eq!(refused.advice, Advice::Later(Span::from_secs(ends - 5)));
        assert_eq!((refused.reason, refused.measured, refused.limit), (Reason::Window, 3.0, 2.0));
        assert!(ask(&mut window, secs(ends)).is_ok());
    }

    #[test]
    fn a_larger_quota_in_mid_window_takes_effect() {
        let mut window = window(2.0, Period::Hour);
        let config = |quota| {
            LimitConfig::Window(WindowConfig { quota, period: Period::Hour, ..Default::default() })
        };
        while ask(&mut window, secs(1)).is_ok() {}
        assert_eq!(window.reconfigure(secs(2), &config(5.0)), CarryOver::Whole);
        assert_eq!((0..9).filter(|_| ask(&mut window, secs(3)).is_ok()).count(), 3);
        assert_eq!(window.reconfigure(secs(4), &config(3.0)), CarryOver::Whole);
        assert!(ask(&mut window, secs(5)).is_err());
        assert_eq!(window.used(secs(5), Workflow::NONE), 5.0);
    }

    /// Six of ten used in the hour: by the day, by each workflow, in another unit, and back.
    #[test]
    fn what_was_used_stays_used_whatever_is_counted_next() {
        let hour = WindowConfig { quota: 10.0, period: Period::Hour, ..WindowConfig::default() };
        let mut window = Window::new(&hour, secs(0));
        let change = |window: &mut Window, config: &WindowConfig| {
            assert_eq!(
                window.reconfigure(secs(9), &LimitConfig::Window(config.clone())),
                CarryOver::Level
            );
            [0, 3].map(|workflow| window.used(secs(9), Workflow(workflow)))
        };
        (0..6).for_each(|_| assert!(ask(&mut window, secs(1)).is_ok()));
        let day = WindowConfig { period: Period::Day, ..hour };
        assert_eq!(change(&mut window, &day), [6.0, 6.0]);
        let each = WindowConfig { each: Each::Workflow, ..day.clone() };
        assert_eq!(change(&mut window, &each), [6.0, 6.0]);
        // Workflow 3 uses two more; a stranger still has what was left for all.
        *window.count(secs(9), &Context { workflow: Workflow(3), ..Context::default() }) += 2.0;
        assert_eq!(window.used(secs(9), Workflow(4)), 6.0);
        assert_eq!(change(&mut window, &day), [8.0, 8.0]);
        let cpu = WindowConfig { unit: Unit::CpuSeconds, quota: 50.0, ..day };
        assert_eq!(change(&mut window, &cpu), [40.0, 40.0], "eight tenths of it");
        assert_eq!(window.used(secs(90_000), Workflow::NONE), 0.0, "until the day is over");
    }

    /// A driver reads its clocks anew on each reload, and they never agree to the nanosecond.
    #[test]
    fn another_reading_of_the_calendar_leaves_receipts_valid() {
        let context = Context::default();
        let mut config = WindowConfig { quota: 9.0, unit: Unit::Cost, ..WindowConfig::default() };
        let mut window = Window::new(&config, secs(0));
        let unix = Span::from_secs(1_709_208_000);
        window.on_calendar(secs(1), unix);
        let cost = |cost| Ask { context: &context, cost: Cost(cost), delay: Span::ZERO };
        let [first, second] = [4, 3].map(|at| window.on_arrival(secs(2), &cost(at)).unwrap());
        window.on_calendar(secs(3), unix + Span::from_secs(2) + Span::from_nanos(77));
        window.refund(secs(3), &context, first);
        assert_eq!(window.used(secs(3), Workflow::NONE), 3.0);
        // Nor does another zone make another window of it.
        config.zone_minutes = 780;
        let carried = window.reconfigure(secs(4), &LimitConfig::Window(config));
        assert_eq!(carried, CarryOver::Whole);
        window.on_finish(secs(4), &context, second, Cost(1));
        assert_eq!(window.used(secs(4), Workflow::NONE), 1.0);
    }

    #[test]
    fn a_refund_of_a_window_that_is_over_has_lapsed() {
        let mut window = window(2.0, Period::Minute);
        let (early, context) = (ask(&mut window, secs(59)).unwrap(), Context::default());
        ask(&mut window, secs(61)).unwrap();
        window.refund(secs(62), &context, early);
        assert_eq!(window.used(secs(62), Workflow::NONE), 1.0);
        let late = ask(&mut window, secs(63)).unwrap();
        window.refund(secs(64), &context, late);
        assert_eq!(window.used(secs(64), Workflow::NONE), 1.0);
    }

    #[test]
    fn months_are_those_of_the_calendar() {
        // 2024-02-29T12:00:00Z, 2023-12-31T23:59:59Z, 1970-01-01, 2100-02-28 (no leap year).
        for (unix, from, until) in [
            (1_709_208_000, 1_706_745_600, 1_709_251_200),
            (1_704_067_199, 1_701_388_800, 1_704_067_200),
            (0, 0, 31 * DAY),
            (4_107_456_000, 4_105_123_200, 4_107_542_400),
        ] {
            assert_eq!(Period::Month.around(unix), (from, until), "{unix}");
        }
        // 1970-01-05 was a Monday.
        assert_eq!(Period::Week.around(4 * DAY), (4 * DAY, 11 * DAY));
        assert_eq!(Period::Week.around(4 * DAY - 1), (-3 * DAY, 4 * DAY));
    }

    proptest! {
        /// Periods tile time: each moment is in one, and its end is the next one's beginning.
        #[test]
        fn periods_tile_time(local in 0..20_000_000_000i64) {
            for period in [Period::Minute, Period::Hour, Period::Day, Period::Week, Period::Month] {
                let (from, until) = period.around(local);
                prop_assert!(from <= local && local < until, "{period:?}");
                prop_assert_eq!(period.around(until).0, until);
                prop_assert_eq!(period.around(until - 1), (from, until));
            }
        }

        #[test]
        fn no_window_passes_more_than_its_quota(
            steps in prop::collection::vec((0..20u64, any::<bool>()), 1..300),
        ) {
            let mut window = window(5.0, Period::Minute);
            let (mut now, mut counts) = (0, std::collections::BTreeMap::<u64, u32>::new());
            for (step, give_back) in steps {
                now += step;
                match ask(&mut window, secs(now)) {
                    Ok(receipt) if give_back => {
                        window.refund(secs(now), &Context::default(), receipt);
                    }
                    Ok(_) => *counts.entry(now / 60).or_default() += 1,
                    Err(_) => prop_assert_eq!(counts.get(&(now / 60)), Some(&5)),
                }
                window.invariants();
            }
            prop_assert!(counts.values().all(|count| *count <= 5));
        }
    }
}
