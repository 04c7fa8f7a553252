//! Proposes the next settings, learns from trials, says when to stop. Pure: it never acts.

pub mod race;
pub mod search;

pub use race::{Decision, Race, RaceVerdict};
pub use search::{Axis, Search, Space};
