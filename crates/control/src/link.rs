//! A node's link to the daemon: reports out, grants in. No request ever waits for it.
//!
//! 1. Every twentieth of a second the leased limits of a gate are asked for reports that are due. All of them travel
//!    in one `POST /v1/lease`, over one connection that is kept.
//! 2. One message is under way at a time; the next one has what became due meanwhile. An answer that does
//!    not come within [`PATIENCE`] is given up with its connection: a late one would be void anyway, since a holder takes
//!    only the answer to its newest report.
//! 3. After a failure the node waits, twice as long after each, up to [`LONGEST_WAIT`], and a random part
//!    of that less, so that a fleet does not come back in one moment.
//! 4. Meanwhile holders do what they were told for that: keep their leases to the end, then `on_loss`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderName, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tidegate_core::Instant;
use tidegate_core::context::Workflow;
use tidegate_core::limit::{Each, LeaseKey, Leased};
use tidegate_core::share::Report;
use tidegate_core::share::wire::{
    Answer, LONGEST_KEY, LONGEST_MESSAGE, MOST_ENTRIES, Subject, read_answers, write_reports,
};
use tidegate_driver::{random_seed, values};
use tokio::net::TcpStream;

/// What a node calls itself.
pub const NODE_HEADER: HeaderName = HeaderName::from_static("x-tidegate-node");
/// Time between two looks at what is due.
const TICK: Duration = Duration::from_millis(50);
/// Longest time that an answer may take.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Longest time between two attempts to reach the daemon.
pub const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The leased limits of a process, wherever they are.
pub trait Holders: Send + Sync + 'static {
    /// Shows each of them, with the present moment.
    fn each(&self, look: &mut dyn FnMut(&mut Leased, Instant));
    /// Requests hold places that are no longer this process's: those that are
    /// [overdue](tidegate_core::Gate::is_overdue) have to be aborted. Only for limits that are about places.
    fn overdue(&self) {}
    /// The key that stands for a workflow; empty for none.
    fn name(&self, workflow: Workflow) -> String;
}

/// How the link is, for those who look.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Whether the last message was answered.
    pub connected: bool,
    /// Messages answered, and those that were not.
    pub answered: u64,
    /// See `answered`.
    pub failed: u64,
    /// Why the last one was not.
    pub problem: Option<String>,
}

/// Keeps a process's leased limits informed. Clones are the same link.
#[derive(Clone)]
pub struct Link {
    holders: Arc<dyn Holders>,
    /// What the process is called where the configuration says nothing.
    node: String,
    identity: u64,
    health: Arc<Mutex<Health>>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Where a message goes, and with what.
#[derive(Clone, Debug, Default, PartialEq)]
struct Target {
    address: String,
    token_file: Option<String>,
    node: String,
}

impl Link {
    /// A link that does nothing before it [runs](Self::run). `node` is what the process is called unless
    /// its configuration says something else.
    pub fn new(holders: Arc<dyn Holders>, node: String) -> Self {
        Self { holders, node, identity: random_seed(), health: Arc::default() }
    }

    /// How it is.
    pub fn health(&self) -> Health {
        self.lock().clone()
    }

