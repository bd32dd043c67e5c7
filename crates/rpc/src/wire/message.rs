//! What frames mean: contexts, feedback, refusals and failures as fields.
//!
//! | tag | in | value |
//! |---|---|---|
//! | 1 | request | method, the application's number |
//! | 2 | request | rank: 65,536 × business + user |
//! | 3 | request | workflow, a name in UTF-8 |
//! | 4 | request | nanoseconds left until the deadline; absent: none |
//! | 5 | request | attempt, 0 the first |
//! | 6 | request, report | caller |
//! | 7 | request, report | demand |
//! | 8, 9 | request, report | how many requests the caller shed itself, the rank of one of them |
//! | 10–13 | request, answer | progress: nanoseconds so far and in all, µs of work so far and in all |
//! | 14 | request | 1: nobody was named, and the user of the rank was drawn by lot |
//! | 32, 33 | from servers | gate, sequence number |
//! | 34 | from servers | window |
//! | 35, 36 | from servers | how many ranks are free, how many are let in at all |
//! | 37 | from servers | nanoseconds for which window and cursors hold; absent: until changed |
//! | 38 | from servers | rate granted, in thousandths of a request per second |
//! | 39 | from servers | utilization, in thousandths |
//! | 48 | refusal | reason, a token |
//! | 49, 50 | refusal | measured, limit: IEEE 754 doubles |
//! | 51 | refusal | advice: 0 elsewhere, 1 later, 2 never |
//! | 52 | refusal | nanoseconds to wait before `later` |
//! | 56 | failure | code |
//! | 57 | goodbye | why |

use std::fmt;

use tidegate_core::context::Workflow;
use tidegate_core::{
    Advice, CallerId, Context, Cursor, Feedback, GateId, Instant, Progress, Rank, Reason,
    Rejection, Sheds, Span,
};
use tidegate_driver::Names;

use super::fields::{int, int32, put_count};
use super::{Fields, Kind, WireError, put_bytes, put_frame, put_int};

/// What stands before the payload of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestHead {
    /// The application's number of what is to be done.
    pub method: u32,
    /// Rank, deadline, caller and all else that travels.
    pub context: Context,
}

/// Reads the fields of a request or a report that arrived at `arrived`.
pub fn read_request(
    fields: Fields<'_>,
    arrived: Instant,
    names: &Names,
) -> Result<RequestHead, WireError> {
    let (mut method, mut context) = (0, Context::default());
    for field in fields {
        let (tag, value) = field?;
        match tag {
            1 => method = int32(value)?,
            2 => context.rank = Rank::from_key(int32(value)?),
            3 => context.workflow = workflow(value, arrived, names)?,
            4 => context.deadline = arrived + Span::from_nanos(int(value)?),
            5 => context.attempt = u8::try_from(int(value)?).unwrap_or(u8::MAX),
            6 => context.caller = CallerId(int(value)?),
            7 => context.demand = int32(value)?,
            8 => context.sheds.count = int32(value)?,
            9 => context.sheds.sample = Rank::from_key(int32(value)?),
            10..=13 => read_progress(&mut context.progress, tag, value)?,
            14 => context.lot = int(value)? > 0,
            _ => {}
        }
    }
    if context.sheds.count == 0 {
        context.sheds = Sheds::NONE;
    }
    Ok(RequestHead { method, context })
}

/// Appends a request that leaves at `now`.
pub fn write_request(
    out: &mut Vec<u8>,
    call: u64,
    head: &RequestHead,
    now: Instant,
    names: &Names,
    payload: &[u8],
) {
    let fields = |out: &mut Vec<u8>| {
        let context = &head.context;
        put_count(out, 1, head.method.into());
        if context.rank != Rank::UNRANKED {
            put_int(out, 2, context.rank.key().into());
        }
        if context.workflow != Workflow::NONE {
            // A longer one would be ignored.
            let name = names.name(context.workflow).filter(|name| name.len() <= Names::LONGEST);
            name.into_iter().for_each(|name| put_bytes(out, 3, name.as_bytes()));
        }
        if context.deadline != Instant::FAR {
            put_int(out, 4, context.deadline.since(now).as_nanos());
        }
        put_count(out, 5, context.attempt.into());
        put_report(out, context);
        put_progress(out, &context.progress);
        put_count(out, 14, context.lot.into());
    };
    put_frame(out, Kind::Request, call, fields, payload);
}

/// Appends demand and sheds without a request.
pub fn write_report(out: &mut Vec<u8>, context: &Context) {
    put_frame(out, Kind::Report, 0, |out| put_report(out, context), &[]);
}

