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

/// Maximum number of the plan's requests, and of files that their pages embed.
const MOST_REQUESTS: usize = 8;
const MOST_FILES: usize = 16;
/// Time for one answer, and for all of them.
const LIMIT: Duration = Duration::from_secs(3);
const ALL: Duration = Duration::from_secs(6);
/// What browsers accept; a server may have any of them.
const CODINGS: &str = "gzip, deflate, br, zstd";
/// Levels of gzip: nginx's and HAProxy's default, and Apache's.
const LEVELS: [u32; 2] = [1, 6];
/// Longer texts are compressed for a quarter of a second here: their size is known well enough by the beginning.
const MOST_COMPRESSED_BYTES: usize = 4 << 20;

/// Returns the answers to the plan's plain GETs, the most frequent first, each with the files that it embeds.
pub fn look(plan: &Plan) -> Vec<ExaminedAnswer> {
    let network = &plan.network;
    // Such connections need more than an address. A log's requests are not in the plan.
    if network.unix_socket.is_some() || network.proxy.is_some() || plan.replay.is_some() {
        return Vec::new();
    }
    let began = Instant::now();
    let total: f64 = plan.requests.iter().map(|r| r.weight).sum();
    let mut wanted: Vec<&RequestSpec> = plan.requests.iter().filter(|r| is_plain(r)).collect();
    wanted.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let mut all: Vec<ExaminedAnswer> = Vec::new();
    let mut files: Vec<PageFile> = Vec::new();
    for request in wanted.into_iter().take(MOST_REQUESTS) {
        let share = request.weight / total.max(f64::MIN_POSITIVE);
        let known = all.iter_mut().find(|a| a.url == request.url.to_string());
        if let Some(known) = known {
            known.share += share;
            continue;
        }
        let fields = fields(plan, request);
        let Some(answer) = ask(plan, &request.url, &fields, began) else { break };
        let examined = examined(&request.url, share, &answer);
        if examined.media_type == "text/html" && examined.status == 200 {
            // A page that came compressed is asked for once more, to be read.
            let plain =
                if examined.coding.is_empty() { Some(answer) } else { ask(plan, &request.url, &fields[1..], began) };
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
            let Some(answer) = ask(plan, &url, &fields, began) else { break };
            all.push(ExaminedAnswer { embedded: true, ..examined(&url, share, &answer) });
        }
    }
    all
}

/// A file that a page embeds, the share of the requests that ask for its page, and the fields to ask with.
struct PageFile {
    url: Url,
    share: f64,
    fields: Vec<(String, String)>,
}

/// Returns true for a request that is the same each time, and has no effect on the server.
fn is_plain(request: &RequestSpec) -> bool {
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

/// Sends one request. None if there was no answer, or no time is left.
fn ask(plan: &Plan, url: &Url, fields: &[(String, String)], began: Instant) -> Option<Answer> {
    let address: Option<SocketAddr> = match plan.network.connect_to.as_ref().filter(|c| c.matches(url)) {
        Some(other) => Some(other.address),
        None => resolve(url).ok(),
    };
    let left = ALL.checked_sub(began.elapsed())?;
    status::get_with(address, url, fields, left.min(LIMIT)).ok()
}

fn examined(url: &Url, share: f64, answer: &Answer) -> ExaminedAnswer {
    let value = |name: &str| answer.field_values(name).to_ascii_lowercase();
    let coding = value("content-encoding");
    let mut examined = ExaminedAnswer {
        url: url.to_string(),
        share,
        embedded: false,
        status: answer.status,
        media_type: value("content-type").split(';').next().unwrap_or_default().trim().to_string(),
        coding: if coding == "identity" { String::new() } else { coding },
        no_transform: value("cache-control").contains("no-transform"),
        bytes: answer.body.len() as u64,
        gzipped: Vec::new(),
    };
    if examined.is_text() && examined.coding.is_empty() && answer.status == 200 && !answer.is_cut() {
        examined.gzipped = LEVELS.into_iter().filter_map(|level| gzipped(&answer.body, level)).collect();
    }
    examined
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
        let plain = examined(&url, 1.0, &answer("Text/HTML; charset=utf-8", "", text.as_bytes()));
        assert_eq!((plain.media_type.as_str(), plain.bytes), ("text/html", 17_000));
        assert!(plain.gzipped_at(6).is_some_and(|g| g.bytes < 500 && g.cpu_us > 0.0), "{plain:?}");
        assert!(!plain.url.contains("abc"), "{plain:?}");
        for (kind, coding) in [("image/png", ""), ("text/css", "gzip"), ("text/event-stream", ""), ("", "")] {
            let other = examined(&url, 1.0, &answer(kind, coding, text.as_bytes()));
            assert!(other.gzipped.is_empty(), "{other:?}");
        }
        assert_eq!(examined(&url, 1.0, &answer("text/css", "identity", text.as_bytes())).gzipped.len(), 2);
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
