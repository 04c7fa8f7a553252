//! Pure judgements: runs and measurements in, verdicts with their evidence out. No I/O, no clock.

pub mod pool;
pub mod ratio;
pub mod validity;
