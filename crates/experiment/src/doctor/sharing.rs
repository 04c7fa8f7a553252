//! Asks for a page as several users would, to see whether all of them get the same bytes. Nothing that could spoil a
//! cache on the way is sent: no other host, and no field that names one.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::examination::{AnswerSharing, ExaminedAnswer};
use lastdrop_model::plan::Plan;
use lastdrop_model::request::{Body, Pick, RequestSpec};
use lastdrop_probe::status::Answer;

use crate::doctor::answers::{Asker, is_plain};

/// Maximum number of URLs; each is asked for seven times or more.
const MOST_URLS: usize = 12;
/// Maximum number of cookies, and of fields of the plan's own, that a URL is asked for with.
const MOST_VALUES: usize = 4;
/// Time between the first answer and the same question again: pages that show the time differ then.
const LATER: Duration = Duration::from_millis(1100);
/// Names under which applications know a user, or what the user has chosen.
pub(super) const COOKIES: [&str; 18] = [
    "session",
    "sessionid",
    "sid",
    "PHPSESSID",
    "JSESSIONID",
    "connect.sid",
    "_session_id",
    "token",
    "auth",
    "user",
    "username",
    "uid",
    "id",
    "lang",
    "locale",
    "theme",
    "currency",
    "cart",
];
/// A browser on a telephone, and the address of somebody else, as a proxy tells it.
pub(super) const MOBILE: &str =
    "Mozilla/5.0 (Linux; Android 13; Pixel 7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Mobile Safari/537.36";
pub(super) const ADDRESS: &str = "192.0.2.77";
/// Fields of a plan that say nothing about a user, or that are varied by themselves.
const USUAL: [&str; 11] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "authorization",
    "cache-control",
    "connection",
    "cookie",
    "host",
    "referer",
    "user-agent",
    "x-forwarded-for",
];

/// Adds to the plan's own pages how they depend on who asks.
pub fn look(plan: &Plan, asker: &Asker<'_>, answers: &mut [ExaminedAnswer]) {
    let logs_in = logging_in(plan);
    let requests: Vec<PlanRequest<'_>> = plan
        .requests
        .iter()
        .zip(logs_in)
        .map(|(spec, logs_in)| PlanRequest { spec, has_secret: logs_in || has_secret(spec) })
        .collect();
    let mut pages: Vec<Page<'_>> = answers
        .iter_mut()
        .filter(|a| !a.embedded && a.status == 200)
        .take(MOST_URLS)
        .filter_map(|answer| Page::first(&requests, asker, answer))
        .collect();
    // Secrets go to nobody whose certificate is not verified.
    for page in pages.iter_mut().filter(|page| page.request.url.tls && !plan.tls.insecure) {
        page.cookies.clear();
    }
    // Cookies that one page sets may change another.
    let given: Vec<String> = pages.iter().flat_map(|page| cookies_of(&page.first)).collect();
    if plan.http.cookies && !given.is_empty() {
        pages.iter_mut().for_each(|page| page.sharing.known_share = 1.0);
    }
    let invented = COOKIES.iter().enumerate().map(|(n, name)| format!("{name}=lastdrop{n}"));
    let jar = given.into_iter().chain(invented).collect::<Vec<_>>().join("; ");
    for page in &mut pages {
        page.vary(asker, &jar);
    }
    for page in pages {
        page.ask_again(asker);
    }
}

/// Asks for the pages once more after all load, if the plan's users write something: what they wrote may be on them.
pub fn look_again(plan: &Plan, asker: &Asker<'_>, answers: &mut [ExaminedAnswer]) {
    if plan.requests.iter().all(is_reading) {
        return;
    }
    for answer in answers {
        let Some(sharing) = answer.sharing.as_mut() else { continue };
        let Some(request) = plan.requests.iter().find(|r| is_plain(r) && r.url.to_string() == answer.url) else {
            continue;
        };
        if let Some(again) = asker.ask(&request.url, &anonymous(request)) {
            sharing.same.insert("after the load".into(), again.status == 200 && hash(&again.body) == sharing.first);
        }
    }
}

fn is_reading(request: &RequestSpec) -> bool {
    ["GET", "HEAD", "OPTIONS"].contains(&request.method.as_str())
}

/// Returns for each request whether its user has logged in: its session sends something.
fn logging_in(plan: &Plan) -> Vec<bool> {
    if !matches!(plan.pick, Pick::Session | Pick::Sessions) {
        return vec![false; plan.requests.len()];
    }
    plan.requests
        .split_inclusive(|r| plan.pick == Pick::Sessions && r.last)
        .flat_map(|session| {
            let logs_in = session.iter().any(|r| !is_reading(r) || r.once);
            session.iter().map(move |_| logs_in)
        })
        .collect()
}

/// Returns true if a request says which user sends it, in a way that caches know.
fn has_secret(request: &RequestSpec) -> bool {
    let is_secret = |name: &str| ["cookie", "authorization"].iter().any(|n| name.eq_ignore_ascii_case(n));
    request.auth.is_some() || request.headers.iter().any(|(name, value)| is_secret(name) && !value.is_empty())
}

