//! Gives a request that is due a connection, or lets it wait for one.

use lastdrop_model::Micros;

use super::EventLoop;
use crate::ids::Placement;
use crate::phases::Source;
use crate::stream::FollowUp;
use crate::transport::State;
use crate::users::WaitingRequest;
use crate::world::World;

/// Pause before the next try when this process has no descriptor or memory left for a socket.
pub(super) const NO_SOCKET_PAUSE_US: Micros = 10_000;

impl<W: World> EventLoop<'_, W> {
    /// Returns a user's stream for a request to a server, with its connection; `None` if all that it may have are in
    /// use.
    pub(super) fn place_for(&self, user: u32, endpoint: usize) -> Option<Placement> {
        let Some(page) = &self.job.plan.page else {
            return Some(self.place_of(self.users.stream(user, endpoint as u32 % self.users.per_user)));
        };
        let each = page.connections_per_host.max(1);
        let group = (endpoint as u32 % (self.users.per_user / each).max(1)) * each;
        let places = (group..group + each).map(|nth| self.place_of(self.users.stream(user, nth)));
        let of = |place: &Placement| &self.transport.connections[place.slot];
        places
            .clone()
            .find(|p| of(p).has_room() && of(p).endpoint == endpoint as u32)
            .or_else(|| places.clone().find(|p| of(p).state == State::Closed))
            .or_else(|| places.clone().find(|p| of(p).has_room()))
    }

    /// Due times of the requests that were to be pipelined behind one that was not sent.
    pub(super) fn behind(&self, stranded: &WaitingRequest) -> &[Micros] {
        let place = self.place_for(stranded.user, stranded.endpoint(&self.job.prepared.requests));
        let c = place.map(|place| &self.transport.connections[place.slot]).filter(|c| !c.busy());
        c.map(|c| c.wire.behind()).unwrap_or_default()
    }

    /// Sends a request that is due, or keeps it until a descriptor is free.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn issue(
        &mut self,
        user: u32,
        request: usize,
        due: Micros,
        phase: u16,
        follow_up: Option<Box<FollowUp>>,
        now: Micros,
        arrived: bool,
    ) {
        if let Err(stranded) = self.try_issue(user, request, due, phase, follow_up, now, arrived) {
            self.record.outcome.shortage.descriptors += 1;
            self.strand(stranded, now);
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn try_issue(
        &mut self,
        user: u32,
        request: usize,
        due: Micros,
        phase: u16,
        follow_up: Option<Box<FollowUp>>,
        now: Micros,
        arrived: bool,
    ) -> Result<(), WaitingRequest> {
        let detour = follow_up.as_ref().and_then(|e| e.detour.as_ref());
        let endpoint = detour.map_or(self.job.prepared.requests[request].endpoint, |d| d.endpoint);
        let stranded =
            |follow_up, joined| WaitingRequest { user, due, phase, request: request as u32, follow_up, joined };
        let Some(Placement { stream, slot }) = self.place_for(user, endpoint) else {
            // Only page mode has several in flight per user, and it checks before it issues one.
            return Err(stranded(follow_up, None));
        };
        // Closed loop: a user with pipelining sends several requests at once.
        let depth = self.job.plan.http.pipeline.max(1);
        if depth > 1 && !arrived {
            let more = u64::from(depth - 1).min(self.phases.remaining);
            self.phases.remaining -= more;
            self.record.slice(phase).counts.due += more;
            self.transport.connections[slot].wire.put_behind(std::iter::repeat_n(due, more as usize));
        }
        if self.waiting.pool.is_bounded() && self.has_to_wait(Placement { stream, slot }, endpoint as u32) {
            self.waiting.stranded.push_back(stranded(follow_up, Some(now)));
            return Ok(());
        }
        let joined = self.waiting.pool.joined;
        self.begin(self.place_of(stream), request as u32, endpoint as u32, due, phase, follow_up, now, arrived)
            .map_err(|follow_up| stranded(follow_up, joined))
    }

    pub(super) fn strand(&mut self, stranded: WaitingRequest, now: Micros) {
        self.waiting.no_socket_until = now + NO_SOCKET_PAUSE_US;
        self.waiting.stranded.push_back(stranded);
    }

    pub(super) fn send_stranded(&mut self, now: Micros) {
        if self.waiting.pool.is_bounded() || self.waiting.stranded.front().is_some_and(|s| s.joined.is_some()) {
            return self.serve_line(now);
        }
        for _ in 0..self.waiting.stranded.len() {
            if self.phases.over || now < self.waiting.no_socket_until || self.turn_is_over() {
                break;
            }
            if let Some(s) = self.waiting.stranded.pop_front()
                && let Err(again) = self.try_issue(s.user, s.request as usize, s.due, s.phase, s.follow_up, now, true)
            {
                self.strand(again, now);
            }
        }
        self.none_stranded(now);
    }

    /// Ends the phase if no request is stranded any more and all have come due.
    pub(super) fn none_stranded(&mut self, now: Micros) {
        if self.waiting.stranded.is_empty() {
            match self.phases.source {
                Source::Closed { .. } if self.phases.remaining == 0 => self.nothing_remains(now),
                Source::Closed { .. } => {}
                Source::Open => self.open_budget_used(now),
            }
        }
    }
}
