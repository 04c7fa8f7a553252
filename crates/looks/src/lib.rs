//! Looking at a server that somebody else loads, or a few requests of ours: watch, trace, profile, guard.

pub mod guard;
pub mod profile;
pub mod trace;
pub mod watch;
