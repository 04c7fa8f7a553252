//! HTTP/2: requests that share a connection.
//!
//! A connection is corked: a request that begins is only encoded, and the loop writes once per event, however many
//! requests one read has answered and begun anew. Without the cork, 100 streams would cost 100 system calls. A request
//! counts as sent when the loop hands its first byte to the socket, so that the time in the cork is lateness.
//!
//! What the server surely did not process goes again once with its due time: a request above the last one that a GOAWAY
//! names, or one that it refused (REFUSED_STREAM).

use std::cmp::Reverse;

use lastdrop_http::h2::{ConnectionError, ErrorCode, Event, Reset};
use lastdrop_http::{NullSink, Sink};
use lastdrop_model::{Failure, Micros, RequestOutcome};

use super::issue::NO_SOCKET_PAUSE_US;
use super::{Alarm, EventLoop};
use crate::ids::{Placement, Slot, StreamId};
use crate::phases::Source;
use crate::protocol::{HttpState, SharedWire, Uncorked};
use crate::record::ServerField;
use crate::server_time::ServerTimeReader;
use crate::stream::FollowUp;
use crate::transport::{State, slot_of};
use crate::users::{RequestEnd, WaitingRequest};
use crate::world::World;

/// How many connections with room are compared before the one with the fewest requests is taken.
const COMPARED: usize = 8;

/// What has happened on a connection, once nothing of it is borrowed any more.
enum Happened {
    Answered(StreamId),
    Lost(StreamId, Reset),
    GoAway(ErrorCode, Vec<u32>),
    Settings,
}

