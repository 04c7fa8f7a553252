//! Options of a search for the capacity.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lastdrop_experiment::lab::runs::random_u32;
use lastdrop_experiment::trials::capacity::CapacityOptions;
use lastdrop_model::bounds::{CONNECTIONS, DURATION, PRECISION, RATE, SEED, STAIRCASE, THREADS, TIMEOUT};
use lastdrop_model::objective::Metric;
use lastdrop_model::request::header_line;
use lastdrop_model::{Arrival, KeepAlive, Plan};

use super::values::{Objectives, objectives, within};
use crate::exit::UsageError;

/// Options of a search for the capacity.
#[derive(Debug, Args)]
pub struct SearchArgs {
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
    /// Most connections open at once [default: 256]
    #[arg(long, value_name = "N", value_parser = within::<u32>(CONNECTIONS))]
    pub connections: Option<u32>,
    /// Keep connections: on, off, or a number of requests on each [default: off, or on over HTTP/2; with a plan file: what it says]
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
}

impl SearchArgs {
    /// The search with the requests of a plan. `keepalive` and `has_seed` are what the plan's source says.
    ///
    /// # Errors
    /// [`UsageError`] without an objective, or with one that a search cannot have.
    pub fn search(&self, mut plan: Plan, keepalive: KeepAlive, has_seed: bool) -> Result<CapacityOptions> {
        let objectives = self.objective.as_ref().map_or_else(|| plan.objectives.clone(), |o| o.0.clone());
        if objectives.is_empty() {
            return Err(UsageError("say what a rate has to meet: --objective 'p99<300ms,errors<0.1%'".into()).into());
        }
        if objectives.iter().any(|o| o.metric == Metric::Rate) {
            return Err(UsageError("the rate is what capacity finds: leave it out of the objective".into()).into());
        }
        plan.check_classes(&objectives).map_err(|e| UsageError(e.to_string()))?;
        plan.keepalive = self.keepalive.unwrap_or(keepalive);
        plan.threads = self.threads.unwrap_or(plan.threads);
        if let Some(timeout) = self.timeout {
            plan.timeout = timeout;
            plan.drain = timeout;
        }
        if !has_seed || self.seed.is_some() {
            plan.seed = u64::from(self.seed.unwrap_or_else(random_u32));
        }
        for request in &mut plan.requests {
            request.headers.extend(self.headers.iter().cloned());
        }
        Ok(CapacityOptions {
            plan,
            objectives,
            arrivals: self.arrivals,
            connections: self.connections.unwrap_or(256),
            start: self.rate,
            ceiling: self.max_rate,
            precision: self.precision / 100.0,
            hold: self.hold,
            max_time: self.max_time,
            most_users: (!self.no_staircase).then_some(self.max_users),
        })
    }
}