/// Returns true if a request differs from user to user in what no cache knows.
fn has_hidden_user(request: &RequestSpec) -> bool {
    let has_template = |(name, value): &(String, String)| {
        value.contains("{{") && !["cookie", "authorization"].iter().any(|n| name.eq_ignore_ascii_case(n))
    };
    request.lines.is_some()
        || request.body != Body::None
        || !request.literal && request.headers.iter().any(has_template)
}

/// Returns the fields of a request without those that name its user.
pub(super) fn anonymous(request: &RequestSpec) -> Vec<(String, String)> {
    let is_left_out =
        |name: &str| ["cookie", "authorization", "accept-encoding"].iter().any(|n| name.eq_ignore_ascii_case(n));
    request.headers.iter().filter(|(name, _)| !is_left_out(name)).cloned().collect()
}

fn hash(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    hasher.finish()
}

/// A request of the plan, and whether it names its user.
struct PlanRequest<'a> {
    spec: &'a RequestSpec,
    has_secret: bool,
}

/// A page, the first answer to a user without cookies, and what became of the others.
struct Page<'a> {
    request: &'a RequestSpec,
    /// Fields of the request without cookies.
    fields: Vec<(String, String)>,
    /// Cookies that the plan itself sends, and fields that may name a user.
    cookies: Vec<String>,
    own: Vec<(String, String)>,
    first: Answer,
    at: Instant,
    sharing: AnswerSharing,
    answer: &'a mut ExaminedAnswer,
}

