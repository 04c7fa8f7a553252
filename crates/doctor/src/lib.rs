//! Experiments that separate causes: what a server does for one user, a few, many and too many, with keep-alive and
//! without, and what its processes and those behind it are at meanwhile. Makes the evidence; `diagnose` says what it shows.

mod behind;
mod beside;
mod confirm;
mod contrast;
mod costs;
mod examine;
mod growth;
mod here;
mod inside;
mod load_time;
mod nodes;
mod propose;
mod settings;
mod site;
mod step;

pub use confirm::{Trying, confirm};
pub use examine::{Manner, Order, examine, look_again, telling};
pub use here::Here;
pub use nodes::Nodes;
pub use propose::{clues, proposals, workers};
pub use site::{Goal, Machine, Rest, Servers, Site, Tried};
