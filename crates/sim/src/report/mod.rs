//! What a run is reported as: one JSON object per line, or a table for people.

mod json;
mod print;

use toml::Value;

use tidegate_core::Workflow;

use crate::measure::{ATTEMPTS, Fact, FlowMeasure, FlowRow, Measure, Row, Success, ratio};
use crate::plan::{Plan, Point};
use crate::topology::ServiceSpec;
use crate::world::Scenario;
use json::json;

pub(crate) use json::{Object, quoted};
pub use print::{csv, series_csv, table};

/// The measures of one run. The names of its JSON fields are stable.
#[derive(Clone, Debug)]
pub struct Report {
    /// The plan's name.
    pub plan: String,
    /// The policy's name.
    pub policy: String,
    /// The swept values.
    pub point: Vec<(String, Value)>,
    /// The run's seed.
    pub seed: u64,
    /// Requests simulated in all, warm-up included.
    pub requests: u64,
    /// Measured time in seconds.
    pub duration_s: f64,
    /// Requests per second that could be answered.
    pub capacity_rps: f64,
    /// Requests per second that were offered.
    pub offered_rps: f64,
    /// Requests per second answered within the SLO, from the moment of submission.
    pub goodput_rps: f64,
    /// Requests per second answered.
    pub throughput_rps: f64,
    /// Mean latency of answers.
    pub mean_us: f64,
    /// Median latency of answers.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Refused by the server ÷ arrived there.
    pub drop_rate: f64,
    /// Rejected by the caller ÷ offered.
    pub local_reject_rate: f64,
    /// Deadline passed ÷ offered.
    pub expired_rate: f64,
    /// Broken ÷ offered.
    pub failed_rate: f64,
    /// Mean time until the application learned of a server's refusal.
    pub reject_delay_us: f64,
    /// Messages received by the server ÷ requests that arrived there.
    pub rx_per_request: f64,
    /// Messages sent by the server ÷ requests that arrived there.
    pub tx_per_request: f64,
    /// Answered within the SLO ÷ offered, by quarters of the offered requests sorted by rank.
    pub success_by_quarter: [f64; 4],
    /// Jain's index of the callers' goodput.
    pub jain_callers: f64,
    /// Core time used ÷ core time there was, of the fullest service.
    pub utilization: f64,
    /// Core time spent on requests that ended without an answer, because a call they made failed,
    /// ÷ on all, at the entry.
    pub wasted: f64,
    /// Mean core time that the entry spent on a request it answered, without messages: what was drawn, where
    /// service times are random. Zero if it is not known.
    pub work_us: f64,
    /// Requests that arrived at the entry per thousand first attempts, by number of the attempt.
    pub attempts: [f64; ATTEMPTS],
    /// Answered within the SLO ÷ offered, by workflow, if there are several.
    pub workflows: Vec<(String, f64)>,
    /// More about each workflow, if there are tenants or deadlines by workflow.
    pub flows: Vec<FlowReport>,
    /// Latency ÷ deadline of answers and failures: mean, 95th and 99th percentile; if there are deadlines by
    /// workflow.
    pub lnd: Option<[f64; 3]>,
    /// Rates announced by the gates of each service for each workflow, summed, over time; if asked for.
    pub rates: Vec<RateSeries>,
    /// The services, if there are several.
    pub services: Vec<ServiceReport>,
    /// Answered within the SLO ÷ offered, of the callers that obey and of those that ignore
    /// control, if there are both.
    pub obeying: Option<(f64, f64)>,
    /// The size that the yardstick found best.
    pub window: Option<u32>,
    /// Over time, if asked for.
    pub series: Option<Vec<Row>>,
}

