//! The configuration file: `[proxy]` is the sidecar's own, `[gate]` and `[caller]` are the core's.

mod access_log;
mod address;
mod connections;
mod edge;
mod egress;
mod jwt;
mod long;
mod means;
mod percent;
mod proxy;
mod rule;
mod schema;
mod traces;
mod upstreams;

use serde::{Deserialize, Serialize};
use tidegate_core::Span;
use tidegate_core::admission::AdmissionConfig;
use tidegate_core::caller::CallerConfig;
use tidegate_core::config::{self, ConfigError, Problems};
use tidegate_core::gate::GateConfig;
use tidegate_core::limit::LimitConfig;
use tidegate_core::schedule::ScheduleConfig;
use tidegate_core::signal::SignalsConfig;
use tidegate_core::slots::{AdaptiveConfig, SlotsConfig};
use tidegate_core::workflow::WorkflowConfig;

pub use access_log::AccessLogConfig;
pub use address::{Address, Scheme, Version};
pub use connections::{ClientCertificates, ConnectionsConfig, TlsConfig};
pub use edge::{AddressField, AmbiguousPaths, EdgeConfig, Underscores};
pub use egress::Egress;
pub use jwt::JwtConfig;
pub use long::LongConfig;
pub use percent::Percent;
pub use proxy::{ProxyConfig, Trust, WhenLeft};
pub use rule::{Network, Rule};
pub use traces::TracesConfig;
pub use upstreams::{HealthConfig, Spill};

/// A whole file. What it leaves out has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Where to listen, what to protect.
    pub proxy: ProxyConfig,
    /// Who may enter, who is next, how many at once.
    #[serde(with = "GateBlock")]
    pub gate: GateConfig,
    /// What may leave towards upstreams that run a gate of their own; retries are for programs that
    /// call through the library, as a sidecar sends nothing twice.
    pub caller: CallerConfig,
}

impl Default for File {
    fn default() -> Self {
        Self {
            proxy: ProxyConfig::default(),
            gate: gate_defaults(),
            caller: CallerConfig::default(),
        }
    }
}

impl File {
    /// Reads and checks a file; all problems are told at once.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        config::read(text, Self::validate)
    }

    /// Every parameter in full.
    pub fn to_toml(&self) -> String {
        config::print(self)
    }

    fn validate(&self, problems: &mut Problems) {
        problems.within("proxy", |problems| self.proxy.validate(problems));
        problems.within("gate", |problems| self.gate.validate(problems));
        problems.within("caller", |problems| self.caller.validate(problems));
        means::check(self, problems);
    }
}

/// A file that has nothing but a gate: a candidate to be compared with the one in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Candidate {
    #[serde(with = "GateBlock")]
    pub(crate) gate: GateConfig,
}

impl Candidate {
    pub(crate) fn parse(text: &str) -> Result<Self, ConfigError> {
        config::read(text, |candidate: &Self, problems| {
            problems.within("gate", |problems| candidate.gate.validate(problems));
        })
    }

    pub(crate) fn to_toml(&self) -> String {
        config::print(self)
    }
}

/// The gate of a sidecar that was told nothing: as the core's, but nobody knows how many requests
/// the service behind can take at once, so that is found out.
pub fn gate_defaults() -> GateConfig {
    let slots = SlotsConfig::Adaptive(AdaptiveConfig::default());
    GateConfig { slots, ..GateConfig::default() }
}

/// [`GateConfig`] with the defaults of [`gate_defaults`] for what a file leaves out.
#[derive(Serialize, Deserialize)]
#[serde(remote = "GateConfig", default = "gate_defaults", deny_unknown_fields)]
struct GateBlock {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<LimitConfig>,
    admission: AdmissionConfig,
    schedule: ScheduleConfig,
    slots: SlotsConfig,
    queue_limit: usize,
    degrade_delay: Span,
    retry_share: f64,
    signals: SignalsConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow: Option<WorkflowConfig>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_read_back_and_are_valid() {
        let file = File::default();
        assert_eq!(File::parse(&file.to_toml()), Ok(file.clone()));
        assert_eq!(File::parse(""), Ok(file));
    }

