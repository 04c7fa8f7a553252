//! `lastdrop tune SERVER --url URL`

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_diagnose::findings::diagnose;
use lastdrop_experiment::doctor::{DoctorOptions, Intrusiveness, clues, examine, examine_again, proposals, workers};
use lastdrop_experiment::lab::warm::RECYCLING_WARM_UP;
use lastdrop_experiment::lab::{Lab, LabError, Observer};
use lastdrop_experiment::machine::Machine;
use lastdrop_experiment::observe::databases::DatabaseOptions;
use lastdrop_experiment::observe::visitors::Visitors;
use lastdrop_experiment::trials::tune::{
    CheckpointOptions, ExamineAfter, ExamineBefore, InitialFindings, SearchConstraints, TuneOptions, tune as run_tune,
};
use lastdrop_model::bounds::{DURATION, GAIN, MEMORY, PAUSE, RACE, TRIALS};
use lastdrop_model::documents::{Goal, Proposal, RemainingLimit, TUNE_SCHEMA, TuneDocument, TuneVerdict};
use lastdrop_model::examination::Examination;
use lastdrop_model::objective::Metric;
use lastdrop_model::{KeepAlive, Phase, Plan, Setting, Settings};
use lastdrop_report::export::Runs;
use lastdrop_report::tune_text;
use lastdrop_server::{Kind, ServerRef, check_called_apart, kinds};
use lastdrop_store::Store;
use lastdrop_traffic::Format;

use crate::commands::watchdog::Watchdog;
use crate::commands::{Report, check_same_machines, diary_folder, observers, observers_of, open_store, site_of};
use crate::exit::{Exit, UsageError};
use crate::fleet::machines;
use crate::options::{
    FormatArgs, LoadArgs, NetworkArgs, Objectives, OthersArgs, OutputArgs, RequestArgs, RunsOnArgs, objectives, within,
};
use crate::run_plan;
use crate::signals::Stop;
use crate::stdio::note;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop tune apache --url http://127.0.0.1/perl/page.pl -c 50\n  lastdrop tune apache:/srv/www/apache2.conf --url http://127.0.0.1:8080/ --memory 400M --keep\n  lastdrop tune target:target.toml --url http://127.0.0.1:8080/\n  lastdrop tune nginx php-fpm --url http://127.0.0.1/index.php -c 50 --keepalive on\n  lastdrop tune nginx --url http://127.0.0.1/ --only worker_processes,sendfile --range worker_connections=64..4096 --explain"
)]
pub struct TuneArgs {
    #[arg(required = true, value_name = "SERVER", help = format!(
        "The server, or several that are changed together ([NAME=]SERVER), each with @URL of its listener. Kinds: {}. AGENT/KIND is a \
         server on the machine of a fleet's agent, A,B/KIND the same server on several, where a setting is set on all",
        kinds::list_with_files(Kind::can_change)
    ))]
    pub servers: Vec<ServerRef>,
    /// What to load: a URL, or a plan file (*.toml) with requests and their weights. Healthy means that it answers as it does at the start
    #[arg(long, value_name = "URL|PLAN")]
    pub url: String,
    /// What the best settings are best at
    #[arg(long, value_name = "GOAL", default_value = "throughput", value_parser = ["throughput", "latency", "memory"])]
    pub goal: String,
    /// What settings have to reach: 'p99<300ms,errors<0.1%'. With throughput as the goal each trial searches for the highest rate that
    /// meets it, with at most -c requests at once. Otherwise a trial that misses one does not count
    #[arg(long, value_name = "OBJECTIVES", value_parser = objectives)]
    pub objective: Option<Objectives>,
    /// Memory that the server's workers may use together [default: what the machine has left]
    #[arg(long, value_name = "SIZE", value_parser = within::<u64>(MEMORY))]
    pub memory: Option<u64>,
    /// Leave the better settings in force
    #[arg(long)]
    pub keep: bool,
    /// Watch the server with its better settings for so long, and restore it if errors or p99 get worse than before. They are those of
    /// visitors with --live, otherwise of a light load of the same requests
    #[arg(long, value_name = "TIME", requires = "keep", value_parser = within::<Duration>(DURATION))]
    pub watch: Option<Duration>,
    /// The access log in which --live sees visitors with their times, and its format [default: the logs that the server has open, if their
    /// format has times; otherwise its status page]
    #[arg(long, value_name = "FILE[,LOGFORMAT]", requires = "live", value_parser = access_log)]
    pub access_log: Option<(PathBuf, Option<Format>)>,
    /// A watchdog restores the servers if this tune dies, or nothing happens for so long. At least 5s; 0s is no watchdog
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = dead_man)]
    pub dead_man: Duration,
    #[command(flatten)]
    pub others: OthersArgs,
    #[command(flatten)]
    pub on: RunsOnArgs,
    /// Examine the servers first as doctor does, for half a minute, and try what it proposes before anything else. The report then also
    /// says what limits the server with the better settings
    #[arg(long)]
    pub doctor: bool,
    /// Most pairs of blocks in the race
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = within::<u32>(RACE))]
    pub blocks: u32,
    /// Trials of the search, at most, with those in which the best are measured again. One of too few answers, made again
    /// in longer blocks, does not count. The race of the best against the baseline comes after them
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = within::<u32>(TRIALS))]
    pub trials: u32,
    /// Begin no trial of the search after this time
    #[arg(long, value_name = "TIME", value_parser = within::<Duration>(DURATION))]
    pub time: Option<Duration>,
    /// Continue where the same command was killed: no trial is measured again
    #[arg(long)]
    pub resume: bool,
    /// Search these settings and no others, of any that lastdrop knobs lists (several with commas)
    #[arg(long, value_name = "SETTING,…", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Leave these alone
    #[arg(long, value_name = "SETTING,…", value_delimiter = ',')]
    pub not: Vec<String>,
    /// Search a setting between two numbers
    #[arg(long, value_name = "SETTING=A..B", value_parser = range)]
    pub range: Vec<(String, u64, u64)>,
    /// Set this in all trials except the baseline's
    #[arg(long, value_name = "SETTING=VALUE", value_parser = fixed)]
    pub fix: Vec<(String, Setting)>,
    /// Say why each setting is searched or not
    #[arg(long)]
    pub explain: bool,
    /// Say what would be searched and how long that would take, and change nothing. The look before the search puts its load on for a
    /// few seconds
    #[arg(long, conflicts_with_all = ["keep", "resume", "doctor"])]
    pub dry_run: bool,
    /// The smallest gain worth a change, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = within::<f64>(GAIN))]
    pub min_gain: f64,
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

