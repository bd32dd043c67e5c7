//! The operators' port: what is agreed and who has it; changes, with the token.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tidegate_core::Span;
use tidegate_core::limit::Unit;
use tidegate_core::share::Share;

use crate::agreement::{Agreement, Agreements};
use crate::book::{HolderStatus, KeyStatus};
use crate::daemon::{Answer, Shared, State, shows, text, unix_ms, with_type};
use crate::ledger::Ledger;
use crate::page::Page;

/// Keys of an agreement that `/state` tells of.
const MOST_KEYS: usize = 100;
/// Largest list of agreements that is read.
const LARGEST_BODY: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

const PAGES: &str = "\
/healthz          the process lives
/metrics          numbers for Prometheus
/state            agreements, what is guaranteed of each, who has what share (?agreement=NAME)
/v1/agreements    what is agreed; PUT replaces all of it (TOML or JSON; ?version=N only if that is in force)
/v1/changes       who changed what, and when
/v1/revert?to=N   POST goes back to version N
/v1/settle?agreement=NAME  POST: no node knows of anything but what is in force
Changes need `authorization: Bearer TOKEN` with the token of control.admin_token_file.
";

pub(crate) async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    peer: SocketAddr,
) -> Answer {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return look(&shared, &request);
    }
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    {
        let state = shared.lock();
        let Some(token) = &state.admin_token else {
            let why =
                "changes need a token, and none is configured: set control.admin_token_file\n";
            return text(StatusCode::FORBIDDEN, why);
        };
        if !shows(&parts.headers, token) {
            let why = "changes need `authorization: Bearer TOKEN` with the token of \
                       control.admin_token_file\n";
            return text(StatusCode::UNAUTHORIZED, why);
        }
    }
    let body = tokio::time::timeout(PATIENCE, Limited::new(body, LARGEST_BODY).collect()).await;
    let Ok(Ok(body)) = body else {
        return text(StatusCode::PAYLOAD_TOO_LARGE, "the list is too long, or did not come\n");
    };
    let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    let state = &mut *shared.lock();
    let result = match (&parts.method, parts.uri.path()) {
        (&Method::PUT, "/v1/agreements") => replace(&shared, state, query, &body, peer),
        (&Method::POST, "/v1/revert") => revert(&shared, state, query, peer),
        (&Method::POST, "/v1/settle") => settle(&shared, state, query, peer),
        _ => Err((StatusCode::NOT_FOUND, PAGES.to_owned())),
    };
    match result {
        Ok(()) => as_json(&agreements(&state.ledger)),
        Err((status, why)) => text(status, format!("{}\n", why.trim_end())),
    }
}

/// Pages that change nothing.
fn look(shared: &Shared, request: &Request<Incoming>) -> Answer {
    let query = request.uri().query().unwrap_or_default();
    let state = shared.lock();
    match request.uri().path() {
        "/" => text(StatusCode::OK, PAGES),
        "/healthz" | "/readyz" => text(StatusCode::OK, "ok\n"),
        "/metrics" => {
            let page = with_type(
                text(StatusCode::OK, metrics(shared, &state)),
                "text/plain; version=0.0.4; charset=utf-8",
            );
            drop(state);
            page
        }
        "/state" => as_json(&tell(shared, &state, parameter(query, "agreement"))),
        "/v1/agreements" => as_json(&agreements(&state.ledger)),
        "/v1/changes" => as_json(&changes(&state.ledger)),
        _ => text(StatusCode::NOT_FOUND, PAGES),
    }
}

type Change = Result<(), (StatusCode, String)>;

fn replace(
    shared: &Shared,
    state: &mut State,
    query: &str,
    body: &str,
    peer: SocketAddr,
) -> Change {
    let bad = |why: String| (StatusCode::BAD_REQUEST, why);
    let now = state.ledger.version;
    let wanted = parameter(query, "version").filter(|version| *version != now.to_string());
    if let Some(version) = wanted {
        let why = format!("version {now} is in force, not {version}: look again");
        return Err((StatusCode::CONFLICT, why));
    }
    let list = if body.trim_start().starts_with('{') {
        let list: Agreements =
            serde_json::from_str(body).map_err(|error| bad(format!("not understood: {error}")))?;
        // Checked like a file.
        Agreements::parse(&tidegate_core::config::print(&list))
    } else {
        Agreements::parse(body)
    };
    let list = list.map_err(|error| bad(format!("not valid, nothing has changed\n{error}")))?;
    change(shared, state, list.agreements, &peer.to_string())
}

