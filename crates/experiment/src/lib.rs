//! Composes load, probes, servers and judgements into experiments: runs, trials, sweeps, searches and races.
//!
//! Nothing here prints: what happens is told to a [`Narrator`], and results are documents.

pub mod lab;

pub use lab::{Lab, LabError, Narrator, Progress};
