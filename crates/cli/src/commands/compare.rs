//! `lastdrop compare A B`, stored or live

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_analyze::compare::{assumed_floor, stored as compare_stored};
use lastdrop_lab::Lab;
use lastdrop_model::bounds::BLOCKS;
use lastdrop_model::documents::{COMPARE_SCHEMA, CompareDocument, CompareKind, CompareSide, CompareVerdict, Compared};
use lastdrop_model::{Plan, Run, Verdict, secrets};
use lastdrop_report::compare_text;
use lastdrop_store::Store;
use lastdrop_trials::compare::{CompareOrder, compare as compare_live};

use crate::commands::{Report, default_store, observers, open_store};
use crate::exit::{Exit, UsageError};
use crate::options::{LoadArgs, NetworkArgs, OutputArgs, within};
use crate::run_plan;
use crate::signals::Stop;
use crate::stdio::note;

#[derive(Debug, Args)]
#[command(
    mut_arg("duration", |a| a.help("Length of each stretch of load [default: 520ms]")),
    mut_arg("warm_up", |a| a.help("Load before each stretch, outside its numbers [default: 50ms]")),
    mut_arg("requests", |a| a.help("Requests of each stretch, instead of a length")),
    after_help = "Stored runs tell of the noise within them, not of what changed on the machine between them; for a decision use\n--live. A block is a stretch of load at A and one at B. Ratios are B / A.\n\nExamples:\n  lastdrop compare 3fa2 last                                      two runs of the store (see lastdrop history)\n  lastdrop compare before.json after.json --fail-on-worse         two exported runs\n  lastdrop compare --live http://127.0.0.1:8080/ http://127.0.0.1:8081/ -c 20\n  lastdrop compare --live old.toml new.toml --blocks 20 -d 2s --fail-on-worse\n  lastdrop compare --live http://127.0.0.1:8080/ --aa             the noise of this machine"
)]
pub struct CompareArgs {
    /// What was before: a run's id, an exported run (JSON); with --live a URL or a plan file
    #[arg(value_name = "A")]
    pub a: String,
    /// What came after
    #[arg(value_name = "B", required_unless_present = "aa")]
    pub b: Option<String>,
    /// Put load on both now, in interleaved blocks
    #[arg(long)]
    pub live: bool,
    /// A against itself: the noise of this machine, kept for comparisons of stored runs
    #[arg(long, requires = "live", conflicts_with = "b")]
    pub aa: bool,
    /// Blocks, at most; it ends early when the answer is clear
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = within::<u32>(BLOCKS))]
    pub blocks: u32,
    /// Exit code 3 when B is worse in anything
    #[arg(long)]
    pub fail_on_worse: bool,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Length of a stretch of load unless the user says otherwise, and of what goes before it: with fifteen blocks 18 s.
const STRETCH: Duration = Duration::from_millis(520);
const SETTLING: Duration = Duration::from_millis(50);

pub fn compare(args: &CompareArgs) -> Result<Exit> {
    let report = Report::of(&args.output)?;
    let (document, exit, store) = match args.live {
        true => live(args)?,
        // Of two stored runs it can be made again.
        false => (stored(args)?, Exit::Done, None),
    };
    report.keep_and_give(store.as_ref(), &compare_text(&document), &document)?;
    let worse = document.metrics.values().any(|m| m.verdict == Compared::Worse);
    Ok(match exit {
        Exit::Done if args.fail_on_worse && worse && document.verdict != CompareVerdict::Inconclusive => Exit::Missed,
        exit => exit,
    })
}

