//! The block `[proxy.edge]`: what is taken of strangers, and what is not.

use serde::{Deserialize, Serialize};
use tidegate_core::config::Problems;

use super::Network;

/// What is taken of strangers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EdgeConfig {
    /// Networks of our own proxies before the sidecar, such as `10.0.0.0/8`: their word is taken for whom a request is from, by
    /// `address_field`, and for what they say in other fields (`user_header`, `X-Forwarded-Proto`). Whoever is in them can claim
    /// any address, so no network that strangers have. Default: none.
    pub trusted: Vec<Network>,
    /// The field in which they name whom a request is from; of the other nothing is read, and it does not go on. Default
    /// x-forwarded-for.
    pub address_field: AddressField,
    /// Whether connections from `trusted` begin with a header of the PROXY protocol, version 1 or 2; one that does not is closed,
    /// and so are connections from elsewhere. Default false.
    pub proxy_protocol: bool,
    /// Whether something before the sidecar has verified bearer tokens and session cookies, so that they tell users apart. If not,
    /// whoever makes some up tries until one has a good rank. Default false.
    pub verified_credentials: bool,
    /// What becomes of fields whose names have underscores, which CGI and WSGI take for the same with hyphens: `drop` them, `refuse`
    /// the request with 400, or let them `pass` unless they would be taken for one that is ours to say. Default drop, as nginx.
    pub underscores: Underscores,
    /// What becomes of paths that servers read in different ways: an encoded slash, a backslash, a double encoding,
    /// dots that lead out. `refuse` answers 400. `pass` is for services whose names have encoded slashes: such a path goes
    /// on as it came, no exempt path is meant by it, and of the rules only those without a path fit it. Default refuse.
    pub ambiguous_paths: AmbiguousPaths,
    /// Most requests for exempt paths at once beside the gate, an address having a quarter of them; further ones are asked
    /// at the gate as all others. Those that are asked in common count once. More lets probes with bodies and
    /// credentials in during floods, and lets strangers put as much more work on the service. Default 8, by judgement:
    /// two for each of four that look.
    pub exempt_at_once: u32,
}

/// What becomes of paths that can be read in several ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AmbiguousPaths {
    /// They are answered with 400.
    #[default]
    Refuse,
    /// They go on, and no path in the configuration fits them.
    Pass,
}

/// Where a proxy names whom a request is from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddressField {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

/// What becomes of fields with underscores in their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Underscores {
    /// They do not go on.
    #[default]
    Drop,
    /// The request is answered with 400.
    Refuse,
    /// They go on, unless they would be taken for a field that strangers may not have.
    Pass,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        Self {
            trusted: Vec::new(),
            address_field: AddressField::XForwardedFor,
            proxy_protocol: false,
            verified_credentials: false,
            underscores: Underscores::Drop,
            ambiguous_paths: AmbiguousPaths::Refuse,
            exempt_at_once: 8,
        }
    }
}

impl EdgeConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let most = self.exempt_at_once;
        let told = !self.proxy_protocol || !self.trusted.is_empty();
        problems.check(
            "proxy_protocol",
            true,
            told,
            "only with trusted, the networks that speak it",
        );
        problems.check("exempt_at_once", most, (1..=10_000).contains(&most), "1 to 10000");
    }
}
