//! Recorded logs: one request per line.
//!
//! ```text
//! timestamp,workflow,business,user,service
//! 0.000125,checkout,3,4711,870
//! ```
//!
//! The time since the start of the log in seconds, the workflow's name (may be empty), the rank's
//! two parts (may be empty), and the service time in microseconds. A first line that does not begin
//! with a number is a heading.

use std::path::Path;

use tidegate_core::context::Workflows;
use tidegate_core::{Instant, Rank, Span};

use crate::workload::Recorded;

/// Reads a log, its times divided by `speed`, in order of time.
pub(super) fn read(
    path: &Path,
    speed: f64,
    workflows: &mut Workflows,
) -> Result<Vec<Recorded>, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text, speed, workflows)
}

fn parse(text: &str, speed: f64, workflows: &mut Workflows) -> Result<Vec<Recorded>, String> {
    let mut log = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let heading = number == 0 && !line.starts_with(|c: char| c.is_ascii_digit());
        if heading || line.trim().is_empty() {
            continue;
        }
        let request = parse_line(line, speed, workflows)
            .ok_or_else(|| format!("line {} of the log is not understood: {line}", number + 1))?;
        log.push(request);
    }
    if log.is_empty() {
        return Err("the log has no requests".to_owned());
    }
    log.sort_by_key(|request: &Recorded| request.at);
    Ok(log)
}

fn parse_line(line: &str, speed: f64, workflows: &mut Workflows) -> Option<Recorded> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [at, workflow, business, user, service] = fields[..] else { return None };
    let at: f64 = at.parse().ok()?;
    let service: f64 = service.parse().ok()?;
    if !(at.is_finite() && at >= 0.0 && service.is_finite() && service >= 0.0) {
        return None;
    }
    let rank = match (business, user) {
        ("", "") => Rank::UNRANKED,
        (business, "") => Rank::try_from((business.parse().ok()?, 0)).ok()?,
        (business, user) => Rank::try_from((business.parse().ok()?, user.parse().ok()?)).ok()?,
    };
    Some(Recorded {
        at: Instant::from_nanos((at / speed * 1e9).round() as u64),
        workflow: workflows.number(workflow),
        rank,
        service: Span::from_nanos((service * 1e3).round() as u64),
    })
}

#[cfg(test)]
mod tests {
    use tidegate_core::Workflow;

    use super::*;

    #[test]
    fn reads_lines_and_names_the_bad_one() {
        let mut workflows = Workflows::default();
        let text = "timestamp,workflow,business,user,service\n0.5,shop,3,7,10\n0.25,,,,2.5\n";
        let log = parse(text, 2.0, &mut workflows).unwrap();
        assert_eq!(
            log[0],
            Recorded {
                at: Instant::from_nanos(125_000_000),
                workflow: Workflow::NONE,
                rank: Rank::UNRANKED,
                service: Span::from_nanos(2_500),
            }
        );
        assert_eq!((log[1].workflow, log[1].rank), (Workflow(1), Rank::new(3, 7)));
        for bad in ["0,a,1,2", "0,a,64,0,1", "0,a,1,2,x", "0,a,1,2,-1"] {
            let error = parse(bad, 1.0, &mut workflows).unwrap_err();
            assert!(error.starts_with("line 1 "), "{error}");
        }
        assert!(parse("", 1.0, &mut workflows).is_err());
    }
}
