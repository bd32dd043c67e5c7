//! The request field `overload-context`.
//!
//! | key | value | absent |
//! |---|---|---|
//! | `r` | `(business user)`: the rank | unranked |
//! | `u` | 1: nobody was named, and the user of the rank was drawn by lot | 0 |
//! | `w` | string: the workflow | none |
//! | `d` | milliseconds left until the deadline; 0 has expired | no deadline |
//! | `a` | attempt, 0 being the first | 0 |
//! | `c` | string: the caller | unknown |
//! | `q` | requests waiting at the caller | 0 |
//! | `s` | `(count business user)`: sheds since the last report, and one sampled rank | none |
//! | `e`, `t` | microseconds of service time so far and in all | 0, unknown |
//! | `k`, `m` | work so far and in all, in µs over all branches | 0, unknown |

use std::borrow::Cow;

use http::HeaderValue;
use tidegate_core::{CallerId, Context, Instant, Progress, Rank, Sheds, Span, Workflow};

use super::names::{Names, id_number, id_text};
use super::sf::{self, Malformed, Value, Writer};
use super::{LARGEST_FIELD, value_of};

const KEYS: [&str; 12] = ["r", "u", "w", "d", "a", "c", "q", "s", "e", "t", "k", "m"];

/// Reads a context received at `now`. Names of workflows become numbers of `names`.
pub fn read_context(field: &[u8], now: Instant, names: &Names) -> Result<Context, Malformed> {
    if field.len() > LARGEST_FIELD {
        return Err(Malformed);
    }
    let [r, u, w, d, a, c, q, s, e, t, k, m] = sf::read(field, &KEYS)?;
    let unset = Context::default();
    // A workflow gets its number last, so that malformed fields do not fill the table.
    let name = w.map(short_text).transpose()?;
    let mut context = Context {
        rank: map(&r, |value| rank(value.numbers()?))?.unwrap_or(unset.rank),
        lot: map(&u, |value| value.count(1))?.unwrap_or(0) > 0,
        workflow: Workflow::NONE,
        deadline: map(&d, millis)?.map_or(Instant::FAR, |left| now + left),
        attempt: map(&a, |value| value.count(u64::from(u8::MAX)))?.unwrap_or(0) as u8,
        caller: c.map(short_text).transpose()?.map_or(unset.caller, |c| CallerId(id_number(&c))),
        demand: count(&q)?,
        sheds: map(&s, sheds)?.unwrap_or(Sheds::NONE),
        progress: Progress {
            elapsed: map(&e, micros)?.unwrap_or(Span::ZERO),
            total: map(&t, micros)?.unwrap_or(Span::ZERO),
            work: count(&k)?,
            total_work: count(&m)?,
        },
        sender: unset.sender,
        label: unset.label,
    };
    if let Some(name) = name {
        context.workflow = names.hear(now, &name);
    }
    Ok(context)
}

/// Writes a context that leaves at `now`.
pub fn write_context(context: &Context, now: Instant, names: &Names) -> HeaderValue {
    let mut writer = Writer::new();
    let Context { rank, lot, workflow, deadline, attempt, caller, demand, sheds, progress, .. } =
        *context;
    writer.numbers("r", &[rank.business().into(), rank.user().into()]);
    integer(&mut writer, "u", lot.into());
    let name = names.name(workflow).filter(|name| name.len() <= Names::LONGEST);
    name.into_iter().for_each(|name| writer.text("w", &name));
    if deadline != Instant::FAR {
        writer.thousandths("d", deadline.since(now).as_nanos() / 1000);
    }
    integer(&mut writer, "a", attempt.into());
    if caller != CallerId::UNKNOWN {
        writer.text("c", &id_text(caller.0));
    }
    integer(&mut writer, "q", demand.into());
    if sheds.count > 0 {
        let Sheds { count, sample } = sheds;
        writer.numbers("s", &[count.into(), sample.business().into(), sample.user().into()]);
    }
    integer(&mut writer, "e", progress.elapsed.as_nanos() / 1000);
    integer(&mut writer, "t", progress.total.as_nanos() / 1000);
    integer(&mut writer, "k", progress.work.into());
    integer(&mut writer, "m", progress.total_work.into());
    value_of(writer).expect("the rank is always written")
}

/// Writes a number, nothing for zero.
pub(super) fn integer(writer: &mut Writer, key: &str, number: u64) {
    if number > 0 {
        writer.integer(key, number);
    }
}

/// What `read` makes of a value, none if there is no value.
pub(super) fn map<'a, T>(
    value: &Option<Value<'a>>,
    read: impl FnOnce(&Value<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    value.as_ref().map(read).transpose()
}

pub(super) fn count(value: &Option<Value<'_>>) -> Result<u32, Malformed> {
    Ok(map(value, |value| value.count(u64::from(u32::MAX)))?.unwrap_or(0) as u32)
}

