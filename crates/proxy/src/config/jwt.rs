//! The block `[proxy.jwt]`: users by JSON Web Tokens.

use http::HeaderName;
use serde::{Deserialize, Serialize};
use tidegate_core::Span;
use tidegate_core::config::Problems;

/// Whose tokens tell users apart. Signed with RS256, ES256 or EdDSA; all others are none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JwtConfig {
    /// File with the issuer's public keys, a JWK Set (RFC 7517) as issuers publish it. Read again when it changes.
    pub jwks_file: String,
    /// Who has to have issued a token: its `iss`, to the letter.
    pub issuer: String,
    /// For whom it has to be: one of its `aud`. What an issuer gives for another service tells nobody here.
    pub audience: Vec<String>,
    /// The claim that names the user. Default sub.
    pub claim: String,
    /// The field it comes in, with `Bearer` before it or without. Default authorization.
    pub header: String,
    /// How much the clocks of issuer and sidecar may differ. More accepts tokens for so long after their end. Default 30 s.
    pub leeway: Span,
}

impl Default for JwtConfig {
    fn default() -> Self {
        Self {
            jwks_file: String::new(),
            issuer: String::new(),
            audience: Vec::new(),
            claim: "sub".to_owned(),
            header: "authorization".to_owned(),
            leeway: Span::from_secs(30),
        }
    }
}

impl JwtConfig {
    /// Notes everything that is wrong with the parameters.
    pub fn validate(&self, problems: &mut Problems) {
        let (file, issuer, claim) = (&self.jwks_file, &self.issuer, &self.claim);
        problems.check("jwks_file", file, !file.is_empty(), "a file with the issuer's keys");
        problems.check("issuer", issuer, !issuer.is_empty(), "the iss of its tokens");
        let named = !self.audience.is_empty() && self.audience.iter().all(|it| !it.is_empty());
        let audience = self.audience.join(", ");
        problems.check("audience", audience, named, "names of this service, at least one");
        problems.check("claim", claim, !claim.is_empty(), "the name of a claim");
        let fine = self.header.parse::<HeaderName>().is_ok();
        problems.check("header", &self.header, fine, "the name of a header");
        let most = Span::from_secs(600);
        problems.check("leeway", self.leeway, self.leeway <= most, "at most 10m");
    }
}
