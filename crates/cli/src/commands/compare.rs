//! `lastdrop compare A B`, stored or live

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use lastdrop_analyze::compare::{Metrics, assumed_floor, metrics_of, numbers, stored as compare_stored};
use lastdrop_experiment::lab::Lab;
use lastdrop_experiment::machine::Machine;
use lastdrop_experiment::trials::compare::{ChangedServer, CompareOptions, compare as compare_live, compare_changes};
use lastdrop_model::bounds::BLOCKS;
use lastdrop_model::documents::{
    COMPARE_SCHEMA, CompareDocument, CompareKind, CompareSide, CompareVerdict, MetricVerdict,
};
use lastdrop_model::{Load, Plan, Run, Verdict, secrets};
use lastdrop_report::compare_text;
use lastdrop_report::export::Runs;
use lastdrop_server::{ConfigScope, OtherTrafficPolicy, ServerError, ServerRef, kinds};
use lastdrop_store::Store;
use lastdrop_traffic::reports::{self, Report};

use crate::commands::{AS_IT_IS, Report as Output, check_code, default_store, observers_of, open_store, tell_change};
use crate::exit::{Exit, UsageError};
use crate::fleet::machines;
use crate::options::{FormatArgs, LoadArgs, NetworkArgs, OutputArgs, RunsOnArgs, SideArgs, VersionArgs, within};
use crate::run_plan;
use crate::signals::Stop;
use crate::stdio::note;

#[derive(Debug, Args)]
#[command(
    mut_arg("duration", |a| a.help("Length of each stretch of load [default: 520ms, or 1s with --url]")),
    mut_arg("warm_up", |a| a.help("Load before each stretch, outside its numbers [default: 50ms, or 300ms with --url]")),
    mut_arg("requests", |a| a.help("Requests of each stretch, instead of a length")),
    after_help = "Stored runs do not know what changed on the machine between them; for a decision use --live.\nA block is a stretch of load at A and one at B. Ratios are B / A.\n\nExamples:\n  lastdrop compare 3fa2 last                                      two runs of the store\n  lastdrop compare before.json after.json --fail-on-worse         two exported runs\n  lastdrop compare ab-before.txt ab-after.txt                     what ab said then and now\n  lastdrop compare --live http://127.0.0.1:8080/ http://127.0.0.1:8081/ -c 20\n  lastdrop compare --live old.toml new.toml --blocks 20 -d 2s --fail-on-worse\n  lastdrop compare --live https://127.0.0.1:8443/ -c 100 --a '--http 1.1' --b '--http 2'\n  lastdrop compare --live http://127.0.0.1:8080/ --aa             the noise of this machine\n  lastdrop compare --live apache --url URL --a 'AllowOverride All' --b 'AllowOverride None'\n  lastdrop compare --live nginx --url URL --b 'gzip_comp_level 1' --at vhost:shop.example"
)]
pub struct CompareArgs {
    /// The baseline: a run's id, an exported run (JSON), or a report of ab, siege, wrk, wrk2, hey, oha, k6 or vegeta. With --live a
    /// URL or a plan file, or with --url the server that is changed
    #[arg(value_name = "A")]
    pub a: String,
    /// The candidate, in the same form
    #[arg(value_name = "B", required_unless_present_any = ["aa", "url", "change_a", "change_b"], conflicts_with = "url")]
    pub b: Option<String>,
    /// Load both now, in interleaved blocks
    #[arg(long)]
    pub live: bool,
    /// Compare two changes of a server: what is requested meanwhile. The server is started afresh or reloaded before each stretch, and
    /// restored at the end
    #[arg(long, value_name = "URL|PLAN", requires = "live", conflicts_with = "aa")]
    pub url: Option<String>,
    #[arg(long = "a", id = "change_a", value_name = "LINES", requires = "live", allow_hyphen_values = true, help = format!(
        "With --url, the server with these lines of its configuration (';' between them) is A: directives of {}, or SETTING VALUE of \
         any server [default: the server as it is]. Without --url, options for A alone: '--http 1.1', '--connections 4', \
         '--keepalive off', '-H LINE' and others of HTTP",
        kinds::titles(|k| k.directives)
    ))]
    pub change_a: Option<String>,
    /// The same for B
    #[arg(long = "b", id = "change_b", value_name = "LINES", requires = "live", allow_hyphen_values = true)]
    pub change_b: Option<String>,
    /// Where the directives apply: vhost:NAME (also a proxy or an upstream), location:PATH or directory:PATH [default: wherever the
    /// configuration has them, otherwise the whole server]
    #[arg(long, value_name = "PLACE", requires = "url")]
    pub at: Option<ConfigScope>,
    /// Also allow directives that name a program, module, library, user, pid file, or a file that is written
    #[arg(long, requires = "url")]
    pub allow_code: bool,
    /// Change the server although other people use it, by a graceful reload if that is enough
    #[arg(long, requires = "url")]
    pub in_use: bool,
    /// A client with this address is a health check and no visitor; may be given several times
    #[arg(long, value_name = "ADDRESS", requires = "url")]
    pub ignore_source: Vec<IpAddr>,
    /// Compare A with itself: the noise of this machine, kept for comparisons of stored runs
    #[arg(long, requires = "live", conflicts_with = "b")]
    pub aa: bool,
    /// Most blocks; the comparison ends early when the answer is clear
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = within::<u32>(BLOCKS))]
    pub blocks: u32,
    /// Exit code 3 if B is worse in any metric
    #[arg(long)]
    pub fail_on_worse: bool,
    #[command(flatten)]
    pub load: LoadArgs,
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

