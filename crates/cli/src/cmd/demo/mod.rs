//! `tidegate demo`: a service that can do 200 requests per second, a sidecar before it, more load
//! than it can take, and what comes of it.

mod callers;
mod lane;
mod live;
mod load;
mod once;
mod service;
mod web;

use std::net::SocketAddr;
use std::sync::Arc;
use std::{fmt, thread};

use tokio::net::TcpListener;

use super::{Error, Format, print};

/// See what overload does to a service, and what policies make of it: a page with controls and live
/// charts. Needs nothing, and touches nothing but loopback. Ctrl-C ends all of it at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// Without a page: try every policy at three loads for 40 seconds, and print two tables: with callers that know nothing of
    /// the gate, and with callers that obey it.
    #[arg(long)]
    once: bool,
    /// How to answer, with --once.
    #[arg(long, value_enum, default_value_t, requires = "once")]
    format: Format,
    /// Where the page is.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7373", conflicts_with = "once")]
    listen: SocketAddr,
    /// Load to begin with, as a multiple of what the service can do.
    #[arg(long, value_name = "TIMES", default_value_t = 2.0, conflicts_with = "once")]
    load: f64,
}

impl Demo {
    pub(crate) fn run(self) -> Result<(), Error> {
        if !(0.0..=10.0).contains(&self.load) {
            return Err(Error::Input(format!("--load {} is not allowed: 0 to 10", self.load)));
        }
        // Ten times the load needs some thousand sockets; where it may not be raised, fewer wait.
        let _ = rlimit::increase_nofile_limit(u64::MAX);
        if self.once { once::run(self.format) } else { self.live() }
    }

    /// Runs until the process is ended.
    fn live(self) -> Result<(), Error> {
        let runtime = runtime()?;
        let listener = runtime.block_on(TcpListener::bind(self.listen));
        let listener = listener.map_err(|error| {
            Error::Failed(format!("cannot listen on {}: {error}; --listen ADDR", self.listen))
        })?;
        let address = listener.local_addr().map_err(|error| failed(&error))?;
        let show = Arc::new(live::Show::new(self.load).map_err(|error| failed(&error))?);
        // The generator has a thread of its own: a page that is loaded must not hold it up.
        let sending = runtime_for_load(Arc::clone(&show))?;
        print(format_args!("The demo is at http://{address}/ (Ctrl-C ends it)\n"))?;
        runtime.block_on(async {
            tokio::join!(web::serve(Arc::clone(&show), listener), show.tell());
        });
        drop(sending);
        Ok(())
    }
}

fn runtime_for_load(show: Arc<live::Show>) -> Result<thread::JoinHandle<()>, Error> {
    let runtime = runtime()?;
    let run = move || {
        let (lanes, shown) = (show.lanes(), Arc::clone(&show));
        runtime.block_on(load::generate(lanes, move || shown.wanted(), 1));
    };
    thread::Builder::new().name("load".to_owned()).spawn(run).map_err(|error| failed(&error))
}

fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| failed(&error))
}

fn failed(error: &dyn fmt::Display) -> Error {
    Error::Failed(error.to_string())
}
