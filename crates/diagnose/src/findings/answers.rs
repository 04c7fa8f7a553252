//! Rules about what single answers show, as a browser gets them.

use std::collections::BTreeSet;

use lastdrop_model::documents::{ExpectedGain, Finding};
use lastdrop_model::examination::{ExaminedAnswer, Gzipped};
use lastdrop_model::units::{show_bytes, show_us};

use super::Rule;
use super::evidence::{FindingBuilder, LoadEvidence, ServerEvidence, finding, round};

pub(super) const ALL: &[Rule] = &[Rule { id: "uncompressed-text", look: uncompressed }];

/// Bytes of one answer, and the share of it, from which on compression is worth its time: at 4 Mbit/s 4 kB take 8 ms.
const SAVED_BYTES: u64 = 4096;
const SAVED_SHARE: f64 = 1.0 / 3.0;
/// Links of visitors, bits per second: mobile in a bad place, and at home.
const SLOW_BPS: f64 = 4e6;
const FAST_BPS: f64 = 50e6;

/// Servers that can compress, with their default level of gzip.
const COMPRESSORS: [(&str, u32); 6] =
    [("nginx", 1), ("apache", 6), ("haproxy", 1), ("caddy", 6), ("lighttpd", 6), ("tomcat", 6)];

/// Returns what compression would make of an answer, if it is worth its time.
fn worth(answer: &ExaminedAnswer, level: u32) -> Option<Gzipped> {
    let with = answer.gzipped_at(level).filter(|_| answer.status == 200 && answer.coding.is_empty())?;
    let saved = answer.bytes.saturating_sub(with.bytes);
    let is_large = saved >= SAVED_BYTES && saved as f64 >= SAVED_SHARE * answer.bytes as f64;
    let pays = saved as f64 * 8.0 / FAST_BPS * 1e6 > with.cpu_us;
    (is_large && pays && answer.is_text() && !answer.no_transform).then_some(with)
}

fn uncompressed(case: &LoadEvidence<'_>) -> Option<Finding> {
    let servers = case.servers();
    let level_of = |v: &ServerEvidence<'_>| COMPRESSORS.iter().find(|(kind, _)| v.is(&[kind])).map(|(_, level)| *level);
    // The first of the chain that can: it has the clients, and what is behind it stays simple.
    let able = servers.iter().find(|v| level_of(v).is_some());
    let v = able.or(servers.first())?;
    let level = level_of(v).unwrap_or(6);
    let text: Vec<(&ExaminedAnswer, Gzipped)> =
        case.all.answers.iter().filter_map(|answer| Some((answer, worth(answer, level)?))).collect();
    let (largest, with) = text.iter().max_by_key(|(answer, with)| answer.bytes - with.bytes)?;
    let mut types: Vec<&str> = text.iter().map(|(answer, _)| answer.media_type.as_str()).collect();
    types.sort_unstable();
    types.dedup();
    let sum = |of: &dyn Fn(&ExaminedAnswer) -> f64| case.all.answers.iter().map(|a| a.share * of(a)).sum::<f64>();
    let with_gzip = |a: &ExaminedAnswer| worth(a, level);
    let all = sum(&|a| a.bytes as f64);
    let saved = sum(&|a| with_gzip(a).map_or(0.0, |g| (a.bytes - g.bytes) as f64));
    let cpu_us = sum(&|a| with_gzip(a).map_or(0.0, |g| g.cpu_us));
    let what = if text.iter().any(|(a, _)| a.embedded) { "a page with its files" } else { "a request" };
    let rest = match text.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let links: [Link; 2] = [SLOW_BPS, FAST_BPS].map(|bps| Link { bps, all, saved, cpu_us });
    let found = finding(0.95, format!("text is sent uncompressed though browsers accept gzip: {}{rest}", largest.url))
        .of(v)
        .evidence("answer", &format!("bytes of {}, {}", largest.url, largest.media_type), largest.bytes, "")
        .evidence("gzip", &format!("bytes of it at level {level}"), with.bytes, largest.bytes - SAVED_BYTES)
        .evidence("gzip", &format!("bytes saved for {what}, of {all:.0}"), saved.round(), SAVED_BYTES)
        .evidence("gzip", &format!("µs of processor time to compress {what}"), cpu_us, "")
        .evidence("arithmetic", &format!("ms saved for {what} at 4 Mbit/s"), links[0].saved_us() / 1e3, 0)
        .evidence("arithmetic", &format!("ms saved for {what} at 50 Mbit/s"), links[1].saved_us() / 1e3, 0)
        .ruled_out(
            "a Content-Encoding in the answer, Cache-Control: no-transform, or a type that is compressed already",
        )
        .expected(Some(less_to_send(case, &links, what)));
    let found = match case.cpu_full().then(|| case.cpu_per_request_s()).flatten() {
        Some(each) if !text.iter().all(|(a, _)| a.embedded) => found.ruled_out(format!(
            "the processors are full: compressing takes {} beside the {} of a request; text that does not change is compressed once (gzip_static, MultiviewsMatch, a cache)",
            show_us(cpu_us),
            show_us(each * 1e6)
        )),
        _ => found,
    };
    let (lines, advice) = cure(v, &types, able.is_some());
    let check = format!("curl -sH 'Accept-Encoding: gzip' -o /dev/null -w '%{{size_download}}\\n' {}", largest.url);
    let check = match lines {
        Some(lines) => format!(
            "{check}; proof for a visitor at 4 Mbit/s: lastdrop compare --live {} --url {} -H \"Accept-Encoding: gzip\" --bandwidth 500k --b '{lines}'",
            v.about.named, largest.url
        ),
        None => check,
    };
    Some(found.fix(Vec::new(), advice).verify(check))
}

