//! Users come and go, pause and are free.

use std::cmp::Reverse;

use lastdrop_model::Micros;
use lastdrop_model::plan::Load;

use super::{Alarm, EventLoop};
use crate::phases::Source;
use crate::transport::State;
use crate::users::{Presence, spread_start};
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Closed loop: as many users as the phase wants at this time. Those who begin together with thousands of others do so
    /// over the first second, and never more in a turn than leave time for a look at what has come.
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

    /// Does the number of users still change?
    pub(super) fn users_change(&self) -> bool {
        let Source::Closed { from, to } = self.phases.source else { return false };
        self.users.more_to_begin || self.users.spreading || (from - to).abs() > f64::EPSILON
    }

    /// Open loop: everybody who is free waits for arrivals.
    pub(super) fn pool_users(&mut self) {
        self.waiting.idle.iter_mut().for_each(Vec::clear);
        self.waiting.closed.clear();
        // In an earlier phase more users may have been there than this one has connections.
        let Load::Open { connections, .. } = &self.job.plan.phases[usize::from(self.phases.phase)].load else { return };
        let own = self.job.shard.count(u64::from(*connections)).max(1) as usize;
        self.users.wanted = (own / self.users.per_user as usize).max(1).min(self.users.presence.len()) as u32;
        for user in (0..self.users.wanted).rev() {
            if self.users.presence[user as usize] == Presence::Away {
                self.pool(user);
            }
        }
    }

    pub(super) fn pool(&mut self, user: u32) {
        self.users.presence[user as usize] = Presence::Away;
        let c = &self.transport.connections[self.place_of(self.users.stream(user, 0)).slot];
        if c.has_room() {
            self.waiting.idle[c.endpoint as usize].push(user);
        } else {
            self.waiting.closed.push(user);
        }
    }

    /// A user leaves, and its connections with it.
    pub(super) fn send_away(&mut self, user: u32) {
        self.users.presence[user as usize] = Presence::Away;
        // Whoever waits in line takes them over.
        if !self.waiting.line_stands() {
            self.close_idle_of(user);
        }
    }

    /// Closes those of a user's connections on which nothing is in flight.
    pub(super) fn close_idle_of(&mut self, user: u32) {
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

    /// A user's pause is over; `due` is when it was to end.
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

    /// A user has nothing to do any more.
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
