//! `lastdrop capacity URL --objective 'p99<300ms'`

use anyhow::Result;
use clap::Args;
use lastdrop_experiment::lab::Lab;
use lastdrop_experiment::trials::capacity::{CapacityOptions, capacity as find_capacity};
use lastdrop_model::documents::CapacityDocument;
use lastdrop_model::{KeepAlive, Plan};
use lastdrop_report::capacity_text;
use lastdrop_report::export::Runs;

use crate::commands::{Report, hint_of_restore, observers_of, open_store};
use crate::exit::Exit;
use crate::options::{FormatArgs, NetworkArgs, OutputArgs, RunsOnArgs, SearchArgs, VersionArgs};
use crate::run_plan::{self, Origin};
use crate::signals::Stop;
use crate::stdio::note;

#[derive(Debug, Args)]
#[command(
    after_help = "What it does: a staircase of users in a closed loop, then open-loop trials that bracket the highest rate from\nbelow, narrow it, and hold it. New connections for each request unless --keepalive says otherwise.\n\nExamples:\n  lastdrop capacity http://127.0.0.1:8080/ --objective 'p99<300ms,errors<0.1%'\n  lastdrop capacity http://127.0.0.1/ --objective 'p99.9<1s' --arrivals poisson --keepalive on --max-time 10m\n  lastdrop capacity plan.toml --objective 'p95<50ms' --no-staircase -r 200"
)]
pub struct CapacityArgs {
    /// What to load: a URL, or a plan file (*.toml) for its requests
    #[arg(value_name = "URL|PLAN")]
    pub target: String,
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

pub fn capacity(args: &CapacityArgs) -> Result<Exit> {
    let order = search_of(&args.target, &args.search, &args.version, &args.network, &args.output)?;
    let report = Report::of(&args.output)?.with_format(args.form)?;
    let stop = Stop::on_signals(true)?;
    let store = open_store(&args.output)?;
    let observers = observers_of(&args.output, store.clone(), Runs::Several, &stop)?;
    let carrier = args.on.carrier(&[&order.plan], store.as_ref())?;
    let mut lab = Lab { carrier, ..Lab::new(&stop.flag, observers) };
    let document = find_capacity(&mut lab, &order).inspect_err(|_| hint_of_restore(&order.plan.url))?;
    report.keep_and_give(store.as_ref(), &capacity_text(&document), &document)?;
    for trouble in lab.trouble() {
        note!("note: some runs {trouble}");
    }
    Ok(match stop.signal() {
        Some(signal) => Exit::Signal(signal),
        None => exit_of(&document),
    })
}

/// The search for the capacity with the requests of a URL or a plan file.
pub fn search_of(
    target: &str,
    search: &SearchArgs,
    version: &VersionArgs,
    network: &NetworkArgs,
    output: &OutputArgs,
) -> Result<CapacityOptions> {
    let (read, origin) = run_plan::requests_of(target, network)?;
    let mut plan = Plan { keep_secrets: output.keep_secrets, ..read.plan };
    if !run_plan::is_plan_file(target) {
        plan.keepalive = KeepAlive::Off;
    }
    search_with(plan, &origin, search, version, read.has_seed)
}

/// The search with the requests of a plan, which says whether connections are kept.
pub fn search_with(
    mut plan: Plan,
    origin: &Origin,
    search: &SearchArgs,
    version: &VersionArgs,
    has_seed: bool,
) -> Result<CapacityOptions> {
    version.set(&mut plan);
    origin.settle(&mut plan)?;
    let mut keepalive = plan.keepalive;
    if plan.http.is_http2() {
        if !origin.is_file() {
            // A connection of HTTP/2 for each request would measure little but handshakes.
            keepalive = KeepAlive::On;
        }
        if search.connections.is_none() {
            plan.http.streams.get_or_insert(1);
        }
    }
    let options = search.search(plan, keepalive, has_seed)?;
    origin.check(&options.plan)?;
    Ok(options)
}

/// The exit code of a search.
pub fn exit_of(document: &CapacityDocument) -> Exit {
    match document.met {
        true => Exit::Done,
        false if document.generator_limited => Exit::Invalid,
        // Running out of time is a failure, not a missed objective.
        false if document.out_of_time => Exit::Failed,
        false => Exit::Missed,
    }
}
