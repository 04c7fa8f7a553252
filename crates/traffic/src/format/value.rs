//! Parses values of fields: numbers, durations, request lines; decodes escapes.

use crate::entry::{LogEntry, ROLES, Role, Span};

/// Decodes the escapes of servers for bytes that would break a line (`\"`, `\\`, `\n`, `\xHH`, `\uHHHH`), in place: the
/// text only gets shorter. Other backslashes stay.
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
                // Six or more bytes became at most four.
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

/// Decodes `\uHHHH`, or two of them that form one character; returns it with their length.
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

/// A number of digits only, perhaps after a `+`.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"+").unwrap_or(text);
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits.iter().try_fold(0, |n, b| b.is_ascii_digit().then(|| n * 10 + u64::from(b - b'0')))
}

/// A duration in units of this many µs, perhaps with decimals.
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

/// nginx's lists: an item per upstream server (`, `) and per group of them (` : `). An item may be `-`.
pub(crate) fn is_list(text: &[u8], is_item: impl Fn(&[u8]) -> bool) -> bool {
    let mut rest = text;
    loop {
        let end = rest.windows(2).position(|two| two == b", " || two == b" :").unwrap_or(rest.len());
        let item = &rest[..end];
        if item != b"-" && !is_item(item) {
            return false;
        }
        if end == rest.len() {
            return true;
        }
        let separator = if rest[end] == b',' { 2 } else { 3 };
        if separator == 3 && rest.get(end + 2) != Some(&b' ') {
            return false;
        }
        rest = &rest[end + separator..];
    }
}

/// Three digits.
pub(crate) fn is_status(text: &[u8]) -> bool {
    text.len() == 3 && text.iter().all(u8::is_ascii_digit)
}

/// Digits, a point, digits.
pub(crate) fn is_decimal(text: &[u8]) -> bool {
    let Some(point) = memchr::memchr(b'.', text) else { return false };
    let digits = |text: &[u8]| !text.is_empty() && text.len() <= 15 && text.iter().all(u8::is_ascii_digit);
    digits(&text[..point]) && digits(&text[point + 1..])
}

fn parsed<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Whether it is an IP address.
pub(crate) fn is_address(text: &[u8]) -> bool {
    text.iter().any(|b| matches!(b, b'.' | b':')) && parsed::<std::net::IpAddr>(text).is_some()
}

/// `10.0.0.1:80`, `[::1]:80`, `unix:/run/app.sock`, or the name of a group.
pub(crate) fn is_peer(text: &[u8]) -> bool {
    text.starts_with(b"unix:") || is_client(text)
}

/// A host name, an address, either with a port, or `-`. A name has a letter: a bare number does not match.
pub(crate) fn is_client(text: &[u8]) -> bool {
    // Some old resolvers wrote names in their own character set.
    let in_name = |b: &u8| b.is_ascii_alphanumeric() || b"-._*?%~".contains(b) || !b.is_ascii();
    if text.iter().all(in_name) {
        let number = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
        return !number(text) && (text.contains(&b'.') || !text.starts_with(b"-") || text == b"-") && !is_decimal(text);
    }
    if text == b"unix:" {
        return true;
    }
    let Some(colon) = memchr::memrchr(b':', text) else { return false };
    let (host, port) = (&text[..colon], &text[colon + 1..]);
    let is_port = (1..=5).contains(&port.len()) && port.iter().all(u8::is_ascii_digit);
    if is_port && !host.contains(&b':') {
        return is_client(host);
    }
    // A zone may follow: fe80::1%eth0.
    let address = text.split(|b| *b == b'%').next().unwrap_or_default();
    parsed::<std::net::Ipv6Addr>(address).is_some()
        || (is_port && host.first() == Some(&b'[') && parsed::<std::net::SocketAddrV6>(text).is_some())
}

