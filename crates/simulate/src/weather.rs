//! How one simulated world is: what calls cost, whether the machine stands still now and then, how much sockets take, and
//! how its servers behave.

use std::sync::Arc;

use lastdrop_model::Micros;
use rustls::ServerConfig;

use crate::dice::Dice;

/// How often servers do what, in a thousand connections or answers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Habits {
    /// Connections: refused by the call itself, refused later, never made, made at once.
    pub refuse_at_once: u64,
    pub refuse: u64,
    pub never: u64,
    pub at_once: u64,
    /// Speak before they are asked.
    pub greet: u64,
    /// Answers: late, in pieces, in single bytes, half (and then silence, an end or a reset), none of it, twice, after an
    /// interim answer, no HTTP at all, before the whole request is there.
    pub late: u64,
    pub pieces: u64,
    pub single_bytes: u64,
    pub half: u64,
    pub silent: u64,
    pub twice: u64,
    pub interim: u64,
    pub garbage: u64,
    pub early: u64,
    /// After an answer: closed with it, closed or reset some time later.
    pub close: u64,
    pub close_later: u64,
    pub error: u64,
    pub cookie: u64,
    pub redirect: u64,
    /// The longest answer and the longest time to one.
    pub body_bytes: u64,
    pub latency_us: Micros,
}

/// What the plan wants of its servers.
#[derive(Debug, Clone, Default)]
pub struct Wants {
    pub digest: bool,
    /// Requests are HEAD.
    pub head: bool,
    pub page: bool,
    pub redirects: bool,
    /// Bodies differ from server to server, for `checksum=same`.
    pub bodies_differ: bool,
    /// Ports that the plan knows.
    pub ports: Vec<u16>,
}

#[derive(Debug, Clone)]
pub struct Weather {
    /// Most that a call takes.
    pub cost_us: Micros,
    /// The whole thread stands still: so often in a thousand waits, for so long at most.
    pub stands_still: u64,
    pub stands_still_us: Micros,
    /// Room in sending buffers at most; whoever is slow in emptying them, and how many of a thousand never do.
    pub space: usize,
    pub drain_us: Micros,
    pub never_drain: u64,
    /// Sockets that there may be at once, and attempts in a thousand for which there is none.
    pub descriptors: u64,
    pub no_socket: u64,
    pub no_watch: u64,
    /// The plan bounds its bandwidth: bytes may lie.
    pub reads_slowly: bool,
    pub habits: Habits,
    pub wants: Arc<Wants>,
    pub tls: Option<Arc<ServerConfig>>,
    /// Of the shard that it is about.
    pub thread: usize,
}

impl Weather {
    /// Does time pass in waits alone? Then every time that the shard tells can be foretold.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.cost_us == 0 && self.stands_still == 0
    }

    /// Is there always a socket to be had?
    #[must_use]
    pub fn has_sockets(&self) -> bool {
        self.no_socket == 0 && self.descriptors == u64::MAX
    }

    pub fn cost(&self, dice: &mut Dice) -> Micros {
        if self.cost_us == 0 { 0 } else { dice.below(self.cost_us + 1) }
    }

    /// How long the thread is kept from running before a wait.
    pub fn delay(&self, dice: &mut Dice) -> Micros {
        let still = self.stands_still > 0 && dice.in_thousand(self.stands_still);
        self.cost(dice) + if still { dice.around(100, self.stands_still_us) } else { 0 }
    }

    pub fn send_space(&self, dice: &mut Dice) -> usize {
        if self.space == usize::MAX { 1 << 20 } else { dice.around(1, self.space as u64) as usize }
    }

    /// None: never.
    pub fn drain_after(&self, dice: &mut Dice) -> Option<Micros> {
        let never = self.never_drain > 0 && dice.in_thousand(self.never_drain);
        (!never).then(|| dice.around(1, self.drain_us))
    }

    pub fn no_socket(&self, open: u64, dice: &mut Dice) -> bool {
        open >= self.descriptors || self.no_socket > 0 && dice.in_thousand(self.no_socket)
    }

    pub fn no_watch(&self, dice: &mut Dice) -> bool {
        self.no_watch > 0 && dice.in_thousand(self.no_watch)
    }
}
