//! What is offered, by rank and in cost: arrivals, and what callers shed themselves.
//!
//! Kept on the coarse grid of [`levels`](crate::levels). A request counts with the mean cost of its
//! level, so a few expensive important requests weigh what they weigh.

use super::costs::Costs;
use super::round::REQUESTS;
use crate::context::Sheds;
use crate::levels::{LEVEL_RANKS, LEVELS, level_of};
use crate::meter::Cost;
use crate::rank::{Cursor, Rank};
use crate::time::{Instant, Span};

/// Offered cost by level.
#[derive(Clone, Debug)]
pub(super) struct Offered {
    levels: Box<[Level]>,
    /// Bit `b` of `words[w]` is set when level `64·w + b` has ever been seen and not yet faded.
    words: [u64; LEVELS / 64],
    /// Requests that arrived in the present round.
    arrived: f32,
    /// Sheds reported in it, for how much of their callers' time, and their variance: the sum of the
    /// squares by which reports differed from the `pace` expected.
    shed: f32,
    told: f32,
    variance: f32,
    /// Sheds per nanosecond of a caller, smoothed.
    pace: f32,
    /// By how much the last round was off, in standard deviations.
    off: f32,
    /// Requests per nanosecond, smoothed, over all levels.
    rate: f32,
    /// When less was last seen to be offered all at once.
    ebbed: Instant,
    costs: Costs,
}

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    /// Requests that arrived, and sheds reported, in the present round.
    arrived: f32,
    shed: f32,
    /// Smoothed requests per nanosecond.
    rate: f32,
    /// Mean and variance of where in the level requests are, in ranks.
    place: f32,
    spread: f32,
    /// Share of the requests whose place is a lot.
    lots: f32,
}

/// Weight of a round in which more or less was offered than chance explains…
const SHIFT_GAIN: f32 = 0.5;
/// …that is, by so many standard deviations, or by so many twice in a row: by chance one round in a few hundred thousand.
/// Where one in ten thousand counted, 10,000 callers of a key-value store were told 6 % too much within half a second, and
/// it served 97.2 % of its capacity for 50 ms instead of 98.
const SHIFT_ONCE: f32 = 5.0;
const SHIFT_TWICE: f32 = 3.0;
/// A round of which a part has so many times what the whole was expected to have ends at once, and only what came in it counts: if all
/// callers are told of a storm before each of them has sent several times, it is over. By simulation: where demand grows to ten times the capacity,
/// 1,000 callers of 10 µs have nothing for 2.5 SLOs instead of 5, and then 94 % instead of 55; with 2, a round that has just begun to see the
/// storm takes it to be half as large, and with 5 most are over before.
const SURGE: f32 = 3.0;
/// Share by which less must have arrived of the ranks that all callers send, for less to be taken to be
/// offered of the others too. Bursts leave gaps that are smaller.
const EBB: f32 = 0.3;
/// Standard deviations by which it must be less.
const EBB_SURE: f32 = 4.0;
/// By how much at most the sheds that were told are scaled up or down to those of all callers.
const MOST_SCALE: f32 = 8.0;
/// Levels on either side of a cursor whose costs are those of the requests around it: a level's own is
/// known to a few percent.
const NEAR: usize = 8;
/// Weight of a new sample in the place and spread of its level.
const PLACE_GAIN: f32 = 1.0 / 32.0;
/// Share of lots from which on requests are taken to have no order: nearly all, as users are to keep theirs.
const DRAWN: f32 = 0.9;
/// Variance from which on the requests of a level count as spread over it: half that of a uniform distribution…
const SPREAD: f32 = (LEVEL_RANKS * LEVEL_RANKS) as f32 / 24.0;
/// …or, where callers send only the first of its ranks, a third of that of a uniform distribution from the level's begin, by their mean: one
/// rank that carries much of the demand has next to none. By simulation: with half of the level's in that case too, in one round of eight the level that was cut was
/// taken to be one rank and let in whole, and 10,000 callers of 10 µs with bimodal costs had 0.2 points less at ten times the capacity.
const SPREAD_OF_MEAN: f32 = 1.0 / 9.0;

