//! Numbers as text, written straight into it: the general way of formatting takes ten times as long, and refusals
//! are written when time is scarce.

use std::fmt::Write as _;

/// Whole numbers below this are exact as `f64`.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Adds a whole number.
pub(super) fn push_number(text: &mut String, number: u64) {
    push_digits(text, number, 10);
}

/// Adds a number as it is shown, whole ones without a point.
pub(super) fn push_float(text: &mut String, number: f64) {
    if (0.0..EXACT).contains(&number) && number.fract() == 0.0 && number.is_sign_positive() {
        return push_number(text, number as u64);
    }
    write!(text, "{number}").expect("a string takes everything");
}

/// Adds thousandths as a decimal fraction, without zeros at its end.
pub(super) fn push_thousandths(text: &mut String, thousandths: u64) {
    push_number(text, thousandths / 1000);
    let (mut rest, mut place) = (thousandths % 1000, 100);
    if rest > 0 {
        text.push('.');
    }
    while rest > 0 {
        push_number(text, rest / place);
        (rest, place) = (rest % place, place / 10);
    }
}

/// Adds the digits of a number to a base of up to 16.
pub(super) fn push_digits(text: &mut String, number: u64, base: u64) {
    let (mut digits, mut first, mut rest) = ([0; 20], 20, number);
    while first == 20 || rest > 0 {
        first -= 1;
        digits[first] = b"0123456789abcdef"[(rest % base) as usize];
        rest /= base;
    }
    digits[first..].iter().for_each(|digit| text.push(char::from(*digit)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(write: impl FnOnce(&mut String)) -> String {
        let mut text = String::new();
        write(&mut text);
        text
    }

    proptest! {
        /// The same as the general way.
        #[test]
        fn numbers_are_written_as_they_are_shown(number in any::<u64>(), bits in any::<u64>(), small in 0..5_000u64) {
            for number in [number, small, 0, u64::MAX] {
                prop_assert_eq!(text(|text| push_number(text, number)), number.to_string());
                prop_assert_eq!(text(|text| push_digits(text, number, 16)), format!("{number:x}"));
                let tenth = number as f64 / 10.0;
                for number in [f64::from_bits(bits), number as f64, -(number as f64), tenth] {
                    prop_assert_eq!(text(|text| push_float(text, number)), number.to_string());
                }
            }
            let decimal = text(|text| push_thousandths(text, small));
            prop_assert_eq!(decimal, (small as f64 / 1000.0).to_string());
        }
    }
}