/// One of several workflows.
#[derive(Clone, Debug)]
pub struct FlowReport {
    /// Its name.
    pub name: String,
    /// Submitted per second.
    pub offered_rps: f64,
    /// Answered per second.
    pub answered_rps: f64,
    /// Answered in time per second: by the deadline, else within the SLO.
    pub in_time_rps: f64,
    /// Refused, rejected or expired ÷ offered.
    pub turned_away: f64,
    /// Timed out or broken ÷ offered.
    pub failed: f64,
    /// Mean latency of answers.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Answers per second and their median latency in milliseconds, step by step.
    pub rows: Vec<(f64, f64)>,
}

/// Rates that the gates of a service announce for a workflow, summed over them.
#[derive(Clone, Debug)]
pub struct RateSeries {
    /// The service's name.
    pub service: String,
    /// The workflow's name.
    pub workflow: String,
    /// Number of the step, and requests per second.
    pub steps: Vec<(u64, f64)>,
}

impl FlowReport {
    fn all(point: &Point, measure: &Measure, step: f64) -> Vec<Self> {
        let seconds = measure.to.since(measure.from).as_secs_f64();
        let whole = (measure.to.as_nanos() as f64 / 1e9 / step) as usize;
        let report = |(n, flow): (usize, &FlowMeasure)| {
            let millis = |q| flow.latency.quantile(q).as_millis_f64();
            let of_offered = |count: u64| ratio(count as f64, flow.offered as f64);
            let row = |row: &FlowRow| {
                (row.answered as f64 / step, row.latency.quantile(0.5).as_millis_f64())
            };
            Self {
                name: point.workflows.get(n).cloned().unwrap_or_default(),
                offered_rps: flow.offered as f64 / seconds,
                answered_rps: flow.answered as f64 / seconds,
                in_time_rps: flow.in_time as f64 / seconds,
                turned_away: of_offered(flow.turned_away),
                failed: of_offered(flow.failed),
                mean_ms: flow.latency.mean() / 1e6,
                p50_ms: millis(0.5),
                p99_ms: millis(0.99),
                rows: flow.rows.iter().take(whole).map(row).collect(),
            }
        };
        let used = measure.flows.iter().enumerate().filter(|(_, flow)| flow.offered > 0);
        used.map(report).collect()
    }

    fn means(&mut self) -> [&mut f64; 8] {
        [
            &mut self.offered_rps,
            &mut self.answered_rps,
            &mut self.in_time_rps,
            &mut self.turned_away,
            &mut self.failed,
            &mut self.mean_ms,
            &mut self.p50_ms,
            &mut self.p99_ms,
        ]
    }

    fn to_json(&self) -> String {
        let mut out = Object::new();
        for (name, value) in [
            ("offered_rps", self.offered_rps),
            ("answered_rps", self.answered_rps),
            ("in_time_rps", self.in_time_rps),
            ("turned_away", self.turned_away),
            ("failed", self.failed),
            ("mean_ms", self.mean_ms),
            ("p50_ms", self.p50_ms),
            ("p99_ms", self.p99_ms),
        ] {
            out.number(name, value, 4);
        }
        out.end()
    }
}

impl RateSeries {
    fn all(point: &Point, measure: &Measure) -> Vec<Self> {
        let mut all = Vec::new();
        for (n, service) in point.scenario.topology.services.iter().enumerate() {
            for (number, workflow) in (0..).map(Workflow).zip(&point.workflows) {
                let steps = measure.rates(n, number);
                if !steps.is_empty() {
                    let (service, workflow) = (service.name.clone(), workflow.clone());
                    all.push(Self { service, workflow, steps });
                }
            }
        }
        all
    }
}

/// One of several services.
#[derive(Clone, Debug)]
pub struct ServiceReport {
    /// Its name.
    pub name: String,
    /// Core time used ÷ core time there was.
    pub utilization: f64,
    /// Requests that arrived per second.
    pub arrived_rps: f64,
    /// Refused ÷ arrived.
    pub drop_rate: f64,
    /// Core time spent on requests that ended without an answer ÷ on all.
    pub wasted: f64,
}

