//! `lastdrop run URL`

use std::fs::File;

use anyhow::{Context, Result};
use lastdrop_experiment::lab::RequestLog;
use lastdrop_experiment::{Lab, LabError};
use lastdrop_model::run::End;
use lastdrop_model::{Judged, Run, Verdict};
use lastdrop_report::{junit, run_text};
use lastdrop_server::find;

use crate::args::RunArgs;
use crate::commands::{open_store, print_report, write_json, write_text};
use crate::exit::{Exit, UsageError};
use crate::narrator::Terminal;
use crate::run_plan;
use crate::signals::Stop;

pub fn run(args: &RunArgs) -> Result<Exit> {
    if args.plan_schema {
        write_json("-", &lastdrop_model::plan_file::schema())?;
        return Ok(Exit::Done);
    }
    let mut plan = run_plan::plan(args)?;
    if let Some(objectives) = &args.objective {
        plan.objectives.clone_from(&objectives.0);
    }
    if args.junit.is_some() && plan.objectives.is_empty() {
        return Err(UsageError("--junit writes down objectives; say them: --objective 'p99<300ms'".into()).into());
    }
    if args.dry_run {
        write_text("-", &run_plan::dry_run(&plan)?)?;
        return Ok(Exit::Done);
    }
    let server = args.server.as_ref().map(find).transpose()?;
    let stop = Stop::on_signals(true)?;
    let log = match &args.log {
        None => None,
        Some(path) => {
            let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            Some(RequestLog::new(file))
        }
    };
    let mut terminal = Terminal::new(args.output.quiet);
    let mut lab = Lab { log, server, ..Lab::new(open_store(&args.output)?, &stop.flag, &mut terminal) };
    let run = match lab.run(&plan, "") {
        Err(LabError::Interrupted) => return Ok(Exit::Signal(stop.signal().unwrap_or(2))),
        other => other?,
    };
    let store_error = lab.store_error.take();
    let log_error = lab.log.take().and_then(|l| l.error);
    let json = args.output.json.as_deref();
    print_report(&run_text(&run), json, args.output.quiet);
    if let Some(to) = json {
        write_json(to, &run)?;
    }
    if let Some(to) = &args.junit {
        write_text(to, &junit(&run))?;
    }
    if let Some(e) = store_error {
        anyhow::bail!("the run was made but could not be kept: {e}");
    }
    if let Some(e) = log_error {
        anyhow::bail!("the run was made but its log of requests could not be written: {e}");
    }
    Ok(exit_of(&run, &stop))
}

fn exit_of(run: &Run, stop: &Stop) -> Exit {
    if let Some(signal) = stop.signal() {
        return Exit::Signal(signal);
    }
    if run.end == End::Unreachable || !run.answered_anything() {
        let why = run.generator.connect_errors.iter().max_by_key(|(_, n)| **n);
        match why {
            Some((why, _)) => {
                eprintln!("lastdrop: nothing at {}: {why}; is the server running, and is that its port?", run.plan.url)
            }
            None => eprintln!("lastdrop: {} answered nothing; try: curl -v {}", run.plan.url, run.plan.url),
        }
        return Exit::Failed;
    }
    match run.validity.verdict {
        Verdict::Invalid => Exit::Invalid,
        _ if !Judged::all_met(&run.objectives) => Exit::Missed,
        _ => Exit::Done,
    }
}
