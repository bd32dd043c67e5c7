//! What a file asks for that this sidecar has no means to do: told before it starts, not found out under load.

use tidegate_core::config::Problems;
use tidegate_core::limit::{Each, LimitConfig};

use super::File;

/// Notes what would be accepted and do nothing.
pub(super) fn check(file: &File, problems: &mut Problems) {
    problems.within("gate", |problems| {
        for (at, limit) in file.gate.limits.iter().enumerate() {
            problems.within_item("limits", at, |problems| check_limit(file, limit, problems));
        }
    });
}

fn check_limit(file: &File, limit: &LimitConfig, problems: &mut Problems) {
    if let LimitConfig::Rate(config) = limit
        && config.each == Each::Header
    {
        let fine = file.proxy.limit_header.is_some();
        problems.check("each", "header", fine, "proxy.limit_header says which header");
    }
}
