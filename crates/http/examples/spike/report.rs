//! What came back, and a line of the table.

use std::time::{Duration, Instant};

use http::StatusCode;

use crate::{SLO, Setup};

/// One request's end.
pub(crate) struct Answer {
    /// When it should have been sent; latency counts from here.
    pub(crate) due: Instant,
    /// None if it got no answer.
    pub(crate) status: Option<StatusCode>,
    pub(crate) latency: Duration,
    /// From its sending to the start of its handler.
    pub(crate) delay: Duration,
    /// Of the most important quarter.
    pub(crate) top: bool,
    /// Whether it left its caller.
    pub(crate) sent: bool,
}

/// What was measured in one run.
pub(crate) struct Row {
    answers: Vec<Answer>,
    seconds: f64,
    /// Requests per second that the server could serve.
    capacity: f64,
}

impl Row {
    /// Open loop: the answers to what was due while it counted, whenever they came.
    pub(crate) fn due(answers: Vec<Answer>, begin: Instant, seconds: Duration) -> Self {
        Self::new(answers, begin, seconds, |answer| answer.due)
    }

    /// Closed loop: the answers that came while it counted, whenever their requests were sent.
    pub(crate) fn ended(answers: Vec<Answer>, begin: Instant, seconds: Duration) -> Self {
        Self::new(answers, begin, seconds, |answer| answer.due + answer.latency)
    }

    fn new(
        mut answers: Vec<Answer>,
        begin: Instant,
        seconds: Duration,
        moment: impl Fn(&Answer) -> Instant,
    ) -> Self {
        answers.retain(|answer| (begin..begin + seconds).contains(&moment(answer)));
        Self { answers, seconds: seconds.as_secs_f64(), capacity: f64::NAN }
    }

    pub(crate) fn against(self, capacity: f64) -> Self {
        Self { capacity, ..self }
    }

    /// Requests served per second, however late.
    pub(crate) fn per_second(&self) -> f64 {
        self.served().count() as f64 / self.seconds
    }

    fn served(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().filter(|answer| answer.status == Some(StatusCode::OK))
    }

    fn offered(&self) -> f64 {
        self.answers.len() as f64 / self.seconds
    }

    /// Requests per second that left their callers.
    fn sent(&self) -> f64 {
        self.answers.iter().filter(|each| each.sent).count() as f64 / self.seconds
    }

    /// Requests per second that got this answer, or none.
    fn answered(&self, status: Option<StatusCode>) -> f64 {
        self.answers.iter().filter(|each| each.status == status).count() as f64 / self.seconds
    }

    /// Answered within the objective, as a share of the capacity.
    fn goodput(&self) -> f64 {
        let good = self.served().filter(|answer| answer.latency <= SLO).count() as f64;
        good / self.seconds / self.capacity
    }

    /// Answered within the objective, as a share of the most important quarter.
    fn top(&self) -> f64 {
        let top = || self.answers.iter().filter(|answer| answer.top);
        let good =
            |answer: &&Answer| answer.status == Some(StatusCode::OK) && answer.latency <= SLO;
        top().filter(good).count() as f64 / top().count().max(1) as f64
    }

    /// p99 of what was served, in milliseconds.
    fn p99(&self, of: impl Fn(&Answer) -> Duration) -> f64 {
        let mut values: Vec<Duration> = self.served().map(of).collect();
        values.sort_unstable();
        let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
        values[(last as f64 * 0.99).round() as usize].as_secs_f64() * 1e3
    }
}

/// The column names.
pub(crate) fn heading() {
    println!(
        "| way | runtime | protocol | event interval | extra slots | capacity /s | offered /s \
         | sent /s | refused /s | lost /s | goodput ÷ capacity (range) | top quarter | p99 ms | p99 to handler ms | load average |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
}

/// One line: medians over the rounds.
pub(crate) fn print(setup: &Setup, rows: &[Row]) {
    let median = |of: &dyn Fn(&Row) -> f64| sorted(rows, of)[rows.len() / 2];
    let goodput = sorted(rows, Row::goodput);
    let Setup { way, runtime, protocol, event_interval, extra_slots, .. } = setup;
    println!(
        "| {way} | {runtime} | {protocol} | {event_interval} | {extra_slots} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} \
         | {:.3} ({:.3}–{:.3}) | {:.3} | {:.1} | {:.1} | {} |",
        median(&|row| row.capacity),
        median(&Row::offered),
        median(&Row::sent),
        median(&|row| row.answered(Some(StatusCode::SERVICE_UNAVAILABLE))),
        median(&|row| row.answered(None)),
        goodput[rows.len() / 2],
        goodput[0],
        goodput[rows.len() - 1],
        median(&Row::top),
        median(&|row| row.p99(|answer| answer.latency)),
        median(&|row| row.p99(|answer| answer.delay)),
        load_average(),
    );
}

fn sorted(rows: &[Row], of: impl Fn(&Row) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = rows.iter().map(of).collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// Of the machine, over the last minute: how much others disturb.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
