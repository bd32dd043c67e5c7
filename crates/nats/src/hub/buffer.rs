//! Bytes that wait to be written.

/// Kept for the next bytes when all were written; what is larger is given back.
const KEPT: usize = 64 << 10;

/// Bytes in, bytes out, in order.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// How many of them were written already.
    written: usize,
}

impl Buffer {
    /// What is to be written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// How much is to be written.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `count` bytes were written.
    pub fn wrote(&mut self, count: usize) {
        self.written = (self.written + count).min(self.bytes.len());
        if self.is_empty() {
            self.written = 0;
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
        } else if self.written > self.bytes.len() / 2 && self.written > KEPT {
            // Moving what is left costs less than what was written since.
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    /// Where to append.
    pub fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_order(steps in prop::collection::vec((0..200_000usize, 0..200_000usize), 0..20)) {
            let (mut buffer, mut next, mut out) = (Buffer::default(), 0u32, 0u32);
            for (more, less) in steps {
                for _ in 0..more / 4 {
                    buffer.end().extend_from_slice(&next.to_le_bytes());
                    next += 1;
                }
                let count = less.min(buffer.len()) / 4 * 4;
                for four in buffer.bytes()[..count].chunks(4) {
                    prop_assert_eq!(four, &out.to_le_bytes()[..]);
                    out += 1;
                }
                buffer.wrote(count);
                prop_assert_eq!(buffer.len(), 4 * (next - out) as usize);
            }
        }
    }
}
