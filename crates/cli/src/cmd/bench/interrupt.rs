//! Ctrl-C: what was measured so far is told. A second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody has had enough.
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Watches from now on, in a thread that sleeps. Without one Ctrl-C does what it always does.
    pub(super) fn watch() -> Self {
        let seen = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&seen);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async {
                while tokio::signal::ctrl_c().await.is_ok() {
                    if told.swap(true, Ordering::SeqCst) {
                        std::process::exit(130);
                    }
                }
            });
        });
        Self(seen)
    }

    pub(super) fn is_seen(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
