//! A caller's retry budget: every request deposits a share, every retry withdraws one.
//!
//! A retry is paid for when it is decided, not when it is sent, so those that wait in back-off
//! count: a thousand simultaneous failures cannot all pass a 10 % budget.

/// Retries a caller may still make.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Saved retries, in [0, reserve].
    saved: f64,
    share: f64,
    reserve: f64,
}

impl Budget {
    /// A full reserve; each request adds `share` of a retry.
    pub fn new(share: f64, reserve: u32) -> Self {
        Self { saved: f64::from(reserve), share, reserve: f64::from(reserve.max(1)) }
    }

    /// Changes the parameters. What is saved is kept, as far as the reserve allows.
    pub fn reconfigure(&mut self, share: f64, reserve: u32) {
        self.share = share;
        self.reserve = f64::from(reserve.max(1));
        self.saved = self.saved.min(self.reserve);
    }

    /// A request (not a retry) was made.
    pub fn deposit(&mut self) {
        self.saved = (self.saved + self.share).min(self.reserve);
    }

    /// Pays for a retry, if there is enough.
    pub fn withdraw(&mut self) -> bool {
        let enough = self.saved >= 1.0;
        if enough {
            self.saved -= 1.0;
        }
        enough
    }

    /// A retry that was paid for was not made.
    pub fn refund(&mut self) {
        self.saved = (self.saved + 1.0).min(self.reserve);
    }

    /// Whether no retry is left.
    pub fn spent(&self) -> bool {
        self.saved < 1.0
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        assert!((0.0..=self.reserve).contains(&self.saved), "saved {}", self.saved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Handling Overload", Deciding to Retry: with the 10 % budget, total load is at most 1.1
    /// times the requests, whatever is refused. (Without it, three attempts triple the load when
    /// all is refused.)
    #[test]
    fn retries_stay_within_the_share() {
        let mut budget = Budget::new(0.1, 10);
        let mut retries = 0;
        for _ in 0..10_000 {
            budget.deposit();
            // Everything is refused, twice.
            retries += u32::from(budget.withdraw()) + u32::from(budget.withdraw());
            budget.invariants();
        }
        assert!((1_000..=1_010).contains(&retries), "{retries}");
        assert!(budget.spent());
    }

    #[test]
    fn a_quiet_caller_can_retry_but_cannot_save_for_ever() {
        let mut budget = Budget::new(0.1, 3);
        for _ in 0..1_000 {
            budget.deposit();
        }
        let allowed = (0..100).filter(|_| budget.withdraw()).count();
        assert_eq!(allowed, 3);
    }
}