/// Default length of a stretch of load, and of its warm-up: 18 s for fifteen blocks.
const STRETCH: Duration = Duration::from_millis(520);
const SETTLING: Duration = Duration::from_millis(50);
/// The same for changes of a server, whose start takes longer than a short stretch.
const STRETCH_OF_CHANGE: Duration = Duration::from_secs(1);
const SETTLING_OF_CHANGE: Duration = Duration::from_millis(300);

pub fn compare(args: &CompareArgs) -> Result<Exit> {
    let report = Output::of(&args.output)?.with_format(args.form)?;
    let (document, exit, store) = match args.live {
        true if args.url.is_some() => changes(args)?,
        true => live(args)?,
        // Not stored: a comparison of stored runs can be repeated.
        false => (stored(args)?, Exit::Done, None),
    };
    report.keep_and_give(store.as_ref(), &compare_text(&document), &document)?;
    let worse = document.metrics.values().any(|m| m.verdict == MetricVerdict::Worse);
    Ok(match exit {
        Exit::Done if args.fail_on_worse && worse && document.verdict != CompareVerdict::Inconclusive => Exit::Missed,
        exit => exit,
    })
}

/// The plan of one side: requests of a URL or plan file, load of the options or of the plan file, and options of its own.
fn side(args: &CompareArgs, target: &str, own: &SideArgs, seed: u64) -> Result<Plan> {
    let load = &args.load;
    let (read, origin) = run_plan::requests_of(target, &args.network)?;
    let mut plan = read.plan;
    if !read.has_load || load.says_load() {
        if read.has_load {
            return Err(
                UsageError(format!("{target} says how much load there is; change it there, not by options")).into()
            );
        }
        plan.phases = load.phases(if args.url.is_some() { STRETCH_OF_CHANGE } else { STRETCH })?;
        plan.phases.retain(|p| p.measured);
    }
    if !read.has_seed {
        plan.seed = seed;
    }
    load.adjust(&mut plan)?;
    plan.keep_secrets = args.output.keep_secrets;
    for request in &mut plan.requests {
        request.headers.extend(load.headers.iter().cloned());
    }
    args.version.set(&mut plan);
    own.set(&mut plan);
    origin.settle(&mut plan)?;
    Ok(plan)
}

