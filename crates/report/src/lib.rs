//! Pure rendering: runs, findings and trials in, text and JSON out.

pub mod capacity;
mod classes;
pub mod compare;
pub mod database;
pub mod doctor;
pub mod events;
pub mod export;
pub mod html;
pub mod junit;
pub mod knobs;
mod parts;
pub mod profile;
pub mod run;
pub mod server;
pub mod size;
pub mod sweep;
pub mod table;
pub mod trace;
pub mod tune;
pub mod watch;
pub mod watch_stack;

pub use capacity::capacity_text;
pub use compare::compare_text;
pub use doctor::{doctor_list, doctor_text, explain_text, limit_line};
pub use events::event_line;
pub use html::{Shown, html_report};
pub use junit::junit;
pub use knobs::knobs_text;
pub use profile::{flame_graph, profile_text};
pub use run::{history_line, run_text, utc};
pub use server::{server_text, timeline_text};
pub use size::size_text;
pub use sweep::{sweep_csv, sweep_text};
pub use trace::{trace_compare_text, trace_text};
pub use tune::tune_text;
pub use watch_stack::{watched_line, watched_text};
