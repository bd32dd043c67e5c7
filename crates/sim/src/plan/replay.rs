//! Recorded logs: one request per line.
//!
//! ```text
//! timestamp,workflow,business,user,service
//! 1700000000.000125,checkout,3,4711,870
//! ```
//!
//! The time in seconds since whenever (the earliest line is the start of the run), the workflow's
//! name (may be empty), the rank's two parts (may be empty), and the service time in microseconds. A
//! first line that does not begin with a number is a heading.

use std::path::Path;

use tidegate_core::context::Workflows;
use tidegate_core::{Instant, Rank, Span};

use crate::workload::Recorded;

/// Longest simulated time of a log, and of serving one request: beyond that it is something else.
const LONGEST: Span = Span::from_secs(30 * DAY);
const DAY: u64 = 24 * 3600;

/// Wrong lines that are told one by one: a file that is no log has as many as lines.
const TOLD: usize = 100;

/// Reads a log, its times divided by `speed`, in order of time; or tells every line that is wrong.
pub(super) fn read(
    path: &Path,
    speed: f64,
    workflows: &mut Workflows,
) -> Result<Vec<Recorded>, Vec<String>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| vec![format!("{}: {error}", path.display())])?;
    parse(&text, speed, workflows)
}

fn parse(text: &str, speed: f64, workflows: &mut Workflows) -> Result<Vec<Recorded>, Vec<String>> {
    let (mut lines, mut wrong) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
        let heading = number == 1 && !begins_with_number(line);
        if heading || line.trim().is_empty() {
            continue;
        }
        match parse_line(line, workflows) {
            Ok(request) => lines.push(request),
            Err(reason) => wrong.push(format!("line {number} of the log: {reason}")),
        }
    }
    if wrong.len() > TOLD {
        let more = wrong.split_off(TOLD).len();
        wrong.push(format!("{more} more lines of the log are wrong"));
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    lines.sort_by_key(|(at, _)| *at);
    place(lines, speed).map_err(|problem| vec![problem])
}

fn begins_with_number(line: &str) -> bool {
    line.split(',').next().is_some_and(|field| field.trim().parse::<f64>().is_ok())
}

/// Puts requests with times in nanoseconds, in order, into a run that starts with the first.
fn place(lines: Vec<(u128, Recorded)>, speed: f64) -> Result<Vec<Recorded>, String> {
    let (Some((first, _)), Some((last, _))) = (lines.first(), lines.last()) else {
        return Err("the log has no requests".to_owned());
    };
    let (first, last) = (*first, *last);
    // Subtracted before it is rounded: nanoseconds since 1970 need more digits than a float has.
    let since_first = |at: u128| (at - first) as f64 / speed;
    let days = |nanos: f64| nanos / 1e9 / DAY as f64;
    let (takes, most) = (days(since_first(last)), days(LONGEST.as_nanos() as f64));
    if takes > most {
        return Err(format!(
            "the log takes {takes:.0} days at this speed, at most {most} are allowed"
        ));
    }
    let placed = lines.into_iter().map(|(at, request)| Recorded {
        at: Instant::from_nanos(since_first(at).round() as u64),
        ..request
    });
    Ok(placed.collect())
}

/// One request, and its time in nanoseconds.
fn parse_line(line: &str, workflows: &mut Workflows) -> Result<(u128, Recorded), String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [at, workflow, business, user, service] = fields[..] else {
        let count = fields.len();
        return Err(format!(
            "{count} fields are not allowed: timestamp, workflow, business, user, service"
        ));
    };
    let wrong = |name, value, allowed| format!("{name} = \"{value}\" is not allowed: {allowed}");
    let at = decimal(at, 9).ok_or_else(|| wrong("timestamp", at, "seconds, 0 or more"))?;
    let nanos = decimal(service, 3).and_then(|nanos| u64::try_from(nanos).ok());
    let time = nanos.map(Span::from_nanos).filter(|time| *time <= LONGEST);
    let time =
        time.ok_or_else(|| wrong("service", service, "microseconds, 0 or more, 30 days at most"))?;
    let rank = match (business, user) {
        ("", "") => Rank::UNRANKED,
        (business, user) => {
            let part = business.parse().ok().filter(|part| *part < Rank::BUSINESS);
            let part =
                part.ok_or_else(|| wrong("business", business, "a whole number, 0 to 63"))?;
            let user = if user.is_empty() { Ok(0) } else { user.parse() };
            Rank::new(
                part,
                user.map_err(|_| wrong("user", fields[3], "a whole number, 0 to 65535"))?,
            )
        }
    };
    let workflow = workflows.number(workflow);
    Ok((at, Recorded { at: Instant::ZERO, workflow, rank, service: time }))
}

