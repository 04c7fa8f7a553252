//! `lastdrop sweep PLAN.toml`

use anyhow::Result;
use lastdrop_experiment::Lab;
use lastdrop_experiment::sweep::sweep as run_sweep;
use lastdrop_experiment::sweep_plan::SweepPlan;
use lastdrop_report::{sweep_csv, sweep_text};
use lastdrop_server::{Session, discover};

use crate::args::SweepArgs;
use crate::commands::{open_store, print_report, write_json, write_text};
use crate::exit::{Exit, UsageError};
use crate::narrator::Terminal;
use crate::signals::Stop;

pub fn sweep(args: SweepArgs) -> Result<Exit> {
    let mut plan = SweepPlan::read(&args.plan).map_err(|e| UsageError(e.to_string()))?;
    plan.rounds = args.rounds.unwrap_or(plan.rounds);
    plan.sort = args.sort.clone().or(plan.sort);
    // Not after an hour of measuring.
    plan.check_sort().map_err(UsageError)?;
    let stop = Stop::on_signals(plan.server.is_none())?;
    let mut terminal = Terminal::new(args.output.quiet);
    let store = open_store(&args.output)?;
    let session = match &plan.server {
        Some(server) => {
            let url = plan.cells.first().map(|c| &c.url);
            let session = Session::open(discover(server)?, url, args.live)?;
            // A name that is not a setting shall not be found out after an hour.
            for settings in plan.cells.iter().map(|c| &c.settings) {
                session.check_names(settings).map_err(|e| UsageError(e.to_string()))?;
            }
            Some(session)
        }
        None => None,
    };
    let mut lab = Lab::new(store, &stop.flag, &mut terminal);
    let document = run_sweep(&mut lab, session, &plan)?;
    let store_error = lab.store_error.take();
    let to_stdout = if args.csv.as_deref() == Some("-") { args.csv.as_deref() } else { args.output.json.as_deref() };
    print_report(&sweep_text(&document), to_stdout, args.output.quiet);
    if let Some(to) = &args.csv {
        write_text(to, &sweep_csv(&document))?;
    }
    if let Some(to) = &args.output.json {
        write_json(to, &document)?;
    }
    if let Some(e) = store_error {
        eprintln!("note: some runs could not be kept: {e}");
    }
    Ok(match stop.signal() {
        Some(signal) => Exit::Signal(signal),
        None if document.rows.iter().all(|r| r.answered == 0) => Exit::Failed,
        None => Exit::Done,
    })
}
