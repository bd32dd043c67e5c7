//! Asking a broker who it is: connect, read the INFO with which every server begins, and try TLS where that is wanted.

use std::io::Read;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection};

use crate::config::Address;
use crate::tls;
use crate::wire::Bounds;
use crate::wire::hello::Info;
use crate::wire::server::{self, Op};

/// Longest INFO that is read.
const BOUNDS: Bounds = Bounds { line: 1 << 20, payload: 0 };

/// What a broker says of itself and where it was found, or why that is not known.
pub(crate) type Found = Result<(Info, SocketAddr), String>;

/// Asks. Blocks for about `patience` at most.
pub(crate) fn ask(address: &Address, tls: Option<&Arc<ClientConfig>>, patience: Duration) -> Found {
    let found = address.authority().to_socket_addrs();
    let found = found.map_err(|error| format!("its address is not known: {error}"))?;
    let mut why = "its name has no address".to_owned();
    for at in found {
        match TcpStream::connect_timeout(&at, patience) {
            Ok(mut stream) => {
                let end = Instant::now() + patience;
                let info = read(&mut stream, end, patience)?;
                if let Some(tls) = tls.filter(|_| address.is_tls() && info.unfit(true).is_none()) {
                    greet(&mut stream, address, tls, end)?;
                }
                return Ok((info, at));
            }
            Err(error) => why = format!("cannot connect to it: {error}"),
        }
    }
    Err(why)
}

/// Whether it has a certificate that is believed.
fn greet(
    stream: &mut TcpStream,
    address: &Address,
    tls: &Arc<ClientConfig>,
    end: Instant,
) -> Result<(), String> {
    let cannot = |error: &dyn std::fmt::Display| format!("it cannot be spoken to by TLS: {error}");
    let session = ClientConnection::new(Arc::clone(tls), tls::name(address)?);
    let mut session = session.map_err(|error| cannot(&error))?;
    while session.is_handshaking() {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left)).map_err(|error| cannot(&error))?;
        session.complete_io(stream).map_err(|error| cannot(&error))?;
    }
    Ok(())
}

fn read(stream: &mut TcpStream, end: Instant, patience: Duration) -> Result<Info, String> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match server::read(&bytes, BOUNDS) {
            Ok(Some((Op::Info(json), _))) => return Info::read(json),
            Ok(None) => {}
            _ => return Err("it does not begin with INFO: is it a NATS server?".to_owned()),
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!("it said nothing within {} s", patience.as_secs_f64()));
        }
        let read = stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut buffer));
        match read {
            Ok(0) => return Err("it closed the connection without a word".to_owned()),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return Err(format!("it said nothing within {} s", patience.as_secs_f64())),
        }
    }
}
