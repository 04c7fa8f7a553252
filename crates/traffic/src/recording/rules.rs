//! Rules that take a value from an answer, each tested on the recorded one: a hidden field of its name, a page's
//! `meta`, a place in JSON, a header, a link, or any text with the same context before it.

use std::collections::HashMap;

use lastdrop_model::class;
use memchr::memmem;
use regex::Regex;

use super::sources::Search;
use super::steps::{ExtractRule, Step};
use super::values::LEAST_TOKEN;
use super::{RecordedAnswer, find};

/// Most bytes before a value that identify its position.
const LONGEST_CONTEXT: usize = 32;
const LEAST_CONTEXT: usize = 4;
/// Most occurrences of a value to try in one text.
const MOST_OCCURRENCES: usize = 20;
/// Most compiled rules in the cache: the same field names recur.
const MOST_REGEXES: usize = 200;

/// A cache of compiled rules.
#[derive(Debug, Default)]
pub(crate) struct Regexes(HashMap<String, Option<Regex>>);

impl Regexes {
    /// Returns what a rule takes from a text: its first group.
    fn takes<'t>(&mut self, rule: &str, text: &'t str) -> Option<&'t str> {
        if self.0.len() >= MOST_REGEXES && !self.0.contains_key(rule) {
            self.0.clear();
        }
        let regex = self.0.entry(rule.to_string()).or_insert_with(|| Regex::new(rule).ok());
        Some(regex.as_ref()?.captures(text)?.get(1)?.as_str())
    }
}

/// Finds the pointer to a value of an answer in JSON, preferably one whose key has the given name.
pub(crate) type PointerLookup<'a> = dyn Fn(&str, &str) -> Option<String> + 'a;

/// Returns the rule that takes the value from an answer.
pub(crate) fn rule_of(
    search: &Search<'_>,
    answer: &RecordedAnswer,
    step: &Step,
    pointer: &PointerLookup<'_>,
    regexes: &mut Regexes,
) -> Option<ExtractRule> {
    match search {
        Search::Field { name, value } => of_field(answer, name, value, pointer, regexes),
        Search::Hidden { name, value } => of_hidden(answer, name, value, regexes),
        Search::Link { before, value } => of_link(answer, step, before, value, pointer),
    }
}

/// Returns the rule that takes a field's value from an answer.
fn of_field(
    answer: &RecordedAnswer,
    name: &str,
    value: &str,
    pointer: &PointerLookup<'_>,
    regexes: &mut Regexes,
) -> Option<ExtractRule> {
    if let Some((header, _)) = answer.headers.iter().find(|(n, v)| v == value && !n.eq_ignore_ascii_case("location")) {
        return Some(ExtractRule::Header(header.clone()));
    }
    if is_json(answer) {
        return pointer(name, value).map(ExtractRule::Json);
    }
    let of_name = of_name(answer, name, value, regexes);
    // A short value is certain only beside its name.
    let rule = of_name.or_else(|| (value.len() >= LEAST_TOKEN).then(|| by_context(&answer.text, value)).flatten());
    rule.map(ExtractRule::Regex)
}

pub(crate) fn is_json(answer: &RecordedAnswer) -> bool {
    answer.content_type.contains("json")
}

fn has(text: &str, part: &str) -> bool {
    memmem::find(text.as_bytes(), part.as_bytes()).is_some()
}