/// Finding a connection.
impl<W: World> EventLoop<'_, W> {
    /// Gives a stream a connection with room, or the slot of one that may be opened. Returns false if it has to queue.
    ///
    /// Users of a closed loop spread evenly over the connections that they may have. In an open loop a request takes an
    /// idle connection, else opens another, else goes where the fewest are in flight.
    pub(super) fn find_shared(&mut self, place: Placement, endpoint: u32) -> bool {
        if self.transport.shared.own.is_some() {
            return self.find_own(place, endpoint);
        }
        let most = self.waiting.pool.most;
        let share = match self.phases.source {
            Source::Closed { .. } => u64::from(self.users.wanted).div_ceil(most.max(1)).max(1) as usize,
            Source::Open => 1,
        };
        let c = &self.transport.connections[place.slot];
        if c.has_room() && c.endpoint == endpoint && c.wire_load() < share {
            return true;
        }
        let mut best: Option<(usize, Slot)> = None;
        let (mut compared, mut idle_elsewhere) = (0, None);
        let open = &self.transport.shared.open;
        for step in 0..open.len() {
            let slot = open[(self.transport.shared.turn + step) % open.len()];
            let c = &self.transport.connections[slot];
            if c.endpoint != endpoint {
                if c.wire_load() == 0 && matches!(c.state, State::Idle | State::Waiting | State::Writing) {
                    idle_elsewhere = Some(slot);
                }
                continue;
            }
            if !c.has_room() {
                continue;
            }
            let load = c.wire_load();
            if best.is_none_or(|(least, _)| load < least) {
                best = Some((load, slot));
            }
            compared += 1;
            if load == 0 || compared == COMPARED {
                break;
            }
        }
        self.transport.shared.turn = self.transport.shared.turn.wrapping_add(1) % open.len().max(1);
        let active = self.transport.open_sockets - self.transport.shared.retired;
        let is_light = best.is_some_and(|(load, _)| load < share);
        if !is_light
            && active < most
            && let Some(free) = self.transport.shared.free.front().copied()
        {
            return self.transport.seat(place.stream, free);
        }
        if let Some((_, slot)) = best {
            return self.transport.seat(place.stream, slot);
        }
        if active >= most
            && let Some(slot) = idle_elsewhere
        {
            self.transport.close(slot);
            if let Some(free) = self.transport.shared.free.front().copied() {
                return self.transport.seat(place.stream, free);
            }
        }
        false
    }

    /// Like [`EventLoop::find_shared`], where each user has its own connections: the one to this server, or another in
    /// place of one to another server if the user has as many as it may.
    fn find_own(&mut self, place: Placement, endpoint: u32) -> bool {
        let user = self.users.user_of(place.stream);
        let Some(own) = &self.transport.shared.own else { return false };
        let (mut active, mut unused) = (0, None);
        for slot in own.of(user).iter().copied() {
            let c = &self.transport.connections[slot];
            if c.retired {
                continue;
            }
            if c.endpoint == endpoint && c.has_room() {
                return self.transport.seat(place.stream, slot);
            }
            active += 1;
            if c.wire_load() == 0 && c.state != State::Connecting {
                unused = Some(slot);
            }
        }
        if active >= own.each {
            let Some(slot) = unused else { return false };
            self.transport.close_unused(slot);
        }
        let Some(free) = self.transport.shared.free.front().copied() else { return false };
        self.transport.connections[free].owner = user;
        self.transport.seat(place.stream, free)
    }

    /// Like [`EventLoop::find_shared`], among the connections opened at `not_before` or later, if there are any or one
    /// may be opened.
    fn find_fresh(&mut self, place: Placement, endpoint: u32, not_before: Micros) -> bool {
        if self.transport.shared.own.is_some() {
            // Those that are about to end are retired.
            return self.find_own(place, endpoint);
        }
        let is_fresh = |slot: &&Slot| {
            let c = &self.transport.connections[**slot];
            c.endpoint == endpoint && c.dialed.begun >= not_before
        };
        let fresh = || self.transport.shared.open.iter().filter(is_fresh).copied();
        let with_room = fresh().filter(|slot| self.transport.connections[*slot].has_room());
        if let Some(slot) = with_room.min_by_key(|slot| self.transport.connections[*slot].wire_load()) {
            return self.transport.seat(place.stream, slot);
        }
        let active = self.transport.open_sockets - self.transport.shared.retired;
        if active < self.waiting.pool.most
            && let Some(free) = self.transport.shared.free.front().copied()
        {
            return self.transport.seat(place.stream, free);
        }
        fresh().next().is_none() && self.find_shared(place, endpoint)
    }

    /// Sends what the server refused once more, while there is room. It is not held up by the end of a phase: it was
    /// sent before.
    pub(super) fn serve_refused(&mut self, now: Micros) {
        while now >= self.waiting.no_socket_until
            && let Some(next) = self.waiting.refused.front()
        {
            let endpoint = next.endpoint(&self.job.prepared.requests);
            let (user, not_before) = (next.user, next.joined.unwrap_or(0));
            let Some(place) = self.place_for(user, endpoint) else { break };
            if !self.find_fresh(place, endpoint as u32, not_before) {
                break;
            }
            let Some(mut next) = self.waiting.refused.pop_front() else { break };
            let follow_up = next.follow_up.take();
            self.waiting.pool.again = true;
            let place = self.place_of(place.stream);
            let begun = self.begin(place, next.request, endpoint as u32, next.due, next.phase, follow_up, now, true);
            self.waiting.pool.again = false;
            if let Err(follow_up) = begun {
                self.record.outcome.shortage.descriptors += 1;
                self.waiting.no_socket_until = now + NO_SOCKET_PAUSE_US;
                next.follow_up = follow_up;
                self.waiting.refused.push_front(next);
            }
        }
    }

    /// Lets the connections beyond the limit of a new phase end.
    pub(super) fn limit_shared(&mut self) {
        while self.waiting.pool.is_exceeded(self.transport.shared.open.len() as u64)
            && let Some(slot) = self.transport.shared.open.last().copied()
        {
            self.transport.retire(slot);
            self.settle(slot);
        }
    }
}

