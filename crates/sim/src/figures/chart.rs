//! Charts as SVG: panels side by side, lines with marks, one legend. Just what the figures need.

use std::fmt::Write;

/// A picture.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Above everything.
    pub title: String,
    /// From left to right.
    pub panels: Vec<Panel>,
}

/// One pair of axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above the axes.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// What is drawn.
    pub lines: Vec<Line>,
}

/// What an axis is for.
#[derive(Clone, Debug)]
pub struct Axis {
    label: String,
    scale: Scale,
    /// Values above are drawn at the edge.
    most: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// From zero.
    Linear,
    /// Powers of ten.
    Log,
}

impl Scale {
    fn has(self, value: f64) -> bool {
        value.is_finite() && (self == Self::Linear || value > 0.0)
    }
}

impl Axis {
    /// An axis that starts at zero.
    pub fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Linear, most: None }
    }

    /// An axis of powers of ten.
    pub fn log(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Log, most: None }
    }

    /// Values above `most` are drawn at the edge.
    pub fn up_to(mut self, most: f64) -> Self {
        self.most = Some(most);
        self
    }
}

/// Points that belong together. Lines of one name have one colour in all panels.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
    /// Whether points are not joined.
    pub scatter: bool,
}

impl Line {
    /// A line through `points`.
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, scatter: false }
    }

    /// A cloud of points.
    pub fn scatter(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, scatter: true }
    }
}

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 250.0;
/// Left of the axes, right, above and below them, in each panel.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 44.0;
const TITLE: f64 = 34.0;
const LEGEND: f64 = 26.0;
/// A further row of the legend.
const ROW: f64 = 18.0;
/// Lines with more points have no marks.
const MARKED: usize = 40;

/// Colours that people with any kind of colour vision can tell apart (Okabe and Ito), ours first.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#000000"];

/// Of lines that lie on each other the upper ones have gaps, so that the lower ones are seen.
const DASHES: [&str; 8] = ["", "", "", "", "2 4", "7 4", "", ""];

impl Chart {
    /// The picture.
    pub fn to_svg(&self) -> String {
        let names = self.names();
        let width = WIDTH * self.panels.len().max(1) as f64;
        let legend = rows_of(&names, width);
        let height = TITLE + HEIGHT + LEGEND + ROW * legend.len().saturating_sub(1) as f64;
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\" \
             fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fdfdfb\"/>"
        );
        // A letter is about half as wide as it is high.
        let fits = width / (0.55 * self.title.chars().count().max(1) as f64);
        let size = format!("middle\" font-size=\"{:.1}", fits.min(15.0));
        text(&mut out, width / 2.0, 22.0, &size, &self.title);
        for (n, panel) in self.panels.iter().enumerate() {
            panel.draw(&mut out, WIDTH * n as f64, TITLE, &names);
        }
        for (n, row) in legend.iter().enumerate() {
            draw_legend(&mut out, &names, row, width, TITLE + HEIGHT + 8.0 + ROW * n as f64);
        }
        out += "</svg>\n";
        out
    }

    /// The points: `panel,line,x,y`, with a heading.
    pub fn to_csv(&self) -> String {
        let mut out = "panel,line,x,y\n".to_owned();
        for panel in &self.panels {
            for line in &panel.lines {
                for (x, y) in &line.points {
                    let (panel, line) = (quoted(&panel.title), quoted(&line.name));
                    let _ = writeln!(out, "{panel},{line},{x},{y}");
                }
            }
        }
        out
    }

    /// All names, in order of appearance: a name's place decides its colour.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for line in self.panels.iter().flat_map(|panel| &panel.lines) {
            if !names.contains(&line.name.as_str()) {
                names.push(&line.name);
            }
        }
        names
    }
}