fn live(args: &CompareArgs) -> Result<(CompareDocument, Exit, Option<Store>)> {
    let seed = args.load.seed();
    let options = |text: &Option<String>| text.as_deref().map_or(Ok(SideArgs::default()), SideArgs::read);
    let (own_a, own_b) = (options(&args.change_a)?, options(&args.change_b)?);
    if args.aa && (args.change_a.is_some() || args.change_b.is_some()) {
        return Err(UsageError("with --aa both sides are A: leave --a and --b away".into()).into());
    }
    // The name goes into the report, so it must not contain secrets.
    let name = |target: &str, own: &SideArgs, text: &Option<String>| match text.as_deref().map(str::trim) {
        Some(text) if own.may_be_shown() => format!("{} {text}", secrets::url(target)),
        _ => secrets::url(target).into_owned(),
    };
    let b = args.b.as_ref().unwrap_or(&args.a);
    let order = CompareOptions {
        a: (name(&args.a, &own_a, &args.change_a), side(args, &args.a, &own_a, seed)?),
        b: (name(b, &own_b, &args.change_b), side(args, b, &own_b, seed)?),
        aa: args.aa,
        blocks: args.blocks,
        stretch: args.load.duration.unwrap_or(STRETCH),
        settling: args.load.warm_up.unwrap_or(SETTLING),
        seed,
    };
    let stop = Stop::on_signals(true)?;
    let store = open_store(&args.output)?;
    let carrier = args.on.carrier(&[&order.a.1, &order.b.1], store.as_ref())?;
    let observers = observers_of(&args.output, store.clone(), Runs::Several, &stop)?;
    let mut lab = Lab { carrier, ..Lab::new(&stop.flag, observers) };
    let mut document = compare_live(&mut lab, &order)?;
    if let (Some(floor), Some(store), false) = (&document.noise_floor, &store, document.interrupted) {
        store.keep_noise(floor)?;
        document.notes.push("this noise floor is kept, and reckoned with when stored runs are compared".into());
    }
    for trouble in lab.trouble() {
        note!("note: some runs {trouble}");
    }
    Ok((document, stop.signal().map_or(Exit::Done, Exit::Signal), store))
}

/// Compares two changes of a server.
fn changes(args: &CompareArgs) -> Result<(CompareDocument, Exit, Option<Store>)> {
    let target = args.url.as_deref().unwrap_or_default();
    if args.change_a.is_none() && args.change_b.is_none() {
        return Err(UsageError("--url goes with --a or --b: lines of the server's configuration".into()).into());
    }
    let server: ServerRef = args.a.parse().map_err(|what| UsageError(format!("{what}; with --url A is a server")))?;
    let seed = args.load.seed();
    let plan = side(args, target, &SideArgs::default(), seed)?;
    let name = |lines: &Option<String>| match lines.as_deref().map(str::trim) {
        None | Some("") => AS_IT_IS.to_string(),
        Some(lines) => lines.to_string(),
    };
    let order = CompareOptions {
        a: (name(&args.change_a), plan.clone()),
        b: (name(&args.change_b), plan),
        aa: false,
        blocks: args.blocks,
        stretch: args.load.duration.unwrap_or(STRETCH_OF_CHANGE),
        settling: args.load.warm_up.unwrap_or(SETTLING_OF_CHANGE),
        seed,
    };
    let stop = Stop::on_signals(false)?;
    let store = open_store(&args.output)?;
    let carrier = args.on.carrier(&[&order.a.1], store.as_ref())?;
    let observers = observers_of(&args.output, store.clone(), Runs::Several, &stop)?;
    let others =
        OtherTrafficPolicy { live: args.in_use, ignore: args.ignore_source.clone(), ..OtherTrafficPolicy::default() };
    let servers = [server];
    let opened = machines(&servers, &args.on.of)?.open(&servers, Some(&order.a.1.url), &others);
    let stack = opened.map_err(|e| match e {
        // Here --live means another thing.
        ServerError::Busy { .. } => anyhow!(e.to_string().replace("--live", "--in-use")),
        e => e.into(),
    })?;
    let read = |lines: &Option<String>| stack.change(lines.as_deref().unwrap_or(""), args.at.as_ref());
    let (a, b) = (read(&args.change_a)?, read(&args.change_b)?);
    let mut previews = Vec::new();
    for (side, lines, change) in [("A", &order.a.0, &a), ("B", &order.b.0, &b)] {
        let preview = stack.preview(change)?;
        check_code(&stack, change, args.allow_code)?;
        if !args.output.quiet {
            tell_change(side, lines, &preview);
        }
        previews.push(preview);
    }
    if previews[0] == previews[1] {
        let what = if previews[0].is_empty() { "the configuration says so already" } else { "they change the same" };
        return Err(UsageError(format!("A and B are the same to the server: {what}")).into());
    }
    let mut lab = Lab { carrier, ..Lab::new(&stop.flag, observers) };
    let document = compare_changes(&mut lab, &order, ChangedServer { stack, a, b })?;
    for trouble in lab.trouble() {
        note!("note: some runs {trouble}");
    }
    Ok((document, stop.signal().map_or(Exit::Done, Exit::Signal), store))
}