/// Sending.
impl<W: World> EventLoop<'_, W> {
    /// Begins a request on its connection.
    ///
    /// # Errors
    /// This process cannot open another socket now. The request is not sent, and its follow-up is returned.
    pub(super) fn begin_shared(
        &mut self,
        place: Placement,
        endpoint: u32,
        due: Micros,
        phase: u16,
        now: Micros,
        arrived: bool,
    ) -> Result<(), Option<Box<FollowUp>>> {
        let slot = place.slot;
        if self.transport.connections[slot].socket.is_none() {
            return self.open(place, endpoint, due, phase, now, arrived);
        }
        self.encode(place);
        let s = &mut self.streams[place.stream];
        s.times.ready = now;
        s.times.written = 0;
        self.sent_shared(place, due, phase, now, arrived);
        self.cork(slot);
        Ok(())
    }

    /// Adds a request to the bytes that its connection has to send.
    pub(super) fn encode(&mut self, place: Placement) {
        let wants_first = self.record.exchanges.is_some() && self.record.outcome.first_answer.is_none();
        let hears = self.job.plan.server_time.as_ref().is_some_and(|from| !from.is_log());
        let s = &mut self.streams[place.stream];
        let request = &self.job.prepared.requests[s.request as usize];
        let head = match s.follow_up.as_ref().and_then(|e| e.detour.as_ref()) {
            Some(detour) => detour.method == "HEAD",
            None => request.head_request(),
        };
        let wants_fields = s.capture.is_some() || wants_first || hears;
        let c = &mut self.transport.connections[place.slot];
        let https = self.transport.endpoints[c.endpoint as usize].tls;
        let HttpState::Two(wire) = &mut c.wire else { return };
        match wire.begin(place.stream, request, https, head, wants_fields) {
            Ok(bytes) => {
                let class = usize::from(s.class);
                if let Some(counts) = self.record.slice(self.phases.phase).by_class.counts.get_mut(class) {
                    counts.bytes_sent += bytes as u64;
                }
            }
            // A request that was rendered has a request line.
            Err(e) => self.record.note_protocol_error(e.0),
        }
    }

    /// Puts a request among those in flight. It is counted as sent when its first byte goes out.
    pub(super) fn sent_shared(&mut self, place: Placement, due: Micros, phase: u16, now: Micros, arrived: bool) {
        // One that came due in an earlier phase did so in an open one: users wait for nobody.
        let is_earlier = phase != self.phases.phase;
        let open = arrived && (is_earlier || !self.phases.queues.is_empty() || self.plays_open());
        let joined = self.waiting.pool.joined;
        // An arrival waits for a free user first, then for a connection.
        let for_user = if open { self.waiting.freed_at.min(joined.unwrap_or(now)).saturating_sub(due) } else { 0 };
        let blocked = Some(for_user + self.waiting.pool.blocked(now));
        let again = self.waiting.pool.again;
        let c = &mut self.transport.connections[place.slot];
        let s = &mut self.streams[place.stream];
        s.again = again;
        s.phase = phase;
        s.times.due = due;
        s.times.sent = now;
        s.times.first_byte = 0;
        s.received = 0;
        s.said = None;
        c.served += 1;
        let is_connecting = c.state == State::Connecting;
        if let HttpState::Two(wire) = &mut c.wire {
            wire.corked.push(Uncorked { stream: place.stream, blocked, again });
        }
        self.streams.push(place.stream);
        if is_connecting {
            // As over HTTP/1: it is sent when connect() is called for it.
            self.uncork(place.slot, now);
        }
    }

    /// Has the loop write to a connection before it sleeps.
    pub(super) fn cork(&mut self, slot: Slot) {
        let c = &mut self.transport.connections[slot];
        let token = c.token(slot);
        if matches!(c.state, State::Idle | State::Waiting) {
            c.state = State::Writing;
        }
        if let HttpState::Two(wire) = &mut c.wire
            && !std::mem::replace(&mut wire.is_dirty, true)
        {
            self.transport.shared.dirty.push(token);
        }
    }

    /// Counts the requests whose first byte goes out now.
    fn uncork(&mut self, slot: Slot, now: Micros) {
        let HttpState::Two(wire) = &mut self.transport.connections[slot].wire else { return };
        let mut corked = std::mem::take(&mut wire.corked);
        for Uncorked { stream, blocked, again } in corked.drain(..) {
            // The list of those in flight has them in the order in which they were sent.
            self.streams.remove(stream);
            self.streams.push(stream);
            let s = &mut self.streams[stream];
            s.times.sent = now;
            if s.times.ready != 0 {
                // It could be written before, but was not sent yet.
                s.times.ready = now;
            }
            if again {
                continue;
            }
            let (phase, class, due) = (s.phase, s.class, s.times.due);
            self.record.sent(phase, class, now.saturating_sub(due), blocked);
        }
        if let HttpState::Two(wire) = &mut self.transport.connections[slot].wire {
            // Its memory is used again.
            wire.corked = corked;
        }
    }

    /// Counts what is in a cork as sent if a request that ends is still in it: a server may answer what nobody asked.
    #[inline]
    fn uncork_early(&mut self, place: Placement, now: Micros) {
        let HttpState::Two(wire) = &self.transport.connections[place.slot].wire else { return };
        if wire.corked.iter().any(|corked| corked.stream == place.stream) {
            self.uncork(place.slot, now);
        }
    }

    /// Counts what is in a connection's cork as sent: it is written now.
    pub(super) fn open_cork(&mut self, slot: Slot) {
        if let HttpState::Two(wire) = &mut self.transport.connections[slot].wire {
            wire.is_dirty = false;
        }
        let now = self.now();
        self.uncork(slot, now);
    }

    /// Writes to all connections that have something to send.
    #[inline]
    pub(super) fn flush_shared(&mut self) {
        while let Some(token) = self.transport.shared.dirty.pop() {
            let Some(c) = self.transport.of_token(token) else { continue };
            if !c.wire.is_dirty() {
                continue;
            }
            let is_writing = c.state == State::Writing;
            self.open_cork(slot_of(token));
            if is_writing {
                self.write(slot_of(token));
            }
        }
        if self.transport.shared.uncounted_bytes > 0 {
            let bytes = std::mem::take(&mut self.transport.shared.uncounted_bytes);
            self.record.slice(self.phases.phase).counts.bytes_sent += bytes;
        }
    }

    /// Handles a socket that takes no more bytes: what has arrived from the server says why.
    pub(super) fn unwritable(&mut self, slot: Slot) {
        let c = &mut self.transport.connections[slot];
        let token = c.token(slot);
        if let HttpState::Two(wire) = &mut c.wire {
            wire.connection.drop_output();
        }
        c.state = State::Waiting;
        self.transport.retire(slot);
        self.transport.again.push(token);
    }
}

