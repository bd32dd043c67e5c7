//! Where a topic's publishers should live, from a recording of it and a calibration of the brokers.
//!
//! The planner is the core's ([`Planner`]): the fewest brokers whose predicted 99th percentile meets the objective, groups of
//! publishers that send together cut as buckets are. What a broker's work costs is what [`calibrate`](crate::calibrate)
//! has measured.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidegate_core::placement::replay::Arrival;
use tidegate_core::placement::{GroupId, Host, Planner, PlannerConfig, Publisher};
use tidegate_core::share::Share;
use tidegate_core::{Instant, Span};

use crate::calibrate::Calibration;

/// Longest stretch that a percentile is taken of: a measurement of the paper's (SRTM §VI).
const WINDOW: Span = Span::from_secs(60);
/// Longest recording.
const LONGEST: f64 = 1e6;

/// A recording: lines of `seconds,publisher` or `seconds,publisher,group`, in any order.
#[derive(Clone, Debug)]
pub struct Log {
    names: Vec<String>,
    groups: Vec<Option<GroupId>>,
    arrivals: Vec<Arrival>,
}

impl Log {
    /// Reads it, or tells the line that is wrong.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut log = Self { names: Vec::new(), groups: Vec::new(), arrivals: Vec::new() };
        let (mut known, mut groups) = (BTreeMap::new(), BTreeMap::new());
        for (number, line) in text.lines().enumerate() {
            let heading = number == 0 && !line.starts_with(|at: char| at.is_ascii_digit());
            if heading || line.trim().is_empty() {
                continue;
            }
            let wrong = |what: &str| format!("line {}: {what}: {line}", number + 1);
            let mut columns = line.split(',').map(str::trim);
            let seconds = columns.next().and_then(|time| time.parse::<f64>().ok());
            let seconds = seconds.filter(|at| (0.0..=LONGEST).contains(at));
            let seconds =
                seconds.ok_or_else(|| wrong("it does not begin with seconds, 0 to 1e6"))?;
            let name = columns.next().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| wrong("it names no publisher"))?;
            let group = columns.next().filter(|group| !group.is_empty()).map(|group| {
                let next = groups.len() as u32;
                GroupId(*groups.entry(group.to_owned()).or_insert(next))
            });
            let publisher = *known.entry(name.to_owned()).or_insert_with(|| {
                log.names.push(name.to_owned());
                log.groups.push(group);
                log.names.len() as u32 - 1
            });
            let at = Instant::from_nanos((seconds * 1e9).round() as u64);
            log.arrivals.push(Arrival { at, publisher, messages: 1 });
        }
        log.arrivals.sort_by_key(|at| (at.at, at.publisher));
        let first = log.arrivals.first().map_or(Instant::ZERO, |at| at.at);
        for arrival in &mut log.arrivals {
            arrival.at = Instant::ZERO + arrival.at.since(first);
        }
        // What one sends at one moment is one batch.
        log.arrivals.dedup_by(|next, one| {
            let same = (next.at, next.publisher) == (one.at, one.publisher);
            one.messages += u32::from(same) * next.messages;
            same
        });
        if log.length() == Span::ZERO {
            return Err("a recording needs messages at two different moments at least".to_owned());
        }
        Ok(log)
    }

    /// How long it is.
    pub fn length(&self) -> Span {
        self.arrivals.last().map_or(Span::ZERO, |at| at.at.since(Instant::ZERO))
    }

    /// How many messages it has.
    pub fn messages(&self) -> u64 {
        self.arrivals.iter().map(|at| u64::from(at.messages)).sum()
    }

    /// When each message came.
    pub fn moments(&self) -> Vec<Instant> {
        let times = |at: &Arrival| std::iter::repeat_n(at.at, at.messages as usize);
        self.arrivals.iter().flat_map(times).collect()
    }

    /// Who sends, and how much.
    pub fn publishers(&self) -> Vec<Publisher> {
        let mut counts = vec![0u64; self.names.len()];
        for arrival in &self.arrivals {
            counts[arrival.publisher as usize] += u64::from(arrival.messages);
        }
        let rate = |count: &u64| *count as f64 / self.length().as_secs_f64();
        let publishers = counts.iter().zip(&self.groups);
        publishers.map(|(count, group)| Publisher { rate: rate(count), group: *group }).collect()
    }
}