impl Panel {
    fn draw(&self, out: &mut String, left: f64, top: f64, names: &[&str]) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x = Range::new(&self.x, points().map(|point| point.0));
        let y = Range::new(&self.y, points().map(|point| point.1));
        let (from_x, to_x) = (left + LEFT, left + WIDTH - RIGHT);
        let (from_y, to_y) = (top + HEIGHT - BOTTOM, top + TOP);
        let at = |(px, py): (f64, f64)| {
            (from_x + x.place(px) * (to_x - from_x), from_y + y.place(py) * (to_y - from_y))
        };
        text(out, (from_x + to_x) / 2.0, top + 18.0, "middle\" font-weight=\"bold", &self.title);
        for tick in y.ticks() {
            let (_, py) = at((x.low, tick));
            rule(out, (from_x, py), (to_x, py), "#ddd");
            text(out, from_x - 6.0, py + 4.0, "end", &short(tick));
        }
        for tick in x.ticks() {
            let (px, _) = at((tick, y.low));
            rule(out, (px, from_y), (px, from_y + 4.0), "#444");
            text(out, px, from_y + 17.0, "middle", &short(tick));
        }
        rule(out, (from_x, from_y), (to_x, from_y), "#444");
        rule(out, (from_x, from_y), (from_x, to_y), "#444");
        text(out, (from_x + to_x) / 2.0, from_y + 36.0, "middle", &self.x.label);
        let (middle, side) = ((from_y + to_y) / 2.0, left + 14.0);
        let turned = format!("middle\" transform=\"rotate(-90 {side:.1} {middle:.1})");
        text(out, side, middle, &turned, &self.y.label);
        // The first line is the one the figure is about: on top of the others.
        for line in self.lines.iter().rev() {
            let (colour, dashes) = style(names, &line.name);
            // The percentile of no answers is no point of a logarithmic axis.
            let shown = line.points.iter().filter(|point| x.shows(point.0) && y.shows(point.1));
            let points: Vec<(f64, f64)> = shown.map(|point| at(*point)).collect();
            if !line.scatter {
                draw_path(out, &points, colour, dashes);
            }
            if line.scatter || points.len() <= MARKED {
                draw_marks(out, &points, colour);
            }
        }
    }
}

fn draw_path(out: &mut String, points: &[(f64, f64)], colour: &str, dashes: &str) {
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let path = path.join(" ");
    let _ = writeln!(
        out,
        "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{}/>",
        dashed(dashes)
    );
}

fn draw_marks(out: &mut String, points: &[(f64, f64)], colour: &str) {
    for (x, y) in points {
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"{colour}\"/>");
    }
}

/// How wide a name is in the legend: about seven units per letter, and the sample of its line.
fn wide(name: &str) -> f64 {
    40.0 + 7.0 * name.chars().count() as f64
}

/// The rows of a legend that is at most so wide.
fn rows_of<'a>(names: &[&'a str], width: f64) -> Vec<Vec<&'a str>> {
    let (mut rows, mut used) = (vec![Vec::new()], 0.0);
    for name in names {
        let last = rows.len() - 1;
        if used + wide(name) > width && !rows[last].is_empty() {
            rows.push(vec![*name]);
            used = wide(name);
        } else {
            rows[last].push(*name);
            used += wide(name);
        }
    }
    rows
}

fn draw_legend(out: &mut String, names: &[&str], row: &[&str], width: f64, top: f64) {
    let total: f64 = row.iter().map(|name| wide(name)).sum();
    let mut left = (width - total).max(0.0) / 2.0;
    for name in row {
        let (colour, dashes) = style(names, name);
        let _ = writeln!(
            out,
            "<line x1=\"{left:.1}\" y1=\"{top:.1}\" x2=\"{:.1}\" y2=\"{top:.1}\" \
             stroke=\"{colour}\" stroke-width=\"3\"{}/>",
            left + 20.0,
            dashed(dashes)
        );
        text(out, left + 25.0, top + 4.0, "start", name);
        left += wide(name);
    }
}

/// Colour and dashes of a name.
fn style(names: &[&str], name: &str) -> (&'static str, &'static str) {
    let place = names.iter().position(|known| *known == name).unwrap_or(0);
    (COLOURS[place % COLOURS.len()], DASHES[place % DASHES.len()])
}

fn dashed(dashes: &str) -> String {
    if dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dashes}\"") }
}

fn rule(out: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
    );
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ =
        writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.into()
    }
}

/// `1500` as `1.5k`.
fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    // Ticks are multiples of 1, 2 or 5 of a power of ten: more digits are noise.
    let rounded = (value * 1e3).round() / 1e3;
    format!("{rounded}{unit}")
}

/// Which values an axis shows.
struct Range {
    scale: Scale,
    low: f64,
    high: f64,
    step: f64,
}

impl Range {
    fn new(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let usable = |value: &f64| axis.scale.has(*value);
        let values: Vec<f64> = values.filter(usable).collect();
        let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let most = axis.most.map_or(most, |limit| most.min(limit));
        match axis.scale {
            Scale::Linear => {
                let step = nice_step(most);
                let high = (most / step - 1e-9).ceil().max(1.0) * step;
                Self { scale: axis.scale, low: 0.0, high, step }
            }
            Scale::Log => {
                let least = values.iter().copied().fold(most, f64::min);
                let low = 10f64.powf(least.log10().floor());
                let high = 10f64.powf(most.log10().ceil()).max(low * 10.0);
                Self { scale: axis.scale, low, high, step: 10.0 }
            }
        }
    }

    /// Whether a value has a place on the axis at all.
    fn shows(&self, value: f64) -> bool {
        self.scale.has(value)
    }

