//! A gRPC service of tonic's behind a gate, and a client whose calls carry rank and deadline.
//!
//! ```text
//! cargo run -p example-tonic-service
//! ```
//!
//! Thirty customers order at once from a shop that can serve two at a time, 20 ms each, within 100 ms.
//! The shop refuses the rest with `UNAVAILABLE` and says when to come back.

use std::time::Duration;

use example_tonic_service::Slow;
use example_tonic_service::shop::OrderRequest;
use example_tonic_service::shop::shop_client::ShopClient;
use example_tonic_service::shop::shop_server::ShopServer;
use tidegate::caller::CallerConfig;
use tidegate::gate::GateConfig;
use tidegate::{CallerLayer, GateLayer, SharedCaller, SharedGate, Span, Trust};
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tower_layer::Layer;

const GATE: &str = r#"
admission = { policy = "tide", objective = "100ms" }
slots = { slots = "fixed", count = 2 }
"#;
const CUSTOMERS: usize = 30;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shop = ShopServer::new(Slow { takes: Duration::from_millis(20) });
    let gate = GateLayer::new(SharedGate::build(&GateConfig::from_toml(GATE)?)?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    // Before one service, which keeps its name; `Server::builder().layer(gate)` is before all.
    let server = Server::builder().add_service(gate.trust(Trust::Inside).layer(shop));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let caller = SharedCaller::build(&CallerConfig::default(), 1)?;
    // Bodies of tonic's stream, so they are sent once.
    let layer = CallerLayer::new(caller).patience(Span::from_millis(100)).once();
    let client = ShopClient::new(layer.layer(channel));

    let orders = (0..CUSTOMERS).map(|customer| {
        let mut client = client.clone();
        let item = format!("book {customer}");
        tokio::spawn(async move { client.order(OrderRequest { item }).await })
    });
    let orders: Vec<_> = orders.collect();
    let (mut sold, mut refused) = (0, None);
    for order in orders {
        match order.await? {
            Ok(_) => sold += 1,
            Err(status) => refused = Some(status),
        }
    }
    println!("{sold} of {CUSTOMERS} sold");
    if let Some(status) = refused {
        println!("one of the others: {:?}, {}", status.code(), status.message());
    }
    Ok(())
}