/// Reads `SETTING=A..B`.
fn range(text: &str) -> Result<(String, u64, u64), String> {
    let read = || {
        let (name, numbers) = text.split_once('=')?;
        let (low, high) = numbers.split_once("..")?;
        Some((name.to_string(), low.trim().parse().ok()?, high.trim().parse().ok()?))
    };
    let error = || format!("'{text}' is no range: write SETTING=A..B, such as MaxRequestWorkers=10..200");
    read().filter(|(name, low, high)| !name.is_empty() && low < high).ok_or_else(error)
}

/// A shorter watchdog would end tunes that only wait for a server to start.
const LEAST_DEAD_MAN: Duration = Duration::from_secs(5);

fn dead_man(text: &str) -> Result<Duration, String> {
    let time = PAUSE.read::<Duration>(text).map_err(|e| e.to_string())?;
    if time.is_zero() || time >= LEAST_DEAD_MAN {
        return Ok(time);
    }
    Err("a tune says nothing for some seconds while a server starts, and would be ended then; write 5s or more, or 0s for no watchdog".into())
}

/// Reads `FILE` or `FILE,LOGFORMAT`.
fn access_log(text: &str) -> Result<(PathBuf, Option<Format>), String> {
    let (file, format) = text.split_once(',').map_or((text, None), |(file, format)| (file, Some(format)));
    Ok((file.into(), format.map(|format| format.trim().parse()).transpose()?))
}

/// The source of the visitors' latency, with --live.
fn visitors(args: &TuneArgs) -> Result<Option<Visitors>> {
    match &args.access_log {
        _ if !args.others.live => Ok(None),
        Some((file, format)) => {
            let seen = Visitors::in_log(file, format.as_ref());
            Ok(Some(seen.with_context(|| format!("cannot read {}", file.display()))?))
        }
        None => Ok(Visitors::of(&args.servers)),
    }
}

