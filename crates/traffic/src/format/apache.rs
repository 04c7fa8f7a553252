//! Parses Apache's LogFormat (mod_log_config) into a pattern.

use super::pattern::{DurationKind, Field, Notation, Pattern, Piece};
use crate::entry::Role;
use crate::time::TimeForm;

/// Parses the text of a LogFormat.
///
/// # Errors
/// The directive that is not supported.
pub(super) fn read(text: &str) -> Result<Pattern, String> {
    let mut pieces = Vec::new();
    let mut before = Vec::new();
    let mut stamped_at_end = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => before.push(b'\n'),
                Some('t') => before.push(b'\t'),
                Some(c) => push(c, &mut before),
                None => before.push(b'\\'),
            },
            '%' if chars.peek() == Some(&'%') => {
                chars.next();
                before.push(b'%');
            }
            '%' => {
                let mut name = String::from("%");
                // The statuses for which the field is written, and which of several requests it is about.
                while let Some(c) = chars.next_if(|c| matches!(c, '!' | '<' | '>' | ',') || c.is_ascii_digit()) {
                    name.push(c);
                }
                let mut argument = None;
                if chars.next_if_eq(&'{').is_some() {
                    let inside: String = chars.by_ref().take_while(|c| *c != '}').collect();
                    name.push_str(&format!("{{{inside}}}"));
                    argument = Some(inside);
                }
                let letter = chars.next().ok_or_else(|| format!("{name} has no letter"))?;
                name.push(letter);
                if letter == '^' {
                    name.extend(chars.by_ref().take(2));
                }
                if letter == 't' && argument.as_deref().is_some_and(|a| a.starts_with("end:")) {
                    stamped_at_end = true;
                }
                if letter == 't' && argument.is_none() {
                    // The brackets belong to it.
                    before.push(b'[');
                    pieces.push(Piece { before, field: Field::Time(TimeForm::Common), name });
                    before = b"]".to_vec();
                    continue;
                }
                let field = field(letter, argument.as_deref()).map_err(|e| format!("{name}: {e}"))?;
                if letter == 'q' && before.is_empty() && follows_target(&pieces) {
                    // %U%q together are the target.
                    continue;
                }
                pieces.push(Piece { before: std::mem::take(&mut before), field, name });
            }
            c => push(c, &mut before),
        }
    }
    Ok(Pattern { pieces, tail: before, open: false, stamped_at_end })
}

fn follows_target(pieces: &[Piece]) -> bool {
    pieces.last().is_some_and(|p| p.field == Field::Text(Role::Target))
}

pub(super) fn push(c: char, to: &mut Vec<u8>) {
    to.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

fn field(letter: char, argument: Option<&str>) -> Result<Field, String> {
    Ok(match (letter, argument) {
        ('h' | 'a', _) => Field::Text(Role::Client),
        ('l', _) => Field::Ident,
        ('u', _) => Field::Text(Role::User),
        ('r', _) => Field::RequestLine,
        ('m', _) => Field::Text(Role::Method),
        ('U', _) => Field::Text(Role::Target),
        ('q', _) => Field::Text(Role::Query),
        ('H', _) => Field::Text(Role::Protocol),
        ('s', _) => Field::Status,
        ('b' | 'B' | 'O', _) => Field::Bytes,
        ('I' | 'S' | 'k' | 'p' | 'P', _) => Field::Digits,
        ('v' | 'V', _) => Field::Text(Role::Host),
        ('D', _) => Field::Took(DurationKind::Server, 1, Notation::Any),
        ('T', None | Some("s")) => Field::Took(DurationKind::Server, 1_000_000, Notation::Any),
        ('T', Some("ms")) => Field::Took(DurationKind::Server, 1_000, Notation::Any),
        ('T', Some("us")) => Field::Took(DurationKind::Server, 1, Notation::Any),
        ('T', Some(_)) => return Err("the unit is s, ms or us".into()),
        ('t', Some(form)) => Field::Time(time(form)?),
        ('i', Some(name)) => match name.to_ascii_lowercase().as_str() {
            "host" => Field::Text(Role::Host),
            "referer" | "referrer" => Field::Text(Role::Referer),
            "user-agent" => Field::Text(Role::Agent),
            "cookie" => Field::Text(Role::Cookies),
            "x-forwarded-for" => Field::Forwarded,
            _ => Field::Free,
        },
        ('o', Some(name)) if name.eq_ignore_ascii_case("location") => Field::Text(Role::Location),
        ('o' | 'C' | 'e' | 'n', _) => Field::Free,
        (letter, _) if letter.is_ascii_alphabetic() || letter == '^' => Field::Other,
        _ => return Err("is no field of LogFormat".into()),
    })
}

/// `%{sec}t`, `%{begin:usec}t`, or a format of strftime.
fn time(form: &str) -> Result<TimeForm, String> {
    let form = form.strip_prefix("begin:").or_else(|| form.strip_prefix("end:")).unwrap_or(form);
    match form {
        "sec" => Ok(TimeForm::Epoch(1_000_000)),
        "msec" => Ok(TimeForm::Epoch(1_000)),
        "usec" => Ok(TimeForm::Epoch(1)),
        "msec_frac" => Ok(TimeForm::Fraction(1_000)),
        "usec_frac" => Ok(TimeForm::Fraction(1)),
        strftime => TimeForm::strftime(strftime),
    }
}
