//! Classes of a plan's requests: a run counts and times each class separately.
//!
//! A named request belongs to the class of that name. Other requests belong to the class of their pattern: method and
//! path with numbers and ids folded (`GET /item/{n}`), and the names of the query's fields without their values. Each
//! step of a session is a class of its own, even if two steps request the same URL. A plan may have any number of
//! patterns; those beyond [`MOST`] classes share one class, so that a run's memory is bounded.

use std::collections::HashMap;

use crate::plan::Plan;
use crate::request::{Pick, RequestSpec};

/// Most classes of a plan, including the class for the rest.
pub const MOST: usize = 101;
/// Name of the class for patterns beyond the bound.
pub const OTHERS: &str = "(other)";
/// Name of the class for the embedded parts of pages.
pub const PARTS: &str = "(parts of pages)";

/// The classes of a plan's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    pub names: Vec<String>,
    /// Index into `names` for each request of the plan.
    pub of_request: Vec<u16>,
    /// Class of the embedded parts of pages; without page mode, the class of the first request.
    pub parts: u16,
    /// Number of names and patterns that share [`OTHERS`].
    pub together: usize,
}

/// What is known about a class name while the plan is read.
#[derive(Default)]
struct NameUse {
    /// The user gave the name, or an objective uses it.
    wanted: bool,
    weight: f64,
    class: u16,
}

impl Classes {
    /// Returns the classes of a plan. A plan and its stored form have the same classes.
    #[must_use]
    pub fn of(plan: &Plan) -> Classes {
        let whole = [RequestSpec::get(plan.url.clone())];
        let requests = if plan.requests.is_empty() { &whole[..] } else { &plan.requests };
        let names = names_of(requests, plan.pick == Pick::Session);
        let mut known: HashMap<&str, usize> = HashMap::new();
        let mut all: Vec<(&str, NameUse)> = Vec::new();
        for (name, request) in names.iter().map(String::as_str).zip(requests) {
            let at = *known.entry(name).or_insert_with(|| {
                let wanted = plan.objectives.iter().any(|o| o.class.as_deref() == Some(name));
                all.push((name, NameUse { wanted, ..NameUse::default() }));
                all.len() - 1
            });
            let named = &mut all[at].1;
            named.wanted |= !request.name.is_empty();
            named.weight += if plan.pick == Pick::Weighted { request.weight.max(0.0) } else { 1.0 };
        }
        let room = MOST - usize::from(plan.page.is_some());
        let mut kept: Vec<usize> = (0..all.len()).collect();
        if all.len() > room {
            let rank = |at: &usize| (all[*at].1.wanted, all[*at].1.weight);
            kept.sort_by(|a, b| rank(b).partial_cmp(&rank(a)).unwrap_or(std::cmp::Ordering::Equal));
            kept.truncate(room - 1);
            kept.sort_unstable();
        }
        let together = all.len() - kept.len();
        all.iter_mut().for_each(|(_, named)| named.class = kept.len() as u16);
        kept.iter().enumerate().for_each(|(class, at)| all[*at].1.class = class as u16);
        let mut list: Vec<String> = kept.iter().map(|at| all[*at].0.to_string()).collect();
        list.extend((together > 0).then(|| OTHERS.to_string()));
        let parts = if plan.page.is_some() { list.len() as u16 } else { 0 };
        list.extend(plan.page.is_some().then(|| PARTS.to_string()));
        let of_request = names.iter().map(|name| all[known[name.as_str()]].1.class).collect();
        Classes { names: list, of_request, parts, together }
    }

    /// Returns the requests of a class, as indices into the plan's requests.
    pub fn requests<'a>(&'a self, name: &str) -> impl Iterator<Item = usize> + 'a {
        let class = self.names.iter().position(|n| n == name).map(|at| at as u16);
        self.of_request.iter().enumerate().filter(move |(_, of)| Some(**of) == class).map(|(at, _)| at)
    }
}

fn names_of(requests: &[RequestSpec], steps: bool) -> Vec<String> {
    let origins = requests.iter().any(|r| r.url.origin() != requests[0].url.origin());
    let mut seen: HashMap<String, usize> = HashMap::new();
    let name = |r: &RequestSpec| {
        if !r.name.is_empty() {
            return r.name.clone();
        }
        let origin = if origins { r.url.origin() } else { String::new() };
        let name = format!("{} {origin}{}", r.method, fold(&r.url.path));
        let before = seen.entry(name.clone()).or_insert(0);
        *before += 1;
        if steps && *before > 1 { format!("{name} #{before}") } else { name }
    };
    requests.iter().map(name).collect()
}