impl ServiceReport {
    fn all(scenario: &Scenario, measure: &Measure) -> Vec<Self> {
        let seconds = measure.to.since(measure.from).as_secs_f64();
        let report = |(n, spec): (usize, &ServiceSpec)| {
            let service = &measure.services[n];
            Self {
                name: spec.name.clone(),
                utilization: measure.utilization(n, spec.replicas * spec.cores),
                arrived_rps: service.window.get(Fact::Arrived) as f64 / seconds,
                drop_rate: service.window.ratio(Fact::Dropped, Fact::Arrived),
                wasted: service.wasted(),
            }
        };
        scenario.topology.services.iter().enumerate().map(report).collect()
    }

    fn means(&mut self) -> [&mut f64; 4] {
        [&mut self.utilization, &mut self.arrived_rps, &mut self.drop_rate, &mut self.wasted]
    }
}

impl Report {
    pub(crate) fn new(plan: &Plan, point: &Point, seed: u64, measure: Measure) -> Self {
        let scenario = &point.scenario;
        let services = ServiceReport::all(scenario, &measure);
        let success = |(n, workflow): (usize, &Success)| {
            (point.workflows.get(n).cloned().unwrap_or_default(), workflow.rate())
        };
        let workflows = measure.workflows().iter().enumerate().filter(|(_, w)| w.offered > 0);
        let workflows: Vec<_> = workflows.map(success).collect();
        let (ignoring, callers) = (scenario.ignoring_callers() as usize, scenario.callers as usize);
        let obeying = (1..callers).contains(&ignoring).then(|| {
            (measure.success_of(ignoring..callers).rate(), measure.success_of(0..ignoring).rate())
        });
        let seconds = measure.to.since(measure.from).as_secs_f64();
        let step = scenario.series.map_or(1.0, |step| step.as_secs_f64());
        let by_workflow = !scenario.tenants.is_empty() || !scenario.workload.deadline_of.is_empty();
        let flows = if by_workflow { FlowReport::all(point, &measure, step) } else { Vec::new() };
        let lnd = |q| measure.lnd.quantile(q).as_secs_f64();
        let lnd = (by_workflow && !measure.lnd.is_empty())
            .then(|| [measure.lnd.mean() / 1e9, lnd(0.95), lnd(0.99)]);
        let rates = RateSeries::all(point, &measure);
        let (window, latency) = (measure.window, &measure.latency);
        let rate = |fact| window.get(fact) as f64 / seconds;
        let micros = |q| latency.quantile(q).as_micros_f64();
        Self {
            plan: plan.name.clone(),
            policy: point.policy.clone(),
            point: point.values.iter().filter(|(path, _)| path != "policy").cloned().collect(),
            seed,
            requests: measure.total.get(Fact::Offered),
            duration_s: seconds,
            capacity_rps: point.scenario.capacity(),
            offered_rps: rate(Fact::Offered),
            goodput_rps: rate(Fact::Good),
            throughput_rps: rate(Fact::Answered),
            mean_us: latency.mean() / 1e3,
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            p999_us: micros(0.999),
            drop_rate: window.ratio(Fact::Dropped, Fact::Arrived),
            local_reject_rate: window.ratio(Fact::Rejected, Fact::Offered),
            expired_rate: window.ratio(Fact::Expired, Fact::Offered),
            failed_rate: window.ratio(Fact::Failed, Fact::Offered),
            reject_delay_us: measure.reject_delay().as_micros_f64(),
            rx_per_request: window.ratio(Fact::Received, Fact::Arrived),
            tx_per_request: window.ratio(Fact::Sent, Fact::Arrived),
            success_by_quarter: measure.success_by_quarter(),
            jain_callers: measure.jain(),
            utilization: services.iter().map(|service| service.utilization).fold(0.0, f64::max),
            wasted: services[scenario.topology.entry].wasted,
            work_us: measure.services[scenario.topology.entry].work().as_micros_f64(),
            attempts: measure.services[scenario.topology.entry].attempts(),
            workflows: if workflows.len() > 1 { workflows } else { Vec::new() },
            flows,
            lnd,
            rates,
            services: if services.len() > 1 { services } else { Vec::new() },
            obeying,
            window: scenario.window,
            series: measure.series(),
        }
    }

