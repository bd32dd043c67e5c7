//! nkeys: Ed25519 keys as text, and what a client proves by one. It signs the nonce of INFO, and its CONNECT has its
//! public key and the signature.
//!
//! A public key is base32 (RFC 4648, without padding) of a byte for its kind, 32 bytes, and a checksum of two (CRC-16 of
//! XMODEM, little endian).

use std::fmt;
use std::str::FromStr;

use ring::signature::{ED25519, UnparsedPublicKey};

/// The kind of users: their keys begin with `U`.
const USER: u8 = 20 << 3;

/// A user's public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserKey([u8; 32]);

impl UserKey {
    /// Whether `signature`, in base64 of either alphabet, is this key's of `nonce`.
    pub fn has_signed(&self, nonce: &[u8], signature: &str) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, &self.0);
        base64(signature).is_some_and(|bytes| key.verify(nonce, &bytes).is_ok())
    }
}

impl From<[u8; 32]> for UserKey {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl FromStr for UserKey {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no public key of a user: `U` and 55 letters and digits");
        let bytes = base32(text).filter(|bytes| bytes.len() == 35).ok_or_else(wrong)?;
        let (body, sum) = bytes.split_at(33);
        if body[0] != USER || crc16(body).to_le_bytes() != sum {
            return Err(wrong());
        }
        let key = body[1..].try_into().map_err(|_| wrong())?;
        Ok(Self(key))
    }
}

impl fmt::Display for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![USER];
        bytes.extend_from_slice(&self.0);
        bytes.extend_from_slice(&crc16(&bytes).to_le_bytes());
        let (mut kept, mut bits) = (0u32, 0);
        for byte in bytes {
            (kept, bits) = (kept << 8 | u32::from(byte), bits + 8);
            while bits >= 5 {
                bits -= 5;
                let letter = BASE32[(kept >> bits & 31) as usize];
                write!(f, "{}", char::from(letter))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

fn base32(text: &str) -> Option<Vec<u8>> {
    decode(text, 5, |at| BASE32.iter().position(|letter| *letter == at))
}

/// Of the usual alphabet or the one for addresses, with padding or without.
fn base64(text: &str) -> Option<Vec<u8>> {
    decode(text.trim_end_matches('='), 6, |at| match at {
        b'A'..=b'Z' => Some(usize::from(at - b'A')),
        b'a'..=b'z' => Some(usize::from(at - b'a') + 26),
        b'0'..=b'9' => Some(usize::from(at - b'0') + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    })
}

/// Digits of so many bits each; bits that fill no byte have to be none.
fn decode(text: &str, width: u32, digit: impl Fn(u8) -> Option<usize>) -> Option<Vec<u8>> {
    let (mut kept, mut bits, mut bytes) = (0u32, 0, Vec::new());
    for at in text.bytes() {
        (kept, bits) = (kept << width | digit(at)? as u32, bits + width);
        if bits >= 8 {
            bits -= 8;
            bytes.push((kept >> bits) as u8);
            kept &= (1 << bits) - 1;
        }
    }
    (bits < width && kept == 0).then_some(bytes)
}

/// CRC-16 as XMODEM has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum: u16, byte| {
        (0..8).fold(sum ^ u16::from(*byte) << 8, |sum, _| {
            if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// From the documentation of nats-server.
    const KEY: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

    #[test]
    fn a_key_of_the_documentation_is_one_and_a_changed_one_is_none() {
        let key: UserKey = KEY.parse().expect("a key");
        assert_eq!(key.to_string(), KEY);
        for at in 0..KEY.len() {
            let mut other = KEY.as_bytes().to_vec();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).expect("letters");
            assert!(other.parse::<UserKey>().is_err(), "{other}");
        }
        assert!("".parse::<UserKey>().is_err() && KEY.to_lowercase().parse::<UserKey>().is_err());
    }

    #[test]
    fn base64_of_either_alphabet_is_read() {
        for (text, bytes) in [("", &b""[..]), ("_-8=", b"\xff\xef"), ("/+8", b"\xff\xef")] {
            assert_eq!(base64(text).as_deref(), Some(bytes), "{text}");
        }
        for text in ["A", "AB", "A B=", "\u{e9}"] {
            assert_eq!(base64(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(text in ".{0,80}", nonce in ".{0,9}") {
            let key: UserKey = KEY.parse().expect("a key");
            prop_assert!(!key.has_signed(nonce.as_bytes(), &text));
            let _ = text.parse::<UserKey>();
        }

        #[test]
        fn keys_read_back(bytes in any::<[u8; 32]>()) {
            let key = UserKey(bytes);
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }
    }
}
