//! A run under way on several agents: its records as one stream, who has ended, who is lost.
//!
//! ```text
//! let fleet = Fleet::connect(url, token)?;
//! let chosen = choose(&fleet.agents()?, "all")?;
//! let mut flight = fleet.start(run, assignments, &Departure::default())?;   // or fleet.resume(run, names, &have)
//! while let Some(news) = flight.next(Duration::from_secs(1))? {              // None: nothing within that time
//!     match news {
//!         News::Arrived(arrived) => { commit(&arrived); flight.commit(&arrived); }   // once for each record
//!         News::Ended(end) => { commit(&end); flight.commit_end(&end); }             // once for each agent and epoch
//!         News::Lost { agent, since } => …     // silent; records of it may still come, then News::Back
//!         News::Back { agent } => …
//!         News::Status(status) => …            // for people to read
//!     }
//!     if flight.is_over() { break }
//! }
//! flight.stop("…")          // asks all agents for an orderly end; records go on to arrive
//! fleet.waiting()           // runs of which records came after their flight was over: resume them, and amend
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One record of one agent: the same however often it is delivered. The key for `INSERT OR IGNORE`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordId {
    pub run: String,
    pub agent: String,
    /// The life of the agent's process in which it was made.
    pub epoch: u64,
    /// From 0 on, without gaps, within run, agent and epoch. `End` has the number after the last record.
    pub seq: u64,
}

/// What a flight has to tell.
#[derive(Debug)]
pub enum News {
    /// A record, for the first time. Records of one agent come in order of their numbers unless a part of one had to be sent
    /// again; those of several agents in any order.
    Arrived(Arrived),
    /// An agent's last word of an epoch: how many records it made, and whether it did all it should. It may come before some
    /// of those records do.
    Ended(End),
    /// Nothing was heard of an agent for `Departure::patience`. `since` is how long ago it was heard of last.
    Lost { agent: String, since: Duration },
    /// An agent that was lost is heard of again.
    Back { agent: String },
    /// The broker is away, back; an agent's disk is full; a message was refused: for people to read.
    Status(Status),
}

/// A record that is to be committed, and `Flight::commit`ted then. Whoever drops it has it again after a while, or when the run
/// is resumed.
#[derive(Debug)]
pub struct Arrived {
    pub id: RecordId,
    /// What the engine gave to `Sink::record`.
    pub bytes: Vec<u8>,
}

/// How an epoch of an agent ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub id: RecordId,
    /// How many records the agent made in this epoch: numbers 0 to `records` - 1.
    pub records: u64,
    /// None: the job was done. Otherwise why it was not: the engine's error, or that the agent was killed and started again.
    pub error: Option<String>,
}

/// Something that people want to know, with whom it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// No connection to the broker: nothing can be said of agents meanwhile, and none is called lost.
    BrokerAway,
    BrokerBack,
    /// What an agent says of itself: "the journal cannot be written: No space left on device".
    Trouble {
        agent: String,
        what: String,
    },
    /// Messages that were no records of this run, or not whole: how many so far, and what was wrong with the last.
    Refused {
        count: u64,
        last: String,
    },
}
