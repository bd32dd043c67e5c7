//! JSON Web Tokens (RFC 7519): who a user is, by the word of an issuer whose public keys we have.
//!
//! A token tells a user only if all of this holds; else the request is that of its address, as if it had none:
//!
//! 1. Its algorithm is RS256, ES256 or EdDSA, and its key one of that kind in the file: what is signed with a shared secret
//!    (HS256) or not at all (`none`) could be made by anybody who has our file (RFC 8725, 3.1).
//! 2. The signature is good for the bytes as they came.
//! 3. It ends (`exp`), has not ended and has begun (`nbf`), give or take what clocks differ; it is of the issuer
//!    (`iss`) and for us (`aud`): one for another service of the same issuer is none for this one (RFC 8725, 3.9).
//! 4. The claim that names users is there, as text.
//!
//! A signature takes tens of microseconds to verify, so what was good is remembered, by its SHA-256, until it ends. What
//! was bad is not: there are as many bad tokens as anybody likes to make up.

mod base64;
mod keys;
mod remembered;
mod token;

use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{HeaderMap, HeaderName};
use ring::digest;

use crate::config::{JwtConfig, ProxyConfig};
use crate::log::unix_ms;
use keys::Keys;
use remembered::Remembered;

/// Longest token that is read. They have some 1,000 bytes, and heads have 16 kB.
const LONGEST: usize = 8 * 1024;
/// Scheme of `Authorization`, which is compared without case (RFC 9110, 11.1).
const BEARER: &[u8] = b"bearer ";

/// Verifies the tokens of one issuer.
#[derive(Debug)]
pub(crate) struct Jwt {
    config: JwtConfig,
    header: HeaderName,
    keys: Keys,
    remembered: Mutex<Remembered>,
}

impl Jwt {
    /// That of a sidecar; none if it takes no tokens.
    pub(crate) fn of(config: &ProxyConfig) -> Result<Option<Arc<Self>>, String> {
        config.jwt.as_ref().map(|jwt| Self::new(jwt).map(Arc::new)).transpose()
    }

    /// What `config` asks for, or what is wrong with its file.
    fn new(config: &JwtConfig) -> Result<Self, String> {
        let path = &config.jwks_file;
        let text = fs::read(path).map_err(|error| format!("cannot read {path}: {error}"))?;
        let keys = Keys::read(&text).map_err(|error| format!("{path}: {error}"))?;
        let header =
            config.header.parse().map_err(|error| format!("{}: {error}", config.header))?;
        let (config, remembered) = (config.clone(), Mutex::default());
        Ok(Self { config, header, keys, remembered })
    }

    /// Whom a good token among `headers` names.
    pub(crate) fn user(&self, headers: &HeaderMap) -> Option<String> {
        let value = headers.get(&self.header)?.as_bytes();
        let scheme = value.get(..BEARER.len()).filter(|it| it.eq_ignore_ascii_case(BEARER));
        let token = &value[scheme.map_or(0, <[u8]>::len)..];
        if token.len() > LONGEST {
            return None;
        }
        self.user_at(token, unix_ms() / 1000)
    }

    /// The same of a token, at a time in seconds since 1970.
    fn user_at(&self, token: &[u8], now: u64) -> Option<String> {
        let name: [u8; 32] = digest::digest(&digest::SHA256, token).as_ref().try_into().ok()?;
        if let Some(user) = self.remembered().get(&name, now) {
            return Some(user);
        }
        let claims = token::verify(token, &self.keys, &self.config, now)?;
        self.remembered().put(name, claims.user.clone(), claims.until);
        Some(claims.user)
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
