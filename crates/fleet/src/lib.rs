//! Many machines as one: the transport of a fleet, over NATS with JetStream.
//!
//! A **broker** (`Broker`: nats-server as a child) is what everybody dials. An **agent** (`agent::run`) is a machine that can put
//! load on; it takes orders that are signed, and hands each record of what it did (a second, say) to a journal on its disk
//! first and to the broker then. A **coordinator** (`Fleet`) chooses agents, gives each its order, and has the records of all
//! as one stream (`Flight`), each acknowledged only when the caller says that it has committed it.
//!
//! The same holder of the token asks agents questions, in conversations (`Conversation`): about their servers, while they are at a run or not.
//! Whoever answers is a `Respond`.
//!
//! What an order or a question asks for and what a record or an answer holds is nobody's business here: both are bytes. So this crate knows nothing of
//! load; whoever puts it on is an `Engine`.
//!
//! ```text
//!  coordinator                         broker (JetStream)                       agent
//!  Fleet::start ── order, signed ──────────────────────────────────────────▶ Engine::prepare, Engine::run
//!                                                                              Sink::record
//!                                                                              ├ journal, fsync
//!  Flight::next ◀── durable consumer ── stream of records ◀── published again ─┘ until acknowledged
//!  caller commits, Flight::commit ──▶ acknowledged, gone from the stream
//! ```
//!
//! A record is known by `RecordId`: run, agent, epoch, sequence. An epoch is one life of an agent's process; an agent that was
//! killed does not take up a run again, but what its journal holds is published in its next life. However often a record is
//! delivered, the caller has it once.
//!
//! Everything is synchronous to callers. The client of NATS runs on tokio in one thread of its own (`link`).

mod agent;
mod asking;
mod broker;
mod coordinator;
mod crew;
mod engine;
mod files;
mod flight;
mod intake;
mod journal;
mod link;
mod messages;
pub mod order;
mod outbox;
mod parts;
mod roster;
mod streams;
mod subjects;
mod tokens;

pub use agent::{
    AgentError, AgentOptions, Answers, EntryError, HomeError, Mute, Over, Respond, SILENCE, Tell, Told,
    run as run_agent,
};
pub use asking::{AskError, Conversation};
pub use broker::{Broker, BrokerError, BrokerNews, BrokerOptions, authorization_of};
pub use coordinator::{Deliveries, Departure, Fleet, FleetError, Waiting};
pub use engine::{Engine, EngineError, File, Files, Job, Limits, Sink, SinkError, Start, Stop};
pub use flight::{Arrived, End, Flight, News, RecordId, Status};
pub use link::LinkError;
pub use roster::{Agent, Assignment, ChooseError, Chosen, Refusals, choose};
pub use subjects::{is_agent_name, is_name};
pub use tokens::{AgentToken, Digest, SigningKey, Token, TokenError, hex, sha256};
