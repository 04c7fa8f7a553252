//! Experiments: questions that take one run or several.
//!
//! | room | what is in it |
//! |---|---|
//! | [`machine`] | where servers run: this machine, agents', several as one |
//! | [`lab`] | one run: a plan becomes load, samples, a stored run and its validity |
//! | [`observe`] | a server under other clients' load, or a few requests of ours: watch, trace, profile, guard |
//! | [`trials`] | several runs: compare, capacity, sweep, tune, size |
//! | [`doctor`] | runs that separate causes, for a diagnosis |
//!
//! Nothing here prints: events go to observers, and results are documents.

pub mod doctor;
pub mod lab;
pub mod machine;
pub mod observe;
pub mod trials;
