//! Turns a plan into a run: load, samples, storage and validity.
//!
//! Nothing here prints: events go to [`Observer`]s.

mod carrier;
pub mod fleet;
pub mod lab;
pub mod observers;
mod others;
mod run_sampler;
mod server_log;
pub mod warm;

pub use carrier::{Carrier, CarrierResult, CarrierTask};
pub use lab::{Lab, LabError};
pub use observers::Observer;
pub use others::SharedChain;
pub use run_sampler::RemoteSampler;
