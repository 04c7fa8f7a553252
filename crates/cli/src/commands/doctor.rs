//! `lastdrop doctor SERVER… --url URL`

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_diagnose::findings::{diagnose, diagnose_without, finding_kind, finding_kinds};
use lastdrop_experiment::doctor::{ConfirmOptions, DoctorOptions, Intrusiveness, confirm, examine};
use lastdrop_experiment::lab::{Lab, LabError};
use lastdrop_model::documents::DoctorDocument;
use lastdrop_model::examination::Examination;
use lastdrop_report::export::Runs;
use lastdrop_report::{doctor_list, doctor_text, explain_text};
use lastdrop_server::{Kind, OtherTrafficPolicy, ServerRef, check_called_apart, kinds};

use crate::commands::{Report, check_same_machines, observers_of, open_store, site_of};
use crate::exit::{Exit, UsageError};
use crate::fleet::{Machines, machines};
use crate::options::{
    DatabaseArgs, FormatArgs, LoadArgs, NetworkArgs, OthersArgs, OutputArgs, RequestArgs, RunsOnArgs,
};
use crate::run_plan;
use crate::signals::Stop;
use crate::stdio::{self, note};

#[derive(Debug, Args)]
#[command(
    mut_arg("users", |a| a.help("Users of the load you ask about (closed loop) [default: 20]")),
    mut_arg("duration", |a| a.help("How long the load you ask about lasts, or traffic is watched; it scales the other steps [default: 12s; --observe: 30s]")),
    mut_arg("live", |a| a.help("Put on the whole load although other people use the server; with --confirm by a graceful reload if that is enough")),
    // Refused: a doctor has steps of its own.
    mut_arg("requests", |a| a.hide(true)),
    mut_arg("ramp_to", |a| a.hide(true)),
    mut_arg("ramp_steps", |a| a.hide(true)),
    mut_arg("warm_up", |a| a.hide(true)),
    after_help = "Examples:\n  lastdrop doctor apache --url http://127.0.0.1/app\n  lastdrop doctor nginx php-fpm --url http://127.0.0.1/index.php -c 50\n  lastdrop doctor nginx --url http://127.0.0.1/ --gentle\n  lastdrop doctor apache --url http://127.0.0.1/ --observe -d 60s\n  lastdrop doctor web-1/apache --url http://shop.example/ --nats tls://10.0.0.1:4222 --token-file FILE\n  lastdrop doctor --explain workers-exhausted"
)]
pub struct DoctorArgs {
    #[arg(value_name = "SERVER", help = format!(
        "The server, or several [default: the one that listens at the URL]. Servers behind it are found by their connections. \
         Kinds: {}. AGENT/KIND is a server on the machine of a fleet's agent, A,B/KIND the same server on several that share the load",
        kinds::list_with_files(Kind::is_program)
    ))]
    pub servers: Vec<ServerRef>,
    /// What to load: a URL, or a plan file (*.toml)
    #[arg(long, value_name = "URL|PLAN", required_unless_present_any = ["list", "explain", "from"])]
    pub url: Option<String>,
    /// A few users only, below what the server can do
    #[arg(long, conflicts_with = "observe")]
    pub gentle: bool,
    /// Put on no load: watch the traffic that is there
    #[arg(long)]
    pub observe: bool,
    /// Try the proposed change in interleaved blocks against the server as it is, and restore it
    #[arg(long, conflicts_with_all = ["gentle", "observe", "from"])]
    pub confirm: bool,
    /// With --confirm: leave the change in force if it helped
    #[arg(long, requires = "confirm")]
    pub keep: bool,
    #[command(flatten)]
    pub others: OthersArgs,
    #[command(flatten)]
    pub on: RunsOnArgs,
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// Print each waste and risk in full, not only one line for the ten that weigh most
    #[arg(long)]
    pub all: bool,
    /// List all findings
    #[arg(long, conflicts_with_all = ["json", "format"])]
    pub list: bool,
    /// Conclude again from the file of an earlier --json, without the server
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "gentle", "observe", "servers"])]
    pub from: Option<PathBuf>,
    /// What decides about a finding, and what looks like it
    #[arg(long, value_name = "ID", conflicts_with_all = ["json", "format"])]
    pub explain: Option<String>,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub request: RequestArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub form: FormatArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Default number of users: more than a small pool has workers.
const USERS: u32 = 20;
/// Default length of the load.
const TIME: Duration = Duration::from_secs(12);
/// Default length of the observation of existing traffic.
const OBSERVE: Duration = Duration::from_secs(30);

/// Names of findings below this similarity are not suggested (Jaro-Winkler, as for the keys of plans).
const NEAR: f64 = 0.8;

