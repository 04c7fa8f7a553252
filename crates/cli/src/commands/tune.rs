//! `lastdrop tune SERVER --url URL`

use std::time::Duration;

use anyhow::Result;
use lastdrop_experiment::Lab;
use lastdrop_experiment::tune::{TuneOrder, tune as run_tune};
use lastdrop_experiment::warm::RECYCLING_WARM_UP;
use lastdrop_model::KeepAlive;
use lastdrop_model::documents::{TuneDocument, TuneVerdict};
use lastdrop_report::tune_text;
use lastdrop_server::{Session, discover};

use crate::args::TuneArgs;
use crate::commands::{open_store, print_report, write_json};
use crate::exit::{Exit, UsageError};
use crate::narrator::Terminal;
use crate::signals::Stop;

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
    let warm_up = args.load.warm_up;
    let mut plan = args.load.plan(args.url.clone(), BLOCK, KeepAlive::Off);
    plan.phases.retain(|p| p.measured);
    let stop = Stop::on_signals(false)?;
    let mut terminal = Terminal::new(args.output.quiet);
    let store = open_store(&args.output)?;
    let session = Session::open(discover(&args.server)?, Some(&args.url), args.live)?;
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
    let mut lab = Lab::new(store, &stop.flag, &mut terminal);
    let document = run_tune(&mut lab, session, &order)?;
    let store_error = lab.store_error.take();
    let json = args.output.json.as_deref();
    print_report(&tune_text(&document), json, args.output.quiet);
    if let Some(to) = json {
        write_json(to, &document)?;
    }
    if let Some(e) = store_error {
        eprintln!("note: some runs could not be kept: {e}");
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
