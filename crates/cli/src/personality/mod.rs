//! Personalities: the flags and reports of `ab`, `siege`, `httperf`, `http_load`, `lwp-bench`, `wrk` and `wrk2` on our engine.
//!
//! A personality is a folder of five files: `flags` (its options), `plan` (the requests), `counts` (what it counts of each
//! request), `report` (its output) and `mod`, which ties them together. The engine measures. If a number of the original is
//! wrong, ours is right, unless the user gives `--like-the-original`. If stderr is a terminal, one line says what the old
//! report hides (`--remark`, `--no-remark`). A personality refuses a flag that it cannot honour, by its name.
//!
//! This file has what they share; `programs` is the table of them.

mod ab;
mod calendar;
mod getopt;
mod http_load;
mod httperf;
mod lwp_bench;
mod number;
pub mod programs;
mod refusal;
mod siege;
mod wrk;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use lastdrop_experiment::lab::observers::ExchangeObserver;
use lastdrop_experiment::lab::{Lab, LabError};
use lastdrop_load::FirstAnswer;
use lastdrop_model::units::show_us;
use lastdrop_model::{CaptureLevel, Exchange, Kind, Plan, Run, raw};

pub use self::calendar::{c_time, day, local_time};
pub use self::refusal::{Refusal, beyond, failed, host_and_port, out_of_bounds, refuse, whole};
use crate::signals::Stop;
use crate::stdio::note;

/// The options of lastdrop itself in a personality's command line.
#[derive(Debug, Clone, Copy)]
pub struct Compatibility {
    /// Compute numbers as the original does, even where it is wrong.
    pub like_the_original: bool,
    /// Print on stderr what the report hides.
    pub remark: bool,
}

/// A run that has ended.
#[derive(Debug)]
pub struct FinishedRun {
    pub run: Run,
    pub first_answer: Option<FirstAnswer>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// Carries out a plan without a store and without watching the server. Passes finished requests to `show`.
pub fn carry_out(
    plan: &Plan,
    wish: CaptureLevel,
    stop: &Stop,
    show: &mut dyn FnMut(&[Exchange]),
) -> Result<FinishedRun, LabError> {
    let mut lab = Lab::new(&stop.flag, vec![Box::new(ExchangeObserver { wish, show })]);
    lab.observe = false;
    let run = lab.run(plan, "")?;
    let first_answer = lab.first_answer.take();
    Ok(FinishedRun { run, first_answer, signal: stop.signal() })
}

/// A seed that differs from run to run.
pub fn seed() -> u64 {
    u64::from(lastdrop_experiment::lab::runs::random_u32())
}

/// Catches the signals that end a run with its report.
pub fn catch_signals() -> Result<Stop, Refusal> {
    Stop::on_signals(true).map_err(|e| failed("lastdrop: cannot catch signals", e))
}

/// Prints one line of what the old report hides.
pub fn remark(compatibility: Compatibility, run: &Run, what: &str) {
    if !compatibility.remark {
        return;
    }
    let Some(phase) = run.phases.iter().find(|p| p.measured) else { return };
    let p = |name: &str| phase.latency(Kind::Response, name).map_or_else(|| "-".into(), show_us);
    let times = format!("p50 {}, p99 {}, p99.9 {}, max {}; ", p("p50"), p("p99"), p("p99_9"), p("max"));
    // The reasons are in the order of their weight.
    let doubts: Vec<&str> = run.validity.reasons.iter().take(2).map(|r| r.what.as_str()).collect();
    let doubts = if doubts.is_empty() { String::new() } else { format!("; {}", doubts.join("; ")) };
    note!("lastdrop: {times}{what}{doubts} (--no-remark leaves this line out)");
}

/// The path in an argument.
pub fn path_of(text: &str) -> PathBuf {
    PathBuf::from(OsString::from_vec(raw::bytes(text).into_owned()))
}

/// `user:password` in base64, for `Authorization: Basic`.
pub fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(raw::bytes(text))
}

/// The bytes of a plan's first request.
pub fn first_wire(plan: &Plan) -> Vec<u8> {
    lastdrop_load::preview(plan).ok().and_then(|p| p.requests.into_iter().next()).unwrap_or_default()
}

/// The system's message for one kind of failed connection.
pub fn first_error(run: &Run) -> Option<String> {
    run.generator.connect_errors.keys().next().cloned()
}

/// The errno of an error message of the system, for exit codes; 1 if unknown.
pub fn errno_of(text: &str) -> u8 {
    let known = [
        libc::EMFILE,
        libc::EADDRNOTAVAIL,
        libc::ENETUNREACH,
        libc::ECONNRESET,
        libc::ETIMEDOUT,
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
    ];
    let found = known.into_iter().find(|n| std::io::Error::from_raw_os_error(*n).to_string().starts_with(text));
    found.map_or(1, |n| n as u8)
}
