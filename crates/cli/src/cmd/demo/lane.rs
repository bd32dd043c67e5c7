//! A policy on show: a service, a sidecar before it, and what the generator sends to it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use tidegate_proxy::{File, Handle, Server, Source, StartError};
use tokio::sync::oneshot;

use super::load::Lane;
use super::service::Service;

/// The policies that are compared, from none to ours.
pub(crate) const POLICIES: [&str; 5] = ["open", "codel", "dagor", "breakwater", "tide"];

/// The gate of a policy. Everything else is the sidecar's default; each has the parameters of its
/// paper, those that are times scaled to an objective of 400 ms as tide scales its own.
pub(crate) fn block(policy: &str) -> &'static str {
    match policy {
        "codel" => "[gate.admission]\npolicy = 'codel'\n",
        // With its own window of a second a short run would be over before it has found its level.
        "dagor" => {
            "[gate.admission]\npolicy = 'dagor'\n\
             [gate.admission.detector]\nwindow = '100ms'\n"
        }
        "breakwater" => {
            "[gate.admission]\npolicy = 'breakwater'\n\
             target = '160ms'\ndrop = '320ms'\nperiod = '20ms'\n"
        }
        "tide" => "[gate.admission]\npolicy = 'tide'\nobjective = '400ms'\n",
        _ => "[gate.admission]\npolicy = 'open'\n",
    }
}

fn file(policy: &str, upstream: SocketAddr) -> Result<File, String> {
    let mut file = File::parse(block(policy)).map_err(|error| error.to_string())?;
    let local = SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
    let proxy = &mut file.proxy;
    (proxy.listen, proxy.admin) = (local, local);
    proxy.upstreams = vec![format!("http://{upstream}").parse()?];
    proxy.trust = tidegate_proxy::Trust::Inside;
    proxy.threads = 1;
    proxy.log = tidegate_proxy::Log::None;
    Ok(file)
}

/// One policy, running.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) service: Arc<Service>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) sidecar: Handle,
    policy: Arc<Mutex<String>>,
    ended: Option<thread::JoinHandle<io::Result<()>>>,
    /// The service ends with it.
    _over: oneshot::Sender<()>,
}

impl Stage {
    /// Starts all of it, on threads of its own.
    pub(crate) fn start(policy: &str, seed: u64) -> Result<Self, StartError> {
        let cannot = |error| StartError::Io("cannot start the service".to_owned(), error);
        let (over, ends) = oneshot::channel();
        let service = Arc::new(Service::new(seed));
        let upstream = Arc::clone(&service).start(ends).map_err(cannot)?;
        let chosen = Arc::new(Mutex::new(policy.to_owned()));
        let source = Source::new({
            let chosen = Arc::clone(&chosen);
            move || file(&chosen.lock().unwrap_or_else(PoisonError::into_inner), upstream)
        });
        let first = file(policy, upstream).map_err(StartError::Config)?;
        let server = Server::bind(first, Some(source), seed)?;
        let sidecar = server.handle();
        let ended = thread::Builder::new().name(policy.to_owned()).spawn(move || server.run());
        let ended = Some(ended.map_err(|error| StartError::Io("no thread".to_owned(), error))?);
        let lane = Arc::new(Lane::new(sidecar.listen()));
        Ok(Self { service, lane, sidecar, policy: chosen, ended, _over: over })
    }

    /// Another policy, from now on.
    pub(crate) fn choose(&self, policy: &str) -> Result<(), StartError> {
        policy.clone_into(&mut self.policy.lock().unwrap_or_else(PoisonError::into_inner));
        self.sidecar.reload()
    }

    pub(crate) fn policy(&self) -> String {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Stage {
    /// Ends it at once, whatever is inside.
    fn drop(&mut self) {
        self.sidecar.stop();
        self.sidecar.stop();
        if let Some(thread) = self.ended.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_a_valid_block_of_its_name() {
        for policy in POLICIES {
            let file = File::parse(block(policy)).unwrap_or_else(|error| panic!("{error}"));
            assert!(file.to_toml().contains(&format!("policy = \"{policy}\"")), "{policy}");
        }
    }
}