/// Reads `SETTING=VALUE`.
fn fixed(text: &str) -> Result<(String, Setting), String> {
    let pair = text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    let (name, value) =
        pair.ok_or_else(|| format!("'{text}' is no setting: write SETTING=VALUE, such as KeepAlive=Off"))?;
    Ok((name.to_string(), Setting::read(value)))
}

/// Length of one block unless the user says otherwise.
const BLOCK: Duration = Duration::from_secs(5);
/// Limit of requests in flight in the search for the highest rate.
const AT_ONCE: u32 = 64;
/// Number of stored documents that are searched for earlier tunes, and limit of their winners to try.
const LOOKED_THROUGH: usize = 200;
const MOST_EARLIER: usize = 2;
/// Stands for a finding in proposals from earlier tunes.
const EARLIER: &str = "earlier-tune";
/// Length of the load in the examination before the search: with --doctor, and without.
const LOOK: Duration = Duration::from_secs(5);
const BRIEF_LOOK: Duration = Duration::from_secs(3);
/// A thread's share of a processor is known after a second under load (`probe::thread_states`); the rest is for its start.
const SHORTEST_LOOK: Duration = Duration::from_secs(2);
/// Warm-up before each block.
const SETTLING: Duration = Duration::from_secs(1);

/// The load of one block.
fn plan(args: &TuneArgs) -> Result<Plan> {
    if args.request.urls.is_some() {
        return Err(UsageError(
            "what is loaded is said by --url: write a plan with those URLs, urls = \"FILE\"".into(),
        )
        .into());
    }
    let mut load = LoadArgs { warm_up: None, ..args.load.clone() };
    let is_file = run_plan::is_plan_file(&args.url);
    if !is_file {
        load.duration = load.duration.or(Some(BLOCK));
        // Browsers reuse their connections, and each connection holds a worker.
        let usual = if args.request.page { KeepAlive::On } else { KeepAlive::Off };
        load.keepalive = load.keepalive.or(Some(usual));
        let searches_rates = args.objective.is_some() && args.goal == "throughput" && load.rate.is_none();
        load.users = load.users.or(searches_rates.then_some(AT_ONCE));
    }
    let (mut plan, origin) = run_plan::plan(&args.url, &load, &args.request, &args.network)?;
    plan.keep_secrets = args.output.keep_secrets;
    if let Some(objectives) = &args.objective {
        plan.objectives.clone_from(&objectives.0);
        plan.check_classes(&plan.objectives).map_err(|e| UsageError(e.to_string()))?;
    }
    let rates = plan.objectives.iter().filter(|o| o.metric == Metric::Rate).count();
    if args.goal == "throughput" && (1..plan.objectives.len()).contains(&rates) {
        return Err(UsageError("the rate is what is searched: leave it out of the objective".into()).into());
    }
    plan.phases.retain(|p| p.measured);
    origin.settle(&mut plan)?;
    if !is_file && args.load.keepalive.is_none() && plan.http.is_http2() {
        // A connection of HTTP/2 for each request would measure little but handshakes.
        plan.keepalive = KeepAlive::On;
    }
    run_plan::spread(&mut plan);
    let fits = |p: &Phase| p.requests.is_none() && p.duration.is_some() && !p.load.changes();
    if plan.phases.len() != 1 || !plan.phases.iter().all(fits) {
        let what =
            format!("{}: blocks of a tune are one measured phase of some seconds with a load that stays", args.url);
        return Err(UsageError(what).into());
    }
    Ok(plan)
}

/// Refuses what no tune can do.
fn check(args: &TuneArgs) -> Result<()> {
    if args.load.requests.is_some() {
        return Err(UsageError("blocks of a tune have a length in time: -d instead of -n".into()).into());
    }
    if args.load.ramp_to.is_some() {
        return Err(UsageError("blocks of a tune are compared with each other: no --ramp-to".into()).into());
    }
    if args.doctor {
        check_same_machines(&args.servers)?;
    }
    if args.others.live && args.servers.iter().all(ServerRef::is_elsewhere) && args.access_log.is_none() {
        note!("note: visitors are not seen on other machines: it is tuned under a load of ours, with graceful reloads");
    }
    check_called_apart(&args.servers).map_err(UsageError)?;
    Ok(())
}

