//! Composes load, probes, servers and judgements into experiments: runs, trials, sweeps, searches and races.
//!
//! Nothing here prints: what happens is told to a [`Narrator`], and results are documents.

mod beside;
pub mod capacity;
pub mod compare;
pub mod demo;
pub mod fit;
pub mod guard;
pub mod lab;
pub mod profile;
pub mod size;
pub mod sweep;
pub mod sweep_plan;
pub mod trace;
pub mod trial;
pub mod tune;
pub mod warm;
pub mod watch;

pub use lab::{Lab, LabError, Narrator, Progress};
