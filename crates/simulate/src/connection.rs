//! One simulated connection: the state of its socket, and its history.

use std::collections::VecDeque;

use lastdrop_load::world::{PEER_CLOSED, READABLE, WRITABLE};
use lastdrop_model::Micros;

use crate::peer::Peer;

/// The shard's end of a connection, and its peer.
#[derive(Debug)]
pub struct SimulatedConnection {
    pub connected: bool,
    pub refused: Option<i32>,
    pub inbox: VecDeque<u8>,
    pub ended: bool,
    pub reset: bool,
    /// The error of a reset has been reported.
    pub reset_told: bool,
    pub space: usize,
    /// The last send was partial, and no send since reported a full buffer.
    pub left_over: bool,
    pub token: Option<u64>,
    pub listed: bool,
    pub closed: bool,
    pub last_arrival: Micros,
    /// All tokens under which it was watched.
    pub tokens: Vec<u64>,
    /// Bytes that the shard has sent.
    pub accepted: u64,
    /// The sizes of the shard's writes, with their times.
    pub sent: Vec<(usize, Micros)>,
    /// Bytes that the shard had received in total, with the times.
    pub received: Vec<(u64, Micros)>,
    /// Bytes that had arrived in total, with the times.
    pub arrived: Vec<(u64, Micros)>,
    /// When the shard was told of the end.
    pub end_told: Option<Micros>,
    pub peer: Peer,
}

impl SimulatedConnection {
    #[must_use]
    pub fn new(peer: Peer, space: usize, now: Micros) -> SimulatedConnection {
        SimulatedConnection {
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

    /// Whether the shard could read something without another edge.
    pub fn lies_unread(&self) -> bool {
        !self.closed && self.token.is_some() && !self.listed && self.connected && !self.inbox.is_empty()
    }

    /// Whether the rest of the last send would fit without another edge.
    pub fn lies_unsent(&self) -> bool {
        !self.closed && self.left_over && self.space > 0 && !self.listed && !self.ended && !self.reset
    }
}