    /// A file that sets one thing of the gate does not lose the sidecar's choice of another.
    #[test]
    fn a_partial_gate_block_keeps_the_defaults_of_the_sidecar() {
        let file = File::parse("[gate]\nqueue_limit = 7\n").expect("valid");
        assert_eq!(file.gate, GateConfig { queue_limit: 7, ..gate_defaults() });
        assert!(matches!(file.gate.slots, SlotsConfig::Adaptive(_)));
    }

    #[test]
    fn the_name_that_every_file_needs_is_found_again() {
        for slip in ["upstream", "upstrem", "upstraems", "usptream"] {
            let error = File::parse(&format!("[proxy]\n{slip} = []")).expect_err("a slip");
            assert!(error.to_string().ends_with("did you mean `upstreams`?"), "{error}");
        }
    }

    /// Whatever is wrong with one block of a list, the others are judged too, each by its place.
    #[test]
    fn problems_of_all_rules_are_told_at_once() {
        let rules =
            ["business=70", "path='b'\nbusiness=70", "bussines=7", "business=400", "business='x'"];
        let rules: String = rules.map(|rule| format!("[[proxy.rules]]\n{rule}\n")).concat();
        let text = format!("[proxy]\nupstreams=['http://a']\n{rules}");
        let error = File::parse(&text).expect_err("much is wrong");
        let told = error.to_string();
        for problem in [
            "proxy.rules.0.business = 70 is not allowed: 0 to 63",
            "proxy.rules.1.path = b is not allowed",
            "proxy.rules.1.business = 70 is not allowed",
            "proxy.rules.2.bussines = 7 is not allowed: unknown field `bussines`; did you mean `business`?",
            "proxy.rules.2.business: missing field `business`",
            "proxy.rules.3.business = 400 is not allowed",
            "proxy.rules.4.business = \"x\" is not allowed",
        ] {
            assert!(told.contains(problem), "{problem} is missing from:\n{told}");
        }
        assert_eq!(error.problems().len(), 7, "{told}");
    }

    #[test]
    fn problems_of_ways_out_are_told_each_by_its_place() {
        let one = "name = 'a b'\nlisten = '127.0.0.1:1'\nupstreams = []\n";
        let two = "name = 'a'\nlisten = '127.0.0.1:1'\nupstreams = ['http://a', 'h2c://b']\n\
                   keep_body = 100000000\ndeadline_header = 'no header'\n";
        let three = "name = 'a'\nlisten = '127.0.0.1:0'\nupstreams = ['http://a']\n\
                     [proxy.egress.caller.retry]\nattempts = 0\n[proxy.egress.caller.hedge]\n";
        let text = [one, two, three].map(|way| format!("[[proxy.egress]]\n{way}")).concat();
        let told = File::parse(&text).expect_err("much is wrong").to_string();
        for field in [
            "proxy.egress.0.name",
            "proxy.egress.0.upstreams",
            "proxy.egress.1.listen",
            "proxy.egress.1.upstreams",
            "proxy.egress.1.keep_body",
            "proxy.egress.1.deadline_header",
            "proxy.egress.2.name",
            "proxy.egress.2.caller.retry.attempts",
            "proxy.egress.2.caller.hedge",
        ] {
            assert!(told.contains(field), "{field} is missing from:\n{told}");
        }
    }

    #[test]
    fn problems_of_all_blocks_are_told_at_once() {
        let text = "
            [proxy]
            upstreams = ['http://a', 'ftp://b']
            threads = 4096
            idle_timeout = '0s'
            trust = 'everybody'
            user_header = 'no header'
            [[proxy.rules]]
            path = 'checkout'
            business = 64
            [gate]
            queue_limit = 0
            [gate.admission]
            policy = 'tide'
            objective = '0s'
        ";
        let error = File::parse(text).expect_err("much is wrong");
        for field in [
            "proxy.upstreams",
            "proxy.threads",
            "proxy.idle_timeout",
            "proxy.trust",
            "proxy.user_header",
            "proxy.rules.0.path",
            "proxy.rules.0.business",
            "gate.queue_limit",
            "gate.admission.objective",
        ] {
            assert!(error.to_string().contains(field), "{field} is missing from:\n{error}");
        }
    }
}
