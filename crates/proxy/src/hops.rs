//! Whose request it is, where proxies of ours stand before us: [`Hops::client`].
//!
//! A connection's address is that of whoever opened it. If that is a proxy that we trust, it says who opened *its*
//! connection, and so on: the addresses in `X-Forwarded-For` or `Forwarded` (RFC 7239) are read from the last to the
//! first, and the first that no trusted network has is the client's. What stands before it anybody can have written.
//! Only one of both fields is read, as a proxy that adds to the one passes on what strangers wrote into the other.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::{AddressField, EdgeConfig, Network};

pub(crate) const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The proxies before us.
#[derive(Clone, Debug)]
pub(crate) struct Hops {
    trusted: Vec<Network>,
    field: AddressField,
}

impl Hops {
    pub(crate) fn new(config: &EdgeConfig) -> Self {
        Self { trusted: config.trusted.clone(), field: config.address_field }
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        !self.trusted.is_empty()
    }

    /// Whether `address` is that of a proxy whose word is taken.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(address))
    }

    /// The field of addresses that is not read.
    pub(crate) fn unread(&self) -> HeaderName {
        match self.field {
            AddressField::XForwardedFor => FORWARDED,
            AddressField::Forwarded => FORWARDED_FOR,
        }
    }

    /// The address of whoever sent a request that came in over a connection from `peer`.
    pub(crate) fn client(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        if !self.trusts(peer) {
            return peer;
        }
        let (name, read): (_, fn(&[u8]) -> Vec<Option<IpAddr>>) = match self.field {
            AddressField::XForwardedFor => (FORWARDED_FOR, read_forwarded_for),
            AddressField::Forwarded => (FORWARDED, read_forwarded),
        };
        let lines: Vec<&HeaderValue> = headers.get_all(name).iter().collect();
        let mut client = peer;
        for address in
            lines.into_iter().rev().flat_map(|line| read(line.as_bytes()).into_iter().rev())
        {
            // Whoever is not named stays unknown, and so does everybody before.
            let Some(address) = address else { return client };
            client = address;
            if !self.trusts(client) {
                return client;
            }
        }
        client
    }
}

/// The addresses of a line of `X-Forwarded-For`, none for what is none.
fn read_forwarded_for(line: &[u8]) -> Vec<Option<IpAddr>> {
    let node = |part: &[u8]| node(std::str::from_utf8(part.trim_ascii()).ok()?);
    line.split(|byte| *byte == b',').map(node).collect()
}

