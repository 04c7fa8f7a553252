//! Limits the bandwidth of a connection. Bytes sent or received take their time at the limited rate, and the next ones
//! wait until it is over. This holds however few bytes the socket took or gave at once.

use std::cmp::Reverse;

use lastdrop_model::Micros;

use super::{Alarm, EventLoop};
use crate::ids::Slot;
use crate::transport::Pace;
use crate::world::World;

/// Number of pieces per second into which a limited rate is split.
const PIECES_A_SECOND: u64 = 20;

impl<W: World> EventLoop<'_, W> {
    /// Most bytes to write or read at once.
    pub(super) fn piece(&self) -> usize {
        match self.job.plan.network.bandwidth_bytes {
            None => usize::MAX,
            Some(rate) => (rate / PIECES_A_SECOND).max(1) as usize,
        }
    }

    /// When the next bytes may follow this many; `None` without a limit.
    fn next_after(&self, bytes: usize) -> Option<Micros> {
        let rate = self.job.plan.network.bandwidth_bytes?;
        Some(self.now() + (bytes as u64 * 1_000_000).div_ceil(rate.max(1)))
    }

    /// Records that this many bytes were written.
    #[inline]
    pub(super) fn wrote(&mut self, slot: Slot, bytes: usize) {
        if let Some(next) = self.next_after(bytes) {
            self.transport.connections[slot].pace.get_or_insert_default().write_from = next;
        }
    }

    /// Records that this many bytes were read.
    #[inline]
    pub(super) fn has_read(&mut self, slot: Slot, bytes: usize) {
        if let Some(next) = self.next_after(bytes) {
            self.transport.connections[slot].pace.get_or_insert_default().read_from = next;
        }
    }

    /// Whether it is too early to write more. An alarm then brings the loop back.
    #[inline]
    pub(super) fn is_ahead(&mut self, slot: Slot) -> bool {
        self.is_too_early(slot, |pace| pace.write_from)
    }

    /// Whether it is too early to read more. An alarm then brings the loop back.
    #[inline]
    pub(super) fn is_quiet(&mut self, slot: Slot) -> bool {
        self.is_too_early(slot, |pace| pace.read_from)
    }

    #[inline]
    fn is_too_early(&mut self, slot: Slot, from: impl Fn(&Pace) -> Micros) -> bool {
        let c = &mut self.transport.connections[slot];
        let token = c.token(slot);
        // Without a limit the time is not read.
        let Some(pace) = &mut c.pace else { return false };
        let (from, now) = (from(pace), self.transport.world.now_us().saturating_sub(self.job.start));
        if from <= now {
            return false;
        }
        // One earlier alarm is enough: each alarm checks both directions, and would otherwise set two more.
        if pace.alarm_at <= now || pace.alarm_at > from {
            pace.alarm_at = from;
            self.timers.alarms.push(Reverse((from, Alarm::Transfer(token))));
        }
        true
    }
}
