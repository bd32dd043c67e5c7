//! `Caller` under every throttle: the rules of holding and retrying one by one, and random
//! operations against a model of what every call may do.

mod health;
mod hedges;
mod holding;
mod random;
mod retries;

use tidegate_core::caller::{CallAction, CallerConfig};
use tidegate_core::retry::RetryConfig;
use tidegate_core::throttle::{
    AdaptiveConfig, Answer, CreditConfig, CursorConfig, RateConfig, SedaConfig, ThrottleConfig,
    WindowConfig,
};
use tidegate_core::{
    Advice, Caller, Context, Instant, Outcome, Rank, Reason, Rejection, RequestId, Span,
};

const SERVED: Answer = Answer::Done(Outcome::Serve);

fn refused(advice: Advice) -> Answer {
    Answer::Refused(Rejection::new(Reason::Delay, 2.0, 1.0, advice))
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Span::from_millis(millis)
}

fn ranked(business: u8) -> Context {
    Context { rank: Rank::new(business, 0), ..Context::default() }
}

/// A caller that may have one request outstanding per endpoint, and holds up to four.
fn one_at_a_time(endpoints: usize, seed: u64) -> Caller {
    let window =
        WindowConfig { increase: 0.0, slo: Span::from_secs(60), ..WindowConfig::default() };
    let config = CallerConfig {
        throttle: ThrottleConfig::Window(window),
        hold_limit: 4,
        ..CallerConfig::default()
    };
    Caller::new(&config, endpoints, at(0), seed).unwrap()
}

/// A caller that sends everything.
fn open(endpoints: usize, retry: RetryConfig) -> Caller {
    let config = CallerConfig { retry, ..CallerConfig::default() };
    Caller::new(&config, endpoints, at(0), 5).unwrap()
}

fn drain(caller: &mut Caller) -> Vec<CallAction> {
    caller.invariants();
    std::iter::from_fn(|| caller.poll()).collect()
}

/// The calls that were sent, with endpoint and context.
fn sent(caller: &mut Caller) -> Vec<(RequestId, usize, Context)> {
    let sent = drain(caller).into_iter().filter_map(|action| match action {
        CallAction::Transmit { id, endpoint, context } => Some((id, endpoint, context)),
        CallAction::Fail { .. } | CallAction::Report { .. } => None,
    });
    sent.collect()
}

/// The calls that failed here, and why.
fn failed(caller: &mut Caller) -> Vec<(RequestId, Rejection)> {
    let failed = drain(caller).into_iter().filter_map(|action| match action {
        CallAction::Fail { id, rejection } => Some((id, rejection)),
        CallAction::Transmit { .. } | CallAction::Report { .. } => None,
    });
    failed.collect()
}

/// Every throttle, with parameters that bite within a few hundred operations.
fn throttles() -> [ThrottleConfig; 8] {
    [
        ThrottleConfig::Open,
        ThrottleConfig::Credit(CreditConfig::default()),
        ThrottleConfig::Credit(CreditConfig {
            floor: 1,
            holds: Span::from_millis(1),
            ..CreditConfig::default()
        }),
        ThrottleConfig::Cursor(CursorConfig::default()),
        ThrottleConfig::Adaptive(AdaptiveConfig::default()),
        ThrottleConfig::Seda(SedaConfig {
            start_low: 50.0,
            start_high: 500.0,
            target: Span::from_millis(1),
            ..SedaConfig::default()
        }),
        ThrottleConfig::Window(WindowConfig {
            slo: Span::from_millis(1),
            ..WindowConfig::default()
        }),
        ThrottleConfig::Rate(RateConfig { burst: 2, ..RateConfig::default() }),
    ]
}

#[test]
fn every_throttle_reads_back_from_toml() {
    for throttle in throttles() {
        let config = CallerConfig { throttle, ..CallerConfig::default() };
        assert_eq!(CallerConfig::from_toml(&config.to_toml()), Ok(config));
    }
}

#[test]
fn all_problems_are_named_at_once() {
    let cases = [
        ("cursor", "max_age = '0s'\nprobe = '2h'", 2),
        ("adaptive", "k = 0.5\nwindow = '0s'\nbuckets = 0\ncap = 1.5\nprobe = '0s'", 5),
        ("seda", "target = '0s'\nadj_d = 1.0\nsamples = 0\nfloor = nan\ndepth = 0", 5),
        ("window", "slo = '0s'\nincrease = -1.0\ndecrease = 1.0\nlimit = 0\nstart = 0", 5),
        ("rate", "rate = 0.0\nburst = 0\nmax_age = '0s'\nfloor = -inf", 4),
    ];
    for (name, fields, least) in cases {
        let text = format!("[throttle]\nthrottle = '{name}'\n{fields}");
        let problems = CallerConfig::from_toml(&text).unwrap_err();
        assert!(problems.problems().len() >= least, "{problems}");
        assert!(problems.problems().iter().all(|problem| problem.field.starts_with("throttle.")));
    }
    for unknown in ["[throttle]\nthrottle = 'rate'\nbrust = 3", "[throttle]\nthrottle = 'none'"] {
        assert!(CallerConfig::from_toml(unknown).is_err(), "{unknown}");
    }
}
