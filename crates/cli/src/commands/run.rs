//! `lastdrop run URL`

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lastdrop_diagnose::findings::certain;
use lastdrop_diagnose::fold;
use lastdrop_experiment::lab::fleet::rebuild_run;
use lastdrop_experiment::lab::observers::RequestLog;
use lastdrop_experiment::lab::{Lab, LabError, Observer};
use lastdrop_experiment::machine::Machine;
use lastdrop_model::run::{End, with_question};
use lastdrop_model::{ObjectiveResult, Plan, Run, Verdict};
use lastdrop_probe::resident::release_code;
use lastdrop_report::export::Runs;
use lastdrop_report::{limit_line, run_text};
use lastdrop_server::ServerRef;
use lastdrop_server::{Kind, kinds};

use crate::commands::{Report, hint_of_restore, history, observers_of, open_store};
use crate::exit::{Exit, UsageError};
use crate::fleet::machines;
use crate::junit::Junit;
use crate::options::{FormatArgs, LoadArgs, NetworkArgs, Objectives, OutputArgs, RequestArgs, RunsOnArgs, objectives};
use crate::outfile::Outfile;
use crate::run_plan::{self, Origin};
use crate::signals::Stop;
use crate::stdio::{self, note};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop run http://127.0.0.1:8080/ -c 50 -d 30s\n  lastdrop run http://[::1]/ -n 10000 --keepalive off --json run.json\n  lastdrop run http://127.0.0.1/ -r 500 --arrivals poisson\n  lastdrop run http://127.0.0.1/ -r 100 --ramp-to 2000 -d 5m\n  lastdrop run https://127.0.0.1:8443/ --ca ca.pem -c 50\n  lastdrop run https://127.0.0.1:8443/ --http 2 -c 400 --connections 4 --streams 100\n  lastdrop run https://127.0.0.1:8443/ --http auto -k\n  lastdrop run -f urls.txt -c 20 --think 1s-3s\n  lastdrop run http://127.0.0.1/ -r 200 --server-time auto\n  lastdrop run http://127.0.0.1/app -r 100 -d 30s --anatomy\n  lastdrop run plan.toml --objective 'checkout.p99<500ms'\n  lastdrop run plan.toml --dry-run\n  lastdrop run --again last"
)]
pub struct RunArgs {
    /// What to load: a URL, or a plan file (*.toml)
    #[arg(required_unless_present_any = ["urls", "plan_schema", "again"], conflicts_with = "urls", value_name = "URL|PLAN")]
    pub target: Option<String>,
    /// Repeat the plan of a kept run with its seed: its id, the beginning of one, or 'last'
    #[arg(long, value_name = "ID", conflicts_with_all = ["target", "LoadArgs", "RequestArgs", "NetworkArgs"])]
    pub again: Option<String>,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the JSON schema of plan files
    #[arg(long)]
    pub plan_schema: bool,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub request: RequestArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// What the run has to keep: 'p99<300ms,errors<0.1%,rate>500'. Exit code 3 if it does not
    #[arg(long, value_name = "WHAT", value_parser = objectives, help_heading = "Output")]
    pub objective: Option<Objectives>,
    /// Write each objective, and whether it was met, as JUnit XML
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub junit: Option<String>,
    #[arg(long, value_name = "SERVER", value_parser = str::parse::<ServerRef>, help_heading = "Output", help = format!(
        "Sample this server beside the load, with its status page [default: the one that listens at the URL, if it is on this \
         machine, from outside]. Kinds: {} …. AGENT/KIND is a server on the machine of a fleet's agent",
        kinds::list(Kind::is_program)
    ))]
    pub server: Option<ServerRef>,
    /// Find where slow requests spend their time: the servers at the URL, on this machine, are read many times per second
    #[arg(long, help_heading = "Output")]
    pub anatomy: bool,
    /// Write a line for each request (CSV): when it was due, sent, answered, and its fate
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub log: Option<String>,
    #[command(flatten)]
    pub on: RunsOnArgs,
    #[command(flatten)]
    pub form: FormatArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: &RunArgs) -> Result<Exit> {
    if args.plan_schema {
        Outfile::open("-")?.json(&lastdrop_model::plan_file::schema())?;
        return Ok(Exit::Done);
    }
    let (mut plan, origin) = match &args.again {
        Some(id) => (again(id, &args.output)?, Origin::default()),
        None => run_plan::plan(args.target.as_deref().unwrap_or_default(), &args.load, &args.request, &args.network)?,
    };
    if let Some(objectives) = &args.objective {
        plan.objectives.clone_from(&objectives.0);
    }
    // A repeated run may keep the secrets that its original kept.
    plan.keep_secrets |= args.output.keep_secrets;
    if args.junit.is_some() && plan.objectives.is_empty() {
        return Err(UsageError("--junit writes down objectives; say them: --objective 'p99<300ms'".into()).into());
    }
    if !args.dry_run {
        origin.settle(&mut plan)?;
    }
    let prepared = origin.prepare(&plan)?;
    if args.dry_run {
        stdio::out(run_plan::dry_run(&plan, &prepared)?);
        return Ok(Exit::Done);
    }
    if args.on.is_fleet() && args.log.is_some() {
        let why =
            "--log has a line for each request, and those stay with the agents: run it on one machine, without --fleet";
        return Err(UsageError(why.into()).into());
    }
    if args.on.is_fleet() && args.anatomy {
        let why = "--anatomy reads the servers of the machine that puts on the load: run it there, without --fleet";
        return Err(UsageError(why.into()).into());
    }
    let mut report = Report::of(&args.output)?.with_format(args.form)?;
    let junit_file = Outfile::wanted(args.junit.as_deref())?;
    report.make_room_for(junit_file.as_ref())?;
    if let Some(several) = args.server.as_ref().filter(|server| server.agents().len() > 1) {
        let why =
            format!("a run looks at one server, and '{several}' are several: lastdrop watch shows them side by side");
        return Err(UsageError(why).into());
    }
    let machines = machines(args.server.as_slice(), &args.on.of)?;
    let server = args.server.as_ref().map(|server| machines.sampled(server)).transpose()?;
    let stop = Stop::on_signals(true)?;
    let log = Outfile::wanted(args.log.as_deref())?.map(Outfile::grow).transpose()?;
    let (mut log, growing) = log.map_or((None, None), |(file, growing)| (Some(RequestLog::new(file)), Some(growing)));
    let mut junit = junit_file.map(Junit::new);
    let store = open_store(&args.output)?;
    let carrier = args.on.carrier(&[&plan], store.as_ref())?;
    let mut lab = Lab {
        server,
        carrier,
        anatomy: args.anatomy,
        ..Lab::new(&stop.flag, observers_of(&args.output, store.clone(), Runs::One, &stop)?)
    };
    lab.observers.extend(log.as_mut().map(|log| -> Box<dyn Observer> { Box::new(log) }));
    lab.observers.extend(junit.as_mut().map(|junit| -> Box<dyn Observer> { Box::new(junit) }));
    release_code();
    let run = lab.run_prepared(&plan, Some(prepared), "");
    release_code();
    let mut run = match run {
        Err(LabError::Interrupted) => return Ok(Exit::Signal(stop.signal().unwrap_or(2))),
        other => other?,
    };
    // Agents may have reported some records late.
    if let Some(store) = store.as_ref().filter(|_| !run.agents.is_empty())
        && let Some(whole) = rebuild_run(store, &run.id)?
    {
        run = whole;
    }
    let trouble = lab.trouble();
    drop(lab);
    let log_error = log.and_then(|l| l.error);
    // Write the other outputs even if one fails (a full disk).
    let logged = match (growing, log_error) {
        (Some(growing), None) => growing.finish(),
        (Some(growing), Some(e)) => Err(unfinished_log(&e, growing.leave())),
        (None, _) => Ok(()),
    };
    let limit = fold::run(&run).and_then(|seen| certain(&seen));
    let text = run_text(&run) + &limit.as_ref().map_or_else(String::new, limit_line);
    let given = report.give(&text, &run);
    let judged = junit.map_or(Ok(()), |junit| junit.written);
    given.and(judged).and(logged)?;
    // The report took its older seconds from the store.
    let unread = || store.and_then(|s| s.check_reads().err()).map(|e| format!("could not be kept: {e}"));
    let trouble: Vec<String> = trouble.into_iter().chain(unread()).collect();
    if !trouble.is_empty() {
        anyhow::bail!("the run was made but {}", trouble.join("; it "));
    }
    Ok(exit_of(&run, &stop))
}

