//! As much of protocol buffers and base64 as the few small messages take that gRPC puts into headers.

/// A field with a number; zero is not written.
pub(super) fn number(field: u8, value: u64) -> Vec<u8> {
    if value == 0 {
        return Vec::new();
    }
    let mut out = vec![field << 3];
    varint(&mut out, value);
    out
}

/// A field with bytes, a string or a message.
pub(super) fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    varint(&mut out, value.len() as u64);
    out.extend_from_slice(value);
    out
}

/// A field with a double; zero is not written.
pub(super) fn double(field: u8, value: f64) -> Vec<u8> {
    if value == 0.0 {
        return Vec::new();
    }
    let mut out = vec![field << 3 | 1];
    out.extend_from_slice(&value.to_le_bytes());
    out
}

/// Seven bits a byte, the lowest first; the top bit says that more follow.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Number(u64),
    Double(f64),
    Bytes(&'a [u8]),
}

/// The fields of a message, one by one; the end at whatever cannot be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let key = self.varint()?;
            let value = match key & 7 {
                0 => Value::Number(self.varint()?),
                1 => Value::Double(f64::from_le_bytes(self.take(8)?.try_into().ok()?)),
                2 => {
                    let length = usize::try_from(self.varint()?).ok()?;
                    Value::Bytes(self.take(length)?)
                }
                5 => {
                    // Four bytes of a type that none of our messages has.
                    self.take(4)?;
                    continue;
                }
                _ => return None,
            };
            return Some((key >> 3, value));
        }
    }
}

impl<'a> Fields<'a> {
    /// The last field of that number, which is the one that counts.
    pub(super) fn last(self, field: u64) -> Option<Value<'a>> {
        self.filter(|(number, _)| *number == field).map(|(_, value)| value).last()
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 without padding, as gRPC writes binary headers.
pub(super) fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=chunk.len()].copy_from_slice(chunk);
        let word = u32::from_be_bytes(word);
        for digit in 0..=chunk.len() {
            let digit = word >> (18 - 6 * digit) & 0x3f;
            text.push(char::from(DIGITS[digit as usize]));
        }
    }
    text
}

/// The bytes behind base64, with padding or without; none if it is something else.
pub(super) fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |at| at + 1);
    let (digits, padding) = text.split_at(end);
    if padding.len() > 2 || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for chunk in digits.chunks(4) {
        let mut word = 0u32;
        for digit in chunk {
            let value = DIGITS.iter().position(|known| known == digit)?;
            word = word << 6 | value as u32;
        }
        word <<= 6 * (4 - chunk.len());
        bytes.extend_from_slice(&word.to_be_bytes()[1..chunk.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 4648 §10, without padding and with.
    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), text.trim_end_matches('='));
            assert_eq!(from_base64(text.as_bytes()).as_deref(), Some(plain.as_bytes()));
        }
        for bad in ["Z", "Zm9v!", "Zg===", "Zm=9"] {
            assert_eq!(from_base64(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(Fields(&bytes).count() <= bytes.len());
            let _ = from_base64(&bytes);
            prop_assert_eq!(from_base64(base64(&bytes).as_bytes()), Some(bytes));
        }

        #[test]
        fn fields_read_back(n in 1..u64::MAX, d in 0.1..1e9f64, text in ".{0,300}") {
            let message = [number(1, n), double(2, d), bytes(3, text.as_bytes())].concat();
            let read: Vec<_> = Fields(&message).collect();
            let expected =
                [(1, Value::Number(n)), (2, Value::Double(d)), (3, Value::Bytes(text.as_bytes()))];
            prop_assert_eq!(read, expected);
        }
    }
}
