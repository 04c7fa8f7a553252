//! Asks for single answers of the plan as a browser does, one at a time and before the full load. They show what no
//! counter of the server shows, such as text that is sent uncompressed.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use lastdrop_load::page::embedded;
use lastdrop_load::resolve;
use lastdrop_model::Url;
use lastdrop_model::examination::{ExaminedAnswer, Gzipped};
use lastdrop_model::plan::Plan;
use lastdrop_model::request::{Body, RequestSpec};
use lastdrop_probe::host::timed;
use lastdrop_probe::status::{self, Answer};

use crate::doctor::sharing;

/// Maximum number of the plan's requests, and of files that their pages embed.
const MOST_REQUESTS: usize = 16;
const MOST_FILES: usize = 16;
/// Time for one answer, and for all of them.
const LIMIT: Duration = Duration::from_secs(3);
const ALL: Duration = Duration::from_secs(6);
/// Time for all answers to several users; slow pages need most of it.
const OF_USERS: Duration = Duration::from_secs(15);
/// What browsers accept; a server may have any of them.
const CODINGS: &str = "gzip, deflate, br, zstd";
/// Levels of gzip: nginx's and HAProxy's default, and Apache's.
const LEVELS: [u32; 2] = [1, 6];
/// Longer texts are compressed for a quarter of a second here: their size is known well enough by the beginning.
const MOST_COMPRESSED_BYTES: usize = 4 << 20;

/// Returns the answers to the plan's plain GETs, the most frequent first, each with the files that it embeds.
pub fn look(plan: &Plan) -> Vec<ExaminedAnswer> {
    if !can_ask(plan) {
        return Vec::new();
    }
    let asker = Asker::within(plan, ALL);
    let mut all = pages_and_files(plan, &asker);
    all.extend(missing(plan, &asker));
    sharing::look(plan, &Asker::within(plan, OF_USERS), &mut all);
    all
}

/// Asks once more, after all load, for pages on which something may have changed.
pub fn look_again(plan: &Plan, answers: &mut [ExaminedAnswer]) {
    if can_ask(plan) {
        sharing::look_again(plan, &Asker::within(plan, ALL), answers);
    }
}

/// Returns true if an address is enough to connect to. A log's requests are not in the plan.
pub fn can_ask(plan: &Plan) -> bool {
    let network = &plan.network;
    network.unix_socket.is_none() && network.proxy.is_none() && plan.replay.is_none()
}

/// Asks for the plan's pages, and for what they embed.
fn pages_and_files(plan: &Plan, asker: &Asker<'_>) -> Vec<ExaminedAnswer> {
    let total: f64 = plan.requests.iter().map(|r| r.weight).sum();
    let mut wanted: Vec<&RequestSpec> = plan.requests.iter().filter(|r| is_plain(r)).collect();
    wanted.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let mut all: Vec<ExaminedAnswer> = Vec::new();
    let mut files: Vec<PageFile> = Vec::new();
    for request in wanted.into_iter().take(MOST_REQUESTS) {
        let share = request.weight / total.max(f64::MIN_POSITIVE);
        if let Some(known) = all.iter_mut().find(|a| a.url == request.url.to_string()) {
            known.share += share;
            continue;
        }
        let fields = fields(plan, request);
        let Some((answer, took)) = asker.timed(&request.url, &fields) else { break };
        let examined = ExaminedAnswer { share, ..examined(&request.url, &answer, took) };
        if examined.media_type == "text/html" && examined.status == 200 {
            // A page that came compressed is asked for once more, to be read.
            let plain = if examined.coding.is_empty() { Some(answer) } else { asker.ask(&request.url, &fields[1..]) };
            let own = plain.map(|page| embedded(&page.body, &request.url).urls).unwrap_or_default().into_iter();
            files.extend(own.filter(|u| u.origin() == request.url.origin()).map(|url| PageFile {
                url,
                share,
                fields: fields.clone(),
            }));
        }
        all.push(examined);
    }
    let most = all.len() + MOST_FILES;
    for PageFile { url, share, fields } in files {
        if let Some(known) = all.iter_mut().find(|a| a.url == url.to_string()) {
            let more = if known.embedded { share } else { 0.0 };
            known.share = (known.share + more).min(1.0);
        } else if all.len() < most {
            let Some((answer, took)) = asker.timed(&url, &fields) else { break };
            all.push(ExaminedAnswer { share, embedded: true, ..examined(&url, &answer, took) });
        }
    }
    all
}

/// Asks for a page that is not there: an application in debug mode says so. None if the answer shows nothing.
fn missing(plan: &Plan, asker: &Asker<'_>) -> Option<ExaminedAnswer> {
    let url = plan.url.with_path("/lastdrop-asks-for-a-missing-page");
    let (answer, took) = asker.timed(&url, &[])?;
    Some(examined(&url, &answer, took)).filter(|examined| !examined.debug.is_empty())
}

