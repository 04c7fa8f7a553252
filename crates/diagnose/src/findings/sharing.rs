//! The rule about pages that are computed again and again although all users get the same bytes. It proposes a cache
//! and turns none on for visitors: only the site's owner knows what may be shared.

use lastdrop_model::documents::{ExpectedGain, Finding};
use lastdrop_model::examination::{Examination, ExaminedAnswer, LoadShape};
use lastdrop_model::units::show_us;

use super::Rule;
use super::evidence::{FindingBuilder, LoadEvidence, ServerEvidence, finding, round};

pub(super) const ALL: &[Rule] = &[Rule { id: "cacheable-responses", look: cacheable }];

/// Lifetimes whose hits are told, seconds; the second is proposed.
const LIFETIMES_S: [f64; 3] = [1.0, 10.0, 60.0];
/// Time and processor time of an answer from a cache, seconds: nginx on loopback, and Apache's mod_cache.
const HIT_S: f64 = 300e-6;
const HIT_CPU_S: f64 = 80e-6;
/// Least processor time behind the cache, or time of a request, that is worth one, seconds.
const COMPUTES_S: f64 = 1e-3;
const WAITS_S: f64 = 5e-3;
/// The same for a load that a server bears with ease: a time that visitors notice, or a share of the processors.
const NOTICED_S: f64 = 50e-3;
const SPARED: f64 = 0.1;
/// Greatest gain that is told: beyond a hundred times, other things limit.
const MOST_GAIN: f64 = 100.0;
/// Least gain that is worth a cache.
const LEAST_GAIN: f64 = 1.1;

/// Returns why an answer is not shared among users. None if all of them got the same bytes, and nothing in the answer
/// forbids to share it.
fn why_not(answer: &ExaminedAnswer) -> Option<String> {
    let Some(asked) = answer.sharing.as_ref().filter(|_| answer.status == 200 && !answer.embedded) else {
        return Some("not asked for as several users".into());
    };
    let same = |what: &str| asked.same.get(what).copied();
    // Who sends a cookie is never answered from the cache. If the plan has users with and without one, its share of
    // those without is what counts; otherwise nobody knows how many visitors have a cookie that matters.
    let is_by_cookie = known(answer) == 0.0 && same("cookies") != Some(true);
    let is_key = |field: &str| asked.vary.split(',').any(|name| name.trim() == field);
    let unkeyed =
        asked.same.iter().filter(|(_, same)| !**same).map(|(what, _)| what).find(|what| match what.as_str() {
            "cookies" | "the plan's cookies" | "coding" => false,
            "language" => !is_key("accept-language"),
            "type" => !is_key("accept"),
            // An answer for each browser is hardly ever asked for twice.
            "browser" | "again" | "after the load" => true,
            field => !is_key(field),
        });
    match () {
        () if asked.known_users => Some("the plan names each user".into()),
        () if known(answer) >= 1.0 => Some("all its requests send a cookie or Authorization".into()),
        () if answer.file => Some("a file".into()),
        () if asked.from_cache => Some("it comes from a cache".into()),
        () if !asked.kept_from_caches.is_empty() => Some(asked.kept_from_caches.clone()),
        () if unkeyed.is_some() => unkeyed.map(|what| format!("differs: {what}")),
        () if same("again").is_none() => Some("no time was left to ask again".into()),
        () if is_by_cookie => Some("differs: cookies".into()),
        () => None,
    }
}

/// Returns the pages of an examination that a cache may share among users.
#[must_use]
pub fn cacheable_pages(examination: &Examination) -> Vec<&ExaminedAnswer> {
    examination.answers.iter().filter(|answer| answer.sharing.is_some() && why_not(answer).is_none()).collect()
}

/// Returns the share of the requests for an answer that say who sends them.
fn known(answer: &ExaminedAnswer) -> f64 {
    answer.sharing.as_ref().map_or(0.0, |s| s.known_share.clamp(0.0, 1.0))
}

