//! Pure evaluation: runs and measurements in, verdicts with their evidence out. No I/O, no clock.

pub mod anatomy;
pub mod capacity;
pub mod class_growth;
pub mod code_stacks;
pub mod compare;
pub mod guard;
pub mod headroom;
pub mod inside;
pub mod memory_model;
pub mod nodes;
pub mod objective;
pub mod pool;
pub mod ratio;
pub mod request_cost;
pub mod samples;
pub mod series;
pub mod services;
pub mod stacks;
pub mod syscalls;
pub mod usl;
mod waiting;
pub mod workers;
