//! Sends one request: on its user's connection, or on a new one.

use lastdrop_model::Micros;
use rand_core::Rng;

use super::EventLoop;
use crate::ids::{Placement, StreamId};
use crate::inspect::{Capture, CaptureSpec};
use crate::prepare::RenderContext;
use crate::protocol::WriteProgress;
use crate::stream::FollowUp;
use crate::template::Values;
use crate::transport::{State, describe};
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Sends a request that is due.
    ///
    /// # Errors
    /// This process cannot open another socket now. The request is not sent, and its follow-up is returned.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub(super) fn begin(
        &mut self,
        place: Placement,
        request: u32,
        endpoint: u32,
        due: Micros,
        phase: u16,
        follow_up: Option<Box<FollowUp>>,
        now: Micros,
        arrived: bool,
    ) -> Result<(), Option<Box<FollowUp>>> {
        let Placement { stream, slot } = place;
        let c = &self.transport.connections[slot];
        if c.socket.is_some() && (c.peer_closed || c.endpoint != endpoint) && !c.wire.is_shared() {
            self.transport.close(slot);
        }
        self.streams[stream].request = request;
        self.streams[stream].class = self.job.prepared.class_of(request, follow_up.as_deref());
        let looked_at = self.is_looked_at(stream, request, follow_up.as_deref());
        if self.job.prepared.requests[request as usize].wire.is_none()
            || follow_up.is_some()
            || self.job.prepared.personal
            || self.job.plan.http.pipeline > 1
            || self.record.ids.is_some()
        {
            self.fill(place, request, endpoint, follow_up);
        }
        self.streams[stream].looked_at = looked_at;
        if looked_at {
            let wanted = self.job.prepared.requests[request as usize].answer.wanted.clone().unwrap_or_default();
            let wanted = CaptureSpec { location: true, peek: !wanted.body, ..wanted };
            self.streams[stream].capture = Some(Box::new(Capture::new(&wanted)));
        }
        if self.transport.connections[slot].wire.is_shared() {
            return self.begin_shared(place, endpoint, due, phase, now, arrived);
        }
        let piece = self.piece();
        let c = &mut self.transport.connections[slot];
        let is_ahead = c.pace.as_ref().is_some_and(|pace| pace.write_from > now);
        if let Some(socket) = &c.socket {
            c.wire.restart();
            if c.layers.tls.is_none() && !is_ahead {
                let requests = &self.job.prepared.requests;
                match self.transport.world.send(socket, c.wire.next(slot, &self.streams, requests, piece)) {
                    Ok(n) => {
                        c.wire.wrote(n);
                        let whole = matches!(c.wire.progress(slot, &self.streams, requests), WriteProgress::All(_));
                        c.state = if whole { State::Waiting } else { State::Writing };
                        let s = &mut self.streams[stream];
                        s.times.ready = now;
                        s.times.written = if whole { now } else { 0 };
                        self.sent(place, due, phase, now, arrived);
                        self.count(stream, |c| c.bytes_sent += n as u64);
                        self.wrote(slot, n);
                        if !whole {
                            self.write(slot);
                        }
                        return Ok(());
                    }
                    // The server had closed the connection before anything was written: this costs only a reconnect.
                    Err(_) => self.transport.close(slot),
                }
            } else {
                c.state = State::Writing;
                let s = &mut self.streams[stream];
                s.times.ready = now;
                s.times.written = 0;
                self.sent(place, due, phase, now, arrived);
                self.write(slot);
                return Ok(());
            }
        }
        self.open(place, endpoint, due, phase, now, arrived)
    }

    /// Opens a connection for a request.
    pub(super) fn open(
        &mut self,
        place: Placement,
        endpoint: u32,
        due: Micros,
        phase: u16,
        now: Micros,
        arrived: bool,
    ) -> Result<(), Option<Box<FollowUp>>> {
        let Placement { stream, slot } = place;
        let connected = match self.transport.open(slot, endpoint, &self.job.plan.network.sources, now) {
            Ok(connected) => connected,
            Err(e) => {
                self.record.note_connect_error(&describe(&e));
                self.transport.connections[slot].wire.clear();
                let s = &mut self.streams[stream];
                s.capture = None;
                return Err(s.follow_up.take());
            }
        };
        if self.transport.connections[slot].wire.is_shared() {
            self.encode(place);
        }
        let s = &mut self.streams[stream];
        s.times.ready = 0;
        s.times.written = 0;
        s.said = None;
        let open = self.transport.open_sockets;
        let live = self.record.live(self.phases.phase);
        live.peak = live.peak.max(open);
        self.sent(place, due, phase, now, arrived);
        if connected.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EADDRNOTAVAIL)) {
            self.record.outcome.shortage.ports += 1;
        }
        let prepared = match connected.and_then(|()| self.transport.watch(slot)) {
            Ok(()) => self.transport.start_tls(slot, self.job.tls.as_ref(), &self.job.plan.tls),
            Err(e) => Err(describe(&e)),
        };
        if let Err(what) = prepared {
            self.record.note_connect_error(&what);
            self.transport.doom(slot, self.record.connect_error.take());
        }
        Ok(())
    }

    /// Whether to check this answer for signs of failure because the plan expects nothing of it. A log's answer or an
    /// expectation takes precedence.
    #[inline]
    fn is_looked_at(&mut self, stream: StreamId, request: u32, follow_up: Option<&FollowUp>) -> bool {
        let (class, plan) = (self.streams[stream].class, self.job.plan);
        let is_own = follow_up.is_none_or(|e| !e.embedded && e.logged.is_none());
        is_own
            && self.tape.is_none()
            && plan.http.pipeline <= 1
            && self.job.prepared.requests[request as usize].answer.expect.is_empty()
            && self.record.looks.is_due(class)
    }

    /// Renders a request that differs each time, and sets up the capture of its answer.
    pub(super) fn fill(&mut self, place: Placement, request: u32, endpoint: u32, follow_up: Option<Box<FollowUp>>) {
        let (prepared, plan) = (self.job.prepared, self.job.plan);
        let spec = &prepared.requests[request as usize];
        let user = self.users.user_of(place.stream);
        let c = &mut self.transport.connections[place.slot];
        let s = &mut self.streams[place.stream];
        let ids = &mut self.record.ids;
        c.wire.clear();
        if let Some(ids) = ids {
            s.id = ids.take(c.wire.behind().len());
        }
        let part = follow_up.as_ref().is_some_and(|e| e.embedded);
        let look = |w| Box::new(if part { Capture::of_part(w) } else { Capture::new(w) });
        s.capture = spec.answer.wanted.as_ref().map(look);
        if follow_up.as_ref().and_then(|e| e.logged.as_ref()).is_some_and(|logged| logged.target.is_some()) {
            let wanted = spec.answer.wanted.clone().unwrap_or_default();
            s.capture = Some(Box::new(Capture::new(&CaptureSpec { location: true, ..wanted })));
        }
        if !prepared.personal {
            // Pipelined: the same request several times.
            let wire = spec.wire.as_deref().unwrap_or_default();
            let mut numbers = s.id..;
            return c.wire.repeat(|out| match (&mut *ids, numbers.next()) {
                (Some(ids), Some(number)) => ids.write(number, wire, out),
                _ => out.extend_from_slice(wire),
            });
        }
        let mut follow_up = follow_up.unwrap_or_default();
        let person = &mut self.users.people[user as usize];
        let cnonce = if spec.digest.is_some() { format!("{:016x}", self.users.rng.next_u64()) } else { String::new() };
        let mut values = Values {
            user: person.number,
            iteration: person.iteration,
            values: &person.values,
            rng: &mut self.users.rng,
        };
        let e = &self.transport.endpoints[endpoint as usize];
        follow_up.target = match &follow_up.detour {
            Some(detour) => detour.path.clone().into_bytes(),
            None => spec.target(&mut values),
        };
        if let (Some(wire), None) = (&spec.wire, &follow_up.detour) {
            if let Some(ids) = ids {
                ids.write(s.id, wire, c.wire.out());
            }
            s.follow_up = Some(follow_up);
            return;
        }
        let mut cookie = Vec::new();
        let path = String::from_utf8_lossy(&follow_up.target);
        let has_cookies = plan.http.cookies && person.jar.write_header(&e.host, &path, e.tls, &mut cookie);
        let cookie = has_cookies.then_some(cookie);
        let method = follow_up.detour.as_ref().map_or(spec.method.as_str(), |d| d.method.as_str());
        // A password goes only to the server that it was given for.
        let challenged = spec.digest.is_some() && person.digest.is_some() && endpoint as usize == spec.endpoint;
        let digest = &mut person.digest;
        let mut respond = |target: &str| match (digest.as_mut(), &spec.digest) {
            (Some((challenge, count)), Some(who)) => {
                *count += 1;
                challenge.authorization(&who.user, &who.password, method, target, *count, &cnonce)
            }
            _ => String::new(),
        };
        let target = follow_up.target.clone();
        let ids = ids.as_mut().map_or(&[][..], |ids| ids.fields(s.id));
        let mut filling = RenderContext { values, ids, cookie, authorization: None };
        if challenged {
            filling.authorization = Some(&mut respond);
        }
        let body_at = spec.render(e, &plan.http, follow_up.detour.as_ref(), &target, &mut filling, c.wire.out());
        if spec.expects_continue {
            c.wire.hold_at(body_at);
        }
        s.follow_up = Some(follow_up);
    }

    /// Counts a request as sent and puts it among those in flight.
    #[inline]
    pub(super) fn sent(&mut self, place: Placement, due: Micros, phase: u16, now: Micros, arrived: bool) {
        if self.transport.connections[place.slot].wire.is_shared() {
            return self.sent_shared(place, due, phase, now, arrived);
        }
        let freed_at = self.waiting.freed_at.min(now);
        let open = arrived && (!self.phases.queues.is_empty() || self.plays_open());
        // Requests that joined the queue in an earlier phase count as well.
        let in_line = (self.waiting.pool.is_bounded() || self.waiting.pool.joined.is_some())
            .then(|| self.waiting.pool.blocked(now));
        let c = &mut self.transport.connections[place.slot];
        let s = &mut self.streams[place.stream];
        let class = s.class;
        let mut record = |due: Micros| {
            let nobody_free = open.then(|| freed_at.saturating_sub(due));
            self.record.sent(phase, class, now.saturating_sub(due), in_line.or(nobody_free));
        };
        record(due);
        c.wire.behind().iter().for_each(|due| record(*due));
        s.phase = phase;
        s.times.due = due;
        s.times.sent = now;
        // The value may be from a tunnel or an earlier answer; this request may get no first byte.
        s.times.first_byte = 0;
        s.received = 0;
        c.served += 1 + c.wire.behind().len() as u32;
        let head = match &s.follow_up {
            Some(e) if e.detour.is_some() => e.detour.as_ref().is_some_and(|d| d.method == "HEAD"),
            _ => self.job.prepared.requests[s.request as usize].head_request(),
        };
        c.wire.start(head);
        self.streams.push(place.stream);
    }
}
