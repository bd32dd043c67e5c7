//! Topics that several gates share: each has a lease of the agreement from `tidegate control`, and divides it among its
//! brokers.
//!
//! A message needs two tokens: one of its broker's part, which is how the lease is divided, and one of the
//! lease itself, which alone knows when it ends. So nothing passes beyond a lease, however late its parts are
//! divided anew. Of a lease tokens are taken when they are asked for, not as of the arrival, since its share changes with time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_control::Holders;
use tidegate_core::Instant;
use tidegate_core::context::Workflow;
use tidegate_core::limit::{Bucket, Complaint, Leased, LeasedConfig, Shortage};
use tidegate_core::share::{Share, Tokens};
use tidegate_driver::{Clock, Monotonic};

/// A topic's lease: the hub takes tokens, and the link to the daemon carries reports and answers.
#[derive(Clone, Debug)]
pub(crate) struct Lease(Arc<Mutex<Leased>>);

impl Lease {
    /// Nothing is leased yet.
    pub(crate) fn new(config: &LeasedConfig, now: Instant) -> Self {
        Self(Arc::new(Mutex::new(Leased::new(config, now))))
    }

    fn lock(&self) -> MutexGuard<'_, Leased> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message has arrived.
    pub(crate) fn on_arrival(&self, now: Instant) {
        self.lock().unkeyed(now).on_arrival(now, 1);
    }

    /// So many wait for tokens.
    pub(crate) fn on_waiting(&self, now: Instant, waiting: usize) {
        self.lock().unkeyed(now).on_waiting(now, waiting as u64);
    }

    /// What it may use now.
    pub(crate) fn share(&self, now: Instant) -> Share {
        self.lock().unkeyed(now).share(now)
    }

    /// The agreement of all gates; none before it was heard of.
    pub(crate) fn whole(&self, now: Instant) -> Share {
        self.lock().unkeyed(now).whole()
    }

    /// Whether it has heard of the daemon within a term.
    pub(crate) fn is_connected(&self, now: Instant) -> bool {
        self.lock().unkeyed(now).is_connected(now)
    }

    /// Why there is nothing to have.
    pub(crate) fn complaint(&self) -> Option<&'static str> {
        Some(match self.lock().complaint()? {
            Complaint::Unknown => "the daemon knows no such agreement",
            Complaint::Full => "the agreement has as many keys as it may",
            Complaint::Other => "the agreement is about requests in flight",
        })
    }
}

/// All of a gate, for its link.
#[derive(Debug)]
pub(crate) struct Leases(pub(crate) Vec<Lease>);

impl Holders for Leases {
    fn each(&self, look: &mut dyn FnMut(&mut Leased, Instant)) {
        for lease in &self.0 {
            let mut leased = lease.lock();
            // Under the lock, so that time does not go back.
            look(&mut leased, Monotonic::process().now());
        }
    }

    fn name(&self, _key: Workflow) -> String {
        String::new()
    }
}

/// A broker's part of a topic's agreement, or of the lease of it.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) bucket: Bucket,
    pub(crate) lease: Option<Lease>,
}

impl Tokens for Part {
    fn take_for(&mut self, arrived: Instant, now: Instant) -> Result<Instant, Shortage> {
        let Some(lease) = &self.lease else { return self.bucket.take_for(arrived, now) };
        let mut leased = lease.lock();
        let holder = leased.unkeyed(now);
        let mut bucket = self.bucket.clone();
        if !holder.is_open(now) {
            bucket.take_for(arrived, now)?;
        }
        holder.take(now)?;
        self.bucket = bucket;
        Ok(now)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Span;
    use tidegate_core::share::wire::Answer;
    use tidegate_core::share::{Granter, LeaseConfig, Rate};

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Span::from_millis(millis)
    }

    /// Parts that are larger than the lease, or that outlive it, let nothing more pass.
    #[test]
    fn nothing_passes_beyond_the_lease_whatever_the_parts_say() {
        let whole = Share::new(Rate::per_second(100.0).unwrap(), 10);
        let terms = LeaseConfig { nodes: 1, term: Span::from_secs(2), ..LeaseConfig::default() };
        let mut granter = Granter::new(whole, terms, Default::default()).unwrap();
        let lease = Lease::new(&LeasedConfig::default(), at(0));
        let part =
            || Part { bucket: Bucket::full(at(0), whole.limit()), lease: Some(lease.clone()) };
        let mut parts = [part(), part(), part()];
        let mut taken = |now| {
            let takes = |part: &mut Part| {
                std::iter::repeat_with(|| part.take_for(now, now)).take_while(Result::is_ok).count()
            };
            parts.iter_mut().map(takes).sum::<usize>()
        };
        assert_eq!(taken(at(0)), 0, "nothing is leased");
        let (mut reports, mut passed) = (Vec::new(), 0);
        lease.lock().identify(7);
        lease.on_arrival(at(1));
        lease.lock().poll(at(1), &mut reports);
        for (key, report) in reports {
            let grant = granter.on_report(at(1), &report).expect("nobody else has it");
            assert!(lease.lock().on_answer(at(1), key, &Answer::Grant(grant)));
        }
        assert!(lease.is_connected(at(1)) && lease.whole(at(1)) == whole);
        for now in 1..2_000 {
            passed += taken(at(now));
        }
        assert!((100..=210).contains(&passed), "{passed} in two seconds");
        // It has ended: the safe share is left.
        let safe = lease.share(at(2_001));
        assert!(!lease.is_connected(at(2_001)) && safe.rate.as_f64() < 20.0, "{safe:?}");
        let after: usize = (2_001..4_001).map(|now| taken(at(now))).sum();
        assert!(after as f64 <= 2.0 * safe.rate.as_f64() + safe.burst as f64 + 1.0, "{after}");
    }
}