impl Offered {
    pub(super) fn new() -> Self {
        let levels = vec![Level::default(); LEVELS].into_boxed_slice();
        Self {
            levels,
            words: [0; LEVELS / 64],
            arrived: 0.0,
            shed: 0.0,
            told: 0.0,
            variance: 0.0,
            pace: 0.0,
            off: 0.0,
            rate: 0.0,
            ebbed: Instant::ZERO,
            costs: Costs::new(),
        }
    }

    /// A request of `rank` arrived, whose place among users is a lot or not.
    pub(super) fn arrive(&mut self, rank: Rank, lot: bool) {
        let level = level_of(rank);
        let at = &mut self.levels[level];
        at.arrived += 1.0;
        at.place(rank);
        at.lots += PLACE_GAIN * (f32::from(lot) - at.lots);
        self.words[level / 64] |= 1 << (level % 64);
        self.arrived += 1.0;
    }

    /// A caller tells what it shed in the time since it last spoke; none if nobody knows when. What
    /// is of a time when much more was offered says nothing about now.
    #[inline]
    pub(super) fn report(&mut self, now: Instant, sheds: Sheds, since: Option<Span>) {
        let since = since.unwrap_or_default();
        if now - since < self.ebbed {
            return;
        }
        let (count, told) = (sheds.count as f32, since.as_nanos() as f32);
        self.told += told;
        let surprise = count - self.pace * told;
        self.variance += surprise * surprise;
        if sheds.count > 0 {
            let level = level_of(sheds.sample);
            self.levels[level].shed += count;
            self.levels[level].place(sheds.sample);
            self.words[level / 64] |= 1 << (level % 64);
            self.shed += count;
        }
    }

    /// From now on, the messages of a request cost this, beside what it takes.
    pub(super) fn set_messages(&mut self, cost: Cost) {
        self.costs.set_messages(cost);
    }

    /// A request of `rank` took `cost`.
    pub(super) fn settle(&mut self, rank: Rank, cost: Cost) {
        self.costs.settle(level_of(rank), cost);
    }

    /// Requests counted since the last round was closed.
    pub(super) fn counted(&self) -> f32 {
        self.arrived + self.shed
    }

    /// Whether more has arrived in a part of a `round` than the whole was expected to have, by far.
    pub(super) fn surges(&self, round: Span) -> bool {
        let expected = self.rate * round.as_nanos() as f32;
        expected > 0.0 && self.arrived > SURGE * expected.max(REQUESTS)
    }

    /// Mean cost of a request, over all ranks.
    pub(super) fn mean_cost(&self) -> f64 {
        f64::from(self.costs.mean())
    }

    /// How much costs differ: their variance in squares of their mean.
    pub(super) fn variability(&self) -> f64 {
        self.costs.variability()
    }

    /// Mean cost of the ranks around the end of `cursor`, in mean costs of all; 1 where nothing is known.
    pub(super) fn relative_cost(&self, cursor: Cursor) -> f64 {
        let end = (cursor.ranks() / LEVEL_RANKS) as usize;
        let near = end.saturating_sub(NEAR)..(end + NEAR).min(LEVELS);
        let costs = near.filter_map(|level| self.costs.known(level));
        let (count, sum) = costs.fold((0.0, 0.0), |(count, sum), cost| (count + 1.0, sum + cost));
        if count > 0.0 { f64::from(sum / count / self.costs.mean()) } else { 1.0 }
    }

    /// Whether nothing has been offered for so long that it has faded.
    pub(super) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Offered cost per nanosecond, over all ranks.
    #[cfg(test)]
    pub(super) fn total(&self) -> f64 {
        (0..LEVELS).map(|level| self.cost_of(level)).sum()
    }

    /// Requests offered per nanosecond.
    pub(super) fn requests(&self) -> f64 {
        f64::from(self.rate)
    }

