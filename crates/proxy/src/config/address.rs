//! Upstreams as they are written.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An upstream: `http://host:port`, `h2c://host:port` for one that speaks HTTP/2 as gRPC does, and
/// the same with TLS as `https://host:port` and `h2://host:port`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// How it is spoken to.
    pub scheme: Scheme,
    /// A name or an IP address, the latter without brackets.
    pub host: String,
    /// 80, or 443 with TLS, if the URL names none.
    pub port: u16,
}

/// How an upstream is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// HTTP/1.1.
    Http,
    /// HTTP/1.1 over TLS.
    Https,
    /// HTTP/2 with prior knowledge.
    H2c,
    /// HTTP/2 over TLS.
    H2,
}

impl Scheme {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Http, "http"), (Self::Https, "https"), (Self::H2c, "h2c"), (Self::H2, "h2")];

    /// The version of HTTP.
    pub const fn version(self) -> Version {
        match self {
            Self::Http | Self::Https => Version::One,
            Self::H2c | Self::H2 => Version::Two,
        }
    }

    /// Whether over TLS.
    pub const fn is_secure(self) -> bool {
        matches!(self, Self::Https | Self::H2)
    }

    const fn default_port(self) -> u16 {
        if self.is_secure() { 443 } else { 80 }
    }

    fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

/// The version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1: one request at a time on a connection.
    One,
    /// HTTP/2: all on one connection per thread.
    Two,
}

impl Address {
    /// Host and port, as in a Host field.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = |why: &str| {
            format!(
                "{why}: an upstream is http://host:port or h2c://host:port, with TLS https or h2"
            )
        };
        let uri: http::Uri = text.parse().map_err(|_| wanted("not a URL"))?;
        let named = uri.scheme_str().unwrap_or_default();
        let known = Scheme::ALL.into_iter().find(|(_, name)| *name == named);
        let (scheme, _) = known.ok_or_else(|| wanted("not a URL of HTTP"))?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wanted("paths are passed on as they are, not changed"));
        }
        let authority = uri.authority().ok_or_else(|| wanted("no host"))?;
        if authority.as_str().contains('@') {
            return Err(wanted("user and password are not allowed here"));
        }
        let port = match authority.as_str()[authority.host().len()..].strip_prefix(':') {
            None => scheme.default_port(),
            Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
                wanted(&format!("{port:?} is no port, which is a number from 1 to 65535"))
            })?,
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wanted("no host"));
        }
        Ok(Self { scheme, host: host.to_owned(), port })
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
        write!(f, "{}://{}", self.scheme.name(), self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hosts_and_ports() {
        let address = |text: &str| text.parse::<Address>();
        let known = |scheme, port| Ok(Address { scheme, host: "a".into(), port });
        assert_eq!(address("http://a:81"), known(Scheme::Http, 81));
        assert_eq!(address("http://a/"), known(Scheme::Http, 80));
        assert_eq!(address("h2c://a:81"), known(Scheme::H2c, 81));
        assert_eq!(address("https://a"), known(Scheme::Https, 443));
        assert_eq!(address("http://[::1]:9").map(|a| a.host), Ok("::1".to_owned()));
        for text in ["http://[::1]:9", "http://10.0.0.1:80", "h2c://a:81", "h2://a:1"] {
            assert_eq!(address(text).map(String::from), Ok(text.to_owned()));
        }
        for text in ["", "a:81", "ftp://a", "http://a/b", "http://a?b", "http://u@a", "http://"] {
            assert!(address(text).is_err(), "{text}");
        }
        for text in ["http://a:99999", "h2c://a:abc", "http://[::1]:0", "https://a:", "http://a:-1"]
        {
            let error = address(text).expect_err(text);
            assert!(error.contains("1 to 65535") && error.contains("http://host:port"), "{error}");
        }
    }
}
