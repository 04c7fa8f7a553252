//! Turns a log into requests: which are sent again, where to, and when.
//!
//! lastdrop reads a log twice: its beginning for the classes of its requests, which become the run's classes, and all of it
//! while it replays. A thread of its own reads, never far ahead. The log does not choose the server: all requests go to the
//! one that the user names.

pub mod feed;
pub mod mix;
pub mod recording;
pub mod spread;
pub mod target;
pub mod usual;
