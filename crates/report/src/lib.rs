//! Pure rendering: runs, findings and trials in, text and JSON out.

pub mod run;
pub mod table;

pub use run::{history_line, run_text};