    /// One JSON object, without a line break.
    pub fn to_json(&self) -> String {
        let mut out = Object::new();
        out.text("plan", &self.plan);
        out.text("policy", &self.policy);
        let mut point = Object::new();
        for (path, value) in &self.point {
            point.raw(path, &json(value));
        }
        out.raw("point", &point.end());
        out.raw("seed", &self.seed.to_string());
        out.raw("requests", &self.requests.to_string());
        for (name, value, digits) in self.numbers() {
            out.number(name, value, digits);
        }
        out.numbers("success_by_quarter", &self.success_by_quarter, 5);
        // Without retries there is nothing to tell.
        if self.attempts[1] > 0.0 {
            out.numbers("attempts", &self.attempts, 1);
        }
        if !self.workflows.is_empty() {
            let mut workflows = Object::new();
            for (name, success) in &self.workflows {
                workflows.number(name, *success, 5);
            }
            out.raw("success_by_workflow", &workflows.end());
        }
        if !self.flows.is_empty() {
            let mut flows = Object::new();
            for flow in &self.flows {
                flows.raw(&flow.name, &flow.to_json());
            }
            out.raw("flows", &flows.end());
        }
        if let Some(lnd) = &self.lnd {
            out.numbers("lnd", lnd, 4);
        }
        if !self.services.is_empty() {
            let mut services = Object::new();
            for service in &self.services {
                services.raw(&service.name, &service_json(service));
            }
            out.raw("services", &services.end());
        }
        if let Some((obeying, ignoring)) = self.obeying {
            out.number("success_obeying", obeying, 5);
            out.number("success_ignoring", ignoring, 5);
        }
        if let Some(window) = self.window {
            out.raw("window", &window.to_string());
        }
        if let Some(series) = &self.series {
            let rows: Vec<String> = series.iter().map(row_json).collect();
            out.raw("series", &format!("[{}]", rows.join(",")));
        }
        out.end()
    }

    /// Everything that has a mean over several seeds.
    fn means(&mut self) -> Vec<&mut f64> {
        let mut means = vec![
            &mut self.offered_rps,
            &mut self.goodput_rps,
            &mut self.throughput_rps,
            &mut self.mean_us,
            &mut self.p50_us,
            &mut self.p99_us,
            &mut self.p999_us,
            &mut self.drop_rate,
            &mut self.local_reject_rate,
            &mut self.expired_rate,
            &mut self.failed_rate,
            &mut self.reject_delay_us,
            &mut self.rx_per_request,
            &mut self.tx_per_request,
            &mut self.jain_callers,
            &mut self.utilization,
            &mut self.wasted,
            &mut self.work_us,
            &mut self.duration_s,
        ];
        means.extend(&mut self.success_by_quarter);
        means.extend(&mut self.attempts);
        means.extend(self.lnd.iter_mut().flatten());
        means.extend(self.workflows.iter_mut().map(|(_, success)| success));
        means.extend(self.flows.iter_mut().flat_map(FlowReport::means));
        means.extend(self.services.iter_mut().flat_map(ServiceReport::means));
        means.extend(self.obeying.iter_mut().flat_map(|(obeying, ignoring)| [obeying, ignoring]));
        means
    }

    /// Leaves out what has no mean over `runs`: the yardstick's window, what is told of each step but in the
    /// series, and what chance has left out of one of them, such as a rare workflow.
    fn keep_what_has_a_mean(&mut self, runs: &[Self]) {
        let all = |same: &dyn Fn(&Self) -> bool| runs.iter().all(same);
        if !all(&|run| run.lnd.is_some()) {
            self.lnd = None;
        }
        let names = |run: &Self| Vec::from_iter(run.workflows.iter().map(|(name, _)| name.clone()));
        if !all(&|run| names(run) == names(self)) {
            self.workflows.clear();
        }
        let names = |run: &Self| Vec::from_iter(run.flows.iter().map(|flow| flow.name.clone()));
        if !all(&|run| names(run) == names(self)) {
            self.flows.clear();
        }
        for flow in &mut self.flows {
            flow.rows.clear();
        }
        self.rates.clear();
        self.window = None;
    }

