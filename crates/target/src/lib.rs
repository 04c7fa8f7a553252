//! A web server of exactly known behaviour, for the demo and the tests.
//!
//! It works like a prefork server, with real forked processes: memory, recycling, the scoreboard and reloads are real,
//! so a tuner can be judged on it. A pool of workers shares one listener. Each worker serves one connection at a time,
//! and a keep-alive connection occupies it. The configuration decides what happens to which request, and every outcome
//! is counted.
//!
//! SIGHUP reads the settings again and replaces the workers gracefully. SIGUSR2 also opens a new listener, which a new
//! backlog needs. SIGTERM and SIGINT end the server. If the master is killed, its workers end by themselves: each holds
//! a pipe whose other end only the master has.

mod config;
mod master;
mod shared;
mod worker;

pub use config::{Config, ConfigError, Layers, Service, Slowdown, usl_best};
pub use master::{MasterError, run};
pub use shared::{CountersView, STATUS_PATH};
