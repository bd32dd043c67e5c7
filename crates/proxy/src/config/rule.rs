//! Rules that give ranks and workflows to requests which come without.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::{HeaderMap, HeaderName, Method};
use serde::{Deserialize, Serialize};
use tidegate_core::Rank;
use tidegate_core::config::Problems;

/// Which requests have which business rank and workflow. All that is given has to fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What it is called wherever it is told of: the dashboard, metrics, logs, and the header `tidegate-rule` that the service
    /// gets. Rules of one name are counted together. Default: its method and path, and the service is told nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The method; any if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The path, or one above it; any if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Name of a header that has to be there. Only for what something before us has verified: clients
    /// can send what they like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// What the header has to say; anything if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Addresses that it comes from, such as `10.0.0.0/8`; any if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Network>,
    /// 0, refused last, to 63, refused first.
    pub business: u8,
    /// The workflow, for fairness and limits; none if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
}

impl Rule {
    /// Its name, or else what it is about.
    pub(crate) fn title(&self) -> String {
        let parts = [&self.method, &self.path, &self.header, &self.value];
        let parts = parts.into_iter().filter_map(|part| part.clone());
        let parts: Vec<String> = parts.chain(self.peer.map(String::from)).collect();
        let about = if parts.is_empty() { "any".to_owned() } else { parts.join(" ") };
        let title = self.name.clone().unwrap_or(about);
        title.chars().take(Self::LONGEST_NAME).collect()
    }

    /// Longest name, in characters.
    const LONGEST_NAME: usize = 64;

    /// Whether a request is one of those it is about.
    pub fn fits(&self, method: &Method, path: &str, headers: &HeaderMap, peer: IpAddr) -> bool {
        let below = |above: &String| {
            let rest = path.strip_prefix(above.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let says = |name: &String| {
            let mut values = headers.get_all(name.as_str()).iter();
            values.any(|value| {
                self.value.as_ref().is_none_or(|wanted| value.as_bytes() == wanted.as_bytes())
            })
        };
        self.method.as_ref().is_none_or(|wanted| method == wanted.as_str())
            && self.path.as_ref().is_none_or(below)
            && self.peer.is_none_or(|network| network.contains(peer))
            && self.header.as_ref().is_none_or(says)
    }

    /// Notes everything that is wrong with the parameters.
    pub(super) fn validate(&self, problems: &mut Problems) {
        let (business, path) = (self.business, self.path.as_deref().unwrap_or("/"));
        let name = self.name.as_deref().unwrap_or("a");
        let of_words = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        let fine = (1..=Self::LONGEST_NAME).contains(&name.len()) && name.chars().all(of_words);
        problems.check("name", name, fine, "letters, digits and -_./ of ASCII, at most 64");
        problems.check("business", business, business < Rank::BUSINESS, "0 to 63");
        problems.check("path", path, path.starts_with('/'), "a path begins with /");
        if let Some(name) = &self.header {
            let fine = name.parse::<HeaderName>().is_ok();
            problems.check("header", name, fine, "the name of a header");
        }
        let value = self.value.as_deref().unwrap_or_default();
        let fine = self.value.is_none() || self.header.is_some();
        problems.check("value", value, fine, "a value needs a header");
    }
}

/// Addresses that begin alike, such as `10.0.0.0/8`, or one alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Whether `address` is one of them.
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                same(own.to_bits().into(), other.to_bits().into(), 32 - self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                same(own.to_bits(), other.to_bits(), 128 - self.bits)
            }
            _ => false,
        }
    }
}

/// Whether two numbers are the same apart from their last `free` bits.
fn same(one: u128, other: u128, free: u8) -> bool {
    (one ^ other).checked_shr(free.into()).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no network such as 10.0.0.0/8");
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
        if bits > most { Err(wrong()) } else { Ok(Self { address, bits }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl TryFrom<String> for Network {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Network> for String {
    fn from(network: Network) -> Self {
        network.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_what_begins_alike() {
        for (network, address, inside) in [
            ("10.0.0.0/8", "10.200.1.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("0.0.0.0/0", "::1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("fd00::/8", "fd12::1", true),
            ("::/0", "fe80::1", true),
        ] {
            let network: Network = network.parse().expect("a network");
            assert_eq!(network.contains(address.parse().unwrap()), inside, "{network} {address}");
        }
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "a/8", "10.0.0.0/", "::/129"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
        assert_eq!("10.0.0.0/8".parse::<Network>().map(String::from), Ok("10.0.0.0/8".to_owned()));
    }
}
