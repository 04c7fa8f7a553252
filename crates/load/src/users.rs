//! What makes requests come due, and what follows from an answer.
//!
//! Somebody always asks: in a closed loop a user who comes again and again, in an open loop whoever is free when a request
//! arrives. A user does one thing at a time: a request with the redirects and challenges that it leads to, a session of
//! several requests, or a page with what it embeds.
//!
//! A long file, since the three are cases of one question, asked at each end of a request: what does this user do next?

use std::cmp::Reverse;
use std::collections::HashSet;

use lastdrop_http::cookies::Jar;
use lastdrop_http::digest::Challenge;
use lastdrop_model::Micros;
use lastdrop_model::plan::{BEGIN_TOGETHER, Load};
use lastdrop_model::request::Per;
use rand_core::Rng;

use crate::connection::{Errand, State};
use crate::event_loop::{Alarm, EventLoop, Source};
use crate::follow::PageLoad;
use crate::inspect::Capture;
use crate::prepare::{Choice, Request, draw};

/// A user whose connection was refused tries again after this; nobody reloads a dead page a million times.
const REFUSED_PAUSE_US: Micros = 50_000;
/// Pause before another try when this process has no descriptor or memory left for a socket.
const NO_SOCKET_PAUSE_US: Micros = 10_000;

/// How long it takes until all of more than [`BEGIN_TOGETHER`] users have begun.
const SPREAD_US: Micros = 1_000_000;

/// How many of `planned` users take part `since` the phase began, where `before` did when it began.
fn spread_start(before: u32, planned: u32, since: Micros) -> u32 {
    let at_once = before.saturating_add(BEGIN_TOGETHER);
    if planned <= at_once || since >= SPREAD_US {
        return planned;
    }
    at_once + (u64::from(planned - at_once) * since / SPREAD_US) as u32
}

/// Where a user is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Not taking part: not needed now, or (open loop) free for the next arrival.
    Away,
    /// Pausing; an alarm is set.
    Pausing,
    Busy,
}

/// What a user has of its own.
#[derive(Debug)]
pub struct Person {
    /// From 1, over all threads.
    pub number: u64,
    pub iteration: u64,
    /// The request of a session that is next.
    pub step: usize,
    /// It has sent a request of a session and has another to send.
    pub mid_session: bool,
    /// It has got through the requests that are sent once.
    pub past_once: bool,
    pub has_row: bool,
    pub values: Vec<Vec<u8>>,
    pub jar: Jar,
    pub digest: Option<(Challenge, u32)>,
    pub(crate) page: Option<Box<PageLoad>>,
    /// Keys of what it has fetched (`follow::cache_key`).
    pub(crate) cached: HashSet<u64>,
}

impl Person {
    pub fn new(number: u64, values: usize) -> Person {
        Person {
            number,
            iteration: 0,
            step: 0,
            mid_session: false,
            past_once: false,
            has_row: false,
            values: vec![Vec::new(); values],
            jar: Jar::default(),
            digest: None,
            page: None,
            cached: HashSet::new(),
        }
    }
}

/// A request that is due and found no descriptor, or waits in line for a connection.
#[derive(Debug)]
pub struct Stranded {
    pub(crate) user: u32,
    pub due: Micros,
    pub phase: u16,
    pub request: u32,
    pub(crate) errand: Option<Box<Errand>>,
    /// When it came into the line.
    pub(crate) joined: Option<Micros>,
}

impl Stranded {
    /// Index of the server that it is for.
    pub(crate) fn endpoint(&self, requests: &[Request]) -> usize {
        let detour = self.errand.as_ref().and_then(|e| e.detour.as_ref());
        detour.map_or(requests[self.request as usize].endpoint, |d| d.endpoint)
    }
}

/// What a request came to.
pub(crate) enum End {
    Answered {
        status: u16,
        capture: Option<Box<Capture>>,
    },
    /// `on_reuse`: before the first byte of an answer, on a connection that had served another request.
    Lost {
        refused: bool,
        on_reuse: bool,
    },
}

