//! The response field `overload-feedback`, also a trailer of gRPC.
//!
//! | key | value | absent |
//! |---|---|---|
//! | `n` | window: requests this caller may have outstanding | says nothing |
//! | `f`, `l` | `(business user)`: free and last cursor; `()` lets nothing in | says nothing |
//! | `x` | milliseconds for which window and cursors hold | until changed |
//! | `i` | string: the gate | 0 |
//! | `v` | sequence number of this gate's messages | 0 |
//! | `g` | requests per second granted to the request's workflow | says nothing |
//! | `u` | utilization, 1 being full | says nothing |
//! | `e`, `k` | microseconds of service time, and of work, so far | 0 |
//! | `why` | token: the reason of a refusal | not refused |
//! | `then` | token: `elsewhere`, `later` or `never` | `elsewhere` |
//! | `after` | milliseconds to wait before `later` | 0 |

use http::HeaderValue;
use tidegate_core::{Advice, Cursor, Feedback, GateId, Progress, Reason, Rejection, Span};

use super::context::{count, integer, map, micros, millis, rank, short_text};
use super::names::{id_number, id_text};
use super::sf::{self, Malformed, Value, Writer};
use super::{LARGEST_FIELD, value_of};

const KEYS: [&str; 13] = ["n", "f", "l", "x", "i", "v", "g", "u", "e", "k", "why", "then", "after"];

/// What a response says: the state of the gate, and why it refused, if it did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message {
    /// The state of the gate, for the workflow of the request answered.
    pub feedback: Feedback,
    /// The refusal; what was measured stays in the body, and is zero here.
    pub rejection: Option<Rejection>,
}

/// Reads feedback.
pub fn read_feedback(field: &[u8]) -> Result<Message, Malformed> {
    if field.len() > LARGEST_FIELD {
        return Err(Malformed);
    }
    let [n, f, l, x, i, v, g, u, e, k, why, then, after] = sf::read(field, &KEYS)?;
    let gate = i.map(short_text).transpose()?.map_or(0, |id| id_number(&id));
    let sequence = map(&v, |value| value.count(u64::MAX))?.unwrap_or(0);
    let feedback = Feedback {
        window: map(&n, |value| value.count(u64::from(u32::MAX)))?.map(|n| n as u32),
        free: map(&f, cursor)?,
        last: map(&l, cursor)?,
        holds: map(&x, millis)?.unwrap_or(Span::MAX),
        rate: map(&g, Value::thousandths)?.map(|g| g as f64 / 1000.0),
        utilization: map(&u, Value::thousandths)?.map(|u| (u as f64 / 1000.0) as f32),
        progress: Progress {
            elapsed: map(&e, micros)?.unwrap_or(Span::ZERO),
            work: count(&k)?,
            ..Progress::default()
        },
        ..Feedback::silent(GateId(gate), sequence)
    };
    let after = map(&after, millis)?.unwrap_or(Span::ZERO);
    let advice = map(&then, |then| advice(then.token()?, after))?.unwrap_or(Advice::Elsewhere);
    let rejection = map(&why, Value::token)?.map(|why| {
        // A reason of a later version is a refusal all the same.
        let reason = Reason::from_token(why).unwrap_or(Reason::Delay);
        Rejection::new(reason, 0.0, 0.0, advice)
    });
    Ok(Message { feedback, rejection })
}

/// Writes feedback, together with the refusal it goes with. None if there is nothing to say.
pub fn write_feedback(feedback: &Feedback, rejection: Option<&Rejection>) -> Option<HeaderValue> {
    let mut writer = Writer::new();
    feedback.window.into_iter().for_each(|window| writer.integer("n", window.into()));
    for (key, cursor) in [("f", feedback.free), ("l", feedback.last)] {
        cursor.into_iter().for_each(|cursor| write_cursor(&mut writer, key, cursor));
    }
    if feedback.holds != Span::MAX {
        writer.thousandths("x", feedback.holds.as_nanos() / 1000);
    }
    writer.text("i", &id_text(feedback.gate.0));
    writer.integer("v", feedback.sequence);
    let rate = feedback.rate.filter(|rate| rate.is_finite() && *rate >= 0.0);
    rate.into_iter().for_each(|rate| writer.thousandths("g", (rate * 1000.0).round() as u64));
    let busy = feedback.utilization.filter(|busy| busy.is_finite() && *busy >= 0.0);
    busy.into_iter().for_each(|u| writer.thousandths("u", (f64::from(u) * 1000.0).round() as u64));
    integer(&mut writer, "e", feedback.progress.elapsed.as_nanos() / 1000);
    integer(&mut writer, "k", feedback.progress.work.into());
    rejection.into_iter().for_each(|rejection| write_rejection(&mut writer, rejection));
    value_of(writer)
}

