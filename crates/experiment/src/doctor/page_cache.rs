//! Tries a cache on the nginx, HAProxy or Apache before pages that are computed again and again, and restores or keeps it.
//!
//! Only lastdrop's own requests know the cache. First it compares answers with and without the cache, as different
//! users would get them; one difference ends the trial. Then it measures in interleaved blocks, as for each other change.

use std::collections::BTreeSet;
use std::time::Duration;

use lastdrop_diagnose::findings::cacheable_pages;
use lastdrop_model::Event;
use lastdrop_model::documents::{CacheTrial, DoctorDocument, Finding};
use lastdrop_model::plan::Plan;
use lastdrop_model::request::RequestSpec;
use lastdrop_probe::status::Answer;
use lastdrop_server::{Change, Kind, PageCache, RestoreReport, ServerError, ServerRef, Stack, kinds};

use crate::doctor::answers::{Asker, can_ask, is_plain};
use crate::doctor::confirm::{ConfirmOptions, PAIRS, measure, named_server};
use crate::doctor::examine::DoctorOptions;
use crate::doctor::sharing::{ADDRESS, COOKIES, MOBILE, anonymous};
use crate::lab::runs::random_u32;
use crate::lab::{Lab, LabError};
use lastdrop_analyze::ratio;

/// The finding whose cure is tried.
pub(super) const FINDING: &str = "cacheable-responses";
/// How long a page stays in the cache.
const LIFETIME: Duration = Duration::from_secs(10);
/// Time for all comparisons. Without all of them nothing is measured.
const COMPARING: Duration = Duration::from_secs(60);
/// Name of a site that does not exist (RFC 2606).
const OTHER_SITE: &str = "lastdrop.invalid";
/// Fields of an answer that are compared as well as its body.
const COMPARED: [&str; 7] = [
    "content-type",
    "content-encoding",
    "content-language",
    "content-range",
    "location",
    "access-control-allow-origin",
    "link",
];

/// Tries a cache for the pages that a finding calls cacheable, if the server before them is an nginx, a HAProxy or an
/// Apache of this machine.
///
/// # Errors
/// When the server cannot be changed or does not come back.
pub(super) fn confirm(
    lab: &mut Lab<'_>,
    options: &DoctorOptions<'_>,
    trying: &ConfirmOptions<'_>,
    document: &mut DoctorDocument,
) -> Result<(), LabError> {
    let Some(finding) = document.findings.iter().find(|f| f.id == FINDING).cloned() else { return Ok(()) };
    let (reference, cache) = match prepare(options, document, &finding) {
        Ok(prepared) => prepared,
        Err(why) => {
            document.notes.push(not_tried(why));
            return Ok(());
        }
    };
    let mut tried = CacheTrial {
        server: finding.server.clone(),
        kind: reference.kind.name.into(),
        pages: cache.paths.clone(),
        lifetime_s: cache.lifetime_s,
        promised: finding.expect.as_ref().map_or(1.0, |e| e.ratio),
        ..CacheTrial::default()
    };
    let what =
        format!("does a cache help? {} for {} s, for requests of ours alone", cache.paths.join(", "), cache.lifetime_s);
    lab.tell(&Event::Experiment { what: what.into() });
    // Nothing is changed yet: what hinders the trial is no fault of the examination.
    let opened = trying.machine.open(&[reference], Some(&options.plan.url), trying.others);
    let opened = opened.and_then(|stack| stack.cache_lines(&cache).map(|lines| (stack, lines)));
    let (mut stack, lines) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            document.notes.push(not_tried(e));
            return Ok(());
        }
    };
    tried.lines = lines;
    let outcome = try_it(lab, options, &mut stack, &cache, &mut tried);
    let has_helped = outcome.is_ok() && tried.difference.is_none() && tried.interval[0] > 1.0;
    let kept = match has_helped && trying.keep {
        true => match why_not_kept(options, document, &cache, &tried, outcome.as_ref().ok()) {
            None => keep(lab, &mut stack, &cache, &mut tried),
            Some(why) => Err(LabError::Server(ServerError::Setting(why))),
        },
        false => Ok(()),
    };
    if !tried.kept {
        lab.tell(&Event::Restoring);
        let restored = stack.restore()?;
        document.notes.extend(restored.iter().flat_map(RestoreReport::notes));
    }
    match outcome {
        Err(LabError::Server(e)) if e.is_refusal() => {
            document.notes.push(not_tried(e));
            return Ok(());
        }
        outcome => _ = outcome?,
    }
    match kept {
        Err(LabError::Server(e)) if e.is_refusal() => {
            document.notes.push(format!("{FINDING}: the cache is not kept: {e}"));
        }
        kept => kept?,
    }
    document.cache = Some(tried);
    Ok(())
}

