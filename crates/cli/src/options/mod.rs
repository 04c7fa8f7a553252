//! Options that several commands share, a file for each group. The options of a single command are in its file in
//! `commands`.

mod database;
mod fleet;
mod http;
mod load;
mod network;
mod others;
mod output;
mod request;
mod runs_on;
mod search;
mod secret;
mod side;
mod values;

pub use self::database::DatabaseArgs;
pub use self::fleet::{FleetArgs, TokenArgs, URL_FILE, default_folder};
pub use self::http::VersionArgs;
pub use self::load::LoadArgs;
pub use self::network::NetworkArgs;
pub use self::others::OthersArgs;
pub use self::output::{FormatArgs, OutputArgs};
pub use self::request::RequestArgs;
pub use self::runs_on::{RunsOnArgs, address_of};
pub use self::search::SearchArgs;
pub use self::side::SideArgs;
pub use self::values::{Objectives, objectives, pair, within, written};
