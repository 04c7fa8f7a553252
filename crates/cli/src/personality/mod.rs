//! Other programs, spoken by the same engine: `ab`, `siege`, `httperf`, `http_load`, `lwp-bench`, `wrk` and `wrk2`.
//!
//! A personality is a folder: `flags` (its table, and what a command line asks for), `plan` (what is sent), `tally` (what is
//! counted of each request), `report` (what is printed) and `mod`, which ties them together. What is measured, and how, is
//! the engine's. Where the original's number is wrong, ours is right unless `--like-the-original` asks for theirs;
//! one line on stderr, where that is a terminal, says what the old report hides (`--remark`, `--no-remark`). A flag that cannot be honoured is
//! refused by its name.
//!
//! Here is what they have in common; `programs` is the table of them.

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

use lastdrop_lab::observers::ExchangeObserver;
use lastdrop_lab::{Lab, LabError};
use lastdrop_load::FirstAnswer;
use lastdrop_model::units::show_us;
use lastdrop_model::{CaptureLevel, Exchange, Kind, Plan, Run, raw};

pub use self::calendar::{c_time, day, local_time};
pub use self::refusal::{Refusal, beyond, failed, host_and_port, out_of_bounds, refuse, whole};
use crate::resident;
use crate::signals::Stop;
use crate::stdio::note;

/// How a personality was called.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Numbers that the original gets wrong are wrong here too.
    pub like_the_original: bool,
    /// Say on stderr what the report hides.
    pub remark: bool,
}

/// A run that is over.
#[derive(Debug)]
pub struct Carried {
    pub run: Run,
    pub first_answer: Option<FirstAnswer>,
    /// It was ended by this signal.
    pub signal: Option<i32>,
}

/// Carries a plan out, without a store and without looking at the server, and shows each request that is over.
pub fn carry_out(
    plan: &Plan,
    wish: CaptureLevel,
    stop: &Stop,
    show: &mut dyn FnMut(&[Exchange]),
) -> Result<Carried, LabError> {
    let mut lab = Lab::new(&stop.flag, vec![Box::new(ExchangeObserver { wish, show })]);
    lab.observe = false;
    resident::release_code();
    let run = lab.run(plan, "")?;
    let first_answer = lab.first_answer.take();
    Ok(Carried { run, first_answer, signal: stop.signal() })
}

/// A seed that differs from run to run.
pub fn seed() -> u64 {
    u64::from(lastdrop_lab::lab::random_u32())
}

/// Signals that ask for the report.
pub fn catch_signals() -> Result<Stop, Refusal> {
    Stop::on_signals(true).map_err(|e| failed("lastdrop: cannot catch signals", e))
}

/// What the old report hides, in one line.
pub fn remark(manner: Manner, run: &Run, what: &str) {
    if !manner.remark {
        return;
    }
    let Some(phase) = run.phases.iter().find(|p| p.measured) else { return };
    let p = |name: &str| phase.latency(Kind::Response, name).map_or_else(|| "-".into(), show_us);
    let times = format!("p50 {}, p99 {}, p99.9 {}, max {}; ", p("p50"), p("p99"), p("p99_9"), p("max"));
    // The first two say the most: they come in the order of their weight.
    let doubts: Vec<&str> = run.validity.reasons.iter().take(2).map(|r| r.what.as_str()).collect();
    let doubts = if doubts.is_empty() { String::new() } else { format!("; {}", doubts.join("; ")) };
    note!("lastdrop: {times}{what}{doubts} (--no-remark leaves this line out)");
}

/// The file that an argument names.
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

/// Why the first kind of failed connection failed, as the system says it.
pub fn first_error(run: &Run) -> Option<String> {
    run.generator.connect_errors.keys().next().cloned()
}

/// The number of an error of the system, for exit codes; 1 for others.
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