/// Sends single requests, each on a connection of its own, until a time is over.
#[derive(Debug)]
pub struct Asker<'a> {
    plan: &'a Plan,
    until: Instant,
}

impl Asker<'_> {
    /// An asker for this plan, with an end.
    pub fn within(plan: &Plan, time: Duration) -> Asker<'_> {
        Asker { plan, until: Instant::now() + time }
    }

    /// Sends one request. None if there was no answer, or no time is left.
    pub fn ask(&self, url: &Url, fields: &[(String, String)]) -> Option<Answer> {
        let address: Option<SocketAddr> = match self.plan.network.connect_to.as_ref().filter(|c| c.matches(url)) {
            Some(other) => Some(other.address),
            None => resolve(url).ok(),
        };
        let left = self.until.checked_duration_since(Instant::now())?;
        status::get_with(address, url, fields, left.min(LIMIT)).ok()
    }

    /// Like `ask`, with the time that it took.
    pub fn timed(&self, url: &Url, fields: &[(String, String)]) -> Option<(Answer, Duration)> {
        let began = Instant::now();
        self.ask(url, fields).map(|answer| (answer, began.elapsed()))
    }
}

/// A file that a page embeds, the share of the requests that ask for its page, and the fields to ask with.
struct PageFile {
    url: Url,
    share: f64,
    fields: Vec<(String, String)>,
}

/// Returns true for a request that is the same each time, and has no effect on the server.
pub fn is_plain(request: &RequestSpec) -> bool {
    let has_template = !request.literal
        && (request.url.path.contains("{{") || request.headers.iter().any(|(_, value)| value.contains("{{")));
    request.method == "GET"
        && request.body == Body::None
        && request.lines.is_none()
        && request.auth.is_none()
        && !request.once
        && !has_template
}

/// Returns the codings that a browser accepts, then the request's own fields. Secrets go to nobody whose certificate is not verified.
fn fields(plan: &Plan, request: &RequestSpec) -> Vec<(String, String)> {
    let is = |name: &str, other: &str| name.eq_ignore_ascii_case(other);
    let is_secret = |name: &str| is(name, "cookie") || is(name, "authorization");
    let hidden = request.url.tls && !plan.tls.insecure;
    let kept = request
        .headers
        .iter()
        .filter(|(name, _)| !(is(name, "accept-encoding") || is(name, "connection") || hidden && is_secret(name)));
    [("Accept-Encoding".to_string(), CODINGS.to_string())].into_iter().chain(kept.cloned()).collect()
}

fn examined(url: &Url, answer: &Answer, took: Duration) -> ExaminedAnswer {
    let value = |name: &str| answer.field_values(name).to_ascii_lowercase();
    let coding = value("content-encoding");
    let mut examined = ExaminedAnswer {
        url: url.to_string(),
        status: answer.status,
        media_type: value("content-type").split(';').next().unwrap_or_default().trim().to_string(),
        coding: if coding == "identity" { String::new() } else { coding },
        no_transform: value("cache-control").contains("no-transform"),
        bytes: answer.body.len() as u64,
        took_us: took.as_secs_f64() * 1e6,
        file: value("accept-ranges").contains("bytes") && !(value("etag") + &value("last-modified")).is_empty(),
        debug: debug_signs(answer),
        ..ExaminedAnswer::default()
    };
    if examined.is_text() && examined.coding.is_empty() && answer.status == 200 && !answer.is_cut() {
        examined.gzipped = LEVELS.into_iter().filter_map(|level| gzipped(&answer.body, level)).collect();
    }
    examined
}

/// Texts of pages that only a debug mode makes. All words of a sign are on the page.
const DEBUG_PAGES: [(&str, &[&str]); 9] = [
    ("Django, DEBUG = True", &["seeing this error because you have", "DEBUG = True"]),
    ("Django Debug Toolbar", &["id=\"djDebug\""]),
    ("the debugger of Werkzeug (Flask)", &["__debugger__=yes"]),
    ("Rails' page for developers", &["Rails.root:", "Application Trace"]),
    ("Laravel's page for developers", &["vendor/laravel/framework", "#0 "]),
    ("PHP Debug Bar", &["phpdebugbar"]),
    ("Xdebug", &["class='xdebug-error"]),
    ("display_errors of PHP", &["<b>", "</b> on line <b>"]),
    ("the stack trace of Express", &["<pre>Error", "at ", "node_modules/express"]),
];
/// Servers that frameworks bring for developers.
const DEVELOPMENT_SERVERS: [&str; 2] = ["werkzeug/", "wsgiserver/"];

