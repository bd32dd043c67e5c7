//! Names of workflows, and the numbers they are inside.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tidegate_core::Instant;
use tidegate_core::context::{Sender, Workflow, Workflows};

/// Workflow names of a process, shared by its drivers. Clones are the same table.
#[derive(Clone, Debug, Default)]
pub struct Names {
    workflows: Arc<Mutex<Workflows>>,
    /// Who brings what is heard through this clone.
    by: u32,
}

impl Names {
    /// Longest name of a workflow, caller or gate, in bytes. Longer ones are not written, and none
    /// when read.
    pub const LONGEST: usize = 64;

    /// The table that everything in this process shares, so that a workflow has one number whichever
    /// way it comes in and goes out.
    pub fn process() -> Self {
        static PROCESS: LazyLock<Names> = LazyLock::new(Names::default);
        PROCESS.clone()
    }

    /// The same table, for what is heard from a sender.
    pub fn of(&self, sender: Sender) -> Self {
        Self { workflows: Arc::clone(&self.workflows), by: sender.peer }
    }

    /// The number of a `name` that was heard at `now`: a new one if there is room, for as long as it is heard
    /// now and then.
    pub fn hear(&self, now: Instant, name: &str) -> Workflow {
        self.lock().hear(now, self.by, name)
    }

    /// The number of a `name` that is kept for ever, as configurations and programs have them; a new one if there is
    /// room.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared() {
        let names = Names::default();
        let workflow = names.clone().number("checkout");
        assert_eq!(names.name(workflow).as_deref(), Some("checkout"));
        assert_eq!(names.name(Workflow::NONE), None);
    }
}
