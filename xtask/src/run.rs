//! Running other programs, from the root of the repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What went wrong, for a person.
pub(crate) type Result<T = ()> = std::result::Result<T, String>;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask lies in the root").to_owned()
}

/// The cargo that started us.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args).current_dir(root());
    command
}

/// The compiler that cargo uses.
pub(crate) fn rustc() -> Command {
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.current_dir(root());
    command
}

/// Runs to the end with our output; an error unless it succeeded.
pub(crate) fn run(command: &mut Command) -> Result {
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed: {status}", show(command))) }
}

/// Runs to the end and returns stdout and stderr; an error, with stderr, unless it succeeded.
pub(crate) fn output(command: &mut Command) -> Result<(String, String)> {
    let output = command.output().map_err(|error| cannot_start(command, &error))?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{} failed: {}\n{stderr}", show(command), output.status));
    }
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), stderr))
}

/// Whether a program is there and answers to `--version`.
pub(crate) fn answers(program: &mut Command) -> bool {
    program.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    program.status().is_ok_and(|status| status.success())
}

/// Where the program is in the path. Some know no `--version`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start {}: {error}", show(command))
}

fn show(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
