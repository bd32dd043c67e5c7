//! What a request comes with: its own context where its sender is trusted, else a rank from the
//! entry.
//!
//! At an edge nothing that would gain its sender anything is believed: not the context, not the
//! attempt. A timeout is, since it only says when the sender stops waiting.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Extensions, HeaderMap, HeaderValue, Method, Request, Uri};
use tidegate_core::{Context, Instant, Rank, Sender};
use tidegate_driver::{context, sender};

use super::exempt::Place;
use super::layer::GateLayer;
use super::rule::Rule;
use crate::identity;
use crate::wire::{self, Carried, Names};

/// A request without its body.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its target.
    pub uri: &'a Uri,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// What layers before have noted, such as [`Peer`].
    pub extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    pub(crate) fn of<Q>(request: &'a Request<Q>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

/// The address a request came from, for whoever accepts connections to note in its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

/// Whose contexts are believed.
#[derive(Clone, Default)]
pub enum Trust {
    /// Nobody's: requests come from strangers.
    #[default]
    Edge,
    /// Everybody's: only services of ours can reach this one.
    Inside,
    /// Those of requests that pass this test, say by the certificate of their peer.
    When(Arc<dyn Fn(&Head<'_>) -> bool + Send + Sync>),
}

impl Trust {
    /// Believes those whose requests pass `test`.
    pub fn when(test: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self::When(Arc::new(test))
    }

    fn trusts(&self, head: &Head<'_>) -> bool {
        match self {
            Self::Edge => false,
            Self::Inside => true,
            Self::When(test) => test(head),
        }
    }
}

/// Who a peer is, as far as that is known by more than its own word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vouched {
    /// Not at all: its address stands for it.
    Address,
    /// The holder of this name, say by the certificate of the connection.
    Name(String),
    /// One that speaks for many others, so that no claim of it is too large.
    Gateway,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Edge => "Edge",
            Self::Inside => "Inside",
            Self::When(_) => "When(..)",
        })
    }
}

/// What a layer counts.
#[derive(Debug, Default)]
pub(super) struct Counts {
    malformed: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    pub(super) fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    /// Another number from 0 to 1 for every refusal: multiples of the golden ratio, which spread more
    /// evenly than chance.
    pub(super) fn jitter(&self) -> f64 {
        let refusal = self.refused.fetch_add(1, Ordering::Relaxed);
        (refusal.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What there is to know of a request before the gate is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) context: Context,
    /// Whether its sender is trusted, and may know its rank and our cursor.
    pub(super) trusted: bool,
    /// Whether it sent a context, and so understands feedback.
    pub(super) listens: bool,
    /// Whether it is a stranger's and claims a context, which nobody may believe.
    pub(super) claims: bool,
    pub(super) grpc: bool,
}

impl GateLayer {
    /// A place beside the gate, if the request is exempt and there is one.
    pub(super) fn place_of(&self, head: &Head<'_>) -> Option<Place> {
        let exempt = identity::is_exempt(&self.exempt, head.uri.path());
        exempt.then(|| self.places.take(head.extensions.get().map(|Peer(address)| *address)))?
    }

    /// Reads what `head` comes with.
    pub(super) fn ask(&self, now: Instant, head: &Head<'_>) -> Asked {
        let trusted = self.trust.trusts(head);
        let carried = Carried::of(head.headers);
        let sender = self.sender(head);
        let names = || self.names.of(sender);
        let told =
            if trusted && carried.context { self.told(now, head.headers, &names()) } else { None };
        let rule =
            if told.is_none() { self.rules.iter().find(|rule| rule.fits(head)) } else { None };
        let mut context = told.unwrap_or_else(|| Context {
            rank: self.assign(head, &carried, rule),
            ..Context::default()
        });
        // Whoever comes without a context, or from where nobody is believed, has the workflow that we give it.
        if told.is_none()
            && let Some(name) = self.workflow_of(head, rule)
            && name.len() <= Names::LONGEST
        {
            context.workflow = names().hear(now, &name);
        }
        if trusted && carried.attempt {
            let attempt = wire::attempt_of(head.headers).unwrap_or(0);
            context.attempt = context.attempt.max(attempt);
        }
        let timeout = if carried.timeout { wire::timeout_of(head.headers) } else { None };
        for patience in timeout.into_iter().chain(self.patience) {
            context.deadline = context.deadline.min(now + patience);
        }
        context.sender = sender;
        Asked {
            context: context::draw(context),
            trusted,
            listens: told.is_some(),
            claims: carried.context && !trusted,
            grpc: carried.content_type && wire::is_grpc(head.headers),
        }
    }

    fn sender(&self, head: &Head<'_>) -> Sender {
        let (verified, limited) = (self.user_header.as_ref(), self.limit_header.as_ref());
        let address = head.extensions.get().map(|Peer(address)| *address);
        let mut sender =
            identity::sender_of(head.headers, verified, self.credentials, limited, address);
        match self.vouch.as_ref().map_or(Vouched::Address, |vouch| vouch(head)) {
            Vouched::Address => {}
            Vouched::Name(name) => sender.peer = sender::mark(name.as_bytes()),
            Vouched::Gateway => sender.peer = Sender::GATEWAY,
        }
        sender
    }

    /// The context that came along, unless it is missing or malformed.
    fn told(&self, now: Instant, headers: &HeaderMap, names: &Names) -> Option<Context> {
        let told = wire::context_of(headers, now, names)?;
        if told.is_err() {
            self.counts.malformed.fetch_add(1, Ordering::Relaxed);
        }
        told.ok()
    }

    fn workflow_of<'a>(&self, head: &Head<'_>, rule: Option<&'a Rule>) -> Option<Cow<'a, str>> {
        let by_rule = rule.and_then(Rule::workflow_name).map(Cow::Borrowed);
        by_rule.or_else(|| self.workflow.as_ref()?(head).map(Cow::Owned))
    }

    fn assign(&self, head: &Head<'_>, carried: &Carried<'_>, rule: Option<&Rule>) -> Rank {
        let rank = self.assign_by_action(head, carried);
        match rule {
            Some(rule) => Rank::new(rule.business(), rank.user()),
            None if self.rules.is_empty() || self.entry.has_actions() => rank,
            None => Rank::new(Rank::LAST.business(), rank.user()),
        }
    }

    fn assign_by_action(&self, head: &Head<'_>, carried: &Carried<'_>) -> Rank {
        let action = match &self.action {
            // Nobody would look at it.
            _ if !self.entry.has_actions() => String::new(),
            Some(action) => action(head),
            None => format!("{} {}", head.method, head.uri.path()),
        };
        // As `identity::with_user` does, with what was seen already.
        let verified = self.user_header.as_ref().and_then(|name| head.headers.get(name));
        let shown = carried.authorization.filter(|_| self.credentials);
        let told = verified.or(shown).map(HeaderValue::as_bytes);
        let cookies = carried.cookies && self.credentials;
        let session = || if cookies { identity::session(head.headers) } else { None };
        let rank = |user: Option<&[u8]>| identity::rank(&self.entry, &action, user);
        match told.or_else(session) {
            Some(user) => rank(Some(user)),
            None => identity::with_peer(head.extensions.get().map(|Peer(address)| *address), rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_spread_over_zero_to_one() {
        let counts = Counts::default();
        let mut tenths = [0; 10];
        for _ in 0..1_000 {
            tenths[(counts.jitter() * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (60..=140).contains(count)), "{tenths:?}");
    }
}