    /// Carries reports and answers for ever. `tell` gets a line when the daemon is lost, and when it is back.
    pub async fn run(self, tell: impl Fn(&str)) {
        let mut line = Line::default();
        let mut failures = 0u32;
        let mut rng = tidegate_core::rng::Rng::new(self.identity);
        loop {
            tokio::time::sleep(TICK).await;
            let (target, reports) = self.collect();
            if reports.is_empty() {
                continue;
            }
            match line.exchange(&target, &reports).await {
                Ok(answers) => {
                    self.take(&reports, &answers);
                    failures = 0;
                    if self.succeeded() {
                        tell(&format!("control at {} answers: shares are leased", target.address));
                    }
                }
                Err(problem) => {
                    line = Line::default();
                    if self.failed(&problem) {
                        tell(&format!(
                            "control at {} does not answer: {problem}; leases are kept to their end, \
                             then safe shares",
                            target.address
                        ));
                    }
                    tokio::time::sleep(wait(failures, rng.unit())).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Has requests aborted whose leases are over, for ever: whether or not the daemon answers.
    pub async fn watch(self) {
        loop {
            tokio::time::sleep(TICK).await;
            let mut is_any = false;
            self.holders.each(&mut |leased, now| is_any |= leased.is_overdue(now));
            if is_any {
                self.holders.overdue();
            }
        }
    }

    /// Says whether that is news.
    fn succeeded(&self) -> bool {
        let mut health = self.lock();
        health.answered += 1;
        health.problem = None;
        !std::mem::replace(&mut health.connected, true)
    }

    /// Says whether that is news.
    fn failed(&self, problem: &str) -> bool {
        let mut health = self.lock();
        health.failed += 1;
        health.connected = false;
        health.problem.replace(problem.to_owned()).as_deref() != Some(problem)
    }

    /// Uses nothing more of any agreement, and says so once if the daemon answers: the process ends.
    pub async fn leave(&self) {
        let mut target = Target::default();
        let mut reports = Vec::new();
        self.holders.each(&mut |leased, now| {
            target = self.target(leased);
            let agreement = leased.config().agreement.clone();
            let each = leased.config().each;
            let left = leased.leave(now).into_iter();
            let about = |(key, report)| self.about(&agreement, (each, key), report);
            reports.extend(left.filter_map(about));
        });
        if !reports.is_empty() {
            // Whoever does not hear of it knows a term later.
            let _ = Line::default().exchange(&target, &reports).await;
        }
    }

    /// What is due, and where it goes.
    fn collect(&self) -> (Target, Vec<(Subject, Report)>) {
        let mut target = Target::default();
        let mut reports = Vec::new();
        let mut due = Vec::new();
        self.holders.each(&mut |leased, now| {
            target = self.target(leased);
            leased.identify(self.identity);
            let each = leased.config().each;
            values::want(matches!(each, Each::Header | Each::Descriptor), each == Each::User);
            leased.poll(now, &mut due);
            let agreement = leased.config().agreement.clone();
            let about = |(key, report)| self.about(&agreement, (each, key), report);
            reports.extend(due.drain(..).filter_map(about));
        });
        // More is due again a period later.
        reports.truncate(MOST_ENTRIES);
        (target, reports)
    }

    fn target(&self, leased: &Leased) -> Target {
        let config = leased.config();
        let address = config.control.trim_start_matches("http://").to_owned();
        let node = config.node.clone().unwrap_or_else(|| self.node.clone());
        Target { address, token_file: config.token_file.clone(), node }
    }

    fn about(
        &self,
        agreement: &str,
        (each, key): (Each, LeaseKey),
        report: Report,
    ) -> Option<(Subject, Report)> {
        let key = self.name(each, key)?;
        let agreement = agreement.to_owned();
        (key.len() <= LONGEST_KEY).then_some((Subject { agreement, key }, report))
    }

    fn name(&self, each: Each, key: LeaseKey) -> Option<String> {
        key_name(|workflow| self.holders.name(workflow), each, key)
    }

    /// Tells each limit what it was answered.
    fn take(&self, reports: &[(Subject, Report)], answers: &[(Subject, Answer)]) {
        self.holders.each(&mut |leased, now| {
            let agreement = leased.config().agreement.clone();
            let each = leased.config().each;
            let name = |key| Some((self.name(each, key)?, key));
            let keys: BTreeMap<String, LeaseKey> = leased.keys().filter_map(name).collect();
            // It answers what it was asked, and no more.
            for (subject, answer) in answers.iter().take(reports.len()) {
                let own = subject.agreement == agreement;
                if let Some(key) = keys.get(&subject.key).filter(|_| own) {
                    leased.on_answer(now, *key, answer);
                }
            }
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a key is called at the daemon; empty for that of requests without one, none while it is not known.
pub fn key_name(
    workflow: impl Fn(Workflow) -> String,
    each: Each,
    key: LeaseKey,
) -> Option<String> {
    if key == LeaseKey::NONE {
        return Some(String::new());
    }
    let value = || if key.value == 0 { Some(String::new()) } else { values::text(key.value) };
    match each {
        Each::User | Each::Header => value(),
        Each::Descriptor => Some(format!("{}/{}", workflow(key.workflow), value()?)),
        _ => Some(workflow(key.workflow)),
    }
}

/// How long to wait after so many failures before this one; `luck` is from 0 to 1.
fn wait(failures: u32, luck: f64) -> Duration {
    let most = (TICK * 2).saturating_mul(1 << failures.min(10)).min(LONGEST_WAIT);
    most.mul_f64(0.5 + 0.5 * luck)
}

/// A connection to the daemon, made when it is needed.
#[derive(Default)]
struct Line {
    open: Option<(Target, SendRequest<Full<Bytes>>)>,
}

impl Line {
    /// One message and its answer.
    async fn exchange(
        &mut self,
        target: &Target,
        reports: &[(Subject, Report)],
    ) -> Result<Vec<(Subject, Answer)>, String> {
        let asked = tokio::time::timeout(PATIENCE, self.ask(target, write_reports(reports)));
        let (status, body) = asked.await.map_err(|_| format!("no answer in {PATIENCE:?}"))??;
        if status != StatusCode::OK {
            let text = String::from_utf8_lossy(&body);
            return Err(format!("it says {status}: {}", text.trim()));
        }
        read_answers(&body).map_err(|error| error.to_string())
    }

    async fn ask(&mut self, target: &Target, body: Vec<u8>) -> Result<(StatusCode, Bytes), String> {
        let told = |error: hyper::Error| error.to_string();
        let same = self.open.as_ref().is_some_and(|(to, send)| to == target && !send.is_closed());
        if !same {
            self.open = None;
            let stream =
                TcpStream::connect(&target.address).await.map_err(|error| error.to_string())?;
            let _ = stream.set_nodelay(true);
            let (send, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(told)?;
            // It ends when its sender does.
            tokio::spawn(connection);
            self.open = Some((target.clone(), send));
        }
        let (_, send) = self.open.as_mut().expect("it was opened above");
        let mut request = Request::post("/v1/lease")
            .header(HOST, &target.address)
            .header(NODE_HEADER, &target.node);
        if let Some(path) = &target.token_file {
            // Read each time: it is a few bytes, and may change.
            let token = std::fs::read_to_string(path)
                .map_err(|error| format!("cannot read the token in {path}: {error}"))?;
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        let request = request.body(Full::new(body.into())).map_err(|error| error.to_string())?;
        send.ready().await.map_err(told)?;
        let answer = send.send_request(request).await.map_err(told)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LONGEST_MESSAGE).collect().await;
        Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_are_spread() {
        assert_eq!(wait(0, 1.0), Duration::from_millis(100));
        assert_eq!(wait(2, 0.0), Duration::from_millis(200));
        assert_eq!(wait(u32::MAX, 1.0), LONGEST_WAIT);
        assert!(wait(9, 0.2) < wait(9, 0.7));
    }
}
