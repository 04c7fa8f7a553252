//! Proposes the next settings, learns from trials, and decides when to stop. Pure: it never acts.

mod expected;
mod finals;
pub mod frontier;
mod gaussian;
pub mod race;
mod regression;
pub mod rivals;
pub mod space;
mod strategy;

pub use expected::{Effect, ExpectedImprovement};
pub use finals::{Finals, trials_of_finals};
pub use race::{Decision, Race, RaceVerdict};
pub use regression::RegressionDetector;
pub use space::{Limit, Parameter, Point, Space};
pub use strategy::{History, Strategy};