impl<'a> Page<'a> {
    fn first(requests: &[PlanRequest<'a>], asker: &Asker<'_>, answer: &'a mut ExaminedAnswer) -> Option<Page<'a>> {
        let own = || requests.iter().filter(|r| r.spec.method == "GET" && r.spec.url.to_string() == answer.url);
        let request = own().map(|r| r.spec).find(|r| is_plain(r))?;
        let weights = |of: &mut dyn Iterator<Item = &PlanRequest<'a>>| of.map(|r| r.spec.weight).sum::<f64>();
        let all = weights(&mut own()).max(f64::MIN_POSITIVE);
        let known_share = weights(&mut own().filter(|r| r.has_secret)) / all;
        let known_users = own().any(|r| has_hidden_user(r.spec));
        let fields = anonymous(request);
        let values = |is_wanted: &dyn Fn(&str) -> bool| {
            let mut all: Vec<(String, String)> = own()
                .flat_map(|r| r.spec.headers.iter())
                .filter(|(name, value)| !value.is_empty() && is_wanted(&name.to_ascii_lowercase()))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
                .collect();
            all.sort();
            all.dedup();
            all
        };
        // Templates in them have no value yet.
        let cookies = values(&|name| name == "cookie").into_iter().map(|(_, value)| value);
        let cookies = cookies.filter(|value| !value.contains("{{")).take(MOST_VALUES).collect();
        let mut others = values(&|name| !USUAL.contains(&name));
        let invented: Vec<_> = others.iter().map(|(name, _)| (name.clone(), "lastdrop".to_string())).collect();
        others.extend(invented);
        others.sort();
        others.dedup();
        let first = asker.ask(&request.url, &fields)?;
        if first.status != 200 || first.body.is_empty() || first.is_cut() {
            return None;
        }
        let sharing = AnswerSharing {
            kept_from_caches: forbids(&first),
            vary: first.field_values("vary").to_ascii_lowercase(),
            from_cache: is_from_cache(&first),
            known_users,
            known_share,
            first: hash(&first.body),
            took_us: answer.took_us,
            ..AnswerSharing::default()
        };
        Some(Page { request, fields, cookies, own: others, first, at: Instant::now(), sharing, answer })
    }

    /// Asks as others would.
    fn vary(&mut self, asker: &Asker<'_>, jar: &str) {
        for cookie in std::mem::take(&mut self.cookies) {
            self.ask(asker, "the plan's cookies", &[("Cookie", &cookie)]);
        }
        for (name, value) in std::mem::take(&mut self.own) {
            self.ask(asker, &name, &[(&name, &value)]);
        }
        self.ask(asker, "cookies", &[("Cookie", jar)]);
        self.ask(asker, "language", &[("Accept-Language", "de-DE,de;q=0.9")]);
        self.ask(asker, "type", &[("Accept", "application/json"), ("X-Requested-With", "XMLHttpRequest")]);
        self.ask(asker, "browser", &[("User-Agent", MOBILE), ("X-Forwarded-For", ADDRESS)]);
        self.ask(asker, "coding", &[("Accept-Encoding", "gzip")]);
    }

    fn ask_again(mut self, asker: &Asker<'_>) {
        thread::sleep(LATER.saturating_sub(self.at.elapsed()));
        self.ask(asker, "again", &[]);
        self.answer.sharing = Some(self.sharing);
    }

    fn ask(&mut self, asker: &Asker<'_>, what: &str, more: &[(&str, &str)]) {
        let is_replaced = |name: &str| more.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        let kept = self.fields.iter().filter(|(name, _)| !is_replaced(name)).cloned();
        let fields: Vec<(String, String)> =
            kept.chain(more.iter().map(|(n, v)| ((*n).to_string(), (*v).to_string()))).collect();
        let Some((answer, took)) = asker.timed(&self.request.url, &fields) else { return };
        let same = answer.status == 200 && answer.body == self.first.body;
        let so_far = self.sharing.same.entry(what.to_string()).or_insert(true);
        *so_far &= same;
        self.sharing.from_cache |= is_from_cache(&answer);
        self.sharing.took_us = self.sharing.took_us.min(took.as_secs_f64() * 1e6);
        // No cache keeps an answer to somebody with cookies. A session that does not exist is deleted by a cookie, too.
        if self.sharing.kept_from_caches.is_empty() && !is_replaced("cookie") {
            self.sharing.kept_from_caches = forbids(&answer);
        }
    }
}

fn is_from_cache(answer: &Answer) -> bool {
    let value = |name: &str| answer.field_values(name).to_ascii_lowercase();
    !value("age").is_empty()
        || ["x-cache", "x-cache-status", "cf-cache-status"].iter().any(|n| value(n).contains("hit"))
}

/// Returns the cookies that an answer sets, as a request sends them.
fn cookies_of(answer: &Answer) -> Vec<String> {
    let set = answer.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
    set.filter_map(|(_, value)| String::from_utf8_lossy(value).split(';').next().map(|c| c.trim().to_string()))
        .collect()
}

/// Returns what in an answer forbids a shared cache to keep it. Empty: nothing.
fn forbids(answer: &Answer) -> String {
    let value = |name: &str| answer.field_values(name).to_ascii_lowercase();
    let control = value("cache-control");
    let named = |list: &str, name: &str| list.split(',').any(|w| w.trim().split('=').next() == Some(name));
    let vary = value("vary");
    let directive =
        ["private", "no-store", "no-cache", "must-understand"].into_iter().find(|name| named(&control, name));
    let max_age = |name: &str| control.split(',').any(|w| w.trim() == format!("{name}=0"));
    match () {
        () if !value("set-cookie").is_empty() => "Set-Cookie".into(),
        () if directive.is_some() => format!("Cache-Control: {}", directive.unwrap_or_default()),
        () if max_age("s-maxage") || max_age("max-age") && !control.contains("s-maxage") => {
            format!("Cache-Control: {control}")
        }
        () if value("pragma").contains("no-cache") => "Pragma: no-cache".into(),
        () if ["0", "-1"].contains(&value("expires").trim()) => format!("Expires: {}", value("expires")),
        () if ["*", "cookie", "authorization"].iter().any(|name| named(&vary, name)) => format!("Vary: {vary}"),
        () => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_has_logged_in_or_sends_a_cookie_is_told_from_one_who_has_not() {
        let get = || RequestSpec::get("http://127.0.0.1/a".parse().expect("a URL"));
        let mut plan = Plan::new(get().url, 1);
        let login = RequestSpec { method: "POST".into(), ..get() };
        plan.requests = vec![RequestSpec { last: true, ..get() }, login, RequestSpec { last: true, ..get() }, get()];
        assert_eq!(logging_in(&plan), [false; 4]);
        plan.pick = Pick::Sessions;
        assert_eq!(logging_in(&plan), [false, true, true, false]);
        plan.pick = Pick::Session;
        assert_eq!(logging_in(&plan), [true; 4]);
        let with = |name: &str, value: &str| RequestSpec { headers: vec![(name.into(), value.into())], ..get() };
        assert!(has_secret(&with("cookie", "a=b")) && has_secret(&with("Authorization", "{{token}}")));
        assert!(!has_secret(&with("X-User", "{{user}}")) && has_hidden_user(&with("X-User", "{{user}}")));
        assert!(!has_hidden_user(&with("Cookie", "id={{user}}")));
        assert!(anonymous(&with("Cookie", "a=b")).is_empty());
    }

    #[test]
    fn what_an_answer_says_to_shared_caches_is_understood() {
        let said = |name: &str, value: &str| {
            forbids(&Answer { status: 200, fields: vec![(name.into(), value.as_bytes().to_vec())], body: Vec::new() })
        };
        for (name, value) in [
            ("Set-Cookie", "a=b"),
            ("Cache-Control", "max-age=60, Private"),
            ("Cache-Control", "no-store"),
            ("Cache-Control", "private=\"x-user\""),
            ("cache-control", "max-age=0"),
            ("Cache-Control", "s-maxage=0, max-age=60"),
            ("Pragma", "no-cache"),
            ("Expires", "0"),
            ("Vary", "*"),
            ("Vary", "Accept-Encoding, Cookie"),
        ] {
            assert!(!said(name, value).is_empty(), "{name}: {value}");
        }
        for (name, value) in [
            ("Vary", "Accept-Encoding"),
            ("Cache-Control", "max-age=60"),
            ("Cache-Control", "max-age=0, s-maxage=60"),
            ("Content-Type", "text/html"),
        ] {
            assert_eq!(said(name, value), "", "{name}: {value}");
        }
    }
}
