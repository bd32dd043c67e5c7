//! Programs from Debian packages: found, or installed when that is allowed.

use std::process::Command;

use crate::run::{self, Result};

/// A program that a chore needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// The program.
    pub(crate) program: &'static str,
    /// The Debian package that has it.
    pub(crate) package: &'static str,
}

/// Makes sure that all of `needs` are there. Missing ones are installed if the user asked for it
/// or is root, else they are an error that names them.
pub(crate) fn provide(needs: &[Need], asked: bool) -> Result {
    let present = |program: &str| run::find(program).is_some();
    match plan(needs, present, asked || is_root()) {
        Plan::Nothing => Ok(()),
        Plan::Install(packages) => {
            println!("installing {}", packages.join(", "));
            run::run(Command::new("apt-get").arg("update").arg("-q"))?;
            let flags = ["install", "-q", "-y", "--no-install-recommends"];
            run::run(Command::new("apt-get").args(flags).args(packages))
        }
        Plan::Ask(packages) => Err(format!(
            "missing Debian packages: {}; install them, or pass --install",
            packages.join(", ")
        )),
    }
}

/// Installs what is missing of `needs` if that is allowed. What cannot be installed is done without.
pub(crate) fn offer(needs: &[Need], asked: bool) {
    if (asked || is_root())
        && let Err(why) = provide(needs, true)
    {
        println!("not installed: {why}");
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Nothing,
    Install(Vec<&'static str>),
    Ask(Vec<&'static str>),
}

fn plan(needs: &[Need], present: impl Fn(&str) -> bool, allowed: bool) -> Plan {
    let missing = needs.iter().filter(|need| !present(need.program));
    let mut packages: Vec<_> = missing.map(|need| need.package).collect();
    packages.sort_unstable();
    packages.dedup();
    match (packages.is_empty(), allowed) {
        (true, _) => Plan::Nothing,
        (false, true) => Plan::Install(packages),
        (false, false) => Plan::Ask(packages),
    }
}

/// Whether this process belongs to root, as its entry in /proc says.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: [Need; 3] = [
        Need { program: "cc", package: "gcc" },
        Need { program: "valgrind", package: "valgrind" },
        Need { program: "callgrind_annotate", package: "valgrind" },
    ];

    #[test]
    fn nothing_needed_means_nothing_done() {
        assert_eq!(plan(&[], |_| false, true), Plan::Nothing);
        assert_eq!(plan(&NEEDS, |_| true, true), Plan::Nothing);
        assert_eq!(provide(&[], true), Ok(()));
    }

    #[test]
    fn what_is_missing_is_installed_once_and_only_if_allowed() {
        let present = |program: &str| program == "cc";
        assert_eq!(plan(&NEEDS, present, true), Plan::Install(vec!["valgrind"]));
        assert_eq!(plan(&NEEDS, present, false), Plan::Ask(vec!["valgrind"]));
    }
}
