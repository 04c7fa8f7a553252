//! Reads what users did from other programs' records: access logs as a stream of requests.
//!
//! A [`Format`] turns a line into a [`LogEntry`]. It is written as the server's own LogFormat or log_format, or
//! recognised from the first lines ([`format::recognise`]). [`LogEntries`] reads many files, packed or not, as one stream
//! in time order. Memory depends neither on the length of a log nor on its content, and no line can stop the reading.
//! Lines that do not parse are counted, and some are kept with their numbers ([`LineCounts`]).
//!
//! Recordings with answers, and lists of requests to send, become a plan ([`recording`]). The results of other load
//! generators are read for comparisons ([`reports`]).

pub mod analysis;
pub mod entries;
pub mod entry;
pub mod format;
pub mod growing;
pub mod line_counts;
pub mod lines;
pub mod recording;
pub mod reports;
pub mod sorter;
pub mod tail;
pub mod time;
pub mod window;

pub use analysis::{Analysis, DemandCounter, Imitation};
pub use entries::{LogEntries, LogError, LogOptions};
pub use entry::{LogEntry, SessionKey};
pub use format::Format;
pub use growing::GrowingLog;
pub use line_counts::{LineCounts, RejectedLine};
pub use window::{Hit, Window};
