//! The services that are looked at: named before anything was tuned to them.

use tidegate_core::Span;
use tidegate_core::admission::{AdmissionConfig, TideConfig};
use tidegate_core::gate::GateConfig;
use tidegate_core::objective::Objective;
use tidegate_core::slots::{AdaptiveConfig, SlotsConfig};

use super::{Neighbour, Plain, Stalls, Weather};
use crate::dist::{Dist, Service};

/// A plain service, and how much the gate before it is told.
#[derive(Clone, Debug)]
pub struct Row {
    /// What is special about it.
    pub name: &'static str,
    /// The service and its load.
    pub plain: Plain,
    /// Whether the gate has to learn the objective.
    pub learned: bool,
}

impl Row {
    /// What the sidecar does before it unless told otherwise.
    pub fn defaults(&self) -> GateConfig {
        let objective = if self.learned { Objective::Learned } else { self.plain.slo.into() };
        GateConfig {
            admission: AdmissionConfig::Tide(TideConfig { objective, ..TideConfig::default() }),
            slots: SlotsConfig::Adaptive(AdaptiveConfig::default()),
            ..GateConfig::default()
        }
    }
}

/// One exponential worker of 5 ms under twice its capacity, whose answers are worth something for 16 times
/// that; the rows say what differs.
fn usual() -> Plain {
    Plain {
        workers: 1,
        service: Service { dist: Dist::Exponential, mean: Span::from_millis(5) },
        around: None,
        slo: Span::from_millis(80),
        load: 2.0,
        before: 2.0,
        patience: None,
        told: false,
        goes_on: true,
        weather: Weather::default(),
        warm_up: Span::from_secs(5),
        answers: 10_000,
    }
}

fn of(workers: u32, dist: Dist, mean: Span, slo: Span, load: f64) -> Plain {
    let service = Service { dist, mean };
    let warm_up = usual().warm_up.max(mean.scale(150.0));
    Plain { workers, service, slo, load, before: load, warm_up, ..usual() }
}

/// All rows.
pub fn rows() -> Vec<Row> {
    let given = |name, plain| Row { name, plain, learned: false };
    let learned = |name, plain: Plain| {
        // The objective of who says nothing is ten times what requests take.
        Row { name, plain: Plain { slo: plain.takes().scale(10.0), ..plain }, learned: true }
    };
    let (ms, us) = (Span::from_millis, Span::from_micros);
    let (exponential, bimodal) = (Dist::Exponential, Dist::Bimodal);
    let at = |load| Plain { load, before: load, ..usual() };
    let leaving = |plain: Plain| Plain { patience: Some(plain.slo), told: true, ..plain };
    let untold = |plain: Plain| Plain { patience: Some(plain.slo), ..plain };
    let wide = |workers, load| of(workers, Dist::Exponential, ms(5), ms(80), load);
    let stalls = Some(Stalls { lasts: ms(400), every: Span::from_secs(10) });
    let neighbour = Some(Neighbour { speed: 0.5, lasts: (ms(20), ms(200)) });
    let around = [ms(4), ms(4)].map(|mean| Service { dist: Dist::Exponential, mean });
    let tiers = |plain| Plain { slo: ms(160), around: Some(around.clone()), ..plain };
    let stalled = |plain| Plain { weather: Weather { stalls, neighbour: None }, ..plain };
    let shared = |plain| Plain { weather: Weather { stalls: None, neighbour }, ..plain };
    vec![
        given("1 worker, 1.2 x", at(1.2)),
        given("1 worker, 2 x", at(2.0)),
        given("1 worker, 4 x", at(4.0)),
        given("1 worker, deadlines, 1.2 x", leaving(at(1.2))),
        given("1 worker, deadlines, 2 x", leaving(at(2.0))),
        given("1 worker, deadlines, 4 x", leaving(at(4.0))),
        given("1 worker, callers leave, 2 x", untold(at(2.0))),
        given("1 worker, ended when left, 2 x", Plain { goes_on: false, ..leaving(at(2.0)) }),
        given("1 worker, bimodal, 1.2 x", of(1, bimodal.clone(), ms(5), ms(80), 1.2)),
        given("1 worker, bimodal, 4 x", of(1, bimodal.clone(), ms(5), ms(80), 4.0)),
        given("1 worker, constant, 2 x", of(1, Dist::Constant, ms(5), ms(80), 2.0)),
        given("1 worker, 0.5 ms, 2 x", of(1, exponential.clone(), us(500), us(7_500), 2.0)),
        given("1 worker, 100 ms, 2 x", of(1, exponential.clone(), ms(100), ms(1_500), 2.0)),
        given("4 workers, 1.2 x", wide(4, 1.2)),
        given("4 workers, 2 x", wide(4, 2.0)),
        given("4 workers, 4 x", wide(4, 4.0)),
        given("4 workers, deadlines, 4 x", leaving(wide(4, 4.0))),
        given("4 workers, bimodal, 2 x", of(4, bimodal.clone(), ms(5), ms(80), 2.0)),
        given("32 workers, 1.2 x", wide(32, 1.2)),
        given("32 workers, 2 x", wide(32, 2.0)),
        given("32 workers, 4 x", wide(32, 4.0)),
        given("32 workers, bimodal, 100 ms, 2 x", of(32, bimodal, ms(100), ms(1_500), 2.0)),
        given("32 workers, constant, 2 x", of(32, Dist::Constant, ms(5), ms(80), 2.0)),
        given("32 workers, deadlines, 2 x", leaving(wide(32, 2.0))),
        given("1 worker, stalls, 2 x", stalled(at(2.0))),
        given("1 worker, stalls, deadlines, 2 x", stalled(leaving(at(2.0)))),
        given("4 workers, stalls, 2 x", stalled(wide(4, 2.0))),
        given("1 worker, neighbour, 2 x", shared(at(2.0))),
        given("4 workers, neighbour, 2 x", shared(wide(4, 2.0))),
        given("1 worker, began at 10 x", Plain { before: 10.0, ..at(2.0) }),
        learned("1 worker, nothing said, 1.2 x", at(1.2)),
        learned("1 worker, nothing said, 2 x", at(2.0)),
        learned("1 worker, nothing said, 4 x", at(4.0)),
        learned("4 workers, nothing said, 2 x", wide(4, 2.0)),
        learned("32 workers, nothing said, 2 x", wide(32, 2.0)),
        given("3 tiers, 1.2 x", tiers(at(1.2))),
        given("3 tiers, 2 x", tiers(at(2.0))),
        given("3 tiers, 4 x", tiers(at(4.0))),
        learned("3 tiers, nothing said, 2 x", tiers(at(2.0))),
        given("3 tiers of 4 workers, 2 x", tiers(wide(4, 2.0))),
        given("3 tiers, 0.8 x", tiers(at(0.8))),
        given("1 worker, 0.8 x", at(0.8)),
        given("4 workers, 0.8 x", wide(4, 0.8)),
        given("32 workers, 0.9 x", wide(32, 0.9)),
    ]
}
