//! Finds values that an answer gave to a later request, and values that the user entered.
//!
//! A value is searched where applications put it: a hidden field of its name, a page's `meta`, a place in JSON, a
//! header, a link, or any text with the same context before it. A rule is kept only if it takes the right value from
//! the recorded answer. For links another value of the same kind will also do (the first item of a list).

use std::collections::{HashMap, HashSet};

use lastdrop_model::secrets::is_secret;
use lastdrop_model::{Url, class};
use serde_json::Value;

use super::RequestBody;
use super::rules::{Regexes, rule_of};
use super::sources::{AnswerIndex, Search, SearchTerms, walk};
use super::steps::{ExtractRule, Step, literal};

/// Shorter values occur everywhere by chance.
pub(crate) const LEAST_TOKEN: usize = 8;
/// Most values of a JSON document to compare.
pub(crate) const MOST_LEAVES: usize = 20_000;
/// Most segments of a path that may be values: each is searched with everything before it.
const MOST_SEGMENTS: usize = 100;

/// A column of the data file, and its value.
pub(crate) type Column = (String, String);

/// Replaces values in the steps by names, and returns the columns of the data file. `progress` gets the percentage
/// done.
pub(crate) fn connect(steps: &mut [Step], progress: &mut dyn FnMut(u8)) -> Vec<Column> {
    connect_counted(steps, progress).0
}

/// Like `connect`; also returns the number of answers on which rules were tried, which must not grow quadratically with
/// the steps.
fn connect_counted(steps: &mut [Step], progress: &mut dyn FnMut(u8)) -> (Vec<Column>, usize) {
    let steps_total = steps.len().max(1);
    // Two passes over all requests: the first gathers their values, so that each answer is searched only once.
    let mut needles = SearchTerms::default();
    let mut names = ValueNames::default();
    for step in steps.iter() {
        let mut request = RequestRewriter { source: &mut needles, names: &mut names };
        request.path(&step.path);
        request.headers(step.headers.iter().filter(|(name, _)| !is_referer(name)).cloned().collect());
        request.body(step.body.clone());
    }
    let index = AnswerIndex::new(&needles, steps, &mut |done| progress((done * 50 / steps_total) as u8));
    drop(needles);
    let mut names = ValueNames::default();
    let mut earlier = SearchState::new(&index);
    // Steps by the URL of their page.
    let mut pages: HashMap<String, usize> = HashMap::new();
    for at in 0..steps.len() {
        let (before, rest) = steps.split_at_mut(at);
        let step = &mut rest[0];
        let mut request =
            RequestRewriter { source: &mut EarlierAnswers { before, earlier: &mut earlier }, names: &mut names };
        step.path = request.path(&step.path);
        let referer = step.headers.iter().position(|(name, _)| is_referer(name));
        let referer = referer.map(|at| (at, step.headers.remove(at).0));
        step.headers = request.headers(std::mem::take(&mut step.headers));
        step.body = request.body(std::mem::take(&mut step.body));
        let page = super::find(&step.exchange.headers, "referer").and_then(|page| page.parse::<Url>().ok());
        if let (Some((place, name)), Some(page)) = (referer, page) {
            let path = match pages.get(&page.in_full()) {
                Some(at) => before[*at].path.clone(),
                None => path_of_page(&page, &mut names),
            };
            step.headers.insert(place, (name, format!("{}{path}", page.origin())));
        }
        if step.landed.is_none() {
            pages.insert(step.exchange.url.in_full(), at);
        }
        progress((50 + at * 50 / steps_total) as u8);
    }
    (names.columns, earlier.tried)
}

/// Names of values, each unique.
#[derive(Default)]
struct ValueNames {
    /// Names of values that answers gave.
    taken: HashMap<String, String>,
    columns: Vec<Column>,
    /// Names of values that the user entered.
    column_names: HashMap<String, String>,
    used: HashSet<String>,
    /// The last number appended to a name that is wanted several times.
    numbers: HashMap<String, usize>,
}

