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
//! - **The wall clock steps.** A stamp from the future or from more than a few milliseconds ago is
//!   believed only by an offset measured just now. If that shows a step, whatever came before it may
//!   have been stamped by either clock, and nothing is taken to have waited since before then.
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
/// Nothing is taken to have waited longer: a step of the wall clock that was not seen costs no more.
const OLDEST: Span = Span::from_secs(2);
/// What waited no longer than this is believed without another look at the clocks; in overload, where
/// more waits longer, that look costs 50 ns per read.
const FRESH: Span = Span::from_millis(5);
/// Two measurements that differ by more, beyond the drift between them, have a step in between.
const STEP: Span = Span::from_millis(1);
/// How fast clocks that are slewed drift at most: 500 µs per second.
const DRIFT: f64 = 500e-6;
/// How long a measured offset is used: by `DRIFT` it is wrong by less than 50 µs.
const MEASURED: Span = Span::from_millis(100);

/// A moment of the wall clock, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wall(pub u64);

/// Converts the kernel's stamps into moments of a driver's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamps {
    /// Wall clock less ours, and when that was measured.
    offset: Option<(u64, Instant)>,
    /// When the wall clock was last seen to have stepped.
    stepped: Instant,
}

impl Stamps {
    /// When what carries `stamp` reached the machine, and at the latest `now`, a reading of `clock`.
    pub fn arrived(&mut self, stamp: Option<Wall>, now: Instant, clock: &dyn Clock) -> Instant {
        match stamp {
            Some(stamp) => self.convert(stamp, now, || measure(clock)),
            None => {
                // For the first stamp, so that a step before it is seen.
                self.offset.get_or_insert_with(|| (measure(clock), now));
                now
            }
        }
    }

    fn convert(&mut self, Wall(stamp): Wall, now: Instant, measure: impl Fn() -> u64) -> Instant {
        let by = |offset: u64| Instant::from_nanos(stamp.saturating_sub(offset));
        let believed =
            |offset: u64| now.since(by(offset)) <= FRESH && by(offset).since(now) <= STEP;
        let first = self.offset.is_none();
        let offset = match self.offset {
            Some((offset, at)) if now.since(at) < MEASURED && believed(offset) => offset,
            known => {
                let offset = measure();
                let step = |(before, at): (u64, Instant)| {
                    Span::from_nanos(offset.abs_diff(before)) > STEP + now.since(at).scale(DRIFT)
                };
                if known.is_some_and(step) {
                    self.stepped = now;
                }
                self.offset = Some((offset, now));
                offset
            }
        };
        let arrived = by(offset).clamp(self.stepped.min(now), now);
        match now.since(arrived) > OLDEST {
            // Stamped before anybody looked for steps.
            true if first => now,
            // After a stall deadlines have passed, and what came before it is not new.
            true => now - OLDEST,
            false => arrived,
        }
    }
}

/// The wall clock less `clock`, from the quickest of a few looks: who is interrupted between the two
/// looks again.
fn measure(clock: &dyn Clock) -> u64 {
    let look = || {
        let before = clock.now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let took = clock.now().since(before);
        let middle = before + took.scale(0.5);
        let wall = u64::try_from(wall).unwrap_or(u64::MAX);
        (took, wall.saturating_sub(middle.since(Instant::ZERO).as_nanos()))
    };
    let mut best = look();
    for _ in 0..3 {
        if best.0 < Span::from_micros(10) {
            break;
        }
        best = best.min(look());
    }
    best.1
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
    use std::mem::offset_of;

    use nix::libc;
    use nix::{getsockopt_impl, sockopt_impl};

    /// Where the round trip is.
    pub(super) const ROUND_TRIP: usize = offset_of!(libc::tcp_info, tcpi_rtt) / size_of::<u32>();
    /// The kernel's `tcp_info` has grown over the years, and nix panics when it gives less than was
    /// asked for: only its beginning is, which every kernel has.
    pub(super) type Beginning = [u32; ROUND_TRIP + 1];

    sockopt_impl!(
        /// What the kernel knows of a connection.
        TcpInfo, GetOnly, libc::IPPROTO_TCP, libc::TCP_INFO, Beginning
    );
}

