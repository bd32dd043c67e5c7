//! The wire format: examples that any implementation must read alike, and any bytes at all.

use std::path::Path;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tidegate_core::context::{Progress, Sheds};
use tidegate_core::{
    Advice, CallerId, Context, Cursor, Feedback, GateId, Instant, Rank, Reason, Rejection, Sender,
    Span,
};
use tidegate_driver::Names;
use tidegate_rpc::wire::{
    self, Failure, Frame, Goodbye, HEADER, Kind, Limits, RequestHead, VERSION, WireError,
};

const NOW: Instant = Instant::from_nanos(1_000_000);

fn only(bytes: &[u8]) -> Frame<'_> {
    let (frame, length) = Frame::read(bytes, &Limits::default()).unwrap().expect("whole");
    assert_eq!(length, bytes.len());
    frame
}

fn ranks() -> impl Strategy<Value = Rank> {
    (0..=Rank::LAST.key()).prop_map(Rank::from_key)
}

fn spans() -> impl Strategy<Value = Span> {
    prop_oneof![Just(0), 0..1_000_000u64, any::<u64>()].prop_map(Span::from_nanos)
}

fn progress() -> impl Strategy<Value = Progress> {
    (spans(), spans(), any::<u32>(), any::<u32>()).prop_map(|(elapsed, total, work, total_work)| {
        Progress { elapsed, total, work, total_work }
    })
}

prop_compose! {
    fn contexts()(
        rank in ranks(), lot: bool, deadline in option::of(0..u64::MAX / 2), attempt: u8, caller: u64,
        demand: u32, shed: u32, sample in ranks(), progress in progress(), named: bool,
    ) -> Context {
        let sheds = if shed > 0 { Sheds { count: shed, sample } } else { Sheds::NONE };
        let deadline = deadline.map_or(Instant::FAR, |left| NOW + Span::from_nanos(left));
        let workflow = Names::process().number(if named { "checkout" } else { "" });
        let caller = CallerId(caller);
        let sender = Sender::UNKNOWN;
        Context { rank, lot, workflow, deadline, attempt, caller, demand, sheds, progress, sender, label: 0 }
    }
}

prop_compose! {
    fn feedback()(
        gate: u64, sequence: u64, window in option::of(any::<u32>()),
        free in option::of(ranks()), last in option::of(ranks()), holds in spans(),
        rate in option::of(0..1_000_000u32), busy in option::of(0..10_000u32),
        progress in progress(),
    ) -> Feedback {
        Feedback {
            window, holds, progress,
            free: free.map(Cursor::at),
            last: last.map(Cursor::at),
            rate: rate.map(|rate| f64::from(rate) / 1000.0),
            utilization: busy.map(|busy| (f64::from(busy) / 1000.0) as f32),
            ..Feedback::silent(GateId(gate), sequence)
        }
    }
}