impl ValueNames {
    /// Returns an unused name similar to `like`.
    fn free(&mut self, like: &str) -> String {
        let mut name: String = like.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        name = name.trim_matches('_').to_ascii_lowercase();
        // These names are built in.
        if name.is_empty() || ["user", "iteration", "random"].contains(&name.as_str()) {
            name.push_str("_value");
        }
        let mut name = name.trim_start_matches('_').to_string();
        if self.used.contains(&name) {
            // Names are never released, so the search continues where it ended last.
            let number = self.numbers.entry(name.clone()).or_insert(1);
            name = loop {
                *number += 1;
                let next = format!("{name}_{number}");
                if !self.used.contains(&next) {
                    break next;
                }
            };
        }
        self.used.insert(name.clone());
        name
    }

    /// The column with a value that the user entered.
    fn column(&mut self, like: &str, value: &str) -> String {
        if let Some(name) = self.column_names.get(value) {
            return name.clone();
        }
        let name = self.free(like);
        self.column_names.insert(value.to_string(), name.clone());
        self.columns.push((name.clone(), value.to_string()));
        name
    }
}

fn template(name: &str) -> String {
    format!("{{{{{name}}}}}")
}

fn is_referer(name: &str) -> bool {
    name.eq_ignore_ascii_case("referer")
}

/// The path of the page that a request came from, with names for known values. A secret in its query becomes a column.
fn path_of_page(page: &Url, names: &mut ValueNames) -> String {
    let (path, query) = page.path.split_once('?').map_or((page.path.as_str(), None), |(p, q)| (p, Some(q)));
    let known = |names: &ValueNames, text: &str| names.taken.get(text).map_or_else(|| literal(text), |n| template(n));
    let path = path.split('/').map(|segment| known(names, segment)).collect::<Vec<_>>().join("/");
    let Some(query) = query else { return path };
    let pairs: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) if is_secret(name) && !value.is_empty() && !names.taken.contains_key(value) => {
                format!("{}={}", literal(name), template(&names.column(name, value)))
            }
            Some((name, value)) => format!("{}={}", literal(name), known(names, value)),
            None => literal(pair),
        })
        .collect();
    format!("{path}?{}", pairs.join("&"))
}

/// Where the values of requests are searched.
trait ValueSource {
    /// Finds an earlier answer with the value, and the rule that takes it from there.
    fn find(&mut self, search: &Search<'_>) -> Option<(usize, ExtractRule)>;

    /// Extracts the value there under a name.
    fn extract(&mut self, at: usize, name: &str, rule: ExtractRule);
}

/// The first pass over all requests: it gathers their values.
impl ValueSource for SearchTerms {
    fn find(&mut self, search: &Search<'_>) -> Option<(usize, ExtractRule)> {
        self.add(search);
        None
    }

    fn extract(&mut self, _: usize, _: &str, _: ExtractRule) {}
}

/// Searches of earlier answers, so far.
struct SearchState<'a> {
    index: &'a AnswerIndex,
    regexes: Regexes,
    /// Searches without result, with the number of answers already searched.
    missing: HashMap<String, usize>,
    /// Answers that were tried.
    tried: usize,
}

impl<'a> SearchState<'a> {
    fn new(index: &'a AnswerIndex) -> SearchState<'a> {
        SearchState { index, regexes: Regexes::default(), missing: HashMap::new(), tried: 0 }
    }
}

/// The second pass: the answers before a request.
struct EarlierAnswers<'a, 'b> {
    before: &'a mut [Step],
    earlier: &'a mut SearchState<'b>,
}

impl ValueSource for EarlierAnswers<'_, '_> {
    fn find(&mut self, search: &Search<'_>) -> Option<(usize, ExtractRule)> {
        let key = search.key();
        let without = self.earlier.missing.get(&key).copied().unwrap_or(0);
        let index = self.earlier.index;
        for at in index.candidates(search, without..self.before.len()) {
            self.earlier.tried += 1;
            let step = &self.before[at];
            let Some(answer) = &step.exchange.answer else { continue };
            let leaf = |name: &str, value: &str| index.pointer(at, name, value);
            if let Some(rule) = rule_of(search, answer, step, &leaf, &mut self.earlier.regexes) {
                return Some((at, rule));
            }
        }
        self.earlier.missing.insert(key, self.before.len());
        None
    }

