//! One simulated connection: what its socket can tell and give, and what happened on it.

use std::collections::VecDeque;

use lastdrop_load::world::{PEER_CLOSED, READABLE, WRITABLE};
use lastdrop_model::Micros;

use crate::peer::Peer;

/// The shard's end of a connection, and its peer.
#[derive(Debug)]
pub struct Line {
    pub connected: bool,
    pub refused: Option<i32>,
    pub inbox: VecDeque<u8>,
    pub ended: bool,
    pub reset: bool,
    /// The error of a reset has been told.
    pub reset_told: bool,
    pub space: usize,
    /// The last send left something over, and none since was told that there is no room.
    pub left_over: bool,
    pub token: Option<u64>,
    pub listed: bool,
    pub closed: bool,
    pub last_arrival: Micros,
    /// All tokens under which it was watched.
    pub tokens: Vec<u64>,
    /// Bytes sent and received by the shard, and when it had received how many.
    pub accepted: u64,
    /// How many bytes it took from the shard at once, and when.
    pub sent: Vec<(usize, Micros)>,
    pub received: Vec<(u64, Micros)>,
    /// When how many of them had come.
    pub arrived: Vec<(u64, Micros)>,
    /// When it was told that nothing more comes.
    pub end_told: Option<Micros>,
    pub peer: Peer,
}

impl Line {
    #[must_use]
    pub fn new(peer: Peer, space: usize, now: Micros) -> Line {
        Line {
            connected: false,
            refused: None,
            inbox: VecDeque::new(),
            ended: false,
            reset: false,
            reset_told: false,
            space,
            left_over: false,
            token: None,
            listed: false,
            closed: false,
            last_arrival: now,
            tokens: Vec::new(),
            accepted: 0,
            sent: Vec::new(),
            received: Vec::new(),
            arrived: Vec::new(),
            end_told: None,
            peer,
        }
    }

    pub fn mask(&self) -> u32 {
        let mut mask = 0;
        if self.refused.is_some() {
            return READABLE | WRITABLE | PEER_CLOSED;
        }
        if !self.inbox.is_empty() || self.ended || self.reset {
            mask |= READABLE;
        }
        if self.connected && self.space > 0 || self.reset {
            mask |= WRITABLE;
        }
        if self.ended || self.reset {
            mask |= PEER_CLOSED;
        }
        mask
    }

    /// Can the shard read something of which no edge will tell it any more?
    pub fn lies_unread(&self) -> bool {
        !self.closed && self.token.is_some() && !self.listed && self.connected && !self.inbox.is_empty()
    }

    /// Would the rest of what was sent last find room, of which no edge will tell?
    pub fn lies_unsent(&self) -> bool {
        !self.closed && self.left_over && self.space > 0 && !self.listed && !self.ended && !self.reset
    }
}