    /// Ends a round that lasted for `elapsed` until `now`; `calm` is its weight if it was like those before it.
    ///
    /// What arrived is known at once. What was shed is told when a caller speaks: a hundred callers
    /// that were silent for long tell much at once, and before that nothing. So it is counted per
    /// time told of, and taken to be the same for all `callers` that may be shedding.
    ///
    /// Ranks inside `sent` are shed by nobody: all that is offered of them has arrived. Where that is
    /// suddenly less, less is taken to be offered of all ranks: callers that shed nearly all speak
    /// so rarely that it would be long until they told.
    pub(super) fn close(
        &mut self,
        now: Instant,
        elapsed: Span,
        callers: usize,
        calm: f64,
        sent: Cursor,
    ) {
        let nanos = elapsed.as_nanos().max(1) as f32;
        let all = callers as f32 * nanos;
        let scale = if self.told > 0.0 {
            (all / self.told).clamp(1.0 / MOST_SCALE, MOST_SCALE)
        } else {
            1.0
        };
        let expected = nanos * self.rate;
        let counted = self.arrived + scale * self.shed;
        let variance = self.arrived + scale * scale * self.variance;
        let chance = variance.max(expected).max(1.0).sqrt();
        let off = (counted - expected) / chance;
        let before = std::mem::replace(&mut self.off, off);
        let twice = off.min(before) > SHIFT_TWICE || off.max(before) < -SHIFT_TWICE;
        let shifted = twice || off.abs() > SHIFT_ONCE;
        let (inside, ebb) = self.ebb(nanos, sent);
        let gain = match shifted || ebb > 0.0 {
            _ if self.surges(elapsed) => 1.0,
            true => SHIFT_GAIN,
            false => calm as f32,
        };
        self.rate = 0.0;
        for level in self.seen() {
            let at = &mut self.levels[level];
            let count = std::mem::take(&mut at.arrived) + scale * std::mem::take(&mut at.shed);
            if level >= inside && ebb > 0.0 {
                // What is told of these is of before.
                at.rate *= 1.0 - SHIFT_GAIN * ebb;
            } else {
                at.rate += gain * (count / nanos - at.rate);
            }
            // A level of which less than one request in a thousand rounds is left has faded.
            if at.rate * nanos < 1e-3 {
                at.rate = 0.0;
                self.words[level / 64] &= !(1 << (level % 64));
            }
            self.rate += at.rate;
        }
        if ebb > 0.0 {
            self.ebbed = now;
        }
        if self.told > 0.0 {
            self.pace += gain * (self.shed / self.told - self.pace);
        }
        (self.arrived, self.shed, self.told, self.variance) = (0.0, 0.0, 0.0, 0.0);
    }

    /// How many levels are inside `sent`, and the share by which less was offered of them than before:
    /// zero unless it is much, and more than chance, and callers shed the others.
    fn ebb(&self, nanos: f32, sent: Cursor) -> (usize, f32) {
        let inside = (sent.ranks() / LEVEL_RANKS) as usize;
        if sent == Cursor::OPEN {
            return (inside, 0.0);
        }
        let (mut expected, mut counted) = (0.0, 0.0);
        for at in self.seen().take_while(|level| *level < inside).map(|level| self.levels[level]) {
            expected += nanos * at.rate;
            counted += at.arrived + at.shed;
        }
        let beyond_chance = expected - counted > EBB_SURE * expected.max(1.0).sqrt();
        let ebb = if expected > 0.0 { 1.0 - counted / expected } else { 0.0 };
        (inside, if beyond_chance && ebb > EBB { ebb } else { 0.0 })
    }

    /// The levels seen and not yet faded, the most important first.
    fn seen(&self) -> impl Iterator<Item = usize> + use<> {
        let next = |bits: &u64| Some(bits & (bits - 1)).filter(|bits| *bits != 0);
        let levels = move |(word, bits): (usize, u64)| {
            let first = Some(bits).filter(|bits| *bits != 0);
            std::iter::successors(first, next)
                .map(move |bits| word * 64 + bits.trailing_zeros() as usize)
        };
        self.words.into_iter().enumerate().flat_map(levels)
    }

    /// The end of the least important level that was seen.
    pub(super) fn end(&self) -> Cursor {
        let last = self.seen().last().unwrap_or(LEVELS - 1);
        Cursor::first((last as u32 + 1) * LEVEL_RANKS)
    }

