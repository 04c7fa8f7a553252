//! The client: puts the load of a plan on the servers, and counts as the load engine does.
//!
//! All users are alike, so only their number matters, and a request goes out the moment it is due and a connection is
//! free. A connection costs nothing. A request belongs to the phase in which it came due, however late it ends. Of a
//! plan it takes the load of its phases, their ends, the think time, the timeout, the drain and the seed.

use std::borrow::Cow;
use std::collections::VecDeque;

use lastdrop_model::plan::{BEGIN_TOGETHER, KeepAlive, Load};
use lastdrop_model::request::ThinkTime;
use lastdrop_model::{Event, Kind, Micros, Plan, Slice};

use super::arrivals::DueTimes;
use super::in_flight::InFlight;
use super::pool::Stack;
use super::schedule::Schedule;
use super::{RequestId, micros};
use crate::rng::Rng;

/// The time over which users begin if there are more than [`BEGIN_TOGETHER`], and how often their number is adjusted.
const SPREAD_US: f64 = 1e6;
const USERS_CHECK_US: f64 = 10_000.0;
const SECOND_US: f64 = 1e6;

/// A request that is due and waits for a connection.
#[derive(Debug, Clone, Copy)]
struct BlockedRequest {
    due_us: f64,
    phase: u16,
}

/// A phase that has begun and has requests that have not ended.
#[derive(Debug)]
struct LivePhase {
    slice: Slice,
    start_us: f64,
    next_flush_us: f64,
    in_flight: u64,
    blocked: u64,
    duration_us: Option<f64>,
    /// Most connections open at once.
    peak: u64,
}

/// What makes requests come due in the current phase.
#[derive(Debug)]
enum RequestSource {
    /// The number of users at the beginning and at the end.
    Closed {
        from: f64,
        to: f64,
    },
    Open(DueTimes),
}

/// One load, from its first phase to its end.
pub(super) struct LoadRun<'a> {
    stack: &'a mut Stack,
    plan: &'a Plan,
    report: &'a mut dyn FnMut(&Event<'_>),
    enough: &'a dyn Fn() -> bool,
    think: Option<ThinkTime>,
    reuses: bool,
    timeout_us: f64,
    rng: Rng,
    in_flight: InFlight,
    /// Open loop: requests that wait for a connection. Closed loop: users who do.
    blocked: VecDeque<BlockedRequest>,
    /// Users who think, by the end of that.
    thinking: Schedule,
    live: Vec<Option<LivePhase>>,
    source: RequestSource,
    phase: u16,
    phase_start_us: f64,
    phase_end_us: f64,
    /// Requests that may still come due in this phase.
    remaining: u64,
    /// Closed loop: users wanted now, and users there when the phase began.
    wanted: usize,
    users_before: usize,
    /// Most connections at once.
    most_connections: usize,
    open_connections: usize,
    next_arrival_us: f64,
    next_users_check_us: f64,
    /// No request times out before this.
    next_timeout_us: f64,
    /// The earliest of all times but those of requests: seconds, ends, users, timeouts.
    next_check_us: f64,
    last_end_us: f64,
    /// Nothing comes due any more.
    is_over: bool,
    /// The caller has seen enough.
    is_stopped: bool,
}