/// Returns why a cache that has helped cannot be left to visitors. Answers vary with these fields.
fn why_not_kept(
    options: &DoctorOptions<'_>,
    document: &DoctorDocument,
    cache: &PageCache,
    tried: &CacheTrial,
    varies: Option<&BTreeSet<String>>,
) -> Option<String> {
    let server = &tried.server;
    if !listens_to_visitors(document, server, cache) {
        return Some(format!(
            "visitors come to {server} through another server, and by which names and ports is not known"
        ));
    }
    if kinds::named(&tried.kind).is_some_and(Kind::bounds_page_cache) {
        return None;
    }
    let unbounded = "and nothing bounds the folder in which it would store them";
    if has_queries(&options.plan, cache) {
        return Some(format!("the plan asks {server} for these pages with queries, {unbounded}"));
    }
    let is_bounded = |field: &&String| PageCache::BOUNDED_FIELDS.contains(&field.as_str());
    let more: Vec<&str> = varies.into_iter().flatten().filter(|field| !is_bounded(field)).map(String::as_str).collect();
    (!more.is_empty()).then(|| format!("pages of {server} vary with {}, {unbounded}", more.join(", ")))
}

/// Says what visitors will share, and leaves the server running with the cache for them.
fn keep(lab: &mut Lab<'_>, stack: &mut Stack, cache: &PageCache, tried: &mut CacheTrial) -> Result<(), LabError> {
    let offer = stack.offer_cache(cache)?;
    for what in shared(&offer.cache, tried) {
        lab.tell(&Event::Experiment { what: what.into() });
    }
    lab.check_stop()?;
    stack.keep_cache(&offer.cache)?;
    (tried.lines, tried.shared, tried.kept) = (offer.lines, offer.cache.pages, true);
    Ok(())
}

/// What a cache for all visitors shares: which pages, for how long, with whom not, and where they are.
fn shared(cache: &PageCache, tried: &CacheTrial) -> Vec<String> {
    let folder = cache.folder.as_ref().map_or_else(String::new, |folder| format!(" in {}", folder.display()));
    let has_bound = kinds::named(&tried.kind).is_some_and(Kind::bounds_page_cache);
    let (methods, queries, more, bound) = match has_bound {
        true => ("GET and HEAD", "with any query", "", String::new()),
        false => (
            "GET",
            "without a query",
            "; queries, and answers that vary with more than Accept-Encoding, Cookie and Authorization",
            ", at most 30 copies of each page, of up to 4 MB each".to_string(),
        ),
    };
    vec![
        format!(
            "the cache is kept: from now on {} shares {methods} of {} {queries}, {} s long, among all visitors",
            tried.server,
            cache.pages.join(", "),
            cache.lifetime_s
        ),
        format!(
            "not shared: requests with Cookie or Authorization, other methods, names and ports; answers with Set-Cookie, private, no-store or Vary: *{more}"
        ),
        format!("pages are stored{folder}{bound}; lastdrop restore takes the cache away with all that is in it"),
    ]
}

/// True if the plan asks for a page of the cache with a query.
fn has_queries(plan: &Plan, cache: &PageCache) -> bool {
    let split = |request: &RequestSpec| request.url.path.split_once('?').map(|(path, _)| path.to_string());
    plan.requests.iter().filter_map(split).any(|path| cache.paths.contains(&path))
}

fn not_tried(why: impl std::fmt::Display) -> String {
    format!("{FINDING}: a cache is not tried: {why}")
}

