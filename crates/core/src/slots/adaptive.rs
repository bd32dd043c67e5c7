//! A number of slots that finds itself: the knee of throughput over concurrency.
//!
//! The right number is the smallest that keeps the service busy. With fewer it idles; with more,
//! requests queue inside the service, where they cannot be reordered, refused or even seen. It
//! depends on workers, locks, pools and on what those behind the service do, so it is measured:
//!
//! 1. **Double**, from one slot on, while throughput grows by 1.4 and more. At first it may fail to once: few answers
//!    vary, and to double once too often does no harm.
//! 2. **Try half** as many for a moment. By how much throughput falls says how many are at work:
//!    `k/2 × X(k) ÷ X(k/2)` are as many as throughput justifies. If it does not fall, half it is, and half of that is
//!    tried next. If it halves, there is no knee yet, and the number is doubled again.
//! 3. **Settle** for half as many again as are at work, so that no worker waits for its next request. With w workers
//!    that is 1.5 w: at half of it they are short by a quarter, which no noise hides. Tries that agree are
//!    averaged; one that does not begins anew.
//! 4. **Rest** for longer and longer, up to 64 times as long as a try takes, while tries agree; for less
//!    and less while they do not. Who answers suddenly more or less often than before is tried again at once, and
//!    so is who answers late although it was asked in time.
//!
//! Both sides of a comparison are measured one after the other, and as many answers each, so whatever the
//! service is like just now is in both. There is no baseline that could drift, and nothing is learned
//! by refusing. Throughput says how much was asked for, not how much can be done, unless there is
//! *pressure*: something waits at nine answers in ten, or more than one in a hundred is refused or late (a queue
//! may be where the gate does not see it). Without pressure nothing moves.
//!
//! A stall (a garbage collection, a pause, a restart) is one long gap between two answers. It counts no more
//! than a usual time behind the gate, so that it looks neither like lost capacity nor, when it is over, like
//! new one.
//!
//! Laws that follow the least latency (BBR, Vegas, gradients) fail here: before a service whose times vary, the
//! least is far below the mean, and they end with too few. Those that follow a mean that they learn
//! under load drift up with their own queue.

use serde::{Deserialize, Serialize};

use super::room::Room;
use super::{Finish, Slots};
use crate::config::Problems;
use crate::time::{Instant, Span};
use crate::verdict::Outcome;

/// Growth of throughput by which doubling goes on: between none and all, as far as few answers can tell.
const GROWTH: f64 = 1.4;
/// Answers by which it is judged while nothing is known, and two per slot at least. With each thing that is found there
/// are twice as many, up to so many times: exponential times vary throughput by a twelfth then. If all that takes less
/// than half a second they are four times as many: what else is on the machine takes turns within a tenth of a second.
const FEW: u32 = 16;
const SURE: u32 = 3;
const TURNS: Span = Span::from_millis(250);
/// Answers after a change that began before it, per slot: the first ones are the short ones, too.
const SKIP: f64 = 1.5;
/// Slots for each one that throughput justifies.
const ROOM: f64 = 1.5;
/// Longest rest, in tries: half as many slots as there should be for a sixty-fourth of the time lose half a
/// point at most. It becomes so many times as long after a try that agrees with those before, and as much shorter after one
/// that does not.
const REST: u32 = 64;
const LONGER: u32 = 4;
/// Growth of throughput from half of the slots to all, as a share of the growth of slots, beyond which there is no knee
/// yet: it is two thirds at half as many again as are at work.
const NO_KNEE: f64 = 0.85;
/// Growth below which even half may be too many: how many would do, it does not say.
const FLAT: f64 = 1.1;
/// Growth below one is chance: it counts, so that chance averages out, but no less than this.
const LEAST_GROWTH: f64 = 0.5;
/// What is found agrees with what was found before if it differs by no more: where even half has become too many it is a
/// quarter less.
const AGREES: f64 = 0.2;
/// A change of throughput that is news if the next window has it, too.
const NEWS: f64 = 0.3;
/// Weight of the last window in throughput since the number is what it is.
const LATELY: f64 = 0.25;
/// Tries that are averaged, at most.
const MEMORY: u32 = 8;
/// Answers at which something waited, and refused or late ones, that make pressure.
const WAITED: f64 = 0.9;
/// While little is known less will do: to double once too often does no harm, and to stay below what is asked for makes
/// requests wait that need not.
const WAITED_AT_FIRST: f64 = 0.5;
const SUFFERED: f64 = 0.01;
/// Part of the requests that are late by the time behind the gate alone, if far too many are there.
const CROWDED: f64 = 0.5;
/// Longest gap between two answers that counts as such, in mean times behind the gate: one, if they come as one batch;
/// few slots have longer gaps by chance, as if there were so many of them.
const GAP_SLOTS: f64 = 8.0;
/// Longest time behind the gate that counts as such, in means.
const STALL: f64 = 4.0;
/// Answers that the mean time behind the gate is of, and its variance.
const KNOWN: u32 = 32;
const VARIED_OF: f64 = 256.0;
/// Variance in squared means up to which more answers are waited for: one of exponential times, two of most others.
const MOST_VARIED: f64 = 3.0;
/// At half of the slots workers idle, if throughput at all of them is so much higher: then nothing waits for one.
const IDLE: f64 = 1.2;