    /// All plain numbers: name, value, digits after the point.
    pub fn numbers(&self) -> [(&'static str, f64, usize); 21] {
        [
            ("duration_s", self.duration_s, 6),
            ("capacity_rps", self.capacity_rps, 1),
            ("offered_rps", self.offered_rps, 1),
            ("goodput_rps", self.goodput_rps, 1),
            ("throughput_rps", self.throughput_rps, 1),
            ("mean_us", self.mean_us, 3),
            ("p50_us", self.p50_us, 3),
            ("p99_us", self.p99_us, 3),
            ("p999_us", self.p999_us, 3),
            ("drop_rate", self.drop_rate, 6),
            ("local_reject_rate", self.local_reject_rate, 6),
            ("expired_rate", self.expired_rate, 6),
            ("failed_rate", self.failed_rate, 6),
            ("reject_delay_us", self.reject_delay_us, 3),
            ("rx_per_request", self.rx_per_request, 5),
            ("tx_per_request", self.tx_per_request, 5),
            ("jain_callers", self.jain_callers, 5),
            ("utilization", self.utilization, 5),
            ("wasted", self.wasted, 5),
            ("work_us", self.work_us, 3),
            ("goodput_share", ratio(self.goodput_rps, self.capacity_rps), 5),
        ]
    }
}

/// One report for the runs of each point that follow each other: the mean over their seeds, step by
/// step for a series. Counts of requests are summed; what has no mean is left out.
pub fn mean_over_seeds(reports: &[Report]) -> Vec<Report> {
    let same = |a: &Report, b: &Report| a.policy == b.policy && a.point == b.point;
    reports.chunk_by(same).map(mean).collect()
}

fn mean(reports: &[Report]) -> Report {
    let mut mean = reports[0].clone();
    if reports.len() == 1 {
        return mean;
    }
    mean.keep_what_has_a_mean(reports);
    let count = reports.len() as f64;
    for other in &reports[1..] {
        let mut other = other.clone();
        other.keep_what_has_a_mean(reports);
        mean.requests += other.requests;
        for (sum, value) in mean.means().into_iter().zip(other.means()) {
            *sum += *value;
        }
        let rows = mean.series.iter_mut().flatten().zip(other.series.iter().flatten());
        for (sum, row) in rows {
            sum.offered += row.offered;
            sum.good += row.good;
            sum.p99 += row.p99;
        }
    }
    for sum in mean.means() {
        *sum /= count;
    }
    for row in mean.series.iter_mut().flatten() {
        row.offered = (row.offered as f64 / count).round() as u64;
        row.good = (row.good as f64 / count).round() as u64;
        row.p99 = row.p99.scale(1.0 / count);
    }
    mean
}

fn service_json(service: &ServiceReport) -> String {
    let mut out = Object::new();
    out.number("utilization", service.utilization, 5);
    out.number("arrived_rps", service.arrived_rps, 1);
    out.number("drop_rate", service.drop_rate, 6);
    out.number("wasted", service.wasted, 5);
    out.end()
}

fn row_json(row: &Row) -> String {
    let mut out = Object::new();
    for (name, value) in row_numbers(row) {
        out.raw(name, &value);
    }
    out.end()
}

fn row_numbers(row: &Row) -> [(&'static str, String); 4] {
    let seconds = row.step.as_secs_f64();
    let rate = |count: u64| format!("{:.1}", count as f64 / seconds);
    [
        ("t_ms", format!("{:.3}", row.at.as_nanos() as f64 / 1e6)),
        ("offered_rps", rate(row.offered)),
        ("goodput_rps", rate(row.good)),
        ("p99_us", format!("{:.3}", row.p99.as_micros_f64())),
    ]
}
