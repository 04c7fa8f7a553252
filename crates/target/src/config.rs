//! What the target is told to do. Four layers: defaults, a TOML file, flags, and an overlay file read last, which is
//! where a tuner puts its changes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lastdrop_model::units::{parse_bytes, parse_duration};
use serde::{Deserialize, Deserializer};

/// How long a request takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Service {
    /// Sleeps exactly this long.
    Fixed(Duration),
    /// Sleeps for an exponentially distributed time with this mean.
    Exponential(Duration),
    /// Burns this much CPU time.
    Cpu(Duration),
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub listen: SocketAddr,
    pub workers: u32,
    /// `20ms`, `exp 20ms` or `cpu 5ms`.
    #[serde(deserialize_with = "service")]
    pub service: Service,
    /// Universal Scalability Law: with b workers busy, service takes (1 + contention·(b−1) + coherency·b·(b−1)) times
    /// as long, which plants a best pool size (see [`usl_best`]).
    pub contention: f64,
    pub coherency: f64,
    #[serde(deserialize_with = "bytes")]
    pub body: u64,
    /// Private memory of each worker, touched when it starts.
    #[serde(deserialize_with = "bytes")]
    pub memory: u64,
    /// Memory that the master touches once and all workers share.
    #[serde(deserialize_with = "bytes")]
    pub shared_memory: u64,
    /// Private memory that a worker adds with each request.
    #[serde(deserialize_with = "bytes")]
    pub leak: u64,
    /// How much of the shared memory a worker makes its own with each request, by writing to it.
    #[serde(deserialize_with = "bytes")]
    pub unshare: u64,
    /// Time a new worker needs before it takes connections.
    #[serde(deserialize_with = "duration")]
    pub startup: Duration,
    /// A worker is replaced after this many requests; 0 is never.
    pub max_requests_per_worker: u64,
    pub keepalive: bool,
    #[serde(deserialize_with = "duration")]
    pub keepalive_timeout: Duration,
    /// Requests on one connection; 0 is any number.
    pub max_keepalive_requests: u64,
    pub backlog: i32,
    /// Nothing is answered from this long after the first request …
    #[serde(deserialize_with = "duration")]
    pub stall_at: Duration,
    /// … for this long; 0 is no stall.
    #[serde(deserialize_with = "duration")]
    pub stall_for: Duration,
    /// Every Nth request is answered 500, closed without an answer, reset, or left hanging; 0 is none. A request that
    /// several apply to is reset before closed before hung before an error.
    pub error_every: u64,
    pub close_every: u64,
    pub reset_every: u64,
    pub hang_every: u64,
    pub seed: u64,
    /// A line for each answer: when it was written, in microseconds since 1970, its status and the path.
    pub log: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            workers: 4,
            service: Service::Fixed(Duration::ZERO),
            contention: 0.0,
            coherency: 0.0,
            body: 100,
            memory: 0,
            shared_memory: 0,
            leak: 0,
            unshare: 0,
            startup: Duration::ZERO,
            max_requests_per_worker: 0,
            keepalive: true,
            keepalive_timeout: Duration::from_secs(5),
            max_keepalive_requests: 0,
            backlog: 511,
            stall_at: Duration::ZERO,
            stall_for: Duration::ZERO,
            error_every: 0,
            close_every: 0,
            reset_every: 0,
            hang_every: 0,
            seed: 1,
            log: None,
        }
    }
}

/// Most workers that the scoreboard has room for.
pub const MAX_WORKERS: u32 = 2048;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {message}", path.display())]
    Parse { path: PathBuf, message: String },
    #[error("the target's settings: {0}")]
    Value(String),
}

/// Where the settings come from; kept so that a reload can read them again.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    pub file: Option<PathBuf>,
    pub flags: toml::Table,
    pub overlay: Option<PathBuf>,
}

impl Layers {
    /// Reads all layers and checks the sum.
    ///
    /// # Errors
    /// With the file and what is wrong in it.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let mut sum = toml::Table::new();
        if let Some(file) = &self.file {
            sum.extend(read_table(file)?);
        }
        sum.extend(self.flags.clone());
        if let Some(overlay) = &self.overlay {
            sum.extend(read_table(overlay)?);
        }
        Config::from_table(sum)
    }
}

fn read_table(path: &Path) -> Result<toml::Table, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_path_buf(), source })?;
    text.parse().map_err(|e: toml::de::Error| ConfigError::Parse { path: path.to_path_buf(), message: e.to_string() })
}