    /// Where on the axis, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).log10() / (self.high / self.low).log10(),
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let count = (self.high / self.step).round() as u32;
                (0..=count).map(|n| f64::from(n) * self.step).collect()
            }
            Scale::Log => {
                let count = (self.high / self.low).log10().round() as i32;
                (0..=count).map(|n| self.low * 10f64.powi(n)).collect()
            }
        }
    }
}

/// A round distance of ticks that gives four to ten of them.
fn nice_step(most: f64) -> f64 {
    let power = 10f64.powf(most.log10().floor());
    match most / power {
        share if share <= 1.0 => power / 5.0,
        share if share <= 2.0 => power / 2.0,
        share if share <= 5.0 => power,
        _ => power * 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let panel = Panel {
            title: "goodput, k/s".to_owned(),
            x: Axis::log("callers"),
            y: Axis::linear("of capacity").up_to(1.0),
            lines: vec![
                Line::new("a & b", vec![(10.0, 0.0), (10_000.0, 1.0)]),
                Line::new("c", vec![(10.0, 7.0)]),
            ],
        };
        Chart { title: "x < y".to_owned(), panels: vec![panel.clone(), panel] }
    }

    #[test]
    fn points_lie_where_their_values_say() {
        let svg = chart().to_svg();
        // The corners of the first panel's axes.
        let (left, right) = (LEFT, WIDTH - RIGHT);
        let (bottom, top) = (TITLE + HEIGHT - BOTTOM, TITLE + TOP);
        let line = format!("points=\"{left:.1},{bottom:.1} {right:.1},{top:.1}\"");
        assert!(svg.contains(&line), "{line} is missing from\n{svg}");
        // What is above the axis is drawn at its edge.
        assert!(svg.contains(&format!("cx=\"{left:.1}\" cy=\"{top:.1}\"")), "{svg}");
        assert!(svg.contains("x &lt; y") && svg.contains("a &amp; b"), "{svg}");
        assert_eq!(svg.matches("<polyline").count(), 4);
        for tick in [">10<", ">100<", ">10k<", ">0.4<"] {
            assert!(svg.contains(tick), "{tick} is missing from\n{svg}");
        }
    }

    #[test]
    fn a_cloud_is_marks_without_a_line() {
        let mut chart = chart();
        chart.panels.truncate(1);
        let points = (0..100).map(|n| (10.0 + f64::from(n), 0.5)).collect();
        chart.panels[0].lines = vec![Line::scatter("cloud", points)];
        let svg = chart.to_svg();
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (0, 100));
    }

    #[test]
    fn a_long_legend_has_several_rows() {
        let names = ["a".repeat(30), "b".repeat(30), "c".repeat(5)];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(rows_of(&names, 1000.0).len(), 1);
        let rows = rows_of(&names, 360.0);
        assert_eq!(rows, [vec![names[0]], vec![names[1], names[2]]]);
    }

    #[test]
    fn one_name_has_one_colour() {
        let svg = chart().to_svg();
        // Two lines, their marks and one entry in the legend each.
        assert_eq!(svg.matches(COLOURS[0]).count(), 2 * (1 + 2) + 1);
        assert_eq!(svg.matches(COLOURS[1]).count(), 2 * (1 + 1) + 1);
    }

    #[test]
    fn zero_has_no_place_on_a_logarithmic_axis() {
        let mut chart = chart();
        chart.panels.truncate(1);
        chart.panels[0].y = Axis::log("µs");
        let points = vec![(10.0, 50.0), (100.0, 0.0), (1000.0, f64::NAN)];
        chart.panels[0].lines = vec![Line::new("l", points)];
        assert_eq!(chart.to_svg().matches("<circle").count(), 1);
        assert_eq!(chart.to_csv().lines().count(), 1 + 3);
    }

    #[test]
    fn lines_that_may_hide_others_have_gaps() {
        let mut chart = chart();
        let line = |n: u32| Line::new(&n.to_string(), vec![(10.0, 0.0), (100.0, 0.0)]);
        chart.panels.truncate(1);
        chart.panels[0].lines = (0..8).map(line).collect();
        // A line and its entry in the legend.
        assert_eq!(chart.to_svg().matches("stroke-dasharray").count(), 2 * 2);
    }

    #[test]
    fn csv_has_every_point() {
        let csv = chart().to_csv();
        assert_eq!(csv.lines().count(), 1 + 2 * 3);
        assert!(csv.contains("\"goodput, k/s\",c,10,7"), "{csv}");
    }

    #[test]
    fn empty_and_flat_charts_draw() {
        let panel = |points: Vec<(f64, f64)>| Panel {
            title: String::new(),
            x: Axis::linear("x"),
            y: Axis::log("y"),
            lines: vec![Line::new("l", points)],
        };
        let panels = vec![panel(Vec::new()), panel(vec![(0.0, 0.0)]), panel(vec![(1.0, f64::NAN)])];
        let svg = Chart { title: String::new(), panels }.to_svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
