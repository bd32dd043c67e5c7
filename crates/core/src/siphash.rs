//! SipHash-2-4 (Aumasson and Bernstein, 2012): a short keyed hash that an outsider without the key
//! can neither predict nor steer.

/// The hash of `data` under a 128-bit key.
pub fn siphash(key: [u64; 2], data: &[u8]) -> u64 {
    // The paper's constants spell "somepseudorandomlygeneratedbytes".
    let mut state = State([
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ]);
    let (words, rest) = data.as_chunks::<8>();
    for word in words {
        state.absorb(u64::from_le_bytes(*word));
    }
    // The last word holds what is left, and the length modulo 256 in its top byte.
    let length = (data.len() as u64) << 56;
    state.absorb(rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)) | length);
    state.0[2] ^= 0xff;
    (0..4).for_each(|_| state.round());
    state.0.into_iter().fold(0, |hash, word| hash ^ word)
}

struct State([u64; 4]);

impl State {
    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.round();
        self.0[0] ^= word;
    }

    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        a = a.wrapping_add(b);
        c = c.wrapping_add(d);
        b = b.rotate_left(13) ^ a;
        d = d.rotate_left(16) ^ c;
        a = a.rotate_left(32);
        c = c.wrapping_add(b);
        a = a.wrapping_add(d);
        b = b.rotate_left(17) ^ c;
        d = d.rotate_left(21) ^ a;
        c = c.rotate_left(32);
        self.0 = [a, b, c, d];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors published with the reference implementation: key 00 01 … 0f, input 00 01 … of
    /// the given length.
    #[test]
    fn the_published_vectors() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let input: Vec<u8> = (0..15).collect();
        for (length, expected) in [
            (0, 0x726f_db47_dd0e_0e31),
            (1, 0x74f8_39c5_93dc_67fd),
            (2, 0x0d6c_8009_d9a9_4f5a),
            (3, 0x8567_6696_d7fb_7e2d),
            (15, 0xa129_ca61_49be_45e5),
        ] {
            assert_eq!(siphash(key, &input[..length]), expected, "length {length}");
        }
    }
}
