//! `lastdrop compare A B`, stored or live

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use lastdrop_analyze::compare::{assumed_floor, stored as compare_stored};
use lastdrop_experiment::Lab;
use lastdrop_experiment::compare::{CompareOrder, compare as compare_live};
use lastdrop_model::documents::{COMPARE_SCHEMA, CompareDocument, CompareKind, CompareSide, CompareVerdict, Compared};
use lastdrop_model::{Plan, Run, Verdict};
use lastdrop_report::compare_text;
use lastdrop_store::Store;

use crate::args::{CompareArgs, LoadArgs, NetworkArgs};
use crate::commands::{default_store, open_store, print_report, write_json};
use crate::exit::{Exit, UsageError};
use crate::narrator::Terminal;
use crate::run_plan;
use crate::signals::Stop;

/// Length of a stretch of load unless the user says otherwise, and of what goes before it: with fifteen blocks 18 s.
const STRETCH: Duration = Duration::from_millis(520);
const SETTLING: Duration = Duration::from_millis(50);

pub fn compare(args: &CompareArgs) -> Result<Exit> {
    let (document, exit) = if args.live { live(args)? } else { (stored(args)?, Exit::Done) };
    let json = args.output.json.as_deref();
    print_report(&compare_text(&document), json, args.output.quiet);
    if let Some(to) = json {
        write_json(to, &document)?;
    }
    let worse = document.metrics.values().any(|m| m.verdict == Compared::Worse);
    Ok(match exit {
        Exit::Done if args.fail_on_worse && worse && document.verdict != CompareVerdict::Inconclusive => Exit::Missed,
        exit => exit,
    })
}

/// A plan for one side: the requests of a URL or plan file, the load of the options or of the plan file.
fn side(args: &CompareArgs, target: &str, seed: u64) -> Result<Plan> {
    let load = &args.load;
    let read = run_plan::requests_of(target, &args.network)?;
    let mut plan = read.plan;
    if !read.has_load || load.says_load() {
        if read.has_load {
            return Err(
                UsageError(format!("{target} says how much load there is; change it there, not by options")).into()
            );
        }
        plan.phases = load.phases(STRETCH);
        plan.phases.retain(|p| p.measured);
    }
    if !read.has_seed {
        plan.seed = seed;
    }
    load.adjust(&mut plan);
    for request in &mut plan.requests {
        request.headers.extend(load.headers.iter().cloned());
    }
    plan.check().map_err(|e| UsageError(e.to_string()))?;
    Ok(plan)
}

fn live(args: &CompareArgs) -> Result<(CompareDocument, Exit)> {
    let seed = args.load.seed();
    let plan_a = side(args, &args.a, seed)?;
    let (name_b, plan_b) = match &args.b {
        Some(b) => (b.clone(), side(args, b, seed)?),
        None => (args.a.clone(), plan_a.clone()),
    };
    let order = CompareOrder {
        a: (args.a.clone(), plan_a),
        b: (name_b, plan_b),
        aa: args.aa,
        blocks: args.blocks,
        stretch: args.load.duration.unwrap_or(STRETCH),
        settling: args.load.warm_up.unwrap_or(SETTLING),
        seed,
    };
    let stop = Stop::on_signals(true)?;
    let mut terminal = Terminal::new(args.output.quiet);
    let store = open_store(&args.output)?;
    let mut lab = Lab::new(store, &stop.flag, &mut terminal);
    let mut document = compare_live(&mut lab, &order)?;
    let store_error = lab.store_error.take();
    if let (Some(floor), Some(store), false) = (&document.noise_floor, &lab.store, document.interrupted) {
        store.keep_noise(floor)?;
        document.notes.push("this noise floor is kept, and reckoned with when stored runs are compared".into());
    }
    if let Some(e) = store_error {
        eprintln!("note: some runs could not be kept: {e}");
    }
    Ok((document, stop.signal().map_or(Exit::Done, Exit::Signal)))
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
    let url = rb.plan.url.to_string();
    let floor = match &store {
        Some(store) => store.noise(&url)?,
        None => None,
    };
    let floor = floor.unwrap_or_else(assumed_floor);
    let comparison = compare_stored(&ra, &rb, &floor);
    let mut notes = comparison.notes;
    let (mut verdict, mut because) = (comparison.verdict, comparison.because);
    for (name, run) in [("A", &ra), ("B", &rb)] {
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
        a: side(&args.a, &ra),
        b: side(b, &rb),
        metrics: comparison.metrics,
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
