//! The Huffman code of HPACK (RFC 7541 appendix B). The code is canonical: the lengths alone determine it.

/// Bits of each byte's code; the last is the end of a string, which is never written.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];
const END: usize = 256;
const LONGEST: usize = 30;

/// The code of each symbol, in its lowest bits.
const CODES: [u32; 257] = {
    let mut codes = [0; 257];
    let (mut code, mut length) = (0u32, 1);
    while length <= LONGEST {
        code <<= 1;
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] as usize == length {
                codes[symbol] = code;
                code += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    codes
};

/// A node of the decoding tree: for each next bit another node, or a symbol as its complement.
const TREE: [[i16; 2]; 256] = {
    let mut tree = [[0i16; 2]; 256];
    let mut nodes = 1;
    let mut symbol = 0;
    while symbol < 257 {
        let mut at = 0;
        let mut left = LENGTHS[symbol] as usize;
        while left > 1 {
            left -= 1;
            let bit = (CODES[symbol] >> left & 1) as usize;
            if tree[at][bit] == 0 {
                tree[at][bit] = nodes;
                nodes += 1;
            }
            at = tree[at][bit] as usize;
        }
        tree[at][(CODES[symbol] & 1) as usize] = !(symbol as i16);
        symbol += 1;
    }
    tree
};

/// Bytes that a text has when encoded.
pub fn encoded_length(text: &[u8]) -> usize {
    text.iter().map(|b| usize::from(LENGTHS[usize::from(*b)])).sum::<usize>().div_ceil(8)
}

pub fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut filled) = (0u64, 0);
    for b in text {
        let symbol = usize::from(*b);
        let length = u32::from(LENGTHS[symbol]);
        bits = bits << length | u64::from(CODES[symbol]);
        filled += length;
        while filled >= 8 {
            filled -= 8;
            out.push((bits >> filled) as u8);
        }
    }
    if filled > 0 {
        // The beginning of the end symbol, which is all ones.
        out.push((bits << (8 - filled)) as u8 | (0xff >> filled));
    }
}

/// Decodes a text of at most `most` bytes. `None`: it is longer, has the end symbol, or is padded with anything but up
/// to seven ones (RFC 7541 section 5.2).
pub fn decode(coded: &[u8], most: usize, out: &mut Vec<u8>) -> Option<()> {
    let begin = out.len();
    let (mut at, mut pending, mut ones) = (0usize, 0, true);
    for byte in coded {
        for shift in (0..8).rev() {
            let bit = usize::from(byte >> shift & 1);
            pending += 1;
            ones &= bit == 1;
            let next = TREE[at][bit];
            if next > 0 {
                at = next as usize;
                continue;
            }
            let symbol = !next as usize;
            if symbol == END || out.len() - begin == most {
                return None;
            }
            out.push(symbol as u8);
            (at, pending, ones) = (0, 0, true);
        }
    }
    (pending < 8 && ones).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_rfc() {
        let code = |b: u8| (CODES[usize::from(b)], LENGTHS[usize::from(b)]);
        assert_eq!((code(b'0'), code(b'a'), code(b'|')), ((0, 5), (3, 5), (0x7fc, 11)));
        assert_eq!((code(0), code(255), CODES[END]), ((0x1ff8, 13), (0x3ff_ffee, 26), 0x3fff_ffff));
        let mut out = Vec::new();
        encode(b"www.example.com", &mut out);
        assert_eq!(out, [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff]);
        assert_eq!(encoded_length(b"www.example.com"), 12);
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        for n in 0..all.len() {
            let (mut coded, mut out) = (Vec::new(), Vec::new());
            encode(&all[n..], &mut coded);
            assert_eq!(coded.len(), encoded_length(&all[n..]));
            decode(&coded, 256, &mut out).expect("valid");
            assert_eq!(out, all[n..]);
        }
    }

    #[test]
    fn wrong_padding_and_the_end_symbol_are_refused() {
        let decoded = |coded: &[u8]| decode(coded, 10, &mut Vec::new());
        assert!(decoded(&[0b0000_0111]).is_some());
        // Zeroes, a whole byte of ones, the end symbol, too long.
        assert!(decoded(&[0b0000_0000]).is_none());
        assert!(decoded(&[0b0000_0111, 0xff]).is_none());
        assert!(decoded(&[0xff, 0xff, 0xff, 0xff]).is_none());
        assert!(decoded(&[0; 10]).is_none());
    }
}