/// Returns the server that gets the cache, and the cache.
fn prepare(
    options: &DoctorOptions<'_>,
    document: &DoctorDocument,
    finding: &Finding,
) -> Result<(ServerRef, PageCache), String> {
    let about = document.examination.servers.iter().find(|s| s.server == finding.server);
    let has_cache = |kind: &str| kinds::named(kind).is_some_and(Kind::has_page_cache);
    let about = about.filter(|s| has_cache(&s.kind)).ok_or("neither nginx, HAProxy nor Apache is before the pages")?;
    let reference = named_server(options.servers, &finding.server).cloned().or_else(|| about.named.parse().ok());
    let reference = reference.ok_or_else(|| format!("{} has no name that finds it", finding.server))?;
    if reference.is_elsewhere() {
        return Err(format!("{} is on another machine", finding.server));
    }
    if !can_ask(&options.plan) {
        return Err("single answers cannot be asked for with this plan".into());
    }
    let (mut paths, mut pages) = (Vec::new(), Vec::new());
    for page in cacheable_pages(&document.examination) {
        let request = options.plan.requests.iter().find(|r| is_plain(r) && r.url.to_string() == page.url);
        let Some(request) = request else { continue };
        let path = request.url.path.split(['?', '#']).next().unwrap_or_default();
        if !path.is_empty() {
            paths.push(path.to_string());
            pages.push(site_of(request) + path);
        }
    }
    for all in [&mut paths, &mut pages] {
        all.sort();
        all.dedup();
    }
    if paths.is_empty() {
        return Err("no page of the plan is named".into());
    }
    let token = format!("{:08x}{:08x}", random_u32(), random_u32());
    Ok((reference, PageCache { token: Some(token), paths, pages, lifetime_s: LIFETIME.as_secs(), folder: None }))
}

/// Returns true if the server itself listens at the ports where visitors ask for these pages.
fn listens_to_visitors(document: &DoctorDocument, server: &str, cache: &PageCache) -> bool {
    let about = document.examination.servers.iter().find(|s| s.server == server);
    cache.pages.iter().all(|page| {
        let port = page.split('/').next().and_then(|site| site.rsplit(':').next());
        let listens = |address: &String| address.rsplit(':').next() == port;
        about.is_some_and(|about| about.listens.iter().any(listens))
    })
}

/// Returns the name and port under which a request asks for its site: `www.example.com:80`.
fn site_of(request: &RequestSpec) -> String {
    let given = request.headers.iter().rfind(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = given.map(|(_, value)| value.trim()).filter(|value| !value.is_empty());
    let name = match host {
        Some(host) => {
            host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name)
        }
        None => &request.url.bracketed_host(),
    };
    format!("{}:{}", name.to_ascii_lowercase(), request.url.port)
}

/// Compares answers, and measures if all are the same. Returns the fields with which answers vary.
fn try_it(
    lab: &mut Lab<'_>,
    options: &DoctorOptions<'_>,
    stack: &mut Stack,
    cache: &PageCache,
    tried: &mut CacheTrial,
) -> Result<BTreeSet<String>, LabError> {
    let change = Change { cache: Some(cache.clone()), ..Change::default() };
    stack.apply(&change)?;
    let asker = Asker::within(&options.plan, COMPARING);
    let mut comparison = Comparison { plan: &options.plan, asker, cache, compared: 0, varies: BTreeSet::new() };
    tried.difference = comparison.find_difference();
    tried.compared = comparison.compared;
    lab.check_stop()?;
    if tried.difference.is_some() {
        return Ok(comparison.varies);
    }
    let mut plan = options.plan.clone();
    for request in &mut plan.requests {
        request.headers.push(mark(cache));
    }
    let pairs = measure(lab, &plan, options.time, stack, &change)?;
    if let Some(measured) = ratio::paired(&pairs, 0.95) {
        (tried.ratio, tried.interval) = (measured.ratio, [measured.low, measured.high]);
    }
    debug_assert_eq!(pairs.len(), PAIRS);
    Ok(comparison.varies)
}

/// The header that a cache on trial asks for.
fn mark(cache: &PageCache) -> (String, String) {
    (PageCache::HEADER.into(), cache.token.clone().unwrap_or_default())
}

/// Compares answers with the cache to those without it.
struct Comparison<'a> {
    plan: &'a Plan,
    asker: Asker<'a>,
    cache: &'a PageCache,
    compared: u64,
    /// Names of fields in Vary, in small letters.
    varies: BTreeSet<String>,
}

type Fields = Vec<(String, String)>;

/// A way to ask for a page.
struct Variation {
    /// Added to the URL as a query.
    query: Option<String>,
    fields: Fields,
}