    /// The cursor whose ranks offer `rate` (cost per nanosecond); open if all ranks together offer
    /// less.
    ///
    /// The level in which that is reached is cut in proportion if its requests are spread over it. If
    /// not, it is one rank that carries much of the demand, and is taken in whole or left out whole.
    pub(super) fn cut(&self, rate: f64, lump: Lump) -> Cursor {
        let mut offered = 0.0;
        for level in self.seen() {
            let at = &self.levels[level];
            let here = self.cost_of(level);
            if offered + here > rate {
                let part = match lump {
                    _ if at.is_spread() => (rate - offered) / here,
                    Lump::Within => 1.0,
                    Lump::Without => 0.0,
                };
                let ranks = (part * f64::from(LEVEL_RANKS)) as u32;
                return Cursor::first(level as u32 * LEVEL_RANKS + ranks.min(LEVEL_RANKS));
            }
            offered += here;
        }
        Cursor::OPEN
    }

    /// The business rank that `cursor` cuts, from its beginning to its end, if those of its requests that are let in
    /// drew lots: to serve one of them before another means nothing.
    pub(super) fn drawn(&self, cursor: Cursor) -> Option<(Cursor, Cursor)> {
        let business = cursor.last()?.business();
        let begin = Rank::new(business, 0);
        let inside = level_of(begin)..=level_of(cursor.last()?);
        let levels = self.seen().filter(|level| inside.contains(level));
        let (drawn, all) = levels
            .map(|level| &self.levels[level])
            .fold((0.0, 0.0), |sum, at| (sum.0 + at.lots * at.rate, sum.1 + at.rate));
        let end = Cursor::at(Rank::new(business, u16::MAX));
        (all > 0.0 && drawn >= DRAWN * all).then_some((Cursor::first(begin.key()), end))
    }

    /// Offered cost per nanosecond of a level.
    fn cost_of(&self, level: usize) -> f64 {
        f64::from(self.levels[level].rate * self.costs.of(level))
    }
}

/// What becomes of demand that cannot be cut, where a cut would have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lump {
    /// It is let in: closing the only rank there is would leave the service idle.
    Within,
    /// It is left out.
    Without,
}

impl Level {
    fn place(&mut self, rank: Rank) {
        let distance = (rank.key() % LEVEL_RANKS) as f32 - self.place;
        self.place += PLACE_GAIN * distance;
        self.spread += PLACE_GAIN * (distance * distance - self.spread);
    }