/// A decimal number × 10^`places`, exactly but for what is beyond the last place, which is rounded;
/// none if it is no number, below zero, or has more than 38 digits.
fn decimal(text: &str, places: i32) -> Option<u128> {
    let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let digits = [whole, fraction].concat();
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: u128 = digits.parse().ok()?;
    let exponent: i32 = exponent.parse().ok()?;
    let shift = exponent.checked_add(places)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    match 10u128.checked_pow(shift.unsigned_abs()) {
        _ if number == 0 => Some(0),
        Some(factor) if shift >= 0 => number.checked_mul(factor),
        Some(factor) => Some(number / factor + u128::from(number % factor >= factor / 2)),
        None => (shift < 0).then_some(0),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Workflow;

    use super::*;

    fn times(text: &str, speed: f64) -> Result<Vec<u64>, Vec<String>> {
        let log = parse(text, speed, &mut Workflows::default())?;
        Ok(log.iter().map(|request| request.at.as_nanos()).collect())
    }

    #[test]
    fn reads_lines_in_order_of_time() {
        let mut workflows = Workflows::default();
        let text = "timestamp,workflow,business,user,service\n0.5,shop,3,7,10\n 0.25 ,,,,2.5\n";
        let log = parse(text, 2.0, &mut workflows).unwrap();
        let first = Recorded {
            at: Instant::ZERO,
            workflow: Workflow::NONE,
            rank: Rank::UNRANKED,
            service: Span::from_nanos(2_500),
        };
        assert_eq!(log[0], first);
        assert_eq!(log[1].at, Instant::from_nanos(125_000_000));
        assert_eq!((log[1].workflow, log[1].rank), (Workflow(1), Rank::new(3, 7)));
    }

    /// An access log counts from 1970; nanoseconds since then are more than a float can tell apart.
    #[test]
    fn the_earliest_line_is_the_start() {
        let text = "1700000000.000000257,,,,1\n1700000000.000000001,,,,1\n1.7e9,,,,1\n";
        assert_eq!(times(text, 1.0), Ok(vec![0, 1, 257]));
        assert_eq!(times("1e-5,,,,1\n2e-5,,,,1\n", 1.0), Ok(vec![0, 10_000]));
    }

    #[test]
    fn a_log_of_years_is_refused() {
        for text in ["0,,,,1\n1700000000,,,,1\n", "0,,,,1\n1e27,,,,1\n"] {
            let problems = times(text, 1.0).unwrap_err();
            assert!(problems[0].contains("at most 30 are allowed"), "{problems:?}");
        }
        assert_eq!(times("0,,,,1\n1700000000,,,,1\n", 1e6), Ok(vec![0, 1_700_000_000_000]));
    }

    #[test]
    fn every_wrong_line_is_told() {
        let text = "-1,a,1,2,3\n0,a,1,2\n0,a,64,0,1\n0,a,1,x,1\n0,a,,2,1\n0,a,1,2,-1\n1e300,a,1,2,1\n0,a,1,2,1e30\n";
        let problems = times(text, 1.0).unwrap_err();
        let expected = [
            "line 1 of the log: timestamp = \"-1\" is not allowed: seconds",
            "line 2 of the log: 4 fields",
            "line 3 of the log: business = \"64\"",
            "line 4 of the log: user = \"x\"",
            "line 5 of the log: business = \"\"",
            "line 6 of the log: service = \"-1\"",
            "line 7 of the log: timestamp = \"1e300\"",
            "line 8 of the log: service = \"1e30\"",
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem}");
        }
        let no_log = "0,is,no,log\n".repeat(1000);
        let problems = times(&no_log, 1.0).unwrap_err();
        assert_eq!(
            (problems.len(), problems[TOLD].as_str()),
            (101, "900 more lines of the log are wrong")
        );
        assert!(times("", 1.0).is_err());
        assert!(times("a heading\n", 1.0).is_err());
    }
}
