//! The server under test, a process of its own: a gate read from stdin before a handler that keeps its
//! core busy for as long as each request says.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tidegate_core::Span;
use tidegate_core::gate::GateConfig;
use tidegate_rpc::{Answer, Bytes, Failure, Request, Server, blocking};
use tidegate_sim::dist::{Dist, Service};

use super::super::Error;
use super::child;

/// Keys of the key-value store; each value has as many bytes as this.
pub(super) const KEYS: u32 = 100_000;
const VALUE: usize = 64;

/// The server that `rpc` starts.
#[derive(Debug, clap::Args)]
pub(crate) struct RpcServer {
    /// The core to run on.
    #[arg(long)]
    core: Option<usize>,
    /// What a request does.
    #[arg(long, default_value = "spin")]
    work: Work,
    /// How much longer an operation of the key-value store takes than it must.
    #[arg(long, default_value = "0s")]
    longer: Span,
}

/// What a request does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Work {
    /// Keeps the core busy for as many nanoseconds as its payload says.
    #[default]
    Spin,
    /// Nothing.
    None,
    /// Reads or writes a key.
    Kv,
}

impl RpcServer {
    pub(crate) fn run(self) -> Result<(), Error> {
        if let Some(core) = self.core {
            child::pin(core);
        }
        let failed = |error: &dyn std::fmt::Display| Error::Failed(format!("rpc-server: {error}"));
        let (config, mut stdin) = read_config()?;
        let gate = GateConfig::from_toml(&config).map_err(|error| failed(&error))?;
        let builder = Server::builder().gate(gate);
        let server = match self.work {
            Work::Spin => builder.bind("127.0.0.1:0", blocking(spin)),
            Work::None => {
                builder.bind("127.0.0.1:0", blocking(|_| Ok(Bytes::from_static(b"value"))))
            }
            Work::Kv => builder.bind("127.0.0.1:0", blocking(store(self.longer))),
        };
        let server = server.map_err(|error| failed(&error))?;
        println!("{}", server.address());
        let _ = io::stdout().flush();
        // Until whoever started this goes away.
        let _ = stdin.read_to_end(&mut Vec::new());
        server.stop(Duration::ZERO);
        Ok(())
    }
}

/// Everything up to a line with a dot.
fn read_config() -> Result<(String, impl Read), Error> {
    let mut stdin = io::stdin().lock();
    let mut config = String::new();
    loop {
        let start = config.len();
        let read = stdin.read_line(&mut config);
        let count = read.map_err(|error| Error::Failed(format!("rpc-server: {error}")))?;
        if count == 0 || config[start..].trim_end() == "." {
            config.truncate(start);
            return Ok((config, stdin));
        }
    }
}

fn spin(request: Request) -> Answer {
    let begun = Instant::now();
    let nanos = request.payload.get(..8).and_then(|bytes| bytes.try_into().ok());
    let nanos = nanos.ok_or_else(|| Failure::new(400, "eight bytes say how long"))?;
    busy_until(begun + Duration::from_nanos(u64::from_le_bytes(nanos).min(1_000_000_000)));
    Ok(Bytes::new())
}

fn busy_until(end: Instant) {
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Payload: a key of four bytes, and for SET (method 2) its value.
fn store(longer: Span) -> impl Fn(Request) -> Answer + Send + Sync + 'static {
    let value = Bytes::from(vec![7; VALUE]);
    let keys = (0..KEYS).map(|key| (key, value.clone()));
    let map: Mutex<HashMap<u32, Bytes>> = Mutex::new(keys.collect());
    let longer = Duration::from_nanos(longer.as_nanos());
    move |request| {
        if !longer.is_zero() {
            busy_until(Instant::now() + longer);
        }
        let key = request.payload.get(..4).and_then(|bytes| bytes.try_into().ok());
        let key = u32::from_le_bytes(key.ok_or_else(|| Failure::new(400, "four bytes of key"))?);
        let mut map = map.lock().map_err(|_| Failure::new(500, "poisoned"))?;
        if request.method == 2 {
            map.insert(key, request.payload.slice(4..));
            return Ok(Bytes::new());
        }
        map.get(&key).cloned().ok_or_else(|| Failure::new(404, "no such key"))
    }
}

/// What `--service` says.
pub(super) fn parse_service(text: &str) -> Result<(Work, Service), Error> {
    let wrong = || {
        let allowed = "exp:100us, constant:10us, bimodal:10us, none, kv or kv:50us";
        Error::Input(format!("--service {text}: not one of {allowed}"))
    };
    let nothing = Service { dist: Dist::Constant, mean: Span::ZERO };
    match text {
        "none" => return Ok((Work::None, nothing)),
        "kv" => return Ok((Work::Kv, nothing)),
        _ => {}
    }
    let (shape, mean) = text.split_once(':').ok_or_else(wrong)?;
    let (work, dist) = match shape {
        "exp" | "exponential" => (Work::Spin, Dist::Exponential),
        "constant" => (Work::Spin, Dist::Constant),
        "bimodal" => (Work::Spin, Dist::Bimodal),
        "kv" => (Work::Kv, Dist::Constant),
        _ => return Err(wrong()),
    };
    let mean = mean.parse().map_err(|_| wrong())?;
    Ok((work, Service { dist, mean }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_read_or_explained() {
        let (work, service) = parse_service("exp:100us").unwrap();
        assert_eq!((work, service.mean), (Work::Spin, Span::from_micros(100)));
        assert_eq!(parse_service("kv").unwrap().0, Work::Kv);
        let (work, service) = parse_service("kv:50us").unwrap();
        assert_eq!((work, service.mean), (Work::Kv, Span::from_micros(50)));
        for wrong in ["", "exp", "exp:fast", "uniform:1us"] {
            assert!(parse_service(wrong).is_err(), "{wrong}");
        }
    }
}
