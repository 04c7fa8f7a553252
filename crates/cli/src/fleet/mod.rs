//! Connects the load engine with the transport of a fleet, and commands with servers on other machines. The two sides do not
//! know each other.

mod calls;
mod engine;
mod late;
mod link;
mod reach;
mod respond;
mod site;

pub use engine::LoadEngine;
pub use late::catch_up;
pub use link::NatsLink;
pub use reach::{FleetHosts, on_agents, reach};
pub use respond::AgentServers;