    /// Whether it can be cut: its requests are spread over the ranks that callers send.
    fn is_spread(&self) -> bool {
        self.spread > SPREAD.min(SPREAD_OF_MEAN * self.place * self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    /// Offers one request per business rank 0..64 and closes a round of 64 ns, many times.
    fn uniform(cost: impl Fn(u8) -> u64) -> Offered {
        let mut offered = Offered::new();
        for _ in 0..200 {
            for business in 0..64 {
                offered.arrive(Rank::new(business, 0), false);
                offered.settle(Rank::new(business, 0), Cost(cost(business)));
            }
            offered.close(NOW, Span::from_nanos(64), 1, 0.1, Cursor::OPEN);
        }
        offered
    }

    fn last_business(cursor: Cursor) -> u8 {
        cursor.last().unwrap().business()
    }

    #[test]
    fn the_cut_lets_in_what_can_be_served() {
        let offered = uniform(|_| 10);
        assert!((offered.total() - 10.0).abs() < 0.1);
        assert_eq!(last_business(offered.cut(4.95, Lump::Within)), 31);
        assert_eq!(offered.cut(11.0, Lump::Within), Cursor::OPEN);
    }

    #[test]
    fn the_cut_is_by_cost_not_by_count() {
        // The first quarter costs seven times the rest: 28 and 4.
        let offered = uniform(|business| if business < 16 { 28 } else { 4 });
        assert_eq!(last_business(offered.cut(6.95, Lump::Within)), 15);
        assert!(last_business(offered.cut(8.5, Lump::Within)) > 35);
    }

    /// Callers that were told a cursor in the midst of a level send no more than what is inside it. The level was then taken to be one
    /// rank now and then, and let in whole.
    #[test]
    fn a_level_that_was_cut_can_be_cut_again() {
        let cut = |rank: &dyn Fn(u32) -> u32| {
            let mut offered = Offered::new();
            for n in 0..4_000u32 {
                offered.arrive(Rank::from_key(rank(n)), false);
            }
            offered.close(NOW, Span::from_nanos(4_000), 1, 1.0, Cursor::OPEN);
            offered.cut(0.2, Lump::Within).ranks()
        };
        let level = 10 * LEVEL_RANKS;
        for sent in [LEVEL_RANKS, LEVEL_RANKS / 3, LEVEL_RANKS / 10] {
            let ranks = cut(&|n| level + (n * 617) % sent);
            assert!((level + 1..level + LEVEL_RANKS).contains(&ranks), "{sent}: {ranks}");
        }
        for one in [0, 1, LEVEL_RANKS / 2, LEVEL_RANKS - 1] {
            assert_eq!(cut(&|_| level + one), level + LEVEL_RANKS, "one rank, {one}");
        }
    }

    #[test]
    fn those_who_drew_lots_have_no_order() {
        let mut offered = Offered::new();
        for n in 0..40_000u32 {
            offered.arrive(Rank::new(20, (n * 617) as u16), false);
            offered.arrive(Rank::new(24, (n * 617) as u16), true);
        }
        offered.close(NOW, Span::from_nanos(1_000), 1, 1.0, Cursor::OPEN);
        let inside = |business| Cursor::at(Rank::new(business, 40_000));
        assert_eq!(offered.drawn(inside(20)), None, "users have");
        let (begin, end) = offered.drawn(inside(24)).expect("lots");
        assert!(begin.admits(Rank::new(23, u16::MAX)) && !begin.admits(Rank::new(24, 0)));
        assert!(end.admits(Rank::new(24, u16::MAX)) && !end.admits(Rank::new(25, 0)));
        assert_eq!(offered.drawn(inside(30)), None, "nobody is there");
    }

    #[test]
    fn a_level_is_cut_only_if_demand_is_spread_over_it() {
        let (mut one, mut spread) = (Offered::new(), Offered::new());
        for user in 0..1_000u32 {
            one.arrive(Rank::new(24, 700), false);
            spread.arrive(Rank::new(24, (user * 617 % 1_024) as u16), false);
        }
        for offered in [&mut one, &mut spread] {
            offered.close(NOW, Span::from_nanos(1), 1, 0.1, Cursor::OPEN);
        }
        assert!(one.cut(1e-9, Lump::Within).admits(Rank::new(24, 700)));
        assert!(!one.cut(1e-9, Lump::Without).admits(Rank::new(24, 700)));
        let half = spread.cut(spread.total() / 2.0, Lump::Within).last().unwrap();
        assert!((400..600).contains(&half.user()), "{half}");
    }

    /// Callers that were silent for long tell of much at once; that is no more than they shed all the
    /// time, and while they were silent it was no less.
    #[test]
    fn sheds_count_per_time_told_of() {
        let mut offered = Offered::new();
        let (round, rank) = (Span::from_nanos(1_000), Rank::new(24, 0));
        let tell = |offered: &mut Offered, callers: u64, rounds: u32| {
            let silence = Span::from_nanos(1_000 * u64::from(rounds));
            for _ in 0..callers {
                offered.report(NOW, Sheds { count: 2 * rounds, sample: rank }, Some(silence));
            }
            offered.close(NOW, round, 100, 0.1, Cursor::OPEN);
        };
        for _ in 0..100 {
            tell(&mut offered, 100, 1);
        }
        let before = offered.total();
        let requests = before / offered.mean_cost();
        assert!(
            (requests - 0.2).abs() < 0.01,
            "100 callers shed 2 per microsecond each: {requests}"
        );
        for (callers, rounds) in [(20, 1), (20, 1), (80, 3), (100, 1)] {
            tell(&mut offered, callers, rounds);
            assert!((offered.total() / before - 1.0).abs() < 0.01, "{}", offered.total());
        }
    }

    #[test]
    fn what_is_off_by_much_or_twice_is_news() {
        let after = |rounds: &[u32]| {
            let mut offered = Offered::new();
            for arrived in [[400; 100].as_slice(), rounds].concat() {
                (0..arrived).for_each(|_| offered.arrive(Rank::new(24, 0), false));
                offered.close(NOW, Span::from_nanos(1_000), 1, 0.1, Cursor::OPEN);
            }
            // A deviation is 20 requests, or the root of those that came if they are more.
            (1e3 * offered.requests()).round()
        };
        assert_eq!(after(&[490]), 409.0, "four: noise");
        assert_eq!(after(&[520]), 460.0, "more than five: news");
        assert_eq!(after(&[480]), 408.0, "three: noise");
        assert_eq!(after(&[480, 480]), 444.0, "twice: news");
        assert_eq!(after(&[320, 480]), 401.0, "to and fro: noise");
    }

    /// Of 400 per round.
    #[test]
    fn a_storm_is_not_waited_out() {
        let round = Span::from_nanos(1_000);
        let mut offered = Offered::new();
        let come = |offered: &mut Offered, count: u32, nanos| {
            (0..count).for_each(|_| offered.arrive(Rank::new(24, 0), false));
            let surges = offered.surges(round);
            offered.close(NOW, Span::from_nanos(nanos), 1, 0.1, Cursor::OPEN);
            surges
        };
        assert!(!come(&mut offered, 300, 1_000), "so few say nothing");
        for _ in 0..100 {
            assert!(!come(&mut offered, 400, 1_000));
        }
        assert!(!come(&mut offered.clone(), 1_190, 300), "it may still be half of it");
        assert!(come(&mut offered, 1_210, 300), "this is what comes now");
        assert_eq!((1e3 * offered.requests()).round(), 4_033.0);
    }

    /// Callers that shed nine of ten ranks fall silent: what they sent was a tenth, and they cannot tell
    /// that there is no more to shed.
    #[test]
    fn when_the_important_ebb_all_do() {
        let (round, sent) = (Span::from_nanos(64_000), Cursor::first(16 << 16));
        let offer = |offered: &mut Offered, each: u32| {
            for business in 0..16 {
                (0..each).for_each(|_| offered.arrive(Rank::new(business, 0), false));
            }
        };
        let mut offered = Offered::new();
        for _ in 0..200 {
            offer(&mut offered, 10);
            for business in 16..64 {
                let sheds = Sheds { count: 10, sample: Rank::new(business, 0) };
                offered.report(NOW, sheds, Some(round.scale(1.0 / 48.0)));
            }
            offered.close(NOW, round, 1, 0.1, sent);
        }
        let before = offered.total();
        for rounds in 1..=4 {
            offer(&mut offered, 1);
            offered.close(NOW, round, 1, 0.1, sent);
            let most = 0.1 + 0.9 * 0.5f64.powi(rounds);
            assert!(offered.total() < (most + 0.02) * before, "{rounds}: {}", offered.total());
        }
        let ebbed = offered.total();
        assert!(ebbed > 0.099 * before, "no more than the others");
        // Who tells only now tells of before, …
        let sheds = Sheds { count: 1_000, sample: Rank::new(20, 0) };
        offered.report(NOW + round, sheds, Some(round.scale(2.0)));
        assert_eq!(offered.counted(), 0.0);
        // …until it has told once since.
        offered.report(NOW + round, sheds, Some(round));
        assert_eq!(offered.counted(), 1_000.0);
    }

    #[test]
    fn what_is_no_longer_offered_fades() {
        let mut offered = uniform(|_| 10);
        for _ in 0..100 {
            offered.close(NOW, Span::from_nanos(64), 1, 0.1, Cursor::OPEN);
        }
        assert_eq!(offered.total(), 0.0);
        assert_eq!(offered.cut(0.0, Lump::Within), Cursor::OPEN);
    }
}
