//! Bytes that are no text, inside of text: what a command line or a file says need not be UTF-8, and is sent as it is.
//!
//! A byte that is not part of UTF-8 stands as a character of a private plane that nobody writes; whoever does write one has
//! its bytes stand for themselves in the same way, so that nothing is lost in either direction.

use std::borrow::Cow;

/// The byte 0 would be this character; only 0x80 and above are needed.
const ZERO: u32 = 0x10_ff00;

/// The text that stands for these bytes.
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

/// The bytes that a text stands for.
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

/// The byte that a character stands for.
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