/// Receiving.
impl<W: World> EventLoop<'_, W> {
    /// Takes bytes of HTTP/2. Returns false if the connection is gone.
    pub(super) fn take_frames(&mut self, slot: Slot, data: &[u8], now: Micros) -> bool {
        let token = self.transport.connections[slot].token(slot);
        let mut rest = data;
        let mut has_room = false;
        while self.transport.of_token(token).is_some() {
            match self.next_event(slot, &mut rest, now) {
                Ok(None) => break,
                Ok(Some(Happened::Answered(stream))) => self.answered_shared(Placement { stream, slot }, now),
                Ok(Some(Happened::Lost(stream, why))) => {
                    self.reset_by_server(Placement { stream, slot }, why, now);
                    has_room = true;
                }
                Ok(Some(Happened::GoAway(code, refused))) => {
                    self.record.slice(self.phases.phase).counts.goaway += 1;
                    if code != ErrorCode::NO_ERROR {
                        self.record.note_protocol_error(&format!("GOAWAY with {code}"));
                    }
                    self.transport.retire(slot);
                    for key in refused {
                        self.send_again(Placement { stream: StreamId(key), slot }, now, now);
                    }
                    has_room = true;
                }
                Ok(Some(Happened::Settings)) => has_room = true,
                Err(()) => return false,
            }
        }
        if self.transport.of_token(token).is_none() {
            self.serve_line(now);
            return false;
        }
        let HttpState::Two(wire) = &mut self.transport.connections[slot].wire else { return false };
        let others = wire.connection.take_other_bytes();
        if others > 0 {
            self.record.slice(self.phases.phase).counts.bytes_received += others;
        }
        self.settle(slot);
        let is_open = self.transport.of_token(token).is_some();
        if has_room || !is_open {
            self.serve_refused(now);
            self.serve_line(now);
        }
        is_open && self.transport.of_token(token).is_some()
    }

    /// Takes input until something has happened that is more than a piece of an answer.
    #[inline]
    fn next_event(&mut self, slot: Slot, rest: &mut &[u8], now: Micros) -> Result<Option<Happened>, ()> {
        let heard = self.job.plan.server_time.as_ref().filter(|from| !from.is_log());
        let HttpState::Two(wire) = &mut self.transport.connections[slot].wire else { return Ok(None) };
        let (connection, mut answers) = wire.parts();
        let error = loop {
            match connection.receive(rest) {
                Ok(None) => return Ok(None),
                Err(e) => break e,
                Ok(Some(Event::Interim { key })) => {
                    let times = &mut self.streams[StreamId(key)].times;
                    if times.first_byte == 0 {
                        times.first_byte = now;
                    }
                    SharedWire::note(&mut answers, key, |a| a.started = true);
                }
                Ok(Some(Event::Head { key, status, bytes, fields })) => {
                    let s = &mut self.streams[StreamId(key)];
                    if s.times.first_byte == 0 {
                        s.times.first_byte = now;
                    }
                    s.received += bytes as u64;
                    SharedWire::note(&mut answers, key, |a| {
                        (a.started, a.has_head, a.status, a.head_bytes) = (true, true, status, bytes as u64);
                    });
                    self.record.slice(s.phase).count(s.class, |c| c.bytes_received += bytes as u64);
                    let wants_first = self.record.exchanges.is_some() && self.record.outcome.first_answer.is_none();
                    if let Some(fields) = fields.filter(|_| s.capture.is_some() || heard.is_some() || wants_first) {
                        let mut nobody = NullSink;
                        let next: &mut dyn Sink = match &mut s.capture {
                            Some(capture) => capture.as_mut(),
                            None => &mut nobody,
                        };
                        let mut first = ServerField { server: &mut self.record.server, next };
                        let mut said = heard.map(|from| (from, s.said.get_or_insert_default()));
                        for (name, value) in fields.iter().filter(|(name, _)| !name.starts_with(b":")) {
                            // Names are ASCII: the connection has checked them.
                            let name = std::str::from_utf8(name).unwrap_or_default();
                            match &mut said {
                                None => first.field(name, value),
                                Some((from, said)) => {
                                    ServerTimeReader { from, said, next: &mut first }.field(name, value);
                                }
                            }
                        }
                    }
                }
                Ok(Some(Event::Data { key, piece, bytes })) => {
                    let s = &mut self.streams[StreamId(key)];
                    s.received += bytes as u64;
                    SharedWire::note(&mut answers, key, |a| a.body_bytes += piece.len() as u64);
                    self.record.slice(s.phase).count(s.class, |c| c.bytes_received += bytes as u64);
                    if let Some(capture) = &mut s.capture {
                        Sink::body(capture.as_mut(), piece);
                    }
                }
                Ok(Some(Event::End { key })) => return Ok(Some(Happened::Answered(StreamId(key)))),
                Ok(Some(Event::Reset { key, why })) => return Ok(Some(Happened::Lost(StreamId(key), why))),
                Ok(Some(Event::GoAway { code, refused })) => return Ok(Some(Happened::GoAway(code, refused))),
                Ok(Some(Event::Settings)) => return Ok(Some(Happened::Settings)),
            }
        };
        self.record.note_protocol_error(&error.to_string());
        // The server learns why, if its socket takes it now.
        self.uncork(slot, now);
        let (_, sent) = self.transport.send(slot, &self.streams, &self.job.prepared.requests, usize::MAX);
        self.transport.shared.uncounted_bytes += sent as u64;
        self.fail(slot, Failure::Protocol, now);
        Err(())
    }

    /// Brings a connection's state up to date with what is in flight on it.
    pub(super) fn settle(&mut self, slot: Slot) {
        let c = &mut self.transport.connections[slot];
        let HttpState::Two(wire) = &c.wire else { return };
        let is_set_up = matches!(c.state, State::Idle | State::Waiting | State::Writing);
        if wire.in_flight() == 0 && (c.retired || c.peer_closed || wire.connection.is_over()) && is_set_up {
            c.state = State::Idle;
            return self.transport.close(slot);
        }
        let allows_nothing = wire.allows_nothing();
        if !wire.output().is_empty() {
            if c.state != State::Writing {
                self.cork(slot);
            }
        } else if wire.in_flight() == 0 && c.state == State::Waiting {
            c.state = State::Idle;
        }
        if allows_nothing && is_set_up {
            self.bear_no_streams(slot);
        }
    }

    /// Gives a server that allows no streams the time of a request's timeout to allow some again.
    #[cold]
    fn bear_no_streams(&mut self, slot: Slot) {
        let timeout = self.job.plan.timeout.as_micros() as Micros;
        let until = self.now() + timeout;
        let c = &mut self.transport.connections[slot];
        let token = c.token(slot);
        if let HttpState::Two(wire) = &mut c.wire
            && timeout > 0
            && !std::mem::replace(&mut wire.bears_no_streams, true)
        {
            self.timers.alarms.push(Reverse((until, Alarm::NoStreams(token))));
        }
    }

    /// Closes a connection on which the server has allowed no streams for too long. Otherwise a request that waits for
    /// one, and has no timeout because it was never sent, would wait for ever. Another connection carries one at least,
    /// because the first request goes out before the server's settings arrive.
    pub(super) fn no_streams(&mut self, token: u64, now: Micros) {
        let slot = slot_of(token);
        let Some(c) = self.transport.of_token(token) else { return };
        let HttpState::Two(wire) = &mut c.wire else { return };
        wire.bears_no_streams = false;
        if !wire.allows_nothing() {
            return;
        }
        self.record.note_protocol_error("SETTINGS that allow no streams, for the time of a timeout");
        self.transport.close_unused(slot);
        self.serve_refused(now);
        self.serve_line(now);
    }
}

