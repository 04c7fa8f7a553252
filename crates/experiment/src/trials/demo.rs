//! The server of the demo: its planted fault, and its known best setting.

use std::time::Duration;

use lastdrop_model::KeepAlive;
use lastdrop_model::documents::Goal;
use lastdrop_model::plan::{Load, Plan, Url};
use lastdrop_target::{Config, ConfigError, usl_best};

use crate::trials::tune::{SearchConstraints, TuneOptions};

/// Users of the demo's load.
pub const USERS: u32 = 64;

/// Its work sleeps instead of computing, so that a busy machine does not move the best setting. With b busy workers a
/// request takes 40 ms × (1 + b·(b−1)/256): more workers help up to 16 and hurt beyond. A new worker takes 300 ms to
/// start, and each is replaced after ten requests.
pub const SETTINGS: &str = "\
# The demo's server: a pool too small, its workers replaced far too often.
workers = 4
max_requests_per_worker = 10
service = '40ms'
coherency = 0.00390625
startup = '300ms'
";

/// Returns the planted best: number of workers and throughput.
///
/// # Errors
/// Never, as long as [`SETTINGS`] is correct.
pub fn planted() -> Result<(u32, f64), ConfigError> {
    let table = SETTINGS.parse().map_err(|e: toml::de::Error| ConfigError::Value(e.to_string()))?;
    Ok(usl_best(&Config::from_table(table)?, USERS))
}

/// Trials of the demo's search: one setting with one peak is found quickly.
const TRIALS: u32 = 12;

/// Returns the options of the demo's tuning, with blocks short enough for a newcomer's first minute.
#[must_use]
pub fn order(url: Url, seed: u64) -> TuneOptions {
    let mut plan = Plan::new(url, seed);
    plan.phases[0].load = Load::closed(USERS);
    plan.phases[0].duration = Some(Duration::from_millis(1500));
    plan.keepalive = KeepAlive::Off;
    TuneOptions {
        plan,
        goal: Goal::Throughput,
        memory: None,
        constraints: SearchConstraints::default(),
        proposals: Vec::new(),
        clues: Vec::new(),
        workers: Vec::new(),
        dry_run: false,
        trials: TRIALS,
        time: None,
        seed,
        checkpoint: None,
        keep: false,
        max_pairs: 6,
        min_gain: 0.05,
        recycling_warm_up: Duration::from_millis(1000),
        settling: Duration::from_millis(300),
        advise_keepalive: false,
        watch: None,
        beside_visitors: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_planted_where_the_text_says() {
        let (workers, rps) = planted().expect("the demo's settings are right");
        assert_eq!(workers, 16);
        assert!((rps - 206.45).abs() < 0.1, "{rps}");
    }
}
