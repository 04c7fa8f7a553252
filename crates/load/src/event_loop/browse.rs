//! Fetches a page and what it embeds, as a browser does.

use lastdrop_model::{Kind, Micros, Url};

use super::EventLoop;
use crate::ids::Slot;
use crate::inspect::Capture;
use crate::page::embedded;
use crate::prepare::Detour;
use crate::stream::FollowUp;
use crate::users::{MOST_CACHED, cache_key};
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Handles the end of a page's HTML, or of a resource that it embeds.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn page_part_over(
        &mut self,
        user: u32,
        slot: Slot,
        follow_up: &FollowUp,
        endpoint: usize,
        (good, status): (bool, u16),
        refused: bool,
        capture: Option<Box<Capture>>,
        now: Micros,
    ) {
        let path = String::from_utf8_lossy(&follow_up.target).into_owned();
        let e = &self.transport.endpoints[endpoint];
        let here = Url { tls: e.tls, host: e.host.clone(), port: e.port, path: path.clone() };
        let cache = self.job.plan.page.as_ref().is_some_and(|p| p.cache);
        let Some(mut page) = self.users.people[user as usize].page.take() else { return };
        // The plan may expect an error status of the page itself.
        let expects_status = !follow_up.embedded && self.job.prepared.requests[page.request].expects_status();
        let ok = good && (status < 400 || expects_status);
        page.running -= 1;
        page.failed |= !ok;
        if !ok && self.job.plan.phases[usize::from(page.phase)].measured {
            let why = match status {
                0 => "no answer:".to_string(),
                400.. if !expects_status => status.to_string(),
                _ if capture.as_ref().is_some_and(|c| c.damaged) => format!("{status}, damaged:"),
                _ => format!("{status}, not as expected:"),
            };
            self.record.note_page_error(&why, &here);
        }
        if !follow_up.embedded {
            (page.good, page.status) = (good, status);
        }
        if !follow_up.embedded && ok {
            let html = capture.as_ref().map_or(&[][..], |c| c.body());
            let found = embedded(html, &here);
            let phase = self.phases.phase;
            let counts = &mut self.record.slice(phase).counts;
            counts.unusable += found.unusable;
            counts.left_out += found.left_out;
            for url in found.urls {
                let Some(endpoint) = self.endpoint_of(&url) else {
                    self.record.slice(phase).counts.elsewhere += 1;
                    continue;
                };
                if !(cache && self.users.people[user as usize].cached.contains(&cache_key(endpoint, &url.path))) {
                    page.waiting.push_back(Detour {
                        endpoint,
                        method: "GET".into(),
                        path: url.path,
                        body: false,
                        host: None,
                    });
                }
            }
        } else if follow_up.embedded && ok && cache && capture.is_some_and(|c| !c.no_store) {
            let cached = &mut self.users.people[user as usize].cached;
            if cached.len() < MOST_CACHED {
                cached.insert(cache_key(endpoint, &path));
            }
        }
        let request = page.request;
        // Start resources in page order, within the browser's connections per host. At most one resource of a page
        // queues for a connection at a time.
        while self.phases.may_follow(now) && (page.running == 0 || !self.waiting.line_stands()) {
            let next = page.waiting.iter().position(|d| self.place_for(user, d.endpoint).is_some());
            let Some(detour) = next.and_then(|at| page.waiting.remove(at)) else { break };
            page.running += 1;
            let phase = self.phases.phase;
            self.record.slice(phase).counts.due += 1;
            let next = FollowUp { detour: Some(detour), embedded: true, ..FollowUp::default() };
            self.users.people[user as usize].page = Some(page);
            self.issue(user, request, now, phase, Some(Box::new(next)), now, true);
            match self.users.people[user as usize].page.take() {
                Some(same) => page = same,
                // The resource failed at once and was the last one: the page is over.
                None => return,
            }
        }
        if page.running > 0 {
            self.users.people[user as usize].page = Some(page);
            return;
        }
        let complete = page.waiting.is_empty();
        // The slice of the phase in which the page came due may already have been handed over.
        let phase = if self.record.live[usize::from(page.phase)].is_some() { page.phase } else { self.phases.phase };
        if complete && !page.failed {
            self.record.latency(phase, Kind::Page, now.saturating_sub(page.due));
            self.record.slice(phase).counts.pages += 1;
        } else {
            self.record.slice(phase).counts.pages_failed += 1;
        }
        self.step_over(user, slot, request, (page.good, page.status), refused, now);
    }
}