impl EventLoop<'_> {
    // ---- users come and go ------------------------------------------------------------------------------------

    /// Closed loop: as many users as the phase wants at this time. Those who begin together with thousands of others do so
    /// over the first second, and never more in a turn than leave time for a look at what has come.
    pub(crate) fn change_users(&mut self, now: Micros) {
        let Source::Closed { from, to } = self.source else { return };
        let since = now.saturating_sub(self.phase_start);
        let share = match self.phase_end {
            Some(end) if end > self.phase_start => (since as f64 / (end - self.phase_start) as f64).min(1.0),
            _ => 0.0,
        };
        let planned = (from + (to - from) * share).round() as u32;
        let all = spread_start(self.users_before, planned, since);
        self.spreading = all < planned;
        let all = all as usize;
        let before = self.wanted;
        // User k of the run is on thread k modulo threads.
        let own = (all + self.job.threads - 1 - self.job.thread) / self.job.threads;
        self.wanted = own.min(self.presence.len()) as u32;
        self.more_to_begin = false;
        let phase = self.phase;
        for user in before.min(self.wanted)..self.wanted {
            if self.presence[user as usize] != Presence::Away {
                continue;
            }
            if self.turn_is_over() {
                self.wanted = user;
                self.more_to_begin = true;
                break;
            }
            self.begin_unit(user, now, now);
            if self.over || self.phase != phase {
                break;
            }
        }
    }

    /// Does the number of users still change?
    pub(crate) fn users_change(&self) -> bool {
        let Source::Closed { from, to } = self.source else { return false };
        self.more_to_begin || self.spreading || (from - to).abs() > f64::EPSILON
    }

    /// Open loop: everybody who is free waits for arrivals.
    pub(crate) fn pool_users(&mut self) {
        self.idle.iter_mut().for_each(Vec::clear);
        self.closed.clear();
        // In an earlier phase more users may have been there than this one has connections.
        let Load::Open { connections, .. } = &self.job.plan.phases[usize::from(self.phase)].load else { return };
        let own = crate::collector::share(u64::from(*connections), self.job.thread, self.job.threads).max(1) as usize;
        self.wanted = (own / self.per_user as usize).max(1).min(self.presence.len()) as u32;
        for user in (0..self.wanted).rev() {
            if self.presence[user as usize] == Presence::Away {
                self.pool(user);
            }
        }
    }

    fn pool(&mut self, user: u32) {
        self.presence[user as usize] = Presence::Away;
        let c = &self.connections[(user * self.per_user) as usize];
        match c.state {
            State::Idle => self.idle[c.endpoint as usize].push(user),
            _ => self.closed.push(user),
        }
    }

    /// A user leaves, and its connections with it.
    pub(crate) fn send_away(&mut self, user: u32) {
        self.presence[user as usize] = Presence::Away;
        for slot in user * self.per_user..(user + 1) * self.per_user {
            // Whoever waits in line takes it over.
            if self.connections[slot as usize].state == State::Idle && !self.line_stands() {
                self.close(slot);
            }
        }
    }

    pub(crate) fn pause(&mut self, user: u32, until: Micros) {
        self.presence[user as usize] = Presence::Pausing;
        self.alarms.push(Reverse((until, Alarm::User(user))));
    }

    /// A user's pause is over; `due` is when it was to end.
    pub(crate) fn wake(&mut self, user: u32, due: Micros, now: Micros) {
        if self.presence[user as usize] != Presence::Pausing {
            return;
        }
        if self.in_session(user) && self.may_follow(now) {
            self.next_step(user, due, now);
        } else if self.over {
            self.send_away(user);
        } else {
            match self.source {
                Source::Closed { .. } => self.begin_unit(user, due, now),
                Source::Open => self.free(user, now),
            }
        }
    }

    /// Is a user between two requests of a session?
    pub(crate) fn in_session(&self, user: u32) -> bool {
        self.people.get(user as usize).is_some_and(|p| p.mid_session)
    }

    /// A user has nothing to do any more.
    fn free(&mut self, user: u32, now: Micros) {
        if self.over {
            return self.send_away(user);
        }
        match self.source {
            Source::Closed { .. } => self.begin_unit(user, now, now),
            Source::Open if user >= self.wanted => self.send_away(user),
            Source::Open => {
                self.pool(user);
                if self.exhausted {
                    self.freed_at = now;
                    self.exhausted = false;
                }
                self.dispatch(now);
            }
        }
    }

    // ---- requests come due --------------------------------------------------------------------------------------

    /// Closed loop: the user wants something (more).
    pub(crate) fn begin_unit(&mut self, user: u32, due: Micros, now: Micros) {
        while !self.over && self.phase_end.is_some_and(|end| now >= end) {
            if usize::from(self.phase) + 1 == self.job.plan.phases.len() {
                return self.send_away(user);
            }
            self.presence[user as usize] = Presence::Away;
            let end = self.phase_end.unwrap_or(now);
            self.enter_phase(self.phase + 1, end);
            if self.presence[user as usize] != Presence::Away || matches!(self.source, Source::Open) {
                return;
            }
        }
        if self.over || user >= self.wanted {
            return self.send_away(user);
        }
        if self.remaining == 0 {
            self.send_away(user);
            return self.nothing_remains(now);
        }
        if self.tape.is_some() {
            return self.play_for(user, due, now);
        }
        self.presence[user as usize] = Presence::Busy;
        self.remaining -= 1;
        let phase = self.phase;
        self.slice(phase).counts.due += 1;
        let request = self.choose();
        self.start(user, request, due, phase, now, false);
        if self.remaining == 0 {
            self.nothing_remains(now);
        }
    }

    /// Which request is next.
    fn choose(&mut self) -> usize {
        match &self.job.prepared.choice {
            Choice::Only | Choice::Session => 0,
            Choice::Sessions(starts) => {
                let n = self.next_request;
                self.next_request += self.job.threads as u64;
                starts[(n % starts.len() as u64) as usize]
            }
            Choice::Weighted(sums) => Choice::by_weight(sums, &mut self.rng),
            Choice::Order => {
                let n = self.next_request;
                self.next_request += self.job.threads as u64;
                (n % self.job.prepared.requests.len() as u64) as usize
            }
        }
    }

    /// A user begins something: a request, a session, a page.
    fn start(&mut self, user: u32, mut request: usize, due: Micros, phase: u16, now: Micros, arrived: bool) {
        if self.job.prepared.personal {
            self.take_row(user);
            let page = self.job.plan.page.is_some();
            let person = &mut self.people[user as usize];
            person.iteration += 1;
            if matches!(self.job.prepared.choice, Choice::Session) {
                // What is sent once is for those who come for the first time, or did not get through it.
                let requests = &self.job.prepared.requests;
                person.step = (0..requests.len()).find(|i| !(requests[*i].once && person.past_once)).unwrap_or(0);
                request = person.step;
            } else {
                person.step = request;
            }
            if page {
                person.page = Some(PageLoad::begin(due, phase, request));
            }
        }
        self.issue(user, request, due, phase, None, now, arrived);
    }

    fn take_row(&mut self, user: u32) {
        let Some(rows) = &self.job.prepared.rows else { return };
        let person = &mut self.people[user as usize];
        if person.has_row && rows.per == Per::User {
            return;
        }
        let n = if rows.random {
            self.rng.next_u64()
        } else {
            let n = self.next_row;
            self.next_row += self.job.threads as u64;
            n
        };
        let row = &rows.rows[(n % rows.rows.len() as u64) as usize];
        person.values[..rows.columns].clone_from_slice(row);
        person.has_row = true;
    }

    /// The next request of a session is due.
    fn next_step(&mut self, user: u32, due: Micros, now: Micros) {
        // A step counts like any other request of a closed loop; in an open loop `-n` counts arrivals.
        let counts =
            matches!(self.source, Source::Closed { .. }) && matches!(self.job.prepared.choice, Choice::Session);
        if counts {
            if self.remaining == 0 {
                self.end_session(user);
                self.send_away(user);
                return self.nothing_remains(now);
            }
            self.remaining -= 1;
        }
        self.presence[user as usize] = Presence::Busy;
        let phase = self.phase;
        self.slice(phase).counts.due += 1;
        let is_page = self.job.plan.page.is_some();
        let person = &mut self.people[user as usize];
        let step = person.step;
        if is_page {
            person.page = Some(PageLoad::begin(due, phase, step));
        }
        self.issue(user, step, due, phase, None, now, false);
        if self.remaining == 0 && counts {
            self.nothing_remains(now);
        }
    }

    fn end_session(&mut self, user: u32) {
        let columns = self.job.prepared.rows.as_ref().map_or(0, |r| r.columns);
        let person = &mut self.people[user as usize];
        person.step = 0;
        person.mid_session = false;
        if !person.past_once {
            // Who comes next is somebody else.
            person.jar.clear();
            person.cached.clear();
            person.values[columns..].iter_mut().for_each(Vec::clear);
        }
    }

    /// Open loop: sends what is due, as far as somebody is free.
    pub(crate) fn dispatch(&mut self, now: Micros) {
        if self.tape.is_some() {
            return self.play(now);
        }
        // A request that fails at once frees its user from within: the loop below goes on, not a deeper one.
        if self.dispatching || self.exhausted || self.queues.is_empty() || now < self.no_socket_until {
            return;
        }
        self.dispatching = true;
        let mut begun = 0u32;
        loop {
            // Read now and then only: thousands that are due together shall not keep the loop from its events.
            if begun % 16 == 15 && self.turn_is_over() {
                break;
            }
            let Some(queue) = self.queues.front_mut() else { break };
            let Some(due) = queue.next_due() else {
                // The phase that the clock is in keeps its queue until it is over.
                if queue.phase == self.phase {
                    break;
                }
                self.queues.pop_front();
                continue;
            };
            if due > now || now < self.no_socket_until {
                break;
            }
            let phase = queue.phase;
            let request = self.choose();
            let endpoint = self.job.prepared.requests[request].endpoint;
            let Some(user) = self.take_user(endpoint) else {
                // In turn: it is still this request's turn.
                if matches!(self.job.prepared.choice, Choice::Order) {
                    self.next_request -= self.job.threads as u64;
                }
                self.exhausted = true;
                break;
            };
            let depth = self.job.plan.http.pipeline.max(1);
            let mut behind = Vec::new();
            if let Some(queue) = self.queues.front_mut() {
                queue.budget -= 1;
                queue.arrivals.advance();
                while (behind.len() as u32) + 1 < depth && queue.budget > 0 {
                    let Some(next) = queue.next_due().filter(|next| *next <= now) else { break };
                    behind.push(next);
                    queue.budget -= 1;
                    queue.arrivals.advance();
                }
            }
            self.presence[user as usize] = Presence::Busy;
            if depth > 1 {
                self.connections[(user * self.per_user) as usize].pipelined = behind;
            }
            self.start(user, request, due, phase, now, true);
            begun += 1;
            if phase == self.phase {
                self.open_budget_used(now);
            }
        }
        self.dispatching = false;
    }

    /// Open loop: has the last request that the present phase may send gone out?
    fn open_budget_used(&mut self, now: Micros) {
        let phase = self.phase;
        if !self.over && self.queues.iter().any(|q| q.phase == phase && q.budget == 0) {
            // The last of them came due by now, and what comes due at this very moment counts.
            self.count_due(now + 1);
            self.nothing_remains(now);
        }
    }

    /// Somebody free: best with a connection to the server, else without any, else with one to another server.
    pub(crate) fn take_user(&mut self, endpoint: usize) -> Option<u32> {
        let own = self.idle[endpoint].pop();
        own.or_else(|| self.closed.pop()).or_else(|| self.idle.iter_mut().find_map(Vec::pop))
    }

    // ---- requests go out ----------------------------------------------------------------------------------------

    /// The connection that a user has for a server; None where all that it may have are in use.
    pub(crate) fn slot_for(&self, user: u32, endpoint: usize) -> Option<u32> {
        let first = user * self.per_user;
        let Some(page) = &self.job.plan.page else {
            return Some(first + endpoint as u32 % self.per_user);
        };
        let each = page.connections_per_host.max(1);
        let group = first + (endpoint as u32 % (self.per_user / each).max(1)) * each;
        let slots = group..group + each;
        let state = |slot: &u32| self.connections[*slot as usize].state;
        let own = |slot: &u32| self.connections[*slot as usize].endpoint == endpoint as u32;
        slots
            .clone()
            .find(|s| state(s) == State::Idle && own(s))
            .or_else(|| slots.clone().find(|s| state(s) == State::Closed))
            .or_else(|| slots.clone().find(|s| state(s) == State::Idle))
    }

    /// Sends a request that is due, or keeps it until there is a descriptor for it.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn issue(
        &mut self,
        user: u32,
        request: usize,
        due: Micros,
        phase: u16,
        errand: Option<Box<Errand>>,
        now: Micros,
        arrived: bool,
    ) {
        if let Err(stranded) = self.try_issue(user, request, due, phase, errand, now, arrived) {
            self.outcome.shortage.descriptors += 1;
            self.strand(stranded, now);
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn try_issue(
        &mut self,
        user: u32,
        request: usize,
        due: Micros,
        phase: u16,
        errand: Option<Box<Errand>>,
        now: Micros,
        arrived: bool,
    ) -> Result<(), Stranded> {
        let detour = errand.as_ref().and_then(|e| e.detour.as_ref());
        let endpoint = detour.map_or(self.job.prepared.requests[request].endpoint, |d| d.endpoint);
        let stranded = |errand, joined| Stranded { user, due, phase, request: request as u32, errand, joined };
        let Some(slot) = self.slot_for(user, endpoint) else {
            // Only page mode has several in flight, and it looks before it asks.
            return Err(stranded(errand, None));
        };
        // Closed loop: a user who pipelines asks for several things at once.
        let depth = self.job.plan.http.pipeline.max(1);
        if depth > 1 && !arrived {
            let more = u64::from(depth - 1).min(self.remaining);
            self.remaining -= more;
            self.slice(phase).counts.due += more;
            let c = &mut self.connections[slot as usize];
            c.pipelined.clear();
            c.pipelined.resize(more as usize, due);
        }
        if self.pool.is_bounded() && self.has_to_wait(slot, endpoint as u32) {
            self.stranded.push_back(stranded(errand, Some(now)));
            return Ok(());
        }
        let joined = self.pool.joined;
        self.begin(slot, request as u32, endpoint as u32, due, phase, errand, now, arrived)
            .map_err(|errand| stranded(errand, joined))
    }

    pub(crate) fn strand(&mut self, stranded: Stranded, now: Micros) {
        self.no_socket_until = now + NO_SOCKET_PAUSE_US;
        self.stranded.push_back(stranded);
    }

    pub(crate) fn send_stranded(&mut self, now: Micros) {
        if self.pool.is_bounded() || self.stranded.front().is_some_and(|s| s.joined.is_some()) {
            return self.serve_line(now);
        }
        for _ in 0..self.stranded.len() {
            if self.over || now < self.no_socket_until || self.turn_is_over() {
                break;
            }
            if let Some(s) = self.stranded.pop_front()
                && let Err(again) = self.try_issue(s.user, s.request as usize, s.due, s.phase, s.errand, now, true)
            {
                self.strand(again, now);
            }
        }
        self.none_stranded(now);
    }

    /// Nobody is stranded any more, perhaps.
    pub(crate) fn none_stranded(&mut self, now: Micros) {
        if self.stranded.is_empty() {
            match self.source {
                Source::Closed { .. } if self.remaining == 0 => self.nothing_remains(now),
                Source::Closed { .. } => {}
                Source::Open => self.open_budget_used(now),
            }
        }
    }

    // ---- requests end -------------------------------------------------------------------------------------------

    /// A request has met its end on a connection that is idle or closed now.
    #[inline]
    pub(crate) fn request_over(&mut self, slot: u32, now: Micros, end: End) {
        let user = slot / self.per_user;
        self.offer(slot);
        if self.job.prepared.personal {
            self.personal_over(user, slot, now, end);
        } else {
            let request = self.connections[slot as usize].request as usize;
            self.unit_over(user, request, now, matches!(end, End::Lost { refused: true, .. }));
        }
        if self.pool.is_bounded() {
            self.serve_line(now);
        }
    }

    /// What a user did is done; after a pause comes the next.
    pub(crate) fn unit_over(&mut self, user: u32, request: usize, now: Micros, refused: bool) {
        let closed = matches!(self.source, Source::Closed { .. });
        if closed && refused && !self.over {
            return self.pause(user, now + REFUSED_PAUSE_US);
        }
        if closed && !self.over {
            let think = draw(self.job.prepared.requests[request].think, &mut self.rng);
            if !think.is_zero() {
                return self.pause(user, now + think.as_micros() as Micros);
            }
        }
        self.free(user, now);
    }

    fn personal_over(&mut self, user: u32, slot: u32, now: Micros, end: End) {
        let c = &mut self.connections[slot as usize];
        let request = c.request as usize;
        let phase = c.phase;
        let endpoint = c.endpoint as usize;
        let errand = c.errand.take().unwrap_or_default();
        let (mut good, mut refused, mut status, mut capture) = (false, false, 0, None);
        match end {
            End::Answered { status: s, capture: c } => {
                good = true;
                status = s;
                capture = c;
            }
            End::Lost { on_reuse: true, .. } if self.job.plan.abandon.lost_is_sent_again && self.may_follow(now) => {
                self.people[user as usize].step = request;
                return self.next_step(user, now, now);
            }
            End::Lost { refused: r, .. } => refused = r,
        }
        if let Some(seen) = &mut capture {
            seen.finish();
            self.keep_cookies(user, endpoint, &errand, seen);
            if self.may_follow(now)
                && let Some(next) = self.what_follows(user, request, endpoint, &errand, status, seen)
            {
                // What follows from an answer is a request like any other: due now, and due in this phase.
                let phase = self.phase;
                self.slice(phase).counts.due += 1;
                return self.issue(user, request, now, phase, Some(Box::new(next)), now, true);
            }
            good &= self.judge(user, request, phase, status, seen, &errand);
        }
        if self.job.plan.page.is_some() {
            return self.page_part_over(user, slot, &errand, endpoint, (good, status), refused, capture, now);
        }
        self.step_over(user, slot, request, (good, status), refused, now);
    }

    /// A request with all that follows from it, or a page, is over: a session goes on, or the user has done what it wanted.
    pub(crate) fn step_over(
        &mut self,
        user: u32,
        slot: u32,
        request: usize,
        (good, status): (bool, u16),
        refused: bool,
        now: Micros,
    ) {
        if matches!(self.job.prepared.choice, Choice::Session | Choice::Sessions(_)) {
            let person = &mut self.people[user as usize];
            let requests = &self.job.prepared.requests;
            let last_once = requests.iter().rposition(|r| r.once);
            if good && last_once == Some(request) {
                person.past_once = true;
            }
            let past = person.past_once;
            // The next one that is not over with.
            person.step =
                (request + 1..requests.len()).find(|i| !(requests[*i].once && past)).unwrap_or(requests.len());
            let abandon = &self.job.plan.abandon;
            let abandoned = abandon.session_with_status.is_some_and(|s| s == status)
                || abandon.session_with_connection && self.connections[slot as usize].state == State::Closed;
            if abandoned && self.connections[slot as usize].state == State::Idle {
                self.close(slot);
            }
            let person = &mut self.people[user as usize];
            let more = person.step < requests.len() && !requests[request].last && !abandoned;
            if good && more && self.may_follow(now) {
                self.people[user as usize].mid_session = true;
                let think = draw(self.job.prepared.requests[request].think, &mut self.rng);
                if think.is_zero() {
                    return self.next_step(user, now, now);
                }
                return self.pause(user, now + think.as_micros() as Micros);
            }
            self.end_session(user);
        }
        self.unit_over(user, request, now, refused);
    }
}