/// Slots that follow measured throughput.
#[derive(Clone, Debug)]
pub struct Adaptive {
    config: AdaptiveConfig,
    /// Slots to be had but for tries.
    slots: u32,
    phase: Phase,
    /// As many as throughput justifies, and how much it grew from half of the slots to all: the mean of so many tries, by
    /// their answers.
    knee: f64,
    growth: f64,
    tries: u32,
    weight: f64,
    /// Tries that the next rest is long.
    rest: u32,
    /// Whether the last try did not agree with those before.
    surprised: bool,
    /// Whether workers idled at half of the slots when that was last tried.
    idled: bool,
    window: Window,
    /// Whether more than the knee are worth it, and the objective that has room for them.
    room: Room,
    objective: Span,
    last: Option<Instant>,
    /// Mean time behind the gate in nanoseconds, its variance in squared means, and how many answers that is of, as far
    /// as that matters.
    behind: f64,
    varied: f64,
    known: u32,
}

/// What the present window is for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Twice as many as had this throughput, and whether that had not grown either.
    Double { half: f64, failed: bool },
    /// So many windows are to come until the next try; mean throughput since the number is what it is, and whether
    /// that of the last window was another.
    Rest { windows: u32, rate: f64, news: bool },
    /// Half of the slots, after this throughput with all.
    Half { all: f64 },
    /// So many slots for so many windows, as time allows them.
    Roomy { slots: u32, windows: u32 },
}

/// What is measured.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// Answers still to be left out.
    skip: u32,
    answers: u32,
    /// Requests that ended, answered or not, and those of them that were late by the time behind the gate alone.
    ended: u32,
    crowded: u32,
    /// Answers that found something waiting, and those that are late or came after a refusal.
    waited: u32,
    suffered: u32,
    /// Sum of gaps, in nanoseconds.
    time: f64,
}

impl Window {
    fn rate(&self) -> f64 {
        f64::from(self.answers) / self.time.max(1.0)
    }

    fn is_pressed(&self, waited: f64) -> bool {
        let share = |count: u32| f64::from(count) / f64::from(self.answers.max(1));
        share(self.waited) >= waited || share(self.suffered) > SUFFERED
    }

    /// A stall makes all late that are behind the gate, once.
    fn is_crowded(&self, slots: u32) -> bool {
        let enough = self.ended >= FEW.max(3 * slots);
        enough && f64::from(self.crowded) >= CROWDED * f64::from(self.ended)
    }
}

/// Whether throughput has changed by more than chance, mostly.
fn differs(rate: f64, last: f64) -> bool {
    last > 0.0 && (rate / last - 1.0).abs() > NEWS
}

impl Adaptive {
    /// Begins at the configured start, knowing nothing.
    pub fn new(config: &AdaptiveConfig) -> Self {
        Self {
            config: config.clone(),
            slots: config.start,
            phase: Phase::Double { half: 0.0, failed: false },
            knee: 0.0,
            growth: 0.0,
            tries: 0,
            weight: 0.0,
            rest: 1,
            surprised: false,
            idled: false,
            window: Window::default(),
            room: Room::default(),
            objective: Span::MAX,
            last: None,
            behind: 0.0,
            varied: 0.0,
            known: 0,
        }
    }

    fn half(&self) -> u32 {
        (self.slots / 2).max(self.config.least)
    }

    /// Whether nothing was found yet that a quick look could spoil.
    fn knows_little(&self) -> bool {
        self.tries == 0
    }

    fn is_complete(&self) -> bool {
        let Window { answers, time, .. } = self.window;
        let known = if self.knee > 0.0 { self.tries + 1 } else { 0 };
        let least = f64::from(FEW << known.min(SURE)) * self.varied.clamp(1.0, MOST_VARIED);
        let least = (least as u32).max(2 * self.slots);
        let slow = known < SURE || time >= TURNS.as_nanos_f64();
        answers >= if slow { least } else { 4 * least }
    }

