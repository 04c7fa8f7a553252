//! One request on one connection: connecting, filling in what changes, writing. `receive` has the other direction, `ends`
//! what can become of it.
//!
//! A long file, since each way of writing (at once, in pieces, slowly, after 100-continue, through a proxy, in TLS) goes on where
//! another has stopped.

use std::cmp::Reverse;
use std::io;

use lastdrop_http::ServerTime;
use lastdrop_model::{Failure, Kind, Micros};
use rand_core::Rng;

use crate::connection::{Connection, Errand, State};
use crate::event_loop::{Alarm, EventLoop};
use crate::inspect::Capture;
use crate::prepare::{Filling, Request};
use crate::template::Values;
use crate::tls;
use crate::world::{NoConnection, Outgoing, PEER_CLOSED, READABLE, WRITABLE, World};

/// After this without `100 Continue` the body is sent all the same (curl's patience).
const CONTINUE_PATIENCE_US: Micros = 1_000_000;
/// With a limited bandwidth, pieces are so many per second.
const PIECES_A_SECOND: u64 = 20;

/// What became of an attempt to write.
enum Written {
    All,
    /// No room now; some bytes may have gone.
    Blocked {
        some: bool,
    },
    /// With a limited bandwidth: no more for now.
    Enough,
    Error(io::Error),
}

/// The bytes of the request in flight.
fn bytes_of<'b, S>(c: &'b Connection<S>, requests: &'b [Request]) -> &'b [u8] {
    if c.out.is_empty() { requests[c.request as usize].wire.as_deref().unwrap_or_default() } else { &c.out }
}

