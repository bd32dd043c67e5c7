//! Several policies in a row: a request must please all of them.
//!
//! 1. An arrival is put to the policies in order; the first refusal wins, and those that had let it
//!    in hear that it left. Policies after the one that refused hear nothing of it.
//! 2. If all let it in, one *degrade* makes the answer degraded, and one *displace* asks for a
//!    place to be made.
//! 3. Facts go to all. What callers are told is the strictest of everything: smallest window,
//!    lowest cursors, shortest hold, least rate.
//!
//! Put the cheapest and most certain first: thresholds of utilization before a pool of credits, so
//! that what the machine cannot take spends no credit.

use serde::{Deserialize, Serialize};

use super::{Admission, AdmissionConfig, Issued, Needs};
use crate::config::Problems;
use crate::context::{CallerId, Context};
use crate::feedback::Feedback;
use crate::meter::Cost;
use crate::request::{Cx, Request};
use crate::signal::Backlog;
use crate::time::{Instant, Span};
use crate::verdict::{Outcome, Verdict};

/// Policies asked one after the other.
#[derive(Clone, Debug)]
pub struct Chain {
    policies: Vec<Box<dyn Admission>>,
}

impl Chain {
    /// All the policies of `config`, each new.
    pub fn new(config: &ChainConfig, now: Instant) -> Self {
        Self { policies: config.policies.iter().map(|policy| policy.build(now)).collect() }
    }
}

impl Admission for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn needs(&self) -> Needs {
        self.policies.iter().map(|policy| policy.needs()).fold(Needs::default(), |all, needs| {
            Needs {
                ages: all.ages || needs.ages,
                ranks: all.ranks || needs.ranks,
                objective: all.objective || needs.objective,
            }
        })
    }

    fn word_holds(&self) -> Span {
        self.policies.iter().map(|policy| policy.word_holds()).max().unwrap_or_default()
    }

    fn on_arrival(&mut self, cx: &mut Cx, backlog: &Backlog, request: &Request) -> Verdict {
        let mut answer = Verdict::Admit;
        for asked in 0..self.policies.len() {
            let verdict = self.policies[asked].on_arrival(cx, backlog, request);
            if let Verdict::Refuse(_) = verdict {
                for policy in &mut self.policies[..asked] {
                    policy.on_leave(cx, request);
                }
                return verdict;
            }
            answer = stricter(answer, verdict);
        }
        answer
    }

    /// As at arrival; on a refusal the gate tells all of them that the request left.
    fn on_dequeue(
        &mut self,
        cx: &mut Cx,
        backlog: &Backlog,
        request: &Request,
        sojourn: Span,
    ) -> Verdict {
        let mut answer = Verdict::Admit;
        for policy in &mut self.policies {
            let verdict = policy.on_dequeue(cx, backlog, request, sojourn);
            if matches!(verdict, Verdict::Refuse(_) | Verdict::Displace(_)) {
                return verdict;
            }
            answer = stricter(answer, verdict);
        }
        answer
    }

    fn on_finish(
        &mut self,
        cx: &mut Cx,
        backlog: &Backlog,
        request: &Request,
        outcome: Outcome,
        cost: Cost,
    ) {
        for policy in &mut self.policies {
            policy.on_finish(cx, backlog, request, outcome, cost);
        }
    }

    fn on_leave(&mut self, cx: &mut Cx, request: &Request) {
        for policy in &mut self.policies {
            policy.on_leave(cx, request);
        }
    }

    fn on_report(&mut self, cx: &mut Cx, backlog: &Backlog, context: &Context) {
        for policy in &mut self.policies {
            policy.on_report(cx, backlog, context);
        }
    }

    fn on_utilization(&mut self, cx: &mut Cx, utilization: f64) {
        for policy in &mut self.policies {
            policy.on_utilization(cx, utilization);
        }
    }

    fn on_gone(&mut self, cx: &mut Cx, caller: CallerId) {
        for policy in &mut self.policies {
            policy.on_gone(cx, caller);
        }
    }

    fn settle(&mut self, cx: &mut Cx, backlog: &Backlog) {
        for policy in &mut self.policies {
            policy.settle(cx, backlog);
        }
    }

    fn next_wakeup(&self) -> Option<Instant> {
        self.policies.iter().filter_map(|policy| policy.next_wakeup()).min()
    }

    fn feedback(&mut self, cx: &mut Cx, backlog: &Backlog, caller: CallerId, out: &mut Feedback) {
        for policy in &mut self.policies {
            let mut own = Feedback::silent(out.gate, out.sequence);
            policy.feedback(cx, backlog, caller, &mut own);
            merge(out, &own);
        }
    }

    fn poll_notice(&mut self) -> Option<CallerId> {
        self.policies.iter_mut().find_map(|policy| policy.poll_notice())
    }

    fn objective(&self) -> Option<Span> {
        self.policies.iter().filter_map(|policy| policy.objective()).min()
    }

    fn set_objective(&mut self, objective: Span) {
        for policy in self.policies.iter_mut().filter(|policy| policy.needs().objective) {
            policy.set_objective(objective);
        }
    }

    fn reconfigure(&mut self, config: &AdmissionConfig) -> bool {
        // A chain that changed in part only is built anew by the gate, with what is issued.
        let AdmissionConfig::Chain(config) = config else { return false };
        config.policies.len() == self.policies.len()
            && self
                .policies
                .iter_mut()
                .zip(&config.policies)
                .all(|(policy, config)| policy.reconfigure(config))
    }

    /// What callers were told is the smallest window, so that is what they hold.
    fn issued(&self) -> Vec<Issued> {
        let mut all: Vec<Issued> =
            self.policies.iter().flat_map(|policy| policy.issued()).collect();
        all.sort_by_key(|issued| (issued.caller, issued.window));
        all.dedup_by_key(|issued| issued.caller);
        all
    }

    fn take_over(&mut self, cx: &mut Cx, issued: &[Issued]) {
        for policy in &mut self.policies {
            policy.take_over(cx, issued);
        }
    }

    fn invariants(&self) {
        for policy in &self.policies {
            policy.invariants();
        }
    }

    fn clone_box(&self) -> Box<dyn Admission> {
        Box::new(self.clone())
    }
}