pub(super) fn short_text(value: Value<'_>) -> Result<Cow<'_, str>, Malformed> {
    value.text().ok().filter(|text| text.len() <= Names::LONGEST).ok_or(Malformed)
}

/// A decimal number of milliseconds.
pub(super) fn millis(value: &Value<'_>) -> Result<Span, Malformed> {
    Ok(Span::from_nanos(value.thousandths()?.saturating_mul(1000)))
}

pub(super) fn micros(value: &Value<'_>) -> Result<Span, Malformed> {
    Ok(Span::from_nanos(value.count(u64::MAX)?.saturating_mul(1000)))
}

pub(super) fn rank(numbers: &[i64]) -> Result<Rank, Malformed> {
    let [business, user] = *numbers else { return Err(Malformed) };
    let business = u8::try_from(business).map_err(|_| Malformed)?;
    let user = u16::try_from(user).map_err(|_| Malformed)?;
    Rank::try_from((business, user)).map_err(|_| Malformed)
}

fn sheds(value: &Value<'_>) -> Result<Sheds, Malformed> {
    let [count, sample @ ..] = value.numbers()? else { return Err(Malformed) };
    let count = Value::Integer(*count).count(u64::from(u32::MAX))? as u32;
    Ok(Sheds { count, sample: rank(sample)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Instant = Instant::from_nanos(5_000_000_000);

    #[test]
    fn every_key_is_read() {
        let names = Names::default();
        let field =
            b"r=(3 9), u=1, w=\"pay\", d=1.5, a=2, c=\"2a\", q=7, s=(4 60 5), e=10, t=30, k=1, m=2";
        let context = read_context(field, NOW, &names).unwrap();
        assert_eq!(
            context,
            Context {
                rank: Rank::new(3, 9),
                lot: true,
                workflow: names.number("pay"),
                deadline: NOW + Span::from_micros(1_500),
                attempt: 2,
                caller: CallerId(42),
                demand: 7,
                sheds: Sheds { count: 4, sample: Rank::new(60, 5) },
                progress: Progress {
                    elapsed: Span::from_micros(10),
                    total: Span::from_micros(30),
                    work: 1,
                    total_work: 2,
                },
                ..Context::default()
            }
        );
        assert_eq!(write_context(&context, NOW, &names).as_bytes(), field);
    }

    #[test]
    fn nothing_said_is_the_default_and_zero_is_expired() {
        let names = Names::default();
        assert_eq!(read_context(b"", NOW, &names), Ok(Context::default()));
        assert_eq!(read_context(b"d=0", NOW, &names).unwrap().deadline, NOW);
        let passed = Context { deadline: NOW, ..Context::default() };
        let later = NOW + Span::from_millis(3);
        assert_eq!(write_context(&passed, later, &names), "r=(24 0), d=0");
    }

    #[test]
    fn a_malformed_field_leaves_no_name_behind() {
        let names = Names::default();
        assert_eq!(read_context(b"w=\"evil\", r=(64 0)", NOW, &names), Err(Malformed));
        assert_eq!(names.number("first").0, 1);
        let long = format!("c=\"{}\"", "x".repeat(Names::LONGEST + 1));
        assert_eq!(read_context(long.as_bytes(), NOW, &names), Err(Malformed));
        let long = format!("r=(1 2), zz=\"{}\"", "x".repeat(LARGEST_FIELD));
        assert_eq!(read_context(long.as_bytes(), NOW, &names), Err(Malformed));
    }

    prop_compose! {
        fn any_rank()(key in 0..=Rank::LAST.key()) -> Rank {
            Rank::from_key(key)
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(field in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_context(&field, NOW, &Names::default());
        }

        #[test]
        fn what_is_written_reads_back(
            (rank, lot) in (any_rank(), any::<bool>()),
            name in "\\PC{0,20}",
            left in proptest::option::of(0..1_000_000_000_000u64),
            attempt in any::<u8>(),
            caller in any::<u64>(),
            (demand, shed, sample) in (any::<u32>(), any::<u32>(), any_rank()),
            micros in (0..1_000_000_000_000u64, 0..1_000_000_000_000u64),
            (work, total_work) in (any::<u32>(), any::<u32>()),
        ) {
            let names = Names::default();
            let short = name.len() <= Names::LONGEST;
            let sheds = Sheds { count: shed, sample };
            let context = Context {
                rank,
                lot,
                workflow: if short { names.number(&name) } else { Workflow::NONE },
                deadline: left.map_or(Instant::FAR, |micros| NOW + Span::from_micros(micros)),
                attempt,
                caller: CallerId(caller),
                demand,
                sheds: if shed > 0 { sheds } else { Sheds::NONE },
                progress: Progress {
                    elapsed: Span::from_micros(micros.0),
                    total: Span::from_micros(micros.1),
                    work,
                    total_work,
                },
                ..Context::default()
            };
            let field = write_context(&context, NOW, &names);
            prop_assert!(field.len() <= LARGEST_FIELD);
            prop_assert_eq!(read_context(field.as_bytes(), NOW, &names), Ok(context));
        }
    }
}