/// Finds the value by the name of a field in the page.
fn of_name(answer: &RecordedAnswer, name: &str, value: &str, regexes: &mut Regexes) -> Option<String> {
    // Regexes are expensive to compile, and most answers have no such field.
    if !has(&answer.text, name) || !has(&answer.text, "value=") {
        return None;
    }
    let n = regex::escape(name);
    let quoted = [
        format!(r#"name=["']{n}["'][^>]*\bvalue=["']([^"']*)"#),
        format!(r#"\bvalue=["']([^"']*)["'][^>]*name=["']{n}["']"#),
    ];
    quoted.into_iter().find(|rule| regexes.takes(rule, &answer.text) == Some(value))
}

/// Like `of_name`, for a hidden field only.
fn of_hidden(answer: &RecordedAnswer, name: &str, value: &str, regexes: &mut Regexes) -> Option<ExtractRule> {
    if !has(&answer.text, name) {
        return None;
    }
    let tag = format!(r#"(<input\b[^>]*\bname=["']{}["'][^>]*>)"#, regex::escape(name));
    let is_hidden = regexes.takes(&tag, &answer.text)?.to_ascii_lowercase().contains("hidden");
    is_hidden.then(|| of_name(answer, name, value, regexes)).flatten().map(ExtractRule::Regex)
}

/// Returns what the regex `BEFORE([^…]+)` takes from a text; `ends` are the characters that its class excludes. These
/// are the characters after the first occurrence of `before` that has any.
fn taken_after<'t>(text: &'t str, before: &str, ends: impl Fn(char) -> bool) -> Option<&'t str> {
    let finder = memmem::Finder::new(before.as_bytes());
    let mut from = 0;
    while let Some(found) = finder.find(&text.as_bytes()[from..]) {
        let rest = &text[from + found + before.len()..];
        let taken = &rest[..rest.find(&ends).unwrap_or(rest.len())];
        if !taken.is_empty() {
            return Some(taken);
        }
        from += found + 1;
        while !text.is_char_boundary(from) {
            from += 1;
        }
    }
    None
}

/// Finds the value by the text before it, if that does not occur earlier.
fn by_context(text: &str, value: &str) -> Option<String> {
    let occurrences = memmem::find_iter(text.as_bytes(), value.as_bytes()).take(MOST_OCCURRENCES);
    occurrences.into_iter().find_map(|at| {
        let mut from = at.saturating_sub(LONGEST_CONTEXT);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        // Within the same line.
        let from = text[from..at].rfind(['\n', '\r']).map_or(from, |n| from + n + 1);
        let context = &text[from..at];
        if context.len() < LEAST_CONTEXT {
            return None;
        }
        let ends = |c: char| matches!(c, '"' | '\'' | '&' | '<' | '>') || c.is_whitespace();
        let rule = || format!(r#"{}([^"'&<>\s]+)"#, regex::escape(context));
        (taken_after(text, context, ends) == Some(value)).then(rule)
    })
}

/// Finds a number or id by the link that contains it: exactly that one, or the first of its kind.
fn of_link(
    answer: &RecordedAnswer,
    step: &Step,
    before: &str,
    value: &str,
    pointer: &PointerLookup<'_>,
) -> Option<ExtractRule> {
    if before.len() >= 2
        && let Some(url) = led_to(answer, step)
        && taken_after(url, before, |c| matches!(c, '/' | '?' | '&' | '#')) == Some(value)
    {
        return Some(ExtractRule::Url(format!(r#"{}([^/?&\#]+)"#, regex::escape(before))));
    }
    if is_json(answer) {
        return (value.len() >= 2).then(|| pointer("id", value)).flatten().map(ExtractRule::Json);
    }
    let written = in_html(before);
    let before = if has(&answer.text, &format!("{before}{value}")) { before } else { &written };
    if before.len() < 2 || !has(&answer.text, &format!("{before}{value}")) {
        return None;
    }
    let ends = |c: char| matches!(c, '"' | '\'' | '&' | '<' | '>' | '/' | '?' | '#') || c.is_whitespace();
    let taken = taken_after(&answer.text, before, ends)?;
    let rule = || ExtractRule::Regex(format!(r#"{}([^"'&<>\s/?\#]+)"#, regex::escape(before)));
    (class::fold(taken) == class::fold(value)).then(rule)
}

/// The target of an answer's redirect.
pub(crate) fn led_to<'a>(answer: &'a RecordedAnswer, step: &'a Step) -> Option<&'a str> {
    find(&answer.headers, "location").or_else(|| step.landed.as_ref().map(|url| url.path.as_str()))
}

/// A part of a link as written in HTML.
pub(crate) fn in_html(link: &str) -> String {
    link.replace('&', "&amp;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_by_hand_is_what_the_rule_takes() {
        let ends = |c: char| matches!(c, '"' | '\'' | '&' | '<' | '>') || c.is_whitespace();
        let texts = [
            "aaaab x=\"1234\" y",
            "<td>\n<td>12<td>",
            "x=&x=y é=ü é=",
            "aaaa\"aaab",
            "",
            "é=\u{2003}é=ß\u{85}",
            "x=<é=é=z",
        ];
        for text in texts {
            for before in ["aa", "aaaa", "x=", "<td>", "é=", "x=\""] {
                let rule = Regex::new(&format!(r#"{}([^"'&<>\s]+)"#, regex::escape(before))).expect("a rule");
                let by_rule = rule.captures(text).and_then(|c| c.get(1)).map(|m| m.as_str());
                assert_eq!(taken_after(text, before, ends), by_rule, "{before:?} in {text:?}");
            }
        }
    }
}
