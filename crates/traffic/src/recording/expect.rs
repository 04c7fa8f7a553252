//! Expectations of a recorded step's answer: its status, its URL, its title, and a text that only this user sees.
//!
//! A title or a path may contain data of the recorded user. Another user of the plan has other data, so a value of the
//! data file is never expected.

use lastdrop_model::class;

use super::steps::Step;
use super::values::Column;
use super::{RecordedAnswer, find};

const LONGEST_TITLE: usize = 60;
/// Lengths of a text that tells a user's page from a new visitor's.
const LEAST_TEXT: usize = 4;
const LONGEST_TEXT: usize = 60;
/// Most texts of a page to compare.
const MOST_TEXTS: usize = 2_000;
/// Texts that pages show only to users who are logged in.
const OF_USERS: [&str; 5] = ["log out", "logout", "sign out", "log off", "abmelden"];
/// Shorter values of a user occur everywhere by chance.
const LEAST_VALUE: usize = 3;

/// Sets the expectations of each step's answer. `stranger` returns the answer to a request without cookies.
pub(crate) fn expect(steps: &mut [Step], columns: &[Column], stranger: &dyn Fn(&Step) -> Option<RecordedAnswer>) {
    let follows = steps.iter().any(|s| s.redirects > 0);
    let users: Vec<&str> = columns.iter().map(|c| c.1.as_str()).filter(|v| v.len() >= LEAST_VALUE).collect();
    let texts: Vec<String> = (0..steps.len())
        .map(|at| stranger(&steps[at]).and_then(|answer| text(steps, at, &answer, &users)).unwrap_or_default())
        .collect();
    for (step, text) in steps.iter_mut().zip(texts) {
        let Some(answer) = step.exchange.answer.as_ref().filter(|a| a.status > 0) else { continue };
        let mut all = vec![status(step, answer, follows)];
        // If redirects are followed, a redirect to the login would end in a page with status 200.
        if follows {
            let landed = step.landed.as_ref().unwrap_or(&step.exchange.url);
            all.push(format!("url={}", path(&landed.path, &users)));
        }
        if let Some(title) = title(&answer.text).filter(|title| is_html(answer) && !has_any(title, &users)) {
            all.push(format!("text=<title>{title}</title>"));
        }
        all.extend((!text.is_empty()).then(|| format!("text={text}")));
        step.expect = all;
    }
}

fn status(step: &Step, answer: &RecordedAnswer, follows: bool) -> String {
    match answer.status {
        // A cached answer, or a part of one: the plan requests all of it.
        206 | 304 => "status=200".into(),
        // The browser did not follow the redirect, but the plan's users will.
        301 | 302 | 303 | 307 | 308 if follows && leads_to_us(step, answer) => "status=2xx,3xx".into(),
        status => format!("status={status}"),
    }
}

fn leads_to_us(step: &Step, answer: &RecordedAnswer) -> bool {
    let here = step.landed.as_ref().unwrap_or(&step.exchange.url);
    find(&answer.headers, "location").and_then(|l| here.join(l).ok()).is_some_and(|there| there.host == here.host)
}

/// A path and the names of its query's fields, with `*` for the user's own values.
fn path(target: &str, users: &[&str]) -> String {
    let folded = class::fold(target);
    let (path, query) = folded.split_once('?').map_or((folded.as_str(), None), |(path, query)| (path, Some(query)));
    let segment = |segment: &str| if has_any(segment, users) { "*".to_string() } else { segment.to_string() };
    let path = path.split('/').map(segment).collect::<Vec<_>>().join("/");
    query.map_or(path.clone(), |query| format!("{path}?{query}"))
}

fn has_any(text: &str, values: &[&str]) -> bool {
    let encoded = text.replace("%40", "@");
    values.iter().any(|value| encoded.contains(value))
}

fn is_html(answer: &RecordedAnswer) -> bool {
    answer.content_type.contains("html")
}

/// The title of a page, if it seems constant.
fn title(text: &str) -> Option<&str> {
    let start = text.find("<title>")? + "<title>".len();
    let title = &text[start..start + text[start..].find("</title>")?];
    let same = |c: char| !c.is_ascii_digit() && !c.is_control();
    (!title.trim().is_empty() && title.len() <= LONGEST_TITLE && title.chars().all(same)).then_some(title)
}

/// A text of a step's page that the answer without cookies lacks.
fn text(steps: &[Step], at: usize, stranger: &RecordedAnswer, users: &[&str]) -> Option<String> {
    let answer = steps[at].exchange.answer.as_ref().filter(|a| is_html(a))?;
    if answer.status == stranger.status && answer.text == stranger.text {
        return None;
    }
    let own: Vec<&str> =
        texts(&answer.text).into_iter().filter(|t| !stranger.text.contains(t) && !has_any(t, users)).collect();
    let of_users = |t: &&&str| OF_USERS.iter().any(|word| t.to_ascii_lowercase().contains(word));
    // A text on several pages is not a one-time message.
    let others = || steps.iter().enumerate().filter(|(other, _)| *other != at);
    let in_another = |t: &&&str| {
        others().any(|(_, s)| s.exchange.answer.as_ref().is_some_and(|a| is_html(a) && a.text.contains(**t)))
    };
    let found = own.iter().find(of_users).or_else(|| own.iter().find(in_another));
    // Another status already tells the answer without cookies apart; with the same status only a text does.
    let is_alike = answer.status == stranger.status;
    found.or_else(|| own.first().filter(|_| is_alike)).map(ToString::to_string)
}

/// Texts between the tags of a page that seem constant.
fn texts(page: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find('>') {
        let after = &rest[start + 1..];
        let tag = rest[..start].rfind('<').map_or("", |at| &rest[at + 1..start]).to_ascii_lowercase();
        let hidden = ["script", "style", "title", "textarea"].into_iter().find(|name| {
            tag.strip_prefix(name).is_some_and(|more| !more.starts_with(|c: char| c.is_ascii_alphanumeric()))
        });
        if let Some(name) = hidden {
            let Some(end) = after.to_ascii_lowercase().find(&format!("</{name}")) else { break };
            rest = &after[end..];
            continue;
        }
        let end = after.find('<').unwrap_or(after.len());
        let text = after[..end].trim();
        let same = |c: char| !c.is_ascii_digit() && !c.is_control();
        if (LEAST_TEXT..=LONGEST_TEXT).contains(&text.len()) && text.chars().all(same) && all.len() < MOST_TEXTS {
            all.push(text);
        }
        rest = &after[end..];
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_that_a_reader_sees() {
        let page = "<title>Shop title</title><style>a > b { color: red }</style><h1>Hello there</h1><p>7 items<p>ab\
                    <script>if (1 > 0) alert('gone')</script><a href='/x'> Log out </a> and more";
        assert_eq!(texts(page), ["Hello there", "Log out", "and more"]);
        assert_eq!(texts("<script>never closed > here"), [""; 0]);
        assert_eq!(texts("no tag"), [""; 0]);
    }

    #[test]
    fn a_users_own_name_is_in_no_path() {
        assert_eq!(path("/user/ann@example.test/orders/17?tab=2", &["ann@example.test"]), "/user/*/orders/{n}?tab");
        assert_eq!(path("/user/ann%40example.test", &["ann@example.test"]), "/user/*");
    }
}