/// Appends word that the answer to `call` is not wanted any more.
pub fn write_cancel(out: &mut Vec<u8>, call: u64) {
    put_frame(out, Kind::Cancel, call, |_| (), &[]);
}

/// Appends an answer.
pub fn write_answer(out: &mut Vec<u8>, call: u64, feedback: Option<&Feedback>, payload: &[u8]) {
    put_frame(out, Kind::Answer, call, |out| put_feedback(out, feedback), payload);
}

/// Appends a refusal.
pub fn write_refusal(
    out: &mut Vec<u8>,
    call: u64,
    rejection: &Rejection,
    feedback: Option<&Feedback>,
) {
    let fields = |out: &mut Vec<u8>| {
        put_feedback(out, feedback);
        put_bytes(out, 48, rejection.reason.token().as_bytes());
        put_bytes(out, 49, &rejection.measured.to_bits().to_le_bytes());
        put_bytes(out, 50, &rejection.limit.to_bits().to_le_bytes());
        match rejection.advice {
            Advice::Elsewhere => put_int(out, 51, 0),
            Advice::Later(pause) => {
                put_int(out, 51, 1);
                put_int(out, 52, pause.as_nanos());
            }
            Advice::Never => put_int(out, 51, 2),
        }
    };
    put_frame(out, Kind::Refusal, call, fields, &[]);
}

/// Appends a failure.
pub fn write_failure(out: &mut Vec<u8>, call: u64, failure: &Failure, feedback: Option<&Feedback>) {
    let fields = |out: &mut Vec<u8>| {
        put_feedback(out, feedback);
        put_count(out, 56, failure.code.into());
    };
    put_frame(out, Kind::Failure, call, fields, failure.message.as_bytes());
}

/// Appends the state of a gate, unasked.
pub fn write_feedback(out: &mut Vec<u8>, feedback: &Feedback) {
    put_frame(out, Kind::Feedback, 0, |out| put_feedback(out, Some(feedback)), &[]);
}

/// Appends a goodbye.
pub fn write_goodbye(out: &mut Vec<u8>, why: Goodbye) {
    put_frame(out, Kind::Goodbye, 0, |out| put_int(out, 57, why as u64), &[]);
}

/// Reads feedback, none if there is none.
pub fn read_feedback(fields: Fields<'_>) -> Result<Option<Feedback>, WireError> {
    let mut feedback = Feedback::silent(GateId(0), 0);
    let mut said = false;
    for field in fields {
        let (tag, value) = field?;
        match tag {
            10..=13 => read_progress(&mut feedback.progress, tag, value)?,
            32 => feedback.gate = GateId(int(value)?),
            33 => feedback.sequence = int(value)?,
            34 => feedback.window = Some(int32(value)?),
            35 => feedback.free = Some(Cursor::first(int32(value)?)),
            36 => feedback.last = Some(Cursor::first(int32(value)?)),
            37 => feedback.holds = Span::from_nanos(int(value)?),
            38 => feedback.rate = Some(int(value)? as f64 / 1000.0),
            39 => feedback.utilization = Some((int(value)? as f64 / 1000.0) as f32),
            _ => continue,
        }
        said |= tag >= 32;
    }
    Ok(said.then_some(feedback))
}

/// Reads why a request was refused.
pub fn read_rejection(fields: Fields<'_>) -> Result<Rejection, WireError> {
    let mut rejection = Rejection::new(Reason::Delay, 0.0, 0.0, Advice::Elsewhere);
    let (mut advice, mut pause) = (0, Span::ZERO);
    for field in fields {
        let (tag, value) = field?;
        match tag {
            // A reason of a later version is a refusal all the same.
            48 => {
                let token = std::str::from_utf8(value).map_err(|_| WireError::Fields)?;
                rejection.reason = Reason::from_token(token).unwrap_or(Reason::Delay);
            }
            49 => rejection.measured = double(value)?,
            50 => rejection.limit = double(value)?,
            51 => advice = int(value)?,
            52 => pause = Span::from_nanos(int(value)?),
            _ => {}
        }
    }
    // Advice that is not understood is not to retry.
    rejection.advice = match advice {
        0 => Advice::Elsewhere,
        1 => Advice::Later(pause),
        _ => Advice::Never,
    };
    Ok(rejection)
}

