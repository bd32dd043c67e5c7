//! The listeners for what the guarded service sends out: sockets, workers, reload, end.
//!
//! Each has a worker per serving thread, in that thread's runtime, with connections, counters and health of
//! its own. They take connections as long as any thread has requests inside, whose calls may come to any of
//! them.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tidegate_core::gate::CalleeId;
use tidegate_core::rng::Rng;
use tidegate_driver::Monotonic;
use tokio::sync::watch;

use crate::config::{ProxyConfig, TracesConfig};
use crate::egress::WayOut;
use crate::health::Peers;
use crate::inflight::{By, InFlight};
use crate::journal::Journals;
use crate::listen;
use crate::metrics::Counters;
use crate::server::StartError;
use crate::tls::Tls;
use crate::trace::Traces;
use crate::worker::{Links, Tools, Worker};

/// All ways out of a process.
#[derive(Debug, Default)]
pub(crate) struct Outlets {
    list: Vec<Outlet>,
    /// None where nothing goes out.
    inside: Option<Arc<InFlight>>,
}

#[derive(Debug)]
struct Outlet {
    way: Arc<WayOut>,
    workers: Vec<Arc<Worker>>,
    counters: Arc<Counters>,
    listen: SocketAddr,
}

/// What a serving thread has to do for them.
#[derive(Debug)]
pub(crate) struct Outward {
    pub(crate) workers: Vec<(Arc<Worker>, std::net::TcpListener)>,
    pub(crate) ends: Ends,
}

/// How many threads have not yet finished what is inside.
#[derive(Clone, Debug)]
pub(crate) struct Ends(watch::Sender<usize>);

impl Ends {
    /// This thread has; resolves once all have.
    pub(crate) async fn done(self) {
        self.0.send_modify(|left| *left = left.saturating_sub(1));
        // The sender is here, so this ends only when all have.
        let _ = self.0.subscribe().wait_for(|left| *left == 0).await;
    }
}

impl Outlets {
    /// The ways out of `config`, and for each thread what it has to do for them. `tools` are those of a worker.
    pub(crate) fn open(
        config: &ProxyConfig,
        tools: &Tools,
        clock: Monotonic,
        seeds: &mut Rng,
    ) -> Result<(Self, Vec<Outward>), StartError> {
        let ends = Ends(watch::Sender::new(tools.threads));
        let outward = || Outward { workers: Vec::new(), ends: ends.clone() };
        let mut threads: Vec<_> = (0..tools.threads).map(|_| outward()).collect();
        let mut list = Vec::new();
        for (number, egress) in (1..).zip(&config.egress) {
            let Some(inside) = &tools.inside else { break };
            let settings = egress.settings(config);
            let listeners = listen::outward(egress.listen, tools.threads)?;
            let address = listeners.first().map(std::net::TcpListener::local_addr);
            let listen = address.and_then(Result::ok).unwrap_or(egress.listen);
            let links = links(&settings)?;
            let seed = seeds.next_u64();
            let way = WayOut::new(CalleeId(number), egress, Arc::clone(inside), clock, seed);
            let way = Arc::new(way.map_err(|error| StartError::Config(error.to_string()))?);
            let (counters, peers) = (Arc::new(Counters::default()), Peers::default());
            let seats = Arc::default();
            let mut workers = Vec::new();
            for (thread, listener) in threads.iter_mut().zip(listeners) {
                let tools = Tools {
                    counters: Arc::clone(&counters),
                    peers: peers.clone(),
                    seats: Arc::clone(&seats),
                    way_out: Some(Arc::clone(&way)),
                    seed: seeds.next_u64(),
                    ..tools.clone()
                };
                let worker = Arc::new(Worker::new(tools, &settings, &links));
                thread.workers.push((Arc::clone(&worker), listener));
                workers.push(worker);
            }
            list.push(Outlet { way, workers, counters, listen });
        }
        Ok((Self { list, inside: tools.inside.clone() }, threads))
    }

