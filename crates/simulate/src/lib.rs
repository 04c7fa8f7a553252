//! Runs the load engine in a simulated world. A seed determines a plan, the servers and every event; after the run its
//! invariants are checked.
//!
//! The engine is the real one, compiled for another [`World`](lastdrop_load::world::World). `kernel` is its clock and
//! its sockets (a `connection` each), `peer` the servers (through `layer`, plain or TLS), `streams` their HTTP/2. `faults` describes how such a
//! world misbehaves, `plan` generates plans, `run` lets the shards of one run take turns, and `check` has the
//! invariants. The same seed gives the same run, byte for byte.
//!
//! `experiments` has the second world: stacks of servers (`world`) with a known truth, on which experiments run.

pub mod check;
pub mod connection;
#[cfg(feature = "experiments")]
pub mod experiments;
pub mod faults;
pub mod kernel;
pub mod layer;
pub mod peer;
pub mod plan;
pub mod rng;
pub mod run;
pub mod streams;
pub mod trace;
pub mod world;

pub use run::{Report, run};
