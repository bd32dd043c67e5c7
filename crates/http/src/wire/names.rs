//! Names on the wire and the numbers they are inside: workflows, callers, gates.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tidegate_core::context::{Workflow, Workflows};

/// Workflow names of a process, shared by its layers. Clones are the same table.
#[derive(Clone, Debug, Default)]
pub struct Names {
    workflows: Arc<Mutex<Workflows>>,
}

impl Names {
    /// Longest name of a workflow, caller or gate, in bytes. Longer ones are not written, and
    /// malformed when read.
    pub const LONGEST: usize = 64;

    /// The table that everything in this process shares, so that a workflow has one number whichever
    /// way it comes in and goes out.
    pub fn process() -> Self {
        static PROCESS: LazyLock<Names> = LazyLock::new(Names::default);
        PROCESS.clone()
    }

    /// The number of `name`, a new one if there is room.
    pub fn number(&self, name: &str) -> Workflow {
        self.lock().number(name)
    }

    /// The name behind `workflow`.
    pub fn name(&self, workflow: Workflow) -> Option<String> {
        if workflow == Workflow::NONE {
            return None;
        }
        self.lock().name(workflow).map(str::to_owned)
    }

    fn lock(&self) -> MutexGuard<'_, Workflows> {
        self.workflows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How an id is written: up to 16 hexadecimal digits.
pub(crate) fn id_text(id: u64) -> String {
    format!("{id:x}")
}

/// What an id of any form stands for. Ours read back as they were; an id that another
/// implementation made up, a host name say, gets a number by FNV-1a.
pub(crate) fn id_number(text: &str) -> u64 {
    let ours = !text.is_empty()
        && text.len() <= 16
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match u64::from_str_radix(text, 16) {
        Ok(number) if ours => number,
        _ => text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_and_foreign_ones_differ() {
        for id in [0, 1, 0xabc, u64::MAX] {
            assert_eq!(id_number(&id_text(id)), id);
        }
        // Published FNV-1a vectors.
        assert_eq!(id_number(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(id_number("foobar"), 0x8594_4171_f739_67e8);
        assert_ne!(id_number("ABC"), 0xabc);
        assert_ne!(id_number("+1"), 1);
    }

    #[test]
    fn names_are_shared() {
        let names = Names::default();
        let workflow = names.clone().number("checkout");
        assert_eq!(names.name(workflow).as_deref(), Some("checkout"));
        assert_eq!(names.name(Workflow::NONE), None);
    }
}
