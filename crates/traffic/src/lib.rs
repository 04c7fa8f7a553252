//! What users did, read from what others wrote down: access logs as a stream of requests.
//!
//! A [`Format`] turns a line into an [`Entry`]; it is written as the server's own LogFormat or log_format, or
//! recognised from the first lines ([`format::recognise`]). [`Entries`] reads many files, packed or not, as one stream in the
//! order of time. Memory depends on neither the length of a log nor on what is in it, and no line can stop the reading: one that is
//! not understood is counted, and some are kept with their numbers ([`Tally`]).
//!
//! What was recorded with its answers, or written down to be sent, becomes a plan ([`recording`]). What other load
//! generators found is read for comparisons ([`reports`]).

pub mod analysis;
pub mod entries;
pub mod entry;
pub mod format;
pub mod growing;
pub mod lines;
pub mod order;
pub mod recording;
pub mod reports;
pub mod tail;
pub mod tally;
pub mod time;
pub mod window;

pub use analysis::{Analysis, Imitation};
pub use entries::{Entries, LogError, LogOptions};
pub use entry::{Entry, Key};
pub use format::Format;
pub use growing::GrowingLog;
pub use tally::{Rejected, Tally};
pub use window::{Hit, Window};
