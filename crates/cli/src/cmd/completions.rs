//! `tidegate completions SHELL`, `tidegate man DIR`

use std::io::Write;
use std::path::PathBuf;
use std::{fs, io};

use clap::Command;
use clap_complete::Shell;

use super::{Error, print};

/// Print completions for a shell, such as `tidegate completions bash > /usr/share/bash-completion/completions/tidegate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// Which one.
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, mut whole: Command) -> Result<(), Error> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut whole, "tidegate", &mut script);
        print(String::from_utf8_lossy(&script))
    }
}

/// Write a manual page for `tidegate`, and one for each of its commands.
#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// Where to: a folder that is there, such as /usr/local/share/man/man1.
    folder: PathBuf,
}

impl Man {
    pub(crate) fn run(self, mut whole: Command) -> Result<(), Error> {
        whole.build();
        let cannot = |error: io::Error| {
            Error::Failed(format!("cannot write to {}: {error}", self.folder.display()))
        };
        let write = |name: &str, command: Command| -> io::Result<()> {
            let mut page = Vec::new();
            clap_mangen::Man::new(command.name(name.to_owned())).render(&mut page)?;
            fs::File::create(self.folder.join(format!("{name}.1")))?.write_all(&page)
        };
        write("tidegate", whole.clone()).map_err(cannot)?;
        for command in whole.get_subcommands().filter(|command| command.get_name() != "help") {
            write(&format!("tidegate-{}", command.get_name()), command.clone()).map_err(cannot)?;
        }
        Ok(())
    }
}
