//! A store of four tiers, each a process with a sidecar of its own, and a load on it.
//!
//! ```text
//! load ─► front ─┬─► auth                      /login
//!                └─► partition ─► extent       /read
//! ```
//!
//! These are the tiers of Wisp's testbed (SoCC 2017). A tier has so many workers; a request keeps one while it works, a time drawn from an
//! exponential distribution, and while it waits for its calls, as a thread does. Work is waiting, so that all of it fits two
//! cores. Nothing here knows Tidegate but the role `sidecar`: a tier copies `traceparent`, as any service that is traced does.
//!
//! ```text
//! cargo run -p example-storage -- show
//! ```
//!
//! starts eight processes and asks for two and four times what the extents can do: without control, by cursors and credits, and by
//! rates. What is answered, what was done in vain, and how logins fare, which call no extent, is a table.

#![allow(clippy::disallowed_methods, reason = "processes in real time")]

mod client;
mod load;
mod show;
mod tier;

use tidegate_proxy::{File, Server};

const USAGE: &str = "storage tier LISTEN WORKERS MEAN_MS [PATH=URL,URL…]…
storage sidecar FILE
storage load URL SECONDS PATH=RATE[@BUSINESS]…
storage capacity URL CLIENTS SECONDS
storage show [SECONDS [json]]";

fn main() -> Result<(), client::Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    match &*words {
        ["tier", listen, workers, mean, routes @ ..] => {
            let tier = tier::Tier::new(workers.parse()?, mean.parse()?, routes)?;
            runtime()?.block_on(tier.serve(listen.parse()?))?;
        }
        ["sidecar", file] => {
            let file = File::parse(&std::fs::read_to_string(file)?)?;
            let server = Server::bind(file, None, 7).map_err(|error| error.to_string())?;
            server.run()?;
        }
        ["load", url, seconds, flows @ ..] => {
            let flows = flows.iter().map(|flow| flow.parse()).collect::<Result<Vec<_>, _>>()?;
            let told = runtime()?.block_on(load::run(url, seconds.parse()?, &flows))?;
            println!("{told}");
        }
        ["capacity", url, clients, seconds] => {
            let measured = load::capacity(url, clients.parse()?, seconds.parse()?);
            println!("{}", runtime()?.block_on(measured)?);
        }
        ["show"] => show::show(5, false)?,
        ["show", seconds] => show::show(seconds.parse()?, false)?,
        ["show", seconds, "json"] => show::show(seconds.parse()?, true)?,
        _ => return Err(USAGE.into()),
    }
    Ok(())
}
