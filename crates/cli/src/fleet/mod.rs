//! Where the load of a fleet meets its transport, and servers of other machines whoever asks of them: neither knows the other.

mod engine;
mod examined;
mod late;
mod link;
mod questions;
mod reach;
mod respond;
mod site;

pub use engine::LoadEngine;
pub use late::catch_up;
pub use link::OverNats;
pub use reach::{Reach, on_agents, reach};
pub use respond::Servers;
