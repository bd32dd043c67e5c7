//! Policies of a plan: the blocks of the library and the sidecar, as they are.

use tidegate_core::Span;
use tidegate_core::admission::AdmissionConfig;
use tidegate_core::caller::CallerConfig;
use tidegate_core::config::{ConfigError, Problem};
use tidegate_core::gate::GateConfig;
use tidegate_core::retry::RetryConfig;
use tidegate_core::slots::SlotsConfig;
use tidegate_core::throttle::ThrottleConfig;
use toml::{Table, Value};

use super::reader::Reader;
use super::underlay;
use crate::topology::Topology;

/// The policies that need no block: the yardsticks.
pub(super) const IDEAL: &str = "ideal";
pub(super) const TOLD: &str = "told";

/// What a policy of a plan says.
pub(super) struct Policy {
    /// By service.
    pub(super) gates: Vec<GateConfig>,
    pub(super) caller: CallerConfig,
    /// Whether requests carry their deadline.
    pub(super) deadlines: bool,
}

/// The blocks of the policy that runs, by service; all policies are checked.
pub(super) fn read_policies(
    root: &mut Reader<'_>,
    policy: &str,
    topology: &Topology,
    slo: Span,
    rtt: Span,
) -> Policy {
    let mut chosen = None;
    let base = ["gate", "caller"].map(|key| root.block(key));
    root.table("policies", |policies| {
        policies.each_table(|name, block| {
            let configs = read_policy(block, &base, topology, slo, rtt);
            if name == policy {
                chosen = Some(configs);
            }
        });
    });
    // A policy that is missing altogether has been told already.
    if chosen.is_none() && !policy.is_empty() && ![IDEAL, TOLD].contains(&policy) {
        root.note("policy", &format!("= \"{policy}\" has no block [policies.{policy}]"));
    }
    chosen.unwrap_or_else(|| {
        let gates = topology.services.iter().map(|service| GateConfig {
            admission: AdmissionConfig::Open,
            slots: SlotsConfig::fixed(service.cores),
            queue_limit: 1 << 20,
            ..GateConfig::default()
        });
        let (throttle, retry) = (ThrottleConfig::Open, RetryConfig::default());
        let retry = RetryConfig { attempts: 1, ..retry };
        let caller = CallerConfig { throttle, retry, ..CallerConfig::default() };
        Policy { gates: gates.collect(), caller, deadlines: true }
    })
}

/// The two blocks of a policy. A gate that does not say how many slots it has gets one per core.
fn read_policy(
    block: &mut Reader<'_>,
    [gate_base, caller_base]: &[Table; 2],
    topology: &Topology,
    slo: Span,
    rtt: Span,
) -> Policy {
    let deadlines = block.flag("deadlines", true);
    let (own_gate, own_caller) = (block.block("gate"), block.block("caller"));
    let merged = |own: &Table, base: &Table| {
        let mut table = own.clone();
        underlay(&mut table, base);
        in_terms_of(&mut table, &[(" slo", slo), (" rtt", rtt)]);
        table
    };
    let gate = merged(&own_gate, gate_base);
    let gates = topology.services.iter().map(|service| {
        let mut gate = gate.clone();
        let mut slots = Table::new();
        slots.insert("slots".to_owned(), Value::String("fixed".to_owned()));
        slots.insert("count".to_owned(), Value::Integer(i64::from(service.threads)));
        gate.entry("slots").or_insert(Value::Table(slots));
        GateConfig::from_table(gate).unwrap_or_else(|error| {
            note_all(block, "gate", [&own_gate, gate_base], &error);
            GateConfig::default()
        })
    });
    let gates = gates.collect();
    let caller = CallerConfig::from_table(merged(&own_caller, caller_base));
    let caller = caller.unwrap_or_else(|error| {
        note_all(block, "caller", [&own_caller, caller_base], &error);
        CallerConfig::default()
    });
    Policy { gates, caller, deadlines }
}

/// Notes what is wrong with the block `name` of a policy, where it was written: in the policy's `own` block, or
/// in the one that all policies have.
fn note_all(block: &mut Reader<'_>, name: &str, [own, base]: [&Table; 2], error: &ConfigError) {
    for Problem { field, value, allowed, .. } in error.problems() {
        if field.is_empty() {
            block.note(name, &format!(": {allowed}"));
            continue;
        }
        let path = format!("{name}.{field}");
        let problem = format!("= {value} is not allowed: {allowed}");
        if !has_path(own, field) && has_path(base, field) {
            block.note_at(&path, &problem);
        } else {
            block.note(&path, &problem);
        }
    }
}

/// Whether a table has something at a dotted path.
fn has_path(table: &Table, path: &str) -> bool {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    match table.get(first) {
        Some(Value::Table(inner)) if !rest.is_empty() => has_path(inner, rest),
        found => found.is_some(),
    }
}

/// Replaces `"0.4 slo"` and the like by times, so that one block serves any service time.
fn in_terms_of(table: &mut Table, units: &[(&str, Span)]) {
    for (_, value) in table.iter_mut() {
        match value {
            Value::Table(inner) => in_terms_of(inner, units),
            Value::String(text) => {
                let time = units.iter().find_map(|(unit, span)| {
                    let factor = text.strip_suffix(unit)?.trim().parse().ok()?;
                    Some(span.scale(factor).to_string())
                });
                if let Some(time) = time {
                    *text = time;
                }
            }
            _ => {}
        }
    }
}
