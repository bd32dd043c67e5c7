//! What operators change while a sidecar runs: how much is enforced, and which policy.
//!
//! Everything here needs the token, comes from the admin port, and is logged with the address it
//! came from.

use std::net::SocketAddr;
use std::sync::{MutexGuard, PoisonError};
use std::{fmt, fs};

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, StatusCode};
use serde_json::{Value, json};
use tidegate_core::Gate;
use tidegate_core::gate::GateConfig;

use crate::config::{Candidate, File, Percent};
use crate::server::{Shared, StartError, inform};
use crate::sideline::candidate_toml;

/// Shortest token: 16 characters cannot be tried out over a network.
const SHORTEST: usize = 16;

/// What is asked of whoever wants to change something.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl fmt::Debug for Token {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl Token {
    /// In the same time however much of it is right.
    fn is(&self, given: &str) -> bool {
        let (own, given) = (self.0.as_bytes(), given.as_bytes());
        let differ = own.iter().zip(given).fold(0, |differ, (own, given)| differ | (own ^ given));
        own.len() == given.len() && differ == 0
    }
}

/// The token of the file that the configuration names.
pub(crate) fn token(file: &File) -> Result<Option<Token>, StartError> {
    let Some(path) = &file.proxy.admin_token_file else { return Ok(None) };
    let text = fs::read_to_string(path)
        .map_err(|error| StartError::Io(format!("cannot read the token in {path}"), error))?;
    let token = text.trim();
    if token.len() < SHORTEST {
        let problem = format!("the token in {path} is shorter than {SHORTEST} characters");
        return Err(StartError::Config(problem));
    }
    let placeholder = ["replace-this", "changeme", "your-token", "your-own-token"];
    if placeholder.iter().any(|word| token.to_ascii_lowercase().contains(word)) {
        let problem = format!(
            "the token in {path} is the placeholder of an example: make one of your own, such as by `openssl rand -hex 16`"
        );
        return Err(StartError::Config(problem));
    }
    Ok(Some(Token(token.to_owned())))
}

/// Why a change was turned down.
pub(crate) type Denied = (StatusCode, String);

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

impl Shared {
    /// Whether whoever sent `headers` may change something.
    pub(crate) fn authorize(&self, headers: &HeaderMap) -> Result<(), Denied> {
        if is_cross_site(headers) {
            let why = "a page of another site may change nothing here\n";
            return Err((StatusCode::FORBIDDEN, why.to_owned()));
        }
        let token = lock(&self.token);
        let Some(token) = &*token else {
            let why = "changes need a token, and none is configured: start with \
                       --admin-token-file FILE, or set proxy.admin_token_file\n";
            return Err((StatusCode::FORBIDDEN, why.to_owned()));
        };
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        match given.and_then(|value| value.strip_prefix("Bearer ")) {
            Some(given) if token.is(given.trim()) => Ok(()),
            _ => {
                let why = "changes need `authorization: Bearer TOKEN` with the token of \
                           proxy.admin_token_file\n";
                Err((StatusCode::UNAUTHORIZED, why.to_owned()))
            }
        }
    }

    // === how much is enforced ===

    /// What is enforced, and why.
    pub(crate) fn enforcement(&self) -> Value {
        json!({
            "percent": self.sideline.percent().get(),
            "configured": self.file().proxy.enforce.get(),
            "overridden": lock(&self.enforce).is_some(),
        })
    }

    /// Enforces `percent` from now on whatever the file says, or what the file says if none.
    pub(crate) fn enforce(&self, percent: Option<Percent>, peer: SocketAddr) {
        let before = self.sideline.percent();
        *lock(&self.enforce) = percent;
        self.apply_enforcement();
        let now = self.sideline.percent();
        self.log(&format_args!("enforces {now} instead of {before}, as told by {peer}"));
    }

    /// Makes true what the operator or else the file says.
    pub(crate) fn apply_enforcement(&self) {
        let configured = self.file().proxy.enforce;
        let overridden = lock(&self.enforce);
        let percent = overridden.unwrap_or(configured);
        let now = self.gate.now();
        if percent == self.sideline.percent() {
            return;
        }
        // What was counted so far was counted under the share there was.
        self.watch.collect().iter().for_each(|line| self.log(line));
        if percent == Percent::ALL {
            self.learn();
        }
        self.sideline.set_percent(now, percent);
    }

