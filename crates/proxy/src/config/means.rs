//! What a file asks for that this sidecar has no means to do: told before it starts, not found out under load.

use std::net::IpAddr;

use tidegate_core::config::Problems;
use tidegate_core::limit::{Each, LimitConfig, Unit};

use super::{File, ProxyConfig, Trust};

/// Notes what would be accepted and do nothing, or something else than it says.
pub(super) fn check(file: &File, problems: &mut Problems) {
    problems.within("gate", |problems| {
        for (at, limit) in file.gate.limits.iter().enumerate() {
            problems.within_item("limits", at, |problems| check_limit(file, limit, problems));
        }
    });
    problems.within("caller", |problems| {
        let hedge = file.caller.hedge.is_some();
        problems.check("hedge", "set", !hedge, "left out: a sidecar sends nothing twice");
        let ejection = file.caller.ejection.is_some();
        let allowed = "left out: in a sidecar [proxy.health] takes upstreams out";
        problems.check("ejection", "set", !ejection, allowed);
    });
    problems.within("proxy", |problems| {
        check_reach(&file.proxy, problems);
        problems.within("traces", |problems| {
            let fine = cfg!(feature = "otel") || file.proxy.traces.collector.is_none();
            let allowed = "left out: this build makes no traces, build with --features otel";
            problems.check("collector", "set", fine, allowed);
        });
    });
}

/// Who can reach what: what changes this process, or believes what it is told, is not for everybody.
fn check_reach(proxy: &ProxyConfig, problems: &mut Problems) {
    let admin = proxy.admin.ip();
    let fine = admin.is_loopback() || proxy.admin_token_file.is_some();
    let allowed = "an address of loopback, or with proxy.admin_token_file: beyond loopback others can ask, and one of them may come to change something";
    problems.check("admin", proxy.admin, fine, allowed);
    let fine = proxy.trust != Trust::Inside || !is_global(proxy.listen.ip());
    let allowed = "edge on an address that the whole world reaches: with inside, every client says itself how important it is";
    problems.check("trust", proxy.trust, fine, allowed);
}

/// Whether the address is routed everywhere. One that is not told, as a pod's sidecar has it, may be.
pub(super) fn is_global(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(it) => {
            let shared = it.octets()[0] == 100 && it.octets()[1] & 0xc0 == 64;
            let local = it.is_loopback() || it.is_private() || it.is_link_local() || shared;
            !(local || it.is_unspecified() || it.is_documentation() || it.is_multicast())
        }
        IpAddr::V6(it) => {
            it.segments()[0] & 0xe000 == 0x2000 && it.segments()[..2] != [0x2001, 0xdb8]
        }
    }
}

fn check_limit(file: &File, limit: &LimitConfig, problems: &mut Problems) {
    let (proxy, unit) = (&file.proxy, unit_of(limit));
    let each = match limit {
        LimitConfig::Rate(config) => config.each,
        LimitConfig::Leased(config) => config.each,
        _ => Each::All,
    };
    if matches!(each, Each::Header | Each::Descriptor) {
        let each = format!("{each:?}").to_lowercase();
        let fine = proxy.limit_header.is_some();
        problems.check("each", each, fine, "proxy.limit_header says which header");
    }
    // Time for which a request has its slot is no cpu time: one that sleeps would be charged for it.
    let told = proxy.cost_header.is_some() || proxy.cost_metric.is_some();
    let fine = unit != Unit::CpuSeconds || told;
    let allowed = "with proxy.cost_header or proxy.cost_metric, by which the service says what its answers cost";
    problems.check("unit", "cpu-seconds", fine, allowed);
    let allowed = "with proxy.cost_header, in which the service says how much an answer took";
    let fine = !unit.is_told() || proxy.cost_header.is_some();
    problems.check("unit", format!("{unit:?}").to_lowercase(), fine, allowed);
}

fn unit_of(limit: &LimitConfig) -> Unit {
    match limit {
        LimitConfig::Rate(config) => config.unit,
        LimitConfig::Quota(config) => config.unit,
        LimitConfig::Tree(config) => config.unit,
        LimitConfig::Window(config) => config.unit,
        LimitConfig::Leased(config) => config.unit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Option<String> {
        File::parse(text).err().map(|error| error.to_string())
    }

    #[test]
    fn what_would_do_nothing_is_refused_with_the_reason() {
        let rate = "[[gate.limits]]\nlimit = 'rate'\n";
        for (text, told) in [
            (format!("{rate}each = 'header'\n"), "gate.limits.0.each = header"),
            (format!("{rate}unit = 'cpu-seconds'\n"), "gate.limits.0.unit = cpu-seconds"),
            ("[[gate.limits]]\nlimit = 'window'\nunit = 'cpu-seconds'\n".to_owned(), "cost_header"),
            (format!("{rate}unit = 'tokens'\n"), "gate.limits.0.unit = tokens"),
            (
                "[[gate.limits]]\nlimit = 'leased'\nagreement = 'a'\neach = 'descriptor'\n"
                    .to_owned(),
                "gate.limits.0.each = descriptor",
            ),
            ("[caller.hedge]\n".to_owned(), "a sidecar sends nothing twice"),
            ("[caller.ejection]\n".to_owned(), "[proxy.health]"),
        ] {
            let problem = problem(&text).unwrap_or_else(|| panic!("{text} was accepted"));
            assert!(problem.contains(told), "{problem}");
        }
        for text in [
            format!("[proxy]\nlimit_header = 'x-api-key'\n{rate}each = 'header'\n"),
            format!("[proxy]\ncost_header = 'x-cpu-seconds'\n{rate}unit = 'cpu-seconds'\n"),
            format!("[proxy]\ncost_metric = 'cpu'\n{rate}unit = 'cpu-seconds'\n"),
        ] {
            assert_eq!(problem(&text), None, "{text}");
        }
    }

    #[test]
    fn what_everybody_could_reach_is_refused_with_the_reason() {
        for (text, told) in [
            ("admin = '0.0.0.0:9901'", "proxy.admin = 0.0.0.0:9901"),
            ("admin = '10.0.0.7:9901'", "proxy.admin_token_file"),
            ("trust = 'inside'\nlisten = '8.8.8.8:80'", "proxy.trust = inside"),
            ("trust = 'inside'\nlisten = '[2606:4700::1]:80'", "proxy.trust = inside"),
        ] {
            let problem = problem(&format!("[proxy]\n{text}\n")).expect(text);
            assert!(problem.contains(told), "{problem}");
        }
        for text in [
            "admin = '[::1]:9901'",
            "admin = '0.0.0.0:9901'\nadmin_token_file = 'token'",
            "trust = 'inside'",
            "trust = 'inside'\nlisten = '10.1.2.3:80'",
            "trust = 'inside'\nlisten = '[fd00::1]:80'",
            "trust = 'edge'\nlisten = '8.8.8.8:80'",
        ] {
            assert_eq!(problem(&format!("[proxy]\n{text}\n")), None, "{text}");
        }
    }

    #[cfg(not(feature = "otel"))]
    #[test]
    fn traces_are_refused_in_a_build_without_them() {
        let text = "[proxy.traces]\ncollector = 'http://127.0.0.1:4318'\n";
        let told = problem(text).expect("no traces here");
        assert!(
            told.contains("proxy.traces.collector") && told.contains("--features otel"),
            "{told}"
        );
    }
}
