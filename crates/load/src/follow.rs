//! What follows from an answer: cookies are kept, challenges answered, redirects followed, expectations judged, values
//! taken, and the rest of a page is fetched.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{SystemTime, UNIX_EPOCH};

use lastdrop_http::digest::Challenge;
use lastdrop_model::{Kind, Micros, Url};

use crate::connection::Errand;
use crate::event_loop::EventLoop;
use crate::inspect::Capture;
use crate::page::embedded;
use crate::prepare::Detour;

/// Servers that redirects may add to those of the plan.
const MOST_ENDPOINTS: usize = 64;
/// Resources that a user remembers to have.
const MOST_CACHED: usize = 10_000;

/// Names what was fetched. Sixty-four bits instead of a URL of some kilobytes, of which each user may have thousands.
fn cache_key(endpoint: usize, path: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (endpoint, path).hash(&mut hasher);
    hasher.finish()
}

/// A page being loaded.
#[derive(Debug)]
pub(crate) struct PageLoad {
    pub due: Micros,
    pub phase: u16,
    pub waiting: VecDeque<Detour>,
    pub running: u32,
    pub failed: bool,
    /// The request of the plan that the page is.
    pub request: usize,
    /// What the page itself came to, without what it embeds: whether a session can go on, and its status.
    pub good: bool,
    pub status: u16,
}

impl PageLoad {
    /// A page of which the first request goes out now.
    pub fn begin(due: Micros, phase: u16, request: usize) -> Box<PageLoad> {
        let waiting = VecDeque::new();
        Box::new(PageLoad { due, phase, waiting, running: 1, failed: false, request, good: false, status: 0 })
    }
}

