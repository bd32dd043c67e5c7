//! Asking a broker who it is: connect, and read the INFO with which every server begins.

use std::io::Read;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::config::Address;
use crate::wire::Bounds;
use crate::wire::hello::Info;
use crate::wire::server::{self, Op};

/// Longest INFO that is read.
const BOUNDS: Bounds = Bounds { line: 1 << 20, payload: 0 };

/// What a broker says of itself, and where it was found. Blocks for about `patience` at most.
pub(crate) fn ask(address: &Address, patience: Duration) -> Result<(Info, SocketAddr), String> {
    let found = address.authority().to_socket_addrs();
    let found = found.map_err(|error| format!("its address is not known: {error}"))?;
    let mut why = "its name has no address".to_owned();
    for at in found {
        match TcpStream::connect_timeout(&at, patience) {
            Ok(stream) => return read(stream, patience).map(|info| (info, at)),
            Err(error) => why = format!("cannot connect to it: {error}"),
        }
    }
    Err(why)
}

fn read(mut stream: TcpStream, patience: Duration) -> Result<Info, String> {
    let end = Instant::now() + patience;
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
