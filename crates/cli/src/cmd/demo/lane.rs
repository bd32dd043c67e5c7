//! A policy on show: a service, a sidecar before it, and what the generator sends to it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use tidegate_proxy::{File, Handle, Server, StartError};
use tokio::sync::oneshot;

use super::load::Lane;
use super::service::{Service, WORKERS};

/// The policies that are compared, from none to ours.
pub(crate) const POLICIES: [&str; 5] = ["open", "codel", "dagor", "breakwater", "tide"];

/// Those that tell callers what to send, and are at their best where these listen.
pub(crate) const OBEYED: [&str; 3] = ["dagor", "breakwater", "tide"];

/// The gate of a policy. Everything else is the sidecar's default (but for [`known_workers`]); each has the parameters of its
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

/// Slots for a gate whose callers obey, as if it knew the service: with both it has all that its paper
/// assumes. One for each worker, and two that are on their way there or back.
fn known_workers() -> String {
    format!("[gate.slots]\nslots = 'fixed'\ncount = {}\n", WORKERS + 2)
}

fn file(policy: &str, obey: bool, upstream: SocketAddr) -> Result<File, String> {
    let slots = if obey { known_workers() } else { String::new() };
    let text = format!("{}{slots}", block(policy));
    let mut file = File::parse(&text).map_err(|error| error.to_string())?;
    let local = SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0));
    let proxy = &mut file.proxy;
    (proxy.listen, proxy.admin) = (local, local);
    proxy.upstreams = vec![format!("http://{upstream}").parse()?];
    proxy.trust = tidegate_proxy::Trust::Inside;
    proxy.threads = 1;
    proxy.log = tidegate_proxy::Log::None;
    Ok(file)
}

/// One policy on show after another, and what is sent to it.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) lane: Arc<Lane>,
    obey: bool,
    seed: u64,
    running: Mutex<Running>,
}

/// A policy, running.
#[derive(Debug)]
struct Running {
    policy: String,
    service: Arc<Service>,
    sidecar: Handle,
    ended: Option<thread::JoinHandle<io::Result<()>>>,
    /// The service ends with it.
    _over: oneshot::Sender<()>,
}

impl Stage {
    /// Starts all of it, on threads of its own. Clients that `obey` hear what they are told.
    pub(crate) fn start(policy: &str, obey: bool, seed: u64) -> Result<Self, StartError> {
        let running = Running::start(policy, obey, seed)?;
        let lane = Arc::new(Lane::new(obey));
        lane.turn_to(running.sidecar.listen(), policy);
        Ok(Self { lane, obey, seed, running: Mutex::new(running) })
    }

    /// Another policy, from now on, before an empty service: what the last one has left behind is not its fault.
    pub(crate) fn choose(&self, policy: &str) -> Result<(), StartError> {
        let next = Running::start(policy, self.obey, self.seed)?;
        let last = {
            let mut running = self.lock();
            next.service.slow(running.service.slowness());
            self.lane.turn_to(next.sidecar.listen(), policy);
            std::mem::replace(&mut *running, next)
        };
        drop(last);
        Ok(())
    }

    /// From now on requests take `hundredths` of their usual time.
    pub(crate) fn slow(&self, hundredths: u32) {
        self.lock().service.slow(hundredths);
    }

    pub(crate) fn policy(&self) -> String {
        self.lock().policy.clone()
    }

    pub(crate) fn sidecar(&self) -> Handle {
        self.lock().sidecar.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn start(policy: &str, obey: bool, seed: u64) -> Result<Self, StartError> {
        let cannot = |error| StartError::Io("cannot start the service".to_owned(), error);
        let (over, ends) = oneshot::channel();
        let service = Arc::new(Service::new(seed));
        let upstream = Arc::clone(&service).start(ends).map_err(cannot)?;
        let file = file(policy, obey, upstream).map_err(StartError::Config)?;
        let server = Server::bind(file, None, seed)?;
        let sidecar = server.handle();
        let ended = thread::Builder::new().name(policy.to_owned()).spawn(move || server.run());
        let ended = Some(ended.map_err(|error| StartError::Io("no thread".to_owned(), error))?);
        Ok(Self { policy: policy.to_owned(), service, sidecar, ended, _over: over })
    }
}

impl Drop for Running {
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
    fn another_policy_begins_with_a_service_and_a_sidecar_of_its_own() {
        let stage = Stage::start("open", false, 1).expect("it starts");
        let (first, before) = (stage.sidecar().listen(), Arc::clone(&stage.lock().service));
        stage.slow(250);
        stage.choose("tide").expect("it starts");
        assert_eq!(stage.policy(), "tide");
        assert_ne!(stage.sidecar().listen(), first);
        assert!(!Arc::ptr_eq(&before, &stage.lock().service), "whatever waits there");
        assert_eq!(stage.lock().service.slowness(), 250, "what the page has set still holds");
        std::net::TcpStream::connect(first).expect_err("the one before has ended");
    }

    #[test]
    fn every_policy_has_a_valid_block_of_its_name() {
        for policy in POLICIES {
            let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
            let file = file(policy, true, nowhere).unwrap_or_else(|error| panic!("{error}"));
            assert!(file.to_toml().contains(&format!("policy = \"{policy}\"")), "{policy}");
        }
    }
}
