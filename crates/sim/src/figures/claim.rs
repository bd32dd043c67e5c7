//! What a figure is expected to show, as numbers that can fail.

/// One statement of a figure, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// What is said.
    pub what: String,
    /// Which values would agree with it: the tolerance is stated here.
    pub expected: String,
    /// What was measured.
    pub measured: String,
    /// What the original reports; empty if it gives no number.
    pub paper: String,
    /// Whether the measurement agrees.
    pub holds: bool,
    /// Whether it is a goal known to be missed at this commit: told every time, and no surprise.
    pub open: bool,
    /// Whether it is what the original reports and known not to reproduce, by as much as it is known: told every time,
    /// and no surprise.
    pub differs: bool,
    /// What was measured, as a number, and how far inside the bound it is, below zero outside.
    value: f64,
    room: f64,
}

impl Claim {
    /// `measured` must be `bound` or more.
    pub fn at_least(what: &str, unit: Unit, measured: f64, bound: f64) -> Self {
        Self::new(what, format!("≥ {}", unit.show(bound)), unit, measured, measured - bound)
    }

    /// `measured` must be `bound` or less.
    pub fn at_most(what: &str, unit: Unit, measured: f64, bound: f64) -> Self {
        Self::new(what, format!("≤ {}", unit.show(bound)), unit, measured, bound - measured)
    }

    /// `measured` must lie between the two.
    pub fn between(what: &str, unit: Unit, measured: f64, low: f64, high: f64) -> Self {
        let expected = format!("{} to {}", unit.show(low), unit.show(high));
        Self::new(what, expected, unit, measured, (measured - low).min(high - measured))
    }

    /// The mean of several measurements must be `bound` or less, as far as they can tell: it fails above by more than
    /// two standard errors. For what chance decides one by one.
    pub fn at_most_on_average(what: &str, unit: Unit, measured: &[f64], bound: f64) -> Self {
        let (mean, error) = mean_and_error(measured);
        let expected = format!("≤ {} within 2 errors", unit.show(bound));
        let claim = Self::new(what, expected, unit, mean, bound - (mean - 2.0 * error));
        Self { measured: format!("{} ± {}", claim.measured, unit.show(error)), ..claim }
    }

    /// The mean of several measurements must lie between the two, whatever its error, which is told.
    pub fn between_on_average(
        what: &str,
        unit: Unit,
        measured: &[f64],
        low: f64,
        high: f64,
    ) -> Self {
        let (mean, error) = mean_and_error(measured);
        let claim = Self::between(what, unit, mean, low, high);
        Self { measured: format!("{} ± {}", claim.measured, unit.show(error)), ..claim }
    }

    fn new(what: &str, expected: String, unit: Unit, measured: f64, room: f64) -> Self {
        let (what, value, measured) = (what.to_owned(), measured, unit.show(measured));
        let (holds, paper) = (room >= 0.0, String::new());
        Self { what, expected, measured, paper, holds, open: false, differs: false, value, room }
    }

    /// Of the same claim measured twice, the one that agrees less.
    pub fn worse(self, other: Self) -> Self {
        if other.holds && self.room <= other.room { self } else { other }
    }

    /// With what the original reports beside it.
    pub fn paper(mut self, number: &str) -> Self {
        self.paper = number.to_owned();
        self
    }

    /// A goal that is not reached yet. It fails the full figure; in a quick one it is told as missed
    /// and fails nothing, so that everything else can be kept.
    pub fn open(mut self) -> Self {
        self.open = true;
        self
    }

    /// What the original reports does not reproduce here: what is measured lies from `low` to `high` instead. Within, the
    /// claim is missed and fails nothing; what is neither there nor where the original has it fails.
    pub fn differs(mut self, low: f64, high: f64) -> Self {
        self.differs = !self.holds && (low..=high).contains(&self.value);
        self
    }

    /// Whether the figure fails by this claim.
    pub fn breaks(&self, quick: bool) -> bool {
        let excused = quick && self.open;
        !self.holds && !excused && !self.differs
    }
}

/// The mean, and its standard error.
fn mean_and_error(measured: &[f64]) -> (f64, f64) {
    let count = measured.len() as f64;
    let mean = measured.iter().sum::<f64>() / count;
    let squares: f64 = measured.iter().map(|one| (one - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0) / count).sqrt())
}

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A share, as a percentage.
    Percent,
    /// Microseconds.
    Micros,
    /// Milliseconds.
    Millis,
    /// Requests per second.
    Rate,
    /// A ratio of two numbers.
    Times,
    /// A number of things.
    Count,
}

impl Unit {
    /// The number as people read it.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Percent => format!("{:.1} %", value * 100.0),
            Self::Micros => format!("{value:.0} µs"),
            Self::Millis => format!("{value:.0} ms"),
            Self::Rate => format!("{value:.0}/s"),
            Self::Times => format!("{value:.3}×"),
            Self::Count => format!("{value:.0}"),
        }
    }
}

