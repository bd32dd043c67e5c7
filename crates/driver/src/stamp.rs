//! When bytes reached the machine, before anybody read them.
//!
//! A request that waits in a socket waits all the same: Breakwater's packet-queue delay (§3.1), and
//! SRTM's arrival stamp. Linux tells when it received what a read returns (`SO_TIMESTAMPNS`), on TCP
//! too, loopback included. Four things to know about such a stamp:
//!
//! - **It belongs to the last packet of a read.** What came earlier in the same read waited at least
//!   as long, so reads are to be bounded ([`READ`]), and a message gets the stamp of the read that
//!   brought its last byte.
//! - **It is wall-clock time.** [`Stamps`] converts it by an offset that it measures now and then,
//!   between two readings of the clock that deadlines are kept in.
//! - **The wall clock steps.** A stamp from the future, or from longer ago than `OLDEST`, counts as
//!   no time waited, and the offset is measured anew.
//! - **It comes with a read.** For sockets that are ready and not read yet, a driver has to count from
//!   the moment it learned that they are.
//!
//! Where the platform has no such stamps, and for a moment after it was first asked for them, reads have none, and what they bring arrives when it is read.

use std::io::{self, Read};
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_core::{Instant, Span};

use crate::Clock;

/// Most bytes of one read. 16 KiB of requests of a hundred bytes are served in a fraction of a
/// millisecond, which bounds what the stamp of the last hides about the first.
pub const READ: usize = 16 << 10;
/// A stamp older than this is a step of the wall clock, not a wait.
const OLDEST: Span = Span::from_secs(2);
/// How long a measured offset is used. Clocks that are slewed drift by 500 µs per second at most, so
/// that it is wrong by less than 50 µs; and it is measured in 50 ns.
const MEASURED: Span = Span::from_millis(100);

/// A moment of the wall clock, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wall(pub u64);

/// Converts the kernel's stamps into moments of a driver's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamps {
    /// Wall clock less ours, and when that was measured.
    offset: Option<(u64, Instant)>,
    /// How often the wall clock was seen to step.
    steps: u64,
}

impl Stamps {
    /// When what carries `stamp` reached the machine, and at the latest `now`, a reading of `clock`.
    pub fn arrived(&mut self, stamp: Option<Wall>, now: Instant, clock: &dyn Clock) -> Instant {
        let Some(stamp) = stamp else { return now };
        let offset = match self.offset {
            Some((offset, at)) if now.since(at) < MEASURED => offset,
            _ => self.measure(clock),
        };
        self.convert(stamp, offset, now)
    }

    /// How often the wall clock was seen to step.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    fn convert(&mut self, Wall(stamp): Wall, offset: u64, now: Instant) -> Instant {
        let arrived = Instant::from_nanos(stamp.saturating_sub(offset));
        // The offset is not exact: a little ahead is now.
        let ahead = arrived.since(now) > Span::from_millis(1);
        if ahead || now.since(arrived) > OLDEST {
            self.steps += 1;
            self.offset = None;
            return now;
        }
        arrived.min(now)
    }

    fn measure(&mut self, clock: &dyn Clock) -> u64 {
        let before = clock.now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let after = clock.now();
        let middle = before + after.since(before).scale(0.5);
        let wall = u64::try_from(wall).unwrap_or(u64::MAX);
        let offset = wall.saturating_sub(middle.since(Instant::ZERO).as_nanos());
        self.offset = Some((offset, after));
        offset
    }
}

/// Reads sockets together with their stamps.
#[derive(Debug)]
pub struct Receiver {
    #[cfg(target_os = "linux")]
    control: Vec<u8>,
}

#[cfg(target_os = "linux")]
impl Receiver {
    /// A receiver with room for the kernel's messages.
    #[expect(clippy::new_without_default, reason = "elsewhere there is nothing to default")]
    pub fn new() -> Self {
        Self { control: nix::cmsg_space!(nix::sys::time::TimeSpec) }
    }

    /// Asks the kernel to stamp what `socket` receives. True if it will.
    pub fn enable(socket: &impl std::os::fd::AsFd) -> bool {
        use nix::sys::socket::{setsockopt, sockopt::ReceiveTimestampns};
        setsockopt(socket, ReceiveTimestampns, &true).is_ok()
    }

    /// One read, with the stamp of its last packet.
    pub fn read<S>(&mut self, socket: &S, buffer: &mut [u8]) -> io::Result<(usize, Option<Wall>)>
    where
        S: std::os::fd::AsRawFd,
        for<'a> &'a S: Read,
    {
        use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
        let mut parts = [io::IoSliceMut::new(buffer)];
        let (fd, flags) = (socket.as_raw_fd(), MsgFlags::empty());
        let message = recvmsg::<()>(fd, &mut parts, Some(&mut self.control), flags)?;
        let stamp = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(at) => wall(at.tv_sec(), at.tv_nsec()),
            _ => None,
        });
        Ok((message.bytes, stamp))
    }
}