pub fn doctor(args: DoctorArgs) -> Result<Exit> {
    if args.list {
        stdio::out(doctor_list(finding_kinds().iter().map(|a| (a.id, a.severity, a.what))));
        return Ok(Exit::Done);
    }
    if let Some(id) = &args.explain {
        let Some(found) = finding_kind(id) else {
            let likeness = |a: &&str| strsim::jaro_winkler(a, id);
            let near = finding_kinds().iter().map(|a| a.id).max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            let near = near.filter(|n| likeness(n) > NEAR).map_or(".".into(), |n| format!("; did you mean {n}?"));
            return Err(
                UsageError(format!("there is no finding '{id}'{near} All of them: lastdrop doctor --list")).into()
            );
        };
        stdio::out(explain_text(found.id, found.severity, found.what, found.criterion, found.look_alikes));
        return Ok(Exit::Done);
    }
    if let Some(file) = &args.from {
        if !args.output.export.is_empty() {
            return Err(UsageError("no run is made here that --export could hand on".into()).into());
        }
        let document = again(file)?;
        Report::of(&args.output)?.with_format(args.form)?.give(&doctor_text(&document, args.all), &document)?;
        return Ok(Exit::Done);
    }
    if args.load.requests.is_some() || args.load.ramp_to.is_some() || args.load.warm_up.is_some() {
        return Err(UsageError("a doctor has steps of its own: no -n, --ramp-to or --warm-up".into()).into());
    }
    if args.observe && args.on.is_fleet() {
        return Err(UsageError("with --observe there is no load of ours that a --fleet could put on".into()).into());
    }
    check_called_apart(&args.servers).map_err(UsageError)?;
    let machines = machines_of(&args)?;
    let target = args.url.clone().unwrap_or_default();
    let mut load = args.load.clone();
    if !load.says_load() && !run_plan::is_plan_file(&target) {
        load.users = Some(USERS);
    }
    let time = load.duration.unwrap_or(if args.observe { OBSERVE } else { TIME });
    let (mut plan, origin) = run_plan::plan(&target, &load, &args.request, &args.network)?;
    plan.keep_secrets = args.output.keep_secrets;
    origin.settle(&mut plan)?;
    run_plan::spread(&mut plan);
    if let Some(phase) = plan.phases.iter().find(|p| p.load.changes()) {
        return Err(UsageError(format!("phase '{}' changes its load; a doctor's steps do not", phase.name)).into());
    }
    let report = Report::of(&args.output)?.with_format(args.form)?;
    let stop = Stop::on_signals(false)?;
    let intrusiveness = match (args.observe, args.gentle) {
        (true, _) => Intrusiveness::Observe,
        (_, true) => Intrusiveness::Gentle,
        _ => Intrusiveness::Whole,
    };
    let order = DoctorOptions {
        servers: &args.servers,
        plan,
        intrusiveness,
        live: args.others.live,
        ignore: args.others.ignore_source.clone(),
        databases: args.database.options()?,
        time,
        brief: false,
    };
    let store = open_store(&args.output)?;
    let carrier = args.on.carrier(&[&order.plan], store.as_ref())?;
    let observers = observers_of(&args.output, store.clone(), Runs::Several, &stop)?;
    let mut lab = Lab { carrier, ..Lab::new(&stop.flag, observers) };
    let mut site = site_of(&machines, &order, &mut lab)?;
    let examination = match examine(&mut lab, &order, site.as_mut()) {
        // The report then says that nothing was measured.
        Err(LabError::Interrupted) if stop.signal().is_some() => {
            Examination { url: order.plan.url.to_string(), ..Examination::default() }
        }
        other => other?,
    };
    let mut document = diagnose(&examination);
    let mut confirmed = Ok(());
    if args.confirm && stop.signal().is_none() {
        let others = OtherTrafficPolicy::from(&args.others);
        let trying = ConfirmOptions { others: &others, keep: args.keep, machine: &machines };
        confirmed = match confirm(&mut lab, &order, site.as_mut(), &trying, &mut document) {
            Err(LabError::Interrupted) => Ok(()),
            other => other,
        };
    }
    // A failed trial does not lose the findings.
    if let Err(e) = &confirmed {
        document.notes.push(format!("the change was not tried to its end: {e}"));
    }
    document.interrupted = stop.signal().is_some();
    report.keep_and_give(store.as_ref(), &doctor_text(&document, args.all), &document)?;
    for trouble in lab.trouble() {
        note!("note: some runs {trouble}");
    }
    confirmed?;
    let done = if document.undecided().is_some() { Exit::Invalid } else { Exit::Done };
    Ok(stop.signal().map_or(done, Exit::Signal))
}

/// The machines of the servers.
fn machines_of(args: &DoctorArgs) -> Result<Machines> {
    check_same_machines(&args.servers)?;
    let option = args.database.first().filter(|_| args.servers.iter().any(ServerRef::is_elsewhere));
    if let Some(option) = option {
        let what = format!(
            "a database behind a server of another machine is asked from there, with what its agent may see: no {option} with AGENT/KIND"
        );
        return Err(UsageError(what).into());
    }
    let machines = machines(&args.servers, &args.on.of)?;
    if args.confirm {
        machines.check_may_act(&args.servers, "--confirm")?;
    }
    Ok(machines)
}

/// Applies the current rules to a stored examination.
fn again(file: &Path) -> Result<DoctorDocument> {
    let text = lastdrop_load::files::read_text(file).with_context(|| format!("cannot read {}", file.display()))?;
    let then: DoctorDocument = lastdrop_model::read_json(&text)
        .map_err(|e| UsageError(format!("{} is no document of doctor --json: {e}", file.display())))?;
    // A finding that a trial has refuted does not return.
    let refuted: Vec<&str> = then.confirmed.iter().filter(|c| c.is_refuted()).map(|c| c.id.as_str()).collect();
    let now = diagnose_without(&then.examination, &refuted);
    Ok(DoctorDocument { confirmed: then.confirmed, cache: then.cache, interrupted: then.interrupted, ..now })
}
