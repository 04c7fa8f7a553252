//! Values that come from an answer and go into a later request, and those that the user has.
//!
//! A value is looked for where applications put them: a hidden field of its name, a `meta` of a page, a place in JSON, a header, a link,
//! any text that has the same before it. A rule is kept only if it takes a value of the recorded answer: that very one, or, of
//! links alone, another of its kind (the first item of a list).

use std::collections::HashMap;

use lastdrop_model::class;
use lastdrop_model::secrets::is_secret;
use regex::Regex;
use serde_json::Value;

use super::steps::{Rule, Step, literal};
use super::{Answer, Sent, find};

/// Shorter values are found everywhere by chance.
const LEAST_TOKEN: usize = 8;
/// So much of what stands before a value tells where it is.
const LONGEST_CONTEXT: usize = 32;
const LEAST_CONTEXT: usize = 4;
/// Values of a JSON document that are compared.
const MOST_LEAVES: usize = 20_000;

/// A column of the data file, and its value.
pub(crate) type Column = (String, String);

/// Replaces values in the steps by names, and says which names the data file has.
pub(crate) fn connect(steps: &mut [Step]) -> Vec<Column> {
    let mut names = Names::default();
    for at in 0..steps.len() {
        let (before, rest) = steps.split_at_mut(at);
        let mut request = Request { before, names: &mut names };
        let step = &mut rest[0];
        request.path(step);
        request.headers(step);
        match std::mem::take(&mut step.body) {
            Sent::Form(fields) => step.body = Sent::Form(request.fields(fields)),
            Sent::Multipart(fields) => step.body = Sent::Multipart(request.fields(fields)),
            Sent::Text(text) => step.body = Sent::Text(request.text(text)),
            body => step.body = body,
        }
    }
    names.columns
}

/// Names of values, each for one.
#[derive(Default)]
struct Names {
    /// Of a value that an answer gave.
    taken: HashMap<String, String>,
    columns: Vec<Column>,
}

impl Names {
    /// A name that nobody has, like the one that is given.
    fn free(&self, like: &str) -> String {
        let mut name: String = like.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        name = name.trim_matches('_').to_ascii_lowercase();
        // These are built in.
        if name.is_empty() || ["user", "iteration", "random"].contains(&name.as_str()) {
            name.push_str("_value");
        }
        let name = name.trim_start_matches('_').to_string();
        let is_taken = |n: &str| self.taken.values().any(|t| t == n) || self.columns.iter().any(|(c, _)| c == n);
        if !is_taken(&name) {
            return name;
        }
        (2..).map(|n| format!("{name}_{n}")).find(|n| !is_taken(n)).unwrap_or(name)
    }

    /// The column that has a value of the user's.
    fn column(&mut self, like: &str, value: &str) -> String {
        if let Some((name, _)) = self.columns.iter().find(|(_, v)| v == value) {
            return name.clone();
        }
        let name = self.free(like);
        self.columns.push((name.clone(), value.to_string()));
        name
    }
}

fn template(name: &str) -> String {
    format!("{{{{{name}}}}}")
}

/// A request, and the steps before it, whose answers its values may be from.
struct Request<'a> {
    before: &'a mut [Step],
    names: &'a mut Names,
}