/// The `for` of each element of a line of `Forwarded` (RFC 7239, 4); what is not well formed names nobody.
fn read_forwarded(line: &[u8]) -> Vec<Option<IpAddr>> {
    let Ok(line) = std::str::from_utf8(line) else { return vec![None] };
    let mut quoted = false;
    let mut escaped = false;
    let mut outside = |sign: char| {
        let (was_escaped, was_quoted) = (std::mem::take(&mut escaped), quoted);
        match sign {
            _ if was_escaped => {}
            '\\' if was_quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        !was_quoted && sign == ','
    };
    line.split(|sign| outside(sign)).map(of_element).collect()
}

/// The node that an element names, if it names one.
fn of_element(element: &str) -> Option<IpAddr> {
    let mut named = element.split(';').filter_map(|pair| pair.split_once('='));
    let (_, value) = named.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
    let value = value.trim();
    let unquoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    // No address has anything to escape.
    node(unquoted.unwrap_or(value))
}

/// An address, perhaps with a port: `10.0.0.1`, `10.0.0.1:80`, `2001:db8::1`, `[2001:db8::1]:80`.
fn node(text: &str) -> Option<IpAddr> {
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    let address = text.parse().ok().or_else(|| bracketed().map(IpAddr::V6));
    let address = address.or_else(|| text.parse().ok().map(|address: SocketAddr| address.ip()))?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn hops(field: AddressField) -> Hops {
        let trusted = ["10.0.0.0/8", "fd00::/8"].map(|network| network.parse().expect("a network"));
        Hops { trusted: trusted.to_vec(), field }
    }

    fn client(field: AddressField, lines: &[&str], peer: &str) -> String {
        let mut headers = HeaderMap::new();
        let name = if field == AddressField::Forwarded { FORWARDED } else { FORWARDED_FOR };
        for line in lines {
            headers.append(&name, HeaderValue::from_str(line).expect("a value"));
        }
        hops(field).client(&headers, peer.parse().expect("an address")).to_string()
    }

    #[test]
    fn the_last_that_no_trusted_network_has_is_the_client() {
        for (lines, peer, wanted) in [
            (&["9.9.9.9"][..], "8.8.8.8", "8.8.8.8"),
            (&["9.9.9.9"], "10.0.0.1", "9.9.9.9"),
            (&["1.1.1.1, 9.9.9.9"], "10.0.0.1", "9.9.9.9"),
            (&["1.1.1.1, 9.9.9.9 ,10.0.0.2"], "10.0.0.1", "9.9.9.9"),
            (&["1.1.1.1", "9.9.9.9", "10.0.0.2"], "10.0.0.1", "9.9.9.9"),
            (&["9.9.9.9:1234"], "10.0.0.1", "9.9.9.9"),
            (&["[2001:db8::1]:80"], "fd00::1", "2001:db8::1"),
            (&["2001:db8::1"], "fd00::1", "2001:db8::1"),
            (&["::ffff:9.9.9.9"], "10.0.0.1", "9.9.9.9"),
            (&["9.9.9.9, unknown, 10.0.0.2"], "10.0.0.1", "10.0.0.2"),
            (&["9.9.9.9, , 10.0.0.2"], "10.0.0.1", "10.0.0.2"),
            (&["10.0.0.3, 10.0.0.2"], "10.0.0.1", "10.0.0.3"),
            (&[], "10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(client(AddressField::XForwardedFor, lines, peer), wanted, "{lines:?}");
        }
        for (lines, wanted) in [
            (&["for=9.9.9.9"][..], "9.9.9.9"),
            (&["for=1.1.1.1, For=\"9.9.9.9:80\";proto=http;by=10.0.0.2"], "9.9.9.9"),
            (&["for=9.9.9.9;by=\"a,b\", proto=http;for=10.0.0.2"], "9.9.9.9"),
            (&["for=\"[2001:db8:cafe::17]:4711\""], "2001:db8:cafe::17"),
            (&["for=9.9.9.9", "for=_hidden"], "10.0.0.1"),
            (&["for=9.9.9.9, by=10.0.0.2"], "10.0.0.1"),
            (&["for=9.9.9.9;by=\"a, for=10.0.0.2"], "9.9.9.9"),
        ] {
            assert_eq!(client(AddressField::Forwarded, lines, "10.0.0.1"), wanted, "{lines:?}");
        }
    }

    proptest! {
        /// Whatever a stranger writes before what our proxy adds, it stays who our proxy says.
        #[test]
        fn nothing_that_is_written_before_changes_the_client(
            junk in "[ -~]{0,40}", node in any::<u32>(), forwarded in any::<bool>(),
        ) {
            // A list that does not end before ours begins is no list, and a proxy would not add to it.
            prop_assume!(!forwarded || !junk.contains(['"', '\\']));
            let stranger = std::net::Ipv4Addr::from_bits(node);
            prop_assume!(stranger.octets()[0] != 10);
            let (field, added) = match forwarded {
                true => (AddressField::Forwarded, format!("for={stranger}")),
                false => (AddressField::XForwardedFor, stranger.to_string()),
            };
            let told = client(field, &[&format!("{junk}, {added}")], "10.0.0.1");
            prop_assert_eq!(told, stranger.to_string());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in vec(any::<u8>(), 0..60)) {
            read_forwarded_for(&bytes);
            read_forwarded(&bytes);
        }
    }
}
