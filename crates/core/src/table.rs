//! Tables by place, a number that starts at zero: they grow to whatever place is asked for.

/// The entry at `place`; if the table does not reach so far, it does now, with copies of what `new` makes.
#[inline]
pub(crate) fn at<T: Clone>(table: &mut Vec<T>, place: usize, new: impl FnOnce() -> T) -> &mut T {
    if place < table.len() { &mut table[place] } else { grow(table, place, new) }
}

/// Apart, so that what grows once does not make slower what happens for every request.
#[cold]
#[inline(never)]
fn grow<T: Clone>(table: &mut Vec<T>, place: usize, new: impl FnOnce() -> T) -> &mut T {
    table.resize(place + 1, new());
    &mut table[place]
}
