//! Other programs, spoken by the same engine: `ab`, `siege`, `httperf`, `http_load`, `lwp-bench` and `wrk`.
//!
//! A personality is two tables: the flags of the original to a plan, and a run to its report. What is measured, and how,
//! is the engine's. Where the original's number is wrong, ours is right unless `--like-the-original` asks for theirs;
//! one line on stderr says what the old report hides (`--no-remark` leaves it out). A flag that cannot be honoured is
//! refused by its name.

mod ab;
mod getopt;
mod http_load;
mod httperf;
mod lwp_bench;
mod siege;
mod wrk;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use lastdrop_experiment::{Lab, LabError, Narrator, Progress};
use lastdrop_load::FirstAnswer;
use lastdrop_model::units::show_us;
use lastdrop_model::{Exchange, Kind, Plan, Run, Wish};

use crate::signals::Stop;

/// Arguments to an exit code, or why not.
type Main = fn(&[String], Manner) -> Result<u8, Refusal>;

const ALL: &[(&str, Main)] = &[
    ("ab", ab::main),
    ("siege", siege::main),
    ("httperf", httperf::main),
    ("http_load", http_load::main),
    ("lwp-bench", lwp_bench::main),
    ("wrk", wrk::main),
];
const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// How a personality was called.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Numbers that the original gets wrong are wrong here too.
    pub like_the_original: bool,
    /// Say on stderr what the report hides.
    pub remark: bool,
}

/// The end of a personality that could not do its work: its words, and the original's exit code.
#[derive(Debug)]
pub struct Refusal {
    pub message: String,
    pub code: u8,
}

pub fn refuse<T>(code: u8, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { message: message.into(), code })
}

/// Something that could not be done, in the words of the engine.
pub fn failed(program: &str, e: impl std::fmt::Display) -> Refusal {
    Refusal { message: format!("{program}: {e}"), code: 1 }
}

/// The personality that is meant, by the name that the program was called under or by its first argument, and the
/// arguments that are for it.
pub fn chosen(args: impl Iterator<Item = std::ffi::OsString>) -> Option<(Main, Vec<String>)> {
    let args: Vec<String> = args.map(|a| a.to_string_lossy().into_owned()).collect();
    let called = Path::new(args.first()?).file_name()?.to_string_lossy().into_owned();
    let named = |name: &str| ALL.iter().find(|(n, _)| *n == name).map(|(_, main)| *main);
    match (named(&called), args.get(1).and_then(|a| named(a))) {
        (Some(main), _) => Some((main, args[1..].to_vec())),
        (None, Some(main)) => Some((main, args[2..].to_vec())),
        (None, None) => None,
    }
}

/// Runs a personality.
pub fn run(main: Main, args: &[String]) -> ExitCode {
    let has = |switch: &str| args.iter().any(|a| a == switch);
    let manner = Manner { like_the_original: has("--like-the-original"), remark: !has("--no-remark") };
    let own = ["--like-the-original", "--no-remark"];
    let args: Vec<String> = args.iter().filter(|a| !own.contains(&a.as_str())).cloned().collect();
    match main(&args, manner) {
        Ok(code) => ExitCode::from(code),
        Err(refusal) => {
            if !refusal.message.is_empty() {
                eprintln!("{}", refusal.message);
            }
            ExitCode::from(refusal.code)
        }
    }
}

/// Writes to stdout; a reader who has gone is no error.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Nobody is told.
struct Silent;

impl Narrator for Silent {
    fn tell(&mut self, _: Progress<'_>) {}
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
pub fn carry_out(plan: &Plan, wish: Wish, stop: &Stop, show: &mut dyn FnMut(&[Exchange])) -> Result<Carried, LabError> {
    let mut silent = Silent;
    let mut lab = Lab::new(None, &stop.flag, &mut silent);
    lab.wish = wish;
    lab.observe = false;
    lab.exchanges = Some(Box::new(show));
    let run = lab.run(plan, "")?;
    let first_answer = lab.first_answer.take();
    Ok(Carried { run, first_answer, signal: stop.signal() })
}

/// A seed that differs from run to run.
pub fn seed() -> u64 {
    u64::from(lastdrop_experiment::lab::random_u32())
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
    eprintln!("lastdrop: {times}{what}{doubts} (--no-remark leaves this line out)");
}

/// `user:password` in base64, for `Authorization: Basic`.
pub fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
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

/// The local time of a second since 1970, taken apart.
pub fn local_time(unix_s: u64) -> libc::tm {
    let seconds = unix_s as libc::time_t;
    // SAFETY: a structure of numbers and a pointer, for which zeros are valid.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both live for the call; it writes into the second.
    unsafe { libc::localtime_r(&raw const seconds, &raw mut tm) };
    tm
}

fn name_of(names: &[&'static str], at: i32) -> &'static str {
    names.get(at as usize).copied().unwrap_or("???")
}

/// `Sun`
pub fn day(unix_s: u64) -> &'static str {
    name_of(&DAYS, local_time(unix_s).tm_wday)
}

/// `Sun Nov 22 09:13:41 2026`, as ctime(3).
pub fn c_time(unix_s: u64) -> String {
    let t = local_time(unix_s);
    format!(
        "{} {} {:02} {:02}:{:02}:{:02} {}",
        name_of(&DAYS, t.tm_wday),
        name_of(&MONTHS, t.tm_mon),
        t.tm_mday,
        t.tm_hour,
        t.tm_min,
        t.tm_sec,
        t.tm_year + 1900
    )
}
