//! The PROXY protocol, versions 1 and 2: a balancer that passes bytes on says first whose they are.
//!
//! Version 1 is a line (`PROXY TCP4 9.9.9.9 10.0.0.1 1234 80`), version 2 begins with a signature and has addresses as
//! numbers. Both say the address of the client, or that there is none: then the connection is the balancer's own, as
//! its health checks are. What follows the addresses (version 2's extensions) is passed over. Nothing is read beyond the
//! header, as what follows is the client's.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// How a header of version 2 begins.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// How one of version 1 does.
const WORD: &[u8] = b"PROXY ";
/// Longest line of version 1, its end included.
const LONGEST_LINE: usize = 107;
/// Most bytes behind the first 16 of version 2: addresses, and ten times the extensions that balancers send.
const LONGEST_REST: usize = 4096;

/// Reads a header to its end: the address that it names, if it names one.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    // No header is shorter.
    let mut begin = [0; SIGNATURE.len()];
    stream.read_exact(&mut begin).await?;
    if begin == *SIGNATURE {
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if length > LONGEST_REST {
            return Err(wrong("it is too long"));
        }
        let mut rest = vec![0; length];
        stream.read_exact(&mut rest).await?;
        return addresses([head[0], head[1]], &rest);
    }
    let mut text = begin.to_vec();
    if !text.starts_with(WORD) {
        return Err(wrong("it does not begin as one"));
    }
    while !text.ends_with(b"\r\n") {
        if text.len() == LONGEST_LINE {
            return Err(wrong("its line does not end"));
        }
        text.push(stream.read_u8().await?);
    }
    line(&text[..text.len() - 2])
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("no header of the PROXY protocol: {why}"))
}

/// What a line of version 1 says.
fn line(text: &[u8]) -> io::Result<Option<IpAddr>> {
    let text = std::str::from_utf8(text).map_err(|_| wrong("it is no text"))?;
    let words: Vec<&str> = text.split(' ').collect();
    let address = match *words {
        // What follows is to be ignored.
        ["PROXY", "UNKNOWN", ..] => return Ok(None),
        ["PROXY", "TCP4", from, to, from_port, to_port] => {
            let both = from.parse().ok().zip(to.parse().ok());
            let address = both.map(|(from, _): (Ipv4Addr, Ipv4Addr)| IpAddr::V4(from));
            address.filter(|_| [from_port, to_port].into_iter().all(is_port))
        }
        ["PROXY", "TCP6", from, to, from_port, to_port] => {
            let both = from.parse().ok().zip(to.parse().ok());
            let address = both.map(|(from, _): (Ipv6Addr, Ipv6Addr)| IpAddr::V6(from));
            address.filter(|_| [from_port, to_port].into_iter().all(is_port))
        }
        _ => None,
    };
    address.map(|address| Some(address.to_canonical())).ok_or_else(|| wrong("its line is wrong"))
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok() && !text.starts_with('+')
}

