//! Parses Squid's logformat (cf.data.pre, section `logformat`) into a pattern. Its codes have up to a dozen letters,
//! perhaps with `>` or `<` (client side, server side) or a name before `::`.

use super::apache::push;
use super::pattern::{DurationKind, Field, Notation, Pattern, Piece};
use crate::entry::Role;
use crate::time::TimeForm;

/// Squid's own format (`logformat squid`): time, elapsed ms, client, result and status, bytes, method, URL, user,
/// hierarchy and peer, type.
const NATIVE: &str = "%ts.%03tu %6tr %>a %Ss/%03>Hs %<st %rm %ru %[un %Sh/%<a %mt";

pub(super) fn native() -> Result<Pattern, String> {
    read_format(NATIVE)
}

/// Whether the text of a format is Squid's. Neither Apache nor HAProxy has these codes.
pub(super) fn is_format(text: &str) -> bool {
    let marks = ["%>a", "%>A", ">Hs", "<Hs", "%Ss", "%Sh", "%<st", "%tl", "%rm", "%ru", "%03tu", "%ts."];
    marks.iter().any(|mark| text.contains(mark))
}

/// Parses the text of a `logformat`, without its name.
///
/// # Errors
/// The code that is not supported.
pub(super) fn read_format(text: &str) -> Result<Pattern, String> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut before = Vec::new();
    let mut stamped_at_end = true;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => {
                let escaped = rest.chars().next().unwrap_or('\\');
                rest = rest.get(escaped.len_utf8()..).unwrap_or_default();
                push(if escaped == 't' { '\t' } else { escaped }, &mut before);
            }
            '%' if rest.starts_with('%') => {
                before.push(b'%');
                rest = &rest[1..];
            }
            '%' => {
                let whole = rest;
                // The escaping and the padding width.
                rest = rest.strip_prefix(['"', '\'', '#', '/', '[']).unwrap_or(rest);
                rest = rest.strip_prefix('-').unwrap_or(rest);
                rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
                let mut argument = braced(&mut rest)?;
                let length = code_length(rest);
                let code = &rest[..length];
                rest = &rest[length..];
                if argument.is_none() {
                    argument = braced(&mut rest)?;
                }
                let name = format!("%{}", &whole[..whole.len() - rest.len()]);
                if code == "tS" {
                    stamped_at_end = false;
                }
                let field =
                    field(code, argument).ok_or_else(|| format!("{name} is no code of Squid's logformat"))??;
                pieces.push(Piece { before: std::mem::take(&mut before), field, name });
            }
            c => push(c, &mut before),
        }
    }
    Ok(Pattern { pieces, tail: before, open: false, stamped_at_end })
}

/// Reads an argument in braces at the beginning of the text.
fn braced<'a>(rest: &mut &'a str) -> Result<Option<&'a str>, String> {
    let Some(inside) = rest.strip_prefix('{') else { return Ok(None) };
    let (argument, after) = inside.split_once('}').ok_or("a brace is not closed")?;
    *rest = after;
    Ok(Some(argument))
}

/// Length of the longest known code at the beginning of the text. `adapt::`, `icap::`, `ssl::` and `transport::` are
/// followed by names of their own.
fn code_length(text: &str) -> usize {
    let length = |text: &str| text.bytes().take_while(|b| b.is_ascii_alphanumeric() || b"_<>".contains(b)).count();
    if let Some((module, code)) = text.split_once("::")
        && length(module) == module.len()
    {
        let code = if module == "http" { code_length(code) } else { length(code) };
        return module.len() + 2 + code;
    }
    let most = length(text);
    (1..=most).rev().find(|n| field(&text[..*n], None).is_some()).unwrap_or(most)
}

/// The field of a code; `None` for an unknown code.
fn field(code: &str, argument: Option<&str>) -> Option<Result<Field, String>> {
    let code = code.strip_prefix("http::").unwrap_or(code);
    let ms = |what| Field::Took(what, 1_000, Notation::Whole);
    Some(Ok(match code {
        "ts" | "tS" => Field::Time(TimeForm::Epoch(1_000_000)),
        "tu" => Field::Time(TimeForm::Fraction(1_000)),
        "tl" | "tg" => match argument {
            Some(form) => return Some(TimeForm::strftime(form).map(Field::Time)),
            None => Field::Time(TimeForm::Common),
        },
        "tr" => ms(DurationKind::Server),
        "<pt" | "<tt" => ms(DurationKind::Upstream),
        "dt" => Field::Elapsed,
        ">a" | ">A" => Field::Text(Role::Client),
        "un" | "ul" | "ue" | "us" => Field::Text(Role::User),
        "ui" => Field::Ident,
        "rm" | ">rm" => Field::Text(Role::Method),
        "ru" | ">ru" | "rp" | ">rp" => Field::Text(Role::Target),
        "rv" | ">rv" => Field::Text(Role::Protocol),
        ">rd" => Field::Text(Role::Host),
        ">Hs" => Field::Status,
        "<st" => Field::Bytes,
        "<Hs" | "st" | ">st" | "sh" | ">sh" | "<sh" | "<bs" | ">p" | ">lp" | "<p" | "<lp" | "lp" | "sn" | ">rP"
        | "<rP" => Field::Digits,
        ">h" | ">ha" => match argument.unwrap_or_default().to_ascii_lowercase().as_str() {
            "host" => Field::Text(Role::Host),
            "referer" | "referrer" => Field::Text(Role::Referer),
            "user-agent" => Field::Text(Role::Agent),
            "cookie" => Field::Text(Role::Cookies),
            "x-forwarded-for" => Field::Forwarded,
            _ => Field::Free,
        },
        "<h" if argument.is_some_and(|name| name.eq_ignore_ascii_case("location")) => Field::Text(Role::Location),
        "<h" | "note" | "et" | "ea" | "err_detail" | "adapt" => Field::Free,
        "Ss" | "Sh" | "mt" | "<a" | "<A" | "la" | ">la" | "<la" | "<rm" | "<ru" | "<rv" | "<rd" | "<rp" | "rs"
        | ">rs" | "<rs" | ">eui" | ">qos" | "<qos" | ">nfmark" | "<nfmark" | "err_code" | "tv" | "busy_time"
        | "credentials" | "master_xaction" => Field::Other,
        module if module.contains("::") => Field::Free,
        _ => return None,
    }))
}
