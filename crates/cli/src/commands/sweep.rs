//! `lastdrop sweep PLAN.toml`

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lastdrop_experiment::lab::Lab;
use lastdrop_experiment::machine::Machine;
use lastdrop_experiment::trials::sweep::sweep as run_sweep;
use lastdrop_experiment::trials::sweep_plan::SweepPlan;
use lastdrop_model::bounds::ROUNDS;
use lastdrop_model::http_options::Version;
use lastdrop_model::plan::Plan;
use lastdrop_model::request::RequestSpec;
use lastdrop_report::export::Runs;
use lastdrop_report::{sweep_csv, sweep_text};
use lastdrop_server::Change;

use crate::commands::{Report, check_code, observers_of, open_store, tell_change};
use crate::exit::{Exit, UsageError};
use crate::fleet::machines;
use crate::options::{FormatArgs, OthersArgs, OutputArgs, RunsOnArgs, within};
use crate::outfile::Outfile;
use crate::run_plan::Origin;
use crate::signals::Stop;
use crate::stdio::note;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop sweep examples/tuning-table.toml\n  lastdrop sweep plan.toml --csv table.csv --json table.json\n  lastdrop sweep examples/variants.toml --rounds 5 --sort avtime\n  lastdrop sweep variants.toml --allow-directives              its variants have directives = [\"…\"]"
)]
pub struct SweepArgs {
    /// The plan: see examples/ and docs/commands/sweep.md
    pub plan: PathBuf,
    /// Measure every row this many times, in interleaved rounds, and print intervals [default: what the plan says, or 1]
    #[arg(long, value_name = "N", value_parser = within::<u32>(ROUNDS))]
    pub rounds: Option<u32>,
    /// Sort by a column, best first: rps, avtime, p50, p99, completed, failed, or a column that varies
    #[arg(long, value_name = "COLUMN")]
    pub sort: Option<String>,
    /// Write the table as CSV to a file, or to stdout with '-'
    #[arg(long, value_name = "FILE")]
    pub csv: Option<String>,
    /// Take the directives of the plan's variants: lines of the server's configuration, which are code
    #[arg(long)]
    pub allow_directives: bool,
    /// Also those that name a program, module, library, user, pid file, or a file that is written
    #[arg(long, requires = "allow_directives")]
    pub allow_code: bool,
    #[command(flatten)]
    pub others: OthersArgs,
    #[command(flatten)]
    pub on: RunsOnArgs,
    #[command(flatten)]
    pub form: FormatArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Checks what the plan says about HTTP, and settles its version for all rows where the plan leaves it to the servers.
fn settle_version(plan: &mut SweepPlan, is_fleet: bool) -> Result<()> {
    let urls: BTreeSet<String> = plan.cells.iter().map(|cell| cell.url.origin()).collect();
    let Some(first) = plan.cells.first() else { return Ok(()) };
    let mut of_all = Plan::new(first.url.clone(), 0);
    let asked = |origin: &String| format!("{origin}/").parse().ok().map(RequestSpec::get);
    of_all.requests = urls.iter().filter_map(asked).collect();
    of_all.tls.insecure = plan.insecure;
    of_all.timeout = plan.timeout;
    of_all.http.clone_from(&plan.http);
    if is_fleet && matches!(plan.http.version, Version::Http2 | Version::Auto) {
        return Err(
            UsageError("HTTP/2 cannot go through a fleet yet: run it on one machine, without --fleet".into()).into()
        );
    }
    Origin::default().settle(&mut of_all)?;
    plan.http = of_all.http;
    Ok(())
}

pub fn sweep(args: SweepArgs) -> Result<Exit> {
    let mut plan = SweepPlan::read(&args.plan).map_err(|e| UsageError(e.to_string()))?;
    plan.rounds = args.rounds.unwrap_or(plan.rounds);
    plan.sort = args.sort.clone().or(plan.sort);
    plan.keep_secrets = args.output.keep_secrets;
    if let Some(cell) = plan.cells.iter().find(|cell| !cell.lines.is_empty() && !args.allow_directives) {
        return Err(UsageError(format!(
            "{} puts directives into a server's configuration ('{}'), and those are code; if you trust the file: --allow-directives",
            args.plan.display(),
            cell.directives()
        ))
        .into());
    }
    settle_version(&mut plan, args.on.is_fleet())?;
    // Check it now, not after an hour of measuring.
    plan.check_sort().map_err(UsageError)?;
    let mut report = Report::of(&args.output)?.with_format(args.form)?;
    let csv = Outfile::wanted(args.csv.as_deref())?.map(|file| file.private(plan.keep_secrets));
    report.make_room_for(csv.as_ref())?;
    let stop = Stop::on_signals(plan.servers.is_empty())?;
    let store = open_store(&args.output)?;
    let observers = observers_of(&args.output, store.clone(), Runs::Several, &stop)?;
    let carrier = args.on.carrier(&[], store.as_ref())?;
    let stack = match plan.servers.is_empty() {
        true => None,
        false => {
            let url = plan.cells.first().map(|c| c.url.clone());
            let machines = machines(&plan.servers, &args.on.of)?;
            let stack = machines.open(&plan.servers, url.as_ref(), &(&args.others).into())?;
            // Check names of settings now, not after an hour.
            plan.settle_names(&stack).map_err(|e| UsageError(e.to_string()))?;
            let mut told = BTreeSet::new();
            for cell in plan.cells.iter().filter(|cell| !cell.lines.is_empty() && told.insert(cell.directives())) {
                let change = Change { settings: cell.settings.clone(), ..cell.change.clone() };
                let preview = stack.preview(&change)?;
                check_code(&stack, &change, args.allow_code)?;
                if !args.output.quiet {
                    tell_change(&cell.series, &cell.directives(), &preview);
                }
            }
            Some(stack)
        }
    };
    let mut lab = Lab { carrier, ..Lab::new(&stop.flag, observers) };
    let document = run_sweep(&mut lab, stack, &plan)?;
    // Write the other output even if one fails.
    let given = report.keep_and_give(store.as_ref(), &sweep_text(&document), &document);
    let table = csv.map_or(Ok(()), |file| file.text(&sweep_csv(&document)));
    given.and(table)?;
    for trouble in lab.trouble() {
        note!("note: some runs {trouble}");
    }
    Ok(match stop.signal() {
        Some(signal) => Exit::Signal(signal),
        None if document.rows.iter().all(|r| r.answered == 0) => Exit::Failed,
        None => Exit::Done,
    })
}
