//! A fleet of machines that act as one load generator: the transport, over NATS with JetStream.
//!
//! All parties connect to a **broker** (`Broker`: nats-server as a child process). An **agent**
//! (`agent::run`) is a machine that can generate load. It takes signed orders, and writes each record of its
//! work (a second, say) first to a journal on its disk and then to the broker. A **coordinator** (`Fleet`)
//! chooses agents and gives each its order. It receives all records as one stream (`RemoteRun`), and
//! acknowledges each only when the caller has committed it.
//!
//! The holder of the token can also ask agents questions about their servers, in conversations
//! (`Conversation`), with or without a run. A `Responder` answers them.
//!
//! Orders, questions, records and answers are opaque bytes here. So this crate knows nothing about load; the
//! load generator implements `Engine`.
//!
//! ```text
//!  coordinator                         broker (JetStream)                       agent
//!  Fleet::start ── order, signed ──────────────────────────────────────────▶ Engine::prepare, Engine::run
//!                                                                              Sink::record
//!                                                                              ├ journal, fsync
//!  RemoteRun::next ◀─ durable consumer ─ stream of records ◀─ published again ─┘ until acknowledged
//!  caller commits, RemoteRun::commit ──▶ acknowledged, gone from the stream
//! ```
//!
//! A `RecordId` identifies a record: run, agent, epoch, sequence. An epoch is one life of an agent's process.
//! A killed agent does not continue its run, but its next epoch publishes what its journal holds. The caller
//! gets each record once, however often it is delivered.
//!
//! All functions are synchronous for callers. The NATS client runs on tokio in its own thread (`link`).

mod agent;
mod asking;
mod broker;
mod coordinator;
mod engine;
mod files;
mod intake;
mod journal;
mod link;
mod messages;
pub mod order;
mod outbox;
mod participants;
mod reassembly;
mod remote_run;
mod roster;
mod streams;
mod subjects;
mod tokens;

pub use agent::{
    AgentError, AgentOptions, AgentStatus, Answerer, ConversationEnd, HomeError, JoinError, MuteResponder, Responder,
    StatusListener, run as run_agent,
};
pub use asking::{AskError, Conversation};
pub use broker::{Broker, BrokerError, BrokerEvent, BrokerOptions, authorization_of};
pub use coordinator::{DeliveryMode, Fleet, FleetError, StartOptions, UncommittedRun};
pub use engine::{Engine, EngineError, File, Files, Job, Limits, Sink, SinkError, Start, Stop};
pub use link::LinkError;
pub use remote_run::{ArrivedRecord, EpochEnd, FleetNotice, RecordId, RemoteRun, RemoteRunEvent};
pub use roster::{Agent, Assignment, ChooseError, ChosenAgent, Refusals, choose};
pub use subjects::{is_agent_name, is_name};
pub use tokens::{AgentToken, Digest, SigningKey, Token, TokenError, hex, sha256};