impl<'a> LoadRun<'a> {
    pub fn new(
        stack: &'a mut Stack,
        plan: &'a Plan,
        report: &'a mut dyn FnMut(&Event<'_>),
        enough: &'a dyn Fn() -> bool,
    ) -> LoadRun<'a> {
        let now = stack.now_us();
        LoadRun {
            stack,
            plan,
            report,
            enough,
            think: plan.requests.first().and_then(|r| r.think).or(plan.think),
            reuses: plan.keepalive != KeepAlive::Off,
            timeout_us: micros(plan.timeout),
            rng: Rng::new(plan.seed ^ 0x5eed),
            in_flight: InFlight::new(),
            blocked: VecDeque::new(),
            thinking: Schedule::default(),
            live: plan.phases.iter().map(|_| None).collect(),
            source: RequestSource::Closed { from: 0.0, to: 0.0 },
            phase: 0,
            phase_start_us: now,
            phase_end_us: f64::INFINITY,
            remaining: 0,
            wanted: 0,
            users_before: 0,
            most_connections: usize::MAX,
            open_connections: 0,
            next_arrival_us: f64::INFINITY,
            next_users_check_us: f64::INFINITY,
            next_timeout_us: now + micros(plan.timeout),
            next_check_us: now,
            last_end_us: now,
            is_over: false,
            is_stopped: false,
        }
    }

    /// Runs the plan. When it returns, every request that came due is accounted for.
    pub fn run(mut self) {
        if self.plan.phases.is_empty() {
            return;
        }
        self.enter_phase(0, self.stack.now_us());
        while !self.is_finished() {
            let thinking = self.thinking.next();
            let next = self.next_arrival_us.min(thinking).min(self.next_check_us);
            if let Some(id) = self.stack.run_until(next) {
                self.answered(id);
            } else if next == self.next_check_us {
                self.check(next);
            } else if next == thinking {
                self.thinking.pop();
                self.begin(next);
            } else {
                self.arrive(next);
            }
        }
        self.finish();
    }

    fn is_finished(&self) -> bool {
        let drained = || self.stack.now_us() >= self.phase_end_us + micros(self.plan.drain);
        self.is_stopped || self.is_over && (self.in_flight.count() == 0 || drained())
    }

    fn is_closed(&self) -> bool {
        matches!(self.source, RequestSource::Closed { .. })
    }

    fn live(&mut self, phase: u16) -> &mut LivePhase {
        self.live[usize::from(phase)].as_mut().expect("a phase is live until its last request has ended")
    }

    /// Closed loop: users who have a request, wait for a connection or think.
    fn users(&self) -> usize {
        self.in_flight.count() + self.blocked.len() + self.thinking.len()
    }

    /// Does what is due by time alone.
    fn check(&mut self, now: f64) {
        if now >= self.next_timeout_us {
            self.expire(now);
        }
        self.leave_phase(now);
        if !self.is_over && now >= self.next_users_check_us {
            self.change_users(now);
        }
        for phase in 0..self.live.len() {
            if self.live[phase].as_ref().is_some_and(|l| now >= l.next_flush_us) {
                self.flush(phase as u16);
            }
        }
        self.plan_check();
    }

    /// Finds the next time of [`LoadRun::check`].
    fn plan_check(&mut self) {
        let flush = self.live.iter().flatten().map(|l| l.next_flush_us).fold(f64::INFINITY, f64::min);
        let end = if self.is_over { self.phase_end_us + micros(self.plan.drain) } else { self.phase_end_us };
        let users = if self.is_over { f64::INFINITY } else { self.next_users_check_us };
        self.next_check_us = flush.min(end).min(users).min(self.next_timeout_us);
    }

    /// Begins a phase at its planned time.
    fn enter_phase(&mut self, index: u16, start: f64) {
        let plan = self.plan;
        let phase = &plan.phases[usize::from(index)];
        let before = self.phase;
        if let Some(live) = &mut self.live[usize::from(before)] {
            live.duration_us = Some(start - live.start_us);
        }
        self.phase = index;
        self.phase_start_us = start;
        self.phase_end_us = phase.duration.map_or(f64::INFINITY, |d| start + micros(d));
        self.remaining = phase.requests.unwrap_or(u64::MAX);
        self.most_connections = match &phase.load {
            Load::Closed { connections, .. } => connections.map_or(usize::MAX, |n| n.max(1) as usize),
            Load::Open { connections, .. } => (*connections).max(1) as usize,
        };
        self.open_connections = self.open_connections.min(self.most_connections.max(self.in_flight.count()));
        self.live[usize::from(index)] = Some(LivePhase {
            slice: Slice::new(index, 0),
            start_us: start,
            next_flush_us: start + SECOND_US,
            in_flight: 0,
            blocked: 0,
            duration_us: None,
            peak: self.open_connections as u64,
        });
        self.next_users_check_us = f64::INFINITY;
        self.next_arrival_us = f64::INFINITY;
        match &phase.load {
            Load::Closed { users, to_users, .. } => {
                if !self.is_closed() {
                    // Requests that waited for a connection in an open loop have no user to send them now.
                    self.drop_blocked();
                }
                let (from, to) = (f64::from(*users), f64::from(to_users.unwrap_or(*users)));
                self.source = RequestSource::Closed { from, to };
                self.users_before = self.users();
                self.serve_blocked(start);
                self.change_users(start);
            }
            load @ Load::Open { .. } => {
                let seed = plan.seed.wrapping_add(u64::from(index));
                if let Some(times) = DueTimes::new(load, self.phase_end_us - start, seed) {
                    self.source = RequestSource::Open(times);
                }
                self.serve_blocked(start);
                self.next_arrival();
            }
        }
        (0..index).for_each(|earlier| self.end_phase_without_requests(earlier));
        if self.remaining == 0 {
            self.nothing_remains(start);
        }
        self.plan_check();
    }

    /// Begins the next phase or stops, if the time of this one is up.
    fn leave_phase(&mut self, now: f64) {
        while !self.is_over && now >= self.phase_end_us {
            if usize::from(self.phase) + 1 < self.plan.phases.len() {
                self.enter_phase(self.phase + 1, self.phase_end_us);
            } else {
                self.stop();
            }
        }
    }

    /// All requests of the last phase have come due and gone out.
    fn nothing_remains(&mut self, now: f64) {
        if usize::from(self.phase) + 1 == self.plan.phases.len() && self.blocked.is_empty() {
            self.last_end_us = self.last_end_us.max(now);
            self.stop();
        }
    }

    /// Nothing comes due any more, and nothing that still waits for a connection is sent.
    fn stop(&mut self) {
        self.is_over = true;
        self.next_arrival_us = f64::INFINITY;
        self.thinking.clear();
        self.drop_blocked();
        self.plan_check();
    }

    fn drop_blocked(&mut self) {
        self.blocked.clear();
        self.live.iter_mut().flatten().for_each(|l| l.blocked = 0);
    }

    /// Open loop: a request comes due.
    fn arrive(&mut self, due: f64) {
        self.remaining -= 1;
        let phase = self.phase;
        self.live(phase).slice.counts.due += 1;
        self.next_arrival();
        self.send_or_block(due);
        if self.remaining == 0 {
            self.nothing_remains(due);
        }
    }

    fn next_arrival(&mut self) {
        self.next_arrival_us = match &mut self.source {
            RequestSource::Open(times) if self.remaining > 0 => {
                let at = self.phase_start_us + times.next();
                if at < self.phase_end_us { at } else { f64::INFINITY }
            }
            _ => f64::INFINITY,
        };
    }

    /// Closed loop: a user begins the next request, or leaves.
    fn begin(&mut self, due: f64) {
        self.leave_phase(due);
        if self.is_over || !self.is_closed() || self.remaining == 0 || self.users() >= self.wanted {
            // Its connection closes.
            if self.blocked.is_empty() && self.is_closed() && self.open_connections > self.in_flight.count() {
                self.open_connections -= 1;
            }
            return;
        }
        self.remaining -= 1;
        let phase = self.phase;
        self.live(phase).slice.counts.due += 1;
        self.send_or_block(due);
        if self.remaining == 0 {
            self.nothing_remains(due);
        }
    }

    fn send_or_block(&mut self, due: f64) {
        let phase = self.phase;
        if self.blocked.is_empty() && self.in_flight.count() < self.most_connections {
            self.send(due, phase, due);
        } else {
            self.blocked.push_back(BlockedRequest { due_us: due, phase });
            self.live(phase).blocked += 1;
        }
    }

    /// Sends requests that wait for a connection while one is free.
    fn serve_blocked(&mut self, now: f64) {
        while self.in_flight.count() < self.most_connections
            && let Some(BlockedRequest { due_us, phase }) = self.blocked.pop_front()
        {
            self.live(phase).blocked -= 1;
            self.send(due_us, phase, now);
            if self.remaining == 0 {
                self.nothing_remains(now);
            }
        }
    }

    fn send(&mut self, due: f64, phase: u16, now: f64) {
        let id = self.stack.submit();
        let is_new = !self.reuses || self.open_connections == self.in_flight.count();
        let is_bounded = self.most_connections != usize::MAX;
        self.in_flight.insert(id, due, now, phase);
        let live = self.live(phase);
        live.in_flight += 1;
        let slice = &mut live.slice;
        slice.counts.sent += 1;
        if is_bounded {
            slice.record(Kind::Blocked, whole_us(now - due));
        }
        if is_new {
            slice.counts.opened += 1;
            slice.record(Kind::Connect, 0);
            self.open_connections = (self.open_connections + 1).max(self.in_flight.count());
            let (open, current) = (self.open_connections as u64, self.phase);
            let peak = &mut self.live(current).peak;
            *peak = (*peak).max(open);
        }
    }

    fn answered(&mut self, id: RequestId) {
        let now = self.stack.now_us();
        let request = self.in_flight.remove(id);
        if now < self.phase_end_us {
            let phase = self.phase;
            self.live(phase).slice.counts.answered_in_time += 1;
        }
        let live = self.live(request.phase);
        live.in_flight -= 1;
        let slice = &mut live.slice;
        slice.counts.answered += 1;
        slice.status[200] += 1;
        let service = whole_us(now - request.sent_us);
        slice.record(Kind::Response, whole_us(now - request.due_us));
        slice.record(Kind::Service, service);
        slice.record(Kind::FirstByte, service);
        if !self.reuses {
            self.open_connections -= 1;
        }
        self.request_over(request.phase, now);
    }

    /// Times out the requests whose time is up, and closes their connections.
    fn expire(&mut self, now: f64) {
        while let Some((id, sent_us)) = self.in_flight.oldest()
            && sent_us + self.timeout_us <= now
        {
            self.stack.abandon(id);
            let request = self.in_flight.remove(id);
            self.open_connections -= 1;
            let live = self.live(request.phase);
            live.in_flight -= 1;
            live.slice.counts.timed_out += 1;
            live.slice.record(Kind::Response, whole_us(now - request.due_us));
            self.request_over(request.phase, now);
        }
        self.next_timeout_us = self.in_flight.oldest().map_or(now, |(_, sent_us)| sent_us) + self.timeout_us;
    }

    /// A request of a phase has ended: its user goes on, and its connection is free.
    fn request_over(&mut self, phase: u16, now: f64) {
        self.last_end_us = now;
        self.leave_phase(now);
        if !self.is_over && self.is_closed() {
            let think_us = self.think.map_or(0.0, |think| self.draw(think));
            if think_us > 0.0 {
                self.thinking.push(now + think_us, 0);
            } else {
                self.begin(now);
            }
        }
        self.serve_blocked(now);
        if phase != self.phase {
            self.end_phase_without_requests(phase);
        }
    }

    fn draw(&mut self, think: ThinkTime) -> f64 {
        match think {
            ThinkTime::Fixed(time) => micros(time),
            ThinkTime::Uniform(low, high) => micros(low) + (micros(high) - micros(low)) * self.rng.share(),
            ThinkTime::Exponential(mean) => micros(mean) * self.rng.exponential(),
        }
    }

    /// Closed loop: brings the number of users to what the phase wants. Thousands that begin together are spread over the
    /// first second.
    fn change_users(&mut self, now: f64) {
        let RequestSource::Closed { from, to } = self.source else { return };
        let since = now - self.phase_start_us;
        let length = self.phase_end_us - self.phase_start_us;
        let share = if length.is_finite() && length > 0.0 { (since / length).min(1.0) } else { 0.0 };
        let planned = (from + (to - from) * share).round() as usize;
        let at_once = self.users_before + BEGIN_TOGETHER as usize;
        let is_spreading = planned > at_once && since < SPREAD_US;
        self.wanted =
            if is_spreading { at_once + ((planned - at_once) as f64 * since / SPREAD_US) as usize } else { planned };
        let changes = is_spreading || (from - to).abs() > f64::EPSILON;
        self.next_users_check_us = if changes { now + USERS_CHECK_US } else { f64::INFINITY };
        while self.users() < self.wanted && self.remaining > 0 && !self.is_over {
            self.begin(now);
        }
    }

    /// Reports the past second of a phase, and the next one begins.
    fn flush(&mut self, phase: u16) {
        let live = self.live(phase);
        let second = live.slice.second;
        live.next_flush_us += SECOND_US;
        self.report_slice(phase);
        self.live(phase).slice.reset(phase, second + 1);
        self.is_stopped |= (self.enough)();
    }

    fn report_slice(&mut self, phase: u16) {
        if let Some(live) = &mut self.live[usize::from(phase)] {
            // Each request went out when it was due or, in time that counts as blocked, when a connection was free.
            live.slice.latencies[Kind::Lateness as usize].record_many(0, live.slice.counts.sent);
            (self.report)(&Event::Second { slice: Cow::Borrowed(&live.slice) });
        }
    }

    /// Reports the rest of a phase and its end.
    fn end_phase(&mut self, phase: u16) {
        self.report_slice(phase);
        if let Some(live) = self.live[usize::from(phase)].take() {
            let duration_us = whole_us(live.duration_us.unwrap_or(0.0)).max(1);
            (self.report)(&Event::PhaseEnd { phase: usize::from(phase), duration_us, peak: live.peak });
        }
    }

    /// Ends an earlier phase if all its requests have ended.
    fn end_phase_without_requests(&mut self, phase: u16) {
        if self.live[usize::from(phase)].as_ref().is_some_and(|l| l.in_flight == 0 && l.blocked == 0) {
            self.end_phase(phase);
        }
    }

    /// Accounts for what is left: requests in flight stay without an answer.
    fn finish(mut self) {
        let now = self.stack.now_us();
        let end = match (self.is_over, self.phase_end_us.is_finite()) {
            (false, _) => now,
            (true, true) if self.remaining > 0 => self.phase_end_us,
            // All requests of the phase came due before its end.
            (true, _) => self.last_end_us.min(self.phase_end_us),
        };
        let phase = self.phase;
        if let Some(live) = &mut self.live[usize::from(phase)] {
            live.duration_us = Some(end - live.start_us);
        }
        while let Some((id, _)) = self.in_flight.oldest() {
            self.in_flight.remove(id);
            self.stack.abandon(id);
        }
        for phase in 0..self.live.len() as u16 {
            self.end_phase(phase);
        }
    }
}

#[inline]
fn whole_us(time_us: f64) -> Micros {
    // To the nearest one; a cast saturates.
    (time_us + 0.5) as Micros
}
