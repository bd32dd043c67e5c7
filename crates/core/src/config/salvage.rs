//! What can be read of a configuration that cannot be read as a whole.
//!
//! Each thing that is wrong is found by taking fields away until it does not occur, is told, and is set aside or replaced,
//! so that the rest is judged in the same go.

use serde::de::DeserializeOwned;

use super::{Problem, Problems};

/// Notes fields beside a choice that has none, such as `order = "fifo"`: it is read whatever is beside it,
/// and printed without.
pub(super) fn note_unread(given: &toml::Table, printed: &toml::Table, problems: &mut Problems) {
    let choice = match printed.iter().next() {
        Some((name, toml::Value::String(_))) if printed.len() == 1 => Some(name),
        _ => None,
    };
    for (name, value) in given {
        problems.path.push(name.clone());
        match (printed.get(name), choice) {
            (Some(printed), _) => note_unread_in(value, printed, problems),
            (None, Some(choice)) if !is_empty(value) => {
                let (field, value) = (problems.path.join("."), value.to_string());
                let allowed = format!("unknown field `{name}`, there is only `{choice}`");
                problems.found.push(Problem::new(field, value, allowed));
            }
            (None, _) => {}
        }
        problems.path.pop();
    }
}

/// The same for a value, whose blocks in a list are named by their place.
fn note_unread_in(given: &toml::Value, printed: &toml::Value, problems: &mut Problems) {
    match (given, printed) {
        (toml::Value::Table(given), toml::Value::Table(printed)) => {
            note_unread(given, printed, problems);
        }
        (toml::Value::Array(given), toml::Value::Array(printed)) => {
            for (at, (given, printed)) in given.iter().zip(printed).enumerate() {
                problems.path.push(at.to_string());
                note_unread_in(given, printed, problems);
                problems.path.pop();
            }
        }
        _ => {}
    }
}

