//! Public keys of an issuer: a JWK Set (RFC 7517, 5).

use std::fmt;

use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde::Deserialize;

use super::base64::decode;

/// Most keys in a file. Issuers have two or three, the old and the new.
const MOST: usize = 64;

/// What may be signed with (RFC 7518, 3.1; RFC 8037, 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum Algorithm {
    RS256,
    ES256,
    EdDSA,
}

/// Those that can be used.
#[derive(Debug)]
pub(super) struct Keys(Vec<Key>);

struct Key {
    id: Option<String>,
    kind: Kind,
}

enum Kind {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// A point as SEC 1 writes it, uncompressed.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.id, self.algorithm())
    }
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<serde_json::Value>,
}

/// A key as it is written. What else it says does not matter.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Keys {
    /// Those in `text` by which tokens can be verified. Keys of other kinds are left out, as RFC 7517 wants it; one at
    /// least has to be there.
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        let set: Set = serde_json::from_slice(text)
            .map_err(|error| format!("not a JWK Set, an object with keys: {error}"))?;
        if set.keys.len() > MOST {
            return Err(format!("{} keys, at most {MOST} are allowed", set.keys.len()));
        }
        let mut keys = Vec::new();
        for (at, key) in set.keys.into_iter().enumerate() {
            let jwk: Jwk =
                serde_json::from_value(key).map_err(|error| format!("keys.{at}: {error}"))?;
            keys.extend(Key::of(&jwk).map_err(|error| format!("keys.{at}: {error}"))?);
        }
        if keys.is_empty() {
            return Err("no key for RS256, ES256 or EdDSA to verify signatures with".to_owned());
        }
        Ok(Self(keys))
    }

    /// The one key that may have signed a token: by its id, or without one where no other could be meant.
    pub(super) fn find(&self, algorithm: Algorithm, id: Option<&str>) -> Option<&dyn Verifies> {
        let meant = |key: &&Key| {
            key.algorithm() == algorithm && id.is_none_or(|id| key.id.as_deref() == Some(id))
        };
        let mut found = self.0.iter().filter(meant);
        match (found.next(), found.next()) {
            (Some(key), None) => Some(key),
            _ => None,
        }
    }
}

/// What can tell a good signature.
pub(super) trait Verifies {
    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool;
}

impl Verifies for Key {
    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match &self.kind {
            Kind::Rsa { n, e } => RsaPublicKeyComponents { n, e }.verify(
                &RSA_PKCS1_2048_8192_SHA256,
                message,
                signature,
            ),
            Kind::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Kind::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
        };
        verified.is_ok()
    }
}

impl Key {
    fn algorithm(&self) -> Algorithm {
        match self.kind {
            Kind::Rsa { .. } => Algorithm::RS256,
            Kind::P256(_) => Algorithm::ES256,
            Kind::Ed25519(_) => Algorithm::EdDSA,
        }
    }

    /// None if it is for something else.
    fn of(jwk: &Jwk) -> Result<Option<Self>, String> {
        if jwk.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return Ok(None);
        }
        let part =
            |name: &str, value: &Option<String>, lengths: std::ops::RangeInclusive<usize>| {
                let text = value.as_ref().ok_or_else(|| format!("{name} is missing"))?;
                let bytes =
                    decode(text.as_bytes()).ok_or_else(|| format!("{name} is not base64url"))?;
                let (least, most) = (lengths.start(), lengths.end());
                match lengths.contains(&bytes.len()) {
                    true => Ok(bytes),
                    false => {
                        Err(format!("{name} has {} bytes, allowed: {least} to {most}", bytes.len()))
                    }
                }
            };
        let kind = match (&*jwk.kty, jwk.crv.as_deref()) {
            // 2,048 bits at least (RFC 7518, 3.3).
            ("RSA", _) => {
                Kind::Rsa { n: part("n", &jwk.n, 256..=1024)?, e: part("e", &jwk.e, 1..=8)? }
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (part("x", &jwk.x, 32..=32)?, part("y", &jwk.y, 32..=32)?);
                Kind::P256([&[4], &x[..], &y[..]].concat())
            }
            ("OKP", Some("Ed25519")) => Kind::Ed25519(part("x", &jwk.x, 32..=32)?),
            _ => return Ok(None),
        };
        let key = Self { id: jwk.kid.clone(), kind };
        let meant = format!("{:?}", key.algorithm());
        Ok(jwk.alg.as_ref().is_none_or(|alg| *alg == meant).then_some(key))
    }
}
