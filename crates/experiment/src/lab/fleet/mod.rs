//! Runs one plan on many machines.
//!
//! ```text
//! coordinator                                                     agent
//! Fleet (a Carrier of the lab) ── PartOrder: plan, share ───────▶ Part: prepared, checked, within the agent's limits
//!                                                                 Lab::run of its share, from the common instant on
//! store ◀─ RunAssembler ◀── Record: second, end of a phase, end ─ RecordReporter (an observer)
//!            └ EventMerger: seconds of all agents ─▶ events as of one machine
//! ```
//!
//! A [`Link`] transports orders and records; `lastdrop` has one over NATS.

mod assembler;
mod coordinator;
mod order;
mod part;
mod rebuild;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lastdrop_load::tape_file::{TapeFile, TapeSplit};
use lastdrop_model::Plan;
use lastdrop_model::plan::Pace;
use lastdrop_probe::listeners::is_local;

pub use assembler::RunAssembler;
pub use coordinator::Fleet;
pub use order::{PartOrder, check, files_of};
pub use part::{AgentTerms, carry_out, prepare};
pub(crate) use rebuild::of_fleet;
pub use rebuild::rebuild_run;

/// An agent that takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    /// Its share of the load is this weight divided by the sum of all weights.
    pub weight: u32,
    /// Its clock minus the coordinator's in microseconds, and the uncertainty of that.
    pub offset_us: i64,
    pub error_us: u64,
    /// Source address of its connections, if known.
    pub address: Option<IpAddr>,
}

impl Member {
    /// Returns true if it is on this machine.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.address.is_some_and(|address| is_local(&SocketAddr::new(address, 0)))
    }
}

/// What an agent is ordered to do.
#[derive(Debug, Clone)]
pub struct AgentOrder {
    /// Index of the agent among the members.
    pub member: usize,
    /// A serialized [`PartOrder`].
    pub payload: Vec<u8>,
    /// Files of the plan by their names in the order.
    pub files: Vec<(String, Arc<[u8]>)>,
}

/// A message from or about an agent.
#[derive(Debug)]
pub enum AgentEvent {
    /// A record. It may come twice, and before an earlier one.
    Record { member: usize, epoch: u64, seq: u64, bytes: Vec<u8> },
    /// An agent's end message: how many records it made, and why it did not complete its share.
    Ended { member: usize, epoch: u64, records: u64, error: Option<String> },
    /// Nothing was heard of it within `patience`.
    Lost { member: usize },
    /// It is heard of again.
    Back { member: usize },
}

/// The connection to the agents.
pub trait Link {
    /// Returns the agents that take part.
    fn members(&self) -> &[Member];

    /// Sends each agent its order. All begin at one instant, which is returned on this machine's clock. An agent that
    /// is silent for `patience` is lost.
    ///
    /// # Errors
    /// When an agent refuses or cannot be reached; then no agent begins.
    fn start(&mut self, run: &str, orders: Vec<AgentOrder>, patience: Duration) -> Result<Instant, String>;

    /// Returns the next message; None if there is none within that time.
    ///
    /// # Errors
    /// When no message can be received any more.
    fn next(&mut self, within: Duration) -> Result<Option<AgentEvent>, String>;

    /// The last message is stored and need not be sent again.
    fn kept(&mut self);

    /// Asks all agents to end in order; their remaining messages still come.
    fn stop(&mut self, why: &str);

    /// Leaves the run; messages that come from now on are kept elsewhere.
    fn leave(&mut self);
}

/// Returns the tape that a plan plays, if any; `read` returns the content of a file of the plan.
fn tape(plan: &Plan, read: impl FnOnce(&Path) -> io::Result<Vec<u8>>) -> Result<Option<TapeFile>, String> {
    let Some(replay) = &plan.replay else { return Ok(None) };
    let path = replay.tape.as_deref().ok_or("the requests of the log did not come along")?;
    let bytes = read(path).map_err(|e| format!("the requests of the log cannot be read: {e}"))?;
    let dealt = match replay.pace {
        Pace::Sessions { .. } => TapeSplit::BySession,
        Pace::Original { .. } | Pace::Rate => TapeSplit::ByPlace,
    };
    TapeFile::new(bytes, plan.requests.len(), dealt).map(Some)
}