/// The kernel's estimate of how long a packet to the peer of a connection and its acknowledgement
/// take; none while there is none. A peer that delays its acknowledgements makes it longer.
#[cfg(target_os = "linux")]
pub fn round_trip(socket: &impl std::os::fd::AsFd) -> Option<Span> {
    let info = nix::sys::socket::getsockopt(socket, info::TcpInfo).ok()?;
    let micros = info[info::ROUND_TRIP];
    (micros > 0).then(|| Span::from_micros(micros.into()))
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

    /// Linux 2.6 gave 104 bytes.
    #[cfg(target_os = "linux")]
    #[test]
    fn no_kernel_is_asked_for_more_than_it_has() {
        assert!(size_of::<info::Beginning>() <= 104);
    }

    /// A wall clock ahead of ours by `offset` seconds, and what is stamped so long before `now` by it.
    fn stamped(offset: f64, now: Instant, age: Span) -> (Wall, impl Fn() -> u64) {
        let offset = (1e12 + offset * 1e9) as u64;
        let at = (now - age).since(Instant::ZERO);
        (Wall(offset + at.as_nanos()), move || offset)
    }

    #[test]
    fn what_waited_is_believed_up_to_a_bound() {
        let mut stamps = Stamps::default();
        let now = Instant::ZERO + Span::from_secs(10);
        for (age, believed) in [(0, 0), (1, 1), (10, 10), (1_900, 1_900), (2_100, 2_000)] {
            let (stamp, measure) = stamped(0.0, now, Span::from_millis(age));
            let arrived = stamps.convert(stamp, now, measure);
            assert_eq!(now.since(arrived), Span::from_millis(believed));
        }
        let oldest = stamps.convert(Wall(0), now, || 1_000_000_000_000);
        assert_eq!(now.since(oldest), OLDEST, "before our clock");
        let (stamp, measure) = stamped(0.0, now, Span::from_millis(2_100));
        assert_eq!(Stamps::default().convert(stamp, now, measure), now, "nothing to compare with");
    }

    /// A stall may be over just when the kernel begins to give stamps.
    #[test]
    fn reads_without_a_stamp_count_as_a_look_at_the_clocks() {
        let (mut stamps, clock) = (Stamps::default(), Monotonic::new());
        let before = clock.now();
        assert_eq!(stamps.arrived(None, before, &clock), before);
        let (offset, _) = stamps.offset.expect("measured");
        let now = before + Span::from_secs(3);
        let stamp = Wall(offset + before.since(Instant::ZERO).as_nanos());
        assert_eq!(now.since(stamps.convert(stamp, now, || offset)), OLDEST);
    }

    /// Whichever way the wall clock steps and however far, nothing appears older than it is.
    #[test]
    fn steps_of_the_wall_clock_count_as_no_time() {
        for step in [-7.0, -1.0, -0.5, -0.1, 0.1, 0.5, 1.0, 7.0] {
            let (mut stamps, mut now) = (Stamps::default(), Instant::ZERO + Span::from_secs(10));
            let millis = Span::from_millis;
            let (stamp, measure) = stamped(0.0, now, millis(2));
            assert_eq!(now.since(stamps.convert(stamp, now, measure)), millis(2));
            // Some were stamped before the step and some after it, and all are read after it.
            for before in [true, false, true, false] {
                now += millis(2);
                let (_, measure) = stamped(step, now, Span::ZERO);
                let (stamp, _) = stamped(if before { 0.0 } else { step }, now, millis(10));
                let age = now.since(stamps.convert(stamp, now, measure));
                assert!(age <= millis(10), "{step} s, {age}");
            }
            now += Span::from_secs(1);
            let (stamp, measure) = stamped(step, now, millis(300));
            let age = now.since(stamps.convert(stamp, now, measure));
            assert_eq!(age, millis(300), "and then waiting counts again, {step} s");
        }
    }

    /// Clocks that drift apart while nothing comes do not step.
    #[test]
    fn drift_is_no_step() {
        let (mut stamps, mut now) = (Stamps::default(), Instant::ZERO + Span::from_secs(10));
        for hours in 0..3 {
            let (stamp, measure) = stamped(f64::from(hours) * 1.5, now, Span::from_millis(100));
            let age = now.since(stamps.convert(stamp, now, measure));
            assert_eq!(age, Span::from_millis(100));
            now += Span::from_secs(3600);
        }
    }
}