fn stored(args: &CompareArgs) -> Result<CompareDocument> {
    if args.load != LoadArgs::default() || args.network != NetworkArgs::default() {
        return Err(
            UsageError("stored runs are compared as they are; to put load on both now add --live".into()).into()
        );
    }
    if args.on.is_fleet() {
        return Err(UsageError("stored runs are compared where they are; --fleet goes with --live".into()).into());
    }
    if !args.output.export.is_empty() {
        return Err(UsageError(
            "no run is made here; --export goes with --live, and lastdrop export with stored runs".into(),
        )
        .into());
    }
    let b = args.b.as_deref().ok_or_else(|| UsageError("say what to compare with".into()))?;
    for name in [args.a.as_str(), b] {
        if name.contains("://") || run_plan::is_plan_file(name) {
            return Err(UsageError(format!("to compare {name} put load on it: add --live")).into());
        }
    }
    let path = args.output.store.clone().or_else(default_store);
    // A comparison of two exported runs does not create a store.
    let store = match &path {
        Some(path) if path.exists() && !args.output.no_store => Some(Store::open(path)?),
        _ => None,
    };
    match (read_side(&args.a, store.as_ref())?, read_side(b, store.as_ref())?) {
        (Side::Run(ra), Side::Run(rb)) => compare_runs((&args.a, &ra), (b, &rb), store.as_ref()),
        (sa, sb) => compare_reports((&args.a, &sa), (b, &sb), store.as_ref()),
    }
}

/// Compares reports of other programs, or one of them with a run.
fn compare_reports((a, sa): (&str, &Side), (b, sb): (&str, &Side), store: Option<&Store>) -> Result<CompareDocument> {
    let url = sb.url().or(sa.url()).unwrap_or_default();
    let floor = match store {
        Some(store) => store.noise(&url)?,
        None => None,
    };
    let floor = floor.unwrap_or_else(assumed_floor);
    let comparison = numbers(&sa.blocks(), &sb.blocks(), sa.is_open() && sb.is_open(), &floor);
    let mut notes = comparison.notes;
    notes.extend([("A", sa), ("B", sb)].into_iter().flat_map(|(name, side)| side.limits(name)));
    let side = |name: &str, side: &Side| CompareSide {
        name: name.into(),
        changes: Vec::new(),
        connections: None,
        runs: match side {
            Side::Run(run) => vec![run.id.clone()],
            Side::Reports(_) => Vec::new(),
        },
    };
    Ok(CompareDocument {
        schema: COMPARE_SCHEMA.into(),
        kind: CompareKind::Stored,
        server: None,
        a: side(a, sa),
        b: side(b, sb),
        metrics: comparison.metrics,
        classes: comparison.classes,
        verdict: comparison.verdict,
        reason: comparison.reason,
        smallest_difference: comparison.smallest_difference,
        blocks: Vec::new(),
        noise_floor: Some(floor),
        interrupted: false,
        notes,
    })
}

