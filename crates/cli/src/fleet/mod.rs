//! Connects the load engine with the transport of a fleet, and commands with servers on other machines. The two sides do not
//! know each other.

mod agent_session;
mod calls;
mod engine;
mod late;
mod link;
mod machines;
mod respond;
mod site;

pub use engine::LoadEngine;
pub use late::catch_up;
pub use link::NatsLink;
pub use machines::{Machines, machines, on_agents};
pub use respond::AgentServers;
