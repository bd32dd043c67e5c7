//! Where a part of tide may show: plans of the repository, and one number of each run.

use serde_json::Value;

/// One number of a run of tide.
pub(super) struct Measure {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) scale: Scale,
    pub(super) plan: &'static str,
    pub(super) sets: Vec<String>,
    /// Length of a step of its course, where that is asked for.
    pub(super) series: Option<String>,
    pub(super) of: fn(&Value) -> f64,
    /// Told as how far below that of `ideal` with the same seed.
    pub(super) below_ideal: bool,
}

/// In what a number is told, and from which difference on it matters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    /// A share of something large.
    Share,
    /// A share of something small.
    Refused,
    /// A share of the objective.
    Objectives,
}

impl Scale {
    pub(super) fn matters(self) -> f64 {
        match self {
            Self::Share => 0.003,
            Self::Refused => 0.001,
            Self::Objectives => 0.02,
        }
    }

    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::Share => format!("{:.1} %", 100.0 * value),
            Self::Refused => format!("{:.2} %", 100.0 * value),
            Self::Objectives => format!("{value:.2}"),
        }
    }
}

/// Requests of 10 µs, 100 µs, …: how long, in µs, and how plans write it.
type Time = (f64, &'static str);
const US: Time = (1.0, "1us");
const US_10: Time = (10.0, "10us");
const US_100: Time = (100.0, "100us");
const MS: Time = (1_000.0, "1ms");

/// Cores and messages of the testbed (Breakwater §5.1), which all these plans have.
const CORES: f64 = 10.0;
const MESSAGES_US: f64 = 1.76;
const RTT_US: f64 = 10.0;

/// The objective of all of them, in µs.
fn slo(time: Time) -> f64 {
    10.0 * (time.0 + RTT_US)
}

fn number(run: &Value, field: &str) -> f64 {
    run[field].as_f64().unwrap_or(f64::NAN)
}

fn goodput(run: &Value) -> f64 {
    number(run, "goodput_rps") / number(run, "capacity_rps")
}

fn refused(run: &Value) -> f64 {
    number(run, "drop_rate")
}

fn first_quarter(run: &Value) -> f64 {
    run["success_by_quarter"][0].as_f64().unwrap_or(f64::NAN)
}

/// Core time of answers in time, of all: a draw of short requests is no merit.
fn core_time(mean: f64) -> impl Fn(&Value) -> f64 {
    move |run| goodput(run) * (MESSAGES_US + number(run, "work_us")) / (MESSAGES_US + mean)
}

/// Goodput of what could be served, between two times of a course, in objectives.
fn between(run: &Value, time: Time, from: f64, to: f64) -> f64 {
    let capacity = number(run, "capacity_rps");
    let (mut good, mut room) = (0.0, 0.0);
    for step in run["series"].as_array().into_iter().flatten() {
        let at = number(step, "t_ms") * 1e3 / slo(time);
        if (from - 0.01..to - 0.01).contains(&at) {
            good += number(step, "goodput_rps");
            room += number(step, "offered_rps").min(capacity);
        }
    }
    good / room
}

fn strings(sets: &[&str]) -> Vec<String> {
    sets.iter().map(|&set| set.to_owned()).collect()
}

/// How many seeds, unless a measure says otherwise, and how many requests.
const SEEDS: &str = "seeds=5";
const LONG: [&str; 2] = ["requests=200000", "warmup_requests=200000"];

impl Measure {
    fn new(
        name: &'static str,
        what: &'static str,
        plan: (&'static str, Vec<String>),
        scale: Scale,
        of: fn(&Value) -> f64,
    ) -> Self {
        let (plan, mut sets) = plan;
        sets.insert(0, SEEDS.to_owned());
        Self { name, what, scale, plan, sets, series: None, of, below_ideal: false }
    }

    /// The same run, looked at for something else.
    fn also(
        &self,
        name: &'static str,
        what: &'static str,
        scale: Scale,
        of: fn(&Value) -> f64,
    ) -> Self {
        let (sets, series) = (self.sets.clone(), self.series.clone());
        Self { name, what, scale, of, sets, series, ..*self }
    }

    fn in_steps_of(self, time: Time) -> Self {
        Self { series: Some(format!("{:.0}us", 5.0 * slo(time))), ..self }
    }
}

fn service(time: Time, shape: &str, callers: u32, load: f64, more: &[&str]) -> Plan {
    let sets = [
        format!("service.time=[\"{}\"]", time.1),
        format!("service.distribution=[\"{shape}\"]"),
        format!("callers=[{callers}]"),
        format!("load=[{load:?}]"),
    ];
    ("service-times", [&sets[..], &strings(&LONG), &strings(more)].concat())
}

type Plan = (&'static str, Vec<String>);

fn rough(time: Time, more: &[&str]) -> Plan {
    let sets = [format!("service.time={}", time.1), "load=[2.0]".to_owned()];
    ("rough", [&sets[..], &strings(&LONG), &strings(more)].concat())
}

/// A fault of 100 objectives, and 25 after it: what is measured begins with it.
fn fault(time: Time, kind: &str) -> Plan {
    let (load, before) = (2.0, 40_000.0);
    let capacity = CORES * 1e6 / (time.0 + MESSAGES_US);
    let (begins, lasts) = (before / capacity * 1e6, 100.0 * slo(time));
    let sets = [
        "service.distribution=exponential".to_owned(),
        format!("service.time={}", time.1),
        format!("load=[{load:?}]"),
        format!("warmup_requests={:.0}", before * load),
        format!("requests={:.0}", 125.0 * slo(time) / 1e6 * load * capacity),
        format!("faults=[{{{kind},at=\"{begins:.0}us\",for=\"{lasts:.0}us\"}}]"),
    ];
    ("rough", sets.to_vec())
}

/// 0.9 → 1.4 → 0.9 → 10 → 0.9 times the capacity.
fn steps(time: Time, callers: u32) -> Plan {
    let at = |objectives: f64| format!("\"{:.0}us\"", objectives * slo(time));
    let course = [(100.0, 1.4), (250.0, 0.9), (400.0, 10.0), (500.0, 0.9)];
    let course = course.map(|(when, load)| format!("{{at={},load={load:?}}}", at(when)));
    let sets = [
        format!("service.time={}", time.1),
        format!("callers={callers}"),
        format!("slo={:.0}us", slo(time)),
        format!("warmup={}", at(50.0)),
        format!("duration={}", at(650.0)),
        format!("workload.steps=[{}]", course.join(",")),
        "caller.hold_time=0.05 slo".to_owned(),
    ];
    ("steps", sets.to_vec())
}

/// A first quarter that costs seven times the rest, at 1.2×.
fn costly(time: Time) -> Plan {
    let sets = [
        format!("service.time={}", time.1),
        format!("slo={:.0}us", slo(time)),
        "load=[1.2]".to_owned(),
        "workload.ranks=[\"uniform\"]".to_owned(),
        "workload.cost=[\"falling\"]".to_owned(),
        "caller.hold_time=0.05 slo".to_owned(),
    ];
    ("ranks-and-costs", [&sets[..], &strings(&LONG)].concat())
}

fn testbed(callers: u32) -> Plan {
    let sets = ["load=[2.0]".to_owned(), format!("callers={callers}")];
    ("breakwater-testbed", [&sets[..], &strings(&LONG)].concat())
}

const NO_RANKS: &str = "workload.ranks=one";

/// All of them. Those of one plan follow each other, and share its runs.
pub(super) fn measures() -> Vec<Measure> {
    use Scale::{Objectives, Refused, Share};
    let below_ideal = |measure| Measure { below_ideal: true, ..measure };
    let bimodal = Measure::new(
        "bimodal",
        "goodput of 1 ms, bimodal, 1,000 callers, 2×",
        service(MS, "bimodal", 1_000, 2.0, &[]),
        Share,
        goodput,
    );
    let bimodal_tail = bimodal.also("bimodal, p99", "of the SLO, of the same", Objectives, |run| {
        number(run, "p99_us") / slo(MS)
    });
    let quarter = Measure::new(
        "costly first quarter",
        "of a first quarter that costs seven times the rest, answered in time; 10 µs, 1.2×",
        costly(US_10),
        Share,
        first_quarter,
    );
    let quarter_tail = quarter.also(
        "costly first quarter, p99",
        "of the SLO, of all in the same",
        Objectives,
        |run| number(run, "p99_us") / slo(US_10),
    );
    vec![
        Measure::new(
            "refused, 100 callers",
            "by the server, of what arrives: testbed, 2×",
            testbed(100),
            Refused,
            refused,
        ),
        Measure::new(
            "first quarter",
            "of the ranks, answered in time: testbed, 1,000 callers, 2×",
            testbed(1_000),
            Share,
            first_quarter,
        ),
        bimodal,
        bimodal_tail,
        Measure::new(
            "bimodal, 10 callers",
            "the same with ten callers",
            service(MS, "bimodal", 10, 2.0, &[]),
            Share,
            goodput,
        ),
        Measure::new(
            "bursts",
            "goodput of 1 ms that come ten at once, 2×",
            rough(
                MS,
                &[
                    "service.distribution=exponential",
                    "workload.arrivals=bursts",
                    "workload.burst=10",
                ],
            ),
            Share,
            goodput,
        ),
        Measure::new(
            "heavy tail",
            "goodput of 1 ms, lognormal with σ = 2, 2×",
            rough(MS, &["service.distribution=lognormal", "service.sigma=2.0"]),
            Share,
            goodput,
        ),
        Measure::new(
            "storm",
            "goodput in the first ten SLOs of ten times the capacity: 10 µs, 1,000 callers",
            steps(US_10, 1_000),
            Share,
            |run| between(run, US_10, 400.0, 410.0),
        )
        .in_steps_of(US_10),
        Measure::new(
            "after a storm",
            "goodput 50 to 75 SLOs after 10 → 0.9: 10 µs, 10,000 callers",
            steps(US_10, 10_000),
            Share,
            |run| between(run, US_10, 550.0, 575.0),
        )
        .in_steps_of(US_10),
        Measure::new(
            "back",
            "goodput 25 to 50 SLOs after 1.4 → 0.9: 100 µs, 10,000 callers",
            steps(US_100, 10_000),
            Share,
            |run| between(run, US_100, 275.0, 300.0),
        )
        .in_steps_of(US_100),
        Measure::new(
            "in vain",
            "of the entry's work, for what a later hop refused: three hops, 2×",
            ("three-hops", [strings(&["load=[2.0]"]), strings(&LONG)].concat()),
            Share,
            |run| number(run, "wasted"),
        ),
        quarter,
        quarter_tail,
        Measure::new(
            "costly first quarter, 1 ms",
            "the same with 1 ms, where 97.3 % are possible",
            costly(MS),
            Share,
            first_quarter,
        ),
        below_ideal(Measure::new(
            "half as fast",
            "for 100 SLOs at 2×: core time of answers in time below that of `ideal`, 10 µs",
            fault(US_10, "kind=\"slow\",factor=2.0"),
            Share,
            |run| core_time(US_10.0)(run),
        )),
        below_ideal(Measure::new(
            "half as fast, 1 ms",
            "the same",
            fault(MS, "kind=\"slow\",factor=2.0"),
            Share,
            |run| core_time(MS.0)(run),
        )),
        below_ideal(Measure::new(
            "half of the cores",
            "the same, with five of ten cores gone, 10 µs",
            fault(US_10, "kind=\"cores\",cores=5"),
            Share,
            |run| core_time(US_10.0)(run),
        )),
        Measure::new(
            "no ranks, 10,000 callers",
            "goodput of 10 µs, 2×",
            service(US_10, "exponential", 10_000, 2.0, &["warmup_requests=800000", NO_RANKS]),
            Share,
            goodput,
        ),
        Measure::new(
            "refused, no ranks, 100 callers",
            "100 µs, bimodal, 4×",
            service(US_100, "bimodal", 100, 4.0, &[NO_RANKS]),
            Refused,
            refused,
        ),
        Measure::new(
            "1 µs, no ranks",
            "goodput of 1 µs, bimodal, 1,000 callers, 10×, eight seeds",
            service(
                US,
                "bimodal",
                1_000,
                10.0,
                &["seeds=8", "warmup_requests=400000", "requests=1000000", NO_RANKS],
            ),
            Share,
            goodput,
        ),
        Measure::new(
            "1 µs",
            "goodput of 1 µs, 1,000 callers, 10×",
            service(
                US,
                "exponential",
                1_000,
                10.0,
                &["warmup_requests=1200000", "requests=1000000"],
            ),
            Share,
            goodput,
        ),
        Measure::new(
            "cold start",
            "the same in the first 500,000 requests",
            service(US, "exponential", 1_000, 10.0, &["warmup_requests=1", "requests=500000"]),
            Share,
            goodput,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_name_is_told_apart_and_every_plan_is_there() {
        let measures = measures();
        for measure in &measures {
            let plan = format!("plans/{}.toml", measure.plan);
            assert!(crate::run::root().join(plan).is_file(), "{}", measure.plan);
        }
        let mut names: Vec<&str> = measures.iter().map(|measure| measure.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), measures.len());
    }

    #[test]
    fn a_course_is_looked_at_between_two_times_and_demand_beyond_the_capacity_is_no_room() {
        let step =
            |at: f64, good: f64| json!({"t_ms": at, "goodput_rps": good, "offered_rps": 40.0});
        let series = [step(0.0, 1.0), step(1.0, 8.0), step(2.0, 6.0), step(3.0, 1.0)];
        let run = json!({"capacity_rps": 10.0, "series": series});
        assert_eq!(between(&run, US_10, 5.0, 15.0), 0.7);
    }
}