fn revert(shared: &Shared, state: &mut State, query: &str, peer: SocketAddr) -> Change {
    let version = parameter(query, "to").and_then(|to| to.parse().ok());
    let list = version.and_then(|version| state.ledger.at(version)).map(<[Agreement]>::to_vec);
    let Some(list) = list else {
        let why = "say which version: /v1/revert?to=N, one of /v1/changes";
        return Err((StatusCode::BAD_REQUEST, why.to_owned()));
    };
    change(shared, state, list, &format!("{peer}, back to {}", version.unwrap_or_default()))
}

fn change(shared: &Shared, state: &mut State, list: Vec<Agreement>, who: &str) -> Change {
    let next = state.ledger.changed(list, who, unix_ms());
    match next.map_err(|why| (StatusCode::CONFLICT, why))? {
        None => Ok(()),
        Some(next) => {
            shared.commit(state, next).map_err(|why| (StatusCode::INSUFFICIENT_STORAGE, why))
        }
    }
}

fn settle(shared: &Shared, state: &mut State, query: &str, peer: SocketAddr) -> Change {
    let name = parameter(query, "agreement").unwrap_or_default();
    if !state.ledger.agreements.iter().any(|agreement| agreement.name == name) {
        let why = format!("there is no agreement {name:?}: /v1/settle?agreement=NAME");
        return Err((StatusCode::BAD_REQUEST, why));
    }
    let next = state.ledger.settled(name);
    shared.commit(state, next).map_err(|why| (StatusCode::INSUFFICIENT_STORAGE, why))?;
    shared.log(&format_args!("{name}: settled, as told by {peer}"));
    Ok(())
}

fn agreements(ledger: &Ledger) -> Value {
    json!({
        "version": ledger.version,
        "epoch": ledger.epoch,
        "agreements": ledger.agreements,
        "unsettled": ledger.past.keys().collect::<Vec<_>>(),
    })
}

fn changes(ledger: &Ledger) -> Value {
    let told = ledger.changes.iter().rev().map(|change| {
        json!({
            "version": change.version, "unix_ms": change.unix_ms, "who": change.who,
            "what": change.what,
        })
    });
    json!({ "changes": told.collect::<Vec<_>>() })
}

/// Everything there is to know of one agreement, or of all.
fn tell(shared: &Shared, state: &State, only: Option<&str>) -> Value {
    let wanted = |agreement: &&Agreement| only.is_none_or(|only| agreement.name == only);
    let all = state.ledger.agreements.iter().filter(wanted).map(|agreement| {
        let name = &agreement.name;
        let tokens = agreement.unit.tokens();
        let keys = state.book.status(shared.now(), name, MOST_KEYS);
        json!({
            "name": name,
            "each": agreement.each,
            "unit": agreement.unit,
            "rate": agreement.rate,
            "burst": agreement.burst,
            "places": agreement.places,
            "enforce": agreement.enforce,
            "percent": agreement.percent,
            "nodes": agreement.nodes,
            "safe": agreement.safe,
            "on_loss": agreement.on_loss,
            "term_seconds": agreement.term.as_secs_f64(),
            "keys_in_use": state.book.keys(name),
            "keys": keys.iter().map(|key| tell_key(key, tokens)).collect::<Vec<_>>(),
        })
    });
    json!({
        "version": state.ledger.version,
        "epoch": state.ledger.epoch,
        "agreements": all.collect::<Vec<_>>(),
    })
}

fn tell_key(status: &KeyStatus, tokens: f64) -> Value {
    let KeyStatus { key, whole, committed, bound, quiet, holders } = status;
    let holders = holders.iter().map(|HolderStatus { id, node, leased, load }| {
        json!({
            "node": node,
            "holder": format!("{:016x}", id.0),
            "leased": tell_share(*leased, tokens),
            "asked_rate": load.rate.as_f64() / tokens,
            "asked_places": load.backlog,
        })
    });
    json!({
        "key": key,
        "whole": tell_share(*whole, tokens),
        "committed": tell_share(*committed, tokens),
        "bound": tell_share(bound.share(), tokens),
        "bounded": bound.excess.is_finite(),
        "quiet_seconds": quiet.as_secs_f64(),
        "holders": holders.collect::<Vec<_>>(),
    })
}