/// Plans it: what `tidegate nats place` answers.
pub fn place(log: &Log, whole: Share, slo: Span, brokers: &[Calibration]) -> Result<Value, String> {
    let publishers = log.publishers();
    let hosts: Vec<Host> =
        brokers.iter().map(|at| Host { costs: at.costs(), serves: Vec::new() }).collect();
    let config = PlannerConfig::new(slo, log.length(), log.length().min(WINDOW));
    let planner = Planner::new(&publishers, whole, &log.arrivals, &hosts, config)
        .map_err(|error| error.to_string())?;
    let placement = planner.placement();
    let shares = placement.shares(whole, &publishers).map_err(|error| error.to_string())?;
    let rates = placement.rates(&publishers, brokers.len());
    let millis = |span: Span| span.as_millis_f64();
    let tails = planner.predicted();
    let used = shares.iter().map(|(at, share)| {
        let here = placement.broker_of.iter().enumerate().filter(|(_, to)| **to == Some(*at));
        json!({
            "broker": brokers[*at].broker,
            "publishers": here.map(|(who, _)| &log.names[who]).collect::<Vec<_>>(),
            "sends": rates[*at],
            "rate": share.rate.as_f64(),
            "burst": share.burst,
            "p99_ms": tails[*at].filter(|tail| *tail < Span::MAX).map(millis),
        })
    });
    let meets = tails.iter().flatten().all(|tail| *tail <= slo.scale(1.0 - config.margin));
    Ok(json!({
        "publishers": publishers.len(),
        "messages": log.messages(),
        "seconds": log.length().as_secs_f64(),
        "rate": whole.rate.as_f64(),
        "burst": whole.burst,
        "slo_ms": millis(slo),
        "meets": meets,
        "brokers_that_would_do": planner.wanted(),
        "brokers": used.collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::share::Rate;

    use super::*;

    fn brokers(count: usize) -> Vec<Calibration> {
        let one = |n| Calibration {
            broker: format!("nats://b{n}:4222").parse().expect("an address"),
            payload: 16,
            alone_us: 80.0,
            each_us: 10.0,
        };
        (0..count).map(one).collect()
    }

    /// Two groups of four that send 50 messages each at the same moments: a group at one broker waits for the work of
    /// four of them, and one that is cut in two for that of two.
    #[test]
    fn bursts_are_cut_until_the_objective_is_met() {
        let mut text = String::new();
        for second in 0..20 {
            for who in 0..8 {
                let at = f64::from(second) + if who < 4 { 0.0 } else { 0.5 };
                (0..50).for_each(|_| text += &format!("{at},p{who},g{}\n", who / 4));
            }
        }
        let log = Log::read(&text).expect("a log");
        assert_eq!((log.messages(), log.publishers().len()), (8_000, 8));
        let whole = Share::new(Rate::per_second(600.0).unwrap(), 400);
        let plan = |millis, count| {
            place(&log, whole, Span::from_millis(millis), &brokers(count)).expect("a plan")
        };
        let used = |plan: &Value| plan["brokers"].as_array().expect("a list").len();
        let loose = plan(50, 4);
        assert_eq!((used(&loose), &loose["meets"]), (1, &json!(true)), "{loose:#}");
        let tight = plan(2, 4);
        assert!(used(&tight) > 1 && tight["meets"] == true, "{tight:#}");
        for broker in tight["brokers"].as_array().expect("a list") {
            let names = broker["publishers"].as_array().expect("a list");
            let first = names.iter().filter(|name| name.as_str() < Some("p4")).count();
            assert_eq!(first * 2, names.len(), "both groups are cut alike: {tight:#}");
        }
        let short = plan(2, 1);
        assert_eq!(short["meets"], false);
        assert_eq!(short["brokers_that_would_do"], used(&tight), "{short:#}");
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        for (text, why) in [
            ("0,a\nsoon,a\n", "line 2: it does not begin with seconds"),
            ("0,a\n-1,a\n", "line 2: it does not begin with seconds"),
            ("0,a\n1\n", "line 2: it names no publisher"),
            ("seconds,publisher\n", "two different moments"),
            ("1,a\n1,b\n", "two different moments"),
        ] {
            let told = Log::read(text).expect_err("wrong");
            assert!(told.contains(why), "{told}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(text in "[-0-9a,.e\n ]{0,60}") {
            if let Ok(log) = Log::read(&text) {
                prop_assert!(log.publishers().iter().all(|at| at.rate > 0.0 && at.rate.is_finite()));
            }
        }
    }
}
