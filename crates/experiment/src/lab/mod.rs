//! Turns a plan into a run: load, samples, storage and validity.
//!
//! Nothing here prints: events go to [`Observer`]s.

mod carrier;
pub mod clock;
pub mod fleet;
mod live_run;
pub mod observers;
mod others;
mod readings;
mod run_sampler;
pub mod runs;
mod server_log;
pub mod warm;

pub use carrier::{Carrier, CarrierResult, CarrierTask};
pub use clock::{Clock, RealClock};
pub use observers::Observer;
pub(crate) use others::LoadTarget;
pub use others::SharedChain;
pub use run_sampler::SampledServer;
pub use runs::{Lab, LabError};
