//! Commands that observe a server under other clients' load or a few requests of ours (watch, trace, profile, guard),
//! and its settings.

pub(crate) mod anatomy;
pub mod code;
pub mod databases;
pub mod guard;
pub mod knobs;
pub(crate) mod members;
pub mod memory;
mod memory_classes;
mod memory_functions;
pub mod profile;
pub mod requests;
pub mod trace;
pub mod visitors;
pub mod watch;
pub mod watch_stack;
