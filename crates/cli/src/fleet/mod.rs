//! Where the load of a fleet meets its transport: neither knows the other.

mod engine;
mod late;
mod link;

pub use engine::LoadEngine;
pub use late::catch_up;
pub use link::OverNats;
