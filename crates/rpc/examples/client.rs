//! How many calls a [`Client`] can make: so many at once over one connection, to a handler that does
//! nothing, for so many seconds.
//!
//! ```text
//! cargo run --release -p tidegate-rpc --example client -- 64 2
//! ```
//!
//! Server and client are threads of this process, one each. `client.call` is measured with all it does: throttle,
//! deadline, connection, waking the task.

#![allow(clippy::disallowed_methods, reason = "measures by the machine's clock")]

use std::error::Error;
use std::time::{Duration, Instant};

use tidegate_core::gate::GateConfig;
use tidegate_rpc::{Bytes, CallError, Client, Server, blocking};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let at_once = numbers.next().transpose()?.unwrap_or(64);
    let seconds = numbers.next().transpose()?.unwrap_or(2);
    // An objective so long that a busy machine is not taken for overload.
    let gate = GateConfig::from_toml(
        "admission = { policy = 'tide', objective = '1s' }\nslots = { slots = 'fixed', count = 1 }",
    )?;
    let server =
        Server::builder().gate(gate).bind("127.0.0.1:0", blocking(|_| Ok(Bytes::new())))?;
    let client =
        Client::builder().endpoint(server.address()).patience(Duration::from_secs(10)).build()?;
    let begun = Instant::now();
    let end = begun + Duration::from_secs(seconds);
    let calls: Vec<_> = (0..at_once).map(|_| tokio::spawn(run(client.clone(), end))).collect();
    let (mut answered, mut refused) = (0, 0);
    for call in calls {
        let (ours, not) = call.await??;
        answered += ours;
        refused += not;
    }
    let rate = answered as f64 / begun.elapsed().as_secs_f64();
    println!("{at_once} at once: {rate:.0} answers per second, {refused} refused");
    client.close().await;
    server.close(Duration::from_secs(1)).await;
    Ok(())
}

/// Calls again and again until `end`: how many were answered, and how many refused.
async fn run(client: Client, end: Instant) -> Result<(u64, u64), CallError> {
    let (mut answered, mut refused) = (0, 0);
    while Instant::now() < end {
        match client.call(1, Bytes::new()).await {
            Ok(_) => answered += 1,
            Err(error) if error.is_refusal() => refused += 1,
            Err(error) => return Err(error),
        }
    }
    Ok((answered, refused))
}
