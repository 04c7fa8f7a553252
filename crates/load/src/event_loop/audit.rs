//! Checks the invariants of a shard between two turns: nothing is lost, and the counters match.

use std::cmp::Reverse;

use super::{Alarm, EventLoop};
use crate::phases::Source;
use crate::protocol::HttpState;
use crate::transport::State;
use crate::users::Presence;
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Looks for users, requests and connections that the loop has lost track of.
    ///
    /// # Errors
    /// The first violation found.
    pub fn audit(&self) -> Result<(), String> {
        self.audit_requests()?;
        self.audit_waiting()?;
        self.audit_users()?;
        self.audit_free_users()
    }

    pub(super) fn audit_requests(&self) -> Result<(), String> {
        let open = self.transport.connections.iter().filter(|(_, c)| c.socket.is_some()).count() as u64;
        if open != self.transport.open_sockets {
            return Err(format!("{open} sockets are open, {} are counted", self.transport.open_sockets));
        }
        let busy = self.transport.connections.iter().filter(|(_, c)| c.busy());
        let (mut requests, mut in_phases) = (0, vec![0u64; self.record.live.len()]);
        for (slot, c) in busy {
            for stream in c.wire.streams(slot) {
                requests += 1;
                in_phases[usize::from(self.streams[stream].phase)] += 1 + c.wire.behind().len() as u64;
            }
        }
        for (_, c) in self.transport.connections.iter() {
            let HttpState::Two(wire) = &c.wire else { continue };
            // They count as sent once the cork is opened.
            for corked in wire.corked.iter().filter(|corked| !corked.again) {
                in_phases[usize::from(self.streams[corked.stream].phase)] -= 1;
            }
            if wire.is_dirty {
                return Err("a connection has something to write, and the loop sleeps".into());
            }
        }
        for again in &self.waiting.refused {
            in_phases[usize::from(again.phase)] += 1;
        }
        if requests != self.streams.count() {
            return Err(format!("{requests} requests are on connections, {} have a timeout", self.streams.count()));
        }
        for (phase, live) in self.record.live.iter().enumerate() {
            let counted = live.as_ref().map_or(0, |l| l.in_flight);
            if counted != in_phases[phase] {
                return Err(format!(
                    "{} requests of phase {phase} are in flight, {counted} are counted",
                    in_phases[phase]
                ));
            }
        }
        Ok(())
    }

    /// Checks that whatever waits has something that will wake it.
    pub(super) fn audit_waiting(&self) -> Result<(), String> {
        for (slot, c) in self.transport.connections.iter() {
            let token = c.token(slot);
            let alarm = || self.timers.alarms.iter().any(|Reverse((_, a))| *a == Alarm::Continue(token));
            if c.state == State::Holding && !alarm() {
                return Err(format!("the request in slot {} waits for 100 Continue without an end", slot.0));
            }
        }
        if self.waiting.pool.is_exceeded(self.transport.open_sockets - self.transport.shared.retired)
            && self.transport.connections.iter().any(|(_, c)| c.state == State::Idle)
        {
            return Err(format!(
                "{} connections are more than this phase may have, and one is idle",
                self.transport.open_sockets
            ));
        }
        let next = self.waiting.stranded.front().map(|s| s.endpoint(&self.job.prepared.requests) as u32);
        let may_carry = |endpoint: u32| next.is_none_or(|next| next == endpoint);
        let idle = || {
            let mut all = self.transport.connections.iter();
            all.any(|(_, c)| c.has_room() && !c.peer_closed && (!c.wire.is_shared() || may_carry(c.endpoint)))
        };
        if self.waiting.line_stands()
            && self.phases.may_follow(self.now())
            && self.waiting.no_socket_until == 0
            && idle()
        {
            return Err("requests wait for a connection, and one is idle".into());
        }
        Ok(())
    }

    pub(super) fn audit_users(&self) -> Result<(), String> {
        for user in 0..self.users.presence.len() as u32 {
            let asks = self.users.streams(user).any(|stream| {
                let place = self.place_of(stream);
                let c = &self.transport.connections[place.slot];
                c.busy() && c.wire.carries(place.slot, stream)
            });
            let mut waiting = self.waiting.stranded.iter().chain(&self.waiting.refused);
            let waits = waiting.any(|s| s.user == user);
            let alarm = self.timers.alarms.iter().any(|Reverse((_, a))| *a == Alarm::User(user));
            let wrong = match self.users.presence[user as usize] {
                Presence::Busy if !asks && !waits => "is busy with nothing",
                Presence::Pausing if !alarm => "pauses without an end",
                Presence::Away | Presence::Pausing if asks => "asks and is not busy",
                _ => continue,
            };
            return Err(format!("user {user} {wrong}"));
        }
        Ok(())
    }

    /// Open loop: a free user is listed exactly once as waiting for arrivals.
    pub(super) fn audit_free_users(&self) -> Result<(), String> {
        let mut listed = vec![0; self.users.presence.len()];
        for user in self.waiting.idle.iter().flatten().chain(&self.waiting.closed) {
            listed[*user as usize] += 1;
        }
        for (user, times) in listed.iter().enumerate() {
            let is_free = self.users.presence[user] == Presence::Away && (user as u32) < self.users.wanted;
            let right = match self.phases.source {
                Source::Open if !self.phases.over => u32::from(is_free),
                _ => *times,
            };
            if *times != right {
                return Err(format!("user {user} is listed {times} times as free"));
            }
        }
        let waits = self.waiting.exhausted
            && self.waiting.idle.iter().map(Vec::len).sum::<usize>() + self.waiting.closed.len() > 0;
        if waits && !self.phases.over && matches!(self.phases.source, Source::Open) {
            return Err("arrivals wait, and somebody is free".into());
        }
        Ok(())
    }
}
