//! `tidegate config example`, `tidegate config schema` and `tidegate config show [FILE]`

use std::path::PathBuf;

use clap::Subcommand;
use tidegate_proxy::File;

use super::file;
use super::{Error, print};

/// Print configurations.
#[derive(Debug, clap::Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    /// A commented file with every block and its default: a file to start from.
    Example,
    /// The JSON Schema of the file, for editors and for tools that write configurations.
    Schema,
    /// The configuration a file amounts to, every parameter in full; without a file, the defaults.
    Show {
        /// TOML with the blocks `[proxy]`, `[gate]` and `[caller]`; `-` reads stdin.
        file: Option<PathBuf>,
    },
}

const EXAMPLE: &str = include_str!("example.toml");

impl Config {
    pub(crate) fn run(self) -> Result<(), Error> {
        match self.which {
            Which::Example => print(EXAMPLE),
            Which::Schema => print(format_args!("{:#}\n", File::schema())),
            Which::Show { file: None } => print(File::default().to_toml()),
            Which::Show { file: Some(path) } => {
                let file = File::parse(&file::text(&path)?).map_err(|error| {
                    Error::Input(format!("{} is not valid\n{error}", file::name(&path)))
                })?;
                print(file.to_toml())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_the_default() {
        let example = File::parse(EXAMPLE).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(example, File::default());
    }

    /// A parameter added to the core, or one whose default changed, fails here until the example
    /// says so too.
    #[test]
    fn the_example_is_complete_and_says_why() {
        let without_comments: Vec<&str> =
            EXAMPLE.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        let full = File::default().to_toml();
        let full: Vec<&str> = full.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(without_comments, full);
        for (before, line) in EXAMPLE.lines().zip(EXAMPLE.lines().skip(1)) {
            let explained = line.starts_with('#') || line.is_empty() || before.starts_with('#');
            assert!(explained, "a comment should explain: {line}");
        }
    }
}
