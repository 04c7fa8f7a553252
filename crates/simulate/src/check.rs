//! Checks the invariants of every run, whatever its servers did.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lastdrop_load::threads;
use lastdrop_model::plan::Load;
use lastdrop_model::request::{Expectation, Pick};
use lastdrop_model::{Arrival, Exchange, Failure, Histogram, KeepAlive, Kind, Micros, RequestOutcome};

use crate::connection::SimulatedConnection;
use crate::peer::{AnswerEnd, PeerAnswer};
use crate::plan::Scenario;
use crate::run::RunRecord;

/// Most violations reported per run.
const MOST_TOLD: usize = 8;

/// Pause of a user whose connection was refused.
const REFUSED_PAUSE_US: Micros = 50_000;

/// A run being checked.
#[derive(Debug)]
pub struct Check<'a> {
    scene: &'a Scenario,
    left: &'a RunRecord,
    threads: usize,
    /// The requests that were sent, by connection, in the order of their ends.
    by_connection: HashMap<u64, Vec<&'a Exchange>>,
    /// Microseconds since 1970 when the clock of the run began.
    origin: u64,
    found: Vec<String>,
}

/// Unix time in microseconds at which every simulated world begins.
pub const UNIX_US: u64 = 1_700_000_000_000_000;

#[must_use]
pub fn check(scene: &Scenario, left: &RunRecord) -> Vec<String> {
    let mut by_connection: HashMap<u64, Vec<&Exchange>> = HashMap::new();
    for exchange in left.exchanges.iter().filter(|e| e.sent.is_some()) {
        by_connection.entry(exchange.connection).or_default().push(exchange);
    }
    let threads = threads(&scene.plan, &lastdrop_load::share::Share::whole());
    let mut check = Check { scene, left, threads, by_connection, origin: UNIX_US, found: Vec::new() };
    check.sums();
    check.times();
    if scene.faults.streams.is_some() {
        check.streams();
        check.processing();
    } else {
        check.peers();
    }
    check.bytes();
    check.bandwidth();
    check.bounds();
    check.arrivals();
    check.users();
    check.line();
    check.same();
    check.found
}

