//! Values of fields: numbers, times that something took, request lines; escapes undone.

use crate::entry::{Entry, ROLES, Role, Span};

/// Undoes what servers do to bytes that would break a line (`\"`, `\\`, `\n`, `\xHH`, `\uHHHH`), in place: it only becomes
/// shorter. Other backslashes stay.
pub(crate) fn unescape(line: &mut [u8], span: &mut Span) {
    let (start, end) = (span.start as usize, span.end as usize);
    let Some(text) = line.get_mut(start..end) else { return };
    let Some(first) = memchr::memchr(b'\\', text) else { return };
    let (mut from, mut to) = (first, first);
    while from < text.len() {
        if text[from] != b'\\' {
            text[to] = text[from];
            (from, to) = (from + 1, to + 1);
            continue;
        }
        let (byte, length) = match text.get(from + 1) {
            Some(b'n') => (b'\n', 2),
            Some(b't') => (b'\t', 2),
            Some(b'r') => (b'\r', 2),
            Some(b'b') => (8, 2),
            Some(b'f') => (12, 2),
            Some(b'v') => (11, 2),
            Some(b @ (b'"' | b'\\' | b'/' | b'\'')) => (*b, 2),
            Some(b'x') => match hex(text, from + 2, 2) {
                Some(n) => (n as u8, 4),
                None => (b'\\', 1),
            },
            Some(b'u') => {
                let Some((c, length)) = character(text, from) else {
                    text[to] = b'\\';
                    (from, to) = (from + 1, to + 1);
                    continue;
                };
                let mut utf8 = [0; 4];
                let utf8 = c.encode_utf8(&mut utf8).as_bytes();
                // Six bytes and more became at most four.
                text[to..to + utf8.len()].copy_from_slice(utf8);
                (from, to) = (from + length, to + utf8.len());
                continue;
            }
            _ => (b'\\', 1),
        };
        text[to] = byte;
        (from, to) = (from + length, to + 1);
    }
    span.end = (start + to) as u32;
}

fn hex(text: &[u8], at: usize, length: usize) -> Option<u32> {
    let digits = text.get(at..at + length)?;
    digits.iter().try_fold(0, |n, b| char::from(*b).to_digit(16).map(|d| n * 16 + d))
}

/// `\uHHHH`, or two of them that are one character, and their length.
fn character(text: &[u8], at: usize) -> Option<(char, usize)> {
    let first = hex(text, at + 2, 4)?;
    if (0xd800..0xdc00).contains(&first)
        && text.get(at + 6..at + 8) == Some(b"\\u")
        && let Some(second @ 0xdc00..0xe000) = hex(text, at + 8, 4)
    {
        return char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)).map(|c| (c, 12));
    }
    Some((char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER), 6))
}

/// A number of digits alone, perhaps after a `+`.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"+").unwrap_or(text);
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits.iter().try_fold(0, |n, b| b.is_ascii_digit().then(|| n * 10 + u64::from(b - b'0')))
}

/// A time in units of so many µs, perhaps with decimals.
pub(crate) fn time(text: &[u8], unit_us: u32) -> Option<u64> {
    let point = text.iter().position(|b| *b == b'.').unwrap_or(text.len());
    let whole = number(&text[..point])?.checked_mul(u64::from(unit_us))?;
    let decimals = text.get(point + 1..).unwrap_or_default();
    let mut part_us = 0.0;
    let mut unit = f64::from(unit_us);
    for b in decimals.iter().take(9) {
        if !b.is_ascii_digit() {
            return None;
        }
        unit /= 10.0;
        part_us += f64::from(b - b'0') * unit;
    }
    whole.checked_add(part_us.round() as u64)
}

/// One time, or nginx's list of them, `0.010, 0.020 : 0.005`: their sum. None where there is none in it.
pub(crate) fn times(text: &[u8], unit_us: u32) -> Option<u64> {
    if let Some(one) = time(text, unit_us) {
        return Some(one);
    }
    let parts = text.split(|b| b",: ".contains(b)).filter_map(|part| time(part, unit_us));
    parts.fold(None, |sum, part| Some(sum.unwrap_or(0u64).saturating_add(part)))
}

