//! The command line: its commands, and how it is parsed. The options of a single command are in its file in `commands`,
//! shared options in `options`.

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use lastdrop_probe::resident::release_code;

use crate::commands::agent::AgentArgs;
use crate::commands::capacity::CapacityArgs;
use crate::commands::compare::CompareArgs;
use crate::commands::demo::DemoArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::export::ExportArgs;
use crate::commands::fleet::FleetCommandArgs;
use crate::commands::guard::GuardArgs;
use crate::commands::headroom::HeadroomArgs;
use crate::commands::history::{HistoryArgs, ShowArgs};
use crate::commands::import::ImportArgs;
use crate::commands::knobs::KnobsArgs;
use crate::commands::profile::ProfileArgs;
use crate::commands::record::RecordArgs;
use crate::commands::reference::{ChapterArgs, CompletionsArgs, ManArgs};
use crate::commands::replay::ReplayArgs;
use crate::commands::report::ReportArgs;
use crate::commands::restore::RestoreArgs;
use crate::commands::run::RunArgs;
use crate::commands::size::SizeArgs;
use crate::commands::sweep::SweepArgs;
use crate::commands::target::TargetArgs;
use crate::commands::top::TopArgs;
use crate::commands::trace::TraceArgs;
use crate::commands::tune::TuneArgs;
use crate::commands::ui::UiArgs;
use crate::commands::watch::WatchArgs;
use crate::commands::watchdog::WatchdogArgs;
use crate::exit;
use crate::help::arranged;

const EXAMPLES: &str = "\
Examples:
  lastdrop demo                                      see the whole thing work on a server of its own
  lastdrop run http://127.0.0.1:8080/ -c 50 -d 30s   50 users for 30 s
  lastdrop capacity http://127.0.0.1/ --objective 'p99<300ms'   how much it can take
  lastdrop headroom --log access.log* --url http://127.0.0.1/ --objective 'p99<300ms'   and for how long that is enough
  lastdrop replay access.log --to http://127.0.0.1:8080/   what users did, again
  lastdrop record --to http://127.0.0.1:8080/        a browser's path as a plan
  lastdrop compare --live http://127.0.0.1:8080/ http://127.0.0.1:8081/   which is faster
  lastdrop doctor apache --url http://127.0.0.1/app  what limits it, and what to change
  lastdrop watch apache                              processes, memory, queues, kernel events, live
  lastdrop size apache --memory 400M                 how many workers fit
  lastdrop tune apache --url http://127.0.0.1/app    find better settings and prove them
  lastdrop report last -o report.html                a page to look at and to send to somebody
  lastdrop ui                                        all runs in a browser, also while they are under way
  lastdrop fleet up                                  many machines as one; `lastdrop agent` on each
  lastdrop restore                                   undo what a killed tune left
  lastdrop ab -n 1000 -c 10 http://127.0.0.1/        as ab, siege, httperf, http_load, lwp-bench, wrk or wrk2: their flags and reports
";