fn goal_of(goal: &str) -> Goal {
    match goal {
        "latency" => Goal::Latency,
        "memory" => Goal::Memory,
        _ => Goal::Throughput,
    }
}

/// Starts the process that restores servers if this one ends or hangs.
fn watchdog_of(servers: &[String], patience: Duration, dry_run: bool) -> Result<Option<Watchdog>> {
    // Agents restore servers by themselves when the coordinator is silent: `servers` are those of this machine.
    let is_wanted = !patience.is_zero() && !dry_run && !servers.is_empty();
    Ok(if is_wanted { Some(Watchdog::start(servers, patience)?) } else { None })
}

/// Returns a short examination, for short blocks.
fn brief<'a>(look: &DoctorOptions<'a>, order: &TuneOptions, has_visitors: bool) -> DoctorOptions<'a> {
    let mut brief = look.clone();
    brief.brief = true;
    brief.time = order
        .plan
        .phases
        .first()
        .and_then(|p| p.duration)
        .map_or(BRIEF_LOOK, |block| block.clamp(SHORTEST_LOOK, BRIEF_LOOK));
    if has_visitors && order.beside_visitors.is_none() {
        brief.intrusiveness = Intrusiveness::Observe;
    }
    brief
}

pub fn tune(args: TuneArgs) -> Result<Exit> {
    check(&args)?;
    let plan = plan(&args)?;
    let (warm_up, plan_seed) = (args.load.warm_up, plan.seed);
    let report = Report::of(&args.output)?.with_format(args.form)?;
    let stop = Stop::on_signals(false)?;
    let diary = diary_folder(&args.output);
    if args.resume && diary.is_none() {
        return Err(UsageError("--resume needs what --no-store leaves out".into()).into());
    }
    let store = open_store(&args.output)?;
    let look = DoctorOptions {
        servers: &args.servers,
        plan: plan.clone(),
        intrusiveness: Intrusiveness::Whole,
        live: args.others.live,
        ignore: args.others.ignore_source.clone(),
        databases: DatabaseOptions::default(),
        time: LOOK,
        brief: false,
    };
    let machines = machines(&args.servers, &args.on.of)?;
    let mut carrier = args.on.carrier(&[&look.plan], store.as_ref())?;
    let mut before = None;
    if args.doctor {
        let observers = observers(args.output.progress(), store.clone(), Runs::Several, &stop);
        let mut lab = Lab { carrier, ..Lab::new(&stop.flag, observers) };
        let mut site = site_of(&machines, &look, &mut lab)?;
        before = match examine(&mut lab, &look, site.as_mut()) {
            Ok(examination) => Some(diagnose(&examination)),
            Err(LabError::Interrupted) => return Ok(Exit::Signal(stop.signal().unwrap_or(2))),
            Err(e) => return Err(e.into()),
        };
        carrier = lab.carrier.take();
    }
    let visitors = visitors(&args)?;
    let mut observers = observers_of(&args.output, store.clone(), Runs::Several, &stop)?;
    let stack = machines.open(&args.servers, Some(&plan.url), &(&args.others).into())?;
    let goal = goal_of(&args.goal);
    // The visitors are load enough, unless the user asks for more.
    let load_is_given = args.load.users.is_some() || args.load.rate.is_some() || run_plan::is_plan_file(&args.url);
    let order = TuneOptions {
        goal,
        memory: args.memory,
        keep: args.keep,
        watch: args.watch,
        beside_visitors: load_is_given.then(|| plan.clone()),
        plan,
        constraints: SearchConstraints {
            only: args.only,
            not: args.not,
            ranges: args.range,
            fixed: args.fix.into_iter().collect(),
        },
        proposals: [
            before.as_ref().map_or_else(Vec::new, |document| proposals(document, &args.servers)),
            store.as_ref().map_or_else(Vec::new, |store| earlier_winners(store, &stack.name(), goal)),
        ]
        .concat(),
        clues: before.as_ref().map_or_else(Vec::new, |document| clues(&document.examination, &args.servers).0),
        workers: before.as_ref().map_or_else(Vec::new, |document| workers(&document.examination, &args.servers)),
        dry_run: args.dry_run,
        trials: args.trials,
        time: args.time,
        seed: plan_seed,
        checkpoint: diary.map(|folder| CheckpointOptions { folder, resume: args.resume }),
        max_pairs: args.blocks,
        min_gain: args.min_gain / 100.0,
        recycling_warm_up: warm_up.unwrap_or(RECYCLING_WARM_UP),
        settling: warm_up.unwrap_or(SETTLING),
        advise_keepalive: true,
    };
    let watchdog = watchdog_of(&stack.members(), args.dead_man, args.dry_run)?;
    observers.extend(watchdog.as_ref().map(|w| Box::new(w.pulse()) as Box<dyn Observer>));
    let mut lab = Lab { carrier, ..Lab::new(&stop.flag, observers) };
    // The watchdog outlives `run_tune`, which restores or keeps everything before it returns.
    let machines = &machines;
    // Settings that the user names need no examination.
    let is_wanted = order.constraints.only.is_empty() && before.is_none();
    let brief = &brief(&look, &order, visitors.is_some());
    let mut look_first = move |lab: &mut Lab<'_>| {
        check_same_machines(brief.servers).map_err(|e| LabError::Other(e.to_string()))?;
        let mut site = site_of(machines, brief, lab)?;
        let seen = examine(lab, brief, site.as_mut())?;
        let (clues, notes) = clues(&seen, brief.servers);
        Ok(InitialFindings { clues, notes, workers: workers(&seen, brief.servers) })
    };
    let first = is_wanted.then_some(&mut look_first as ExamineBefore<'_>);
    let look = &look;
    let mut after =
        before.as_ref().map(|before| move |lab: &mut Lab<'_>| limit_after(lab, look, machines, &before.examination));
    let after = after.as_mut().map(|after| after as ExamineAfter<'_>);
    let document = run_tune(&mut lab, stack, &order, first, after, visitors);
    drop(watchdog);
    let document = document?;
    report.keep_and_give(store.as_ref(), &tune_text(&document, args.explain), &document)?;
    lab.trouble().iter().for_each(|trouble| note!("note: some runs {trouble}"));
    Ok(exit_of(&document, &stop))
}

/// The winners of earlier tunes of the same servers with the same goal, the latest first. The search tries them early and has
/// to prove them again.
fn earlier_winners(store: &Store, servers: &str, goal: Goal) -> Vec<Proposal> {
    let Ok(kept) = store.documents(LOOKED_THROUGH) else { return Vec::new() };
    let mut all: Vec<Proposal> = Vec::new();
    for (id, ..) in kept.into_iter().filter(|(.., schema)| schema == TUNE_SCHEMA) {
        let read = store.document(&id).ok().and_then(|text| lastdrop_model::read_json::<TuneDocument>(&text).ok());
        let same = read.filter(|d| d.server == servers && d.goal == goal && d.verdict == TuneVerdict::Improved);
        let Some(document) = same else { continue };
        let Some(winner) = &document.winner else { continue };
        let searched = |name: &String| document.searched.iter().any(|s| s.name == *name && !s.values.is_empty());
        // Only searched settings: the search derives the others again.
        let settings: Settings = winner.settings.clone().into_iter().filter(|(name, _)| searched(name)).collect();
        if !settings.is_empty() && all.iter().all(|p| p.settings != settings) {
            let reason = format!("the tune {id} has proven it better");
            all.push(Proposal { settings, reason, finding: EARLIER.into(), expected: None });
        }
    }
    all.truncate(MOST_EARLIER);
    all
}

/// The limit of the servers with their present settings, under the same load.
fn limit_after(
    lab: &mut Lab<'_>,
    look: &DoctorOptions<'_>,
    machine: &dyn Machine,
    before: &Examination,
) -> Result<RemainingLimit, LabError> {
    let mut site = site_of(machine, look, lab)?;
    let found = diagnose(&examine_again(lab, look, site.as_mut(), before)?);
    let limit = found.findings.iter().find(|f| found.limit.as_ref() == Some(&f.id));
    let title = limit.map_or_else(|| "nothing is seen to be the limit".into(), |f| f.title.clone());
    Ok(RemainingLimit { id: found.limit.clone(), title })
}

fn exit_of(document: &TuneDocument, stop: &Stop) -> Exit {
    match (document.interrupted, document.verdict) {
        (true, _) => Exit::Signal(stop.signal().unwrap_or(2)),
        (_, TuneVerdict::Infeasible) => Exit::Failed,
        _ => Exit::Done,
    }
}
