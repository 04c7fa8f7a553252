//! How one simulated world misbehaves: the cost of calls, suspensions of the machine, the capacity of sockets, and the
//! behaviour of its servers.

use std::sync::Arc;

use lastdrop_model::Micros;
use rustls::ServerConfig;

use crate::rng::Rng;

/// How often servers do something, per thousand connections or answers.
#[derive(Debug, Clone, Copy, Default)]
pub struct FaultRates {
    /// Connections: refused by the call itself, refused later, never made, made at once.
    pub refuse_at_once: u64,
    pub refuse: u64,
    pub never: u64,
    pub at_once: u64,
    /// The server sends before the first request.
    pub greet: u64,
    /// Answers: late, in pieces, in single bytes, half (then silence, an end or a reset), missing, sent twice, after an
    /// interim answer, not HTTP, or before the whole request has arrived.
    pub late: u64,
    pub pieces: u64,
    pub single_bytes: u64,
    pub half: u64,
    pub silent: u64,
    pub twice: u64,
    pub interim: u64,
    pub garbage: u64,
    pub early: u64,
    /// After an answer: closed with it, or closed or reset some time later.
    pub close: u64,
    pub close_later: u64,
    pub error: u64,
    pub cookie: u64,
    pub redirect: u64,
    /// The longest answer and the longest latency.
    pub body_bytes: u64,
    pub latency_us: Micros,
}

/// How often servers of HTTP/2 do something, per thousand requests or, for settings, connections.
#[derive(Debug, Clone, Copy, Default)]
pub struct StreamRates {
    /// Requests: refused, reset, never answered, answered before they are complete.
    pub refuse: u64,
    pub reset: u64,
    pub silent: u64,
    pub early: u64,
    /// Answers: after an interim one or with trailers, cut into many frames, too short.
    pub interim: u64,
    pub pieces: u64,
    pub malformed: u64,
    /// Connections: ended by GOAWAY or without, in the middle of a frame, or because of a broken rule; frames that
    /// bring nothing.
    pub goaway: u64,
    pub leave: u64,
    pub half: u64,
    pub broken: u64,
    pub chatter: u64,
    /// Settings: some time after the first request, and others later.
    pub late_settings: u64,
    pub new_settings: u64,
    pub body_bytes: u64,
    pub latency_us: Micros,
}

/// The features that the plan needs from its servers.
#[derive(Debug, Clone, Default)]
pub struct PlanNeeds {
    pub digest: bool,
    /// Requests are HEAD.
    pub head: bool,
    pub page: bool,
    pub redirects: bool,
    /// Bodies differ between servers, for `checksum=same`.
    pub bodies_differ: bool,
    /// Ports that the plan uses.
    pub ports: Vec<u16>,
}

#[derive(Debug, Clone)]
pub struct FaultModel {
    /// Most that a call takes.
    pub cost_us: Micros,
    /// Suspensions of the whole thread: how many per thousand waits, and their longest duration.
    pub stands_still: u64,
    pub stands_still_us: Micros,
    /// Largest send buffer; how long the peer takes to empty it, and how many per thousand never do.
    pub space: usize,
    pub drain_us: Micros,
    pub never_drain: u64,
    /// Most sockets at once, and how many per thousand attempts fail for lack of one.
    pub descriptors: u64,
    pub no_socket: u64,
    pub no_watch: u64,
    /// The plan limits its bandwidth: bytes may stay unread.
    pub reads_slowly: bool,
    pub rates: FaultRates,
    pub wants: Arc<PlanNeeds>,
    /// Servers speak HTTP/2.
    pub streams: Option<StreamRates>,
    pub tls: Option<Arc<ServerConfig>>,
    /// TLS of a few connections that agree on another version of HTTP.
    pub other_tls: Option<Arc<ServerConfig>>,
    /// Index of the shard.
    pub thread: usize,
}

impl FaultModel {
    /// Whether time passes only in waits. Then every time that the shard reports can be predicted.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.cost_us == 0 && self.stands_still == 0
    }

    /// Whether a socket is always available.
    #[must_use]
    pub fn has_sockets(&self) -> bool {
        self.no_socket == 0 && self.descriptors == u64::MAX
    }

    pub fn cost(&self, rng: &mut Rng) -> Micros {
        if self.cost_us == 0 { 0 } else { rng.below(self.cost_us + 1) }
    }

    /// How long the thread is suspended before a wait.
    pub fn delay(&self, rng: &mut Rng) -> Micros {
        let still = self.stands_still > 0 && rng.in_thousand(self.stands_still);
        self.cost(rng) + if still { rng.around(100, self.stands_still_us) } else { 0 }
    }

    pub fn send_space(&self, rng: &mut Rng) -> usize {
        if self.space == usize::MAX { 1 << 20 } else { rng.around(1, self.space as u64) as usize }
    }

    /// `None` means never.
    pub fn drain_after(&self, rng: &mut Rng) -> Option<Micros> {
        let never = self.never_drain > 0 && rng.in_thousand(self.never_drain);
        (!never).then(|| rng.around(1, self.drain_us))
    }

    pub fn no_socket(&self, open: u64, rng: &mut Rng) -> bool {
        open >= self.descriptors || self.no_socket > 0 && rng.in_thousand(self.no_socket)
    }

    pub fn no_watch(&self, rng: &mut Rng) -> bool {
        self.no_watch > 0 && rng.in_thousand(self.no_watch)
    }
}
