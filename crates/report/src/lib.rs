//! Pure rendering: runs, findings and trials in, text and JSON out.

pub mod run;
pub mod size;
pub mod sweep;
pub mod table;
pub mod tune;

pub use run::{history_line, run_text};
pub use size::size_text;
pub use sweep::{sweep_csv, sweep_text};
pub use tune::tune_text;
