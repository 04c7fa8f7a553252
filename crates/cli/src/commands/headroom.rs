//! `lastdrop headroom --log FILE… --url URL`

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lastdrop_analyze::headroom::{CapacitySource, DailyDemand, DemandSource, HeadroomEvidence, headroom as compute};
use lastdrop_experiment::lab::Lab;
use lastdrop_experiment::trials::capacity::CapacityOptions;
use lastdrop_experiment::trials::headroom::headroom as find_headroom;
use lastdrop_model::bounds::{ANSWER, BURST, DAILY, PEAK, POOL, RATE, RESERVE};
use lastdrop_model::documents::HeadroomDocument;
use lastdrop_model::request::Pick;
use lastdrop_model::{KeepAlive, Plan, Url};
use lastdrop_report::export::Runs;
use lastdrop_report::headroom_text;
use lastdrop_traffic::{DemandCounter, Format, LineCounts, LogEntries, LogOptions};

use crate::commands::capacity::{self, exit_of};
use crate::commands::{Report, hint_of_restore, observers_of, open_store};
use crate::exit::{Exit, UsageError};
use crate::options::{FormatArgs, NetworkArgs, OutputArgs, RunsOnArgs, SearchArgs, VersionArgs, within};
use crate::replay::mix::LogMix;
use crate::replay::target::Targets;
use crate::run_plan::{self, Origin};
use crate::signals::Stop;
use crate::stdio::note;

/// Counts do not depend on the order of the lines.
const WINDOW: Duration = Duration::from_secs(2);
/// Requests between two checks for a signal.
const BETWEEN_LOOKS: u64 = 4096;
const PEAK_OF_A_DAY: f64 = 3.0;

#[derive(Debug, Args)]
#[command(
    after_help = "Demand is the busiest minute of the logs, or of --per-day. The capacity is measured (--url), given (--capacity), or left out.\n\nExamples:\n  lastdrop headroom --log access.log\n  lastdrop headroom --log access.log* --capacity 400 --workers 32\n  lastdrop headroom --log access.log* --url http://127.0.0.1:8080/ --objective 'p99<300ms,errors<0.1%'\n  lastdrop headroom --per-day 8M --size 3kB --peak 3 --capacity 400 --burst 10000 --json -"
)]
pub struct HeadroomArgs {
    /// Access logs, plain, gzip or zstd, of one server; '-' is stdin
    #[arg(long, value_name = "FILE", num_args = 1.., required_unless_present = "per_day")]
    pub log: Vec<PathBuf>,
    /// Instead of logs: requests a day, such as 500k or 8M
    #[arg(long, value_name = "N", value_parser = daily, conflicts_with = "log")]
    pub per_day: Option<f64>,
    /// With --per-day: bytes of an answer, for the bandwidth
    #[arg(long, value_name = "SIZE", value_parser = within::<u64>(ANSWER), requires = "per_day")]
    pub size: Option<u64>,
    /// With --per-day: how many times as busy as the day's mean its busiest minute is [default: 3]
    #[arg(long, value_name = "N", value_parser = within::<f64>(PEAK), requires = "per_day")]
    pub peak: Option<f64>,
    /// Measure the capacity of this server with the logs' mix of requests. With --per-day, a URL or a plan file (*.toml)
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// The capacity in requests/s, if it is known; no load is put on
    #[arg(long, value_name = "R", value_parser = within::<f64>(RATE), conflicts_with_all = ["url", "objective"])]
    pub capacity: Option<f64>,
    /// Count machines for so many times the busiest minute
    #[arg(long, value_name = "N", value_parser = within::<f64>(RESERVE), default_value_t = 1.0)]
    pub reserve: f64,
    /// Requests of a burst, to say how long its users wait [default: the busiest second's]
    #[arg(long, value_name = "N", value_parser = within::<u64>(BURST))]
    pub burst: Option<u64>,
    /// Workers that the server has, to say whether they are enough
    #[arg(long, value_name = "N", value_parser = within::<u64>(POOL))]
    pub workers: Option<u64>,
    /// Format of the logs, if it is not recognised: as --format of replay
    #[arg(long, value_name = "FORMAT", value_parser = str::parse::<Format>, requires = "log")]
    pub log_format: Option<Format>,
    /// Also send methods that may change something: POST, PUT, DELETE … (without a body, because no log has one)
    #[arg(long = "unsafe", requires_all = ["log", "url"])]
    pub unsafe_methods: bool,
    #[command(flatten)]
    pub search: SearchArgs,
    #[command(flatten)]
    pub version: VersionArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub on: RunsOnArgs,
    #[command(flatten)]
    pub form: FormatArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A number of requests with a decimal unit: 8M is eight million.
fn daily(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" => Some(1.0),
        "k" | "K" => Some(1e3),
        "M" | "m" => Some(1e6),
        "G" | "g" => Some(1e9),
        _ => None,
    };
    let number = digits.parse::<f64>().ok().zip(factor).map(|(n, factor)| n * factor);
    number.filter(|n| DAILY.holds(*n)).ok_or_else(|| DAILY.error(text).to_string())
}