/// A client's address without the port that some formats append.
pub(crate) fn without_port(line: &[u8], span: Span) -> Span {
    let text = span.of(line);
    let Some(colon) = memchr::memrchr(b':', text) else { return span };
    let (start, end) = (span.start as usize, span.start as usize + colon);
    match text {
        [b'[', ..] if text[..colon].ends_with(b"]") => Span::new(start + 1, end - 1),
        _ if text[..colon].contains(&b':') || text == b"unix:" => span,
        _ => Span::new(start, end),
    }
}

/// The first of several addresses, `203.0.113.7, 10.0.0.1`.
pub(crate) fn first_of_list(line: &[u8], span: Span) -> Span {
    let text = span.of(line);
    let end = memchr::memchr(b',', text).unwrap_or(text.len());
    without_port(line, Span::new(span.start as usize, span.start as usize + end))
}

/// A user's name: one word, or several of letters, as in `Ann Lee`. Words with other characters are shifted fields.
pub(crate) fn is_user(text: &[u8]) -> bool {
    if !text.contains(&b' ') {
        return !text.is_empty() && !is_address(text);
    }
    let is_name = |word: &[u8]| {
        let moved = |b: &u8| matches!(b, b':' | b'/' | b'[' | b']' | b'|' | b'=' | b'"' | b',');
        !word.is_empty() && word.iter().any(u8::is_ascii_alphabetic) && !word.iter().any(moved) && !is_address(word)
    };
    text.split(|b| *b == b' ').all(is_name)
}

/// A whole request line, `GET /path HTTP/1.1`.
pub(crate) fn is_request_line(text: &[u8]) -> bool {
    let mut words = text.split(|b| *b == b' ');
    let method = words.next().unwrap_or_default();
    let is_method = !method.is_empty() && method.iter().all(|b| b.is_ascii_uppercase() || *b == b'-' || *b == b'_');
    is_method
        && words.next().is_some_and(|target| !target.is_empty())
        && words.next_back().is_some_and(|p| p.starts_with(b"HTTP/"))
}

/// A path, a URL, the authority of CONNECT, or `-`.
pub(crate) fn is_target(text: &[u8]) -> bool {
    matches!(text, b"-" | b"*") || text.first() == Some(&b'/') || (text.contains(&b':') && !text.starts_with(b" "))
}

/// One duration, or the sum of nginx's list of them, `0.010, 0.020 : 0.005`; `None` if there is none in it.
pub(crate) fn times(text: &[u8], unit_us: u32) -> Option<u64> {
    if let Some(one) = time(text, unit_us) {
        return Some(one);
    }
    let parts = text.split(|b| b",: ".contains(b)).filter_map(|part| time(part, unit_us));
    parts.fold(None, |sum, part| Some(sum.unwrap_or(0u64).saturating_add(part)))
}

/// Splits a request line, `GET /a b HTTP/1.0`; HTTP/0.9 has no protocol. Other text has neither method nor target.
pub(crate) fn request_line(line: &[u8], span: Span, roles: &mut [Span; ROLES]) {
    let line = span.of(line);
    let Some(blank) = memchr::memchr(b' ', line) else { return };
    let rest = &line[blank + 1..];
    let (target, protocol) = match memchr::memrchr(b' ', rest) {
        Some(at) if rest[at + 1..].starts_with(b"HTTP/") => (at, Some(at + 1)),
        _ => (rest.len(), None),
    };
    // Extra blanks around the target have no meaning.
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

/// Converts the time at which a request ended into that at which it arrived. Only whole units of the time's resolution
/// are subtracted.
pub(crate) fn begin(entry: &mut LogEntry) {
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
            let mut entry = LogEntry { line: line.as_bytes().to_vec(), ..LogEntry::default() };
            request_line(line.as_bytes(), Span::new(0, line.len()), &mut entry.roles);
            let text = |t: Option<&[u8]>| t.map(|t| String::from_utf8_lossy(t).into_owned());
            assert_eq!(text(entry.method()).as_deref(), method, "{line}");
            assert_eq!(text(entry.path()).as_deref(), target, "{line}");
            assert_eq!(text(entry.protocol()).as_deref(), protocol, "{line}");
        }
    }
}
