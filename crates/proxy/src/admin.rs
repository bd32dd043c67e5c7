//! The admin port: looks, and changes nothing.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tidegate_core::gate::Action;
use tidegate_core::{Advice, Context, Instant, Rank, Rejection, Span};
use tokio::net::TcpListener;

use crate::body::ProxyBody;
use crate::server::Shared;

type Answer = Response<ProxyBody>;

/// Answers on `listener` for ever.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let answer = answer(&shared, &request);
                async move { Ok::<_, Infallible>(answer) }
            });
            // How an operator's connection ends is not our business.
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn answer(shared: &Shared, request: &Request<Incoming>) -> Answer {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    }
    match request.uri().path() {
        "/" => text(StatusCode::OK, PAGES),
        "/healthz" => text(StatusCode::OK, "ok\n"),
        // Overload is no reason to be taken out: the others would get the load.
        "/readyz" if shared.is_draining() => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        "/readyz" => text(StatusCode::OK, "ready\n"),
        "/metrics" => {
            let page = shared.snapshot().prometheus();
            with_type(text(StatusCode::OK, page), "text/plain; version=0.0.4; charset=utf-8")
        }
        "/state" => as_json(&shared.snapshot().json()),
        "/config" => with_type(text(StatusCode::OK, shared.file().to_toml()), "application/toml"),
        "/explain" => match explain(shared, request.uri().query().unwrap_or_default()) {
            Ok(answer) => as_json(&answer),
            Err(problem) => text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
        },
        _ => text(StatusCode::NOT_FOUND, PAGES),
    }
}

const PAGES: &str = "\
/healthz  the process lives
/readyz   it takes requests, also under overload
/metrics  numbers for Prometheus
/state    the same as JSON
/explain  ?business=0..63&user=0..65535&deadline=50ms: what would happen to such a request now
/config   the configuration in force
";

/// What would happen to a request that arrived now. A copy of the gate is asked, so nothing is
/// consumed.
fn explain(shared: &Shared, query: &str) -> Result<Value, String> {
    let now = shared.gate.now();
    let context = wanted(query, now)?;
    let mut gate = shared.gate.read(Clone::clone);
    let (slots, running, waiting) = (gate.slots(), gate.running(), gate.waiting());
    let predicted = gate.backlog().predicted_wait();
    let feedback = gate.feedback(now, context.caller, context.workflow);
    let mut answer = json!({
        "rank": [context.rank.business(), context.rank.user()],
        "criticality": context.rank.criticality().name(),
        "policy": gate.admission().name(),
        "slots": slots,
        "running": running,
        "waiting": waiting,
        "predicted_wait_seconds": predicted.as_secs_f64(),
        "last_rank_let_in": feedback.last.map(|cursor| cursor.to_string()),
    });
    match gate.arrive(now, &context) {
        Err(rejection) => {
            answer["verdict"] = "refuse".into();
            answer["refusal"] = refusal(&rejection);
        }
        Ok(id) => {
            gate.dispatch(now);
            let mut verdict = "wait";
            while let Some(action) = gate.poll() {
                match action {
                    Action::Start { id: started, .. } if started == id => verdict = "start",
                    Action::Refuse { id: refused, rejection } if refused == id => {
                        verdict = "refuse";
                        answer["refusal"] = refusal(&rejection);
                    }
                    _ => {}
                }
            }
            answer["verdict"] = verdict.into();
        }
    }
    Ok(answer)
}

fn refusal(rejection: &Rejection) -> Value {
    let advice = match rejection.advice {
        Advice::Elsewhere => "elsewhere".to_owned(),
        Advice::Later(span) => format!("after {span}"),
        Advice::Never => "never".to_owned(),
    };
    json!({
        "reason": rejection.reason.token(),
        "measured": rejection.measured,
        "limit": rejection.limit,
        "unit": rejection.reason.unit(),
        "retry": advice,
        "text": rejection.to_string(),
    })
}

/// The request that a query describes.
fn wanted(query: &str, now: Instant) -> Result<Context, String> {
    let mut context = Context::default();
    let (mut business, mut user) = (context.rank.business(), context.rank.user());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let wrong = |allowed: &str| format!("{key} = {value} is not allowed: {allowed}");
        match key {
            "business" => {
                business = value
                    .parse()
                    .ok()
                    .filter(|n| *n < Rank::BUSINESS)
                    .ok_or_else(|| wrong("0 to 63"))?;
            }
            "user" => user = value.parse().map_err(|_| wrong("0 to 65535"))?,
            "deadline" => {
                let span: Span = value.parse().map_err(|_| wrong("a time such as 50ms"))?;
                context.deadline = now + span;
            }
            "attempt" => context.attempt = value.parse().map_err(|_| wrong("0 to 255"))?,
            _ => return Err(wrong("business, user, deadline, attempt")),
        }
    }
    context.rank = Rank::new(business, user);
    Ok(context)
}

fn as_json(value: &Value) -> Answer {
    with_type(text(StatusCode::OK, format!("{value:#}\n")), "application/json")
}

fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(ProxyBody::text(text));
    *answer.status_mut() = status;
    with_type(answer, "text/plain; charset=utf-8")
}

fn with_type(mut answer: Answer, kind: &'static str) -> Answer {
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