impl Request<'_> {
    /// The name of a value that an earlier answer gave, with the rule that takes it there.
    fn taken(&mut self, like: &str, value: &str, rules: impl Fn(&Answer, &Step) -> Option<Rule>) -> Option<String> {
        if let Some(name) = self.names.taken.get(value) {
            return Some(name.clone());
        }
        let mut found = None;
        for (at, step) in self.before.iter().enumerate().rev() {
            if let Some(rule) = step.exchange.answer.as_ref().and_then(|answer| rules(answer, step)) {
                found = Some((at, rule));
                break;
            }
        }
        let (at, rule) = found?;
        let name = self.names.free(like);
        self.before[at].extract.push((name.clone(), rule));
        self.names.taken.insert(value.to_string(), name.clone());
        Some(name)
    }

    fn field(&mut self, name: &str, value: &str) -> Option<String> {
        if !is_worth_taking(name, value) {
            return None;
        }
        self.taken(name, value, |answer, _| of_field(answer, name, value))
    }

    /// A number of a form, where a hidden field had it.
    fn hidden(&mut self, name: &str, value: &str) -> Option<String> {
        let is_number = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| self.taken(name, value, |answer, _| of_hidden(answer, name, value))).flatten()
    }

    /// Fields of a form: given by an answer, the user's password with the name beside it, or as they were.
    fn fields(&mut self, fields: Vec<(String, String)>) -> Vec<(String, String)> {
        let has_password = fields.iter().any(|(n, v)| is_password(n) && !v.is_empty());
        let mut all = Vec::with_capacity(fields.len());
        for (name, value) in fields {
            let given = self.field(&name, &value).or_else(|| self.hidden(&name, &value));
            let is_users = !value.is_empty() && (is_secret(&name) || (has_password && is_login(&name)));
            let value = match given {
                Some(given) => template(&given),
                None if is_users => template(&self.names.column(&name, &value)),
                None => value,
            };
            all.push((name, value));
        }
        all
    }

    fn headers(&mut self, step: &mut Step) {
        for (name, value) in &mut step.headers {
            let (scheme, token) = match value.split_once(' ') {
                Some((scheme, token)) if name.eq_ignore_ascii_case("authorization") => (format!("{scheme} "), token),
                _ => (String::new(), value.as_str()),
            };
            let token = token.to_string();
            if let Some(given) = self.field(name, &token) {
                *value = format!("{scheme}{}", template(&given));
            } else if is_secret(name) && !token.is_empty() {
                *value = format!("{scheme}{}", template(&self.names.column(name, &token)));
            }
        }
    }

    /// Numbers and ids of the path, and fields of the query.
    fn path(&mut self, step: &mut Step) {
        let (path, query) = match step.path.split_once('?') {
            Some((path, query)) => (path.to_string(), Some(query.to_string())),
            None => (step.path.clone(), None),
        };
        let mut new = String::new();
        for (at, segment) in path.split('/').enumerate() {
            if at > 0 {
                new.push('/');
            }
            let is_id = class::fold(segment).starts_with(['{']) && !segment.contains('{');
            let before = format!("{}/", path.split('/').take(at).collect::<Vec<_>>().join("/"));
            let like = before.trim_end_matches('/').rsplit('/').next().unwrap_or("id").to_string();
            let given = if is_id && at > 0 {
                self.taken(&like, segment, |answer, step| of_link(answer, step, &before, segment))
            } else {
                None
            };
            new.push_str(&given.map_or_else(|| segment.to_string(), |name| template(&name)));
        }
        if let Some(query) = query {
            // What is another each time is no sign of where the query is.
            let own = new.rsplit('/').next().filter(|file| !file.contains("{{"));
            let file = own.unwrap_or_default().to_string();
            let pairs: Vec<String> = query.split('&').map(|pair| self.pair(&file, &query, pair)).collect();
            new.push('?');
            new.push_str(&pairs.join("&"));
        }
        step.path = new;
    }

    fn pair(&mut self, file: &str, query: &str, pair: &str) -> String {
        let Some((name, raw)) = pair.split_once('=') else { return pair.to_string() };
        let value = super::fields(pair).and_then(|f| f.into_iter().next()).map_or_else(|| raw.to_string(), |(_, v)| v);
        let folds = class::fold(raw).starts_with('{') && !raw.contains('{');
        let first = query.starts_with(pair);
        let given = self.field(name, &value).or_else(|| {
            let sign = if first { "?" } else { "&" };
            folds
                .then(|| {
                    self.taken(name, &value, |a, step| {
                        of_link(a, step, &format!("{}{sign}{name}=", if first { file } else { "" }), raw)
                    })
                })
                .flatten()
        });
        match given {
            Some(given) => format!("{name}={}", template(&given)),
            None if is_secret(name) && !value.is_empty() => {
                format!("{name}={}", template(&self.names.column(name, &value)))
            }
            None => pair.to_string(),
        }
    }

    /// A body that is no form: in JSON values by their keys; in any text long ones that an answer had.
    fn text(&mut self, text: String) -> String {
        let Ok(document) = serde_json::from_str::<Value>(&text) else { return text };
        let mut leaves = Vec::new();
        walk(&document, String::new(), &mut leaves);
        let mut new = text;
        for (pointer, value) in leaves {
            let key = pointer.rsplit('/').find(|k| k.parse::<usize>().is_err()).unwrap_or("value").to_string();
            let Value::String(value) = value else { continue };
            let name = match self.field(&key, value) {
                Some(name) => name,
                None if is_secret(&key) && !value.is_empty() => self.names.column(&key, value),
                None => continue,
            };
            let quoted = |v: &str| serde_json::to_string(v).unwrap_or_default();
            new = new.replacen(&literal(&quoted(value)), &format!("\"{}\"", template(&name)), 1);
        }
        new
    }
}

fn is_password(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("pass") || name.contains("pwd")
}

fn is_login(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["user", "login", "mail", "account"].iter().any(|part| name.contains(part)) || name == "name"
}

/// Could the value be one that the server makes anew each time?
fn is_worth_taking(name: &str, value: &str) -> bool {
    let has_digit = value.bytes().any(|b| b.is_ascii_digit());
    let is_number = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    let lower = name.to_ascii_lowercase();
    let names_id = lower == "id" || lower.ends_with("id") || lower.ends_with("key");
    (value.len() >= LEAST_TOKEN && (has_digit || is_secret(name)) && !is_password(name)) || (is_number && names_id)
}

