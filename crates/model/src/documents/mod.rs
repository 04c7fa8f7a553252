//! The JSON documents of commands other than `run`, one file each. Documents may gain fields, but a field keeps its
//! name and its meaning, because documents of earlier versions are read as well.

mod capacity;
mod compare;
mod doctor;
mod headroom;
mod knobs;
mod log;
mod nodes;
mod profile;
mod profile_memory;
mod several;
mod size;
mod sweep;
mod top;
mod trace;
mod tune;
mod watch;
mod workers;

pub use self::capacity::*;
pub use self::compare::*;
pub use self::doctor::*;
pub use self::headroom::*;
pub use self::knobs::*;
pub use self::log::*;
pub use self::nodes::*;
pub use self::profile::*;
pub use self::profile_memory::*;
pub use self::several::*;
pub use self::size::*;
pub use self::sweep::*;
pub use self::top::*;
pub use self::trace::*;
pub use self::tune::*;
pub use self::watch::*;
pub use self::workers::*;