/// Takes a request line apart: `GET /a b HTTP/1.0`; of HTTP/0.9 there is no protocol. What is none has neither method nor target.
pub(crate) fn request_line(line: &[u8], span: Span, roles: &mut [Span; ROLES]) {
    let line = span.of(line);
    let Some(blank) = memchr::memchr(b' ', line) else { return };
    let rest = &line[blank + 1..];
    let (target, protocol) = match memchr::memrchr(b' ', rest) {
        Some(at) if rest[at + 1..].starts_with(b"HTTP/") => (at, Some(at + 1)),
        _ => (rest.len(), None),
    };
    // A client that sends blanks around it means the same.
    let trimmed = rest[..target].trim_ascii();
    let ahead = rest[..target].len() - rest[..target].trim_ascii_start().len();
    let start = span.start as usize;
    let from = start + blank + 1;
    let places = [
        (Role::Method, Span::new(start, start + blank)),
        (Role::Target, Span::new(from + ahead, from + ahead + trimmed.len())),
        (Role::Protocol, protocol.map_or(Span::default(), |at| Span::new(from + at, span.end as usize))),
    ];
    for (role, place) in places {
        roles[role as usize] = place;
    }
}

/// Makes of the time at which a request ended that at which it came. What the time is not known to, is not taken off.
pub(crate) fn begin(entry: &mut Entry) {
    let resolution = u64::from(entry.resolution_us.max(1));
    if let Some(took) = entry.server_us {
        entry.time_us = entry.time_us.saturating_sub_unsigned(took / resolution * resolution);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone_in_place() {
        for (written, meant) in [
            (r#"a\"b\\c"#, &b"a\"b\\c"[..]),
            (r"\x22\xff\n", b"\"\xff\n"),
            (r"\u00e9\ud83d\ude00", "é😀".as_bytes()),
            (r"\q\x1\u12", br"\q\x1\u12"),
            (r"\", br"\"),
            (r"\ud83d", "\u{fffd}".as_bytes()),
            ("plain", b"plain"),
        ] {
            let mut line = written.as_bytes().to_vec();
            let mut span = Span::new(0, line.len());
            unescape(&mut line, &mut span);
            assert_eq!(span.of(&line), meant, "{written}");
        }
    }

    #[test]
    fn times_are_numbers_and_lists() {
        for (text, unit, us) in [
            ("0.123", 1_000_000, Some(123_000)),
            ("1500", 1, Some(1_500)),
            ("12", 1_000, Some(12_000)),
            ("0.000929675", 1_000_000, Some(930)),
            ("-", 1_000_000, None),
            ("", 1, None),
            ("-1", 1_000, None),
            ("0.010, 0.020 : 0.005", 1_000_000, Some(35_000)),
            ("-, 0.020", 1_000_000, Some(20_000)),
            ("99999999999999999999", 1, None),
            ("1e9", 1, None),
        ] {
            assert_eq!(times(text.as_bytes(), unit), us, "{text}");
        }
    }

    #[test]
    fn request_lines_of_all_ages_are_taken_apart() {
        for (line, method, target, protocol) in [
            ("GET / HTTP/1.1", Some("GET"), Some("/"), Some("HTTP/1.1")),
            ("GET /old.html", Some("GET"), Some("/old.html"), None),
            ("GET /a b.html HTTP/1.0", Some("GET"), Some("/a b.html"), Some("HTTP/1.0")),
            ("GET  /x  HTTP/1.0", Some("GET"), Some("/x"), Some("HTTP/1.0")),
            ("\u{16}\u{3}\u{1}", None, None, None),
            ("-", None, None, None),
            ("GET ", Some("GET"), None, None),
        ] {
            let mut entry = Entry { line: line.as_bytes().to_vec(), ..Entry::default() };
            request_line(line.as_bytes(), Span::new(0, line.len()), &mut entry.roles);
            let text = |t: Option<&[u8]>| t.map(|t| String::from_utf8_lossy(t).into_owned());
            assert_eq!(text(entry.method()).as_deref(), method, "{line}");
            assert_eq!(text(entry.path()).as_deref(), target, "{line}");
            assert_eq!(text(entry.protocol()).as_deref(), protocol, "{line}");
        }
    }
}
