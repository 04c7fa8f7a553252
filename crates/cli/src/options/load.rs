//! Options about the amount of load, and their effect on a plan.

use std::time::Duration;

use clap::Args;
use lastdrop_model::bounds::{
    BURST, CONNECTIONS, DRAIN, DURATION, RAMP_RATE, RATE, REQUESTS, SEED, STEPS, THREADS, TIMEOUT, USERS,
};
use lastdrop_model::request::header_line;
use lastdrop_model::{Arrival, KeepAlive, Load, Phase, Plan, Url};

use super::values::within;
use crate::exit::UsageError;

/// Options about the load, the same for every command that puts on load.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(next_help_heading = "Load")]
pub struct LoadArgs {
    /// Users who each wait for their answer before asking again (closed loop) [default: 10]
    #[arg(short = 'c', long, value_name = "N", value_parser = within::<u32>(USERS))]
    pub users: Option<u32>,
    /// Requests per second, whatever the server does (open loop)
    #[arg(short, long, value_name = "R", conflicts_with = "users", value_parser = within::<f64>(RATE))]
    pub rate: Option<f64>,
    /// How the arrivals of an open loop are spread: uniform, poisson, or 'jitter 10%' [default: uniform]
    #[arg(long, value_name = "HOW", value_parser = str::parse::<Arrival>)]
    pub arrivals: Option<Arrival>,
    /// This many requests arrive together in an open loop [default: 1]
    #[arg(long, value_name = "N", value_parser = within::<u32>(BURST))]
    pub burst: Option<u32>,
    /// Rate, or number of users, at the end: it changes in a straight line from -r or -c to this
    #[arg(long, value_name = "N", value_parser = within::<f64>(RAMP_RATE))]
    pub ramp_to: Option<f64>,
    /// The ramp of a rate has this many steps
    #[arg(long, value_name = "N", requires = "ramp_to", value_parser = within::<u32>(STEPS))]
    pub ramp_steps: Option<u32>,
    /// Most connections open at once [default: 256 with -r; otherwise one per user and server]
    #[arg(long, value_name = "N", value_parser = within::<u32>(CONNECTIONS))]
    pub connections: Option<u32>,
    /// Stop after this many requests
    #[arg(short = 'n', long, value_name = "N", value_parser = within::<u64>(REQUESTS))]
    pub requests: Option<u64>,
    /// Stop after this long [default: 10s, or no limit with -n]
    #[arg(short, long, value_name = "TIME", value_parser = within::<Duration>(DURATION))]
    pub duration: Option<Duration>,
    /// Load before the measurement, outside its numbers
    #[arg(long, value_name = "TIME", value_parser = within::<Duration>(DURATION))]
    pub warm_up: Option<Duration>,
    /// Load threads [default: 1]
    #[arg(short, long, value_name = "N", value_parser = within::<u32>(THREADS))]
    pub threads: Option<u32>,
    /// A request without an answer after this long has timed out [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = within::<Duration>(TIMEOUT))]
    pub timeout: Option<Duration>,
    /// How long requests in flight may take after the last one came due [default: the timeout]
    #[arg(long, value_name = "TIME", value_parser = within::<Duration>(DRAIN))]
    pub drain: Option<Duration>,
    /// Keep connections: on, off, or a number of requests on each [default: on]
    #[arg(long, value_name = "HOW", value_parser = str::parse::<KeepAlive>)]
    pub keepalive: Option<KeepAlive>,
    /// Seed of all random choices; it is printed, so that a run can be repeated [default: random]
    #[arg(long, value_name = "N", value_parser = within::<u32>(SEED))]
    pub seed: Option<u32>,
    /// A request header, 'Name: value'; it replaces a header of lastdrop's with the same name
    #[arg(short = 'H', long = "header", value_name = "LINE", value_parser = header_line)]
    pub headers: Vec<(String, String)>,
}

impl LoadArgs {
    /// True if the options say how much load there is.
    #[must_use]
    pub fn says_load(&self) -> bool {
        self.users.is_some() || self.rate.is_some() || self.ramp_to.is_some() || self.warm_up.is_some()
    }