    /// Learns from a window that is complete, and decides what the next one is for.
    fn conclude(&mut self) {
        let (before, rate) = (self.limit(), self.window.rate());
        let pressed =
            self.window.is_pressed(if self.knows_little() { WAITED_AT_FIRST } else { WAITED });
        match self.phase {
            Phase::Double { .. } if self.window.is_crowded(0) && self.slots > 1 => {
                return self.relieve();
            }
            Phase::Double { half, failed } if pressed => {
                let fails = rate < GROWTH * half;
                if fails && (failed || self.knee > 0.0) {
                    self.settle(rate, half);
                } else {
                    self.double(rate, fails);
                }
            }
            Phase::Rest { windows, rate: last, news } if pressed => {
                let (windows, differs) = (windows.saturating_sub(1), differs(rate, last));
                let mean =
                    if last > 0.0 && !differs { last + (rate - last) * LATELY } else { rate };
                let rate = if differs && !news { last } else { mean };
                self.phase = Phase::Rest { windows, rate, news: differs };
                self.room.on_knee(self.window.answers, self.window.time);
                if windows == 0 || differs && news {
                    self.try_half(rate);
                }
            }
            Phase::Roomy { slots, windows } if pressed => {
                self.phase = Phase::Roomy { slots, windows: windows.saturating_sub(1) };
                self.room.on_roomy(self.window.answers, self.window.time);
                if windows <= 1 {
                    self.rest(0.0);
                }
            }
            Phase::Double { .. } | Phase::Rest { .. } | Phase::Roomy { .. } => {}
            Phase::Half { all } => self.judge(all, rate),
        }
        self.next_window(before);
    }

    fn next_window(&mut self, before: u32) {
        let moved = self.limit() != before;
        let skip = (SKIP * f64::from(before.max(self.limit()))) as u32;
        self.window = Window { skip: if moved { skip } else { 0 }, ..Window::default() };
    }

    /// Step 1.
    fn double(&mut self, rate: f64, failed: bool) {
        self.tries = 0;
        let twice = self.slots.saturating_mul(2).min(self.config.most);
        if twice > self.slots {
            self.slots = twice;
            self.phase = Phase::Double { half: rate, failed };
        } else {
            self.phase = Phase::Rest { windows: 1, rate, news: false };
        }
    }

    /// Steps 4 and 5: with what was found, which has this throughput, or with as many as time allows.
    fn rest(&mut self, rate: f64) {
        let slots = self.room.slots(self.objective).min(self.config.most);
        let is_known = self.tries >= SURE && slots > self.slots;
        self.phase = if is_known && self.room.is_next() {
            // A look is short: what waits behind the gate has no order.
            let look = if self.room.pays() == Some(true) { REST } else { LONGER };
            Phase::Roomy { slots, windows: self.rest.min(look) }
        } else {
            Phase::Rest { windows: self.rest, rate, news: false }
        };
    }

    fn try_half(&mut self, all: f64) {
        if self.half() < self.slots {
            self.phase = Phase::Half { all };
        } else if self.slots == 1 {
            // There is no half of it: the other way round.
            self.double(all, false);
        }
    }

    /// Step 2.
    fn judge(&mut self, all: f64, half: f64) {
        let (found, growth) = self.found(all, half);
        let no_knee = growth >= NO_KNEE * f64::from(self.slots) / f64::from(self.half());
        let agrees = !no_knee && (found / self.knee - 1.0).abs() <= AGREES;
        if self.tries > 1 && !agrees && !self.surprised {
            // Once it may be chance.
            (self.surprised, self.rest) = (true, 1);
            self.phase = Phase::Rest { windows: 1, rate: 0.0, news: false };
            return;
        }
        self.surprised = false;
        if no_knee {
            return self.double(all, false);
        }
        let alone = self.tries == 1;
        self.settle(all, half);
        if self.is_flat() && !alone && self.half() > 1 {
            self.slots = self.half();
            self.tries = 0;
            self.try_half(half);
        }
    }

    /// Workers are whole: with few slots throughput grows by none, or by one more than half of them.
    fn is_flat(&self) -> bool {
        self.growth < FLAT.max(1.0 + 0.5 / f64::from(self.half()))
    }

    /// As many slots as throughput justifies, and by how much it grew from half of them to all.
    fn found(&self, all: f64, half: f64) -> (f64, f64) {
        let (few, many) = (f64::from(self.half()), f64::from(self.slots));
        let growth = (all / half.max(f64::MIN_POSITIVE)).clamp(LEAST_GROWTH, many / few);
        (few * growth, growth)
    }