/// Compares two runs by their seconds and by the known noise. Each has the name that the user gave.
///
/// # Errors
/// When the store cannot be read.
pub fn compare_runs((a, ra): (&str, &Run), (b, rb): (&str, &Run), store: Option<&Store>) -> Result<CompareDocument> {
    let url = rb.plan.url.to_string();
    let floor = match store {
        Some(store) => store.noise(&url)?,
        None => None,
    };
    let floor = floor.unwrap_or_else(assumed_floor);
    let comparison = compare_stored(ra, rb, &floor);
    if let Some(store) = store {
        store.check_reads()?;
    }
    let mut notes = comparison.notes;
    let (mut verdict, mut reason) = (comparison.verdict, comparison.reason);
    for (name, run) in [("A", ra), ("B", rb)] {
        if run.validity.verdict == Verdict::Invalid {
            let why: Vec<&str> = run.validity.reasons.iter().map(|r| r.what.as_str()).collect();
            reason = format!("run {name} is invalid and cannot be compared: {}", why.join("; "));
            verdict = CompareVerdict::Inconclusive;
        } else if run.validity.verdict == Verdict::Doubtful {
            let why: Vec<&str> = run.validity.reasons.iter().map(|r| r.what.as_str()).collect();
            notes.push(format!("run {name} is doubtful: {}", why.join("; ")));
        }
    }
    let side = |name: &str, run: &Run| CompareSide {
        name: name.into(),
        changes: Vec::new(),
        connections: None,
        runs: vec![run.id.clone()],
    };
    Ok(CompareDocument {
        schema: COMPARE_SCHEMA.into(),
        kind: CompareKind::Stored,
        server: None,
        a: side(a, ra),
        b: side(b, rb),
        metrics: comparison.metrics,
        classes: comparison.classes,
        verdict,
        reason,
        smallest_difference: comparison.smallest_difference,
        blocks: Vec::new(),
        noise_floor: Some(floor),
        interrupted: false,
        notes,
    })
}

/// One side of a comparison of stored results.
enum Side {
    Run(Box<Run>),
    /// Reports of another program.
    Reports(Vec<Report>),
}

impl Side {
    fn url(&self) -> Option<String> {
        match self {
            Side::Run(run) => Some(run.plan.url.to_string()),
            Side::Reports(reports) => reports.iter().find_map(|r| r.url.clone()),
        }
    }

    fn is_open(&self) -> bool {
        match self {
            Side::Run(run) => run.plan.phases.iter().any(|p| p.measured && matches!(p.load, Load::Open { .. })),
            Side::Reports(reports) => reports.iter().all(|r| r.open_loop),
        }
    }

    /// The numbers of each report; a run is one.
    fn blocks(&self) -> Vec<Metrics> {
        let of = |r: &Report| -> Metrics {
            let told = [
                ("rps", r.rps),
                ("p50_us", r.p50_us),
                ("p90_us", r.p90_us),
                ("p99_us", r.p99_us),
                ("errors", r.errors),
            ];
            told.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
        };
        match self {
            Side::Run(run) => run.measured().map(|phase| metrics_of(run, phase)).into_iter().collect(),
            Side::Reports(reports) => reports.iter().map(of).collect(),
        }
    }

    /// The limits of what it says.
    fn limits(&self, name: &str) -> Vec<String> {
        let why = |reasons: &[lastdrop_model::Reason]| -> String {
            reasons.iter().map(|r| r.what.as_str()).collect::<Vec<_>>().join("; ")
        };
        match self {
            Side::Run(run) if run.validity.verdict == Verdict::Valid => Vec::new(),
            Side::Run(run) => vec![format!("run {name} is not to be relied on: {}", why(&run.validity.reasons))],
            Side::Reports(reports) => {
                let tool = reports.first().map_or("", |r| r.tool);
                let limits: BTreeSet<&str> = reports.iter().flat_map(|r| &r.limits).map(String::as_str).collect();
                limits.into_iter().map(|what| format!("{name} is by {tool}: {what}")).collect()
            }
        }
    }
}

/// Reads a run by its id from the store, or from a file an exported run or a report of another program.
fn read_side(name: &str, store: Option<&Store>) -> Result<Side> {
    let path = Path::new(name);
    if path.is_file() {
        let text = lastdrop_load::files::read_text(path).with_context(|| format!("cannot read {name}"))?;
        let ours = match lastdrop_model::read_json::<Run>(&text) {
            Ok(run) => return Ok(Side::Run(Box::new(run))),
            Err(e) => e,
        };
        if text.contains("\"lastdrop.run/") {
            let what =
                format!("{name} is not an exported run (lastdrop run --json FILE, or lastdrop show ID --json FILE)");
            return Err(anyhow!(ours).context(what));
        }
        return reports::read(&text).map(Side::Reports).map_err(|why| {
            anyhow!("{name} is not an exported run (lastdrop run --json FILE, or lastdrop show ID --json FILE): {why}")
        });
    }
    let store = store.with_context(|| format!("there is no file {name}, and no store of runs to look in"))?;
    Ok(Side::Run(Box::new(store.load(&store.find(name)?)?)))
}
