//! Bytes that are not UTF-8, inside a `String`. A command line or a file need not be UTF-8, and lastdrop sends its
//! bytes unchanged.
//!
//! A byte that is not UTF-8 is represented by a character of a private-use plane. If the input contains such a
//! character itself, each of its bytes is represented in the same way, so that nothing is lost in either direction.

use std::borrow::Cow;

/// The character that would represent the byte 0. Only bytes from 0x80 are represented.
const ZERO: u32 = 0x10_ff00;

/// Returns the text that represents these bytes.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    let stand_in = |byte: u8| char::from_u32(ZERO + u32::from(byte));
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match byte(c) {
                Some(_) => out.extend(c.encode_utf8(&mut [0; 4]).bytes().filter_map(stand_in)),
                None => out.push(c),
            }
        }
        out.extend(chunk.invalid().iter().copied().filter_map(stand_in));
    }
    out
}

/// Returns the bytes that a text represents.
#[must_use]
pub fn bytes(text: &str) -> Cow<'_, [u8]> {
    if !text.chars().any(|c| byte(c).is_some()) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut out = Vec::with_capacity(text.len());
    for c in text.chars() {
        match byte(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(out)
}

/// Returns the byte that a character represents.
#[must_use]
pub fn byte(c: char) -> Option<u8> {
    u8::try_from((c as u32).checked_sub(ZERO)?).ok().filter(|b| *b >= 0x80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost() {
        for all in [&b"abc"[..], b"", "é\u{10ffff}\u{10ff80}x".as_bytes(), b"a\xff\xfe\xc3", b"\xf4\x8f\xbe", b"\x80"]
        {
            assert_eq!(bytes(&text(all)).as_ref(), all);
        }
        assert_eq!(text("é".as_bytes()), "é");
    }
}