fn rejections() -> impl Strategy<Value = Rejection> {
    let advice =
        prop_oneof![Just(Advice::Elsewhere), Just(Advice::Never), spans().prop_map(Advice::Later)];
    let reason = (0..Reason::ALL.len()).prop_map(|n| Reason::ALL[n]);
    (reason, -1e12..1e12, -1e12..1e12, advice).prop_map(|(reason, measured, limit, advice)| {
        Rejection::new(reason, measured, limit, advice)
    })
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in vec(any::<u8>(), 0..300)) {
        let names = Names::default();
        let limits = Limits { payload: 64, fields: 64 };
        let mut rest = &bytes[..];
        while let Ok(Some((frame, length))) = Frame::read(rest, &limits) {
            prop_assert!(length >= HEADER && frame.payload.len() <= limits.payload);
            let _ = wire::read_request(frame.fields, NOW, &names);
            let _ = wire::read_feedback(frame.fields);
            let _ = wire::read_rejection(frame.fields);
            let _ = wire::read_failure(frame.fields, frame.payload);
            let _ = wire::read_goodbye(frame.fields);
            rest = &rest[length..];
        }
    }

    /// The same with bytes that get past the header.
    #[test]
    fn any_fields_are_read_without_panic(kind: u8, fields in vec(any::<u8>(), 0..200), call: u64) {
        let mut bytes = u32::try_from(12 + fields.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend([VERSION, kind]);
        bytes.extend(u16::try_from(fields.len()).unwrap().to_le_bytes());
        bytes.extend(call.to_le_bytes());
        bytes.extend(&fields);
        let frame = only(&bytes);
        prop_assert_eq!(frame.call, call);
        let names = Names::default();
        let well_formed = frame.fields.into_iter().all(|field| field.is_ok());
        let read = wire::read_request(frame.fields, NOW, &names);
        prop_assert!(well_formed || read.is_err());
        prop_assert!(well_formed || wire::read_feedback(frame.fields).is_err());
        let _ = wire::read_rejection(frame.fields);
    }

    #[test]
    fn requests_read_back(method: u32, context in contexts(), payload in vec(any::<u8>(), 0..100), call: u64) {
        let (names, head) = (Names::process(), RequestHead { method, context });
        let mut bytes = Vec::new();
        wire::write_request(&mut bytes, call, &head, NOW, &names, &payload);
        let frame = only(&bytes);
        prop_assert_eq!((frame.kind, frame.call), (Some(Kind::Request), call));
        prop_assert_eq!(frame.payload, &payload[..]);
        prop_assert_eq!(wire::read_request(frame.fields, NOW, &names), Ok(head));
        // A frame that has not come whole is not there yet, wherever it is cut.
        for end in 0..bytes.len() {
            prop_assert_eq!(Frame::read(&bytes[..end], &Limits::default()), Ok(None));
        }
    }

    #[test]
    fn answers_and_refusals_read_back(
        feedback in option::of(feedback()), rejection in rejections(), payload in vec(any::<u8>(), 0..50),
        code: u32, message in ".{0,40}",
    ) {
        let mut bytes = Vec::new();
        wire::write_answer(&mut bytes, 5, feedback.as_ref(), &payload);
        let frame = only(&bytes);
        prop_assert_eq!((frame.kind, frame.payload), (Some(Kind::Answer), &payload[..]));
        prop_assert_eq!(wire::read_feedback(frame.fields), Ok(feedback));
        bytes.clear();
        wire::write_refusal(&mut bytes, 5, &rejection, feedback.as_ref());
        let frame = only(&bytes);
        prop_assert_eq!(wire::read_feedback(frame.fields), Ok(feedback));
        prop_assert_eq!(wire::read_rejection(frame.fields), Ok(rejection));
        bytes.clear();
        let failure = Failure { code, message };
        wire::write_failure(&mut bytes, 5, &failure, feedback.as_ref());
        let frame = only(&bytes);
        prop_assert_eq!(wire::read_failure(frame.fields, frame.payload), Ok(failure));
    }
}

#[test]
fn what_is_too_long_too_short_or_of_another_version_is_told_by_its_first_bytes() {
    fn read(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, WireError> {
        Frame::read(bytes, &Limits { payload: 100, fields: 50 })
    }
    assert_eq!(read(&[11, 0, 0, 0]), Err(WireError::TooShort(11)));
    assert_eq!(read(&[163, 0, 0, 0]), Err(WireError::TooLong(163)));
    assert_eq!(read(&[162, 0, 0, 0]), Ok(None));
    assert_eq!(read(&[12, 0, 0, 0, 9]), Err(WireError::Version(9)));
    assert!(matches!(read(b"GET / HTTP/1.1\r\n"), Err(WireError::TooLong(_))));
    // Fields that reach beyond the frame.
    let mut bytes = vec![12, 0, 0, 0, VERSION, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(read(&bytes), Err(WireError::Fields));
    bytes[6] = 51;
    assert_eq!(read(&bytes), Err(WireError::TooLong(51)));
    // No limits at all.
    let unlimited = Limits { payload: usize::MAX, fields: usize::MAX };
    assert_eq!(Frame::read(&[255; 4], &unlimited), Ok(None));
    // A payload may not use the room of the fields.
    let mut bytes = vec![0; 4 + 12 + 101];
    bytes[0] = 12 + 101;
    bytes[4] = VERSION;
    assert_eq!(read(&bytes), Err(WireError::TooLong(101)));
}

/// Each line of `testdata/wire/rpc.txt`: a frame in hexadecimal and what it says.
#[test]
fn the_examples_read_as_they_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/wire/rpc.txt");
    let text = std::fs::read_to_string(path).expect("the examples are there");
    let mut count = 0;
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (bytes, said) = line.split_once(" -> ").expect("frame -> meaning");
        let bytes = unhex(bytes.trim());
        assert_eq!(describe(&bytes), said.trim(), "{line}");
        count += 1;
    }
    assert!(count >= 15, "{count} examples");
}

/// What a frame says, in words.
fn describe(bytes: &[u8]) -> String {
    let frame = match Frame::read(bytes, &Limits::default()) {
        Ok(Some((frame, length))) if length == bytes.len() => frame,
        Ok(_) => return "incomplete".to_owned(),
        Err(WireError::Version(_)) => return "error version".to_owned(),
        Err(WireError::TooLong(_)) => return "error too-long".to_owned(),
        Err(WireError::TooShort(_)) => return "error too-short".to_owned(),
        Err(_) => return "error fields".to_owned(),
    };
    meaning(&frame).unwrap_or_else(|_| "error fields".to_owned())
}

