//! Who sent a request, as numbers that tell senders apart and say nothing of them.
//!
//! A claim of identity costs nothing to make up, so what is counted or limited by sender goes by what a driver has
//! seen for itself: [`Sender`]. The hash is keyed by chance, once per process: nobody outside can find
//! two names that are one, or one that is another's.

#![expect(clippy::disallowed_types, reason = "a key that nobody outside may know decides nothing")]

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::LazyLock;

use tidegate_core::Sender;

/// The number of a name, never that of another kind of sender.
pub fn mark(name: &[u8]) -> u32 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    Sender::part(KEY.hash_one(name))
}

/// The number of an address.
pub fn mark_of(address: IpAddr) -> u32 {
    with_address(address, mark)
}

/// A sender of whom the address is all that is known.
pub fn at(address: IpAddr) -> Sender {
    let address = mark_of(address);
    Sender { peer: address, address, ..Sender::UNKNOWN }
}

/// Calls `use_it` with what counts of an address: of IPv6 the first half, as the other is its owner's to choose.
pub fn with_address<R>(address: IpAddr, use_it: impl FnOnce(&[u8]) -> R) -> R {
    match address.to_canonical() {
        IpAddr::V4(address) => use_it(&address.octets()),
        IpAddr::V6(address) => use_it(&address.octets()[..8]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv6_is_one_sender() {
        let of = |address: &str| at(address.parse().expect("an address"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff:1:2:3"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.7"), of("10.0.0.7"));
        assert_ne!(of("10.0.0.7").peer, 0);
    }
}