    /// Where the guarded service reaches the way out of that name.
    pub(crate) fn listen(&self, name: &str) -> Option<SocketAddr> {
        let of_name = |outlet: &&Outlet| outlet.way.terms().egress.name == name;
        self.list.iter().find(of_name).map(|outlet| outlet.listen)
    }

    /// Everything that a reload of `config` needs; nothing has changed yet.
    pub(crate) fn prepare(&self, config: &ProxyConfig) -> Result<Vec<Links>, StartError> {
        config.egress.iter().map(|egress| links(&egress.settings(config))).collect()
    }

    /// Calls from now on go by `config`, which has as many ways out as before.
    pub(crate) fn reconfigure(
        &self,
        config: &ProxyConfig,
        links: Vec<Links>,
        clock: Monotonic,
    ) -> Result<(), StartError> {
        for ((outlet, egress), links) in self.list.iter().zip(&config.egress).zip(links) {
            outlet
                .way
                .reconfigure(egress, clock)
                .map_err(|error| StartError::Config(error.to_string()))?;
            let settings = egress.settings(config);
            outlet.workers.iter().for_each(|worker| worker.reconfigure(&settings, &links));
        }
        Ok(())
    }

    /// A line for each, for the operator.
    pub(crate) fn describe(&self) -> impl Iterator<Item = String> + '_ {
        self.list.iter().map(|outlet| {
            let egress = &outlet.way.terms().egress;
            let upstreams: Vec<_> = egress.upstreams.iter().map(ToString::to_string).collect();
            format!("calls to {} go by {} to {}", egress.name, outlet.listen, upstreams.join(", "))
        })
    }

    /// Requests that calls can be matched to.
    pub(crate) fn inside(&self) -> usize {
        self.inside.as_ref().map_or(0, |inside| inside.count())
    }

    /// Numbers of each.
    pub(crate) fn report(&self) -> Vec<Report> {
        self.list.iter().map(Outlet::report).collect()
    }
}

impl Outlet {
    fn report(&self) -> Report {
        let (counts, counters) = (&self.way.counts, &self.counters);
        Report {
            name: self.way.terms().egress.name.clone(),
            matched: By::ALL.map(|by| (by.field(), counts.matched[by as usize].get())),
            unranked: counts.unranked.get(),
            rejected: counts.rejected.get(),
            refused: counts.refused.get(),
            retries: counts.retries.get(),
            failed: [
                ("connect", counters.connect_failures.get()),
                ("broken", counters.broken.get()),
                ("late", counters.late.get()),
            ],
        }
    }
}

/// What happened to the calls of one way out.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) name: String,
    /// By the field that told whose they are.
    pub(crate) matched: [(&'static str, u64); By::ALL.len()],
    pub(crate) unranked: u64,
    pub(crate) rejected: u64,
    pub(crate) refused: u64,
    pub(crate) retries: u64,
    pub(crate) failed: [(&'static str, u64); 3],
}

impl Report {
    /// One on which nothing has happened.
    pub(crate) fn of_nothing(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            matched: By::ALL.map(|by| (by.field(), 0)),
            unranked: 0,
            rejected: 0,
            refused: 0,
            retries: 0,
            failed: ["connect", "broken", "late"].map(|kind| (kind, 0)),
        }
    }

    /// The same as JSON.
    pub(crate) fn json(&self) -> Value {
        let named = |pairs: &[(&str, u64)]| -> Map<String, Value> {
            pairs.iter().map(|(name, count)| ((*name).to_owned(), (*count).into())).collect()
        };
        json!({
            "name": self.name,
            "matched": named(&self.matched),
            "unranked": self.unranked,
            "rejected": self.rejected,
            "refused": self.refused,
            "retries": self.retries,
            "failures": named(&self.failed),
        })
    }
}

/// How the service that is called is reached. Its calls make no spans: the service that makes them does.
fn links(settings: &ProxyConfig) -> Result<Links, StartError> {
    let tls = Tls::new(settings).map_err(StartError::Config)?;
    let traces = Traces::new(&TracesConfig::default(), settings.log).map_err(StartError::Config)?;
    // What the service sends out is not written down.
    Ok(Links { tls, jwt: None, outbound: None, traces, journals: Journals::default() })
}
