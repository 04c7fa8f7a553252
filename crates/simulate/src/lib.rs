//! The load engine in a simulated world: a seed makes a plan, the servers that it meets and everything that happens, and
//! after the run all that must be true of it is looked at.
//!
//! The engine is the real one, compiled for another [`World`](lastdrop_load::world::World): `kernel` is its clock and its
//! sockets, `peer` the servers (through `layer`, plain or TLS), `weather` how such a world is, `plan` makes up plans, `run` has the
//! shards of one run take turns, and `check` says what must be true. The same seed gives the same run, byte for byte.

pub mod check;
pub mod dice;
pub mod kernel;
pub mod layer;
pub mod peer;
pub mod plan;
pub mod run;
pub mod trace;
pub mod weather;

pub use run::{Report, run};
