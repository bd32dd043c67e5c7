//! Reading files that users name. Their format is `tidegate_proxy::File`.

use std::io::Read;
use std::path::Path;
use std::{fs, io};

use super::Error;

/// The path that stands for stdin.
const STDIN: &str = "-";

/// Largest file that is read: a thousand times the size of a full configuration.
const LIMIT: u64 = 1 << 20;

/// Whether a path names a file, which can be read again, and not stdin.
pub(crate) fn is_file(path: &Path) -> bool {
    path.as_os_str() != STDIN
}

/// What to call a file in messages.
pub(crate) fn name(path: &Path) -> String {
    if path.as_os_str() == STDIN { "stdin".to_owned() } else { path.display().to_string() }
}

/// Largest log that is read: some twenty million requests.
const LOG_LIMIT: u64 = 1 << 30;

/// The text of a file, or of stdin for `-`.
pub(crate) fn text(path: &Path) -> Result<String, Error> {
    text_within(path, LIMIT)
}

/// The same for a recorded log, which may be long.
pub(crate) fn log(path: &Path) -> Result<String, Error> {
    text_within(path, LOG_LIMIT)
}

fn text_within(path: &Path, limit: u64) -> Result<String, Error> {
    let name = name(path);
    let cannot = |error: io::Error| Error::Input(format!("cannot read {name}: {error}"));
    let mut text = String::new();
    let source: Box<dyn Read> = if path.as_os_str() == STDIN {
        Box::new(io::stdin())
    } else {
        Box::new(fs::File::open(path).map_err(cannot)?)
    };
    source.take(limit + 1).read_to_string(&mut text).map_err(cannot)?;
    if text.len() as u64 > limit {
        return Err(Error::Input(format!("{name} is longer than {limit} bytes")));
    }
    Ok(text)
}