/// What a header of version 2 says: version and command, family and transport, and what follows their length.
fn addresses([command, family]: [u8; 2], rest: &[u8]) -> io::Result<Option<IpAddr>> {
    match command {
        // The balancer's own.
        0x20 => return Ok(None),
        0x21 => {}
        _ => return Err(wrong("its version or command is unknown")),
    }
    let short = || wrong("its addresses are cut off");
    match family >> 4 {
        // Both addresses and both ports.
        1 if rest.len() < 12 => Err(short()),
        1 => {
            let bytes: [u8; 4] = rest[..4].try_into().map_err(|_| short())?;
            Ok(Some(Ipv4Addr::from(bytes).into()))
        }
        2 if rest.len() < 36 => Err(short()),
        2 => {
            let bytes: [u8; 16] = rest[..16].try_into().map_err(|_| short())?;
            Ok(Some(IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()))
        }
        // Unspecified, or of this machine.
        0 | 3 => Ok(None),
        _ => Err(wrong("its family is unknown")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// What is read of `bytes`, and how many are left.
    fn read_all(mut bytes: &[u8]) -> (io::Result<Option<IpAddr>>, usize) {
        let told = match pin!(read(&mut bytes)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(told) => told,
            Poll::Pending => unreachable!("bytes are always there"),
        };
        (told, bytes.len())
    }

    fn second(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    #[test]
    fn both_versions_name_the_client_and_leave_what_follows() {
        let four = [9, 9, 9, 9, 10, 0, 0, 1, 4, 210, 0, 80];
        let extended = [&four[..], &[0x04, 0, 2, 1, 2]].concat();
        let six = [[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]; 2].concat();
        for (header, address) in [
            (b"PROXY TCP4 9.9.9.9 10.0.0.1 1234 80\r\n".to_vec(), Some("9.9.9.9")),
            (b"PROXY TCP6 2001:db8::1 ::1 1234 80\r\n".to_vec(), Some("2001:db8::1")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff:f 1 2 3\r\n".to_vec(), None),
            (second(0x21, 0x11, &four), Some("9.9.9.9")),
            (second(0x21, 0x11, &extended), Some("9.9.9.9")),
            (second(0x21, 0x21, &[&six[..], &[0; 4]].concat()), Some("2001:db8::1")),
            (second(0x20, 0, &[]), None),
            (second(0x21, 0x31, &[0; 216]), None),
        ] {
            let (told, left) = read_all(&[&header[..], b"GET /"].concat());
            let told = told.expect("well formed").map(|address| address.to_string());
            assert_eq!((told.as_deref(), left), (address, 5), "{header:?}");
        }
    }

    #[test]
    fn what_is_no_header_is_an_error() {
        for header in [
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
            b"PROXY TCP4 9.9.9.9 10.0.0.1 1234\r\n".to_vec(),
            b"PROXY TCP4 9.9.9 10.0.0.1 1234 80\r\n".to_vec(),
            b"PROXY TCP4 ::1 10.0.0.1 1234 80\r\n".to_vec(),
            b"PROXY TCP4 9.9.9.9 10.0.0.1 1234 80000\r\n".to_vec(),
            b"PROXY TCP4 9.9.9.9 10.0.0.1 +1 80\r\n".to_vec(),
            b"PROXY  TCP4 9.9.9.9 10.0.0.1 1234 80\r\n".to_vec(),
            [b"PROXY UNKNOWN ".to_vec(), vec![b'x'; 200]].concat(),
            b"PROXY TCP4 9.9.9.9".to_vec(),
            second(0x11, 0x11, &[0; 12]),
            second(0x22, 0x11, &[0; 12]),
            second(0x21, 0x11, &[0; 11]),
            second(0x21, 0x21, &[0; 35]),
            second(0x21, 0x51, &[0; 12]),
            second(0x21, 0x11, &[0; LONGEST_REST + 1]),
        ] {
            assert!(read_all(&header).0.is_err(), "{header:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            begin in prop_oneof![Just(vec![]), Just(WORD.to_vec()), Just(SIGNATURE.to_vec())],
            bytes in vec(any::<u8>(), 0..150),
        ) {
            let _ = read_all(&[begin, bytes].concat());
        }

        /// What was written is read, to its last byte.
        #[test]
        fn addresses_come_through(four in any::<u32>(), six in any::<u128>(), ports in any::<(u16, u16)>()) {
            let (four, six) = (Ipv4Addr::from_bits(four), Ipv6Addr::from_bits(six));
            for (family, address) in [("TCP4", IpAddr::V4(four)), ("TCP6", IpAddr::V6(six))] {
                let text = format!("PROXY {family} {address} {address} {} {}\r\n", ports.0, ports.1);
                let (told, left) = read_all(text.as_bytes());
                prop_assert_eq!((told.expect("well formed"), left), (Some(address.to_canonical()), 0));
            }
        }
    }
}