/// Returns the class of a request by its method and target: `GET /item/{n}`.
#[must_use]
pub fn pattern(method: &str, target: &str) -> String {
    format!("{method} {}", fold(target))
}

/// Returns the path with numbers and ids folded, and the names of the query's fields: `/item/{n}?colour&size`.
#[must_use]
pub fn fold(target: &str) -> String {
    let mut out = String::with_capacity(target.len());
    fold_into(target, &mut out);
    out
}

/// Appends [`fold`] of a target to a string.
pub fn fold_into(target: &str, out: &mut String) {
    let target = target.split('#').next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    for (i, segment) in path.split('/').enumerate() {
        if i > 0 {
            out.push('/');
        }
        fold_segment(segment, out);
    }
    let mut fields: Vec<&str> = Vec::new();
    for field in query.split(['&', ';']) {
        let name = field.split('=').next().unwrap_or_default();
        if !name.is_empty() && !fields.contains(&name) && fields.len() < MOST_FIELDS {
            fields.push(name);
        }
    }
    for (i, name) in fields.iter().enumerate() {
        out.push(if i == 0 { '?' } else { '&' });
        fold_segment(name, out);
    }
}

/// Returns true if the target matches the pattern. Both are folded first; a segment `*` of the pattern matches any one
/// segment.
#[must_use]
pub fn leads_to(pattern: &str, target: &str) -> bool {
    let (pattern, target) = (fold(pattern), fold(target));
    let parts = |text: &str| -> (Vec<String>, Option<String>) {
        let (path, query) = text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)));
        (path.split('/').map(String::from).collect(), query.map(String::from))
    };
    let ((wanted, wanted_query), (path, query)) = (parts(&pattern), parts(&target));
    let same = |(wanted, segment): (&String, &String)| wanted == "*" || wanted == segment;
    wanted.len() == path.len() && wanted_query == query && wanted.iter().zip(&path).all(same)
}

/// Most fields of a query that a pattern keeps.
const MOST_FIELDS: usize = 16;
/// Shorter words of hexadecimal digits are taken for ordinary words.
const SHORTEST_HEX: usize = 8;
/// A word of letters and digits that is at least this long is taken for a generated id.
const SHORTEST_ID: usize = 16;
/// At least this many digits after letters are a number; fewer may be a version: `v2`, `utf8`.
const SHORTEST_NUMBER: usize = 3;

fn fold_segment(segment: &str, out: &mut String) {
    if segment.contains("{{") {
        // A template: its variable's name stands for the value.
        return out.push_str(&segment.replace("{{", "{").replace("}}", "}"));
    }
    let mut rest = segment;
    while !rest.is_empty() {
        if let Some(after) = after_uuid(rest) {
            out.push_str("{id}");
            rest = after;
            continue;
        }
        let word = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
        if word == 0 {
            let next = rest.chars().next().map_or(1, char::len_utf8);
            out.push_str(&rest[..next]);
            rest = &rest[next..];
        } else {
            fold_word(&rest[..word], out);
            rest = &rest[word..];
        }
    }
}

fn fold_word(word: &str, out: &mut String) {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    if digits == word.len() {
        return out.push_str("{n}");
    }
    let hex = word.len() >= SHORTEST_HEX && word.bytes().all(|b| b.is_ascii_hexdigit());
    if digits > 0 && (hex || word.len() >= SHORTEST_ID) {
        return out.push_str("{id}");
    }
    let mut rest = word;
    while !rest.is_empty() {
        let run = rest.bytes().take_while(u8::is_ascii_digit).count();
        if run >= SHORTEST_NUMBER {
            out.push_str("{n}");
        } else {
            out.push_str(&rest[..run]);
        }
        let letters = rest[run..].bytes().take_while(u8::is_ascii_alphabetic).count();
        out.push_str(&rest[run..run + letters]);
        rest = &rest[run + letters..];
    }
}