impl Check<'_> {
    fn wrong(&mut self, what: impl Fn() -> String) {
        if self.found.len() < MOST_TOLD {
            self.found.push(what());
        }
    }

    fn equal(&mut self, what: &str, phase: usize, counted: u64, real: u64) {
        if counted != real {
            self.wrong(|| format!("phase {phase}: {what}: {counted} counted, {real} are there"));
        }
    }

    fn phase(&self, phase: usize) -> impl Iterator<Item = &Exchange> {
        self.left.exchanges.iter().filter(move |e| usize::from(e.phase) == phase)
    }

    /// Each request has exactly one fate, and is counted under it; the latencies match those of the requests.
    fn sums(&mut self) {
        for index in 0..self.scene.plan.phases.len() {
            let slice = &self.left.phases[index];
            let c = slice.counts;
            let count = |f: &dyn Fn(&Exchange) -> bool| self.phase(index).filter(|e| f(e)).count() as u64;
            let with = |fate: RequestOutcome| count(&|e| e.fate == fate);
            let rows = [
                ("due", c.due, count(&|_| true)),
                ("sent", c.sent, count(&|e| e.sent.is_some())),
                ("unsent", c.unsent(), with(RequestOutcome::Unsent)),
                ("answered", c.answered, with(RequestOutcome::Answered)),
                ("failed to connect", c.failed.connect, with(RequestOutcome::Failed(Failure::Connect))),
                ("reset", c.failed.reset, with(RequestOutcome::Failed(Failure::Reset))),
                ("closed", c.failed.closed, with(RequestOutcome::Failed(Failure::Closed))),
                ("protocol", c.failed.protocol, with(RequestOutcome::Failed(Failure::Protocol))),
                ("refused", c.failed.refused, with(RequestOutcome::Failed(Failure::Refused))),
                ("timed out", c.timed_out, with(RequestOutcome::TimedOut)),
                ("censored", c.censored(), with(RequestOutcome::Censored)),
                ("statuses", slice.status.iter().sum(), c.answered),
            ];
            let of = |fates: &[RequestOutcome], f: &dyn Fn(&Exchange) -> Option<Micros>| {
                let mut histogram = Histogram::new();
                let all = self.phase(index).filter(|e| fates.contains(&e.fate));
                all.filter_map(f).for_each(|us| histogram.record(us));
                histogram
            };
            let since = |from: Option<Micros>, to: Option<Micros>| Some(to?.saturating_sub(from?));
            let (answered, ended) = ([RequestOutcome::Answered], [RequestOutcome::Answered, RequestOutcome::TimedOut]);
            let latencies = [
                (Kind::Response, of(&ended, &|e| since(Some(e.due), e.done))),
                (Kind::Service, of(&answered, &|e| since(e.sent, e.done))),
                (Kind::FirstByte, of(&answered, &|e| since(e.sent, e.first_byte))),
            ];
            for (what, counted, real) in rows {
                self.equal(what, index, counted, real);
            }
            for (kind, real) in latencies {
                let counted = &self.left.phases[index].latencies[kind as usize];
                let sum = |h: &Histogram| (h.count(), h.min(), h.max(), h.mean().to_bits());
                if sum(counted) != sum(&real) {
                    self.wrong(|| format!("phase {index}: latencies {}: {counted:?} for {real:?}", kind.name()));
                }
            }
            let lateness = self.left.phases[index].latencies[Kind::Lateness as usize].max();
            let punctual = self.scene.faults.is_exact() && self.scene.faults.has_sockets();
            if punctual && self.scene.plan.page.is_none() && lateness > 1 {
                self.wrong(|| format!("phase {index}: {lateness} µs late where nothing takes time"));
            }
        }
    }

    /// Each request went through its times in order, and timeouts are punctual.
    fn times(&mut self) {
        let timeout = self.scene.plan.timeout.as_micros() as Micros;
        let is_exact = self.scene.faults.is_exact();
        let left = self.left;
        for e in &left.exchanges {
            let steps = [Some(e.due), e.sent, e.connected, e.ready, e.first_byte.or(e.done), e.done];
            let times: Vec<Micros> = steps.into_iter().flatten().collect();
            // Each time is at or after the previous one; a reused connection was ready long before.
            let kept = |w: &[Micros]| w[0] <= w[1];
            if !times.windows(2).all(kept) && e.fate != RequestOutcome::Censored {
                self.wrong(|| format!("times that go back: {e:?}"));
            }
            let waited = e.done.zip(e.sent).map_or(0, |(done, sent)| done - sent);
            if e.fate == RequestOutcome::TimedOut && (waited < timeout || is_exact && waited != timeout) {
                self.wrong(|| format!("timed out after {waited} µs of {timeout}: {e:?}"));
            }
            if is_exact && waited > timeout && e.fate != RequestOutcome::Censored {
                self.wrong(|| format!("a timeout was forgotten: {e:?}"));
            }
        }
    }

    /// The peers' records match the shards' counts, and bytes were read when the shard says so.
    fn peers(&mut self) {
        let left = self.left;
        let mut known = 0;
        for (thread, kernel) in left.kernels.iter().enumerate() {
            for (socket, line) in kernel.lines.iter().enumerate() {
                let mut all: Vec<&Exchange> = Vec::new();
                for token in &line.tokens {
                    let connection = token | (thread as u64) << 56;
                    all.extend(self.by_connection.get(&connection).into_iter().flatten());
                }
                known += all.len();
                let written = all.iter().filter(|e| e.written.is_some()).count();
                let seen = line.peer.requests.len();
                let exactly = !line.peer.was_tls && self.scene.plan.http.pipeline <= 1;
                if seen < written || seen > all.len() || exactly && seen != written {
                    self.wrong(|| {
                        format!("shard {thread}, socket {socket}: its peer saw {seen} requests, {written} were written of {}", all.len())
                    });
                }
                for (i, e) in all.iter().enumerate() {
                    if self.was_there(e, line.peer.answers.get(i), line) {
                        self.wrong(|| format!("shard {thread}, socket {socket}: its answer lay there: {e:?}"));
                    }
                    if e.fate == RequestOutcome::Answered {
                        let Some(answer) = line.peer.answers.get(i) else {
                            self.wrong(|| {
                                format!("shard {thread}, socket {socket}: an answer that nobody gave: {e:?}")
                            });
                            break;
                        };
                        if let Some(what) = self.compare(e, answer, line) {
                            self.wrong(|| format!("shard {thread}, socket {socket}: {what}: {e:?} for {answer:?}"));
                        }
                        if answer.closing && i + 1 < all.len() && self.scene.plan.http.pipeline <= 1 {
                            self.wrong(|| {
                                format!("shard {thread}, socket {socket}: used after an answer that ended it: {e:?}")
                            });
                        }
                    } else if i + 1 < all.len() && self.scene.plan.http.pipeline <= 1 {
                        self.wrong(|| format!("shard {thread}, socket {socket}: used again after a failure: {e:?}"));
                    }
                }
            }
        }
        let sent = left.exchanges.iter().filter(|e| e.sent.is_some());
        let unwatched = |e: &&Exchange| {
            matches!(
                e.fate,
                RequestOutcome::Failed(Failure::Connect) | RequestOutcome::Censored | RequestOutcome::TimedOut
            )
        };
        let lost = sent.clone().count() - known;
        if lost > sent.filter(unwatched).count() {
            self.wrong(|| format!("{lost} requests were sent on connections that there are not"));
        }
    }

    /// HTTP/2: each answer that was counted is one that the peer gave, at the time when it was read, and counts once.
    /// The peer saw nothing that it forbids.
    fn streams(&mut self) {
        let left = self.left;
        for (thread, kernel) in left.kernels.iter().enumerate() {
            for (socket, line) in kernel.lines.iter().enumerate() {
                let Some(peer) = &line.peer.streams else { continue };
                if let Some(what) = peer.violations.first() {
                    self.wrong(|| format!("shard {thread}, socket {socket}: {what}"));
                }
                let mut given: BTreeMap<_, u64> = BTreeMap::new();
                for answer in &peer.answers {
                    let read = |bytes: u64| {
                        let at = line.received.partition_point(|(total, _)| *total < bytes);
                        line.received.get(at).map(|(_, at)| self.origin + at)
                    };
                    let (begins, ends) = (read(answer.begins), read(answer.ends));
                    let key = (ends, begins, answer.status, answer.head_bytes, answer.body_bytes);
                    *given.entry(key).or_default() += 1;
                }
                let of = |token: &u64| self.by_connection.get(&(token | (thread as u64) << 56));
                let all: Vec<&Exchange> = line.tokens.iter().filter_map(of).flatten().copied().collect();
                for e in all.iter().filter(|e| e.fate == RequestOutcome::Answered) {
                    let key = (e.done, e.first_byte, e.status, e.head_bytes, e.body_bytes);
                    let there = given.get_mut(&key).filter(|n| **n > 0);
                    match there {
                        Some(n) => *n -= 1,
                        None => self.wrong(|| {
                            format!(
                                "shard {thread}, socket {socket}: an answer that nobody gave: {e:?} of {:?}",
                                peer.answers
                            )
                        }),
                    }
                }
                // An answer that was read as a whole belongs to a request that has ended, in one way or another.
                let timeout = self.scene.plan.timeout.as_micros() as Micros;
                let whole: u64 = given.iter().filter(|((ends, ..), _)| ends.is_some()).map(|(_, n)| *n).sum();
                let others = all.iter().filter(|e| e.fate != RequestOutcome::Answered).count() as u64;
                if whole > others {
                    self.wrong(|| {
                        format!("shard {thread}, socket {socket}: {whole} answers were read, and count for nobody (a timeout is {timeout} µs)")
                    });
                }
            }
        }
    }

    /// HTTP/2: no request is processed twice, and what is sent again was refused.
    fn processing(&mut self) {
        let peers = || self.left.kernels.iter().flat_map(|k| &k.lines).filter_map(|l| l.peer.streams.as_deref());
        let heads: u64 = peers().map(|p| p.heads).sum();
        let refused: u64 = peers().map(|p| p.refused).sum();
        let sum =
            |f: &dyn Fn(&lastdrop_model::Counts) -> u64| self.left.phases.iter().map(|p| f(&p.counts)).sum::<u64>();
        let (sent, again, given_up) = (sum(&|c| c.sent), sum(&|c| c.sent_again), sum(&|c| c.failed.refused));
        if heads > sent + again {
            self.wrong(|| format!("{heads} requests were seen, {sent} sent and {again} sent again"));
        }
        if heads - refused > sent {
            self.wrong(|| format!("{} requests were processed, of {sent} that were sent", heads - refused));
        }
        // What is still in a cork or a socket when a GOAWAY comes was not seen, and is sent again, too.
        let unseen = (sent + again).saturating_sub(heads);
        if again + given_up > refused + unseen {
            self.wrong(|| format!("{again} requests sent again and {given_up} refused twice, of {refused} refused"));
        }
        let answered = sum(&|c| c.answered);
        if answered > heads - refused {
            self.wrong(|| format!("{answered} answers of {} processed requests", heads - refused));
        }
    }

    /// Whether the whole answer arrived before the timeout of a request counted as timed out.
    fn was_there(&self, e: &Exchange, answer: Option<&PeerAnswer>, line: &SimulatedConnection) -> bool {
        let Some(AnswerEnd::At(bytes) | AnswerEnd::Close(Some(bytes))) = answer.map(|a| a.ending) else { return false };
        if e.fate != RequestOutcome::TimedOut || self.scene.faults.reads_slowly || self.scene.plan.http.pipeline > 1 {
            return false;
        }
        let at = line.arrived.partition_point(|(total, _)| *total < bytes);
        let timeout = self.scene.plan.timeout.as_micros() as Micros;
        let sent = e.sent.unwrap_or(u64::MAX);
        line.arrived.get(at).is_some_and(|(_, at)| self.origin + at < sent.saturating_add(timeout))
    }

    fn compare(&self, e: &Exchange, answer: &PeerAnswer, line: &SimulatedConnection) -> Option<&'static str> {
        if e.status != answer.status {
            return Some("another status");
        }
        if e.head_bytes != answer.head_bytes
            || e.body_bytes != answer.body_bytes && answer.ending != AnswerEnd::Anywhere
        {
            return Some("another length");
        }
        let read = |bytes: u64| {
            let at = line.received.partition_point(|(total, _)| *total < bytes);
            line.received.get(at).map(|(_, at)| self.origin + at)
        };
        if e.first_byte != read(answer.begins) {
            return Some("another first byte");
        }
        let done = match answer.ending {
            AnswerEnd::At(bytes) => read(bytes),
            AnswerEnd::Close(Some(bytes)) => read(bytes),
            AnswerEnd::Close(None) => line.end_told.map(|at| self.origin + at),
            AnswerEnd::Never => return Some("half an answer"),
            AnswerEnd::Anywhere => e.done,
        };
        (e.done != done).then_some("another end")
    }

    fn bytes(&mut self) {
        let lines = || self.left.kernels.iter().flat_map(|k| &k.lines);
        let (mut sent, mut received) = (0, 0);
        for slice in &self.left.phases {
            sent += slice.counts.bytes_sent;
            received += slice.counts.bytes_received;
        }
        if lines().any(|l| l.peer.was_tls) {
            let seen: u64 = lines().map(|l| l.peer.plain_bytes).sum();
            if seen > sent {
                self.wrong(|| format!("{sent} bytes sent, {seen} seen"));
            }
            return;
        }
        if self.scene.faults.streams.is_some() {
            // The last frames of a connection may be cut, and its GOAWAY is sent in passing.
            let accepted: u64 = lines().map(|l| l.accepted).sum();
            let read: u64 = lines().filter_map(|l| l.received.last()).map(|(total, _)| *total).sum();
            let opened = lines().count() as u64;
            if sent > accepted || sent + 17 * opened < accepted || received > read {
                self.wrong(|| format!("bytes: {sent} and {received} counted, {accepted} and {read} went"));
            }
            return;
        }
        let accepted: u64 = lines().map(|l| l.accepted).sum();
        let read: u64 = lines().filter_map(|l| l.received.last()).map(|(total, _)| *total).sum();
        if (sent, received) != (accepted, read) && self.scene.faults.tls.is_none() {
            self.wrong(|| format!("bytes: {sent} and {received} counted, {accepted} and {read} went"));
        }
    }

    /// With a limited bandwidth each piece takes its time, even if a socket accepts less than offered: later bytes wait
    /// for it.
    fn bandwidth(&mut self) {
        let plan = &self.scene.plan;
        // Handshakes, TLS data between requests, and a tunnel's CONNECT are not limited.
        let Some(rate) = plan.network.bandwidth_bytes.filter(|_| self.scene.faults.tls.is_none()) else { return };
        let writes_too = plan.network.proxy.is_none();
        let time = |bytes: u64| (bytes * 1_000_000).div_ceil(rate);
        for (thread, kernel) in self.left.kernels.iter().enumerate() {
            for (socket, line) in kernel.lines.iter().enumerate() {
                let early = |pieces: &[(u64, Micros)]| {
                    pieces.windows(2).find(|pair| pair[1].1 < pair[0].1 + time(pair[0].0)).map(<[_]>::to_vec)
                };
                let sent: Vec<_> = line.sent.iter().map(|(bytes, at)| (*bytes as u64, *at)).collect();
                let mut before = 0;
                let pieces =
                    line.received.iter().map(|(total, at)| (total - std::mem::replace(&mut before, *total), *at));
                let received: Vec<_> = pieces.collect();
                let found = early(&received).or_else(|| if writes_too { early(&sent) } else { None });
                if let Some(pair) = found {
                    self.wrong(|| format!("shard {thread}, socket {socket}: faster than {rate} B/s: {pair:?}"));
                }
            }
        }
    }

    /// Connections and turns stay within their limits.
    fn bounds(&mut self) {
        let plan = &self.scene.plan;
        let left = self.left;
        if let [phase] = plan.phases.as_slice()
            && plan.page.is_none()
        {
            let most = match &phase.load {
                Load::Closed { connections, .. } => connections.map(u64::from),
                Load::Open { connections, .. } => Some(u64::from(*connections)),
            };
            for (thread, kernel) in left.kernels.iter().enumerate() {
                // Those that end after a GOAWAY do not count.
                let times = if self.scene.faults.streams.is_some() { 2 } else { 1 };
                let own = most.map(|most| times * share(most, thread as u64, self.threads as u64).max(1));
                if own.is_some_and(|own| kernel.most_open > own) {
                    self.wrong(|| format!("shard {thread}: {} connections of {own:?}", kernel.most_open));
                }
            }
        }
        self.ends();
        for (thread, kernel) in left.kernels.iter().enumerate() {
            let due = left.exchanges.len() as u64;
            let elapsed = kernel.now - self.scene.start;
            // One turn for each event, arrival, pause, piece and second, and those that check for a stop.
            let most = 100 + 2 * kernel.told + 6 * due + elapsed / 5_000;
            if kernel.turns > most {
                self.wrong(|| {
                    format!("shard {thread}: {} turns for {} events and {due} requests", kernel.turns, kernel.told)
                });
            }
        }
    }

    /// The run never lasts longer than the drain allows.
    fn ends(&mut self) {
        let plan = &self.scene.plan;
        let lengths: Option<Vec<_>> = plan.phases.iter().map(|p| p.duration).collect();
        let Some(lengths) = lengths.filter(|_| self.scene.faults.is_exact()) else { return };
        let length = lengths.iter().sum::<std::time::Duration>() + plan.drain;
        let end = self.scene.start + length.as_micros() as Micros;
        let left = self.left;
        for (thread, kernel) in left.kernels.iter().enumerate() {
            if kernel.now > end {
                self.wrong(|| format!("shard {thread} goes on for {} µs after the drain", kernel.now - end));
            }
        }
    }

    /// Open loop: the requests that came due match the arrivals.
    fn arrivals(&mut self) {
        let plan = &self.scene.plan;
        let mut start = self.scene.start;
        for (index, phase) in plan.phases.iter().enumerate() {
            let begun = start;
            let Some(duration) = phase.duration else { return };
            let end = begun + duration.as_micros() as Micros;
            start = end;
            let Load::Open { rate_rps, to_rps: None, arrivals: Arrival::Uniform, burst: 1, .. } = phase.load else {
                continue;
            };
            if !self.scene.is_simple {
                continue;
            }
            let due: Vec<Micros> = {
                let mut due: Vec<Micros> = self.phase(index).map(|e| e.due - self.origin).collect();
                due.sort_unstable();
                due
            };
            // By the definition, not the code: request i is due at i / rate.
            let expected = |i: usize| begun + (i as f64 * 1e6 / rate_rps) as Micros;
            let limit = phase.requests.unwrap_or(u64::MAX);
            let all = (0..due.len() + 2).take_while(|i| expected(*i) < end && (*i as u64) < limit).count();
            let whole = !self.left.stopped && plan.abandon.run.is_none() && !self.left.unreachable;
            let stops_together = self.threads == 1 || limit == u64::MAX && whole;
            let fits = due.iter().enumerate().all(|(i, at)| at.abs_diff(expected(i)) <= 1);
            if stops_together && !fits || whole && due.len() != all {
                let found = due.len();
                self.wrong(|| format!("phase {index}: {found} arrivals, {all} expected"));
            }
        }
    }

    /// Closed loop: a user with an answer sends the next request at once.
    fn users(&mut self) {
        let plan = &self.scene.plan;
        let closed = plan.phases.iter().all(|p| matches!(p.load, Load::Closed { .. }));
        let origins = plan.requests.iter().map(|r| r.url.origin()).collect::<BTreeSet<_>>();
        let plain = self.scene.is_simple && plan.think.is_none() && plan.http.pipeline <= 1 && origins.len() == 1;
        // Over HTTP/2 a connection is not a user.
        if !closed || !plain || plan.phases.len() > 1 || self.scene.faults.streams.is_some() {
            return;
        }
        let mut by_user: BTreeMap<(u64, u32), Vec<&Exchange>> = BTreeMap::new();
        for e in self.left.exchanges.iter().filter(|e| e.sent.is_some()) {
            by_user.entry((e.connection >> 56, e.connection as u32)).or_default().push(e);
        }
        let ramps = matches!(plan.phases[0].load, Load::Closed { to_users: Some(_), .. });
        for all in by_user.values_mut() {
            all.sort_by_key(|e| (e.due, e.sent));
            for pair in all.windows(2) {
                let pause = if pair[0].fate == RequestOutcome::Failed(Failure::Connect) { REFUSED_PAUSE_US } else { 0 };
                if pair[0].done.is_none_or(|done| done + pause != pair[1].due) && !ramps {
                    let (before, after) = (pair[0], pair[1]);
                    self.wrong(|| {
                        format!("a user asks at another time than after the last answer: {before:?}, {after:?}")
                    });
                }
            }
        }
        // -n is exact.
        let phase = &plan.phases[0];
        let whole = !self.left.stopped && plan.abandon.run.is_none() && !self.left.unreachable;
        if let (Some(n), None, true) = (phase.requests, phase.duration, whole) {
            let due = self.left.phases[0].counts.due;
            self.equal("requests of -n", 0, due, n);
        }
        if plan.keepalive == KeepAlive::Off && self.by_connection.values().any(|all| all.len() > 1) {
            self.wrong(|| "a connection was used twice without keep-alive".into());
        }
    }

    /// Fewer connections than users: users are served in the order in which they queue.
    fn line(&mut self) {
        let plan = &self.scene.plan;
        let [phase] = plan.phases.as_slice() else { return };
        let origins = plan.requests.iter().map(|r| r.url.origin()).collect::<BTreeSet<_>>();
        let one = self.scene.is_simple && plan.http.pipeline <= 1 && origins.len() == 1;
        let in_line = matches!(phase.load, Load::Closed { connections: Some(_), .. });
        let is_repeated = self.left.phases.iter().any(|p| p.counts.sent_again > 0);
        if is_repeated || !one || !in_line || !self.scene.faults.is_exact() || !self.scene.faults.has_sockets() {
            return;
        }
        for thread in 0..self.threads as u64 {
            let mut all: Vec<_> = self.left.exchanges.iter().filter(|e| e.connection >> 56 == thread).collect();
            all.retain(|e| e.sent.is_some());
            all.sort_by_key(|e| (e.due, e.sent));
            if let Some(pair) = all.windows(2).find(|pair| pair[0].due < pair[1].due && pair[0].sent > pair[1].sent) {
                let (first, second) = (pair[0], pair[1]);
                self.wrong(|| format!("who came later was served first: {first:?}, {second:?}"));
            }
        }
    }

    /// `checksum=same` uses one sum for the whole run.
    fn same(&mut self) {
        let plan = &self.scene.plan;
        if plan.pick != Pick::Weighted || !plan.requests.iter().any(|r| r.expect.contains(&Expectation::Same)) {
            return;
        }
        let (mut first, mut second) = (0u64, 0u64);
        for (thread, kernel) in self.left.kernels.iter().enumerate() {
            for line in &kernel.lines {
                for token in &line.tokens {
                    let all = self.by_connection.get(&(token | (thread as u64) << 56));
                    let answered = all.into_iter().flatten().filter(|e| e.fate == RequestOutcome::Answered);
                    for e in answered {
                        match (e.body_bytes, thread % 2) {
                            // Cut off, or with a status that has no body.
                            (0..6, _) => return,
                            (_, 1) => second += 1,
                            _ => first += 1,
                        }
                    }
                }
            }
        }
        let missed: u64 = self.left.phases.iter().map(|p| p.counts.missed).sum();
        if missed != first && missed != second {
            self.wrong(|| format!("{missed} bodies differ from the first, of {first} and {second}"));
        }
    }
}

/// The part of `total` that belongs to one of several threads.
fn share(total: u64, part: u64, parts: u64) -> u64 {
    total / parts + u64::from(part < total % parts)
}