impl<W: World> EventLoop<'_, W> {
    /// Sends a request that is due.
    ///
    /// # Errors
    /// This process cannot have another socket now: the request is not sent, and the errand comes back.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub(crate) fn begin(
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
        let c = &self.connections[i];
        if c.socket.is_some() && (c.peer_closed || c.endpoint != endpoint) {
            self.close(slot);
        }
        self.connections[i].request = request;
        self.connections[i].class = self.job.prepared.class_of(request, errand.as_deref());
        if self.job.prepared.requests[request as usize].wire.is_none()
            || errand.is_some()
            || self.job.prepared.personal
            || self.job.plan.http.pipeline > 1
        {
            self.fill(slot, request, endpoint, errand);
        }
        let piece = self.piece();
        let c = &mut self.connections[i];
        if let Some(socket) = &c.socket {
            c.written = 0;
            if c.tls.is_none() {
                let bytes = bytes_of(c, &self.job.prepared.requests);
                let may = bytes.len().min(c.hold_at).min(piece);
                match self.world.send(socket, &bytes[..may]) {
                    Ok(n) => {
                        let whole = n == bytes.len();
                        c.written = n;
                        c.state = if whole { State::Waiting } else { State::Writing };
                        c.ready = now;
                        c.all_written = if whole { now } else { 0 };
                        self.sent(slot, due, phase, now, arrived);
                        self.count(slot, |c| c.bytes_sent += n as u64);
                        if !whole {
                            self.write(slot);
                        }
                        return Ok(());
                    }
                    // Seen to be closed before anything was written: that costs only a reconnect.
                    Err(_) => self.close(slot),
                }
            } else {
                c.state = State::Writing;
                c.ready = now;
                c.all_written = 0;
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
        let address = self.endpoints[endpoint as usize].next_address();
        let source = match self.job.plan.network.sources.as_slice() {
            [] => None,
            sources => {
                self.source_turn = self.source_turn.wrapping_add(1);
                Some(sources[self.source_turn % sources.len()])
            }
        };
        let (socket, connected) = match self.world.connect(&address, source, self.open_sockets) {
            Ok(socket) => (socket, Ok(())),
            Err(NoConnection::Connect(socket, e)) => (socket, Err(e)),
            Err(NoConnection::Socket(e)) => {
                self.note_connect_error(&describe(&e));
                let c = &mut self.connections[i];
                c.out.clear();
                c.capture = None;
                return Err(c.errand.take());
            }
        };
        let c = &mut self.connections[i];
        c.served = 0;
        c.generation = c.generation.wrapping_add(1);
        c.endpoint = endpoint;
        c.connect_started = now;
        c.connected = 0;
        c.ready = 0;
        c.all_written = 0;
        c.peer_closed = false;
        c.written = 0;
        c.quiet_until = 0;
        c.said = ServerTime::default();
        c.state = State::Connecting;
        c.socket = Some(socket);
        c.tunnel = self.endpoints[endpoint as usize].connect_request.is_some();
        self.open_sockets += 1;
        let open = self.open_sockets;
        let live = self.live(self.phase);
        live.peak = live.peak.max(open);
        self.sent(slot, due, phase, now, arrived);
        let token = self.connections[i].token(slot);
        if connected.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EADDRNOTAVAIL)) {
            self.outcome.shortage.ports += 1;
        }
        let watched = match (connected, &self.connections[i].socket) {
            (Ok(()), Some(socket)) => self.world.watch(socket, token),
            (connected, _) => connected,
        };
        let prepared = match watched {
            Ok(()) => self.start_tls(slot, endpoint),
            Err(e) => Err(describe(&e)),
        };
        if let Err(what) = prepared {
            self.note_connect_error(&what);
            // Failing here would go around in a circle through the next request of the same user.
            self.connections[i].doomed = true;
            self.connections[i].error = self.connect_error.take();
            self.again.push(token);
        }
        Ok(())
    }

    fn start_tls(&mut self, slot: u32, endpoint: u32) -> Result<(), String> {
        let e = &self.endpoints[endpoint as usize];
        if !e.tls {
            return Ok(());
        }
        let config = self.job.tls.as_ref().ok_or("TLS is not configured")?;
        let name = tls::server_name(&e.host, &self.job.plan.tls).map_err(|e| e.to_string())?;
        let session = tls::Session::new(config, name).map_err(|e| format!("TLS: {e}"))?;
        self.connections[slot as usize].tls = Some(Box::new(session));
        Ok(())
    }

    /// Makes the bytes of a request that changes, and what looks at its answer.
    fn fill(&mut self, slot: u32, request: u32, endpoint: u32, errand: Option<Box<Errand>>) {
        let (prepared, plan) = (self.job.prepared, self.job.plan);
        let spec = &prepared.requests[request as usize];
        let user = slot / self.per_user;
        let c = &mut self.connections[slot as usize];
        c.out.clear();
        c.hold_at = usize::MAX;
        let part = errand.as_ref().is_some_and(|e| e.embedded);
        let look = |w| Box::new(if part { Capture::of_part(w) } else { Capture::new(w) });
        c.capture = spec.wanted.as_ref().map(look);
        if !prepared.personal {
            // Pipelined: the same request several times.
            let wire = spec.wire.as_deref().unwrap_or_default();
            for _ in 0..=c.pipelined.len() {
                c.out.extend_from_slice(wire);
            }
            return;
        }
        let mut errand = errand.unwrap_or_default();
        let person = &mut self.people[user as usize];
        let cnonce = if spec.digest.is_some() { format!("{:016x}", self.rng.next_u64()) } else { String::new() };
        let mut values =
            Values { user: person.number, iteration: person.iteration, values: &person.values, rng: &mut self.rng };
        let e = &self.endpoints[endpoint as usize];
        errand.target = match &errand.detour {
            Some(detour) => detour.path.clone().into_bytes(),
            None => spec.target(&mut values),
        };
        if let (Some(_), None) = (&spec.wire, &errand.detour) {
            c.errand = Some(errand);
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
        let mut filling = Filling { values, cookie, authorization: None };
        if challenged {
            filling.authorization = Some(&mut respond);
        }
        let body_at = spec.render(e, &plan.http, errand.detour.as_ref(), &target, &mut filling, &mut c.out);
        if plan.http.expect_continue && body_at < c.out.len() {
            c.hold_at = body_at;
        }
        c.errand = Some(errand);
    }

    /// Most bytes to write or read at once.
    pub(crate) fn piece(&self) -> usize {
        match self.job.plan.network.bandwidth_bytes {
            None => usize::MAX,
            Some(rate) => (rate / PIECES_A_SECOND).max(1) as usize,
        }
    }

    /// Time that so many bytes take.
    pub(crate) fn transfer_time(&self, bytes: usize) -> Micros {
        match self.job.plan.network.bandwidth_bytes {
            None => 0,
            Some(rate) => bytes as u64 * 1_000_000 / rate.max(1),
        }
    }

    /// Counts a request as sent and puts it among those in flight.
    #[inline]
    fn sent(&mut self, slot: u32, due: Micros, phase: u16, now: Micros, arrived: bool) {
        let freed_at = self.freed_at.min(now);
        let open = arrived && (!self.queues.is_empty() || self.plays_open());
        // Also who came into the line in a phase before this one.
        let in_line = (self.pool.is_bounded() || self.pool.joined.is_some()).then(|| self.pool.blocked(now));
        let class = self.connections[slot as usize].class;
        let live = self.live[usize::from(phase)].as_mut().expect("a request comes due in a phase that is live");
        let mut record = |due: Micros| {
            let waited = now.saturating_sub(due);
            let blocked = in_line.unwrap_or(if open { freed_at.saturating_sub(due) } else { 0 });
            if open || in_line.is_some() {
                live.slice.record(Kind::Blocked, blocked);
            }
            live.slice.record(Kind::Lateness, waited - blocked.min(waited));
            live.slice.count_sent(class);
            live.in_flight += 1;
        };
        record(due);
        let c = &mut self.connections[slot as usize];
        for due in &c.pipelined {
            record(*due);
        }
        c.phase = phase;
        c.due = due;
        c.sent = now;
        // Of a tunnel or an answer before; there may be none of this one.
        c.first_byte = 0;
        c.received = 0;
        c.served += 1 + c.pipelined.len() as u32;
        let head = match &c.errand {
            Some(e) if e.detour.is_some() => e.detour.as_ref().is_some_and(|d| d.method == "HEAD"),
            _ => self.job.prepared.requests[c.request as usize].head_request(),
        };
        c.parser.start(head);
        self.in_flight.push(slot);
    }

    pub(crate) fn on_event(&mut self, token: u64, flags: u32) {
        let slot = token as u32;
        let Some(c) = self.of_token(token) else { return };
        if flags & PEER_CLOSED != 0 {
            c.peer_closed = true;
        }
        match c.state {
            State::Waiting if flags & (READABLE | PEER_CLOSED) != 0 => self.read(slot),
            State::Connecting | State::Writing | State::Handshaking | State::Tunnel
                if flags & (WRITABLE | PEER_CLOSED) != 0 =>
            {
                if c.state != State::Tunnel {
                    self.write(slot);
                }
                // An answer may be there before the whole request is out; its edge comes only once.
                if flags & (READABLE | PEER_CLOSED) != 0
                    && self.of_token(token).is_some_and(|c| c.busy() && c.state != State::Connecting)
                {
                    self.read(slot);
                }
            }
            State::Writing | State::Holding | State::Handshaking | State::Tunnel
                if flags & (READABLE | PEER_CLOSED) != 0 =>
            {
                self.read(slot);
            }
            State::Idle if flags & (READABLE | PEER_CLOSED) != 0 => self.idle_event(slot),
            _ => {}
        }
    }

    /// The connection that an event is about; None where its socket is gone.
    pub(crate) fn of_token(&mut self, token: u64) -> Option<&mut Connection<W::Socket>> {
        let c = &mut self.connections[token as u32 as usize];
        (c.generation == (token >> 32) as u32 && c.socket.is_some()).then_some(c)
    }

    /// Something came on a connection without a request: the end, or (TLS) a session ticket.
    fn idle_event(&mut self, slot: u32) {
        let c = &mut self.connections[slot as usize];
        if c.peer_closed || c.tls.is_none() {
            return self.close(slot);
        }
        let Some(socket) = &c.socket else { return };
        let mut buffer = [0u8; 4096];
        match self.world.recv(socket, &mut buffer) {
            Ok(n) if n > 0 => {
                let mut plain = false;
                let ok = c
                    .tls
                    .as_mut()
                    .is_some_and(|tls| tls.feed(&buffer[..n], |tls| plain |= tls.read(&mut [0u8; 1]) > 0).is_ok());
                let ended = c.tls.as_ref().is_some_and(|tls| tls.ended());
                if !ok || ended || plain || n == buffer.len() {
                    self.close(slot);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            _ => self.close(slot),
        }
    }

    /// Goes on where the loop left off: too much to read for one turn, a limited bandwidth, a connect that failed.
    pub(crate) fn transfer(&mut self, token: u64) {
        let slot = token as u32;
        let now = self.now();
        let Some(c) = self.of_token(token) else { return };
        if c.doomed {
            c.doomed = false;
            self.connect_error = c.error.take();
            return self.fail(slot, Failure::Connect, now);
        }
        match c.state {
            State::Writing => self.write(slot),
            State::Waiting | State::Holding => self.read(slot),
            _ => {}
        }
    }

    /// The server did not say `100 Continue` in time: the body goes all the same.
    pub(crate) fn no_continue(&mut self, token: u64) {
        let slot = token as u32;
        let Some(c) = self.of_token(token) else { return };
        if c.state == State::Holding {
            c.hold_at = usize::MAX;
            c.state = State::Writing;
            self.write(slot);
        }
    }

    /// Writes what the state of the connection has to write.
    fn send_some(&mut self, slot: u32) -> Written {
        let i = slot as usize;
        let piece = self.piece();
        let c = &mut self.connections[i];
        let Some(socket) = &c.socket else { return Written::All };
        let handshaking = c.tls.as_ref().is_some_and(|t| t.handshaking());
        let mut counted = 0;
        let mut result = Written::All;
        if c.tunnel {
            let bytes = self.endpoints[c.endpoint as usize].connect_request.clone().unwrap_or_default();
            while c.written < bytes.len() {
                match self.world.send(socket, &bytes[c.written..]) {
                    Ok(n) => {
                        c.written += n;
                        counted += n;
                    }
                    Err(e) => {
                        result = blocked_or(e, counted > 0);
                        break;
                    }
                }
            }
        } else if let Some(mut tls) = c.tls.take() {
            let bytes = bytes_of(c, &self.job.prepared.requests);
            let end = bytes.len().min(c.hold_at);
            let mut at = c.written;
            let mut raw = 0;
            loop {
                let mut took = 0;
                if !handshaking && at < end {
                    took = tls.write(&bytes[at..end.min(at.saturating_add(piece))]);
                    at += took;
                    counted += took;
                }
                let mut outgoing = Outgoing::new(&mut self.world, socket);
                let flushed = tls.flush(&mut outgoing);
                raw += outgoing.sent;
                match flushed {
                    Ok(()) if handshaking || at >= end || took == 0 => break,
                    Ok(()) if piece != usize::MAX => {
                        result = Written::Enough;
                        break;
                    }
                    Ok(()) => {}
                    Err(e) => {
                        // A hello that does not fit is on its way all the same: what comes meanwhile has to be read.
                        result = blocked_or(e, raw > 0);
                        break;
                    }
                }
            }
            c.written = at;
            c.tls = Some(tls);
        } else {
            let bytes = bytes_of(c, &self.job.prepared.requests);
            let end = bytes.len().min(c.hold_at);
            let mut at = c.written;
            while at < end {
                let to = end.min(at.saturating_add(piece));
                match self.world.send(socket, &bytes[at..to]) {
                    Ok(n) => {
                        at += n;
                        counted += n;
                        if piece != usize::MAX && at < end {
                            result = Written::Enough;
                            break;
                        }
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => {
                        result = blocked_or(e, counted > 0);
                        break;
                    }
                }
            }
            c.written = at;
        }
        if counted > 0 {
            self.count(slot, |c| c.bytes_sent += counted as u64);
        }
        result
    }

    pub(crate) fn write(&mut self, slot: u32) {
        let i = slot as usize;
        loop {
            let state = self.connections[i].state;
            // A server on this machine may run, and answer, before the call that sends returns: what it takes is not connecting.
            let connected_at = if state == State::Connecting { self.now() } else { 0 };
            let written = self.send_some(slot);
            let now = self.now();
            if state == State::Connecting {
                match &written {
                    Written::Blocked { some: false } => return,
                    Written::Error(e) if !is_reset(e) => {
                        let what = describe(e);
                        self.note_connect_error(&what);
                        return self.fail(slot, Failure::Connect, now);
                    }
                    _ => self.connected(slot, connected_at),
                }
            }
            let c = &mut self.connections[i];
            match written {
                Written::Error(_) if matches!(c.state, State::Tunnel | State::Handshaking) => {
                    let what = if c.state == State::Tunnel { "proxy: connection lost" } else { "TLS: connection lost" };
                    self.note_connect_error(what);
                    return self.fail(slot, Failure::Connect, now);
                }
                Written::Error(_) if state == State::Connecting => return self.fail(slot, Failure::Reset, now),
                // The server may have answered before it stopped reading: the read tells.
                Written::Error(_) => return self.read(slot),
                Written::Blocked { .. } => return,
                Written::Enough => {
                    let wait = self.transfer_time(self.piece());
                    let token = self.connections[i].token(slot);
                    self.alarms.push(Reverse((now + wait, Alarm::Transfer(token))));
                    return;
                }
                Written::All => {}
            }
            match c.state {
                // An answer of the proxy or of the server has to come first.
                State::Tunnel | State::Handshaking => return,
                _ => {
                    let len = bytes_of(c, &self.job.prepared.requests).len();
                    if c.written >= len {
                        c.state = State::Waiting;
                        c.all_written = now;
                    } else if c.written >= c.hold_at {
                        c.state = State::Holding;
                        let token = c.token(slot);
                        self.alarms.push(Reverse((now + CONTINUE_PATIENCE_US, Alarm::Continue(token))));
                    } else {
                        continue;
                    }
                    return;
                }
            }
        }
    }

    pub(crate) fn connected(&mut self, slot: u32, now: Micros) {
        let c = &mut self.connections[slot as usize];
        c.state = match (&c.tls, c.tunnel) {
            (_, true) => State::Tunnel,
            (Some(_), _) => State::Handshaking,
            (None, _) => State::Writing,
        };
        c.connected = now;
        if c.state == State::Writing {
            c.ready = now;
        }
        let took = now.saturating_sub(c.connect_started);
        let phase = c.phase;
        self.opened += 1;
        let slice = self.slice(phase);
        slice.counts.opened += 1;
        slice.record(Kind::Connect, took);
    }
}

/// An error of the system without its number: "Connection refused" of "Connection refused (os error 111)".
#[must_use]
pub fn describe(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

fn blocked_or(e: io::Error, some: bool) -> Written {
    if e.kind() == io::ErrorKind::WouldBlock { Written::Blocked { some } } else { Written::Error(e) }
}

fn is_reset(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ECONNRESET | libc::EPIPE))
}