    /// The gate begins with what its model has learned. One that still has requests inside knows
    /// enough itself, and they must not be lost.
    fn learn(&self) {
        self.gate.input(|gate, now| {
            if gate.running() > 0 || gate.waiting() > 0 {
                return;
            }
            if let Some(learned) = self.sideline.learned(now) {
                *gate = learned;
            }
        });
    }

    /// The gate as it is, or as it would be where it is not fully enforced.
    pub(crate) fn read<R>(&self, look: impl Fn(&Gate) -> R) -> R {
        self.sideline.read(&look).unwrap_or_else(|| self.gate.read(look))
    }

    // === which policy ===

    /// Another configuration for the gate and its model.
    pub(crate) fn reconfigure(&self, config: &GateConfig) -> Result<(), StartError> {
        let wrong =
            |error: tidegate_core::config::ConfigError| StartError::Config(error.to_string());
        self.gate
            .input(|gate, now| {
                gate.reconfigure(now, config)?;
                inform(gate, now, &self.names);
                Ok(())
            })
            .map_err(wrong)?;
        self.watch.forget();
        self.sideline.reconfigure(self.gate.now(), config).map_err(wrong)
    }

    /// Puts a candidate beside the live policy.
    pub(crate) fn shadow(&self, text: &str, peer: SocketAddr) -> Result<(), String> {
        let candidate = Candidate::parse(text).map_err(|error| error.to_string())?;
        let now = self.gate.now();
        self.sideline.shadow(now, &candidate.gate).map_err(|error| error.to_string())?;
        self.log(&format_args!("a candidate policy is compared, as told by {peer}"));
        Ok(())
    }

    /// Ends the comparison; false if there was none.
    pub(crate) fn end_shadow(&self, peer: SocketAddr) -> bool {
        let was = self.sideline.end_shadow().is_some();
        if was {
            self.log(&format_args!("the candidate policy is dropped, as told by {peer}"));
        }
        was
    }

    /// The candidate becomes the live policy: what stands in the file from now on, as long as the
    /// file does not change.
    pub(crate) fn promote(&self, peer: SocketAddr) -> Result<Option<String>, StartError> {
        let Some(candidate) = self.sideline.candidate() else { return Ok(None) };
        let mut file = lock(&self.file);
        self.reconfigure(&candidate)?;
        file.gate = candidate.clone();
        drop(file);
        self.sideline.end_shadow();
        self.log(&format_args!(
            "the candidate policy is live, as told by {peer}; the file still has the old one"
        ));
        Ok(Some(candidate_toml(&candidate)))
    }
}

/// Whether a browser sent this for a page that is not ours.
fn is_cross_site(headers: &HeaderMap) -> bool {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let foreign = text(&FETCH_SITE).is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let origin = text(&ORIGIN).map(|origin| origin.split_once("://").map_or("?", |(_, host)| host));
    foreign || origin.is_some_and(|origin| text(&HOST) != Some(origin))
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = list.iter().map(|(name, value)| {
            (HeaderName::from_static(name), http::HeaderValue::from_static(value))
        });
        pairs.collect()
    }

    #[test]
    fn pages_of_other_sites_are_recognised() {
        for (list, foreign) in [
            (&[("host", "a:1")][..], false),
            (&[("host", "a:1"), ("origin", "http://a:1")], false),
            (&[("host", "a:1"), ("origin", "http://a:2")], true),
            (&[("host", "a:1"), ("origin", "null")], true),
            (&[("host", "a:1"), ("sec-fetch-site", "same-origin")], false),
            (&[("host", "a:1"), ("sec-fetch-site", "none")], false),
            (&[("host", "a:1"), ("sec-fetch-site", "cross-site")], true),
            (&[("host", "a:1"), ("sec-fetch-site", "same-site")], true),
        ] {
            assert_eq!(is_cross_site(&headers(list)), foreign, "{list:?}");
        }
    }

    #[test]
    fn a_token_is_right_or_wrong_and_not_shown() {
        let token = Token("0123456789abcdef".to_owned());
        assert!(token.is("0123456789abcdef"));
        for wrong in ["", "0123456789abcde", "0123456789abcdeg", "0123456789abcdef0"] {
            assert!(!token.is(wrong), "{wrong}");
        }
        assert!(!format!("{token:?}").contains("0123"));
    }
}