/// Reads how a handler failed.
pub fn read_failure(fields: Fields<'_>, payload: &[u8]) -> Result<Failure, WireError> {
    let mut code = 0;
    for field in fields {
        let (tag, value) = field?;
        if tag == 56 {
            code = int32(value)?;
        }
    }
    Ok(Failure { code, message: String::from_utf8_lossy(payload).into_owned() })
}

/// Reads why the peer leaves.
pub fn read_goodbye(fields: Fields<'_>) -> Result<Goodbye, WireError> {
    let mut why = 0;
    for field in fields {
        let (tag, value) = field?;
        if tag == 57 {
            why = int(value)?;
        }
    }
    Ok(match why {
        2 => Goodbye::Malformed,
        3 => Goodbye::Violation,
        4 => Goodbye::Idle,
        _ => Goodbye::Leaving,
    })
}

/// How a handler failed: a code of the application, and a sentence for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// The application's number; those above [`Failure::RESERVED`] are ours.
    pub code: u32,
    /// For people.
    pub message: String,
}

impl Failure {
    /// Codes from here on are ours.
    pub const RESERVED: u32 = 0xffff_ff00;
    /// The handler panicked.
    pub const PANIC: u32 = Self::RESERVED + 1;
    /// The server stopped before the handler was done.
    pub const STOPPED: u32 = Self::RESERVED + 2;
    /// The answer is larger than may be sent. The handler has done its work.
    pub const TOO_LARGE: u32 = Self::RESERVED + 3;
    /// The handler is async, and its server was started outside of a runtime.
    pub const NO_RUNTIME: u32 = Self::RESERVED + 4;

    /// A failure.
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.message, self.code)
    }
}

impl std::error::Error for Failure {}

/// Why a side will not send anything new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Goodbye {
    /// It closes down. What it was sent before is answered.
    Leaving = 1,
    /// What it was sent could not be read.
    Malformed = 2,
    /// It was sent far more than it allowed.
    Violation = 3,
    /// It heard nothing for long, or not the end of a frame.
    Idle = 4,
}

fn workflow(value: &[u8], now: Instant, names: &Names) -> Result<Workflow, WireError> {
    if value.len() > Names::LONGEST {
        return Ok(Workflow::NONE);
    }
    std::str::from_utf8(value).map(|name| names.hear(now, name)).map_err(|_| WireError::Fields)
}

fn double(value: &[u8]) -> Result<f64, WireError> {
    value.try_into().map(f64::from_le_bytes).map_err(|_| WireError::Fields)
}

fn read_progress(progress: &mut Progress, tag: u8, value: &[u8]) -> Result<(), WireError> {
    match tag {
        10 => progress.elapsed = Span::from_nanos(int(value)?),
        11 => progress.total = Span::from_nanos(int(value)?),
        12 => progress.work = int32(value)?,
        _ => progress.total_work = int32(value)?,
    }
    Ok(())
}

fn put_progress(out: &mut Vec<u8>, progress: &Progress) {
    put_count(out, 10, progress.elapsed.as_nanos());
    put_count(out, 11, progress.total.as_nanos());
    put_count(out, 12, progress.work.into());
    put_count(out, 13, progress.total_work.into());
}

fn put_report(out: &mut Vec<u8>, context: &Context) {
    if context.caller != CallerId::UNKNOWN {
        put_int(out, 6, context.caller.0);
    }
    put_count(out, 7, context.demand.into());
    if context.sheds.count > 0 {
        put_int(out, 8, context.sheds.count.into());
        put_int(out, 9, context.sheds.sample.key().into());
    }
}

fn put_feedback(out: &mut Vec<u8>, feedback: Option<&Feedback>) {
    let Some(feedback) = feedback else { return };
    put_int(out, 32, feedback.gate.0);
    put_int(out, 33, feedback.sequence);
    feedback.window.into_iter().for_each(|window| put_int(out, 34, window.into()));
    feedback.free.into_iter().for_each(|free| put_int(out, 35, free.ranks().into()));
    feedback.last.into_iter().for_each(|last| put_int(out, 36, last.ranks().into()));
    if feedback.holds != Span::MAX {
        put_int(out, 37, feedback.holds.as_nanos());
    }
    let thousandths = |value: f64| (value * 1000.0).round() as u64;
    let rate = feedback.rate.filter(|rate| rate.is_finite() && *rate >= 0.0);
    rate.into_iter().for_each(|rate| put_int(out, 38, thousandths(rate)));
    let busy = feedback.utilization.filter(|busy| busy.is_finite() && *busy >= 0.0);
    busy.into_iter().for_each(|busy| put_int(out, 39, thousandths(busy.into())));
    put_progress(out, &feedback.progress);
}
