//! Begins and ends phases, and accounts for what is left at the end of a run.

use std::sync::atomic::Ordering;

use lastdrop_model::plan::Load;
use lastdrop_model::{Micros, Slice};

use super::EventLoop;
use crate::phases::{ArrivalQueue, Source};
use crate::protocol::{closed_bound, open_bound};
use crate::record::{LivePhase, take_slice};
use crate::schedule;
use crate::users::Presence;
use crate::wiring::{Message, Outcome};
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Whether every request of an earlier phase has ended. Its slice is then reused, however short phases are.
    pub(super) fn is_over(&self, phase: u16) -> bool {
        phase != self.phases.phase
            && self.record.live[usize::from(phase)].as_ref().is_some_and(|l| l.in_flight == 0)
            && self.phases.queues.iter().all(|q| q.phase != phase)
            && self.waiting.stranded.iter().all(|s| s.phase != phase)
    }

    /// Ends a phase whose time is up: begins the next one, or stops the arrivals.
    pub(super) fn phase_over(&mut self, now: Micros) {
        let end = self.phases.phase_end.unwrap_or(now);
        if usize::from(self.phases.phase) + 1 < self.job.plan.phases.len() {
            self.enter_phase(self.phases.phase + 1, end);
        } else {
            self.stop_arrivals(now);
        }
    }

    /// Begins a phase at its planned time.
    pub(super) fn enter_phase(&mut self, index: u16, start: Micros) {
        let now = self.now();
        self.count_due(start);
        if let Some(live) = &mut self.record.live[usize::from(self.phases.phase)] {
            live.duration = Some((start - live.start).max(1));
        }
        let phase = &self.job.plan.phases[usize::from(index)];
        self.phases.phase = index;
        self.phases.phase_start = start;
        self.phases.phase_end = phase.duration.map(|d| start + d.as_micros() as Micros);
        let shard = &self.job.shard;
        self.phases.remaining = match (phase.requests, &phase.load) {
            (None, _) => u64::MAX,
            // A thread without users has nothing to send.
            (Some(n), Load::Closed { .. }) => shard.requests_of(n, u64::from(phase.load.most_concurrent())),
            (Some(n), Load::Open { .. }) => shard.count(n),
        };
        let slice = take_slice(self.wiring.recycled, index, 0, self.job.prepared.classes);
        self.record.live[usize::from(index)] = Some(LivePhase {
            slice,
            start,
            next_flush: start + 1_000_000,
            in_flight: 0,
            duration: None,
            peak: self.transport.open_sockets,
        });
        match &phase.load {
            Load::Closed { users, to_users, .. } => {
                let own = |n: u32| self.job.shard.count(u64::from(n)).max(1);
                let connections = closed_bound(self.job.plan, &phase.load);
                self.waiting.pool.limit(self.transport.shared.own_bound().or(connections.map(own)));
                self.limit_shared();
                // Connections left from the previous phase return to the shared pool.
                for slot in self.transport.connections.slots() {
                    self.offer(slot);
                }
                let (from, to) = (f64::from(*users), f64::from(to_users.unwrap_or(*users)));
                self.phases.source = Source::Closed { from, to };
                self.phases.due_cursor = None;
                // Requests that waited for a connection in an open loop have no user to send them now.
                self.class_unsent(start);
                self.note_waiting(start);
                self.phases.queues.clear();
                self.waiting.idle.iter_mut().for_each(Vec::clear);
                self.waiting.closed.clear();
                let active = self.users.presence.iter().filter(|p| **p != Presence::Away).count();
                self.users.users_before = self.job.shard.scale(active as u64) as u32;
                self.users.wanted = 0;
                self.change_users(now.max(start));
                if self.phases.remaining == 0 {
                    self.nothing_remains(now);
                }
            }
            Load::Open { connections, .. } => {
                self.phases.source = Source::Open;
                let own = self.job.shard.count(u64::from(*connections)).max(1) as u32;
                let bound = open_bound(&self.job.plan.http, own).map(u64::from);
                self.waiting.pool.limit(self.transport.shared.own_bound().or(bound));
                self.limit_shared();
                let arrivals = schedule::arrivals(self.job.plan, usize::from(index), self.job.shard.clone());
                let queue = |arrivals| ArrivalQueue {
                    phase: index,
                    start,
                    end: self.phases.phase_end,
                    arrivals,
                    budget: self.phases.remaining,
                };
                // A log that is played has its own times.
                if let Some(arrivals) = arrivals.filter(|_| self.tape.is_none()) {
                    self.phases.due_cursor = Some(queue(arrivals.clone()));
                    self.phases.queues.push_back(queue(arrivals));
                }
                if std::mem::take(&mut self.waiting.exhausted) {
                    // The users of this phase are free for requests left waiting by the previous one.
                    self.waiting.freed_at = start;
                }
                self.pool_users();
                if self.phases.remaining == 0 {
                    self.nothing_remains(now);
                }
            }
        }
    }

    /// All requests of `-n` have come due and, in an open loop, gone out.
    pub(super) fn nothing_remains(&mut self, now: Micros) {
        if usize::from(self.phases.phase) + 1 == self.job.plan.phases.len() && self.waiting.stranded.is_empty() {
            // Called repeatedly if -n is at most the number of users.
            self.phases.used_up |= !self.phases.over;
            self.stop_arrivals(now);
        }
    }

    /// Stops the arrivals, and closes idle connections so that they occupy no worker of the server.
    pub(super) fn stop_arrivals(&mut self, now: Micros) {
        if self.phases.over {
            return;
        }
        // A request due at exactly this moment may have been sent.
        self.count_due(now + 1);
        self.phases.over = true;
        self.count_unplayed(now);
        self.class_unsent(now + 1);
        self.note_unsent(now);
        for user in 0..self.users.presence.len() as u32 {
            let busy = self.phases.used_up
                && (self.users.presence[user as usize] == Presence::Busy || self.users.in_session(user));
            if !busy {
                self.close_idle_of(user);
            }
        }
    }

    /// Gives up because the plan's limit of bad results is reached: nothing more comes due, and the run does not wait
    /// for the rest.
    pub(super) fn give_up(&mut self, now: Micros) {
        self.stop_arrivals(now);
        self.phases.given_up = true;
        self.wiring.halt.store(true, Ordering::Relaxed);
    }

    /// Accounts for what is left when the run is over.
    pub fn finish(mut self, now: Micros) -> Outcome {
        let ended_early = !self.phases.over;
        if ended_early {
            self.count_due(now + 1);
            self.count_unplayed(now);
            self.class_unsent(now + 1);
            self.note_unsent(now);
        }
        self.note_stranded();
        self.class_stranded();
        self.note_censored();
        let since_start = |at: Micros| at.saturating_sub(self.phases.phase_start);
        let duration = match self.phases.phase_end {
            // Interrupted by Ctrl-C, nothing reachable, or given up.
            _ if ended_early || self.phases.given_up => since_start(now),
            Some(end) if self.phases.remaining > 0 => since_start(end),
            // All of -n came due before the end of -d.
            Some(end) => since_start(self.record.last_end).min(since_start(end)),
            None => since_start(self.record.last_end),
        };
        if let Some(live) = &mut self.record.live[usize::from(self.phases.phase)] {
            live.duration = Some(duration.max(1));
        }
        for phase in 0..self.record.live.len() as u16 {
            if let Some(live) = self.record.live[usize::from(phase)].take() {
                self.hand_over(live.slice);
                self.phase_ended(phase, live.duration.unwrap_or(1), live.peak);
            }
        }
        self.hand_over_exchanges();
        self.record.outcome
    }

    /// Hands over the past second of a phase, and the phase itself once all of its requests have ended.
    pub(super) fn flush(&mut self, phase: u16, now: Micros) {
        if phase == self.phases.phase {
            self.count_due(now);
            self.job.directory.news(&mut self.transport.directory_seen, &mut self.transport.endpoints);
        }
        if self.is_over(phase) {
            if let Some(live) = self.record.live[usize::from(phase)].take() {
                self.hand_over(live.slice);
                self.phase_ended(phase, live.duration.unwrap_or(1), live.peak);
            }
            return;
        }
        let Some(live) = &mut self.record.live[usize::from(phase)] else { return };
        let second = ((now - live.start) / 1_000_000) as u32;
        let fresh = take_slice(self.wiring.recycled, phase, second, self.job.prepared.classes);
        let slice = std::mem::replace(&mut live.slice, fresh);
        live.next_flush = live.start + (u64::from(second) + 1) * 1_000_000;
        self.hand_over(slice);
        self.hand_over_exchanges();
    }

    pub(super) fn hand_over(&self, slice: Box<Slice>) {
        // If nobody receives, the run is being abandoned; the stop flag ends the loop.
        let _ = self.wiring.out.send(Message::Slice { thread: self.wiring.thread, slice });
    }

    pub(super) fn phase_ended(&self, phase: u16, duration_us: Micros, peak: u64) {
        let _ = self.wiring.out.send(Message::PhaseEnd { thread: self.wiring.thread, phase, duration_us, peak });
    }

    /// Open loop: counts the requests that have come due by now.
    pub(super) fn count_due(&mut self, now: Micros) {
        if let Some((phase, due)) = self.phases.come_due(now) {
            self.record.slice(phase).counts.due += due;
        }
    }

    /// Open loop: counts, by class, requests that came due by `now` and will never be sent. They are divided by the
    /// plan's weights.
    pub(super) fn class_unsent(&mut self, now: Micros) {
        if self.job.prepared.classes == 0 {
            return;
        }
        let waiting = |q: &ArrivalQueue| {
            let until = q.end.map_or(now, |end| end.min(now)).saturating_sub(q.start);
            (q.phase, q.arrivals.clone().advance_to(until).min(q.budget))
        };
        for (phase, unsent) in self.phases.queues.iter().map(waiting).collect::<Vec<_>>() {
            let shares = self.job.prepared.mixed(unsent);
            let counts = &mut self.record.slice(phase).by_class.counts;
            counts.iter_mut().zip(shares).for_each(|(c, n)| c.due += n);
        }
    }

    /// Counts, by class, the requests that came due and never found a descriptor.
    pub(super) fn class_stranded(&mut self) {
        if self.job.prepared.classes == 0 {
            return;
        }
        for stranded in std::mem::take(&mut self.waiting.stranded) {
            let class = self.job.prepared.class_of(stranded.request, stranded.follow_up.as_deref());
            // Include the requests that were to be pipelined behind it.
            let behind = self.behind(&stranded).len() as u64;
            self.record.slice(stranded.phase).by_class.counts[usize::from(class)].due += 1 + behind;
        }
    }
}
