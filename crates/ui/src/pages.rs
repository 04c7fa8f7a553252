//! The pages around the sections of a report: the list of all runs, and the actions on a run.

use std::collections::HashMap;

use lastdrop_model::{ObjectiveResult, Printable, Run, Verdict};
use lastdrop_report::html::EscapedText;
use lastdrop_report::{history_line, utc};
use lastdrop_store::{
    ExperimentRun, ItemKind, ListItem, Listing, MOST_NOTE_CHARS, MOST_TAG_CHARS, MOST_TAGS, Remark, RunState,
};
use maud::{Markup, html};

use crate::authenticator::Authenticator;
use crate::progress::RunningTotals;
use crate::request::Request;

/// Rows per page of the list.
pub const ROWS: usize = 50;
const MOST_SEARCHED_CHARS: usize = 200;
const MOST_PAGES: usize = 1_000_000;
/// Characters of a note in the list.
const MOST_NOTE_SHOWN: usize = 140;

/// The requested part of the list.
#[derive(Debug, Clone, Default)]
pub struct ListQuery {
    pub search: String,
    /// Page number, from 0.
    pub page: usize,
    /// The first of two runs to compare.
    pub first: Option<String>,
}

impl ListQuery {
    pub fn of(request: &Request) -> ListQuery {
        let page = request.asked("page").and_then(|n| n.parse::<usize>().ok()).unwrap_or(1).clamp(1, MOST_PAGES) - 1;
        let search = request.asked("q").unwrap_or_default().trim().chars().take(MOST_SEARCHED_CHARS).collect();
        let first = request.asked("a").filter(|id| !id.is_empty()).map(String::from);
        ListQuery { search, page, first }
    }

    /// Returns the address of this part of the list.
    fn link(&self) -> String {
        let mut parts = Vec::new();
        if !self.search.is_empty() {
            parts.push(format!("q={}", encoded(&self.search)));
        }
        if self.page > 0 {
            parts.push(format!("page={}", self.page + 1));
        }
        parts.extend(self.first.iter().map(|id| format!("a={}", encoded(id))));
        if parts.is_empty() { "/".into() } else { format!("/?{}", parts.join("&")) }
    }
}