/// A link of a visitor, and what comes over it: bytes now, bytes saved, and time to compress.
#[derive(Debug, Clone, Copy)]
struct Link {
    bps: f64,
    all: f64,
    saved: f64,
    cpu_us: f64,
}

impl Link {
    fn now_us(&self) -> f64 {
        self.all * 8.0 / self.bps * 1e6
    }

    /// Time that a visitor saves, net of compressing.
    fn saved_us(&self) -> f64 {
        self.saved * 8.0 / self.bps * 1e6 - self.cpu_us
    }
}

/// Expected gain: the time of a visitor on each link, the server's own time included.
fn less_to_send(case: &LoadEvidence<'_>, links: &[Link; 2], what: &str) -> ExpectedGain {
    let own_us = case.alone_s().unwrap_or(0.0) * 1e6;
    let now = |link: &Link| own_us + link.now_us();
    let ratio = |link: &Link| round(now(link) / (now(link) - link.saved_us()).max(1.0)).max(1.0);
    let [slow, fast] = links;
    let text = |link: &Link| format!("{} instead of {}", show_us(now(link) - link.saved_us()), show_us(now(link)));
    ExpectedGain {
        ratio: ratio(fast),
        interval: Some([ratio(fast), ratio(slow)]),
        reason: format!(
            "for visitors, not on loopback: {what} takes {} at 50 Mbit/s, {} at 4 Mbit/s; {} fewer to send, {} of processor time more",
            text(fast),
            text(slow),
            show_bytes(fast.saved as u64),
            show_us(fast.cpu_us)
        ),
    }
}

/// Returns the directives that compress these types, if the server is one of those that `compare` changes by
/// directives, and how to write them.
fn cure(v: &ServerEvidence<'_>, types: &[&str], able: bool) -> (Option<String>, String) {
    let all = types.join(" ");
    let name = &v.about.server;
    match v.kind() {
        "nginx" => {
            // text/html is always among them, and nginx warns of a second time.
            let more: Vec<&str> = types.iter().copied().filter(|t| *t != "text/html").collect();
            let list = if more.is_empty() { String::new() } else { format!(" gzip_types {};", more.join(" ")) };
            let lines = format!("gzip on;{list} gzip_proxied any; gzip_vary on");
            let why = if v.setting("gzip").is_some_and(|s| s == "on") {
                "gzip is on, but not for these types, or not for what a proxy before it asks: "
            } else {
                ""
            };
            let advice = format!(
                "{why}in http of {name}: {lines}; gzip_min_length 1000; for files, gzip_static on and a .gz beside each"
            );
            (Some(lines), advice)
        }
        "apache" => {
            let lines = format!("AddOutputFilterByType DEFLATE {all}");
            let advice = format!(
                "a2enmod deflate filter, then in the configuration of {name}: {lines}; DeflateCompressionLevel 1 takes a third of the time"
            );
            (Some(lines), advice)
        }
        "haproxy" => {
            let lines = format!("compression algo gzip; compression type {all}");
            (Some(lines.clone()), format!("in the frontend or defaults of {name}: {}", lines.replace("; ", ", then ")))
        }
        "caddy" => (None, format!("in the site's block of {name}'s Caddyfile: encode gzip")),
        "lighttpd" => (None, format!("server.modules += (\"mod_deflate\"), deflate.mimetypes = ({})", quoted(types))),
        "tomcat" => (
            None,
            format!("in the Connector of server.xml: compression=\"on\" compressibleMimeType=\"{}\"", types.join(",")),
        ),
        _ if able => (None, String::new()),
        _ => (
            None,
            format!(
                "{name} cannot: a front that can (nginx with gzip on; gzip_proxied any; gzip_types {all}), or a filter of the application (GZipMiddleware, WhiteNoise, compression for Express)"
            ),
        ),
    }
}

fn quoted(types: &[&str]) -> String {
    let unique: BTreeSet<String> = types.iter().map(|t| format!("\"{t}\"")).collect();
    unique.into_iter().collect::<Vec<_>>().join(", ")
}