/// What the logs have told.
struct LogDemand {
    demand: DemandSource,
    mix: Option<LogMix>,
    notes: Vec<String>,
}

pub fn headroom(args: &HeadroomArgs) -> Result<Exit> {
    if args.url.is_none() && args.search.objective.is_some() {
        return Err(UsageError("--objective is for the search on a server: name it with --url".into()).into());
    }
    let to = args.url.as_deref().filter(|_| args.per_day.is_none()).map(server_of).transpose()?;
    let report = Report::of(&args.output)?.with_format(args.form)?;
    let stop = Stop::on_signals(true)?;
    let read = read(args, to.as_ref(), &stop)?;
    let mut evidence = HeadroomEvidence {
        url: String::new(),
        objective: Vec::new(),
        demand: read.demand,
        capacity: args.capacity.map_or(CapacitySource::Unknown, CapacitySource::Given),
        reserve: args.reserve,
        burst: args.burst,
        workers: args.workers,
        notes: read.notes,
    };
    let (Some(url), None) = (&args.url, stop.signal()) else {
        let document = compute(evidence);
        report.give(&headroom_text(&document), &document)?;
        return Ok(exit(&document, &stop));
    };
    let search = search_of(args, url, to.as_ref(), read.mix.as_ref())?;
    evidence.url = search.plan.url.to_string();
    evidence.objective.clone_from(&search.objectives);
    let store = open_store(&args.output)?;
    let observers = observers_of(&args.output, store.clone(), Runs::Several, &stop)?;
    let carrier = args.on.carrier(&[&search.plan], store.as_ref())?;
    let mut lab = Lab { carrier, ..Lab::new(&stop.flag, observers) };
    let document = find_headroom(&mut lab, evidence, &search).inspect_err(|_| hint_of_restore(&search.plan.url))?;
    report.keep_and_give(store.as_ref(), &headroom_text(&document), &document)?;
    for trouble in lab.trouble() {
        note!("note: some runs {trouble}");
    }
    Ok(exit(&document, &stop))
}

fn exit(document: &HeadroomDocument, stop: &Stop) -> Exit {
    if let Some(signal) = stop.signal() {
        return Exit::Signal(signal);
    }
    match document.capacity.as_ref().map_or(Exit::Done, exit_of) {
        Exit::Done if document.demand.requests == 0 => Exit::Failed,
        Exit::Done if document.headroom.is_some_and(|times| times < 1.0) => Exit::Missed,
        other => other,
    }
}

/// The server of a log's requests. A plan has its own, which would not be the log's mix.
fn server_of(url: &str) -> Result<Url, UsageError> {
    if run_plan::is_plan_file(url) {
        return Err(UsageError(format!(
            "with --log the requests are those of the logs: give --url a URL instead of {url}"
        )));
    }
    url.parse().map_err(|e: lastdrop_model::plan::UrlError| UsageError(e.to_string()))
}