impl Comparison<'_> {
    /// Returns the first difference, or what could not be compared.
    fn find_difference(&mut self) -> Option<String> {
        // Each page, and each query of it that the plan has.
        let mut asked: Vec<&RequestSpec> = Vec::new();
        for request in self.plan.requests.iter().filter(|r| is_plain(r)) {
            let path = request.url.path.split('?').next().unwrap_or_default();
            let is_known = asked.iter().any(|known| known.url == request.url);
            if self.cache.paths.iter().any(|p| p == path) && !is_known {
                asked.push(request);
            }
        }
        asked.iter().find_map(|request| self.compare_page(request))
    }

    fn compare_page(&mut self, request: &RequestSpec) -> Option<String> {
        let own: Vec<&RequestSpec> = self.plan.requests.iter().filter(|r| r.url.path == request.url.path).collect();
        self.variations(request, &own).iter().find_map(|variation| self.compare(request, variation))
    }

    /// The page as the plan asks for it, and then with one thing changed at a time.
    fn variations(&self, request: &RequestSpec, own: &[&RequestSpec]) -> Vec<Variation> {
        let base = anonymous(request);
        let with = |more: &[(&str, &str)]| -> Fields {
            let is_replaced = |name: &str| more.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
            let kept = base.iter().filter(|(name, _)| !is_replaced(name)).cloned();
            kept.chain(more.iter().map(|(n, v)| ((*n).to_string(), (*v).to_string()))).collect()
        };
        let plain = |more: &[(&str, &str)]| Variation { query: None, fields: with(more) };
        let mut all = vec![plain(&[])];
        let is_secret_safe = !(request.url.tls && self.plan.tls.insecure);
        for (name, value) in own.iter().flat_map(|r| &r.headers).filter(|(_, value)| !value.contains("{{")) {
            let is_secret = ["cookie", "authorization"].iter().any(|n| name.eq_ignore_ascii_case(n));
            if !is_secret || is_secret_safe {
                all.push(plain(&[(name, value)]));
            }
            if !is_secret {
                all.push(plain(&[(name, "lastdrop")]));
            }
        }
        let jar: Vec<String> = COOKIES.iter().enumerate().map(|(n, name)| format!("{name}=lastdrop{n}")).collect();
        let jar = jar.join("; ");
        for more in [
            &[("Cookie", jar.as_str())][..],
            &[("Accept-Language", "de-DE,de;q=0.9")],
            &[("Accept-Language", "fr")],
            &[("Accept", "application/json"), ("X-Requested-With", "XMLHttpRequest")],
            &[("User-Agent", MOBILE)],
            &[("Accept-Encoding", "gzip")],
            &[("Accept-Encoding", "br")],
            &[("Range", "bytes=0-9")],
            &[("Cache-Control", "no-cache")],
            &[("X-Forwarded-For", ADDRESS)],
        ] {
            all.push(plain(more));
        }
        // What could spoil another cache on the way goes to an address that no visitor asks for.
        let unasked = Some(format!("lastdrop={}", mark(self.cache).1));
        for more in [
            &[][..],
            &[("X-Forwarded-Host", OTHER_SITE)],
            &[("X-Forwarded-Proto", if request.url.tls { "http" } else { "https" })],
            &[("X-Forwarded-Port", "8443")],
            &[("X-Forwarded-Prefix", "/lastdrop")],
            &[("X-Original-URL", "/lastdrop")],
            &[("X-Rewrite-URL", "/lastdrop")],
            &[("Forwarded", "for=192.0.2.77;host=lastdrop.invalid;proto=https")],
            &[("Origin", "https://lastdrop.invalid")],
        ] {
            all.push(Variation { query: unasked.clone(), fields: with(more) });
        }
        all
    }

    /// Asks with and without the cache. Returns what differs.
    fn compare(&mut self, request: &RequestSpec, variation: &Variation) -> Option<String> {
        let mut url = request.url.clone();
        if let Some(query) = &variation.query {
            let joint = if url.path.contains('?') { '&' } else { '?' };
            url = url.with_path(&format!("{}{joint}{query}", request.url.path));
        }
        let named = name_of(&variation.fields, &anonymous(request));
        let page = format!("GET {}{named}", request.url.path);
        let mut by_cache = variation.fields.clone();
        by_cache.push(mark(self.cache));
        let none = || format!("{page}: no answer to compare");
        let Some(cached) = self.asker.ask(&url, &by_cache) else { return Some(none()) };
        let Some(own) = self.asker.ask(&url, &variation.fields) else { return Some(none()) };
        self.compared += 1;
        let varies = own.field_values("vary").to_ascii_lowercase();
        let names = varies.split(',').map(|name| name.trim().to_string());
        self.varies.extend(names.filter(|name| !name.is_empty()));
        let difference = difference(&cached, &own)?;
        // The answer to a user may differ each time by itself. Then it must not be the page that all share.
        let is_of_user = variation.fields.iter().any(|(name, _)| is_user(name));
        if is_of_user {
            let again = self.asker.ask(&url, &variation.fields);
            let base = self.asker.ask(&url, &[mark(self.cache)]);
            let changes = again.is_some_and(|again| again.body != own.body);
            if changes && base.is_some_and(|base| base.body != cached.body) {
                return None;
            }
        }
        Some(format!("{page}: {difference}"))
    }
}