/// Encodes a value of a query string.
fn encoded(text: &str) -> String {
    let byte = |b: u8| match b {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// Formats a time for people.
fn when(unix_ms: u64) -> String {
    utc(unix_ms).replace('T', " ").trim_end_matches('Z').to_string()
}

/// Renders the list; `under_way` holds the numbers of its running runs.
pub fn list(
    asked: &ListQuery,
    first: Option<&ListItem>,
    listing: &Listing,
    under_way: &HashMap<String, RunningTotals>,
) -> Markup {
    let pages = listing.all.div_ceil(ROWS).max(1);
    let from = asked.page * ROWS;
    html! {
        div.bar {
            h1 { "Runs" }
            form.search method="get" action="/" role="search" {
                label for="q" { "Search" }
                input #q type="search" name="q" value=(asked.search) maxlength=(MOST_SEARCHED_CHARS)
                    placeholder="URL, label, tag, note, id" autocomplete="off";
                @if let Some(id) = &asked.first { input type="hidden" name="a" value=(id); }
                button type="submit" { "Search" }
            }
        }
        @if let Some(first) = first {
            div.pick role="status" {
                p {
                    strong { "Compare " } (EscapedText(&what(first))) span.quiet { " of " (when(first.at_unix_ms)) " UTC" }
                    strong { " with …" } " choose another run."
                }
                a href=(ListQuery { first: None, ..asked.clone() }.link()) { "Do not compare" }
            }
        }
        div #kept data-changes="/events" {
            @if listing.entries.is_empty() { (nothing(asked)) } @else {
                div.wide {
                    table.kept {
                        caption.unseen { "What is kept, the latest first" }
                        thead { tr {
                            th scope="col" { "what" } th scope="col" { "began (UTC)" } th scope="col" { "load" }
                            th scope="col" .n { "answered/s" } th scope="col" .n { "p99" } th scope="col" .n { "unanswered" }
                            th scope="col" { span.unseen { "compare" } }
                        } }
                        tbody { @for one in &listing.entries { (row(one, asked, under_way.get(&one.id))) } }
                    }
                }
            }
            nav.pages aria-label="Pages" {
                @if asked.page > 0 {
                    a #newer href=(ListQuery { page: asked.page - 1, ..asked.clone() }.link()) rel="prev" { "← Newer" }
                }
                @if !listing.entries.is_empty() {
                    span.quiet {
                        (from + 1) "–" (from + listing.entries.len()) " of " (listing.all)
                        @if pages > 1 { ", page " (asked.page + 1) " of " (pages) }
                    }
                }
                @if asked.page + 1 < pages {
                    a #older href=(ListQuery { page: asked.page + 1, ..asked.clone() }.link()) rel="next" { "Older →" }
                }
            }
        }
    }
}

fn nothing(asked: &ListQuery) -> Markup {
    html! {
        @if !asked.search.is_empty() {
            p { "Nothing that is kept has all of these words. " a href="/" { "All runs" } }
        } @else if asked.page > 0 {
            p { "There is no such page. " a href="/" { "The latest runs" } }
        } @else {
            p { "No runs yet. Make one, and it is seen here while it is under way:" }
            pre { "lastdrop run http://127.0.0.1/ -c 10 -d 30s" }
        }
    }
}

fn what(one: &ListItem) -> String {
    match &one.what {
        ItemKind::Run { label, url, .. } if label.is_empty() => url.clone(),
        ItemKind::Run { label, url, .. } => format!("{url} ({label})"),
        ItemKind::Document { schema } => {
            let name = schema.trim_start_matches("lastdrop.").split('/').next().unwrap_or_default();
            let name = if name == "compare" { "comparison" } else { name };
            name.get(..1).unwrap_or_default().to_uppercase() + name.get(1..).unwrap_or_default()
        }
    }
}

fn row(one: &ListItem, asked: &ListQuery, so_far: Option<&RunningTotals>) -> Markup {
    let (numbers, chip) = match &one.what {
        ItemKind::Run { state: RunState::Ended(run), .. } => {
            let cells = history_line("", 0, "", "", Some(run));
            (cells[2..6].to_vec(), chip_of(run))
        }
        ItemKind::Run { state: RunState::UnderWay(_), .. } => {
            (so_far.map_or_else(|| vec![String::new(); 4], RunningTotals::cells), Some(("note", "under way")))
        }
        ItemKind::Run { state: RunState::Unfinished, .. } => (vec![String::new(); 4], Some(("warning", "unfinished"))),
        ItemKind::Document { .. } if one.parts.is_empty() => (vec![String::new(); 4], Some(("quiet", "several runs"))),
        ItemKind::Document { .. } => (vec![String::new(); 4], None),
    };
    // Only runs with numbers can be compared.
    let comparable = matches!(&one.what, ItemKind::Run { state: RunState::Ended(_) | RunState::Unfinished, .. });
    let id = &one.id;
    html! {
        tr.chosen[asked.first.as_ref() == Some(id)] {
            th.what scope="row" {
                a id=(format!("run-{id}")) href=(format!("/run/{id}")) { (EscapedText(&what(one))) }
                @if let Some((tone, word)) = chip { " " span.chip.(tone) { (word) } }
                @for tag in &one.remark.tags {
                    " " a.tag href=(ListQuery { search: tag.clone(), page: 0, first: asked.first.clone() }.link()) { (EscapedText(tag)) }
                }
                @if !one.parts.is_empty() { (parts(one)) }
                @if !one.remark.note.is_empty() { p.note-text { (EscapedText(&short(&one.remark.note))) } }
            }
            td.when { (when(one.at_unix_ms)) }
            td.load { (EscapedText(&numbers[3])) }
            td.n data-name="answered/s" { (EscapedText(&numbers[0])) }
            td.n data-name="p99" { (EscapedText(&numbers[1])) }
            td.n data-name="unanswered" { (EscapedText(&numbers[2])) }
            td.compare { @if comparable { (compare(id, asked, &what(one))) } }
        }
    }
}

/// Renders the runs of an experiment, folded.
fn parts(one: &ListItem) -> Markup {
    let left = one.part_count.saturating_sub(one.parts.len());
    html! {
        details.parts id=(format!("parts-{}", one.id)) {
            summary { (one.part_count) @if one.part_count == 1 { " run" } @else { " runs" } }
            ol {
                @for part in &one.parts {
                    li { a href=(format!("/run/{}", part.id)) { (EscapedText(&part_name(part))) } }
                }
                @if left > 0 { li.quiet { (left) " more: lastdrop history --all -n " (one.part_count) } }
            }
        }
    }
}

fn part_name(part: &ExperimentRun) -> String {
    if part.label.is_empty() { format!("{} {}", part.id, part.url) } else { part.label.clone() }
}

/// The first click chooses one run, the second the other.
fn compare(id: &str, asked: &ListQuery, what: &str) -> Markup {
    let name = format!("cmp-{id}");
    match &asked.first {
        None => {
            let link = ListQuery { first: Some(id.into()), ..asked.clone() }.link();
            html! { a id=(name) href=(link) aria-label=(EscapedText(&format!("compare {what} with another run"))) { "compare" } }
        }
        Some(first) if first == id => html! { span.quiet { "this one" } },
        Some(first) => html! {
            a.button id=(name) href=(format!("/compare?a={}&b={}", encoded(first), encoded(id)))
                aria-label=(EscapedText(&format!("with this: {what}"))) { "with this" }
        },
    }
}

fn chip_of(run: &Run) -> Option<(&'static str, &'static str)> {
    match run.validity.verdict {
        _ if !run.answered_anything() => Some(("bad", "nothing answered")),
        Verdict::Invalid => Some(("bad", "invalid")),
        _ if !ObjectiveResult::all_met(&run.objectives) => Some(("bad", "objective missed")),
        Verdict::Doubtful => Some(("warning", "doubtful")),
        Verdict::Valid => None,
    }
}

fn short(text: &str) -> String {
    match text.char_indices().nth(MOST_NOTE_SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
}

/// The bar above a page: the way back to the list, and actions.
pub fn above(actions: Option<Markup>) -> Markup {
    html! {
        nav.bar.above aria-label="This page" {
            a href="/" { "← All runs" }
            @if let Some(actions) = actions { div.actions { (actions) } }
        }
    }
}

fn action(path: &str, word: &str, class: &str, authenticator: &Authenticator) -> Markup {
    html! {
        form method="post" action=(path) {
            input type="hidden" name="key" value=(authenticator.key.text());
            button.(class) type="submit" { (word) }
        }
    }
}

/// Actions on a run that has ended.
pub fn actions(run: &Run, authenticator: &Authenticator) -> Markup {
    html! {
        a.button href=(ListQuery { first: Some(run.id.clone()), ..ListQuery::default() }.link()) { "Compare with another run" }
        @match run.plan.repeatable() {
            Ok(_) => (action(&format!("/run/{}/again", run.id), "Start it again", "primary", authenticator)),
            Err(why) => span.quiet { "It cannot be started again: " (why.to_string()) },
        }
    }
}

/// The action on a run in progress.
pub fn stop(id: &str, asked: bool, authenticator: &Authenticator) -> Markup {
    html! {
        @if asked { span.quiet role="status" { "It was asked to stop, and waits for what is in flight." } }
        @else { (action(&format!("/run/{id}/stop"), "Stop it", "stop", authenticator)) }
    }
}

/// The action on a comparison.
pub fn swap(a: &str, b: &str) -> Markup {
    html! { a.button href=(format!("/compare?a={}&b={}", encoded(b), encoded(a))) { "The other way around" } }
}

/// A form to edit tags and note.
pub fn remark(id: &str, remark: &Remark, authenticator: &Authenticator) -> Markup {
    html! {
        section.remark aria-labelledby="remark" {
            h2.group #remark { "Tags and note" }
            form method="post" action=(format!("/run/{id}/remark")) {
                input type="hidden" name="key" value=(authenticator.key.text());
                label for="tags" { "Tags, with spaces between them" }
                input #tags type="text" name="tags" value=(remark.tags.join(" ")) maxlength=(MOST_TAGS * (MOST_TAG_CHARS + 1))
                    autocomplete="off";
                label for="note" { "Note" }
                textarea #note name="note" rows="3" maxlength=(MOST_NOTE_CHARS) { "\n" (remark.note) }
                button type="submit" { "Save" }
            }
        }
    }
}

pub fn failure(why: &str) -> Markup {
    html! { (above(None)) h1 { "Not done" } p.why { (Printable::from(why).as_str()) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_wrote_is_text_and_never_markup() {
        let evil = "\"><script>alert(1)</script>&amp;'";
        let one = ListItem {
            id: "a1".into(),
            at_unix_ms: 5,
            what: ItemKind::Run { label: evil.into(), url: evil.into(), state: RunState::Unfinished },
            remark: Remark { tags: vec![evil.into()], note: evil.into() },
            parts: vec![ExperimentRun { id: "a2".into(), label: evil.into(), url: evil.into() }],
            part_count: 7,
        };
        let asked = ListQuery { search: evil.into(), page: 1, first: Some(evil.into()) };
        let listing = Listing { entries: vec![one.clone()], all: 500 };
        let page = list(&asked, Some(&one), &listing, &HashMap::new()).into_string();
        let authenticator =
            Authenticator::new("127.0.0.1:1".parse().expect("an address"), vec![], false).expect("random bytes");
        let form = remark("a1", &one.remark, &authenticator).into_string();
        for text in [&page, &form, &failure(evil).into_string()] {
            assert!(!text.contains("<script") && !text.contains("'>"), "{text}");
        }
        let addresses: Vec<&str> = page.split("href=\"").skip(1).filter_map(|p| p.split('"').next()).collect();
        assert!(addresses.len() > 5 && addresses.iter().all(|a| a.starts_with('/')), "{addresses:?}");
    }

    #[test]
    fn a_part_of_the_list_has_an_address() {
        let asked = ListQuery { search: "a b&c=ä".into(), page: 2, first: Some("3fa2".into()) };
        let link = asked.link();
        assert_eq!(link, "/?q=a%20b%26c%3D%C3%A4&page=3&a=3fa2");
        let query = lastdrop_http::form::fields(link.split_once('?').expect("a query").1);
        let back = ListQuery::of(&Request { query, ..Request::default() });
        assert_eq!((back.search, back.page, back.first), (asked.search, asked.page, asked.first));
    }
}
