//! Sockets to listen on, and what to do where that is not possible.

use std::net::SocketAddr;
use std::{io, thread};

use tokio::net::TcpListener;

use crate::config::ProxyConfig;
use crate::server::StartError;
use crate::worker;

/// A socket for each serving thread, all on one address.
pub(crate) fn serving(config: &ProxyConfig) -> Result<Vec<std::net::TcpListener>, StartError> {
    let threads = match config.threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    sockets(config.listen, threads, "", "; --listen gives another")
}

/// The same for what the guarded service sends out.
pub(crate) fn outward(
    address: SocketAddr,
    threads: usize,
) -> Result<Vec<std::net::TcpListener>, StartError> {
    sockets(address, threads, " for proxy.egress", "; its `listen` gives another")
}

fn sockets(
    address: SocketAddr,
    threads: usize,
    why: &str,
    hint: &str,
) -> Result<Vec<std::net::TcpListener>, StartError> {
    let cannot = || cannot_listen(address, why, hint);
    // Sockets that share an address also share it with another process of ours; ask without
    // sharing first, so that a port in use is an error and not a surprise.
    if address.port() != 0 {
        drop(std::net::TcpListener::bind(address).map_err(cannot())?);
    }
    let first = worker::listen(address).map_err(cannot())?;
    let address = first.local_addr().map_err(cannot())?;
    let mut listeners = vec![first];
    for _ in 1..threads {
        listeners.push(worker::listen(address).map_err(cannot())?);
    }
    Ok(listeners)
}

/// The socket of the admin pages.
pub(crate) fn admin(address: SocketAddr) -> Result<TcpListener, StartError> {
    let open = || {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    open().map_err(cannot_listen(address, " for the admin pages", "; --admin gives another"))
}

/// What to do about an address that cannot be listened on, where that is known.
fn cannot_listen(
    address: SocketAddr,
    why: &str,
    other: &str,
) -> impl Fn(io::Error) -> StartError + use<> {
    let what = format!("cannot listen on {address}{why}");
    let other = other.to_owned();
    move |error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                format!(", as something else does, perhaps another sidecar{other}")
            }
            io::ErrorKind::AddrNotAvailable => ", which is no address of this machine".to_owned(),
            io::ErrorKind::PermissionDenied => {
                ", as ports below 1024 need CAP_NET_BIND_SERVICE".to_owned()
            }
            _ => String::new(),
        };
        StartError::Io(format!("{what}{hint}"), error)
    }
}