/// Returns the share of all requests that ask for it and do not say who sends them.
fn anonymous(answer: &ExaminedAnswer) -> f64 {
    answer.share * (1.0 - known(answer))
}

/// Returns the share of requests for one URL that find it in a cache, once it is there for `lifetime_s`: of λ·T requests
/// in a lifetime and the one that begins it, all but that one. Arrivals are independent of each other.
fn hits(rate_rps: f64, lifetime_s: f64) -> f64 {
    let expected = rate_rps * lifetime_s;
    expected / (1.0 + expected)
}

/// What a cache would change for the pages that may be shared.
struct CacheEffect {
    /// Share of the requests that ask for them without a cookie.
    share: f64,
    /// Of the time of all requests of one user alone, the share that a lifetime of some seconds spares; and of their
    /// number, the share that it answers.
    spared: [f64; 3],
    hits: [f64; 3],
    /// Processor time behind the cache, or of a server that caches itself, for one request of the mix, seconds.
    behind_s: f64,
    /// Mean time of a request of one user alone, seconds.
    held_s: f64,
}

impl CacheEffect {
    fn of(case: &LoadEvidence<'_>, v: &ServerEvidence<'_>, pages: &[&ExaminedAnswer]) -> Option<CacheEffect> {
        let answered = case.main.answered.max(1) as f64;
        let cpu_of = |v: &ServerEvidence<'_>| {
            (v.seen.cpu_cores.unwrap_or(0.0) + v.seen.ended_children_cores) * case.main.duration_s / answered
        };
        let servers = case.servers();
        let last: Vec<_> = servers.iter().filter(|b| b.place > v.place).collect();
        let behind_s = if last.is_empty() { cpu_of(v) } else { last.iter().map(|b| cpu_of(b)).sum() };
        // One user alone does not wait for longer than one of many, whatever else the machine did then.
        let held_s = case.alone_s()?.min(case.main.service.mean / 1e6);
        // A page that takes longer than the others of a mix is spared more.
        let took_s = |a: &ExaminedAnswer| a.sharing.as_ref().map_or(a.took_us, |s| s.took_us) / 1e6;
        let known: f64 = case.all.answers.iter().filter(|a| !a.embedded).map(|a| a.share * took_s(a)).sum();
        let rate_rps = case.main.answered_rps;
        let sum = |weigh: &dyn Fn(&ExaminedAnswer, f64) -> f64| {
            LIFETIMES_S.map(|lifetime_s| {
                let of = |a: &&ExaminedAnswer| weigh(a, anonymous(a) * hits(rate_rps * anonymous(a), lifetime_s));
                pages.iter().map(of).sum::<f64>().min(1.0)
            })
        };
        let hits = sum(&|_, hits| hits);
        let spared = match known.max(held_s) {
            whole_s if known > 0.0 => sum(&|a, hits| hits * took_s(a) / whole_s),
            _ => hits,
        };
        // One page that all ask for is all the time, whatever a single question took.
        let is_all = pages.iter().map(|a| anonymous(a)).sum::<f64>() > 0.999;
        let spared = if is_all { hits } else { spared };
        Some(CacheEffect { share: pages.iter().map(|a| anonymous(a)).sum(), spared, hits, behind_s, held_s })
    }

    /// Processor time that a lifetime of 10 s spares one request of the mix, seconds.
    fn spared_cpu_s(&self) -> f64 {
        (self.spared[1] * self.behind_s - self.hits[1] * HIT_CPU_S).max(0.0)
    }

    /// Expected throughput; or, at the rate of an open load, times of a request.
    fn gain(&self, case: &LoadEvidence<'_>) -> Option<ExpectedGain> {
        let now = case.main.answered_rps;
        // What else the machine does is no part of a request, and leaves at least half of the processors: it competes.
        let all = case.main.cores.len() as f64 * (1.0 - case.main.steal);
        let cores = (all - case.main.generator.others_cores).max(0.5 * all);
        let less_s = (case.own_cores() / now.max(1e-9) - self.spared_cpu_s()).max(HIT_CPU_S);
        let time_s = (1.0 - self.spared[1]) * self.held_s + self.hits[1] * HIT_S.min(self.held_s);
        let ratio = match case.all.load {
            LoadShape::Closed => (cores / less_s).min(f64::from(case.main.users.max(1)) / time_s) / now.max(1e-9),
            _ => case.main.response.mean / 1e6 / time_s,
        };
        // What is still computed comes no faster than now.
        let ratio = round(ratio.max(1.0).min(1.0 / (1.0 - self.spared[1]).max(1e-3)).min(MOST_GAIN));
        (now > 0.0).then(|| ExpectedGain {
            ratio,
            interval: Some([round((0.6 * ratio).max(1.0)), ratio]),
            reason: format!(
                "{:.0} % of the requests come from the cache at this rate and a lifetime of 10 s: {} instead of {} for one user alone, {} of processor time less",
                self.hits[1] * 100.0,
                show_us(time_s * 1e6),
                show_us(self.held_s * 1e6),
                show_us(self.spared_cpu_s() * 1e6)
            ),
        })
    }
}

