//! Where the load of a fleet meets its transport: neither knows the other.

mod engine;
mod link;

pub use engine::LoadEngine;
pub use link::OverNats;
