//! An open loop: requests come when they come, whatever became of those before.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde_json::{Value, json};
use tidegate_core::rng::Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::{Client, Failure};

/// Every request has so long; a later answer is worth nothing.
const DEADLINE: Duration = Duration::from_millis(500);
/// Users, whose ranks differ.
const USERS: u64 = 1_000;

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flow {
    path: String,
    /// Per second.
    rate: f64,
    business: u8,
}

impl FromStr for Flow {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let (path, rest) = text.split_once('=').ok_or("a flow is PATH=RATE[@BUSINESS]")?;
        let (rate, business) = rest.split_once('@').unwrap_or((rest, "24"));
        Ok(Self { path: path.to_owned(), rate: rate.parse()?, business: business.parse()? })
    }
}

/// Sends all flows for so long, and tells what became of each.
pub(crate) async fn run(url: &str, seconds: f64, flows: &[Flow]) -> Result<Value, Failure> {
    let (client, mut rng) = (Client::default(), Rng::new(u64::from(std::process::id())));
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(seconds);
    let pause = |rng: &mut Rng, flow: &Flow| {
        Duration::from_secs_f64(-(1.0 - rng.unit()).ln() / flow.rate.max(1e-3))
    };
    let mut next: Vec<_> = flows.iter().map(|flow| begun + pause(&mut rng, flow)).collect();
    let mut sent = JoinSet::new();
    while let Some((at, due)) = next.iter().copied().enumerate().min_by_key(|(_, due)| *due) {
        if due >= end {
            break;
        }
        sleep_until(due).await;
        let flow = &flows[at];
        let url: Uri = format!("{url}{}", flow.path).parse()?;
        let headers = headers(flow, 1 + rng.below(USERS))?;
        let client = client.clone();
        sent.spawn(async move {
            // Late is late, also if it was sent late.
            let answer =
                timeout(DEADLINE.saturating_sub(due.elapsed()), client.get(&url, headers)).await;
            let became = match answer {
                Err(_) => "late",
                Ok(Err(_)) => "failed",
                Ok(Ok((StatusCode::OK, ..))) => "answered",
                Ok(Ok((StatusCode::GATEWAY_TIMEOUT, ..))) => "late",
                Ok(Ok(_)) => "refused",
            };
            (at, became)
        });
        next[at] = due + pause(&mut rng, flow);
    }
    let mut became = vec![BTreeMap::<&str, u64>::new(); flows.len()];
    for (at, what) in sent.join_all().await {
        *became[at].entry(what).or_default() += 1;
    }
    let told = flows.iter().zip(became).map(|(flow, became)| {
        let sent: u64 = became.values().sum();
        (flow.path.clone(), json!({ "sent": sent, "became": became }))
    });
    Ok(told.collect::<serde_json::Map<_, _>>().into())
}

/// Answers per second, if so many ask again whenever they are answered.
pub(crate) async fn capacity(url: &str, clients: usize, seconds: f64) -> Result<Value, Failure> {
    let (client, url) = (Client::default(), url.parse::<Uri>()?);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let ask = |_| {
        let (client, url) = (client.clone(), url.clone());
        async move {
            let mut answers = 0_u64;
            while Instant::now() < end && client.get(&url, HeaderMap::new()).await.is_ok() {
                answers += 1;
            }
            answers
        }
    };
    let answers: u64 = (0..clients).map(ask).collect::<JoinSet<_>>().join_all().await.iter().sum();
    Ok(json!({ "requests_per_s": answers as f64 / seconds }))
}

/// What the entry is told: it trusts this load.
fn headers(flow: &Flow, user: u64) -> Result<HeaderMap, Failure> {
    let workflow = flow.path.trim_start_matches('/');
    let context = format!(
        "r=({} {user}), w=\"{workflow}\", d={}, c=\"10ad\"",
        flow.business,
        DEADLINE.as_millis()
    );
    let mut headers = HeaderMap::new();
    headers.insert("overload-context", HeaderValue::try_from(context)?);
    Ok(headers)
}