/// The claims as a table for people.
pub fn table(claims: &[Claim]) -> String {
    let heading = ["", "claim", "expected", "measured", "paper"].map(str::to_owned);
    let row = |claim: &Claim| {
        let mark = match claim {
            Claim { holds: true, .. } => "ok",
            Claim { open: true, .. } | Claim { differs: true, .. } => "missed",
            _ => "FAILED",
        };
        let Claim { what, expected, measured, paper, .. } = claim.clone();
        [mark.to_owned(), what, expected, measured, paper]
    };
    let rows: Vec<[String; 5]> = std::iter::once(heading).chain(claims.iter().map(row)).collect();
    let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut out = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        out += cells.collect::<Vec<_>>().join("  ").trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_hold_up_to_their_bounds_and_no_further() {
        let holds = |measured| {
            [
                Claim::at_least("", Unit::Percent, measured, 0.5).holds,
                Claim::at_most("", Unit::Percent, measured, 0.5).holds,
                Claim::between("", Unit::Percent, measured, 0.4, 0.5).holds,
            ]
        };
        assert_eq!(holds(0.5), [true, true, true]);
        assert_eq!(holds(0.51), [true, false, false]);
        assert_eq!(holds(0.39), [false, true, false]);
        assert_eq!(holds(f64::NAN), [false, false, false]);
    }

    #[test]
    fn a_mean_fails_above_two_errors() {
        // Mean 1.02; the bound is two errors below it, less a little and more a little.
        let claim = |less: f64| {
            let measured = [1.02 - less, 1.02 + 0.02f64 - less, 1.0 - less, 1.02 - less];
            let error = (2.0 * 0.02f64.powi(2) / 3.0 / 4.0).sqrt();
            let claim = Claim::at_most_on_average("", Unit::Times, &measured, 1.02 - 2.0 * error);
            (claim.holds, claim.measured)
        };
        assert_eq!(claim(0.001), (true, "1.019× ± 0.008×".to_owned()));
        assert!(!claim(-0.001).0);
        let alone = Claim::at_most_on_average("", Unit::Times, &[0.5], 1.0);
        assert!(!alone.holds, "one measurement has no error");
    }

    #[test]
    fn a_mean_between_two_bounds_is_judged_by_itself() {
        let claim = |low| Claim::between_on_average("", Unit::Percent, &[0.26, 0.30], low, 0.35);
        assert!(claim(0.28).holds && !claim(0.281).holds, "its error is no excuse");
        assert_eq!(claim(0.28).measured, "28.0 % ± 2.0 %");
    }

    #[test]
    fn of_two_measurements_the_worse_is_told() {
        let claim = |measured| Claim::at_most("", Unit::Count, measured, 5.0);
        for (a, b, worse) in
            [(3.0, 4.0, "4"), (4.0, 3.0, "4"), (6.0, 3.0, "6"), (3.0, f64::NAN, "NaN")]
        {
            assert_eq!(claim(a).worse(claim(b)).measured, worse);
        }
    }

    #[test]
    fn an_open_goal_breaks_the_full_figure_only() {
        let goal = |measured| Claim::at_least("", Unit::Percent, measured, 0.5).open();
        assert!(!goal(0.4).breaks(true) && goal(0.4).breaks(false));
        assert!(!goal(0.6).breaks(true) && !goal(0.6).breaks(false));
        assert!(Claim::at_least("", Unit::Percent, 0.4, 0.5).breaks(true));
        assert!(table(&[goal(0.4)]).contains("missed"));
    }

    /// It was once judged by a bound that a faithful reproduction would have failed.
    #[test]
    fn what_differs_from_the_paper_is_missed_where_it_is_known_and_fails_elsewhere() {
        let drops =
            |measured| Claim::between("", Unit::Percent, measured, 0.01, 0.03).differs(0.0, 0.005);
        let marks = |measured| {
            (drops(measured).breaks(false), table(&[drops(measured)]).contains("missed"))
        };
        assert_eq!(marks(0.02), (false, false), "as in the paper");
        assert_eq!(marks(0.001), (false, true), "known");
        assert_eq!(marks(0.007), (true, false), "neither");
        assert_eq!(marks(f64::NAN), (true, false));
    }

    #[test]
    fn the_table_tells_both_numbers() {
        let claims = [
            Claim::at_least("held", Unit::Percent, 0.97, 0.95).paper("94 %"),
            Claim::at_most("a longer statement", Unit::Micros, 210.4, 200.0),
        ];
        let text = table(&claims);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "ok      held                ≥ 95.0 %  97.0 %    94 %");
        assert_eq!(lines[2], "FAILED  a longer statement  ≤ 200 µs  210 µs");
    }
}
