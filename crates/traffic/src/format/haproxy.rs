//! HAProxy: `option httplog` (and httpslog), and the text of a `log-format`. Lines of `option tcplog` and HAProxy's own
//! messages are not requests.

use super::apache::push;
use super::pattern::{DurationKind, Field, Mismatch, Notation, Pattern, Piece};
use crate::entry::{LogEntry, Role};
use crate::time::TimeForm;

const PROGRAM: &[u8] = b"haproxy[";

/// From the manual of HAProxy 2.6, section 8.2.3. `option logasap` writes before an answer is complete, with a `+`
/// before growing values.
const HTTPLOG: &str =
    r#"%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS %tsc %ac/%fc/%bc/%sc/%rc %sq/%bq %hr %hs %{+Q}r"#;

pub(super) fn pattern() -> Result<Pattern, String> {
    // httpslog has more fields after these.
    read_format(HTTPLOG).map(|pattern| Pattern { open: true, ..pattern })
}

/// Whether the line is a request; `at` is where HAProxy's own text begins.
pub(super) fn read(pattern: &Pattern, entry: &mut LogEntry, at: usize) -> Result<bool, Mismatch> {
    let line = entry.line.get(at..).unwrap_or_default();
    let program = memchr::memmem::find(line, PROGRAM);
    let message =
        program.and_then(|start| memchr::memmem::find(&line[start..], b"]: ").map(|end| at + start + end + 3));
    let is_prefixed = message.is_some() || at > 0;
    // If HAProxy writes to a file or to stdout, nothing precedes it.
    match pattern.read(entry, message.unwrap_or(at)) {
        Ok(()) => Ok(true),
        Err(_) if is_prefixed && memchr::memchr(b'"', &entry.line).is_none() => Ok(false),
        Err(misfit) => Err(misfit),
    }
}

/// Whether the text of a format is HAProxy's. Apache has no variables of two letters, and no expressions in brackets.
pub(super) fn is_format(text: &str) -> bool {
    ["%ci", "%ST", "%HM", "%HU", "%HP", "%[", "%{+", "%{-", "%tsc"].iter().any(|mark| text.contains(mark))
}

/// Parses the text of a `log-format`.
///
/// # Errors
/// The variable that is not supported.
pub(super) fn read_format(text: &str) -> Result<Pattern, String> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut before = Vec::new();
    let mut all_quoted = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c == '\\' {
            let escaped = rest.chars().next().unwrap_or('\\');
            rest = rest.get(escaped.len_utf8()..).unwrap_or_default();
            push(escaped, &mut before);
            continue;
        }
        if c != '%' {
            push(c, &mut before);
            continue;
        }
        if let Some(after) = rest.strip_prefix('%') {
            before.push(b'%');
            rest = after;
            continue;
        }
        let mut quoted = all_quoted;
        let mut flags = "";
        if let Some((inside, after)) = rest.strip_prefix('{').and_then(|r| r.split_once('}')) {
            flags = inside;
            rest = after;
        }
        for flag in flags.split(',') {
            match flag.trim() {
                "+Q" => quoted = true,
                "-Q" => quoted = false,
                _ => {}
            }
        }
        let (name, field) = if let Some(inside) = rest.strip_prefix('[') {
            let end = end_of_expression(inside).ok_or("an expression %[…] is not closed")?;
            rest = &inside[end + 1..];
            let expression = &inside[..end];
            let field = if expression == "src" { Field::Text(Role::Client) } else { Field::Free };
            (format!("%[{expression}]"), Some(field))
        } else {
            let length = rest.bytes().take(3).take_while(u8::is_ascii_alphabetic).count();
            let known = (1..=length).rev().find_map(|n| Some((&rest[..n], variable(&rest[..n])?)));
            let (name, field) = known.ok_or_else(|| format!("%{} is no variable of HAProxy", &rest[..length]))?;
            rest = &rest[name.len()..];
            (format!("%{name}"), field)
        };
        // %o only sets flags for the variables after it.
        let Some(field) = field else {
            all_quoted = quoted;
            continue;
        };
        if quoted {
            before.push(b'"');
        }
        // A name and the text after it in the same word form one word.
        pieces.push(Piece { before: std::mem::take(&mut before), field, name });
        if quoted {
            before.push(b'"');
        }
    }
    Ok(Pattern { pieces, tail: before, open: false, stamped_at_end: false })
}

/// Finds the closing bracket of an expression.
fn end_of_expression(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices().find_map(|(at, c)| {
        match c {
            '[' | '(' => depth += 1,
            ')' => depth -= 1,
            ']' if depth == 0 => return Some(at),
            ']' => depth -= 1,
            _ => {}
        }
        None
    })
}

/// The field of a variable. The inner `None` is for one that writes nothing, the outer for an unknown name (section
/// 8.2.6 of the manual).
fn variable(name: &str) -> Option<Option<Field>> {
    let ms = |what| Field::Took(what, 1_000, Notation::Whole);
    Some(Some(match name {
        "o" => return Some(None),
        "ci" => Field::Text(Role::Client),
        "cp" | "bp" | "fp" | "sp" | "ac" | "fc" | "bc" | "sc" | "rc" | "sq" | "bq" | "lc" | "rt" | "pid" | "U" => {
            Field::Digits
        }
        "t" | "tr" | "T" | "Tl" | "trg" | "trl" => Field::Time(TimeForm::Common),
        "Ts" => Field::Time(TimeForm::Epoch(1_000_000)),
        "ms" => Field::Time(TimeForm::Fraction(1_000)),
        "Tw" => ms(DurationKind::Queue),
        "Tr" => ms(DurationKind::Upstream),
        "Ta" | "Tt" => ms(DurationKind::Server),
        "TR" | "Tc" | "Td" | "Th" | "Ti" | "Tq" | "Tu" => Field::Elapsed,
        "ST" => Field::Status,
        "B" => Field::Bytes,
        "hr" | "hs" => Field::Captured,
        "r" => Field::RequestLine,
        "HM" => Field::Text(Role::Method),
        "HP" | "HU" | "HPO" => Field::Text(Role::Target),
        "HQ" => Field::Text(Role::Query),
        "HV" => Field::Text(Role::Protocol),
        "H" | "ID" | "CC" | "CS" | "b" | "s" | "f" | "ft" | "bi" | "fi" | "si" | "ts" | "tsc" | "sslv" | "sslc" => {
            Field::Other
        }
        "hrl" | "hsl" => Field::Free,
        _ => return None,
    }))
}