fn cursor(value: &Value<'_>) -> Result<Cursor, Malformed> {
    match value.numbers()? {
        [] => Ok(Cursor::CLOSED),
        numbers => Ok(Cursor::at(rank(numbers)?)),
    }
}

fn write_cursor(writer: &mut Writer, key: &str, cursor: Cursor) {
    match cursor.last() {
        None => writer.numbers(key, &[]),
        Some(rank) => writer.numbers(key, &[rank.business().into(), rank.user().into()]),
    }
}

/// What to do; what a later version advises is not to retry, for who does not understand.
fn advice(then: &str, after: Span) -> Result<Advice, Malformed> {
    Ok(match then {
        "elsewhere" => Advice::Elsewhere,
        "later" => Advice::Later(after),
        _ => Advice::Never,
    })
}

fn write_rejection(writer: &mut Writer, rejection: &Rejection) {
    writer.token("why", rejection.reason.token());
    match rejection.advice {
        Advice::Elsewhere => writer.token("then", "elsewhere"),
        Advice::Never => writer.token("then", "never"),
        Advice::Later(after) => {
            writer.token("then", "later");
            writer.thousandths("after", after.as_nanos() / 1000);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::Rank;

    use super::*;

    #[test]
    fn every_key_is_read() {
        let field = b"n=5, f=(2 3), l=(), x=2.5, i=\"2a\", v=9, g=0.5, u=1.25, e=10, k=3, \
            why=rank, then=later, after=250";
        let message = read_feedback(field).unwrap();
        let feedback = Feedback {
            window: Some(5),
            free: Some(Cursor::at(Rank::new(2, 3))),
            last: Some(Cursor::CLOSED),
            holds: Span::from_micros(2_500),
            rate: Some(0.5),
            utilization: Some(1.25),
            progress: Progress { elapsed: Span::from_micros(10), work: 3, ..Progress::default() },
            ..Feedback::silent(GateId(42), 9)
        };
        let later = Advice::Later(Span::from_millis(250));
        let rejection = Some(Rejection::new(Reason::Rank, 0.0, 0.0, later));
        assert_eq!(message, Message { feedback, rejection });
        assert_eq!(write_feedback(&feedback, rejection.as_ref()).unwrap(), field.as_slice());
    }

    #[test]
    fn what_a_later_version_says_is_taken_carefully() {
        let message = read_feedback(b"why=moon-phase, then=pray").unwrap();
        assert_eq!(message.rejection.unwrap().advice, Advice::Never);
        assert!(read_feedback(b"n=3").unwrap().rejection.is_none());
        assert_eq!(read_feedback(b"why=\"rank\""), Err(Malformed));
        assert_eq!(read_feedback(b"n=-1"), Err(Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(field in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_feedback(&field);
        }

        #[test]
        fn what_is_written_reads_back(
            window in proptest::option::of(any::<u32>()),
            free in proptest::option::of(0..=Cursor::OPEN.ranks()),
            last in proptest::option::of(0..=Cursor::OPEN.ranks()),
            holds in proptest::option::of(0..1_000_000_000u64),
            (gate, sequence) in (any::<u64>(), 0..1u64 << 49),
            rate in proptest::option::of(0..1_000_000_000u64),
            (elapsed, work) in (0..1_000_000_000u64, any::<u32>()),
            reason in proptest::option::of(0..Reason::ALL.len()),
            advice in prop_oneof![
                Just(Advice::Elsewhere),
                Just(Advice::Never),
                (0..1_000_000u64).prop_map(|micros| Advice::Later(Span::from_micros(micros))),
            ],
        ) {
            let feedback = Feedback {
                window,
                free: free.map(Cursor::first),
                last: last.map(Cursor::first),
                holds: holds.map_or(Span::MAX, Span::from_micros),
                rate: rate.map(|thousandths| thousandths as f64 / 1000.0),
                progress: Progress {
                    elapsed: Span::from_micros(elapsed),
                    work,
                    ..Progress::default()
                },
                ..Feedback::silent(GateId(gate), sequence)
            };
            let rejection = reason.map(|at| Rejection::new(Reason::ALL[at], 0.0, 0.0, advice));
            let field = write_feedback(&feedback, rejection.as_ref()).unwrap();
            prop_assert!(field.len() <= LARGEST_FIELD);
            prop_assert_eq!(read_feedback(field.as_bytes()), Ok(Message { feedback, rejection }));
        }
    }
}
