//! One request goes out: on the connection that its slot has, or on a new one.

use lastdrop_http::ServerTime;
use lastdrop_model::Micros;
use rand_core::Rng;

use super::EventLoop;
use crate::inspect::Capture;
use crate::prepare::Filling;
use crate::protocol::bytes_of;
use crate::stream::Errand;
use crate::template::Values;
use crate::transport::{State, describe};
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Sends a request that is due.
    ///
    /// # Errors
    /// This process cannot have another socket now: the request is not sent, and the errand comes back.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub(super) fn begin(
        &mut self,
        slot: u32,
        request: u32,
        endpoint: u32,
        due: Micros,
        phase: u16,
        errand: Option<Box<Errand>>,
        now: Micros,
        arrived: bool,
    ) -> Result<(), Option<Box<Errand>>> {
        let i = slot as usize;
        let c = &self.transport.connections[i];
        if c.socket.is_some() && (c.peer_closed || c.endpoint != endpoint) {
            self.transport.close(slot);
        }
        self.streams[i].request = request;
        self.streams[i].class = self.job.prepared.class_of(request, errand.as_deref());
        if self.job.prepared.requests[request as usize].wire.is_none()
            || errand.is_some()
            || self.job.prepared.personal
            || self.job.plan.http.pipeline > 1
            || self.record.ids.is_some()
        {
            self.fill(slot, request, endpoint, errand);
        }
        let piece = self.piece();
        let c = &mut self.transport.connections[i];
        let s = &mut self.streams[i];
        if let Some(socket) = &c.socket {
            c.wire.written = 0;
            if c.layers.tls.is_none() {
                let bytes = bytes_of(&c.wire, s, &self.job.prepared.requests);
                let may = bytes.len().min(c.wire.hold_at).min(piece);
                match self.transport.world.send(socket, &bytes[..may]) {
                    Ok(n) => {
                        let whole = n == bytes.len();
                        c.wire.written = n;
                        c.state = if whole { State::Waiting } else { State::Writing };
                        s.times.ready = now;
                        s.times.written = if whole { now } else { 0 };
                        self.sent(slot, due, phase, now, arrived);
                        self.count(slot, |c| c.bytes_sent += n as u64);
                        if !whole {
                            self.write(slot);
                        }
                        return Ok(());
                    }
                    // Seen to be closed before anything was written: that costs only a reconnect.
                    Err(_) => self.transport.close(slot),
                }
            } else {
                c.state = State::Writing;
                s.times.ready = now;
                s.times.written = 0;
                self.sent(slot, due, phase, now, arrived);
                self.write(slot);
                return Ok(());
            }
        }
        self.open(slot, endpoint, due, phase, now, arrived)
    }

    /// Opens a connection for the request of a slot.
    fn open(
        &mut self,
        slot: u32,
        endpoint: u32,
        due: Micros,
        phase: u16,
        now: Micros,
        arrived: bool,
    ) -> Result<(), Option<Box<Errand>>> {
        let i = slot as usize;
        let connected = match self.transport.open(slot, endpoint, &self.job.plan.network.sources, now) {
            Ok(connected) => connected,
            Err(e) => {
                self.record.note_connect_error(&describe(&e));
                self.transport.connections[i].wire.out.clear();
                let s = &mut self.streams[i];
                s.capture = None;
                return Err(s.errand.take());
            }
        };
        let s = &mut self.streams[i];
        s.times.ready = 0;
        s.times.written = 0;
        s.said = ServerTime::default();
        let open = self.transport.open_sockets;
        let live = self.record.live(self.phases.phase);
        live.peak = live.peak.max(open);
        self.sent(slot, due, phase, now, arrived);
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

    /// Makes the bytes of a request that changes, and what looks at its answer.
    pub(super) fn fill(&mut self, slot: u32, request: u32, endpoint: u32, errand: Option<Box<Errand>>) {
        let (prepared, plan) = (self.job.prepared, self.job.plan);
        let spec = &prepared.requests[request as usize];
        let user = slot / self.users.per_user;
        let c = &mut self.transport.connections[slot as usize];
        let s = &mut self.streams[slot as usize];
        let ids = &mut self.record.ids;
        c.wire.out.clear();
        c.wire.hold_at = usize::MAX;
        if let Some(ids) = ids {
            s.id = ids.take(c.wire.pipelined.len());
        }
        let part = errand.as_ref().is_some_and(|e| e.embedded);
        let look = |w| Box::new(if part { Capture::of_part(w) } else { Capture::new(w) });
        s.capture = spec.answer.wanted.as_ref().map(look);
        if !prepared.personal {
            // Pipelined: the same request several times.
            let wire = spec.wire.as_deref().unwrap_or_default();
            for number in s.id..=s.id + c.wire.pipelined.len() as u64 {
                match ids {
                    Some(ids) => ids.write(number, wire, &mut c.wire.out),
                    None => c.wire.out.extend_from_slice(wire),
                }
            }
            return;
        }
        let mut errand = errand.unwrap_or_default();
        let person = &mut self.users.people[user as usize];
        let cnonce = if spec.digest.is_some() { format!("{:016x}", self.users.rng.next_u64()) } else { String::new() };
        let mut values = Values {
            user: person.number,
            iteration: person.iteration,
            values: &person.values,
            rng: &mut self.users.rng,
        };
        let e = &self.transport.endpoints[endpoint as usize];
        errand.target = match &errand.detour {
            Some(detour) => detour.path.clone().into_bytes(),
            None => spec.target(&mut values),
        };
        if let (Some(wire), None) = (&spec.wire, &errand.detour) {
            if let Some(ids) = ids {
                ids.write(s.id, wire, &mut c.wire.out);
            }
            s.errand = Some(errand);
            return;
        }
        let mut cookie = Vec::new();
        let path = String::from_utf8_lossy(&errand.target);
        let has_cookies = plan.http.cookies && person.jar.write_header(&e.host, &path, e.tls, &mut cookie);
        let cookie = has_cookies.then_some(cookie);
        let method = errand.detour.as_ref().map_or(spec.method.as_str(), |d| d.method.as_str());
        // A password is for the server that it was written for.
        let challenged = spec.digest.is_some() && person.digest.is_some() && endpoint as usize == spec.endpoint;
        let digest = &mut person.digest;
        let mut respond = |target: &str| match (digest.as_mut(), &spec.digest) {
            (Some((challenge, count)), Some(who)) => {
                *count += 1;
                challenge.authorization(&who.user, &who.password, method, target, *count, &cnonce)
            }
            _ => String::new(),
        };
        let target = errand.target.clone();
        let id = ids.as_mut().map(|ids| ids.text(s.id));
        let mut filling = Filling { values, id, cookie, authorization: None };
        if challenged {
            filling.authorization = Some(&mut respond);
        }
        let body_at = spec.render(e, &plan.http, errand.detour.as_ref(), &target, &mut filling, &mut c.wire.out);
        if plan.http.expect_continue && body_at < c.wire.out.len() {
            c.wire.hold_at = body_at;
        }
        s.errand = Some(errand);
    }

    /// Counts a request as sent and puts it among those in flight.
    #[inline]
    pub(super) fn sent(&mut self, slot: u32, due: Micros, phase: u16, now: Micros, arrived: bool) {
        let freed_at = self.waiting.freed_at.min(now);
        let open = arrived && (!self.phases.queues.is_empty() || self.plays_open());
        // Also who came into the line in a phase before this one.
        let in_line = (self.waiting.pool.is_bounded() || self.waiting.pool.joined.is_some())
            .then(|| self.waiting.pool.blocked(now));
        let c = &mut self.transport.connections[slot as usize];
        let s = &mut self.streams[slot as usize];
        let class = s.class;
        let mut record = |due: Micros| {
            let nobody_free = open.then(|| freed_at.saturating_sub(due));
            self.record.sent(phase, class, now.saturating_sub(due), in_line.or(nobody_free));
        };
        record(due);
        c.wire.pipelined.iter().for_each(|due| record(*due));
        s.phase = phase;
        s.times.due = due;
        s.times.sent = now;
        // Of a tunnel or an answer before; there may be none of this one.
        s.times.first_byte = 0;
        s.received = 0;
        c.served += 1 + c.wire.pipelined.len() as u32;
        let head = match &s.errand {
            Some(e) if e.detour.is_some() => e.detour.as_ref().is_some_and(|d| d.method == "HEAD"),
            _ => self.job.prepared.requests[s.request as usize].head_request(),
        };
        c.wire.parser.start(head);
        self.streams.push(slot);
    }
}
