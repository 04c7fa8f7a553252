//! `lastdrop tune SERVER --url URL`

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lastdrop_lab::Lab;
use lastdrop_lab::warm::RECYCLING_WARM_UP;
use lastdrop_model::bounds::{GAIN, MEMORY, RACE};
use lastdrop_model::documents::{TuneDocument, TuneVerdict};
use lastdrop_model::{KeepAlive, Url};
use lastdrop_report::tune_text;
use lastdrop_server::{Kind, ServerRef, Stack, check_called_apart, kinds};
use lastdrop_trials::tune::{TuneOrder, tune as run_tune};

use crate::commands::{Report, observers, open_store};
use crate::exit::{Exit, UsageError};
use crate::options::{LoadArgs, OthersArgs, OutputArgs, within};
use crate::signals::Stop;
use crate::stdio::note;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop tune apache --url http://127.0.0.1/perl/page.pl -c 50\n  lastdrop tune apache:/srv/www/apache2.conf --url http://127.0.0.1:8080/ --memory 400M --keep\n  lastdrop tune target:target.toml --url http://127.0.0.1:8080/\n  lastdrop tune nginx php-fpm --url http://127.0.0.1/index.php -c 50 --keepalive on"
)]
pub struct TuneArgs {
    #[arg(required = true, value_name = "SERVER", help = format!(
        "The server, or several that are changed together ([NAME=]SERVER): {}, each with @URL of its listener",
        kinds::list_with_files(Kind::can_change)
    ))]
    pub servers: Vec<ServerRef>,
    /// What to load; healthy means that it answers as it does at the start
    #[arg(long)]
    pub url: Url,
    /// Memory that the server's workers may use together [default: what the machine has left]
    #[arg(long, value_name = "SIZE", value_parser = within::<u64>(MEMORY))]
    pub memory: Option<u64>,
    /// Leave the better settings in force
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub others: OthersArgs,
    /// Pairs of blocks in the race, at most
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = within::<u32>(RACE))]
    pub blocks: u32,
    /// The smallest gain worth a change, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = within::<f64>(GAIN))]
    pub min_gain: f64,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Length of one block unless the user says otherwise.
const BLOCK: Duration = Duration::from_secs(5);
/// Load that is discarded before each block.
const SETTLING: Duration = Duration::from_secs(1);

pub fn tune(args: TuneArgs) -> Result<Exit> {
    if args.load.requests.is_some() {
        return Err(UsageError("blocks of a tune have a length in time: -d instead of -n".into()).into());
    }
    if args.load.ramp_to.is_some() {
        return Err(UsageError("blocks of a tune are compared with each other: no --ramp-to".into()).into());
    }
    check_called_apart(&args.servers).map_err(UsageError)?;
    let warm_up = args.load.warm_up;
    let mut plan = args.load.plan(args.url.clone(), BLOCK, KeepAlive::Off)?;
    plan.phases.retain(|p| p.measured);
    plan.keep_secrets = args.output.keep_secrets;
    let report = Report::of(&args.output)?;
    let stop = Stop::on_signals(false)?;
    let store = open_store(&args.output)?;
    let observers = observers(args.output.quiet, store.clone());
    let stack = Stack::open(&args.servers, Some(&args.url), &(&args.others).into())?;
    let order = TuneOrder {
        plan,
        memory: args.memory,
        keep: args.keep,
        max_pairs: args.blocks,
        min_gain: args.min_gain / 100.0,
        recycling_warm_up: warm_up.unwrap_or(RECYCLING_WARM_UP),
        settling: warm_up.unwrap_or(SETTLING),
        advise_keepalive: true,
    };
    let mut lab = Lab::new(&stop.flag, observers);
    let document = run_tune(&mut lab, stack, &order)?;
    report.keep_and_give(store.as_ref(), &tune_text(&document), &document)?;
    for trouble in lab.trouble() {
        note!("note: some runs {trouble}");
    }
    Ok(exit_of(&document, &stop))
}

fn exit_of(document: &TuneDocument, stop: &Stop) -> Exit {
    match (document.interrupted, document.verdict) {
        (true, _) => Exit::Signal(stop.signal().unwrap_or(2)),
        (_, TuneVerdict::Infeasible) => Exit::Failed,
        _ => Exit::Done,
    }
}
