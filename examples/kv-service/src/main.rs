//! A key-value service behind a gate: GET and SET in microseconds.
//!
//! ```text
//! cargo run -p kv-service -- 127.0.0.1:7070
//! python3 examples/kv-service/client.py 127.0.0.1:7070 set colour blue
//! python3 examples/kv-service/client.py 127.0.0.1:7070 get colour
//! ```
//!
//! A request's payload is the key for GET (method 1); for SET (method 2) a byte with the length of
//! the key, the key, the value.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate::gate::GateConfig;
use tidegate::rpc::{Bytes, Failure, Handler, Request, Server, blocking};

const GET: u32 = 1;
const SET: u32 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7070".to_owned());
    // Ten times what a request takes, network included, is a common objective.
    let gate = GateConfig::from_toml(
        "admission = { policy = 'tide', objective = '1ms' }\nslots = { slots = 'fixed', count = 1 }",
    )?;
    let server = Server::builder().gate(gate).bind(address, store())?;
    println!("listens at {}", server.address());
    // Ctrl-C: callers are told to go elsewhere, and what was let in is finished.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tokio::signal::ctrl_c())?;
    server.stop(Duration::from_secs(5));
    Ok(())
}

/// The service: a map behind a lock.
fn store() -> impl Handler {
    let map = Mutex::new(HashMap::<Bytes, Bytes>::new());
    blocking(move |request: Request| {
        let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
        match request.method {
            GET => map
                .get(&request.payload)
                .cloned()
                .ok_or_else(|| Failure::new(404, "there is no such key")),
            SET => {
                let (key, value) = split(&request.payload)?;
                map.insert(key, value);
                Ok(Bytes::new())
            }
            other => Err(Failure::new(400, format!("there is no method {other}"))),
        }
    })
}

/// Key and value of a SET.
fn split(payload: &Bytes) -> Result<(Bytes, Bytes), Failure> {
    let length = payload.first().copied().map(usize::from);
    let end = length.map(|length| length + 1).filter(|end| *end <= payload.len());
    let end = end.ok_or_else(|| Failure::new(400, "a key that is longer than the payload"))?;
    Ok((payload.slice(1..end), payload.slice(end..)))
}

#[cfg(test)]
mod tests {
    use tidegate::Context;
    use tidegate::rpc::{Answer, Reply};

    use super::*;

    fn ask(store: &impl Handler, method: u32, payload: &'static [u8]) -> Answer {
        let payload = Bytes::from_static(payload);
        let request = Request { method, payload, context: Context::default(), degraded: false };
        match store.call(request) {
            Reply::Now(answer) => answer,
            Reply::Later(_) => panic!("it runs to completion"),
        }
    }

    #[test]
    fn what_was_set_is_got() {
        let store = store();
        assert_eq!(ask(&store, GET, b"colour").unwrap_err().code, 404);
        assert_eq!(ask(&store, SET, b"\x06colourblue").unwrap(), "");
        assert_eq!(ask(&store, GET, b"colour").unwrap(), "blue");
        assert_eq!(ask(&store, SET, b"\x09colour").unwrap_err().code, 400);
        assert_eq!(ask(&store, SET, b"").unwrap_err().code, 400);
        assert_eq!(ask(&store, 3, b"").unwrap_err().code, 400);
    }
}