fn cacheable(case: &LoadEvidence<'_>) -> Option<Finding> {
    let (pages, others): (Vec<&ExaminedAnswer>, Vec<&ExaminedAnswer>) =
        case.all.answers.iter().filter(|a| a.sharing.is_some()).partition(|a| why_not(a).is_none());
    let first = pages.iter().max_by(|a, b| anonymous(a).total_cmp(&anonymous(b)))?;
    let servers = case.servers();
    let v = servers.iter().find(|v| v.is(&["nginx", "apache", "haproxy"])).or(servers.first())?;
    let effect = CacheEffect::of(case, v, &pages)?;
    // Only what takes time is worth a cache: a front serves its files as fast without one.
    let took_s = pages.iter().filter_map(|a| a.sharing.as_ref()).map(|s| s.took_us / 1e6).fold(0.0, f64::max);
    let expected = effect.gain(case).filter(|e| e.ratio >= LEAST_GAIN)?;
    if effect.behind_s - HIT_CPU_S < COMPUTES_S && took_s < WAITS_S {
        return None;
    }
    // At a rate that the server bears, a cache brings what a visitor notices, or processors.
    let is_borne = case.all.load == LoadShape::Open && !case.requests_wait();
    let spared_cores = effect.spared_cpu_s() * case.main.answered_rps;
    if is_borne && took_s < NOTICED_S && spared_cores < SPARED * case.main.cores.len() as f64 {
        return None;
    }
    let names: Vec<&str> = pages.iter().map(|a| a.url.as_str()).collect();
    let asked = |a: &&ExaminedAnswer| a.sharing.as_ref().map_or(0, |s| s.same.len() as u64 + 1);
    let varies =
        |what: &str| pages.iter().any(|a| a.sharing.as_ref().is_some_and(|s| s.same.get(what).copied() == Some(false)));
    let mut key = vec!["the URL with its query"];
    key.extend(varies("language").then_some("Accept-Language"));
    key.extend(varies("type").then_some("Accept"));
    key.extend(varies("coding").then_some("Accept-Encoding"));
    let more = if pages.len() > 1 { format!(" and {} more", pages.len() - 1) } else { String::new() };
    let whom = if pages.iter().any(|a| known(a) > 0.0) { "all users without a cookie" } else { "all users" };
    let mut said =
        finding(0.85, format!("{}{more} is computed again and again, and is the same for {whom}", first.url))
            .of(v)
            .evidence("answers", "times that it was asked for as different users, with the same bytes", asked(first), 6)
            .evidence("load", "share of the requests that ask for such pages", effect.share, 0)
            .evidence("/proc", "ms of processor time that a cache spares a request", effect.spared_cpu_s() * 1e3, 0)
            .evidence("answers", "ms of such a page for one user alone", took_s * 1e3, WAITS_S * 1e3);
    for (lifetime_s, hits) in LIFETIMES_S.into_iter().zip(effect.hits) {
        let name = format!("share of the requests that a lifetime of {lifetime_s:.0} s answers, at this rate");
        said = said.evidence("arithmetic", &name, hits, 0);
    }
    for page in others {
        said = said.ruled_out(format!("{}: {}", page.url, why_not(page).unwrap_or_default()));
    }
    Some(
        said.ruled_out(format!(
            "bytes that differ for others without a cookie, in another language, for a telephone, or a second later; they depend on {} alone",
            key.join(", ")
        ))
        .ruled_out("Set-Cookie, private, no-store, no-cache, Vary: * or Cookie; an answer that came from a cache or is a file")
        .expected(Some(expected))
        .fix(Vec::new(), proposal(case, v, &names))
        .verify(check(v)),
    )
}