/// Ends.
impl<W: World> EventLoop<'_, W> {
    /// Records an answer that is complete.
    fn answered_shared(&mut self, place: Placement, now: Micros) {
        let Placement { stream, slot } = place;
        self.uncork_early(place, now);
        if let HttpState::Two(wire) = &mut self.transport.connections[slot].wire {
            wire.end(stream);
        }
        let c = &self.transport.connections[slot];
        let is_over = matches!(&c.wire, HttpState::Two(wire) if wire.connection.is_over());
        let kept = !c.retired && !c.peer_closed && !is_over;
        let status = c.wire.answer(stream).status;
        self.record_answer(place, now, kept);
        self.streams.remove(stream);
        let capture = self.streams[stream].capture.take();
        self.record.last_end = now;
        self.count_towards_end(now, |g| g.statuses.contains(&status));
        self.request_over(place, now, RequestEnd::Answered { status, capture });
    }

    /// Handles the end of a stream that the server ended without an answer, or whose answer breaks a rule.
    fn reset_by_server(&mut self, place: Placement, why: Reset, now: Micros) {
        match why {
            Reset::Refused => self.send_again(place, 0, now),
            Reset::Malformed(code, text) => {
                self.record.note_protocol_error(&ConnectionError { code, text }.to_string());
                self.fail_one(place, Failure::Protocol, now);
            }
            Reset::Code(ErrorCode::HTTP_1_1_REQUIRED) => {
                self.record.note_protocol_error("the server wants HTTP/1.1 for this request; --http 1.1 speaks it");
                self.fail_one(place, Failure::Protocol, now);
            }
            Reset::Code(code) => {
                self.record.note_protocol_error(&format!("RST_STREAM with {code}"));
                self.fail_one(place, Failure::Reset, now);
            }
        }
    }

    /// Has a request sent once more that the server surely did not process, on a connection opened at `not_before` or
    /// later.
    fn send_again(&mut self, place: Placement, not_before: Micros, now: Micros) {
        self.uncork(place.slot, now);
        let stream = place.stream;
        if self.streams[stream].again {
            return self.fail_one(place, Failure::Refused, now);
        }
        if let HttpState::Two(wire) = &mut self.transport.connections[place.slot].wire {
            wire.end(stream);
        }
        self.streams.remove(stream);
        self.count(stream, |c| c.sent_again += 1);
        let user = self.users.user_of(stream);
        let s = &mut self.streams[stream];
        s.capture = None;
        let waiting = WaitingRequest {
            user,
            due: s.times.due,
            phase: s.phase,
            request: s.request,
            follow_up: s.follow_up.take(),
            joined: Some(not_before),
        };
        self.waiting.refused.push_back(waiting);
    }

    /// Fails one request; its connection goes on.
    fn fail_one(&mut self, place: Placement, failure: Failure, now: Micros) {
        self.uncork(place.slot, now);
        if let HttpState::Two(wire) = &mut self.transport.connections[place.slot].wire {
            wire.end(place.stream);
        }
        self.record_failure(place, failure, now);
        self.over_without_answer(place, now, false, false);
    }

    /// Records one request's failure. Returns whether it was lost on a used connection before its answer began.
    fn record_failure(&mut self, place: Placement, failure: Failure, now: Micros) -> bool {
        let Placement { stream, slot } = place;
        let c = &self.transport.connections[slot];
        let before_first_byte = !c.wire.answer(stream).started && matches!(failure, Failure::Reset | Failure::Closed);
        let lost_on_reuse = before_first_byte && c.reused();
        let s = &self.streams[stream];
        let (phase, class, due) = (s.phase, s.class, s.times.due);
        self.note_end(place, due, now, RequestOutcome::Failed(failure), false);
        self.record.failed(phase, class, failure);
        if lost_on_reuse {
            self.count(stream, |c| c.lost_on_reuse += 1);
        }
        self.record.refused += u64::from(failure == Failure::Connect);
        self.count_towards_end(now, |g| g.failures.contains(&failure));
        self.streams.remove(stream);
        self.streams[stream].capture = None;
        self.record.last_end = now;
        lost_on_reuse
    }

    fn over_without_answer(&mut self, place: Placement, now: Micros, refused: bool, on_reuse: bool) {
        self.request_over(place, now, RequestEnd::Lost { refused, on_reuse });
    }

    /// Fails everything in flight on a connection, and closes it first: no request may follow there.
    pub(super) fn fail_shared(&mut self, slot: Slot, failure: Failure, now: Micros) {
        self.uncork(slot, now);
        let HttpState::Two(wire) = &mut self.transport.connections[slot].wire else { return };
        let streams = wire.connection.take_all();
        let mut lost = Vec::with_capacity(streams.len());
        for stream in streams.into_iter().map(StreamId) {
            let place = Placement { stream, slot };
            lost.push((place, self.record_failure(place, failure, now)));
        }
        self.transport.close(slot);
        for (place, on_reuse) in lost {
            self.over_without_answer(place, now, failure == Failure::Connect, on_reuse);
        }
        self.serve_refused(now);
        self.serve_line(now);
    }

    /// Takes a request that has timed out off its connection, which lives on if it had been set up.
    pub(super) fn lose_shared(&mut self, place: Placement, now: Micros) {
        self.uncork_early(place, now);
        let Placement { stream, slot } = place;
        self.streams.remove(stream);
        self.streams[stream].capture = None;
        let c = &mut self.transport.connections[slot];
        let is_set_up = matches!(c.state, State::Idle | State::Waiting | State::Writing);
        if let HttpState::Two(wire) = &mut c.wire {
            wire.lost(stream);
            if !is_set_up && wire.in_flight() == 0 {
                self.transport.close(slot);
            } else {
                self.settle(slot);
            }
        }
        self.record.last_end = now;
        self.over_without_answer(place, now, false, false);
        self.serve_line(now);
    }
}
