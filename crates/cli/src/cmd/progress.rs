//! A bar on stderr while something long runs, for people only: nothing if stderr is no terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;

/// Width of the bar in characters.
const WIDTH: usize = 40;

/// How far it is. Dropping it wipes the bar.
pub(crate) struct Progress {
    /// Whether anybody looks.
    shown: bool,
    label: String,
    /// How much of the current grid is done, and of how much: several threads report.
    state: Mutex<(usize, usize)>,
}

impl Progress {
    pub(crate) fn new(label: &str) -> Self {
        Self { shown: io::stderr().is_terminal(), label: label.to_owned(), state: Mutex::default() }
    }

    /// `done` of `all` steps are done. Reports that overtook each other do not turn it back, until
    /// the next grid begins.
    pub(crate) fn tell(&self, done: usize, all: usize) {
        if !self.shown {
            return;
        }
        let mut state = self.state.lock().expect("nobody panics while drawing");
        let (before, before_all) = *state;
        let same = all == before_all && before < all;
        *state = (if same { done.max(before) } else { done }, all);
        draw(&bar(&self.label, state.0, all));
    }

    /// Says what is done before there is anything to count.
    pub(crate) fn say(&self, what: &str) {
        if self.shown {
            draw(what);
        }
    }

    /// Takes the bar away, so that something else can be written.
    pub(crate) fn wipe(&self) {
        if self.shown {
            draw("");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// Replaces the current line. A terminal that has gone away is no reason to stop.
fn draw(line: &str) {
    let _ = write!(io::stderr().lock(), "\r\x1b[K{line}");
}

fn bar(label: &str, done: usize, all: usize) -> String {
    let full = (WIDTH * done).checked_div(all).unwrap_or(WIDTH).min(WIDTH);
    format!("{label} [{}{}] {done}/{all}", "#".repeat(full), " ".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills() {
        let filled = |done, all| bar("x", done, all).matches('#').count();
        assert_eq!((filled(0, 8), filled(4, 8), filled(8, 8)), (0, WIDTH / 2, WIDTH));
        assert_eq!((filled(9, 8), filled(0, 0)), (WIDTH, WIDTH));
        assert!(bar("plan", 3, 8).starts_with("plan [") && bar("plan", 3, 8).ends_with("] 3/8"));
    }
}