/// A plan for one side: the requests of a URL or plan file, the load of the options or of the plan file.
fn side(args: &CompareArgs, target: &str, seed: u64) -> Result<Plan> {
    let load = &args.load;
    let (read, origin) = run_plan::requests_of(target, &args.network)?;
    let mut plan = read.plan;
    if !read.has_load || load.says_load() {
        if read.has_load {
            return Err(
                UsageError(format!("{target} says how much load there is; change it there, not by options")).into()
            );
        }
        plan.phases = load.phases(STRETCH)?;
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
    origin.check(&plan)?;
    Ok(plan)
}

fn live(args: &CompareArgs) -> Result<(CompareDocument, Exit, Option<Store>)> {
    let seed = args.load.seed();
    let plan_a = side(args, &args.a, seed)?;
    // What a side is called goes into the report.
    let name = |target: &str| secrets::url(target).into_owned();
    let (name_b, plan_b) = match &args.b {
        Some(b) => (name(b), side(args, b, seed)?),
        None => (name(&args.a), plan_a.clone()),
    };
    let order = CompareOrder {
        a: (name(&args.a), plan_a),
        b: (name_b, plan_b),
        aa: args.aa,
        blocks: args.blocks,
        stretch: args.load.duration.unwrap_or(STRETCH),
        settling: args.load.warm_up.unwrap_or(SETTLING),
        seed,
    };
    let stop = Stop::on_signals(true)?;
    let store = open_store(&args.output)?;
    let mut lab = Lab::new(&stop.flag, observers(args.output.progress(), store.clone(), &stop));
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

fn stored(args: &CompareArgs) -> Result<CompareDocument> {
    if args.load != LoadArgs::default() || args.network != NetworkArgs::default() {
        return Err(
            UsageError("stored runs are compared as they are; to put load on both now add --live".into()).into()
        );
    }
    let b = args.b.as_deref().ok_or_else(|| UsageError("say what to compare with".into()))?;
    for name in [args.a.as_str(), b] {
        if name.contains("://") || run_plan::is_plan_file(name) {
            return Err(UsageError(format!("to compare {name} put load on it: add --live")).into());
        }
    }
    let path = args.output.store.clone().or_else(default_store);
    // Two exported runs need no store, and shall not make one.
    let store = match &path {
        Some(path) if path.exists() && !args.output.no_store => Some(Store::open(path)?),
        _ => None,
    };
    let (ra, rb) = (read_run(&args.a, store.as_ref())?, read_run(b, store.as_ref())?);
    compare_runs((&args.a, &ra), (b, &rb), store.as_ref())
}

/// Compares two runs by what they have within them and by the noise that is known; each has the name by which it was asked for.
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
    let (mut verdict, mut because) = (comparison.verdict, comparison.because);
    for (name, run) in [("A", ra), ("B", rb)] {
        if run.validity.verdict == Verdict::Invalid {
            let why: Vec<&str> = run.validity.reasons.iter().map(|r| r.what.as_str()).collect();
            because = format!("run {name} is invalid and cannot be compared: {}", why.join("; "));
            verdict = CompareVerdict::Inconclusive;
        } else if run.validity.verdict == Verdict::Doubtful {
            let why: Vec<&str> = run.validity.reasons.iter().map(|r| r.what.as_str()).collect();
            notes.push(format!("run {name} is doubtful: {}", why.join("; ")));
        }
    }
    let side = |name: &str, run: &Run| CompareSide { name: name.into(), runs: vec![run.id.clone()] };
    Ok(CompareDocument {
        schema: COMPARE_SCHEMA.into(),
        kind: CompareKind::Stored,
        a: side(a, ra),
        b: side(b, rb),
        metrics: comparison.metrics,
        classes: comparison.classes,
        verdict,
        because,
        smallest_difference: comparison.smallest_difference,
        blocks: Vec::new(),
        noise_floor: Some(floor),
        interrupted: false,
        notes,
    })
}

/// A run by its id in the store, or from a file that was exported.
fn read_run(name: &str, store: Option<&Store>) -> Result<Run> {
    let path = Path::new(name);
    if path.is_file() {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        return serde_json::from_str(&text).with_context(|| {
            format!("{name} is not an exported run (lastdrop run --json FILE, or lastdrop show ID --json FILE)")
        });
    }
    let store = store.with_context(|| format!("there is no file {name}, and no store of runs to look in"))?;
    Ok(store.load(&store.find(name)?)?)
}
