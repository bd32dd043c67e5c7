//! One token: [`verify`].

use serde::Deserialize;
use serde_json::{Map, Value};

use super::base64::decode;
use super::keys::{Algorithm, Keys};
use crate::config::JwtConfig;

/// What a good token says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claims {
    pub(super) user: String,
    /// When it is no longer good, in seconds since 1970.
    pub(super) until: u64,
}

/// The part that says how it is signed (RFC 7515, 4.1). An algorithm that is not ours is no header.
#[derive(Deserialize)]
struct Header {
    alg: Algorithm,
    kid: Option<String>,
    /// Extensions that have to be understood: none is.
    crit: Option<Value>,
}

/// What `token` says, if it is good at a time in seconds since 1970.
pub(super) fn verify(token: &[u8], keys: &Keys, config: &JwtConfig, now: u64) -> Option<Claims> {
    let mut parts = token.rsplitn(2, |byte| *byte == b'.');
    let (signature, signed) = (parts.next()?, parts.next()?);
    let mut parts = signed.split(|byte| *byte == b'.');
    let (header, payload, None) = (parts.next()?, parts.next()?, parts.next()) else { return None };
    let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
    let key = keys.find(header.alg, header.kid.as_deref()).filter(|_| header.crit.is_none())?;
    if !key.verifies(signed, &decode(signature)?) {
        return None;
    }
    claims(&serde_json::from_slice(&decode(payload)?).ok()?, config, now)
}

/// What is claimed, if it is of whom and for whom it should be, and now (RFC 7519, 4.1).
fn claims(claims: &Map<String, Value>, config: &JwtConfig, now: u64) -> Option<Claims> {
    let leeway = config.leeway.as_secs_f64();
    let time = |name: &str| claims.get(name).map(|value| value.as_f64().unwrap_or(f64::NAN));
    let (until, from) = (time("exp")? + leeway, time("nbf").unwrap_or(0.0) - leeway);
    // What is not a number is no time: neither before nor after.
    let is_now = (now as f64) < until && now as f64 >= from;
    let of = claims.get("iss").and_then(Value::as_str) == Some(&config.issuer);
    let ours =
        |name: &Value| name.as_str().is_some_and(|it| config.audience.iter().any(|a| a == it));
    let to = match claims.get("aud")? {
        Value::Array(names) => names.iter().any(ours),
        name => ours(name),
    };
    let user = claims.get(&config.claim)?.as_str().filter(|user| !user.is_empty())?;
    (is_now && of && to).then(|| Claims { user: user.to_owned(), until: until as u64 })
}