    /// The load that these options ask for, in phases. `duration` is the default without -n and -d.
    ///
    /// # Errors
    /// For a ramp to an invalid number of users.
    pub fn phases(&self, duration: Duration) -> Result<Vec<Phase>, UsageError> {
        let load = match self.rate {
            Some(rate_rps) => Load::Open {
                rate_rps,
                to_rps: None,
                steps: None,
                arrivals: self.arrivals.unwrap_or(Arrival::Uniform),
                burst: self.burst.unwrap_or(1),
                connections: 256,
            },
            None => Load::closed(self.users.unwrap_or(10)),
        };
        let mut phases = Vec::new();
        if let Some(warm_up) = self.warm_up {
            phases.push(Phase {
                name: "warm-up".into(),
                measured: false,
                load: load.clone(),
                requests: None,
                duration: Some(warm_up),
            });
        }
        let load = match (load, self.ramp_to) {
            (Load::Closed { users, .. }, Some(to)) => {
                let to = USERS.read(&to.to_string()).map_err(|e| UsageError(format!("--ramp-to: {e}")))?;
                Load::Closed { users, to_users: Some(to), connections: None }
            }
            (Load::Open { rate_rps, arrivals, burst, connections, .. }, Some(to)) => {
                Load::Open { rate_rps, to_rps: Some(to), steps: self.ramp_steps, arrivals, burst, connections }
            }
            (load, None) => load,
        };
        let ramp = self.ramp_to.is_some();
        phases.push(Phase {
            name: "main".into(),
            measured: true,
            load,
            requests: self.requests,
            duration: self.duration.or(if self.requests.is_some() && !ramp { None } else { Some(duration) }),
        });
        Ok(phases)
    }

    /// Seed for all random choices: the given one, or a random one.
    #[must_use]
    pub fn seed(&self) -> u64 {
        u64::from(self.seed.unwrap_or_else(lastdrop_experiment::lab::runs::random_u32))
    }

    /// The plan that these options ask for. `duration` is the default without -n and -d.
    ///
    /// # Errors
    /// As [`LoadArgs::phases`].
    pub fn plan(&self, url: Url, duration: Duration, keepalive: KeepAlive) -> Result<Plan, UsageError> {
        let mut plan = Plan::new(url, self.seed());
        plan.phases = self.phases(duration)?;
        plan.keepalive = keepalive;
        self.adjust(&mut plan)?;
        for request in &mut plan.requests {
            request.headers = self.headers.clone();
        }
        Ok(plan)
    }

    /// Sets those options in a plan that are also allowed with a plan file.
    ///
    /// # Errors
    /// For options that would have no effect.
    pub fn adjust(&self, plan: &mut Plan) -> Result<(), UsageError> {
        // Not clap's `requires`: it does not ask for --rate where --users excludes it.
        for (is_said, option) in [(self.arrivals.is_some(), "--arrivals"), (self.burst.is_some(), "--burst")] {
            if is_said && self.rate.is_none() {
                return Err(UsageError(format!("{option} is about an open loop: say its --rate")));
            }
        }
        if let Some(connections) = self.connections {
            plan.phases.iter_mut().for_each(|p| p.load.limit_connections(connections));
        }
        if let Some(threads) = self.threads {
            plan.threads = threads;
        }
        if let Some(timeout) = self.timeout {
            plan.timeout = timeout;
            plan.drain = timeout;
        }
        if let Some(drain) = self.drain {
            plan.drain = drain;
        }
        if let Some(keepalive) = self.keepalive {
            plan.keepalive = keepalive;
        }
        if let Some(seed) = self.seed {
            plan.seed = u64::from(seed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lines_cannot_smuggle_others() {
        assert!(header_line("X: a\r\nY: b").is_err());
        assert!(header_line("no colon").is_err());
        assert_eq!(header_line("X-A:  b "), Ok(("X-A".into(), "b".into())));
    }
}
