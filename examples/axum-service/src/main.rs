//! An axum service behind a gate: whatever load arrives, it serves at its peak rate, and refuses the
//! rest early, least important first.
//!
//! ```text
//! cargo run -p example-axum-service
//! curl -i localhost:3000/
//! curl -i localhost:3000/recommendations -H 'authorization: Bearer ann'
//! ```

use axum::Router;
use axum::routing::get;
use axum::serve::ListenerExt;
use tidegate::driver::RoundTrips;
use tidegate::entry::{Entry, EntryConfig};
use tidegate::gate::GateConfig;
use tidegate::http::server::Pressure;
use tidegate::{GateLayer, SharedGate};

/// The tide policy with an objective of 50 ms; handlers are asked for their cheaper answer when the
/// queue is 10 ms long.
const GATE: &str = r#"
degrade_delay = "10ms"
admission = { policy = "tide", objective = "50ms" }
slots = { slots = "fixed", count = 4 }
"#;

/// Which actions matter most. Whatever is not listed is refused first.
const RANKS: [(&str, u8); 2] = [("GET /", 16), ("GET /recommendations", 40)];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ranks = RANKS.map(|(action, business)| (action.to_owned(), business));
    let entry = EntryConfig { actions: Some(ranks.into_iter().collect()) };
    // In earnest the secret comes from where secrets are kept, the same on every replica.
    let entry = Entry::new(&entry, *b"0123456789abcdef");

    let gate = SharedGate::build(&GateConfig::from_toml(GATE)?)?;
    let app = app().layer(GateLayer::new(gate.clone()).entry(entry));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on {}", listener.local_addr()?);
    // How far callers are, for objectives that are learned: the layer sees no sockets.
    let trips = RoundTrips::default();
    let listener = listener.tap_io(move |socket| trips.accepted(&gate, socket));
    Ok(axum::serve(listener, app).await?)
}

fn app() -> Router {
    Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/recommendations", get(recommendations))
}

async fn recommendations(pressure: Pressure) -> &'static str {
    if pressure.degraded { "what everybody likes\n" } else { "exactly what you like\n" }
}
