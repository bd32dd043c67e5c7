//! Connections to upstreams by name: [`connect`].
//!
//! A name may have several addresses, each a replica. They take turns, a connection each, so that all have their share;
//! one that does not answer within [`HEAD_START`] is raced by the next (RFC 8305), and the first that is connected is taken. The
//! name is looked up for each connection, and connections have an age, so that whatever it stands for is followed.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::files;

/// What an address is ahead of the next (RFC 8305, 5).
const HEAD_START: Duration = Duration::from_millis(250);
/// Most addresses of a name that are tried for one connection.
const MOST: usize = 8;

/// Connects to one of the addresses that `host` has; `turn` says whose turn it is. Tells how many they are, or how many of them are
/// used.
pub(crate) async fn connect(
    host: &str,
    port: u16,
    turn: &AtomicUsize,
) -> io::Result<(TcpStream, usize)> {
    let mut addresses: Vec<_> = lookup_host((host, port)).await?.collect();
    // As they are asked for in turn, each time in the same order.
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    let count = addresses.len().min(MOST);
    let first = turn.fetch_add(1, Ordering::Relaxed) % addresses.len();
    addresses.rotate_left(first);
    let mut rest = addresses.into_iter().take(MOST);
    let mut tried = JoinSet::new();
    let mut error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        let next = rest.next();
        let more = next.is_some();
        next.into_iter().for_each(|address| drop(tried.spawn(TcpStream::connect(address))));
        tokio::select! {
            biased;
            result = tried.join_next() => match result {
                Some(Ok(Ok(stream))) if files::is_scarce(&stream) => {
                    return Err(io::Error::other("hardly any file descriptors are left"));
                }
                Some(Ok(Ok(stream))) => return Ok((stream, count)),
                Some(Ok(Err(failed))) => error = failed,
                Some(Err(_)) => {}
                None => return Err(error),
            },
            () = sleep(HEAD_START), if more => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::TcpListener;

    /// `localhost` may have one address or two.
    #[tokio::test]
    async fn all_addresses_of_a_name_have_their_turn() {
        let four = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = four.local_addr().expect("bound").port();
        let six = TcpListener::bind(("::1", port));
        let names = lookup_host(("localhost", port)).await.expect("a name").map(|it| it.ip());
        let names: BTreeSet<_> = names.collect();
        let listening = |ip: &std::net::IpAddr| ip.is_ipv4() || six.is_ok();
        let wanted: BTreeSet<_> = names.into_iter().filter(listening).collect();
        let turn = AtomicUsize::new(0);
        let mut met = BTreeSet::new();
        for _ in 0..4 {
            let (stream, count) =
                connect("localhost", port, &turn).await.expect("somebody listens");
            assert!(count >= wanted.len());
            met.insert(stream.peer_addr().expect("connected").ip());
        }
        assert_eq!(met, wanted);
    }

    #[tokio::test]
    async fn one_that_does_not_listen_costs_nothing_but_its_turn() {
        let four = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = four.local_addr().expect("bound").port();
        let turn = AtomicUsize::new(0);
        for _ in 0..4 {
            let (stream, _) = connect("localhost", port, &turn).await.expect("somebody listens");
            assert!(stream.peer_addr().expect("connected").is_ipv4());
        }
        drop(four);
        assert!(connect("localhost", port, &turn).await.is_err(), "nobody does");
    }
}
