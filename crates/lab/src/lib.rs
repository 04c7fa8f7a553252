//! Turns a plan into a run: load, samples, storage and validity.
//!
//! Nothing here prints: events go to [`Observer`]s.

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