/// The rule that takes a field's value from an answer.
fn of_field(answer: &Answer, name: &str, value: &str) -> Option<Rule> {
    if let Some((header, _)) = answer.headers.iter().find(|(n, v)| v == value && !n.eq_ignore_ascii_case("location")) {
        return Some(Rule::Header(header.clone()));
    }
    if answer.content_type.contains("json") {
        return of_json(answer, name, value);
    }
    let of_name = of_name(answer, name, value);
    // What is short is only sure where its name stands beside it.
    let rule = of_name.or_else(|| (value.len() >= LEAST_TOKEN).then(|| by_context(&answer.text, value)).flatten());
    rule.map(Rule::Regex)
}

/// By the name that a field of a page has.
fn of_name(answer: &Answer, name: &str, value: &str) -> Option<String> {
    let n = regex::escape(name);
    let quoted = [
        format!(r#"name=["']{n}["'][^>]*\bvalue=["']([^"']*)"#),
        format!(r#"\bvalue=["']([^"']*)["'][^>]*name=["']{n}["']"#),
    ];
    quoted.into_iter().find(|rule| takes(rule, &answer.text).as_deref() == Some(value))
}

/// The same of a field that no user sees.
fn of_hidden(answer: &Answer, name: &str, value: &str) -> Option<Rule> {
    let tag = format!(r#"(<input\b[^>]*\bname=["']{}["'][^>]*>)"#, regex::escape(name));
    let is_hidden = takes(&tag, &answer.text)?.to_ascii_lowercase().contains("hidden");
    is_hidden.then(|| of_name(answer, name, value)).flatten().map(Rule::Regex)
}

fn of_json(answer: &Answer, name: &str, value: &str) -> Option<Rule> {
    let document: Value = serde_json::from_str(&answer.text).ok()?;
    let mut leaves = Vec::new();
    walk(&document, String::new(), &mut leaves);
    let same = |leaf: &Value| match leaf {
        Value::String(text) => text == value,
        Value::Number(n) => n.to_string() == value,
        _ => false,
    };
    let named = |pointer: &str| pointer.rsplit('/').next().is_some_and(|key| key.eq_ignore_ascii_case(name));
    let mut places = leaves.iter().filter(|(_, leaf)| same(leaf)).map(|(pointer, _)| pointer);
    let place = places.clone().find(|p| named(p)).or_else(|| places.next())?;
    Some(Rule::Json(place.clone()))
}

/// Values of a JSON document with the pointers to them.
fn walk<'a>(value: &'a Value, pointer: String, to: &mut Vec<(String, &'a Value)>) {
    if to.len() >= MOST_LEAVES {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                walk(value, format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1")), to);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                walk(value, format!("{pointer}/{index}"), to);
            }
        }
        leaf => to.push((pointer, leaf)),
    }
}

/// What a regex takes from a text: its first group.
fn takes(rule: &str, text: &str) -> Option<String> {
    let regex = Regex::new(rule).ok()?;
    Some(regex.captures(text)?.get(1)?.as_str().to_string())
}

/// The value by the text before it, as far as that stands nowhere else before.
fn by_context(text: &str, value: &str) -> Option<String> {
    text.match_indices(value).take(20).find_map(|(at, _)| {
        let line = text[..at].rfind(['\n', '\r']).map_or(0, |n| n + 1);
        let mut from = at.saturating_sub(LONGEST_CONTEXT).max(line);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        let context = &text[from..at];
        let rule = format!(r#"{}([^"'&<>\s]+)"#, regex::escape(context));
        (context.len() >= LEAST_CONTEXT && takes(&rule, text).as_deref() == Some(value)).then_some(rule)
    })
}

/// A number or an id by the link that it stands in: that one, or the first of its kind.
fn of_link(answer: &Answer, step: &Step, before: &str, value: &str) -> Option<Rule> {
    let led_to = find(&answer.headers, "location").or_else(|| step.landed.as_ref().map(|url| url.path.as_str()));
    let in_url = format!(r#"{}([^/?&\#]+)"#, regex::escape(before));
    if before.len() >= 2 && led_to.and_then(|url| takes(&in_url, url)).as_deref() == Some(value) {
        return Some(Rule::Url(in_url));
    }
    if answer.content_type.contains("json") {
        return (value.len() >= 2).then(|| of_json(answer, "id", value)).flatten();
    }
    let written = before.replace('&', "&amp;");
    let before = if answer.text.contains(&format!("{before}{value}")) { before } else { &written };
    if before.len() < 2 || !answer.text.contains(&format!("{before}{value}")) {
        return None;
    }
    let rule = format!(r#"{}([^"'&<>\s/?\#]+)"#, regex::escape(before));
    let taken = takes(&rule, &answer.text)?;
    (class::fold(&taken) == class::fold(value)).then_some(Rule::Regex(rule))
}