impl EventLoop<'_> {
    pub(crate) fn keep_cookies(&mut self, user: u32, endpoint: usize, errand: &Errand, seen: &Capture) {
        if seen.cookies.is_empty() {
            return;
        }
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        let path = String::from_utf8_lossy(&errand.target).into_owned();
        for value in &seen.cookies {
            let e = &self.endpoints[endpoint];
            self.people[user as usize].jar.set(value, &e.host, &path, e.tls, now_s);
        }
    }

    /// The request that an answer leads to: the response to a challenge, or where it redirects to.
    pub(crate) fn what_follows(
        &mut self,
        user: u32,
        index: usize,
        endpoint: usize,
        errand: &Errand,
        status: u16,
        seen: &Capture,
    ) -> Option<Errand> {
        let request = &self.job.prepared.requests[index];
        let phase = self.phase;
        if status == 401
            && request.digest.is_some()
            && endpoint == request.endpoint
            && let Some(challenge) = seen.challenges.iter().find_map(|c| Challenge::parse(c))
            && (!errand.challenged || challenge.stale)
            && errand.hops <= 8
        {
            self.people[user as usize].digest = Some((challenge, 0));
            self.slice(phase).counts.challenged += 1;
            return Some(Errand {
                detour: errand.detour.clone(),
                hops: errand.hops + 1,
                challenged: true,
                embedded: errand.embedded,
                ..Errand::default()
            });
        }
        let location = seen.location.as_ref().filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308))?;
        if self.job.plan.http.redirects == 0 {
            return None;
        }
        if errand.hops >= self.job.plan.http.redirects {
            self.slice(phase).counts.left_out += 1;
            return None;
        }
        let e = &self.endpoints[endpoint];
        let path = String::from_utf8_lossy(&errand.target).into_owned();
        let here = Url { tls: e.tls, host: e.host.clone(), port: e.port, path };
        let Ok(there) = here.join(location) else {
            self.slice(phase).counts.unusable += 1;
            return None;
        };
        let Some(target) = self.endpoint_of(&there) else {
            self.slice(phase).counts.elsewhere += 1;
            return None;
        };
        let method = errand.detour.as_ref().map_or(request.method.as_str(), |d| d.method.as_str());
        let keeps = matches!(status, 307 | 308) || !(method == "POST" || status == 303 && method != "HEAD");
        let detour = Detour {
            endpoint: target,
            method: if keeps { method.to_string() } else { "GET".into() },
            body: keeps && errand.detour.as_ref().is_none_or(|d| d.body),
            path: there.path,
            host: None,
        };
        self.slice(phase).counts.redirected += 1;
        Some(Errand { detour: Some(detour), hops: errand.hops + 1, embedded: errand.embedded, ..Errand::default() })
    }

    /// The server of a URL: one of the plan's, or the same host on another port. Nobody else is loaded.
    fn endpoint_of(&mut self, url: &Url) -> Option<usize> {
        let same_host = |host: &str| host.eq_ignore_ascii_case(&url.host);
        let known = self.endpoints.iter().position(|e| e.tls == url.tls && e.port == url.port && same_host(&e.host));
        if known.is_some() {
            return known;
        }
        let sibling = self.endpoints.iter().find(|e| same_host(&e.host))?;
        if self.endpoints.len() >= MOST_ENDPOINTS.max(self.job.prepared.endpoints.len() + 8) {
            return None;
        }
        let new = sibling.sibling(url, &self.job.plan.network);
        self.endpoints.push(new);
        self.idle.push(Vec::new());
        Some(self.endpoints.len() - 1)
    }

    /// Expectations and extractions. False: the session cannot go on.
    pub(crate) fn judge(
        &mut self,
        user: u32,
        index: usize,
        phase: u16,
        status: u16,
        seen: &Capture,
        errand: &Errand,
    ) -> bool {
        let embedded = errand.embedded;
        let request = &self.job.prepared.requests[index];
        let class = if embedded { self.job.prepared.class_of_parts } else { request.class };
        if let Some((coded, decoded)) = seen.decoded_bytes() {
            self.slice(phase).count(class, |c| {
                c.bytes_coded += coded;
                c.bytes_decoded += decoded;
            });
        }
        if seen.left_out() {
            self.slice(phase).counts.left_out += 1;
        }
        let mut met = !seen.damaged;
        if embedded {
            // What a page embeds is not what the plan's expectations are about.
            if !met {
                self.slice(phase).count(class, |c| c.missed += 1);
            }
            return met;
        }
        for expectation in &request.expect {
            met &= seen.meets(expectation, status, &request.first_sum);
        }
        let mut found_all = true;
        let url = seen.location.as_deref().unwrap_or(&errand.target);
        for extraction in &request.extract {
            match extraction.take(&seen.headers, seen.body(), url) {
                Some(value) => self.people[user as usize].values[extraction.value] = value,
                None => found_all = false,
            }
        }
        if !met || !found_all {
            self.slice(phase).count(class, |c| c.missed += 1);
        }
        found_all
    }

    /// The HTML of a page, or something that it embeds, has come to its end.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn page_part_over(
        &mut self,
        user: u32,
        slot: u32,
        errand: &Errand,
        endpoint: usize,
        (good, status): (bool, u16),
        refused: bool,
        capture: Option<Box<Capture>>,
        now: Micros,
    ) {
        let ok = good && status < 400;
        let path = String::from_utf8_lossy(&errand.target).into_owned();
        let cache = self.job.plan.page.as_ref().is_some_and(|p| p.cache);
        let Some(mut page) = self.people[user as usize].page.take() else { return };
        page.running -= 1;
        page.failed |= !ok;
        if !errand.embedded {
            (page.good, page.status) = (good, status);
        }
        if !errand.embedded && ok {
            let e = &self.endpoints[endpoint];
            let here = Url { tls: e.tls, host: e.host.clone(), port: e.port, path };
            let html = capture.as_ref().map_or(&[][..], |c| c.body());
            let found = embedded(html, &here);
            let phase = self.phase;
            let counts = &mut self.slice(phase).counts;
            counts.unusable += found.unusable;
            counts.left_out += found.left_out;
            for url in found.urls {
                let Some(endpoint) = self.endpoint_of(&url) else {
                    self.slice(phase).counts.elsewhere += 1;
                    continue;
                };
                if !(cache && self.people[user as usize].cached.contains(&cache_key(endpoint, &url.path))) {
                    page.waiting.push_back(Detour {
                        endpoint,
                        method: "GET".into(),
                        path: url.path,
                        body: false,
                        host: None,
                    });
                }
            }
        } else if errand.embedded && ok && cache && capture.is_some_and(|c| !c.no_store) {
            let cached = &mut self.people[user as usize].cached;
            if cached.len() < MOST_CACHED {
                cached.insert(cache_key(endpoint, &path));
            }
        }
        let request = page.request;
        // In the order of the page, as far as the browser may have connections to their hosts.
        // Of a page one part at a time waits in line.
        while self.may_follow(now) && (page.running == 0 || !self.line_stands()) {
            let next = page.waiting.iter().position(|d| self.slot_for(user, d.endpoint).is_some());
            let Some(detour) = next.and_then(|at| page.waiting.remove(at)) else { break };
            page.running += 1;
            let phase = self.phase;
            self.slice(phase).counts.due += 1;
            let next = Errand { detour: Some(detour), embedded: true, ..Errand::default() };
            self.people[user as usize].page = Some(page);
            self.issue(user, request, now, phase, Some(Box::new(next)), now, true);
            match self.people[user as usize].page.take() {
                Some(same) => page = same,
                // It failed at once and was the last: the page is over.
                None => return,
            }
        }
        if page.running > 0 {
            self.people[user as usize].page = Some(page);
            return;
        }
        let complete = page.waiting.is_empty();
        // The slice of the phase in which the page came due may have been handed over for good.
        let phase = if self.live[usize::from(page.phase)].is_some() { page.phase } else { self.phase };
        if complete && !page.failed {
            self.record(phase, Kind::Page, now.saturating_sub(page.due));
            self.slice(phase).counts.pages += 1;
        } else {
            self.slice(phase).counts.pages_failed += 1;
        }
        let (good, status) = (page.good, page.status);
        self.step_over(user, slot, request, (good, status), refused, now);
    }
}
