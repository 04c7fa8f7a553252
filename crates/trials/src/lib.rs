//! Questions that take several runs, most of them on a server that is changed for each and put back at the end: trials,
//! sweeps, searches and races, sizes, comparisons, capacities. Results are documents.

pub mod bar;
pub mod capacity;
pub mod compare;
pub mod demo;
pub mod fit;
mod fit_model;
mod rate;
pub mod size;
pub mod sweep;
pub mod sweep_plan;
pub mod trial;
pub mod tune;
pub mod workers;
