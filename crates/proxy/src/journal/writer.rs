//! The thread that writes lines, and what they look like.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant as Moment;

use serde_json::{Value, json};
use tidegate_core::Workflow;

use super::{Fate, Told, Verdict, lock};
use crate::admin::refusal;
use crate::log::Log;

/// Lines on their way to the thread: 4,096 of some 300 bytes.
const AHEAD: usize = 4096;
/// Most bytes of a record, which is not cut into files: ten million requests or more.
const LARGEST_RECORD: u64 = 1 << 30;
/// What the record begins with.
const HEADING: &str = "timestamp,workflow,business,user,service\n";

/// What lines look like, and how large a file may become.
#[derive(Clone, Copy, Debug)]
pub(super) enum Style {
    /// An object per line. What is full becomes `FILE.1`, in the place of the one before.
    Access { most_bytes: u64, users: bool },
    /// What the simulator replays.
    Record,
}

pub(super) struct Writer {
    /// None once it has ended.
    lines: Mutex<Option<SyncSender<(Fate, Moment)>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    lost: Arc<AtomicU64>,
}

impl Writer {
    /// Opens `file` to append to it; `-` is stdout.
    pub(super) fn open(file: &str, style: Style, told: &Told, log: Log) -> Result<Self, String> {
        let out =
            Out::open(file, style).map_err(|error| format!("cannot write to {file}: {error}"))?;
        let (lines, receiver) = sync_channel(AHEAD);
        let lost = Arc::new(AtomicU64::new(0));
        let mut scribe = Scribe {
            out,
            style,
            told: told.clone(),
            begun: Moment::now(),
            means: BTreeMap::new(),
            lost: Arc::clone(&lost),
            log,
            is_well: true,
        };
        let thread = thread::Builder::new().name("tidegate-journal".to_owned());
        let thread =
            thread.spawn(move || scribe.run(&receiver)).map_err(|error| error.to_string())?;
        Ok(Self { lines: Mutex::new(Some(lines)), thread: Mutex::new(Some(thread)), lost })
    }

