//! An index of which answers contain which texts, so that a recording takes time in proportion to its length.
//!
//! Comparing each value of each request with each earlier answer is quadratic: 20,000 exchanges took hours. So the
//! texts that requests could have from answers ([`SearchTerms`]) are gathered first, and each answer is searched once for
//! all of them ([`AnswerIndex`]). A rule is then tried only on answers that contain the text.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use aho_corasick::AhoCorasick;
use serde_json::Value;

use super::rules::{in_html, is_json, led_to};
use super::steps::Step;
use super::values::{LEAST_TOKEN, MOST_LEAVES};

/// The automaton knows this much of each text; the rest is compared. Tokens can be long, and there can be many.
const PREFIX_BYTES: usize = 32;
/// Most answers with a text to try; if no rule works on them, earlier ones are not tried.
const MOST_ANSWERS_TRIED: usize = 64;

/// A value of a request, and where an answer may have it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Search<'a> {
    /// In a field of its name, a header, or any text with the same context before it.
    Field { name: &'a str, value: &'a str },
    /// In a hidden field of its name.
    Hidden { name: &'a str, value: &'a str },
    /// In a link, after `before`.
    Link { before: &'a str, value: &'a str },
}

impl Search<'_> {
    /// A key that is equal only for equal searches.
    pub(crate) fn key(&self) -> String {
        let (kind, with, value) = match self {
            Search::Field { name, value } => ('f', name, value),
            Search::Hidden { name, value } => ('h', name, value),
            Search::Link { before, value } => ('l', before, value),
        };
        format!("{kind}{}:{with}{value}", with.len())
    }

    /// Texts of which an answer must contain one to have the value.
    fn texts(&self) -> Vec<String> {
        match self {
            Search::Field { value, .. } if value.len() >= LEAST_TOKEN => vec![(*value).to_string()],
            // A short value is found only by its field.
            Search::Field { value, .. } | Search::Hidden { value, .. } => {
                vec![format!("value=\"{value}"), format!("value='{value}")]
            }
            Search::Link { before, value } => {
                let mut all = vec![format!("{before}{value}")];
                if before.contains('&') {
                    all.push(format!("{}{value}", in_html(before)));
                }
                all
            }
        }
    }

    /// The value, if it may be a whole header or a whole value in JSON.
    fn whole(&self) -> Option<&str> {
        match self {
            Search::Field { value, .. } => Some(value),
            Search::Link { value, .. } if value.len() >= 2 => Some(value),
            _ => None,
        }
    }
}

/// Everything to search for.
#[derive(Debug, Default)]
pub(crate) struct SearchTerms {
    texts: HashSet<String>,
    wholes: HashSet<String>,
    /// Names of fields, in lower case.
    names: HashSet<String>,
}

impl SearchTerms {
    pub(crate) fn add(&mut self, search: &Search<'_>) {
        self.texts.extend(search.texts());
        self.wholes.extend(search.whole().map(str::to_string));
        match search {
            Search::Field { name, .. } | Search::Hidden { name, .. } => {
                self.names.insert(name.to_ascii_lowercase());
            }
            Search::Link { before, value } => {
                self.names.insert("id".into());
                // The file name before a query is omitted if it is a value itself.
                if let Some(query) = before.find('?') {
                    self.texts.extend(Search::Link { before: &before[query..], value }.texts());
                }
            }
        }
    }
}

/// Steps whose answers contain something, in order.
type StepList = Vec<u32>;

/// A value's places in a JSON document.
#[derive(Debug)]
struct JsonLeaf {
    step: u32,
    /// The first pointer to the value.
    first: String,
    /// The first pointer for each field name, in lower case.
    named: Vec<(String, String)>,
}

/// Which answers contain which texts.
#[derive(Debug, Default)]
pub(crate) struct AnswerIndex {
    texts: HashMap<String, StepList>,
    headers: HashMap<String, StepList>,
    leaves: HashMap<String, Vec<JsonLeaf>>,
}