/// The plan of a kept run.
fn again(id: &str, output: &OutputArgs) -> Result<Plan> {
    let store = history::open(output.store.clone())?;
    let id = store.find(id)?;
    let plan = store.load(&id)?.plan;
    Ok(plan.repeatable().map_err(|why| UsageError(format!("run {id} cannot be carried out again: {why}")))?)
}

fn unfinished_log(e: &std::io::Error, part: Option<PathBuf>) -> anyhow::Error {
    let part = part.map_or(String::new(), |p| format!("; what there is of it: {}", p.display()));
    anyhow::anyhow!("the run was made but its log of requests could not be written: {e}{part}")
}

pub(crate) fn exit_of(run: &Run, stop: &Stop) -> Exit {
    if let Some(signal) = stop.signal() {
        return Exit::Signal(signal);
    }
    if run.end == End::Unreachable || !run.answered_anything() {
        let most = |errors: &BTreeMap<String, u64>| errors.iter().max_by_key(|(_, n)| **n).map(|(why, _)| why.clone());
        let g = &run.generator;
        match most(&g.connect_errors) {
            Some(why) => note!("lastdrop: no answer from {}: {}", run.plan.url, with_question(&why)),
            None if !g.protocol_errors.is_empty() => {
                let why = most(&g.protocol_errors).unwrap_or_default();
                if run.plan.http.is_http2() {
                    note!("lastdrop: no answer from {} over HTTP/2: {why}", run.plan.url);
                } else {
                    note!("lastdrop: what {} answers is not HTTP: {why}", run.plan.url);
                }
            }
            None => note!("lastdrop: {} answered nothing; try: curl -v {}", run.plan.url, run.plan.url),
        }
        hint_of_restore(&run.plan.url);
        return Exit::Failed;
    }
    match run.validity.verdict {
        Verdict::Invalid => Exit::Invalid,
        _ if !ObjectiveResult::all_met(&run.objectives) => Exit::Missed,
        _ => Exit::Done,
    }
}