    pub(super) fn write(&self, fate: Fate, ended: Moment) {
        let sent =
            lock(&self.lines).as_ref().is_some_and(|lines| lines.try_send((fate, ended)).is_ok());
        self.lost.fetch_add(u64::from(!sent), Ordering::Relaxed);
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Writes what is on its way, and no more.
    pub(super) fn finish(&self) {
        lock(&self.lines).take();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

/// Where lines go.
struct Out {
    to: Box<dyn Write + Send>,
    /// None for what is no file.
    path: Option<String>,
    bytes: u64,
}

impl Out {
    fn open(path: &str, style: Style) -> io::Result<Self> {
        if path == "-" {
            return Ok(Self { to: Box::new(io::stdout()), path: None, bytes: 0 });
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let data = file.metadata()?;
        let mut to = BufWriter::new(file);
        if matches!(style, Style::Record) && data.len() == 0 {
            to.write_all(HEADING.as_bytes())?;
        }
        // A pipe or a device has no length, and is not to be renamed.
        Ok(Self {
            to: Box::new(to),
            path: data.is_file().then(|| path.to_owned()),
            bytes: data.len(),
        })
    }

    /// Begins another file, if this one is full.
    fn turn(&mut self, most: u64) -> io::Result<()> {
        let Some(path) = self.path.clone().filter(|_| self.bytes >= most) else { return Ok(()) };
        self.to.flush()?;
        fs::rename(&path, format!("{path}.1"))?;
        self.to = Box::new(BufWriter::new(File::create(&path)?));
        self.bytes = 0;
        Ok(())
    }
}

struct Scribe {
    out: Out,
    style: Style,
    told: Told,
    begun: Moment,
    /// Mean service time of each rule in microseconds, for those that were not served.
    means: BTreeMap<u16, f64>,
    lost: Arc<AtomicU64>,
    log: Log,
    is_well: bool,
}

impl Scribe {
    fn run(&mut self, lines: &Receiver<(Fate, Moment)>) {
        loop {
            let next = match lines.try_recv() {
                Err(TryRecvError::Empty) => {
                    // Whoever reads along sees it as soon as nothing more is waiting.
                    self.try_to(|out| out.to.flush());
                    lines.recv().ok()
                }
                other => other.ok(),
            };
            let Some((fate, ended)) = next else {
                return self.try_to(|out| out.to.flush());
            };
            let line = match self.style {
                Style::Access { users, .. } => Some(access(&fate, ended, users, &self.told)),
                Style::Record => self.record(&fate, ended),
            };
            line.iter().for_each(|line| self.write(line));
        }
    }

    fn write(&mut self, line: &str) {
        let style = self.style;
        self.try_to(|out| {
            match style {
                Style::Access { most_bytes, .. } => out.turn(most_bytes)?,
                Style::Record if out.bytes >= LARGEST_RECORD => {
                    return Err(io::Error::other("the record is full"));
                }
                Style::Record => {}
            }
            out.bytes += line.len() as u64;
            out.to.write_all(line.as_bytes())
        });
    }

    /// What fails is told once, until it works again, and what was to be written is counted as lost.
    fn try_to(&mut self, what: impl FnOnce(&mut Out) -> io::Result<()>) {
        let done = what(&mut self.out);
        if let Err(error) = &done {
            self.lost.fetch_add(1, Ordering::Relaxed);
            if self.is_well {
                self.log.line(&format_args!("requests cannot be written down: {error}"));
            }
        }
        self.is_well = done.is_ok();
    }

    /// A line for the simulator; what was not served takes as long as others of its rule do, and is left out before one was served.
    fn record(&mut self, fate: &Fate, ended: Moment) -> Option<String> {
        const GAIN: f64 = 1.0 / 16.0;
        let Fate { context, .. } = fate;
        let from = fate.admitted.filter(|_| fate.status.is_some_and(|it| !it.is_server_error()));
        let served = from.map(|from| (fate.answered.unwrap_or(ended) - from).as_secs_f64() * 1e6);
        if let Some(micros) = served {
            let mean = self.means.entry(context.label).or_insert(micros);
            *mean += (micros - *mean) * GAIN;
        }
        let micros = served.or_else(|| self.means.get(&context.label).copied())?;
        let at = fate.begun.saturating_duration_since(self.begun).as_secs_f64();
        let workflow =
            self.told.0.name(context.workflow).unwrap_or_default().replace([',', '\n', '\r'], "_");
        let (business, user) = (context.rank.business(), context.rank.user());
        Some(format!("{at:.6},{workflow},{business},{user},{micros:.1}\n"))
    }
}

/// A line of the access log.
fn access(fate: &Fate, ended: Moment, users: bool, (workflows, rules): &Told) -> String {
    let millis = |from: Moment, until: Moment| {
        (until.saturating_duration_since(from).as_secs_f64() * 1e6).round() / 1e3
    };
    let rank = fate.context.rank;
    let mut line = json!({
        "unix_ms": fate.unix_ms,
        "method": fate.method.as_str(),
        "path": fate.path,
        "rule": rules.name(Workflow(fate.context.label)),
        "business": rank.business(),
        "workflow": workflows.name(fate.context.workflow),
        "status": fate.status.map(|status| status.as_u16()),
        "trace": fate.trace,
    });
    if users {
        line["user"] = rank.user().into();
    }
    let verdict = match &fate.verdict {
        Verdict::Left => "left",
        Verdict::Admit => "admit",
        Verdict::Pass => "pass",
        Verdict::Refuse(rejection) => {
            let why = refusal(rejection);
            for field in ["reason", "measured", "limit", "unit", "which"] {
                line[field] = why[field].clone();
            }
            line["wait_ms"] = millis(fate.begun, ended).into();
            "refuse"
        }
    };
    line["verdict"] = verdict.into();
    if let Some(admitted) = fate.admitted {
        line["wait_ms"] = millis(fate.begun, admitted).into();
        line["head_ms"] = fate.answered.map_or(Value::Null, |at| millis(admitted, at).into());
        line["service_ms"] = millis(admitted, ended).into();
    }
    format!("{line}\n")
}
