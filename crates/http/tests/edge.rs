//! What a layer at an edge makes of strangers: workflows by route, limits by who they are, and nothing of what they claim.

#![allow(clippy::disallowed_methods, reason = "tests of a driver wait for real sockets")]

mod common;

use std::convert::Infallible;

use bytes::Bytes;
use common::{Client, Function, get, serve, text};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tidegate_core::gate::GateConfig;
use tidegate_driver::SharedGate;
use tidegate_http::GateLayer;
use tidegate_http::server::{Pressure, Trust};
use tidegate_http::wire::Names;
use tower_layer::Layer;
use tower_service::Service;

fn layer(config: &str) -> GateLayer {
    let config = GateConfig::from_toml(config).unwrap_or_else(|error| panic!("{error}"));
    GateLayer::new(SharedGate::build(&config).expect("valid")).names(Names::default())
}

/// What the gate asks of its handler.
async fn pressed<B>(request: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    let degraded = Pressure::of(request.extensions()).degraded;
    Ok(Response::new(Full::from(if degraded { "cheap" } else { "whole" })))
}

async fn status(client: &mut Client, path: &str, headers: &[(&str, &str)]) -> StatusCode {
    let mut request = get(path);
    for (name, value) in headers {
        request.headers_mut().insert(
            http::HeaderName::from_bytes(name.as_bytes()).expect("a name"),
            value.parse().expect("a value"),
        );
    }
    client.call(request).await.expect("an answer").status()
}

/// Limits by workflow, quotas and trees could once not be reached by who uses the library at an edge.
#[tokio::test]
async fn a_workflow_by_route_has_the_limits_of_its_name() {
    let bucket = "rate = 0.001, burst = 1.0";
    for limit in [
        format!("{{ limit = 'rate', each = 'workflow', {bucket} }}"),
        format!(
            "{{ limit = 'tree', nodes = [{{ path = 'shop', {bucket} }}, {{ path = 'news', {bucket} }}] }}"
        ),
        format!(
            "{{ limit = 'quota', enforce = 'always', default = {{ {bucket} }}, \
             quotas = [{{ workflow = 'shop', {bucket} }}] }}"
        ),
        "{ limit = 'window', each = 'workflow', quota = 1.0, period = 'day' }".to_owned(),
    ] {
        let layer = layer(&format!("limits = [{limit}]\n"));
        let layer = layer.workflow(|head| head.uri.path().strip_prefix('/').map(str::to_owned));
        let mut client = Client(serve(layer.layer(Function(pressed))).await);
        assert_eq!(status(&mut client, "/shop", &[]).await, 200, "{limit}");
        // A stranger's claim is not what counts.
        let claim = [("overload-context", "w=\"news\"")];
        assert_eq!(status(&mut client, "/shop", &claim).await, 429, "{limit}");
        assert_eq!(status(&mut client, "/news", &[]).await, 200, "{limit}");
    }
}

/// Inside, what a request says of itself goes before what its route says.
#[tokio::test]
async fn a_trusted_context_names_its_workflow_itself() {
    let layer =
        layer("limits = [{ limit = 'rate', each = 'workflow', rate = 0.001, burst = 1.0 }]\n");
    let layer = layer.trust(Trust::Inside).workflow(|_| Some("all".to_owned()));
    let mut client = Client(serve(layer.layer(Function(pressed))).await);
    assert_eq!(status(&mut client, "/", &[]).await, 200);
    assert_eq!(status(&mut client, "/", &[]).await, 429);
    let mine = [("overload-context", "w=\"mine\"")];
    assert_eq!(status(&mut client, "/", &mine).await, 200);
}

#[tokio::test]
async fn a_limit_goes_by_the_header_that_was_named() {
    let layer =
        layer("limits = [{ limit = 'rate', each = 'header', rate = 0.001, burst = 1.0 }]\n");
    let layer = layer.limit_header(http::HeaderName::from_static("x-api-key"));
    let mut client = Client(serve(layer.layer(Function(pressed))).await);
    for (key, expected) in [("1", 200), ("1", 429), ("2", 200)] {
        assert_eq!(status(&mut client, "/", &[("x-api-key", key)]).await, expected, "{key}");
    }
}

/// A gate before this one has asked for a cheaper answer. Strangers may not: it would be theirs to choose what others get.
#[tokio::test]
async fn a_cheaper_answer_is_asked_for_by_whom_we_trust() {
    for (trust, expected) in [(Trust::Inside, "cheap"), (Trust::Edge, "whole")] {
        let layer = layer("").trust(trust);
        let mut client = Client(serve(layer.layer(Function(pressed))).await);
        let mut request = get("/");
        request.headers_mut().insert("overload-degrade", "?1".parse().expect("a value"));
        let answer = client.call(request).await.expect("an answer");
        assert_eq!(text(answer.into_body()).await, expected);
    }
}
