//! One run on many machines.
//!
//! ```text
//! coordinator                                                     agent
//! Fleet (a Carrier of the lab) ── PartOrder: plan, share ───────▶ Part: prepared, checked, within the agent's limits
//!                                                                 Lab::run of its share, from the common instant on
//! store ◀─ Account ◀── Record: second, end of a phase, end ────── Teller (an observer)
//!            └ Merge: seconds of all agents ─▶ events as of one machine
//! ```
//!
//! How orders and records travel is a [`Link`]'s business; `lastdrop` has one over NATS.

mod account;
mod again;
mod coordinator;
mod order;
mod part;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lastdrop_load::tape_file::{Dealt, TapeFile};
use lastdrop_model::Plan;
use lastdrop_model::plan::Pace;
use lastdrop_probe::listeners::is_local;

pub use account::Account;
pub(crate) use again::of_fleet;
pub use again::put_together;
pub use coordinator::Fleet;
pub use order::{PartOrder, check, files_of};
pub use part::{Terms, carry_out, prepare};

/// An agent that takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    /// Its part is this one's part of all weights.
    pub weight: u32,
    /// Its clock minus the coordinator's, microseconds, and how far off that may be.
    pub offset_us: i64,
    pub error_us: u64,
    /// Where its connections come from, as far as that is known.
    pub address: Option<IpAddr>,
}

impl Member {
    /// Is it on this machine?
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.address.is_some_and(|address| is_local(&SocketAddr::new(address, 0)))
    }
}

/// What an agent is given to do.
#[derive(Debug, Clone)]
pub struct Order {
    /// Index of the agent among the members.
    pub member: usize,
    /// A [`PartOrder`].
    pub payload: Vec<u8>,
    /// Files of the plan, by the names that the order has for them.
    pub files: Vec<(String, Arc<[u8]>)>,
}

/// What is heard of agents.
#[derive(Debug)]
pub enum Told {
    /// A record. It may come twice, and before the one in front of it.
    Record { member: usize, epoch: u64, seq: u64, bytes: Vec<u8> },
    /// An agent's last word: how many records it made, and why it did not do all that it should.
    Ended { member: usize, epoch: u64, records: u64, error: Option<String> },
    /// Nothing was heard of it for as long as was to be waited.
    Lost { member: usize },
    /// It is heard of again.
    Back { member: usize },
}

/// The way to agents and back.
pub trait Link {
    /// Who takes part.
    fn members(&self) -> &[Member];

    /// Gives each its order; all begin at one instant, which comes back by this machine's clock. `patience`: of whom nothing is heard for
    /// so long is lost.
    ///
    /// # Errors
    /// When somebody refuses or cannot be reached; then nobody begins.
    fn start(&mut self, run: &str, orders: Vec<Order>, patience: Duration) -> Result<Instant, String>;

    /// What is heard next; None: nothing within that time.
    ///
    /// # Errors
    /// When nothing can be heard any more.
    fn next(&mut self, within: Duration) -> Result<Option<Told>, String>;

    /// What was told last is kept: it needs not be told again.
    fn kept(&mut self);

    /// Asks all for an orderly end; what they have to tell goes on to come.
    fn stop(&mut self, why: &str);

    /// The run is over for us; what comes from now on waits somewhere.
    fn leave(&mut self);
}

/// The tape that a plan plays, if it does; `read` gives the content of a file of the plan.
fn tape(plan: &Plan, read: impl FnOnce(&Path) -> io::Result<Vec<u8>>) -> Result<Option<TapeFile>, String> {
    let Some(replay) = &plan.replay else { return Ok(None) };
    let path = replay.tape.as_deref().ok_or("the requests of the log did not come along")?;
    let bytes = read(path).map_err(|e| format!("the requests of the log cannot be read: {e}"))?;
    let dealt = match replay.pace {
        Pace::Sessions { .. } => Dealt::BySession,
        Pace::Original { .. } | Pace::Rate => Dealt::ByPlace,
    };
    TapeFile::new(bytes, plan.requests.len(), dealt).map(Some)
}
