//! Where a plan becomes a run: load, looks beside it, what is kept of it, and what it is worth.
//!
//! Nothing here prints: what happens is told to [`Observer`]s.

mod beside;
mod carrier;
pub mod fleet;
pub mod lab;
pub mod observers;
mod others;
mod server_log;
pub mod warm;

pub use beside::Afar;
pub use carrier::{Carried, CarriedRun, Carrier};
pub use lab::{Lab, LabError};
pub use observers::Observer;
pub use others::KnownChain;
