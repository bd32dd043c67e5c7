//! Upstreams as they are written.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An upstream: `http://host:port`, or `h2c://host:port` for one that speaks HTTP/2 without TLS, as
/// gRPC does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// Which version it is spoken to in.
    pub version: Version,
    /// A name or an IP address, the latter without brackets.
    pub host: String,
    /// 80 if the URL names none.
    pub port: u16,
}

/// The protocol of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1: one request at a time on a connection.
    One,
    /// HTTP/2 with prior knowledge: all on one connection per thread.
    Two,
}

impl Address {
    const DEFAULT_PORT: u16 = 80;
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted =
            |why: &str| format!("{why}: an upstream is http://host:port or h2c://host:port");
        let uri: http::Uri = text.parse().map_err(|_| wanted("not a URL"))?;
        let version = match uri.scheme_str() {
            Some("http") => Version::One,
            Some("h2c") => Version::Two,
            Some("https") => return Err(wanted("TLS to upstreams is not there yet")),
            _ => return Err(wanted("not a URL of HTTP")),
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wanted("paths are passed on as they are, not changed"));
        }
        let authority = uri.authority().ok_or_else(|| wanted("no host"))?;
        if authority.as_str().contains('@') {
            return Err(wanted("user and password are not allowed here"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wanted("no host"));
        }
        let port = authority.port_u16().unwrap_or(Self::DEFAULT_PORT);
        Ok(Self { version, host: host.to_owned(), port })
    }
}

impl TryFrom<String> for Address {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, host, port } = self;
        let scheme = match version {
            Version::One => "http",
            Version::Two => "h2c",
        };
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}")
        } else {
            write!(f, "{scheme}://{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_and_ports() {
        let address = |text: &str| text.parse::<Address>();
        let known = |version, port| Ok(Address { version, host: "a".into(), port });
        assert_eq!(address("http://a:81"), known(Version::One, 81));
        assert_eq!(address("http://a/"), known(Version::One, 80));
        assert_eq!(address("h2c://a:81"), known(Version::Two, 81));
        assert_eq!(address("http://[::1]:9").map(|a| a.host), Ok("::1".to_owned()));
        for text in ["http://[::1]:9", "http://10.0.0.1:80", "h2c://a:81"] {
            assert_eq!(address(text).map(String::from), Ok(text.to_owned()));
        }
        for text in ["", "a:81", "https://a", "http://a/b", "http://a?b", "http://u@a", "http://"] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
