//! Experiments that separate causes: what a server does for one user, a few, many and too many, with and without
//! keep-alive. Meanwhile its processes, and those of the servers behind it, are sampled. This crate collects the
//! evidence; `diagnose` says what it shows.

mod answers;
mod confirm;
mod contrast;
mod costs;
mod examine;
mod growth;
mod inside;
mod load_time;
mod local;
mod nodes;
mod page_cache;
mod propose;
mod samplers;
mod settings;
mod sharing;
mod site;
mod step;

pub use confirm::{ConfirmOptions, confirm};
pub use examine::{DoctorOptions, Intrusiveness, examine, examine_again, sample_channel};
pub use local::LocalSite;
pub use nodes::Nodes;
pub use propose::{clues, proposals, workers};
pub use site::{Goal, MachineFacts, ModuleTrials, Servers, Site, SiteSummary};