    /// Step 3.
    fn settle(&mut self, all: f64, half: f64) {
        let (found, growth) = self.found(all, half);
        let moved = self.knows_little() || (found / self.knee - 1.0).abs() > AGREES;
        (self.tries, self.weight) = if moved { (0, 0.0) } else { (self.tries, self.weight) };
        self.tries = (self.tries + 1).min(MEMORY);
        let answers = f64::from(self.window.answers);
        self.weight = (self.weight + answers).min(answers * f64::from(MEMORY));
        self.knee += (found - self.knee) * answers / self.weight;
        self.growth += (growth - self.growth) * answers / self.weight;
        let rest = if moved { self.rest / LONGER } else { self.rest * LONGER };
        self.rest = if self.tries >= SURE { rest.clamp(LONGER, REST) } else { 1 };
        self.idled = growth >= IDLE && !moved;
        let slots = (ROOM * self.knee).round() as u32;
        let before = self.half();
        self.slots = slots.clamp(self.config.least, self.config.most);
        if self.is_flat() {
            self.slots = self.slots.min(2 * before);
        }
        self.rest(if moved { 0.0 } else { all });
    }

    /// Far more are behind the gate than can be answered in time: half of them, at once.
    fn relieve(&mut self) {
        let before = self.limit();
        if let Phase::Roomy { .. } = self.phase {
            self.room.on_relief();
            self.phase = Phase::Rest { windows: 1, rate: 0.0, news: false };
            return self.next_window(before);
        }
        self.tries = 0;
        self.slots = before;
        self.try_half(self.window.rate());
        self.next_window(before);
    }
}

impl Slots for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn limit(&self) -> u32 {
        match self.phase {
            Phase::Half { .. } => self.half(),
            Phase::Roomy { slots, .. } => slots,
            Phase::Double { .. } | Phase::Rest { .. } => self.slots,
        }
    }

    fn is_trying(&self) -> bool {
        matches!(self.phase, Phase::Half { .. })
    }

    fn is_quiet(&self) -> bool {
        let idle = self.limit() == 1 || self.is_trying() && self.idled;
        idle && self.window.skip == 0
    }

    fn on_finish(&mut self, now: Instant, finish: &Finish) {
        self.objective = finish.objective;
        let gap = now.since(self.last.replace(now).unwrap_or(now)).as_nanos_f64();
        let is_known = self.known == KNOWN;
        let longest = self.behind * (GAP_SLOTS / f64::from(self.limit())).max(1.0);
        let gap = if is_known { gap.min(longest) } else { gap };
        if self.window.skip == 0 {
            self.window.ended += 1;
            self.window.crowded += u32::from(finish.crowded);
            if self.window.is_crowded(self.limit()) && self.limit() > self.config.least {
                self.relieve();
                return;
            }
        }
        if finish.outcome != Outcome::Serve {
            // Nothing was answered; the time goes to the answer that comes.
            self.window.time += gap;
            self.window.suffered += u32::from(finish.late);
            return;
        }
        self.known = (self.known + 1).min(KNOWN);
        let service = finish.service.as_nanos_f64();
        let service = if is_known { service.min(STALL * self.behind) } else { service };
        self.behind += (service - self.behind) / f64::from(self.known);
        let off = service / self.behind.max(1.0) - 1.0;
        self.varied += (off * off - self.varied) / VARIED_OF;
        if self.window.skip > 0 {
            self.window.skip -= 1;
            self.window.time = 0.0;
            return;
        }
        let window = &mut self.window;
        window.answers += 1;
        window.time += gap;
        window.waited += u32::from(finish.waiting > 0);
        window.suffered += u32::from(finish.late || finish.shedding);
        if self.is_complete() {
            self.conclude();
        }
    }

    fn invariants(&self) {
        assert!((self.config.least..=self.config.most).contains(&self.limit()));
        assert!(self.behind.is_finite() && self.window.time.is_finite());
    }

    fn clone_box(&self) -> Box<dyn Slots> {
        Box::new(self.clone())
    }
}

/// Parameters of [`Adaptive`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptiveConfig {
    /// Slots to begin with. More serves a large service sooner; fewer protects a small one from the
    /// first moment, and says what a request takes that nothing waits for. Default 1.
    pub start: u32,
    /// Never fewer slots than this. More wastes the search where one would do. Default 1.
    pub least: u32,
    /// Never more slots than this: a bound on what a service can be made to hold at once. Default
    /// 1024, beyond the knee of services that need slots at all.
    pub most: u32,
}

impl Default for AdaptiveConfig {
    fn default() -> Self {
        Self { start: 1, least: 1, most: 1024 }
    }
}

impl AdaptiveConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let Self { start, least, most } = *self;
        problems.check("start", start, (least..=most).contains(&start), "least to most");
        problems.check("least", least, (1..=most).contains(&least), "1 to most");
        problems.check("most", most, (1..=1 << 20).contains(&most), "1 to 1048576");
    }
}
