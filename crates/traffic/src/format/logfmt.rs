//! Parses `key=value` lines (logfmt): Heroku's router, lograge's default, Go's programs (Grafana, registries, Traefik's
//! loggers). The keys have the same meaning as in JSON.
//!
//! A line consists of pairs separated by blanks. A word without `=` does not match. A value with blanks is in quotes,
//! with the escapes of JSON; one without quotes ends at a blank.

use crate::entry::Span;

/// Passes each value from a position on, with its key. Returns where the line ends, or the error's position.
pub(super) fn walk(line: &[u8], at: usize, take: &mut dyn FnMut(Option<&[u8]>, Span)) -> Result<usize, usize> {
    let mut at = at;
    loop {
        let Some(key_length) = line[at..].iter().position(|b| !is_of_key(*b)) else { return Err(at) };
        let start = at + key_length + 1;
        if key_length == 0 || line[start - 1] != b'=' {
            return Err(at);
        }
        let key = &line[at..at + key_length];
        let end = if line.get(start) == Some(&b'"') {
            let end = super::json::end_of_text(line, start + 1)?;
            take(Some(key), Span::new(start + 1, end));
            end + 1
        } else {
            let rest = &line[start..];
            let length = rest.iter().position(|b| b.is_ascii_whitespace() || *b == b'"').unwrap_or(rest.len());
            take(Some(key), Span::new(start, start + length));
            start + length
        };
        let blanks = line[end..].iter().take_while(|b| b.is_ascii_whitespace()).count();
        at = end + blanks;
        if at == line.len() {
            return Ok(at);
        }
        if blanks == 0 {
            return Err(end);
        }
    }
}

fn is_of_key(b: u8) -> bool {
    !b.is_ascii_whitespace() && !b.is_ascii_control() && b != b'=' && b != b'"'
}

/// Whether the text begins like such a line.
pub(super) fn begins(text: &[u8]) -> bool {
    let key = text.iter().take_while(|b| is_of_key(**b)).count();
    key > 0 && text.get(key) == Some(&b'=')
}
