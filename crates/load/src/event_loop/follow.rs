//! Handles what follows from an answer: stores cookies, answers challenges, follows redirects, checks expectations,
//! extracts values.

use lastdrop_http::digest::Challenge;
use lastdrop_model::Url;

use super::EventLoop;
use crate::inspect::Capture;
use crate::prepare::Detour;
use crate::stream::FollowUp;
use crate::world::World;

/// Most servers that a run may know, with those that redirects add.
const MOST_ENDPOINTS: usize = 64;

impl<W: World> EventLoop<'_, W> {
    pub(super) fn keep_cookies(&mut self, user: u32, endpoint: usize, follow_up: &FollowUp, seen: &Capture) {
        if seen.cookies.is_empty() {
            return;
        }
        let now_s = ((self.transport.world.unix_us() + self.transport.world.now_us()) / 1_000_000) as i64;
        let path = String::from_utf8_lossy(&follow_up.target).into_owned();
        for value in &seen.cookies {
            let e = &self.transport.endpoints[endpoint];
            self.users.people[user as usize].jar.set(value, &e.host, &path, e.tls, now_s);
        }
    }

    /// Returns the request that an answer leads to: the reply to a challenge, or the target of a redirect.
    pub(super) fn what_follows(
        &mut self,
        user: u32,
        index: usize,
        endpoint: usize,
        follow_up: &FollowUp,
        status: u16,
        seen: &Capture,
    ) -> Option<FollowUp> {
        let request = &self.job.prepared.requests[index];
        let phase = self.phases.phase;
        if status == 401
            && request.digest.is_some()
            && endpoint == request.endpoint
            && let Some(challenge) = seen.challenges.iter().find_map(|c| Challenge::parse(c))
            && (!follow_up.challenged || challenge.stale)
            && follow_up.hops <= 8
        {
            self.users.people[user as usize].digest = Some((challenge, 0));
            self.record.slice(phase).counts.challenged += 1;
            return Some(FollowUp {
                detour: follow_up.detour.clone(),
                hops: follow_up.hops + 1,
                challenged: true,
                embedded: follow_up.embedded,
                ..FollowUp::default()
            });
        }
        let location = seen.location.as_ref().filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308))?;
        if self.job.plan.http.redirects == 0 {
            return None;
        }
        if follow_up.hops >= self.job.plan.http.redirects {
            self.record.slice(phase).counts.left_out += 1;
            return None;
        }
        let e = &self.transport.endpoints[endpoint];
        let path = String::from_utf8_lossy(&follow_up.target).into_owned();
        let here = Url { tls: e.tls, host: e.host.clone(), port: e.port, path };
        let Ok(there) = here.join(location) else {
            self.record.slice(phase).counts.unusable += 1;
            return None;
        };
        let Some(target) = self.endpoint_of(&there) else {
            self.record.slice(phase).counts.elsewhere += 1;
            return None;
        };
        let method = follow_up.detour.as_ref().map_or(request.method.as_str(), |d| d.method.as_str());
        let keeps = matches!(status, 307 | 308) || !(method == "POST" || status == 303 && method != "HEAD");
        let detour = Detour {
            endpoint: target,
            method: if keeps { method.to_string() } else { "GET".into() },
            body: keeps && follow_up.detour.as_ref().is_none_or(|d| d.body),
            path: there.path,
            host: None,
        };
        self.record.slice(phase).counts.redirected += 1;
        Some(FollowUp {
            detour: Some(detour),
            hops: follow_up.hops + 1,
            embedded: follow_up.embedded,
            ..FollowUp::default()
        })
    }

    /// Whether an answer would lead to another request if the phase were not over. The plan's expectations are then not
    /// about this answer.
    pub(super) fn is_cut_off(&self, index: usize, follow_up: &FollowUp, status: u16, seen: &Capture) -> bool {
        let redirects = matches!(status, 301 | 302 | 303 | 307 | 308)
            && seen.location.is_some()
            && follow_up.hops < self.job.plan.http.redirects;
        let challenges = status == 401 && self.job.prepared.requests[index].digest.is_some() && !follow_up.challenged;
        redirects || challenges
    }

    /// Returns the server of a URL: one of the plan's, or the same host on another port. Any other host gets no load.
    pub(super) fn endpoint_of(&mut self, url: &Url) -> Option<usize> {
        let same_host = |host: &str| host.eq_ignore_ascii_case(&url.host);
        let known =
            self.transport.endpoints.iter().position(|e| e.tls == url.tls && e.port == url.port && same_host(&e.host));
        if known.is_some() {
            return known;
        }
        let sibling = self.transport.endpoints.iter().find(|e| same_host(&e.host))?;
        if self.transport.endpoints.len() >= MOST_ENDPOINTS.max(self.job.prepared.endpoints.len() + 8) {
            return None;
        }
        let new = sibling.sibling(url, &self.job.plan.network);
        self.transport.endpoints.push(new);
        self.waiting.idle.push(Vec::new());
        Some(self.transport.endpoints.len() - 1)
    }

    /// Checks expectations and extracts values. Returns false if the session cannot continue.
    pub(super) fn judge(
        &mut self,
        user: u32,
        index: usize,
        phase: u16,
        status: u16,
        seen: &Capture,
        follow_up: &FollowUp,
    ) -> bool {
        let embedded = follow_up.embedded;
        let request = &self.job.prepared.requests[index];
        let class = if embedded { self.job.prepared.class_of_parts } else { request.class };
        if let Some((coded, decoded)) = seen.decoded_bytes() {
            self.record.slice(phase).count(class, |c| {
                c.bytes_coded += coded;
                c.bytes_decoded += decoded;
            });
        }
        if seen.left_out() {
            self.record.slice(phase).counts.left_out += 1;
        }
        let mut met = !seen.damaged;
        if embedded {
            // The plan's expectations are about the page, not about what it embeds.
            if !met {
                self.record.slice(phase).count(class, |c| c.missed += 1);
            }
            return met;
        }
        for expectation in &request.answer.expect {
            met &= seen.meets(expectation, status, &follow_up.target, &request.answer.first_sum);
        }
        let mut found_all = true;
        let url = seen.location.as_deref().unwrap_or(&follow_up.target);
        for extraction in &request.answer.extract {
            match extraction.take(&seen.headers, seen.body(), url) {
                Some(value) => self.users.people[user as usize].values[extraction.value] = value,
                None => found_all = false,
            }
        }
        if !met || !found_all {
            self.record.slice(phase).count(class, |c| c.missed += 1);
        }
        found_all
    }
}
