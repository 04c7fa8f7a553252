//! From a log to requests that are sent again: which of them, where to, and when.
//!
//! A log is read twice: its beginning for the classes of its requests, which are those of the run, and all of it while it is
//! played, by a thread of its own that is never far ahead. Nothing of a log decides who is asked: a request is sent to the one
//! server that the user names, whatever the log has.

pub mod feed;
pub mod recording;
pub mod spread;
pub mod target;
pub mod usual;