/// Returns what in an answer only a debug mode shows.
fn debug_signs(answer: &Answer) -> Vec<String> {
    let holds = |words: &str| memchr::memmem::find(&answer.body, words.as_bytes()).is_some();
    let pages = DEBUG_PAGES.iter().filter(|(_, words)| words.iter().all(|w| holds(w)));
    let mut all: Vec<String> = pages.map(|(name, _)| (*name).to_string()).collect();
    if !answer.field_values("x-debug-token").is_empty() {
        all.push("Symfony's profiler".into());
    }
    let software = answer.field_values("server").to_ascii_lowercase();
    if DEVELOPMENT_SERVERS.iter().any(|name| software.starts_with(name)) {
        all.push(format!("the development server {}", answer.field_values("server")));
    }
    all
}

fn gzipped(body: &[u8], level: u32) -> Option<Gzipped> {
    let body = &body[..body.len().min(MOST_COMPRESSED_BYTES)];
    let compress = || {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
        std::io::Write::write_all(&mut encoder, body)?;
        encoder.finish()
    };
    let (compressed, cpu) = timed(compress);
    Some(Gzipped { level, bytes: compressed.ok()?.len() as u64, cpu_us: cpu.as_secs_f64() * 1e6 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: &str, coding: &str, body: &[u8]) -> Answer {
        let mut fields = vec![("Content-Type".to_string(), kind.as_bytes().to_vec())];
        if !coding.is_empty() {
            fields.push(("content-encoding".into(), coding.as_bytes().to_vec()));
        }
        Answer { status: 200, fields, body: body.to_vec() }
    }

    #[test]
    fn only_text_that_came_without_a_coding_is_compressed_here() {
        let url: Url = "http://127.0.0.1/?token=abc".parse().expect("a URL");
        let text = "one line of many\n".repeat(1000);
        let plain = examined(&url, &answer("Text/HTML; charset=utf-8", "", text.as_bytes()), Duration::ZERO);
        assert_eq!((plain.media_type.as_str(), plain.bytes), ("text/html", 17_000));
        assert!(plain.gzipped_at(6).is_some_and(|g| g.bytes < 500 && g.cpu_us > 0.0), "{plain:?}");
        assert!(!plain.url.contains("abc"), "{plain:?}");
        for (kind, coding) in [("image/png", ""), ("text/css", "gzip"), ("text/event-stream", ""), ("", "")] {
            let other = examined(&url, &answer(kind, coding, text.as_bytes()), Duration::ZERO);
            assert!(other.gzipped.is_empty(), "{other:?}");
        }
        assert_eq!(examined(&url, &answer("text/css", "identity", text.as_bytes()), Duration::ZERO).gzipped.len(), 2);
    }

    #[test]
    fn what_only_a_debug_mode_shows_is_found_and_a_page_about_it_is_not_one() {
        let signs = |body: &str| debug_signs(&answer("text/html", "", body.as_bytes()));
        let django = "<p>You're seeing this error because you have <code>DEBUG = True</code> in your settings</p>";
        assert_eq!(signs(django), ["Django, DEBUG = True"]);
        let php = "<br />\n<b>Warning</b>:  Undefined variable $a in <b>/srv/a.php</b> on line <b>1</b><br />";
        assert_eq!(signs(php), ["display_errors of PHP"]);
        assert_eq!(signs("Set <code>DEBUG = True</code>, or <b>display_errors</b>, on line 7"), [""; 0]);
        let mut flask = answer("text/plain", "", b"ok");
        flask.fields.push(("Server".into(), b"Werkzeug/2.2.2 Python/3.11.2".to_vec()));
        assert_eq!(debug_signs(&flask), ["the development server Werkzeug/2.2.2 Python/3.11.2"]);
    }

    #[test]
    fn a_request_with_an_effect_or_a_template_is_not_asked_for() {
        let get = |path: &str| RequestSpec::get(format!("http://127.0.0.1{path}").parse().expect("a URL"));
        assert!(is_plain(&get("/a")) && !is_plain(&get("/a?n={{user}}")));
        assert!(!is_plain(&RequestSpec { method: "POST".into(), ..get("/a") }));
        let mut plan = Plan::new("https://127.0.0.1/".parse().expect("a URL"), 1);
        plan.requests[0].headers = vec![("Cookie".into(), "id=1".into()), ("accept-encoding".into(), "br".into())];
        assert_eq!(fields(&plan, &plan.requests[0]), [("Accept-Encoding".to_string(), CODINGS.to_string())]);
        plan.tls.insecure = true;
        assert_eq!(fields(&plan, &plan.requests[0]).len(), 2);
    }
}
