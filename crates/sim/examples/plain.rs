//! scratch
use tidegate_core::admission::{AdmissionConfig, TideConfig};
use tidegate_core::gate::GateConfig;
use tidegate_core::objective::Objective;
use tidegate_core::slots::{AdaptiveConfig, SlotsConfig};
use tidegate_sim::plain::{possible, rows, run};
fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let seeds: u64 = std::env::args().nth(2).and_then(|s| s.parse().ok()).unwrap_or(1);
    let file = "/tmp/possible.txt";
    let known = std::fs::read_to_string(file).unwrap_or_default();
    let mut out = known.clone();
    for row in rows().iter().filter(|row| row.name.contains(&filter)) {
        let objective =
            if row.learned { Objective::Learned } else { Objective::Given(row.plain.slo) };
        let tide = TideConfig { objective, ..TideConfig::default() };
        let config = GateConfig {
            admission: AdmissionConfig::Tide(tide),
            slots: SlotsConfig::Adaptive(AdaptiveConfig::default()),
            ..GateConfig::default()
        };
        let best = known
            .lines()
            .find_map(|l| l.strip_prefix(&format!("{}\t", row.name)))
            .map(|v| v.parse().unwrap());
        let best: f64 = best.unwrap_or_else(|| {
            let b = possible(&row.plain, 1);
            out += &format!("{}\t{b}\n", row.name);
            b
        });
        let mut line = format!("{:36} poss {best:.3} ", row.name);
        for seed in if std::env::var("ONE").is_ok() { seeds..=seeds } else { 1..=seeds } {
            let t = std::time::Instant::now();
            let s = run(&row.plain, &config, seed);
            line += &format!(
                "| {:.3} {:+.3} p99 {:.2} ref {:.3} slots {:6.2} in {:.1} obj {} {:.1}s ",
                s.good,
                s.good - best,
                s.p99,
                s.refused,
                s.slots,
                s.most_inside,
                s.objective,
                t.elapsed().as_secs_f64()
            );
        }
        println!("{line}");
    }
    std::fs::write(file, out).unwrap();
}