#[cfg(target_os = "linux")]
mod info {
    use nix::libc;
    use nix::{getsockopt_impl, sockopt_impl};

    sockopt_impl!(
        /// What the kernel knows of a connection.
        TcpInfo, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, libc::tcp_info
    );
}

/// The kernel's estimate of how long a packet to the peer of a connection and its acknowledgement
/// take; none while there is none. A peer that delays its acknowledgements makes it longer.
#[cfg(target_os = "linux")]
pub fn round_trip(socket: &impl std::os::fd::AsFd) -> Option<Span> {
    let info = nix::sys::socket::getsockopt(socket, info::TcpInfo).ok()?;
    (info.tcpi_rtt > 0).then(|| Span::from_micros(info.tcpi_rtt.into()))
}

#[cfg(target_os = "linux")]
fn wall(seconds: i64, nanos: i64) -> Option<Wall> {
    let (seconds, nanos) = (u64::try_from(seconds).ok()?, u64::try_from(nanos).ok()?);
    Some(Wall(seconds.checked_mul(1_000_000_000)?.checked_add(nanos)?))
}

/// Not known on this platform.
#[cfg(not(target_os = "linux"))]
pub fn round_trip<S>(_socket: &S) -> Option<Span> {
    None
}

#[cfg(not(target_os = "linux"))]
impl Receiver {
    /// A receiver without stamps: this platform has none that we know of.
    #[expect(clippy::new_without_default, reason = "as on other platforms")]
    pub fn new() -> Self {
        Self {}
    }

    /// Asks the kernel to stamp what `socket` receives. True if it will.
    pub fn enable<S>(_socket: &S) -> bool {
        false
    }

    /// One read.
    pub fn read<S>(&mut self, socket: &S, buffer: &mut [u8]) -> io::Result<(usize, Option<Wall>)>
    where
        for<'a> &'a S: Read,
    {
        let mut socket = socket;
        socket.read(buffer).map(|count| (count, None))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::Monotonic;

    #[test]
    fn what_waited_in_a_socket_arrived_before_it_was_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let stamped = Receiver::enable(&socket);
        let (clock, mut receiver, mut stamps) =
            (Monotonic::new(), Receiver::new(), Stamps::default());
        let mut buffer = [0; 64];
        // The kernel may take a while from being asked for stamps to giving them.
        for _ in 0..if stamped { 1_000 } else { 1 } {
            let sent = clock.now();
            sender.write_all(b"request").unwrap();
            // Long enough to tell a wait from the error of the offset, whatever the machine does.
            let mut read_at = clock.now();
            while read_at.since(sent) < Span::from_millis(2) {
                read_at = clock.now();
            }
            let (count, stamp) = receiver.read(&socket, &mut buffer).unwrap();
            assert_eq!(&buffer[..count], b"request");
            let arrived = stamps.arrived(stamp, read_at, &clock);
            if stamp.is_some() {
                assert!(arrived < read_at, "it arrived before it was read");
                assert!(arrived + Span::from_micros(500) > sent, "and not before it was sent");
                return;
            }
            assert_eq!(arrived, read_at);
        }
        assert!(!stamped, "the kernel was asked for stamps and never gave one");
    }

    #[test]
    fn the_kernel_knows_how_long_a_round_trip_takes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        sender.write_all(b"request").unwrap();
        socket.read_exact(&mut [0; 7]).unwrap();
        socket.write_all(b"answer").unwrap();
        sender.read_exact(&mut [0; 6]).unwrap();
        let round_trip = round_trip(&socket);
        assert_eq!(round_trip.is_some(), cfg!(target_os = "linux"));
        assert!(round_trip.is_none_or(|span| span < Span::from_secs(60)), "{round_trip:?}");
    }

    #[test]
    fn steps_of_the_wall_clock_count_as_no_time() {
        let now = Instant::ZERO + Span::from_secs(10);
        let mut stamps = Stamps::default();
        let offset = 1_000_000_000_000;
        let at = |span: Span| Wall(offset + span.as_nanos());
        let waited = stamps.convert(at(Span::from_millis(9_990)), offset, now);
        assert_eq!(now.since(waited), Span::from_millis(10));
        for stepped in [Span::ZERO, Span::from_secs(7), Span::from_secs(12)] {
            assert_eq!(stamps.convert(at(stepped), offset, now), now);
        }
        assert_eq!((stamps.steps(), stamps.offset), (3, None));
        assert_eq!(stamps.convert(Wall(0), offset, now), now, "before our clock began");
    }
}