fn is_user(name: &str) -> bool {
    ["cookie", "authorization"].iter().any(|n| name.eq_ignore_ascii_case(n))
}

/// Names the fields in which a variation differs from the plan's request.
fn name_of(fields: &[(String, String)], base: &[(String, String)]) -> String {
    let own: Vec<String> = fields
        .iter()
        .filter(|field| !base.contains(field))
        .map(|(name, value)| if is_user(name) { name.clone() } else { format!("{name}: {value}") })
        .collect();
    if own.is_empty() { String::new() } else { format!(" with {}", own.join(", ")) }
}

/// Returns what differs in two answers; none if a visitor cannot tell them apart.
fn difference(cached: &Answer, own: &Answer) -> Option<String> {
    if cached.status != own.status {
        return Some(format!("status {} with the cache, {} without", cached.status, own.status));
    }
    if cached.body != own.body {
        let at = cached.body.iter().zip(&own.body).take_while(|(a, b)| a == b).count();
        return Some(format!(
            "{} bytes with the cache, {} without; they differ from byte {at} on",
            cached.body.len(),
            own.body.len()
        ));
    }
    COMPARED.into_iter().find_map(|name| {
        let (with, without) = (cached.field_values(name), own.field_values(name));
        (with != without).then(|| format!("{name} '{with}' with the cache, '{without}' without"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, field: (&str, &str), body: &str) -> Answer {
        let fields = vec![(field.0.to_string(), field.1.as_bytes().to_vec())];
        Answer { status, fields, body: body.as_bytes().to_vec() }
    }

    #[test]
    fn what_a_visitor_could_tell_apart_is_a_difference_and_a_date_is_none() {
        let one = answer(200, ("Date", "a"), "page");
        assert_eq!(difference(&one, &answer(200, ("Date", "b"), "page")), None);
        assert!(difference(&one, &answer(404, ("Date", "a"), "page")).is_some_and(|d| d.contains("404")));
        assert!(difference(&one, &answer(200, ("Date", "a"), "pane")).is_some_and(|d| d.contains("byte 2")));
        assert!(difference(&one, &answer(200, ("Location", "/x"), "page")).is_some_and(|d| d.contains("location")));
    }

    #[test]
    fn a_page_is_named_as_its_visitors_name_it() {
        let of = |url: &str, host: Option<&str>| {
            let url = url.parse().expect("a URL");
            let mut plan = Plan::new(url, 1);
            plan.requests[0].headers.extend(host.map(|host| ("host".to_string(), host.to_string())));
            site_of(&plan.requests[0])
        };
        assert_eq!(of("https://Www.Example.com/a", None), "www.example.com:443");
        assert_eq!(of("http://[::1]:8080/a", None), "[::1]:8080");
        assert_eq!(of("http://127.0.0.1:8080/a", Some("Shop.example:81")), "shop.example:8080");
        assert_eq!(of("http://127.0.0.1/a", Some("[::1]")), "[::1]:80");
    }

    #[test]
    fn a_difference_names_the_field_but_no_secret() {
        let base = vec![("Accept".to_string(), "*/*".to_string())];
        let with = |name: &str, value: &str| [base.clone(), vec![(name.to_string(), value.to_string())]].concat();
        assert_eq!(name_of(&with("X-Forwarded-Host", "a"), &base), " with X-Forwarded-Host: a");
        assert_eq!(name_of(&with("Cookie", "secret"), &base), " with Cookie");
        assert_eq!(name_of(&base, &base), "");
    }
}