/// Returns how to find out what a cache would bring.
fn check(v: &ServerEvidence<'_>) -> String {
    let compare = match v.kind() {
        "nginx" | "haproxy" => "lastdrop doctor --confirm tries one that no visitor meets, and compares the answers",
        _ => "compare answers with and without a cookie before it is turned on",
    };
    format!("lastdrop replay LOG --analyse says how often visitors ask for a page again; {compare}")
}

/// Returns the lines that turn a cache on, and what it would share.
fn proposal(case: &LoadEvidence<'_>, v: &ServerEvidence<'_>, pages: &[&str]) -> String {
    let paths = pages.join(", ");
    let shared = format!(
        "a proposal, nothing is turned on. Shared would be GET {paths}, for 10 s, with everybody who sends neither Cookie nor Authorization; not what sets a cookie or says private or no-store"
    );
    let behind = |kind: &str| case.servers().iter().any(|b| b.is(&[kind]) && v.about.to.contains(&b.about.server));
    let lines = match v.kind() {
        "nginx" => {
            let how = match () {
                () if behind("php-fpm") => "fastcgi",
                () if behind("uwsgi") => "uwsgi",
                () => "proxy",
            };
            let each = [
                "cache pages",
                "cache_key $scheme$request_method$host$request_uri",
                "cache_valid 200 10s",
                "cache_lock on",
                "cache_use_stale updating error timeout",
                "cache_background_update on",
                "cache_bypass $http_cookie $http_authorization",
            ];
            let each: Vec<String> = each.iter().map(|line| format!("{how}_{line}")).collect();
            format!(
                "in http: {how}_cache_path /var/cache/nginx/pages levels=1:2 keys_zone=pages:10m max_size=256m inactive=10m; in the location: {}; {how}_no_cache $http_cookie $http_authorization; and no {how}_ignore_headers",
                each.join("; ")
            )
        }
        "apache" => "a2enmod cache cache_disk; CacheQuickHandler off; CacheEnable disk \"/PATH\"; CacheLock on; CacheDefaultExpire 10; CacheMaxExpire 60; CacheIgnoreHeaders Set-Cookie; CacheStaleOnError on; <If \"-n req('Cookie') || -n req('Authorization')\"> CacheDisable on </If>".into(),
        "haproxy" => "cache pages with total-max-size 64, max-age 10, process-vary on; in the frontend: http-request cache-use pages if METH_GET !{ req.hdr(cookie) -m found } !{ req.hdr(authorization) -m found }, http-response cache-store pages; HAProxy has no lock: several users may compute a page that has expired".into(),
        _ => format!("a front with a cache before {}: nginx with proxy_cache, proxy_cache_lock and proxy_cache_use_stale updating", v.about.server),
    };
    format!("{shared}. {lines}")
}