fn meaning(frame: &Frame<'_>) -> Result<String, WireError> {
    let Some(kind) = frame.kind else { return Ok("skip".to_owned()) };
    let names = Names::process();
    let mut words = vec![format!("{kind:?}").to_lowercase(), frame.call.to_string()];
    match kind {
        Kind::Request | Kind::Report => {
            let RequestHead { method, context } = wire::read_request(frame.fields, NOW, &names)?;
            let say = |words: &mut Vec<String>, name: &str, value: u64| {
                if value > 0 {
                    words.push(format!("{name}={value}"));
                }
            };
            say(&mut words, "method", method.into());
            if context.rank != Rank::UNRANKED {
                words.push(format!("rank={},{}", context.rank.business(), context.rank.user()));
            }
            names.name(context.workflow).iter().for_each(|n| words.push(format!("workflow={n}")));
            if context.deadline != Instant::FAR {
                words.push(format!("left={}", context.deadline.since(NOW).as_nanos()));
            }
            say(&mut words, "attempt", context.attempt.into());
            say(&mut words, "caller", context.caller.0);
            say(&mut words, "demand", context.demand.into());
            if context.sheds.count > 0 {
                let sample = context.sheds.sample;
                say(&mut words, "shed", context.sheds.count.into());
                words.push(format!("sample={},{}", sample.business(), sample.user()));
            }
            words.extend(done(&context.progress));
            say(&mut words, "lot", context.lot.into());
        }
        Kind::Goodbye => words.push(match wire::read_goodbye(frame.fields)? {
            Goodbye::Leaving => "leaving".to_owned(),
            Goodbye::Malformed => "malformed".to_owned(),
            Goodbye::Violation => "violation".to_owned(),
            Goodbye::Idle => "idle".to_owned(),
        }),
        Kind::Cancel => {}
        Kind::Answer | Kind::Refusal | Kind::Failure | Kind::Feedback => {
            if let Some(feedback) = wire::read_feedback(frame.fields)? {
                words.push(format!("gate={} sequence={}", feedback.gate.0, feedback.sequence));
                feedback.window.iter().for_each(|n| words.push(format!("window={n}")));
                feedback.free.iter().for_each(|c| words.push(format!("free={}", c.ranks())));
                feedback.last.iter().for_each(|c| words.push(format!("last={}", c.ranks())));
                if feedback.holds != Span::MAX {
                    words.push(format!("holds={}", feedback.holds.as_nanos()));
                }
                words.extend(done(&feedback.progress));
            }
            if kind == Kind::Refusal {
                let Rejection { reason, advice, .. } = wire::read_rejection(frame.fields)?;
                words.push(format!("reason={}", reason.token()));
                words.push(match advice {
                    Advice::Elsewhere => "elsewhere".to_owned(),
                    Advice::Later(pause) => format!("later={}", pause.as_nanos()),
                    Advice::Never => "never".to_owned(),
                });
            }
            if kind == Kind::Failure {
                let failure = wire::read_failure(frame.fields, frame.payload)?;
                words.push(format!("code={}", failure.code));
            }
        }
    }
    if !frame.payload.is_empty() {
        words.push(format!("{:?}", String::from_utf8_lossy(frame.payload)));
    }
    Ok(words.join(" "))
}

/// How far a request has come, if anything was said of it.
fn done(progress: &Progress) -> Option<String> {
    let Progress { elapsed, total, work, total_work } = *progress;
    let (elapsed, total) = (elapsed.as_nanos(), total.as_nanos());
    let said = (elapsed, total, work, total_work) != (0, 0, 0, 0);
    said.then(|| format!("progress={elapsed}/{total} work={work}/{total_work}"))
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| *c != ' ')
        .map(|c| c.to_digit(16).expect("hexadecimal") as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A name that nobody would read is not written, and one that is too long to be one is none.
#[test]
fn a_long_name_of_a_workflow_breaks_nothing() {
    let names = Names::default();
    let round = |name: &str| {
        let context = Context { workflow: names.number(name), ..Context::default() };
        let mut bytes = Vec::new();
        let head = RequestHead { method: 1, context };
        wire::write_request(&mut bytes, 1, &head, NOW, &names, b"");
        let (frame, _) = Frame::read(&bytes, &Limits::default()).expect("fine").expect("whole");
        let read = wire::read_request(frame.fields, NOW, &names).expect("fine");
        names.name(read.context.workflow)
    };
    let longest = "x".repeat(Names::LONGEST);
    assert_eq!(round(&longest), Some(longest));
    assert_eq!(round(&"é".repeat(Names::LONGEST)), None);
    assert_eq!(round(&"x".repeat(300)), None);
    let mut fields = Vec::new();
    wire::put_bytes(&mut fields, 3, &[b'x'; 65]);
    let read = wire::read_request(wire::Fields::new(&fields), NOW, &names).expect("not malformed");
    assert_eq!(read.context.workflow, tidegate_core::Workflow::NONE);
}