/// Whether a value is a list or block without anything in it, which is not printed.
fn is_empty(value: &toml::Value) -> bool {
    match value {
        toml::Value::Table(block) => block.is_empty(),
        toml::Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// An item that was taken out of a list: those behind it stand one place before where they were given.
#[derive(Debug)]
pub(super) struct Gap {
    list: Vec<String>,
    at: usize,
}

/// Where that which is at `path` now was given.
pub(super) fn as_given(mut path: Vec<String>, gaps: &[Gap]) -> Vec<String> {
    for Gap { list, at } in gaps.iter().rev() {
        let place = path.get(list.len()).and_then(|place| place.parse::<usize>().ok());
        if let Some(place) = place.filter(|place| place >= at && path.starts_with(list)) {
            path[list.len()] = (place + 1).to_string();
        }
    }
    path
}

/// Removes the field without which `error` does not occur. Errors of tagged blocks do not say where
/// they are, but there are few fields, so each is tried. What a block in a list cannot do without is replaced, or the block
/// taken out if nothing fits there.
pub(super) fn set_aside_culprit<T: DeserializeOwned>(
    table: &mut toml::Table,
    error: &str,
    gaps: &mut Vec<Gap>,
) -> Option<(Vec<String>, toml::Value)> {
    let mut paths = Vec::new();
    fields(table, &mut Vec::new(), &mut paths);
    paths.into_iter().find_map(|path| {
        let (last, above) = path.split_last()?;
        if let Ok(at) = last.parse() {
            let (rest, item) = without_item::<T>(table, above, at, error)?;
            *table = rest;
            gaps.push(Gap { list: above.to_vec(), at });
            return Some((path, item));
        }
        let mut rest = table.clone();
        let value = block(&mut rest, above)?.remove(last)?;
        let misspelt = error.starts_with(&format!("unknown field `{last}`"));
        match rest.clone().try_into::<T>().map_err(|now| message(&now)) {
            // Without the key that chooses a policy there is another error, and no cure. But where a name is wrong, the
            // right one may be missing.
            Err(now) if now == error => return None,
            Err(now) if now.starts_with("missing field") && !misspelt => {
                above.last()?.parse::<usize>().ok()?;
                rest = fill::<T>(rest, above, last, error)?;
            }
            _ => {}
        }
        *table = rest;
        Some((path, value))
    })
}

/// All but one item of a list, and that, if the `error` is its own: it occurs with that alone, and not with none.
fn without_item<T: DeserializeOwned>(
    table: &toml::Table,
    list: &[String],
    at: usize,
    error: &str,
) -> Option<(toml::Table, toml::Value)> {
    let (name, blocks) = list.split_last()?;
    let mut rest = table.clone();
    let item = block(&mut rest, blocks)?.get_mut(name)?.as_array_mut()?.remove(at);
    let fails_with = |items: &[toml::Value]| {
        let mut table = table.clone();
        *block(&mut table, blocks)?.get_mut(name)? = toml::Value::Array(items.to_vec());
        Some(table.try_into::<T>().is_err_and(|now| message(&now) == error))
    };
    let own = fails_with(std::slice::from_ref(&item))? && !fails_with(&[])?;
    own.then_some((rest, item))
}

/// Puts something into the block at `path`, so that `error` does not occur and the rest can be judged.
fn fill<T: DeserializeOwned>(
    table: toml::Table,
    path: &[String],
    name: &str,
    error: &str,
) -> Option<toml::Table> {
    // Each with how an error tells that it does not fit.
    let fillers = [(0.into(), "`0`"), (FILLER.into(), FILLER), (false.into(), "`false`")];
    fillers.into_iter().find_map(|(filler, unfit): (toml::Value, &str)| {
        let mut filled = table.clone();
        block(&mut filled, path)?.insert(name.to_owned(), filler);
        let now = filled.clone().try_into::<T>().err().map(|now| message(&now));
        now.is_none_or(|now| now != error && !now.contains(unfit)).then_some(filled)
    })
}

/// No value that anybody gives.
const FILLER: &str = "/?";

/// Puts something where a block in a list lacks a field, once, so that the rest can be judged. Returns its path.
pub(super) fn fill_in<T: DeserializeOwned>(
    table: &mut toml::Table,
    error: &str,
    filled: &[Vec<String>],
) -> Option<Vec<String>> {
    let name = error.strip_prefix("missing field `")?.split('`').next()?;
    let mut paths = Vec::new();
    items(table, &mut Vec::new(), &mut paths);
    paths.into_iter().find_map(|mut path| {
        if block(table, &path)?.contains_key(name) {
            return None;
        }
        let rest = fill::<T>(table.clone(), &path, name, error)?;
        path.push(name.to_owned());
        if filled.contains(&path) {
            return None;
        }
        *table = rest;
        Some(path)
    })
}

/// Paths of all blocks in lists.
fn items(table: &toml::Table, above: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    for (name, value) in table {
        above.push(name.clone());
        match value {
            toml::Value::Table(block) => items(block, above, found),
            toml::Value::Array(list) => {
                for (at, item) in list.iter().enumerate() {
                    above.push(at.to_string());
                    if let toml::Value::Table(block) = item {
                        items(block, above, found);
                        found.push(above.clone());
                    }
                    above.pop();
                }
            }
            _ => {}
        }
        above.pop();
    }
}

/// Paths of all fields and blocks in lists, those of a block before the block itself.
fn fields(table: &toml::Table, above: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    for (name, value) in table {
        above.push(name.clone());
        fields_of(value, above, found);
        found.push(above.clone());
        above.pop();
    }
}

/// The same for a value, whose blocks in a list are named by their place.
fn fields_of(value: &toml::Value, above: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    match value {
        toml::Value::Table(block) => fields(block, above, found),
        toml::Value::Array(list) => {
            for (at, item) in list.iter().enumerate() {
                above.push(at.to_string());
                fields_of(item, above, found);
                if item.is_table() {
                    found.push(above.clone());
                }
                above.pop();
            }
        }
        _ => {}
    }
}

/// The block at a path.
fn block<'a>(table: &'a mut toml::Table, path: &[String]) -> Option<&'a mut toml::Table> {
    let Some((first, rest)) = path.split_first() else { return Some(table) };
    let mut value = table.get_mut(first)?;
    for name in rest {
        value = match value {
            toml::Value::Array(list) => list.get_mut(name.parse::<usize>().ok()?)?,
            value => value.get_mut(name)?,
        };
    }
    value.as_table_mut()
}

/// What is wrong, without the line that says where: fields are named by their path. Instead of all that
/// is known, the one that was probably meant.
pub(super) fn message(error: &toml::de::Error) -> String {
    let told = error.message();
    let mut words = told.split('`').skip(1).step_by(2);
    let meant = words.next().and_then(|unknown| {
        let known = words.map(|known| (slips(unknown, known), known));
        // One slip in three letters, and two in a long word.
        let near = known.filter(|(slips, known)| *slips <= (known.len() / 3).min(2));
        near.min_by_key(|(slips, _)| *slips).map(|(_, known)| known)
    });
    match (meant, told.split_once(", expected")) {
        (Some(meant), Some((unknown, _))) => format!("{unknown}; did you mean `{meant}`?"),
        _ => told.to_owned(),
    }
}

/// Slips that make `written` of `meant`: a letter too many, too few or another, or two that changed places.
fn slips(written: &str, meant: &str) -> usize {
    let (written, meant) = (written.as_bytes(), meant.as_bytes());
    // Slips for all beginnings of what was meant, each row with one more letter of what was written.
    let (mut before, mut last) = (Vec::new(), Vec::from_iter(0..=meant.len()));
    for (i, letter) in written.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, other) in meant.iter().enumerate() {
            let another = last[j] + usize::from(letter != other);
            let mut least = another.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == meant[j - 1] && written[i - 1] == *other {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[meant.len()]
}