/// Returns the text after a leading UUID.
fn after_uuid(text: &str) -> Option<&str> {
    const LENGTH: usize = 36;
    let uuid = text.as_bytes().get(..LENGTH)?;
    let fits = |(at, b): (usize, &u8)| if matches!(at, 8 | 13 | 18 | 23) { *b == b'-' } else { b.is_ascii_hexdigit() };
    let ends = !text.as_bytes().get(LENGTH).is_some_and(u8::is_ascii_alphanumeric);
    (ends && uuid.iter().enumerate().all(fits)).then(|| &text[LENGTH..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ids_are_folded_and_words_are_not() {
        for (target, folded) in [
            ("/", "/"),
            ("/item/42", "/item/{n}"),
            ("/item/42.html", "/item/{n}.html"),
            ("/api/v2/users/7/orders", "/api/v2/users/{n}/orders"),
            ("/a/2024-01-31/", "/a/{n}-{n}-{n}/"),
            ("/u/550e8400-e29b-41d4-a716-446655440000/x", "/u/{id}/x"),
            ("/commit/5f2b9c1ad", "/commit/{id}"),
            ("/deadbeef", "/deadbeef"),
            ("/img/photo0042.jpg", "/img/photo{n}.jpg"),
            ("/css/utf8-h264.css", "/css/utf8-h{n}.css"),
            ("/s/dBjftJeZ4CVPmB92K27u", "/s/{id}"),
            ("/search?q=shoes&page=3&q=2#top", "/search?q&page"),
            ("/item/{{id}}?x={{y}}", "/item/{id}?x"),
            ("/käse/12", "/käse/{n}"),
            ("*", "*"),
            ("", ""),
        ] {
            assert_eq!(fold(target), folded);
        }
        assert_eq!(pattern("POST", "/login"), "POST /login");
    }

    #[test]
    fn where_a_redirect_led_is_known_by_its_pattern() {
        for (pattern, target, leads) in [
            ("/order/{n}?tab", "/order/17?tab=2", true),
            ("/order/4", "/order/17", true),
            ("/order/{n}", "/order/17?tab=2", false),
            ("/order/{n}", "/login", false),
            ("/user/*/home", "/user/ann/home", true),
            ("/user/*/home", "/user/ann/b/home", false),
            ("/", "/", true),
            ("/", "/login", false),
        ] {
            assert_eq!(leads_to(pattern, target), leads, "{pattern} {target}");
        }
    }

    fn plan(paths: &[&str]) -> Plan {
        let mut plan = Plan::new("http://127.0.0.1/".parse().expect("valid"), 1);
        plan.requests = paths.iter().map(|p| RequestSpec::get(plan.url.with_path(p))).collect();
        plan
    }

    #[test]
    fn requests_are_known_by_name_or_pattern() {
        let mut plan = plan(&["/item/1", "/item/2", "/", "/x"]);
        plan.requests[3].name = "checkout".into();
        let classes = Classes::of(&plan);
        assert_eq!(classes.names, ["GET /item/{n}", "GET /", "checkout"]);
        assert_eq!(classes.of_request, [0, 0, 1, 2]);
        assert_eq!(classes.requests("GET /item/{n}").collect::<Vec<_>>(), [0, 1]);
        plan.requests[2].url = "http://127.0.0.2/".parse().expect("valid");
        assert_eq!(Classes::of(&plan).names[1], "GET http://127.0.0.2/");
    }

    #[test]
    fn steps_of_a_session_are_apart() {
        let mut plan = plan(&["/cart", "/item/1", "/cart"]);
        plan.pick = Pick::Session;
        assert_eq!(Classes::of(&plan).names, ["GET /cart", "GET /item/{n}", "GET /cart #2"]);
    }

    #[test]
    fn what_is_beyond_the_bound_is_together_and_the_named_are_not() {
        let words: Vec<String> = (0..10_000u32)
            .map(|i| "/".to_string() + &i.to_string().bytes().map(|d| (d - b'0' + b'a') as char).collect::<String>())
            .collect();
        let mut plan = plan(&words.iter().map(String::as_str).collect::<Vec<_>>());
        plan.requests[9_999].name = "last".into();
        plan.requests[5_000].weight = 3.0;
        let classes = Classes::of(&plan);
        assert_eq!((classes.names.len(), classes.together), (MOST, 10_000 - 100));
        assert_eq!(classes.names.last().map(String::as_str), Some(OTHERS));
        assert!(classes.names.contains(&"last".into()) && classes.names.contains(&"GET /faaa".into()));
        assert!(classes.of_request.iter().all(|c| usize::from(*c) < MOST));
        assert_eq!(classes.of_request.iter().filter(|c| usize::from(**c) == MOST - 1).count(), classes.together);
        plan.page = Some(crate::request::Page { connections_per_host: 6, cache: false });
        let classes = Classes::of(&plan);
        assert_eq!((classes.names.len(), classes.names[usize::from(classes.parts)].as_str()), (MOST, PARTS));
    }
}
