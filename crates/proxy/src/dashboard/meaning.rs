//! The parameters in force, each with what it means: for people who did not write the file.
//!
//! One line each; the whole story of a parameter, with its unit and where its default comes from, is
//! in the policy's page of the book.

use serde_json::{Value, json};

use crate::config::File;

/// Where a parameter stands, and what it means. A policy's own come before what all share.
const MEANINGS: &[(&str, &str)] = &[
    ("gate.queue_limit", "Most requests that wait. More are refused, whatever the policy says."),
    (
        "gate.degrade_delay",
        "Delay from which answers may be degraded, where a service can do that.",
    ),
    ("gate.retry_share", "Share of retries above which callers are told not to retry at all."),
    ("gate.signals.read", "Which signals of the machine are read."),
    ("gate.signals.every", "Time between two samples of them."),
    ("gate.signals.combine", "How they become one number: the largest, or by weights."),
    ("gate.signals.stale_after", "Age from which on a sample counts as missing."),
    ("gate.admission.policy", "Who may enter: the admission policy."),
    ("tide.objective", "An answer later than this is worth nothing. The one value to set."),
    ("tide.target", "Delay the pool of credits is steered to, as a part of the objective."),
    ("tide.drop", "Predicted wait from which all are refused, as a part of the objective."),
    ("tide.beyond", "Wait allowed to ranks beyond the cursor, as a part of the target."),
    ("tide.free", "Part of the capacity that needs no credit: the most important go at once."),
    ("tide.engage", "Delay at which ranks begin to be cut, as a part of the target."),
    ("tide.probe", "Part of the refused that is let in all the same, to notice when load falls."),
    ("tide.holds", "How long callers believe a cursor, in control rounds."),
    ("tide.additive", "Growth of the pool per period and caller while delay is low."),
    ("tide.multiplicative", "How hard the pool shrinks as delay passes the target."),
    ("tide.floor", "Fewest credits there are."),
    ("tide.per_caller", "Most credits of one caller."),
    ("tide.forget", "A silent caller's credits go to others after this time."),
    ("breakwater.form", "As in the paper, or as in its published code."),
    ("breakwater.target", "Queueing delay that credits are steered to."),
    ("breakwater.drop", "Queueing delay above which arrivals are refused."),
    ("breakwater.period", "Time between two changes of the pool: about a round trip."),
    ("breakwater.additive", "Growth of the pool per period and caller while delay is low."),
    ("breakwater.multiplicative", "How hard the pool shrinks as delay passes the target."),
    ("breakwater.floor", "Fewest credits there are."),
    ("breakwater.per_caller", "Most credits of one caller."),
    ("breakwater.demand", "Whether callers that report no demand get credits too."),
    ("breakwater.delay", "What is taken for the queueing delay."),
    ("breakwater.turn", "Time a caller keeps its credits at least."),
    ("breakwater.forget", "A silent caller's credits go to others after this time."),
    ("dagor.form", "The corrected algorithm, or that of Breakwater's comparison."),
    ("dagor.alpha", "Part of the admitted that is cut when a window was overloaded."),
    ("dagor.beta", "Part of the arrivals that is let in more when it was not."),
    ("dagor.holds", "How long callers believe a cursor, in windows."),
    ("dagor.detector.signal", "What is taken for overload: waiting time or response time."),
    ("dagor.detector.window", "Time after which overload is judged."),
    ("dagor.detector.requests", "Or requests after which it is judged, whichever comes first."),
    ("dagor.detector.threshold", "Mean waiting time that counts as overload."),
    ("codel.form", "How requests of a standing queue are shed."),
    ("codel.interval", "How long a queue may stand before anything is shed."),
    ("codel.target", "Delay that a standing queue may have."),
    ("codel.slough", "Delay above which requests are shed, in targets."),
    ("gate.schedule.order", "Who is next among those that wait."),
    ("gate.slots.slots", "How many requests the service gets at once: fixed, or found by trial."),
    ("gate.slots.count", "Requests the service gets at once."),
    ("gate.slots.start", "Slots at the start."),
    ("gate.slots.least", "Fewest slots ever tried."),
    ("gate.slots.most", "Most slots ever tried."),
];

/// The gate's parameters in force: field, value and meaning, in the order of the file.
pub(crate) fn parameters(file: &File) -> Value {
    let (mut block, mut policy) = (String::new(), String::new());
    let mut list = Vec::new();
    for line in file.to_toml().lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut block);
        }
        let Some((field, value)) = line.split_once(" = ") else { continue };
        if block != "gate" && !block.starts_with("gate.") {
            continue;
        }
        let path = format!("{block}.{field}");
        if path == "gate.admission.policy" {
            value.trim_matches('"').clone_into(&mut policy);
        }
        let meaning = meaning(&path, &policy);
        list.push(json!({ "field": path, "value": value, "meaning": meaning }));
    }
    list.into()
}

fn meaning(path: &str, policy: &str) -> Option<&'static str> {
    let own = path.strip_prefix("gate.admission.").map(|field| format!("{policy}.{field}"));
    let known =
        |name: &str| MEANINGS.iter().find(|(known, _)| *known == name).map(|(_, meaning)| *meaning);
    own.and_then(|own| known(&own)).or_else(|| known(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parameter added to one of these, or renamed, fails here until it is explained.
    #[test]
    fn every_parameter_of_the_usual_policies_has_a_meaning() {
        let mut used = Vec::new();
        for policy in ["open", "codel", "dagor", "breakwater", "tide"] {
            for slots in ["adaptive", "fixed"] {
                let text = format!(
                    "[gate.admission]\npolicy = '{policy}'\n[gate.slots]\nslots = '{slots}'\n"
                );
                let file = File::parse(&text).unwrap_or_else(|error| panic!("{error}"));
                let list = parameters(&file);
                for parameter in list.as_array().expect("a list") {
                    let meaning = parameter["meaning"].as_str();
                    let meaning = meaning.unwrap_or_else(|| panic!("{policy}: {parameter}"));
                    used.push(meaning.to_owned());
                }
            }
        }
        let unused =
            MEANINGS.iter().filter(|(_, meaning)| !used.iter().any(|used| used == meaning));
        assert_eq!(unused.collect::<Vec<_>>(), Vec::<&(&str, &str)>::new());
    }

    #[test]
    fn a_field_means_what_its_policy_says() {
        let file = File::parse("[gate.admission]\npolicy = 'codel'\n").expect("valid");
        let list = parameters(&file);
        let field = |name: &str| {
            let mut all = list.as_array().expect("a list").iter();
            all.find(|parameter| parameter["field"] == name).expect("there").clone()
        };
        let target = field("gate.admission.target");
        assert_eq!(target["value"], "\"5ms\"");
        assert_eq!(target["meaning"], "Delay that a standing queue may have.");
    }
}
