//! Addresses of clients: which belong together.

use std::net::{IpAddr, Ipv6Addr};

/// What of an address its owner cannot choose: of IPv6 the first half.
pub(crate) fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}