fn tell_share(share: Share, tokens: f64) -> Value {
    json!({ "rate": share.rate.as_f64() / tokens, "burst": share.burst as f64 / tokens })
}

fn metrics(shared: &Shared, state: &State) -> String {
    let mut page = Page::default();
    let mut gauge = |name: &str, help: &str, value: u64| {
        page.head(name, "gauge", help);
        page.line("", value);
    };
    gauge("tidegate_control_epoch", "Grows with every start.", state.ledger.epoch);
    gauge("tidegate_control_version", "Grows with every change.", state.ledger.version);
    for (name, help, value) in [
        ("tidegate_control_reports_total", "Reports of nodes.", state.book.reports),
        ("tidegate_control_answered_total", "Reports that got a grant.", state.book.answered),
        ("tidegate_control_denied_total", "Messages without a node's token.", state.denied),
        ("tidegate_control_malformed_total", "Messages not understood.", state.malformed),
    ] {
        page.head(name, "counter", help);
        page.line("", value);
    }
    let all: Vec<_> = state
        .ledger
        .agreements
        .iter()
        .map(|agreement| Sums::of(shared, state, agreement))
        .collect();
    let mut each = |name: &str, help: &str, of: &dyn Fn(&Sums<'_>) -> f64| {
        page.head(name, "gauge", help);
        all.iter().for_each(|sums| page.line(&sums.agreement.name, of(sums)));
    };
    let rate = |sums: &Sums<'_>| if sums.of_places { 0.0 } else { sums.agreement.rate };
    each("tidegate_agreement_rate", "Agreed per second, of each key.", &rate);
    let help = "Agreed at once, or in flight, of each key.";
    each("tidegate_agreement_burst", help, &|sums| {
        sums.agreement.places.map_or(sums.agreement.burst, |places| places as f64)
    });
    each("tidegate_agreement_keys", "Keys in use.", &|sums| sums.keys);
    each("tidegate_agreement_leased", "Leased per second, or places, all keys.", &|sums| {
        sums.leased
    });
    each("tidegate_agreement_asked", "Asked for per second, or at once, all keys.", &|sums| {
        sums.asked
    });
    each("tidegate_agreement_holders", "Processes with a lease, all keys.", &|sums| sums.holders);
    let help = "Most that may pass above the agreement, per second, of each key; +Inf is no bound.";
    each("tidegate_over_admission_bound", help, &|sums| sums.over);
    page.text()
}

/// An agreement's keys together.
struct Sums<'a> {
    agreement: &'a Agreement,
    of_places: bool,
    keys: f64,
    leased: f64,
    asked: f64,
    holders: f64,
    over: f64,
}

impl<'a> Sums<'a> {
    fn of(shared: &Shared, state: &State, agreement: &'a Agreement) -> Self {
        let keys = state.book.status(shared.now(), &agreement.name, usize::MAX);
        let tokens = if agreement.unit == Unit::Requests { 1.0 } else { agreement.unit.tokens() };
        let holders = || keys.iter().flat_map(|key| &key.holders);
        let bound = state.book.bound(shared.now(), &agreement.name, "");
        let over = bound.map_or(0.0, |bound| {
            let agreed = agreement.whole("").rate.as_f64();
            (bound.most(Span::from_secs(1)) - bound.whole.burst as f64 - agreed) / tokens
        });
        let of_places = agreement.places.is_some();
        let pick = |rate: f64, places: u64| if of_places { places as f64 } else { rate / tokens };
        let leased = holders().map(|at| pick(at.leased.rate.as_f64(), at.leased.burst));
        let asked = holders().map(|at| pick(at.load.rate.as_f64(), at.load.backlog));
        Self {
            agreement,
            of_places,
            keys: keys.len() as f64,
            leased: leased.sum(),
            asked: asked.sum(),
            holders: holders().count() as f64,
            over,
        }
    }
}

/// The value that `name` has in a query.
fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn as_json(value: &Value) -> Answer {
    with_type(text(StatusCode::OK, format!("{value:#}\n")), "application/json")
}
