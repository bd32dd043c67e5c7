//! What is written of requests: the access log, for people and their tools, and the record, for the simulator.
//!
//! A request that is written has a [`Line`] from the moment its rank is known to the last byte of its answer. The line then goes by a
//! bounded channel to a thread that turns it into text and writes it ([`writer`]), so that no request waits for a disk: what finds the
//! channel full is lost and counted. Whether a request is written is decided when it comes, so that the rate has a bound
//! however many there are.

mod template;
mod writer;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, atomic};
use std::time::Instant as Moment;

use http::{Method, Request, StatusCode};
use tidegate_core::limit::Limit;
use tidegate_core::{Context, Instant, Rejection};
use tidegate_driver::AtomicBucket;
use tidegate_http::wire::Names;

use crate::config::{AccessLogConfig, ProxyConfig};
use crate::log::Log;
use writer::{Style, Writer};

pub(crate) use template::template;

/// Where lines go: the access log, the record, both or neither. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journals {
    access: Option<Arc<Journal>>,
    record: Option<Arc<Journal>>,
}

struct Journal {
    writer: Writer,
    /// Lines that may be begun; none for all.
    pace: Option<AtomicBucket>,
    /// Requests so far, of which every so many-th is written.
    seen: atomic::AtomicU64,
    sample: f64,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

/// Names of workflows, and of rules.
pub(crate) type Told = (Names, Names);

impl Journals {
    /// Opens the files that `config` names. An error says which cannot be.
    pub(crate) fn open(
        config: &ProxyConfig,
        told: &Told,
        log: Log,
        now: Instant,
    ) -> Result<Self, String> {
        let AccessLogConfig { file, sample, per_second, most_bytes, users } = &config.access_log;
        let journal = |file: &str, style, pace, sample| {
            let writer = Writer::open(file, style, told, log)?;
            Ok::<_, String>(Arc::new(Journal {
                writer,
                pace,
                seen: atomic::AtomicU64::new(0),
                sample,
            }))
        };
        let pace = || {
            let rate = f64::from(*per_second);
            (*per_second > 0).then(|| AtomicBucket::full(now, Limit::new(rate, rate)))
        };
        let style = Style::Access { most_bytes: *most_bytes, users: *users };
        let access = file.as_ref().map(|file| journal(file, style, pace(), *sample)).transpose()?;
        let record = config.record_file.as_ref();
        let record = record.map(|file| journal(file, Style::Record, None, 1.0)).transpose()?;
        Ok(Self { access, record })
    }

    /// A line of a request, if it is written anywhere.
    pub(crate) fn begin<B>(
        &self,
        now: Instant,
        request: &Request<B>,
        context: &Context,
    ) -> Option<Box<Line>> {
        let access = self.access.clone().filter(|journal| journal.takes(now));
        let record = self.record.clone();
        if access.is_none() && record.is_none() {
            return None;
        }
        // The path is of use in the access log alone.
        let path = if access.is_some() { template(request.uri().path()) } else { String::new() };
        let trace = request.headers().get("traceparent").and_then(|it| it.to_str().ok());
        let trace = trace.and_then(|it| it.get(3..35)).map(str::to_owned);
        Some(Box::new(Line {
            to: [access, record],
            fate: Fate {
                unix_ms: crate::log::unix_ms(),
                begun: Moment::now(),
                method: request.method().clone(),
                path,
                trace,
                context: *context,
                verdict: Verdict::Left,
                admitted: None,
                answered: None,
                status: None,
            },
        }))
    }

    /// Lines that could not be written.
    pub(crate) fn lost(&self) -> u64 {
        [&self.access, &self.record].into_iter().flatten().map(|it| it.writer.lost()).sum()
    }

    /// Writes what is left.
    pub(crate) fn finish(&self) {
        [&self.access, &self.record].into_iter().flatten().for_each(|it| it.writer.finish());
    }
}

impl Journal {
    /// Whether the next request is written: evenly the share that was asked for, as far as the pace allows.
    fn takes(&self, now: Instant) -> bool {
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) as f64;
        let chosen = ((seen + 1.0) * self.sample).floor() > (seen * self.sample).floor();
        chosen && self.pace.as_ref().is_none_or(|pace| pace.take(now).is_ok())
    }
}

/// What there is to write of a request; written when it is dropped, which is when its answer has ended or its client has left.
#[derive(Debug)]
pub(crate) struct Line {
    to: [Option<Arc<Journal>>; 2],
    fate: Fate,
}

/// What became of a request.
#[derive(Clone, Debug)]
struct Fate {
    unix_ms: u64,
    begun: Moment,
    method: Method,
    path: String,
    trace: Option<String>,
    context: Context,
    verdict: Verdict,
    admitted: Option<Moment>,
    /// When the head of the answer came.
    answered: Option<Moment>,
    status: Option<StatusCode>,
}

/// What the gate said.
#[derive(Clone, Copy, Debug)]
enum Verdict {
    /// The client had left before.
    Left,
    Admit,
    /// It was not asked.
    Pass,
    Refuse(Rejection),
}

impl Line {
    pub(crate) fn passed(&mut self) {
        self.fate.verdict = Verdict::Pass;
        self.fate.admitted = Some(Moment::now());
    }

    pub(crate) fn admitted(&mut self) {
        self.fate.verdict = Verdict::Admit;
        self.fate.admitted = Some(Moment::now());
    }

    pub(crate) fn refused(&mut self, rejection: &Rejection) {
        self.fate.verdict = Verdict::Refuse(*rejection);
    }

    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.fate.answered = Some(Moment::now());
        self.fate.status = Some(status);
    }

    pub(crate) fn failed(&mut self, status: StatusCode) {
        self.fate.status = Some(status);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let [access, record] = std::mem::take(&mut self.to);
        let ended = Moment::now();
        for journal in access.into_iter().chain(record) {
            journal.writer.write(self.fate.clone(), ended);
        }
    }
}

/// Locks, whatever became of who held it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(sample: f64, per_second: u32) -> Journal {
        let file = std::env::temp_dir()
            .join(format!("tidegate-journal-{}-{sample}-{per_second}", std::process::id()));
        let config = AccessLogConfig {
            file: Some(file.display().to_string()),
            sample,
            per_second,
            ..Default::default()
        };
        let config = ProxyConfig { access_log: config, ..Default::default() };
        let journals =
            Journals::open(&config, &Told::default(), Log::None, Instant::ZERO).expect("it opens");
        std::fs::remove_file(file).expect("it is there");
        Arc::into_inner(journals.access.clone().expect("a log")).unwrap_or_else(|| {
            let Journals { access, .. } = journals;
            Arc::into_inner(access.expect("a log")).expect("ours alone")
        })
    }

    #[test]
    fn the_share_is_even_and_the_pace_is_kept() {
        let count = |journal: &Journal, now| (0..1000).filter(|_| journal.takes(now)).count();
        assert_eq!(count(&journal(0.25, 0), Instant::ZERO), 250);
        assert_eq!(count(&journal(1.0, 0), Instant::ZERO), 1000);
        assert_eq!(count(&journal(0.0, 0), Instant::ZERO), 0);
        let paced = journal(1.0, 30);
        assert_eq!(count(&paced, Instant::ZERO), 30);
        let later = Instant::ZERO + tidegate_core::Span::from_secs(9);
        assert_eq!(count(&paced, later), 30, "a second's worth at once");
    }
}
