//! `lastdrop capacity URL --objective 'p99<300ms'`

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lastdrop_experiment::lab::Lab;
use lastdrop_experiment::lab::runs::random_u32;
use lastdrop_experiment::trials::capacity::{CapacityOptions, capacity as find_capacity};
use lastdrop_model::bounds::{CONNECTIONS, DURATION, PRECISION, RATE, SEED, STAIRCASE, THREADS, TIMEOUT};
use lastdrop_model::objective::Metric;
use lastdrop_model::request::header_line;
use lastdrop_model::{Arrival, KeepAlive};
use lastdrop_report::capacity_text;
use lastdrop_report::export::Runs;

use crate::commands::{Report, hint_of_restore, observers_of, open_store};
use crate::exit::{Exit, UsageError};
use crate::options::{FormatArgs, NetworkArgs, Objectives, OutputArgs, RunsOnArgs, objectives, within};
use crate::run_plan;
use crate::signals::Stop;
use crate::stdio::note;

#[derive(Debug, Args)]
#[command(
    after_help = "What it does: a staircase of users in a closed loop, then open-loop trials that bracket the highest rate from\nbelow, narrow it, and hold it. New connections for each request unless --keepalive says otherwise.\n\nExamples:\n  lastdrop capacity http://127.0.0.1:8080/ --objective 'p99<300ms,errors<0.1%'\n  lastdrop capacity http://127.0.0.1/ --objective 'p99.9<1s' --arrivals poisson --keepalive on --max-time 10m\n  lastdrop capacity plan.toml --objective 'p95<50ms' --no-staircase -r 200"
)]
pub struct CapacityArgs {
    /// What to load: a URL, or a plan file (*.toml) for its requests
    #[arg(value_name = "URL|PLAN")]
    pub target: String,
    /// What a rate has to meet: 'p99<300ms,errors<0.1%'
    #[arg(long, value_name = "WHAT", value_parser = objectives)]
    pub objective: Option<Objectives>,
    /// The first rate [default: found by the staircase]
    #[arg(short, long, value_name = "R", value_parser = within::<f64>(RATE))]
    pub rate: Option<f64>,
    /// No rate above this
    #[arg(long, value_name = "R", default_value_t = 1_000_000.0, value_parser = within::<f64>(RATE))]
    pub max_rate: f64,
    /// Hold the answer for at least this long
    #[arg(short = 'd', long, value_name = "TIME", default_value = "15s", value_parser = within::<Duration>(DURATION))]
    pub hold: Duration,
    /// End all of it by this time
    #[arg(long, value_name = "TIME", default_value = "115s", value_parser = within::<Duration>(DURATION))]
    pub max_time: Duration,
    /// How much too low the answer may be, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 2.5, value_parser = within::<f64>(PRECISION))]
    pub precision: f64,
    /// Most users of the staircase
    #[arg(short = 'c', long, value_name = "N", default_value_t = 256, value_parser = within::<u32>(STAIRCASE))]
    pub max_users: u32,
    /// Skip the staircase of users: no knee, no scalability law
    #[arg(long)]
    pub no_staircase: bool,
    /// How arrivals are spread: uniform or poisson
    #[arg(long, value_name = "HOW", value_parser = str::parse::<Arrival>, default_value = "uniform")]
    pub arrivals: Arrival,
    /// Most connections open at once
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = within::<u32>(CONNECTIONS))]
    pub connections: u32,
    /// Keep connections: on, off, or a number of requests on each [default: off; with a plan file: what it says]
    #[arg(long, value_name = "HOW", value_parser = str::parse::<KeepAlive>)]
    pub keepalive: Option<KeepAlive>,
    /// Load threads [default: 1]
    #[arg(short, long, value_name = "N", value_parser = within::<u32>(THREADS))]
    pub threads: Option<u32>,
    /// A request without an answer after this long has timed out [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = within::<Duration>(TIMEOUT))]
    pub timeout: Option<Duration>,
    /// Seed of everything random [default: random]
    #[arg(long, value_name = "N", value_parser = within::<u32>(SEED))]
    pub seed: Option<u32>,
    /// Another request header, 'Name: value'
    #[arg(short = 'H', long = "header", value_name = "LINE", value_parser = header_line)]
    pub headers: Vec<(String, String)>,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub on: RunsOnArgs,
    #[command(flatten)]
    pub form: FormatArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn capacity(args: &CapacityArgs) -> Result<Exit> {
    let (read, origin) = run_plan::requests_of(&args.target, &args.network)?;
    let mut plan = read.plan;
    let objectives = args.objective.as_ref().map_or_else(|| plan.objectives.clone(), |o| o.0.clone());
    if objectives.is_empty() {
        return Err(UsageError("say what a rate has to meet: --objective 'p99<300ms,errors<0.1%'".into()).into());
    }
    if objectives.iter().any(|o| o.metric == Metric::Rate) {
        return Err(UsageError("the rate is what capacity finds: leave it out of the objective".into()).into());
    }
    plan.check_classes(&objectives).map_err(|e| UsageError(e.to_string()))?;
    let default = if run_plan::is_plan_file(&args.target) { plan.keepalive } else { KeepAlive::Off };
    plan.keepalive = args.keepalive.unwrap_or(default);
    plan.threads = args.threads.unwrap_or(plan.threads);
    if let Some(timeout) = args.timeout {
        plan.timeout = timeout;
        plan.drain = timeout;
    }
    if !read.has_seed || args.seed.is_some() {
        plan.seed = u64::from(args.seed.unwrap_or_else(random_u32));
    }
    for request in &mut plan.requests {
        request.headers.extend(args.headers.iter().cloned());
    }
    plan.keep_secrets = args.output.keep_secrets;
    origin.check(&plan)?;
    let order = CapacityOptions {
        plan,
        objectives,
        arrivals: args.arrivals,
        connections: args.connections,
        start: args.rate,
        ceiling: args.max_rate,
        precision: args.precision / 100.0,
        hold: args.hold,
        max_time: args.max_time,
        most_users: (!args.no_staircase).then_some(args.max_users),
    };
    let report = Report::of(&args.output)?.with_format(args.form)?;
    let stop = Stop::on_signals(true)?;
    let store = open_store(&args.output)?;
    let observers = observers_of(&args.output, store.clone(), Runs::Several, &stop)?;
    let carrier = args.on.carrier(&[&order.plan], store.as_ref())?;
    let mut lab = Lab { carrier, ..Lab::new(&stop.flag, observers) };
    let document = find_capacity(&mut lab, &order).inspect_err(|_| hint_of_restore(&order.plan.url))?;
    report.keep_and_give(store.as_ref(), &capacity_text(&document), &document)?;
    for trouble in lab.trouble() {
        note!("note: some runs {trouble}");
    }
    Ok(match stop.signal() {
        Some(signal) => Exit::Signal(signal),
        None if document.met => Exit::Done,
        None if document.generator_limited => Exit::Invalid,
        // Running out of time is a failure, not a missed objective.
        None if document.out_of_time => Exit::Failed,
        None => Exit::Missed,
    })
}
