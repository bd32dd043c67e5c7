//! Fields: a tag, a length, a value; numbers in as few bytes as they need.

use super::WireError;

/// The fields of a frame, an iterator over tags and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields<'a> {
    bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Fields as they stand in a frame.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u8, &'a [u8]), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        match *self.bytes {
            [] => None,
            [tag, length, ref rest @ ..] if rest.len() >= usize::from(length) => {
                let (value, rest) = rest.split_at(usize::from(length));
                self.bytes = rest;
                Some(Ok((tag, value)))
            }
            _ => {
                self.bytes = &[];
                Some(Err(WireError::Fields))
            }
        }
    }
}

/// Reads a number of at most eight bytes.
pub(super) fn int(value: &[u8]) -> Result<u64, WireError> {
    let mut bytes = [0; 8];
    bytes.get_mut(..value.len()).ok_or(WireError::Fields)?.copy_from_slice(value);
    Ok(u64::from_le_bytes(bytes))
}

/// The same for numbers of 32 bits: larger ones count as the largest.
pub(super) fn int32(value: &[u8]) -> Result<u32, WireError> {
    int(value).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

/// Appends a number.
pub fn put_int(out: &mut Vec<u8>, tag: u8, number: u64) {
    let length = 8 - number.leading_zeros() as usize / 8;
    out.push(tag);
    out.push(length as u8);
    out.extend_from_slice(&number.to_le_bytes()[..length]);
}

/// Appends a number unless it is zero, which an absent field means.
pub(super) fn put_count(out: &mut Vec<u8>, tag: u8, number: u64) {
    if number > 0 {
        put_int(out, tag, number);
    }
}

/// Appends bytes, of which a field holds 255 at most.
pub fn put_bytes(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u8::MAX))];
    out.push(tag);
    out.push(value.len() as u8);
    out.extend_from_slice(value);
}
