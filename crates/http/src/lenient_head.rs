//! Reads the head of an answer that violates RFC 9112, as leniently as the RFC permits a client to. It accepts folded
//! lines (section 5.2), blanks before a colon (5.1), and blanks in the status line (4). It also accepts a later minor
//! version (RFC 9110 section 2.5) and many fields. It runs only after the strict parser has refused, so that it costs
//! ordinary answers nothing.

use crate::ProtocolError;

/// Most bytes of a head. Apache's limits allow at most 800 KB, and real heads have a few KB.
pub const MOST_BYTES: usize = 256 * 1024;
pub const MOST_FIELDS: usize = 1000;

/// A complete head.
#[derive(Debug, PartialEq, Eq)]
pub struct LenientHead {
    pub bytes: usize,
    pub status: u16,
    pub http10: bool,
    /// Fields whose names are not tokens are left out; a folded value is one line.
    pub fields: Vec<(String, Vec<u8>)>,
}

/// Reads a head; `None` while its end has not arrived.
///
/// # Errors
/// The head is not valid; this may be found before its end.
pub fn read(data: &[u8]) -> Result<Option<LenientHead>, ProtocolError> {
    let mut lines = Lines { data, at: 0 };
    let status_line = loop {
        match lines.next() {
            // RFC 9112 section 2.2: empty lines before a message.
            Some([]) => {}
            Some(line) => break line,
            None => {
                let begun = data.trim_ascii_start();
                if begun.len() >= NAME.len() {
                    begins_well(begun)?;
                }
                return Ok(None);
            }
        }
    };
    let (http10, status) = read_status(status_line)?;
    let mut fields: Vec<(String, Vec<u8>)> = Vec::new();
    // A folded line belongs to the line before it, even if that one is left out.
    let mut is_kept = false;
    loop {
        let Some(line) = lines.next() else { return Ok(None) };
        match line {
            [] => return Ok(Some(LenientHead { bytes: lines.at, status, http10, fields })),
            [b' ' | b'\t', ..] => {
                if let (true, Some((_, value))) = (is_kept, fields.last_mut()) {
                    let more = cleaned(line);
                    if !value.is_empty() && !more.is_empty() {
                        value.push(b' ');
                    }
                    value.extend(more);
                }
            }
            _ => {
                let colon = line.iter().position(|b| *b == b':');
                let name = colon.map(|at| line[..at].trim_ascii_end()).filter(|name| is_token(name));
                is_kept = name.is_some();
                if let (Some(at), Some(name)) = (colon, name) {
                    if fields.len() == MOST_FIELDS {
                        return Err(ProtocolError("more than 1,000 header fields"));
                    }
                    fields.push((String::from_utf8_lossy(name).into_owned(), cleaned(&line[at + 1..])));
                }
            }
        }
    }
}

/// Lines up to their line feed, without it and the carriage return before it.
struct Lines<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.data.get(self.at..)?;
        let end = memchr::memchr(b'\n', rest)?;
        self.at += end + 1;
        Some(rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]))
    }
}

/// RFC 9110 section 5.5: a client may replace CR and NUL by blanks.
fn cleaned(value: &[u8]) -> Vec<u8> {
    let blank = |b: &u8| if matches!(b, b'\r' | 0) { b' ' } else { *b };
    value.trim_ascii().iter().map(blank).collect()
}

fn is_token(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

const NAME: &[u8] = b"HTTP/";

/// Judges an answer by its first five bytes, before its first line is complete; the result does not depend on how input
/// is split.
fn begins_well(data: &[u8]) -> Result<(), ProtocolError> {
    let n = data.len().min(NAME.len());
    if data[..n] == NAME[..n] {
        return Ok(());
    }
    Err(ProtocolError(match data {
        // A TLS alert or handshake.
        [0x15 | 0x16, 3, ..] => "an answer in TLS; is the URL to begin with https://?",
        [_, ..] if data[..n].eq_ignore_ascii_case(&NAME[..n]) => {
            "it begins with http/ in lower case, and the name of the protocol is HTTP/"
        }
        // The preface of HTTP/2 is a SETTINGS frame.
        [0, 0, _, 4, ..] => "an answer in HTTP/2, which is not spoken here",
        _ => "it does not begin with HTTP/",
    }))
}

fn read_status(line: &[u8]) -> Result<(bool, u16), ProtocolError> {
    begins_well(line.trim_ascii_start())?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let http10 = match words.next().unwrap_or_default() {
        b"HTTP/1.0" => true,
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1'..=b'9'] => false,
        version if version.starts_with(b"HTTP/2") => {
            return Err(ProtocolError("an answer in HTTP/2, which is not spoken here"));
        }
        _ => return Err(ProtocolError("a version that is neither HTTP/1.0 nor HTTP/1.1")),
    };
    match words.next() {
        Some([a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9']) => {
            Ok((http10, [a, b, c].iter().fold(0, |n, digit| n * 10 + u16::from(*digit - b'0'))))
        }
        _ => Err(ProtocolError("a status line without a status code of three digits")),
    }
}