impl AnswerIndex {
    /// Searches all answers. `progress` gets the number of those done.
    pub(crate) fn new(needles: &SearchTerms, steps: &[Step], progress: &mut dyn FnMut(usize)) -> AnswerIndex {
        let mut index = AnswerIndex::default();
        let finder = Finder::new(&needles.texts);
        for (at, step) in steps.iter().enumerate() {
            progress(at);
            let Some(answer) = &step.exchange.answer else { continue };
            let at = u32::try_from(at).unwrap_or(u32::MAX);
            finder.find_in(&answer.text, &mut |text| note(&mut index.texts, text, at));
            if let Some(url) = led_to(answer, step) {
                finder.find_in(url, &mut |text| note(&mut index.texts, text, at));
            }
            let headers = answer.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("location"));
            for (_, value) in headers.filter(|(_, value)| needles.wholes.contains(value)) {
                note(&mut index.headers, value, at);
            }
            if is_json(answer) {
                index.leaves_of(at, &answer.text, needles);
            }
        }
        index
    }

    fn leaves_of(&mut self, step: u32, text: &str, needles: &SearchTerms) {
        let Ok(document) = serde_json::from_str::<Value>(text) else { return };
        let mut leaves = Vec::new();
        walk(&document, String::new(), &mut leaves);
        for (pointer, leaf) in leaves {
            let value = match leaf {
                Value::String(text) if needles.wholes.contains(text) => text.clone(),
                Value::Number(n) => match n.to_string() {
                    n if needles.wholes.contains(&n) => n,
                    _ => continue,
                },
                _ => continue,
            };
            let name = pointer.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
            let places = self.leaves.entry(value).or_default();
            if places.last().is_none_or(|last| last.step != step) {
                places.push(JsonLeaf { step, first: pointer.clone(), named: Vec::new() });
            }
            if let Some(last) = places.last_mut()
                && needles.names.contains(&name)
                && !last.named.iter().any(|(n, _)| *n == name)
            {
                last.named.push((name, pointer));
            }
        }
    }

    /// The steps of a range whose answers may have the value, the latest first.
    pub(crate) fn candidates(&self, search: &Search<'_>, range: Range<usize>) -> impl Iterator<Item = usize> + use<> {
        let mut all: Vec<u32> = Vec::new();
        for text in search.texts() {
            latest(self.texts.get(&text), |step| *step, &range, &mut all);
        }
        if let Some(whole) = search.whole() {
            latest(self.headers.get(whole), |step| *step, &range, &mut all);
            latest(self.leaves.get(whole), |leaf| leaf.step, &range, &mut all);
        }
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.dedup();
        all.into_iter().take(MOST_ANSWERS_TRIED).map(|step| step as usize)
    }

    /// The pointer to a value in a step's answer: preferably one whose key has the name, otherwise the first.
    pub(crate) fn pointer(&self, step: usize, name: &str, value: &str) -> Option<String> {
        let places = self.leaves.get(value)?;
        let place = &places[places.binary_search_by(|leaf| (leaf.step as usize).cmp(&step)).ok()?];
        let named = place.named.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        Some(named.map_or(&place.first, |(_, pointer)| pointer).clone())
    }
}

/// Adds the latest steps of a range; `all` is in step order.
fn latest<T>(all: Option<&Vec<T>>, step: impl Fn(&T) -> u32, range: &Range<usize>, to: &mut Vec<u32>) {
    let all = all.map(Vec::as_slice).unwrap_or_default();
    let first = all.partition_point(|one| (step(one) as usize) < range.start);
    let end = all.partition_point(|one| (step(one) as usize) < range.end);
    let in_range = &all[first.min(end)..end];
    to.extend(in_range.iter().rev().take(MOST_ANSWERS_TRIED).map(step));
}

fn note(to: &mut HashMap<String, StepList>, text: &str, step: u32) {
    if let Some(steps) = to.get_mut(text) {
        if steps.last() != Some(&step) {
            steps.push(step);
        }
    } else {
        to.insert(text.to_string(), vec![step]);
    }
}

/// Searches for all texts at once.
struct Finder<'a> {
    /// Matches the beginnings of the texts; `None` if there are none, or too many.
    automaton: Option<AhoCorasick>,
    /// The lengths of the texts with each beginning.
    lengths: Vec<Vec<usize>>,
    texts: &'a HashSet<String>,
}

impl Finder<'_> {
    fn new(texts: &HashSet<String>) -> Finder<'_> {
        let mut by_prefix: HashMap<&[u8], HashSet<usize>> = HashMap::new();
        for text in texts.iter().filter(|text| !text.is_empty()) {
            let bytes = text.as_bytes();
            by_prefix.entry(&bytes[..bytes.len().min(PREFIX_BYTES)]).or_default().insert(bytes.len());
        }
        let (prefixes, lengths): (Vec<&[u8]>, Vec<HashSet<usize>>) = by_prefix.into_iter().unzip();
        let automaton = (!prefixes.is_empty()).then(|| AhoCorasick::new(&prefixes).ok()).flatten();
        Finder { automaton, lengths: lengths.into_iter().map(|all| all.into_iter().collect()).collect(), texts }
    }

    /// Calls `found` for each text in `within`, perhaps several times.
    fn find_in(&self, within: &str, found: &mut dyn FnMut(&str)) {
        let Some(automaton) = &self.automaton else { return };
        for prefix in automaton.find_overlapping_iter(within) {
            for length in &self.lengths[prefix.pattern().as_usize()] {
                if let Some(text) = within.get(prefix.start()..prefix.start() + length)
                    && self.texts.contains(text)
                {
                    found(text);
                }
            }
        }
    }
}

/// The values of a JSON document with their pointers.
pub(crate) fn walk<'a>(value: &'a Value, pointer: String, to: &mut Vec<(String, &'a Value)>) {
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
