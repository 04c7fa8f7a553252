//! Experiments that separate causes: what a server does for one user, a few, many and too many, with keep-alive and
//! without, and what its processes and those behind it are at meanwhile. Makes the evidence; `diagnose` says what it shows.

mod behind;
mod beside;
mod confirm;
mod examine;
mod growth;
mod inside;
mod propose;
mod settings;

pub use confirm::confirm;
pub use examine::{Manner, Order, examine, look_again};
pub use propose::proposals;
