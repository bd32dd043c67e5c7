//! The client: calls to a service of one or several servers, by a [`Caller`] with any throttle.
//!
//! [`Caller`]: tidegate_core::Caller

mod link;
mod request;
mod stream;
pub(crate) mod upstream;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::Span;
use tidegate_core::caller::{Caller, CallerConfig};
use tidegate_core::config::Problems;
use tidegate_core::gate::CalleeId;
use tidegate_driver::timer::Timer;
use tidegate_driver::{Clock, Monotonic, Names, SharedCaller, random_seed};

use crate::error::{CallError, StartError};
use crate::wire::Limits;
use link::{Bounds, Endpoint};
pub use request::Call;
pub use upstream::Upstream;

/// A client in the making.
#[must_use = "a builder does nothing until it is built"]
pub struct ClientBuilder {
    addresses: Vec<SocketAddr>,
    caller: CallerConfig,
    seed: Option<u64>,
    patience: Option<Span>,
    bounds: Bounds,
    upstream: Option<(Arc<dyn Upstream>, CalleeId)>,
}

impl ClientBuilder {
    /// Another server of the same service.
    pub fn endpoint(mut self, address: SocketAddr) -> Self {
        self.addresses.push(address);
        self
    }

    /// Throttle, holding queue and retries; there are no hedges here. Default: credits, one retry in ten.
    pub fn caller(mut self, config: CallerConfig) -> Self {
        self.caller = config;
        self
    }

    /// Decides all random choices of the caller, and its identity. Default: drawn by the operating
    /// system.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Gives every call a deadline at most so long from now.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(Span::from(patience));
        self
    }

    /// The largest frames that are read and sent.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.bounds.limits = limits;
        self
    }

    /// How long a server may take to be reached, and to take what is written to it; a server that says
    /// nothing for so long while calls to it time out is connected to anew. Default: 5 s, many round
    /// trips to anywhere, and far less than the quarter of an hour after which TCP gives up.
    pub fn silence(mut self, silence: Duration) -> Self {
        self.bounds.silence = silence;
        self
    }

    /// Most bytes of requests that wait to be written on a connection; what comes beyond is refused
    /// here. Default: 16 MiB.
    pub fn out_limit(mut self, bytes: usize) -> Self {
        self.bounds.out = bytes;
        self
    }

    /// The gate of the service that makes these calls, which then refuses what `callee`, the service
    /// called here, would refuse: before anything was done for it.
    pub fn upstream(mut self, gate: impl Upstream, callee: CalleeId) -> Self {
        self.upstream = Some((Arc::new(gate), callee));
        self
    }

    /// The client. Connections are made when they are needed.
    pub fn build(self) -> Result<Client, StartError> {
        if self.addresses.is_empty() {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "a client needs an endpoint");
            return Err(StartError::Io(error));
        }
        let mut problems = Problems::default();
        let allowed = "calls are not sent twice at once, for nobody says which may be";
        problems.check("hedge", "{ … }", self.caller.hedge.is_none(), allowed);
        problems.into_result()?;
        let clock = Monotonic::process();
        let seed = self.seed.unwrap_or_else(random_seed);
        let caller = Caller::new(&self.caller, self.addresses.len(), clock.now(), seed)?;
        let endpoints = self.addresses.into_iter().map(Endpoint::new).collect::<Vec<_>>();
        let endpoints: Arc<[Endpoint]> = endpoints.into();
        let told = Arc::clone(&endpoints);
        let caller = SharedCaller::with_reports(caller, clock, move |endpoint, context| {
            told[endpoint].report(context);
        });
        Ok(Client {
            inner: Arc::new(Inner {
                caller,
                timer: Timer::default(),
                endpoints,
                patience: self.patience,
                bounds: self.bounds,
                upstream: self.upstream,
                names: Names::process(),
            }),
        })
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("addresses", &self.addresses)
            .field("caller", &self.caller)
            .finish_non_exhaustive()
    }
}

/// Calls a service. Clones are the same caller; with the last one its credits return to the servers.
///
/// ```
/// use tidegate_rpc::{CallError, Client, Server, blocking};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::builder().bind("127.0.0.1:0", blocking(|request| Ok(request.payload)))?;
/// let client = Client::builder().endpoint(server.address()).build()?;
/// match client.call(1, "hello").await {
///     Ok(answer) => assert_eq!(answer, "hello"),
///     Err(CallError::Refused(rejection)) => println!("turned away: {rejection}"),
///     Err(other) => return Err(other.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// A client with defaults, which still needs an endpoint.
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            addresses: Vec::new(),
            caller: CallerConfig::default(),
            seed: None,
            patience: None,
            bounds: Bounds {
                limits: Limits::default(),
                silence: Duration::from_secs(5),
                out: 16 << 20,
            },
            upstream: None,
        }
    }

    /// Calls `method` in the context of the request this task works for, if there is one.
    pub async fn call(&self, method: u32, payload: impl Into<Bytes>) -> Result<Bytes, CallError> {
        self.request(method, payload).send().await
    }

    /// A call whose rank, workflow or deadline differ from what it would inherit.
    pub fn request(&self, method: u32, payload: impl Into<Bytes>) -> Call {
        Call::new(Arc::clone(&self.inner), method, payload.into())
    }

    /// The caller behind it.
    pub fn caller(&self) -> &SharedCaller {
        &self.inner.caller
    }

    /// Says goodbye to all servers and waits until that is written, so that they have the credits of
    /// this caller back at once; no longer than a server may be silent. Calls under way are answered
    /// all the same, and those made afterwards connect anew.
    pub async fn close(&self) {
        let left: Vec<_> = self.inner.endpoints.iter().filter_map(Endpoint::leave).collect();
        for link in left {
            link.parted().await;
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("caller", &self.inner.caller).finish_non_exhaustive()
    }
}

struct Inner {
    caller: SharedCaller,
    timer: Timer,
    endpoints: Arc<[Endpoint]>,
    patience: Option<Span>,
    bounds: Bounds,
    upstream: Option<(Arc<dyn Upstream>, CalleeId)>,
    names: Names,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.endpoints.iter().for_each(|endpoint| drop(endpoint.leave()));
    }
}