    fn extract(&mut self, at: usize, name: &str, rule: ExtractRule) {
        self.before[at].extract.push((name.to_string(), rule));
    }
}

/// A request whose values are being replaced.
struct RequestRewriter<'a, S> {
    source: &'a mut S,
    names: &'a mut ValueNames,
}

impl<S: ValueSource> RequestRewriter<'_, S> {
    /// Returns the name of a value that an earlier answer gave, after adding its rule there.
    fn taken(&mut self, like: &str, value: &str, search: &Search<'_>) -> Option<String> {
        if let Some(name) = self.names.taken.get(value) {
            return Some(name.clone());
        }
        let (at, rule) = self.source.find(search)?;
        let name = self.names.free(like);
        self.source.extract(at, &name, rule);
        self.names.taken.insert(value.to_string(), name.clone());
        Some(name)
    }

    fn field(&mut self, name: &str, value: &str) -> Option<String> {
        if !is_worth_taking(name, value) {
            return None;
        }
        self.taken(name, value, &Search::Field { name, value })
    }

    /// A number in a form, if a hidden field had it.
    fn hidden(&mut self, name: &str, value: &str) -> Option<String> {
        let is_number = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| self.taken(name, value, &Search::Hidden { name, value })).flatten()
    }

    fn body(&mut self, body: RequestBody) -> RequestBody {
        match body {
            RequestBody::Form(fields) => RequestBody::Form(self.fields(fields)),
            RequestBody::Multipart(fields) => RequestBody::Multipart(self.fields(fields)),
            RequestBody::Text(text) => RequestBody::Text(self.text(text)),
            body => body,
        }
    }

    /// Replaces the fields of a form: from an answer, the user's password with the login beside it, or unchanged.
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

    fn headers(&mut self, mut headers: Vec<(String, String)>) -> Vec<(String, String)> {
        for (name, value) in &mut headers {
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
        headers
    }

    /// Replaces numbers and ids in the path, and fields of the query.
    fn path(&mut self, whole: &str) -> String {
        let (path, query) = match whole.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (whole, None),
        };
        let mut new = String::new();
        let mut start = 0;
        for (at, segment) in path.split('/').enumerate() {
            if at > 0 {
                new.push('/');
            }
            let is_id = class::fold(segment).starts_with(['{']) && !segment.contains('{');
            let before = &path[..start];
            let given = if is_id && (1..MOST_SEGMENTS).contains(&at) {
                let like = before.trim_end_matches('/').rsplit('/').next().unwrap_or("id");
                self.taken(like, segment, &Search::Link { before, value: segment })
            } else {
                None
            };
            new.push_str(&given.map_or_else(|| segment.to_string(), |name| template(&name)));
            start += segment.len() + 1;
        }
        if let Some(query) = query {
            // A file name that changes each time does not identify the query.
            let own = new.rsplit('/').next().filter(|file| !file.contains("{{"));
            let file = own.unwrap_or_default().to_string();
            let pairs: Vec<String> = query.split('&').map(|pair| self.pair(&file, query, pair)).collect();
            new.push('?');
            new.push_str(&pairs.join("&"));
        }
        new
    }

    fn pair(&mut self, file: &str, query: &str, pair: &str) -> String {
        let Some((name, raw)) = pair.split_once('=') else { return pair.to_string() };
        let value = super::fields(pair).and_then(|f| f.into_iter().next()).map_or_else(|| raw.to_string(), |(_, v)| v);
        let folds = class::fold(raw).starts_with('{') && !raw.contains('{');
        let first = query.starts_with(pair);
        let given = self.field(name, &value).or_else(|| {
            let before = if first { format!("{file}?{name}=") } else { format!("&{name}=") };
            folds.then(|| self.taken(name, &value, &Search::Link { before: &before, value: raw })).flatten()
        });
        match given {
            Some(given) => format!("{name}={}", template(&given)),
            None if is_secret(name) && !value.is_empty() => {
                format!("{name}={}", template(&self.names.column(name, &value)))
            }
            None => pair.to_string(),
        }
    }

    /// Replaces values in a body other than a form: in JSON by their keys.
    fn text(&mut self, text: String) -> String {
        let Ok(document) = serde_json::from_str::<Value>(&text) else { return text };
        let mut leaves = Vec::new();
        walk(&document, String::new(), &mut leaves);
        let mut new = String::with_capacity(text.len());
        // Values come in the order of the text, so each is searched after the previous one.
        let mut rest = text.as_str();
        for (pointer, value) in leaves {
            let key = pointer.rsplit('/').find(|k| k.parse::<usize>().is_err()).unwrap_or("value").to_string();
            let Value::String(value) = value else { continue };
            let name = match self.field(&key, value) {
                Some(name) => name,
                None if is_secret(&key) && !value.is_empty() => self.names.column(&key, value),
                None => continue,
            };
            let quoted = literal(&serde_json::to_string(value).unwrap_or_default());
            if let Some((before, after)) = rest.split_once(quoted.as_str()) {
                new.push_str(&format!("{before}\"{}\"", template(&name)));
                rest = after;
            }
        }
        new.push_str(rest);
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

/// Whether the server may create the value anew each time.
fn is_worth_taking(name: &str, value: &str) -> bool {
    let has_digit = value.bytes().any(|b| b.is_ascii_digit());
    let is_number = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    let lower = name.to_ascii_lowercase();
    let names_id = lower == "id" || lower.ends_with("id") || lower.ends_with("key");
    (value.len() >= LEAST_TOKEN && (has_digit || is_secret(name)) && !is_password(name)) || (is_number && names_id)
}

#[cfg(test)]
mod tests {
    use super::super::{PlanOptions, RecordedAnswer, RecordedExchange, plan, steps};
    use super::*;

    /// Requests that each take a token and a link from the previous page, and an id that no page has.
    fn chain(length: usize) -> Vec<RecordedExchange> {
        let exchange = |n: usize| {
            let url = format!("http://shop.test/item/{}/of/{}?page={n}", 1000 + n, 77_000_000 + n % 7);
            let page = format!(
                r#"<a href="/item/{}/of/x">next</a><form><input type="hidden" name="token" value="tok{:08}"></form><p>77</p>"#,
                1001 + n,
                n
            );
            let answer = RecordedAnswer {
                status: 200,
                content_type: "text/html".into(),
                text: page,
                ..RecordedAnswer::default()
            };
            let fields = vec![("token".into(), format!("tok{:08}", n.wrapping_sub(1))), ("id".into(), "5".into())];
            let url = url.parse().expect("a URL");
            RecordedExchange {
                answer: Some(answer),
                body: RequestBody::Form(fields),
                ..RecordedExchange::of("POST", url)
            }
        };
        (0..length).map(exchange).collect()
    }

    fn tried(length: usize) -> usize {
        let mut steps = steps::steps(chain(length), &PlanOptions::default(), &mut Vec::new());
        connect_counted(&mut steps, &mut |_| {}).1
    }

    #[test]
    fn the_answers_that_are_tried_grow_in_proportion_to_the_requests() {
        let (some, four_times) = (tried(300), tried(1200));
        assert!(some >= 300, "{some}");
        assert!(four_times <= 5 * some, "{some} of 300, {four_times} of 1200");
    }

    #[test]
    fn values_of_long_recordings_are_found_in_the_answer_before() {
        let plan = plan(chain(2000), &PlanOptions::default()).expect("a plan").plan;
        // No page has the first token: the user has it.
        assert_eq!(plan.matches(r#"form = { "token" = "{{token"#).count(), 2000, "{}", &plan[..3000]);
        assert!(plan.contains(r#""token" = "{{token_2000}}""#), "{}", &plan[plan.len() - 1000..]);
        assert!(plan.contains("http://shop.test/item/{{item_1999}}/of/7700000"), "{}", &plan[plan.len() - 1000..]);
    }

    #[test]
    fn progress_goes_from_nothing_to_all() {
        let mut steps = steps::steps(chain(50), &PlanOptions::default(), &mut Vec::new());
        let mut seen = Vec::new();
        connect(&mut steps, &mut |percent| seen.push(percent));
        assert!(
            seen.is_sorted() && seen.first() == Some(&0) && seen.last().is_some_and(|last| *last >= 98),
            "{seen:?}"
        );
    }
}
