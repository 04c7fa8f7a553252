//! Experiments of several runs: trials, sweeps, searches and races, sizes, comparisons, capacities. Most of them change
//! the server for each run and restore it at the end. Results are documents.

pub mod capacity;
pub mod compare;
pub mod demo;
pub mod early_stop;
pub mod fit;
mod fit_model;
pub mod headroom;
mod rate;
pub mod size;
pub mod sweep;
pub mod sweep_plan;
pub mod trial;
pub mod tune;
pub mod workers;
