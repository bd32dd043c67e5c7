//! Names on the wire and the numbers they are inside: workflows, callers, gates.

pub use tidegate_driver::Names;

use super::digits::push_digits;

/// How an id is written: up to 16 hexadecimal digits.
pub(crate) fn id_text(id: u64) -> String {
    let mut text = String::with_capacity(16);
    push_digits(&mut text, id, 16);
    text
}

/// What an id of any form stands for. Ours read back as they were; an id that another
/// implementation made up, a host name say, gets a number by FNV-1a.
pub(crate) fn id_number(text: &str) -> u64 {
    let ours = !text.is_empty()
        && text.len() <= 16
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match u64::from_str_radix(text, 16) {
        Ok(number) if ours => number,
        _ => text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_and_foreign_ones_differ() {
        for id in [0, 1, 0xabc, u64::MAX] {
            assert_eq!(id_number(&id_text(id)), id);
        }
        // Published FNV-1a vectors.
        assert_eq!(id_number(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(id_number("foobar"), 0x8594_4171_f739_67e8);
        assert_ne!(id_number("ABC"), 0xabc);
        assert_ne!(id_number("+1"), 1);
    }
}
