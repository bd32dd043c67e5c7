//! Base64 for URLs without padding (RFC 4648, 5; RFC 7515, 2).

/// What `text` stands for; none if it is not in the one form that stands for it.
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0;
        for letter in group {
            bits = bits << 6 | u32::from(value(*letter)?);
        }
        // Of one letter there is no byte; bits beyond the last byte have to be zero, or one signature had many forms.
        let (count, rest) = match group.len() {
            4 => (3, 0),
            3 => (2, 2),
            2 => (1, 4),
            _ => return None,
        };
        if bits & ((1 << rest) - 1) != 0 {
            return None;
        }
        let whole = (bits >> rest).to_be_bytes();
        bytes.extend_from_slice(&whole[4 - count..]);
    }
    Some(bytes)
}

fn value(letter: u8) -> Option<u8> {
    Some(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_rfc_4648_and_what_is_none() {
        for (text, bytes) in
            [("", ""), ("Zg", "f"), ("Zm8", "fo"), ("Zm9v", "foo"), ("Zm9vYmFy", "foobar")]
        {
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        assert_eq!(decode(b"-_8").as_deref(), Some(&[0xfb, 0xff][..]));
        for wrong in ["Z", "Zh", "Zm9", "Zg==", "+/8", "Zm 9", "Zm9vY"] {
            assert_eq!(decode(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
