//! Rules about what a configuration or an answer gives away, and about what workers are used for.

use lastdrop_model::documents::{ExpectedGain, Finding};
use lastdrop_model::examination::ExaminedAnswer;
use lastdrop_model::units::{show_bytes, show_us};
use serde_json::json;

use super::Rule;
use super::evidence::{FindingBuilder, LoadEvidence, ServerEvidence, finding, round};

pub(super) const ALL: &[Rule] = &[
    Rule { id: "hostname-lookups", look: hostname_lookups },
    Rule { id: "debug-mode", look: debug_mode },
    Rule { id: "static-on-heavy-workers", look: static_files },
];

/// Memory of a worker from which on it is too dear for files.
const HEAVY_BYTES: f64 = 20e6;
/// Share of the time of a page's requests that files take, from which on it is told.
const FILES_TAKE: f64 = 0.1;

fn hostname_lookups(case: &LoadEvidence<'_>) -> Option<Finding> {
    let servers = case.servers();
    let is_on = |v: &&ServerEvidence<'_>| {
        v.about.directives.get("HostnameLookups").is_some_and(|s| !s.eq_ignore_ascii_case("off"))
    };
    // If requests wait for the name server now, that is the limit, and named as such.
    let v = servers.iter().filter(|v| v.is(&["apache"]) && v.names_asked() < 0.5).find(is_on)?;
    let value = v.about.directives.get("HostnameLookups")?;
    let connections = case.main.connections as f64 / case.main.answered.max(1) as f64;
    Some(
        finding(0.9, format!("{} looks up the name of each client's address", v.about.server))
            .of(v)
            .evidence("configuration", "HostnameLookups", value.as_str(), "Off")
            .evidence("trace", "reverse lookups a request", v.calls("dns-reverse"), 0.5)
            .evidence("trace", "files of the resolver opened a request", v.calls("resolver-file"), 0.5)
            .evidence("load", "connections a request: each is looked up once", connections, "")
            .ruled_out("HostnameLookups Off; names that only a Require asks for")
            .fix(
                vec![v.fix("HostnameLookups", json!("Off"))],
                "addresses in the log, and names afterwards where they are wanted (logresolve)",
            )
            .expected(Some(ExpectedGain {
                ratio: 1.0,
                interval: None,
                reason: "nothing on loopback, whose name is in /etc/hosts; a visitor's first request of a connection waits for his name server: 1 to 50 ms, and 5 s and more where it does not answer".into(),
            }))
            .verify(format!(
                "lastdrop compare --live {} --url {} --keepalive off --b 'HostnameLookups Off', from another machine",
                v.about.named, case.all.url
            )),
    )
}

fn debug_mode(case: &LoadEvidence<'_>) -> Option<Finding> {
    let servers = case.servers();
    let loaded = servers.iter().find_map(|v| {
        let mode =
            v.about.directives.get("xdebug.mode").filter(|m| !["", "off"].contains(&m.to_lowercase().as_str()))?;
        Some((v, mode))
    });
    let shows = case.all.answers.iter().find(|a| !a.debug.is_empty());
    let v = match (&loaded, shows) {
        (Some((v, _)), _) => v,
        // The application is the last of the chain that is no database.
        (None, Some(_)) => servers.iter().rfind(|v| !v.is(&["mariadb", "mysql", "postgresql"]))?,
        (None, None) => return None,
    };
    let profile = case.inside(&v.about.server);
    let share = profile
        .and_then(|i| i.libraries.iter().find(|(name, _)| name.contains("xdebug")).map(|(_, share)| *share))
        .unwrap_or(0.0);
    let what = match (&loaded, shows) {
        (Some((_, mode)), _) => format!("Xdebug is on ({mode})"),
        (None, Some(answer)) => answer.debug.join(", "),
        (None, None) => String::new(),
    };
    let seen = shows.map_or_else(String::new, |answer| format!("{}: {}", answer.url, answer.debug.join(", ")));
    let mut said = finding(0.9, format!("the application runs in debug mode: {what}")).of(v);
    if let Some((_, mode)) = loaded {
        said = said.evidence("configuration", "xdebug.mode", mode.as_str(), "off");
    }
    if !seen.is_empty() {
        said = said.evidence("answer", "shows", seen, "");
    }
    let ratio = round(1.0 / (1.0 - share.min(0.9)));
    Some(
        said.evidence("perf", "share of the processor time in xdebug.so", share, 0.01)
            .ruled_out("an error page that names neither files nor settings")
            .fix(
                Vec::new(),
                "DEBUG = False and ALLOWED_HOSTS (Django), APP_DEBUG=false (Laravel), APP_ENV=prod (Symfony), RAILS_ENV=production, NODE_ENV=production, display_errors = Off with log_errors = On (PHP), phpdismod xdebug; a server for production instead of a framework's own",
            )
            .expected(Some(ExpectedGain {
                ratio,
                interval: (share > 0.0).then_some([1.0, round(2.0 * ratio - 1.0)]),
                reason: if share > 0.0 {
                    format!("Xdebug itself takes {:.0} % of the processor time, and slows each call", share * 100.0)
                } else {
                    "how much is not known without it: it keeps queries and traces in memory, compiles templates anew, and tells visitors paths and settings".into()
                },
            }))
            .verify("the same page and a missing one show nothing of it; requests/s before and after"),
    )
}