/// The stricter of two answers that both let a request in; of two equal ones the first.
fn stricter(one: Verdict, other: Verdict) -> Verdict {
    let strictness = |verdict: &Verdict| match verdict {
        Verdict::Admit => 0,
        Verdict::Degrade => 1,
        Verdict::Displace(_) => 2,
        Verdict::Refuse(_) => 3,
    };
    if strictness(&other) > strictness(&one) { other } else { one }
}

/// Narrows `out` to what both allow; what one leaves open the other decides.
fn merge(out: &mut Feedback, own: &Feedback) {
    fn least<T: PartialOrd>(one: Option<T>, other: Option<T>) -> Option<T> {
        match (one, other) {
            (Some(one), Some(other)) => Some(if other < one { other } else { one }),
            (one, other) => one.or(other),
        }
    }
    out.window = least(out.window, own.window);
    out.free = least(out.free, own.free);
    out.last = least(out.last, own.last);
    out.rate = least(out.rate, own.rate);
    out.holds = out.holds.min(own.holds);
}

/// Parameters of [`Chain`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainConfig {
    /// The policies, in the order they are asked: 1 to 8.
    pub policies: Vec<AdmissionConfig>,
}

impl ChainConfig {
    /// Longest chain. Each member is a virtual call per fact.
    const LIMIT: usize = 8;

    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let count = self.policies.len();
        problems.check("policies", count, (1..=Self::LIMIT).contains(&count), "1 to 8 of them");
        problems.within("policies", |problems| {
            for policy in &self.policies {
                policy.validate(problems);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::testing::{Bench, at};
    use super::*;
    use crate::feedback::GateId;
    use crate::rank::{Cursor, Rank};
    use crate::verdict::{Advice, Reason, Rejection};

    const REFUSE: Verdict = Verdict::Refuse(reason(Reason::Full));
    const DISPLACE: Verdict = Verdict::Displace(reason(Reason::Wait));

    const fn reason(reason: Reason) -> Rejection {
        Rejection::new(reason, 1.0, 0.0, Advice::Never)
    }

    /// Answers as told and writes down what it hears.
    #[derive(Clone, Debug)]
    struct Scripted {
        name: &'static str,
        verdict: Verdict,
        feedback: Feedback,
        heard: Arc<Mutex<Vec<String>>>,
    }

    impl Scripted {
        fn note(&self, what: &str) {
            self.heard.lock().unwrap().push(format!("{} {what}", self.name));
        }
    }

    impl Admission for Scripted {
        fn name(&self) -> &'static str {
            self.name
        }
        fn on_arrival(&mut self, _: &mut Cx, _: &Backlog, _: &Request) -> Verdict {
            self.note("arrival");
            self.verdict
        }
        fn on_leave(&mut self, _: &mut Cx, _: &Request) {
            self.note("leave");
        }
        fn feedback(&mut self, _: &mut Cx, _: &Backlog, _: CallerId, out: &mut Feedback) {
            *out = self.feedback;
        }
        fn reconfigure(&mut self, _: &AdmissionConfig) -> bool {
            false
        }
        fn clone_box(&self) -> Box<dyn Admission> {
            Box::new(self.clone())
        }
    }

    fn silent() -> Feedback {
        Feedback::silent(GateId(1), 1)
    }

    fn chain(verdicts: [Verdict; 3]) -> (Bench<Chain>, Arc<Mutex<Vec<String>>>) {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let scripted = |(name, verdict)| -> Box<dyn Admission> {
            Box::new(Scripted { name, verdict, feedback: silent(), heard: heard.clone() })
        };
        let policies = ["a", "b", "c"].into_iter().zip(verdicts).map(scripted).collect();
        (Bench::with(Box::new(Chain { policies })), heard)
    }

    #[test]
    fn the_first_refusal_wins_and_those_before_it_hear_of_it() {
        let (mut bench, heard) = chain([Verdict::Degrade, REFUSE, Verdict::Admit]);
        assert_eq!(bench.arrive(at(1), Rank::UNRANKED), REFUSE);
        assert_eq!(*heard.lock().unwrap(), ["a arrival", "b arrival", "a leave"]);
    }

    #[test]
    fn the_strictest_of_those_who_let_in_decides_how() {
        for (verdicts, expected) in [
            ([Verdict::Admit; 3], Verdict::Admit),
            ([Verdict::Admit, Verdict::Degrade, Verdict::Admit], Verdict::Degrade),
            ([DISPLACE, Verdict::Degrade, Verdict::Admit], DISPLACE),
            ([DISPLACE, Verdict::Degrade, REFUSE], REFUSE),
        ] {
            assert_eq!(chain(verdicts).0.arrive(at(1), Rank::UNRANKED), expected);
        }
    }

    #[test]
    fn callers_hear_the_strictest_of_everything() {
        let cursor = |business| Some(Cursor::at(Rank::new(business, 0)));
        let mut one = silent();
        (one.window, one.last, one.rate) = (Some(7), cursor(30), Some(5.0));
        one.holds = Span::from_secs(2);
        let mut other = silent();
        (other.window, other.last, other.free) = (Some(9), cursor(20), cursor(10));
        merge(&mut one, &other);
        assert_eq!((one.window, one.last, one.free), (Some(7), cursor(20), cursor(10)));
        assert_eq!((one.rate, one.holds), (Some(5.0), Span::from_secs(2)));
        merge(&mut other, &one);
        assert_eq!(other, one);
        let (mut bench, _) = chain([Verdict::Admit; 3]);
        let mut out = silent();
        bench.tell(at(1), |policy, cx, backlog| {
            policy.feedback(cx, backlog, CallerId(1), &mut out);
        });
        assert_eq!(out, silent());
    }

    #[test]
    fn members_change_in_place_only_if_all_can() {
        let config = |policies| AdmissionConfig::Chain(ChainConfig { policies });
        let dagor = || AdmissionConfig::Dagor(super::super::DagorConfig::default());
        let mut built = config(vec![AdmissionConfig::Open, dagor()]).build(Instant::ZERO);
        assert!(built.needs().ages);
        assert!(built.reconfigure(&config(vec![AdmissionConfig::Open, dagor()])));
        assert!(!built.reconfigure(&config(vec![dagor(), AdmissionConfig::Open])));
        assert!(!built.reconfigure(&config(vec![AdmissionConfig::Open])));
        assert!(!built.reconfigure(&AdmissionConfig::Open));
    }

    #[test]
    fn an_empty_chain_is_a_mistake() {
        let mut problems = Problems::default();
        ChainConfig { policies: Vec::new() }.validate(&mut problems);
        assert!(problems.into_result().is_err());
    }
}
