//! Adds and removes users, lets them pause, and frees them.

use std::cmp::Reverse;

use lastdrop_model::Micros;
use lastdrop_model::plan::Load;

use super::{Alarm, EventLoop};
use crate::ids::Slot;
use crate::phases::Source;
use crate::protocol::open_streams;
use crate::transport::State;
use crate::users::{Presence, spread_start};
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Closed loop: brings the number of users to what the phase wants at this time. Thousands that begin together are
    /// spread over the first second. A turn starts only as many as leave time for the next poll.
    pub(super) fn change_users(&mut self, now: Micros) {
        let Source::Closed { from, to } = self.phases.source else { return };
        let since = now.saturating_sub(self.phases.phase_start);
        let share = match self.phases.phase_end {
            Some(end) if end > self.phases.phase_start => {
                (since as f64 / (end - self.phases.phase_start) as f64).min(1.0)
            }
            _ => 0.0,
        };
        let planned = (from + (to - from) * share).round() as u32;
        let all = spread_start(self.users.users_before, planned, since);
        self.users.spreading = all < planned;
        let before = self.users.wanted;
        let own = self.job.shard.count(u64::from(all)) as usize;
        self.users.wanted = own.min(self.users.presence.len()) as u32;
        self.users.more_to_begin = false;
        let phase = self.phases.phase;
        for user in before.min(self.users.wanted)..self.users.wanted {
            if self.users.presence[user as usize] != Presence::Away {
                continue;
            }
            if self.turn_is_over() {
                self.users.wanted = user;
                self.users.more_to_begin = true;
                break;
            }
            self.begin_unit(user, now, now);
            if self.phases.over || self.phases.phase != phase {
                break;
            }
        }
    }

    /// Whether the number of users still changes.
    pub(super) fn users_change(&self) -> bool {
        let Source::Closed { from, to } = self.phases.source else { return false };
        self.users.more_to_begin || self.users.spreading || (from - to).abs() > f64::EPSILON
    }

    /// Open loop: lists every free user as waiting for arrivals.
    pub(super) fn pool_users(&mut self) {
        self.waiting.idle.iter_mut().for_each(Vec::clear);
        self.waiting.closed.clear();
        // An earlier phase may have had more users than this one has connections.
        let Load::Open { connections, .. } = &self.job.plan.phases[usize::from(self.phases.phase)].load else { return };
        let own = self.job.shard.count(u64::from(*connections)).max(1) as u32;
        let streams = open_streams(self.job.plan, own) as usize;
        self.users.wanted = (streams / self.users.per_user as usize).max(1).min(self.users.presence.len()) as u32;
        for user in (0..self.users.wanted).rev() {
            if self.users.presence[user as usize] == Presence::Away {
                self.pool(user);
            }
        }
    }

    pub(super) fn pool(&mut self, user: u32) {
        self.users.presence[user as usize] = Presence::Away;
        let connections = &self.transport.connections;
        let of_slot = |slot: Slot| Some(&connections[slot]).filter(|c| c.has_room());
        let connected = match &self.transport.shared.own {
            Some(own) => own.of(user).iter().find_map(|slot| of_slot(*slot)),
            None => of_slot(self.place_of(self.users.stream(user, 0)).slot),
        };
        match connected {
            Some(c) => self.waiting.idle[c.endpoint as usize].push(user),
            None => self.waiting.closed.push(user),
        }
    }

    /// Sends a user away and closes its connections.
    pub(super) fn send_away(&mut self, user: u32) {
        self.users.presence[user as usize] = Presence::Away;
        // Queued users take the connections over.
        if !self.waiting.line_stands() {
            self.close_idle_of(user);
        }
    }

    /// Closes a user's connections that have nothing in flight.
    pub(super) fn close_idle_of(&mut self, user: u32) {
        if let Some(own) = &self.transport.shared.own {
            for slot in own.of(user).to_vec() {
                self.transport.close_unused(slot);
            }
            return;
        }
        for stream in self.users.streams(user) {
            let slot = self.place_of(stream).slot;
            if self.transport.connections[slot].state == State::Idle {
                self.transport.close(slot);
            }
        }
    }

    pub(super) fn pause(&mut self, user: u32, until: Micros) {
        self.users.presence[user as usize] = Presence::Pausing;
        self.timers.alarms.push(Reverse((until, Alarm::User(user))));
    }

    /// Ends a user's pause; `due` is when it was to end.
    pub(super) fn wake(&mut self, user: u32, due: Micros, now: Micros) {
        if self.users.presence[user as usize] != Presence::Pausing {
            return;
        }
        if self.users.in_session(user) && self.phases.may_follow(now) {
            self.next_step(user, due, now);
        } else if self.phases.over {
            self.send_away(user);
        } else {
            match self.phases.source {
                Source::Closed { .. } => self.begin_unit(user, due, now),
                Source::Open => self.free(user, now),
            }
        }
    }

    /// Frees a user who has nothing left to do.
    pub(super) fn free(&mut self, user: u32, now: Micros) {
        if self.phases.over {
            return self.send_away(user);
        }
        match self.phases.source {
            Source::Closed { .. } => self.begin_unit(user, now, now),
            Source::Open if user >= self.users.wanted => self.send_away(user),
            Source::Open => {
                self.pool(user);
                if self.waiting.exhausted {
                    self.waiting.freed_at = now;
                    self.waiting.exhausted = false;
                }
                self.dispatch(now);
            }
        }
    }
}
