//! A web server of exactly known behaviour, for the demo and the tests.
//!
//! It is built like a prefork server, with real forked processes, so that memory, recycling, scoreboard and reloads
//! are the real thing and a tuner can be judged on it: a pool of workers on one listener, each serving one connection
//! at a time and held by a kept-alive one. What it does to which request is planned, and it counts everything.
//!
//! SIGHUP reads the settings again and replaces the workers gracefully; SIGUSR2 does the same and opens the listener
//! anew (the backlog needs that); SIGTERM and SIGINT end it. When the master is killed its workers leave by
//! themselves: each holds a pipe whose other end only the master has.

mod config;
mod master;
mod shared;
mod worker;

pub use config::{Config, ConfigError, Layers, Service, Slowdown, usl_best};
pub use master::{MasterError, run};
pub use shared::{CountersView, STATUS_PATH};