#[derive(Debug, Parser)]
#[command(
    name = "lastdrop",
    version,
    about = "Load-tests a web server without coordinated omission, says what limits it, and finds better settings",
    after_help = format!("Also ab, siege, httperf, http_load, lwp-bench, wrk and wrk2, by their own flags: lastdrop ab -h\n\n{}", exit::HELP),
    after_long_help = format!("{EXAMPLES}\n{}", exit::HELP),
)]
pub struct Cli {
    /// Trust what this user owns like what root owns: programs, libraries and configurations of servers are executed and read with root's
    /// rights. Without it root executes only what nobody but root can write
    #[arg(long, global = true, value_name = "USER", hide_short_help = true)]
    pub trust: Vec<String>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Put load on a URL and report what happened
    Run(Box<RunArgs>),
    /// Replay the requests of an access log: at its own times, faster, at a rate, or as user sessions
    Replay(Box<ReplayArgs>),
    /// Record what a browser does, through a proxy, as a plan
    Record(RecordArgs),
    /// Convert a HAR file, curl commands, or files of siege and httperf into a plan
    Import(ImportArgs),
    /// Find the highest rate that meets an objective, and the knee
    Capacity(Box<CapacityArgs>),
    /// How many times the demand of a log the server bears, when the limit is reached, how many machines
    Headroom(Box<HeadroomArgs>),
    /// Is B faster or slower than A? Two runs, or two URLs or plans in interleaved blocks
    Compare(Box<CompareArgs>),
    /// Name what limits a server, with evidence, and what to change
    Doctor(Box<DoctorArgs>),
    /// Find better settings for a server, prove them against the present ones, and restore these
    Tune(Box<TuneArgs>),
    /// Run a matrix of settings, users, requests and URLs from a plan file
    Sweep(SweepArgs),
    /// Real memory of a server's workers and how many fit
    Size(SizeArgs),
    /// List a server's settings: value, source, and what each may be
    Knobs(KnobsArgs),
    /// A server's processes, states, memory, queues and kernel events, live
    Watch(Box<WatchArgs>),
    /// Show what a growing access log or a status page tells: rate, errors, slow classes, greedy clients
    Top(Box<TopArgs>),
    /// Which system calls a request makes, what they cost, and which could be spared
    Trace(Box<TraceArgs>),
    /// Where a server's CPU goes while it is under load: functions, libraries, a flame graph
    Profile(Box<ProfileArgs>),
    /// Replace workers that are too large, too old or stuck, gracefully, a few at a time
    Guard(Box<GuardArgs>),
    /// Undo what a killed tune or sweep changed
    Restore(RestoreArgs),
    /// Put servers back when the tune that has started this dies or hangs
    #[command(hide = true)]
    Watchdog(WatchdogArgs),
    /// Completions for a shell
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// Man pages of all commands
    #[command(hide = true)]
    Man(ManArgs),
    /// A chapter of the manual that is made of the program's tables
    #[command(hide = true)]
    Chapter(ChapterArgs),
    /// List the runs kept in the store
    History(HistoryArgs),
    /// Show a kept run again
    Show(ShowArgs),
    /// Give a kept run to other programs: csv, hdr, events, prometheus, otlp
    Export(ExportArgs),
    /// Write one HTML file: verdict, plots, tables; it needs no network
    Report(ReportArgs),
    /// Show the kept runs in a browser: search, follow a run, stop it, start it again, compare two
    Ui(UiArgs),
    /// Many machines as one: the broker, its agents, and starting them by ssh
    Fleet(FleetCommandArgs),
    /// Make this machine part of a fleet: connect to its broker and follow its orders
    Agent(Box<AgentArgs>),
    /// A newcomer's first minute: tune an embedded server whose best setting is known
    Demo(DemoArgs),
    /// A web server of exactly known behaviour
    Target(Box<TargetArgs>),
}

/// Parses the command line. A negative number is a value out of bounds, not an unknown option.
pub fn read(args: &[OsString]) -> Result<Cli, clap::Error> {
    let numbers = ["N", "R", "TIME", "SIZE", "PERCENT", "RATE", "HOW", "SIGMA", "KAPPA", "N,N,…"];
    let number = |a: &clap::Arg| a.get_value_names().is_some_and(|n| numbers.iter().any(|number| n[0] == *number));
    // -5s and -inf too.
    let mark = |a: clap::Arg| if number(&a) { a.allow_hyphen_values(true) } else { a };
    // Each step executes much code that no later one needs.
    release_code();
    let command = Cli::command();
    release_code();
    let command = arranged(command).mut_subcommands(|c| c.mut_args(mark));
    release_code();
    let matches = command.try_get_matches_from(args)?;
    release_code();
    Cli::from_arg_matches(&matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_options_is_consistent() {
        arranged(Cli::command()).debug_assert();
    }
}