/// Returns true for a file of a page, served as it is.
fn is_file(answer: &ExaminedAnswer) -> bool {
    let kind = answer.media_type.as_str();
    let by_type = ["image/", "font/", "video/", "audio/"].iter().any(|start| kind.starts_with(start))
        || ["text/css", "application/javascript", "text/javascript", "application/pdf", "application/zip"]
            .contains(&kind);
    answer.status == 200 && by_type && answer.file
}

fn static_files(case: &LoadEvidence<'_>) -> Option<Finding> {
    // What stands before it could have served them.
    let v = case.servers().into_iter().next()?;
    let heavy = v.is(&["gunicorn", "uwsgi", "puma"]) || v.is(&["apache"]) && v.needs_prefork();
    let memory = v.seen.real_memory_bytes.or(v.seen.private_bytes)? as f64 / v.seen.workers_most.max(1) as f64;
    let (files, pages): (Vec<&ExaminedAnswer>, Vec<&ExaminedAnswer>) =
        case.all.answers.iter().filter(|a| a.status == 200).partition(|a| is_file(a));
    let sum =
        |of: &[&ExaminedAnswer], value: fn(&ExaminedAnswer) -> f64| of.iter().map(|a| a.share * value(a)).sum::<f64>();
    let (time_files, time_pages) = (sum(&files, |a| a.took_us), sum(&pages, |a| a.took_us));
    let share = time_files / (time_files + time_pages).max(1e-9);
    let (count, bytes) = (sum(&files, |_| 1.0), sum(&files, |a| a.bytes as f64));
    let of_requests = count / (count + sum(&pages, |_| 1.0)).max(1e-9);
    let largest = files.iter().max_by_key(|a| a.bytes)?;
    if !heavy || memory < HEAVY_BYTES || share < FILES_TAKE {
        return None;
    }
    let name = &v.about.server;
    Some(
        finding(0.85, format!("workers of {:.0} MB of {name} serve files, such as {}", memory / 1e6, largest.url))
            .of(&v)
            .evidence("smaps_rollup", "MB of a worker", memory / 1e6, HEAVY_BYTES / 1e6)
            .evidence("answers", "share of the workers' time for a page that its files take", share, FILES_TAKE)
            .evidence("answers", "share of the requests for a page that ask for files", of_requests, 0)
            .evidence("answers", "bytes of the files of a page", bytes, 0)
            .evidence("arithmetic", "s that they take a visitor at 4 Mbit/s, a worker as long once its send buffer is full", bytes * 8.0 / 4e6, 0)
            .ruled_out("a front that serves them; workers without an interpreter in them")
            .fix(
                Vec::new(),
                format!(
                    "nginx before {name}: root and try_files $uri @app for files, proxy_pass for the rest, which holds slow clients, too; files behind a login by X-Sendfile or X-Accel-Redirect"
                ),
            )
            .expected(Some(ExpectedGain {
                ratio: round(1.0 / (1.0 - share.min(0.9))),
                interval: Some([1.0, round(1.0 / (1.0 - share.min(0.9)))]),
                reason: format!(
                    "of {} of workers' time for a page with its files ({}) {} go into files",
                    show_us(time_files + time_pages),
                    show_bytes((bytes + sum(&pages, |a| a.bytes as f64)) as u64),
                    show_us(time_files)
                ),
            }))
            .verify("requests/s of the pages alone against pages with their files (lastdrop run --page)"),
    )
}
