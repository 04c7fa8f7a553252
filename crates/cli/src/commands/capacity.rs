//! `lastdrop capacity URL --objective 'p99<300ms'`

use anyhow::Result;
use lastdrop_experiment::Lab;
use lastdrop_experiment::capacity::{CapacityOrder, capacity as find_capacity};
use lastdrop_experiment::lab::random_u32;
use lastdrop_model::KeepAlive;
use lastdrop_model::objective::Metric;
use lastdrop_report::capacity_text;

use crate::args::CapacityArgs;
use crate::commands::{open_store, print_report, write_json};
use crate::exit::{Exit, UsageError};
use crate::narrator::Terminal;
use crate::run_plan;
use crate::signals::Stop;

pub fn capacity(args: &CapacityArgs) -> Result<Exit> {
    let read = run_plan::requests_of(&args.target, &args.network)?;
    let mut plan = read.plan;
    let objectives = args.objective.as_ref().map_or_else(|| plan.objectives.clone(), |o| o.0.clone());
    if objectives.is_empty() {
        return Err(UsageError("say what a rate has to meet: --objective 'p99<300ms,errors<0.1%'".into()).into());
    }
    if objectives.iter().any(|o| o.metric == Metric::Rate) {
        return Err(UsageError("the rate is what capacity finds: leave it out of the objective".into()).into());
    }
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
    plan.check().map_err(|e| UsageError(e.to_string()))?;
    let order = CapacityOrder {
        plan,
        objectives,
        arrivals: args.arrivals,
        connections: args.connections,
        start: args.rate,
        ceiling: args.max_rate,
        precision: (args.precision / 100.0).clamp(0.001, 1.0),
        hold: args.hold,
        max_time: args.max_time,
        most_users: (!args.no_staircase).then_some(args.max_users),
    };
    let stop = Stop::on_signals(true)?;
    let mut terminal = Terminal::new(args.output.quiet);
    let store = open_store(&args.output)?;
    let mut lab = Lab::new(store, &stop.flag, &mut terminal);
    let document = find_capacity(&mut lab, &order)?;
    let store_error = lab.store_error.take();
    let json = args.output.json.as_deref();
    print_report(&capacity_text(&document), json, args.output.quiet);
    if let Some(to) = json {
        write_json(to, &document)?;
    }
    if let Some(e) = store_error {
        eprintln!("note: some runs could not be kept: {e}");
    }
    Ok(match stop.signal() {
        Some(signal) => Exit::Signal(signal),
        None if document.met => Exit::Done,
        None if document.generator_limited => Exit::Invalid,
        None => Exit::Missed,
    })
}
