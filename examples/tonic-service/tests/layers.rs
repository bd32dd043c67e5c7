//! Both layers with tonic, over sockets: answers, streams, refusals, deadlines, health.

use std::net::SocketAddr;
use std::time::Duration;

use example_tonic_service::Slow;
use example_tonic_service::shop::OrderRequest;
use example_tonic_service::shop::shop_client::ShopClient;
use example_tonic_service::shop::shop_server::ShopServer;
use tidegate::caller::CallerConfig;
use tidegate::gate::GateConfig;
use tidegate::{CallerLayer, GateLayer, SharedCaller, SharedGate, Span, Trust};
use tokio::net::TcpListener;
use tonic::Code;
use tonic::codegen::tokio_stream::StreamExt;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tower_layer::Layer;

/// One runs, one waits, and the next is refused.
const FULL_AT_TWO: &str =
    "queue_limit = 1\nadmission = { policy = 'open' }\nslots = { slots = 'fixed', count = 1 }";

async fn serve(takes: Duration, gate: &SharedGate, before_all: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = TcpIncoming::from(listener);
    let layer = GateLayer::new(gate.clone()).trust(Trust::Inside);
    let shop = ShopServer::new(Slow { takes });
    if before_all {
        let server = Server::builder().layer(layer).add_service(shop);
        tokio::spawn(server.serve_with_incoming(incoming));
    } else {
        let server = Server::builder().add_service(layer.layer(shop));
        tokio::spawn(server.serve_with_incoming(incoming));
    }
    address
}

fn gate(text: &str) -> SharedGate {
    SharedGate::build(&GateConfig::from_toml(text).unwrap()).unwrap()
}

fn order() -> OrderRequest {
    OrderRequest { item: "a book".to_owned() }
}

#[tokio::test]
async fn a_service_behind_a_gate_is_found_by_its_name_and_answers() {
    for before_all in [false, true] {
        let gate = gate("");
        let address = serve(Duration::ZERO, &gate, before_all).await;
        let channel =
            Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let caller = SharedCaller::build(&CallerConfig::default(), 1).unwrap();
        let layer = CallerLayer::new(caller.clone()).patience(Span::from_secs(60)).once();
        let mut client = ShopClient::new(layer.layer(channel));
        let answer = client.order(order()).await.unwrap();
        assert!(answer.metadata().contains_key("overload-feedback"));
        assert_eq!(answer.into_inner().state, "a book sold");
        let mut states = client.follow(order()).await.unwrap().into_inner();
        let mut seen = Vec::new();
        while let Some(reply) = states.next().await {
            seen.push(reply.unwrap().state);
        }
        assert_eq!(seen, ["paid", "packed", "sent"]);
        let trailers = states.trailers().await.unwrap().unwrap();
        assert!(trailers.contains_key("overload-feedback"), "fresh, with the last message");
        drop(states);
        // Slots and calls end with their last byte, which the server may learn a moment later.
        while gate.running() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(caller.read(|caller| caller.in_flight(0)), 0);
    }
}

#[tokio::test]
async fn a_refusal_is_a_status_with_advice_and_a_deadline_is_kept() {
    let gate = gate(FULL_AT_TWO);
    let address = serve(Duration::from_secs(3600), &gate, true).await;
    let channel =
        Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let plain = ShopClient::new(channel.clone());
    let inside = (0..2).map(|_| {
        let mut client = plain.clone();
        tokio::spawn(async move { client.order(order()).await })
    });
    let inside: Vec<_> = inside.collect();
    while gate.running() == 0 || gate.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    let status = plain.clone().order(order()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("the queue is full"), "{status}");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "1");
    assert!(!status.details().is_empty(), "RetryInfo");

    inside.iter().for_each(tokio::task::JoinHandle::abort);
    while gate.running() > 0 || gate.waiting() > 0 {
        tokio::task::yield_now().await;
    }
    let caller = SharedCaller::build(&CallerConfig::default(), 1).unwrap();
    let layer = CallerLayer::new(caller).patience(Span::from_millis(50)).once();
    let status = ShopClient::new(layer.layer(channel)).order(order()).await.unwrap_err();
    // tonic's channel reads `grpc-timeout` too, and calls it cancelled when it is first.
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
}
