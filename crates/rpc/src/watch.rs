//! Peers that are gone without a word, as a machine that lost its power.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Lets the kernel find out that a peer is gone: three questions after so long a silence, and data that
/// nobody acknowledges, or takes, for twice as long. It counts in seconds.
pub(crate) fn watch(socket: SockRef<'_>, silence: Duration) -> io::Result<()> {
    let silence = silence.max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new()
        .with_time(silence)
        .with_interval((silence / 3).max(Duration::from_secs(1)))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(2 * silence))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_is_asked_to_find_out_who_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = SockRef::from(&stream);
        watch(SockRef::from(&stream), Duration::from_secs(5)).unwrap();
        assert!(socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(10)));
        // The kernel knows no shorter times, which is no reason to do without.
        watch(socket, Duration::from_millis(1)).unwrap();
    }
}