impl Config {
    /// The settings in a table, over the defaults.
    ///
    /// # Errors
    /// For an unknown name or a value out of range.
    pub fn from_table(table: toml::Table) -> Result<Config, ConfigError> {
        let config: Config =
            table.try_into().map_err(|e: toml::de::Error| ConfigError::Value(e.message().to_string()))?;
        let bad = |text: String| Err(ConfigError::Value(text));
        if config.workers == 0 || config.workers > MAX_WORKERS {
            return bad(format!("workers must be 1 to {MAX_WORKERS}, not {}", config.workers));
        }
        if config.backlog < 1 {
            return bad(format!("backlog must be at least 1, not {}", config.backlog));
        }
        for (name, value) in [("contention", config.contention), ("coherency", config.coherency)] {
            if !(0.0..=1000.0).contains(&value) {
                return bad(format!("{name} must be 0 to 1000, not {value}"));
            }
        }
        if config.body > 1 << 30 {
            return bad("body must be at most 1G".into());
        }
        Ok(config)
    }

    /// Mean time of a request when `busy` workers are at work, in seconds.
    #[must_use]
    pub fn service_seconds(&self, busy: u32) -> f64 {
        let (Service::Fixed(d) | Service::Exponential(d) | Service::Cpu(d)) = self.service;
        d.as_secs_f64() * self.stretch(busy)
    }

    /// How many times longer service takes with `busy` workers at work.
    #[must_use]
    pub fn stretch(&self, busy: u32) -> f64 {
        let b = f64::from(busy.max(1));
        1.0 + self.contention * (b - 1.0) + self.coherency * b * (b - 1.0)
    }

    /// Throughput with `workers` always busy and never recycled, requests per second.
    #[must_use]
    pub fn planted_rps(&self, workers: u32) -> f64 {
        f64::from(workers) / self.service_seconds(workers)
    }
}

/// The pool size of highest throughput and that throughput, among 1 to `max` workers: the planted best.
#[must_use]
pub fn usl_best(config: &Config, max: u32) -> (u32, f64) {
    (1..=max.max(1)).map(|w| (w, config.planted_rps(w))).fold((1, 0.0), |best, x| if x.1 > best.1 { x } else { best })
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Integer(u64),
    Float(f64),
    Text(String),
}

impl Word {
    fn text(self) -> String {
        match self {
            Word::Integer(n) => n.to_string(),
            Word::Float(n) => n.to_string(),
            Word::Text(t) => t,
        }
    }
}

fn duration<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    parse_duration(&Word::deserialize(d)?.text()).map_err(serde::de::Error::custom)
}

fn bytes<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    parse_bytes(&Word::deserialize(d)?.text()).map_err(serde::de::Error::custom)
}

fn service<'de, D: Deserializer<'de>>(d: D) -> Result<Service, D::Error> {
    let text = Word::deserialize(d)?.text();
    let (kind, time) = text.trim().split_once([' ', ':']).unwrap_or(("fixed", &text));
    let time = parse_duration(time).map_err(serde::de::Error::custom)?;
    match kind {
        "fixed" => Ok(Service::Fixed(time)),
        "exp" => Ok(Service::Exponential(time)),
        "cpu" => Ok(Service::Cpu(time)),
        _ => Err(serde::de::Error::custom(format!("service is '20ms', 'exp 20ms' or 'cpu 5ms', not '{text}'"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config, ConfigError> {
        Config::from_table(text.parse().expect("toml"))
    }

    #[test]
    fn settings_are_read_in_the_units_of_people() {
        let c = config("service = 'exp 20ms'\nmemory = '8M'\nkeepalive_timeout = 2\nworkers = 3").expect("valid");
        assert_eq!(c.service, Service::Exponential(Duration::from_millis(20)));
        assert_eq!((c.memory, c.workers, c.keepalive_timeout.as_secs()), (8 << 20, 3, 2));
    }

    #[test]
    fn wrong_settings_are_named() {
        for (text, word) in [("workers = 0", "workers"), ("wokers = 3", "wokers"), ("service = 'slow 1s'", "service")] {
            let message = config(text).expect_err("wrong").to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn the_planted_best_is_where_the_usl_says() {
        let c = config("service = '40ms'\ncoherency = 0.00390625").expect("valid");
        // Gunther: with no contention the peak is at sqrt(1 / coherency).
        assert_eq!(usl_best(&c, 64).0, 16);
    }
}