/// The demand, and the mix for the search on a server.
fn read(args: &HeadroomArgs, to: Option<&Url>, stop: &Stop) -> Result<LogDemand> {
    if let Some(requests) = args.per_day {
        let daily = DailyDemand { requests, peak: args.peak.unwrap_or(PEAK_OF_A_DAY), answer_bytes: args.size };
        return Ok(LogDemand { demand: DemandSource::Daily(daily), mix: None, notes: Vec::new() });
    }
    let options = LogOptions { format: args.log_format.clone(), window: WINDOW };
    let mut entries = LogEntries::open(&args.log, &options)?;
    let mut mix = to.map(|to| {
        let prefix = to.path.trim_end_matches('/').into();
        LogMix::new(Targets { prefix, unsafe_methods: args.unsafe_methods, ..Targets::default() })
    });
    let mut counter = DemandCounter::default();
    let mut count = 0u64;
    while let Some(entry) = entries.next() {
        counter.take(entry);
        if let Some(mix) = &mut mix {
            mix.take(entry);
        }
        count += 1;
        if count.is_multiple_of(BETWEEN_LOOKS) && stop.signal().is_some() {
            break;
        }
    }
    let mut notes = notes_of(entries.tally());
    if let Some(mix) = mix.as_ref().filter(|mix| mix.unsafe_left_out + mix.unusable > 0) {
        notes.push(format!(
            "the capacity is that for the other requests: {} may change something and are not sent (--unsafe sends them), {} cannot be sent",
            mix.unsafe_left_out, mix.unusable
        ));
    }
    let files = args.log.iter().map(|log| log.display().to_string()).collect();
    Ok(LogDemand { demand: DemandSource::Logs { files, counts: counter.finish() }, mix, notes })
}

/// What a reader must know about the lines. Not their text: it may contain secrets, and the document is stored.
fn notes_of(tally: &LineCounts) -> Vec<String> {
    let unparsed = (tally.unparsed > 0).then(|| {
        format!("{} of {} lines could not be parsed; replay --analyse shows some", tally.unparsed, tally.lines)
    });
    let jumps =
        (tally.jumps > 0).then(|| format!("{} requests have a time far ahead of their neighbours'", tally.jumps));
    let damaged = tally.damaged.iter().map(|damaged| format!("breaks off: {damaged}"));
    unparsed.into_iter().chain(jumps).chain(damaged).chain(tally.notes()).collect()
}

/// The search for the capacity: with the mix of the logs, or with what --url names.
fn search_of(args: &HeadroomArgs, url: &str, to: Option<&Url>, mix: Option<&LogMix>) -> Result<CapacityOptions> {
    let (Some(to), Some(mix)) = (to, mix) else {
        return capacity::search_of(url, &args.search, &args.version, &args.network, &args.output);
    };
    let mut plan = Plan {
        keep_secrets: args.output.keep_secrets,
        pick: Pick::Weighted,
        keepalive: KeepAlive::Off,
        ..Plan::new(to.clone(), 0)
    };
    args.network.fill(&mut plan);
    plan.requests = mix.requests(to);
    if plan.requests.is_empty() {
        anyhow::bail!("no request of the logs can be sent; --unsafe sends POST and others, too");
    }
    capacity::search_with(plan, &Origin::default(), &args.search, &args.version, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_a_day_have_decimal_units() {
        for (text, number) in [("8M", Some(8e6)), ("500k", Some(5e5)), ("1.5M", Some(1.5e6)), ("86400", Some(86_400.0))]
        {
            assert_eq!(daily(text).ok(), number, "{text}");
        }
        for wrong in ["", "x", "-1", "0", "inf", "nan", "1e300", "8MB", "99G"] {
            let error = daily(wrong).expect_err(wrong);
            assert!(error.contains(" from 1 to "), "{error}");
        }
    }
}
