//! The target's configuration. Four layers: defaults, a TOML file, flags, and an overlay file that is read last; a
//! tuner writes its changes there.

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use lastdrop_files::input;
use lastdrop_model::bounds::{BACKLOG, BODY, EVERY, PLANTED, SERVICE, STRETCH, WORKERS};
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

/// Factors of the service time by the number of busy workers, interpolated linearly: `4:1, 12:3, 20:1.5`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct Slowdown(Vec<(f64, f64)>);

impl Slowdown {
    fn at(&self, busy: f64) -> f64 {
        let next = self.0.partition_point(|(b, _)| *b <= busy);
        match (next.checked_sub(1).and_then(|i| self.0.get(i)), self.0.get(next)) {
            (Some((b0, f0)), Some((b1, f1))) => f0 + (f1 - f0) * (busy - b0) / (b1 - b0),
            (Some((_, f)), None) | (None, Some((_, f))) => *f,
            (None, None) => 1.0,
        }
    }
}

impl FromStr for Slowdown {
    type Err = String;

    fn from_str(text: &str) -> Result<Slowdown, String> {
        let wrong = |what: &str| {
            format!("'{text}' is no slowdown ({what}); try '4:1, 12:3, 20:1.5': busy workers and a factor")
        };
        let mut points = Vec::new();
        for pair in text.split(',').filter(|_| !text.trim().is_empty()) {
            let (busy, factor) = pair.split_once(':').ok_or_else(|| wrong("there is no ':'"))?;
            let busy: f64 = busy.trim().parse().map_err(|_| wrong("workers are a number"))?;
            let factor: f64 = factor.trim().parse().map_err(|_| wrong("a factor is a number"))?;
            WORKERS.check(busy).and_then(|_| STRETCH.check(factor)).map_err(|e| wrong(&e.to_string()))?;
            if points.last().is_some_and(|(before, _)| *before >= busy) {
                return Err(wrong("workers have to rise"));
            }
            points.push((busy, factor));
        }
        Ok(Slowdown(points))
    }
}

impl TryFrom<String> for Slowdown {
    type Error = String;

    fn try_from(text: String) -> Result<Slowdown, String> {
        text.parse()
    }
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
    /// as long, so that one pool size is best (see [`usl_best`]).
    pub contention: f64,
    pub coherency: f64,
    /// A further factor of the service time by the number of busy workers. It can give throughput any shape, such as
    /// two peaks.
    pub slowdown: Slowdown,
    #[serde(deserialize_with = "bytes")]
    pub body: u64,
    /// Private memory of each worker, touched when it starts.
    #[serde(deserialize_with = "bytes")]
    pub memory: u64,
    /// Memory that the master touches once and shares with all workers.
    #[serde(deserialize_with = "bytes")]
    pub shared_memory: u64,
    /// Private memory that a worker adds with each request.
    #[serde(deserialize_with = "bytes")]
    pub leak: u64,
    /// How much of the shared memory a worker makes private with each request, by writing to it.
    #[serde(deserialize_with = "bytes")]
    pub unshare: u64,
    /// Time before a new worker takes connections.
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
    /// The stall: nothing is answered from this long after the first request …
    #[serde(deserialize_with = "duration")]
    pub stall_at: Duration,
    /// … for this long; 0 is no stall.
    #[serde(deserialize_with = "duration")]
    pub stall_for: Duration,
    /// Every Nth request is answered with 500, closed without an answer, reset, or left hanging; 0 is none. If several
    /// apply, reset wins over close, close over hang, hang over error.
    pub error_every: u64,
    pub close_every: u64,
    pub reset_every: u64,
    pub hang_every: u64,
    pub seed: u64,
    /// Each answer tells when the worker began with its request and how long it took: `X-Request-Received: t=… D=…` in
    /// microseconds, like Apache's `%t %D`, and the duration again as `Server-Timing: app;dur=…`.
    pub server_time: bool,
    /// Access log, one line for each answer: time of writing in microseconds since 1970, status, path.
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
            slowdown: Slowdown::default(),
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
            server_time: false,
            log: None,
        }
    }
}

/// Size of the scoreboard.
pub const MAX_WORKERS: u32 = WORKERS.most as u32;

/// Larger files are not read.
const MOST_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {message}", path.display())]
    Parse { path: PathBuf, message: String },
    #[error("the target's settings: {0}")]
    Value(String),
}

/// The sources of the settings, kept so that a reload can read them again.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    pub file: Option<PathBuf>,
    pub flags: toml::Table,
    pub overlay: Option<PathBuf>,
}

impl Layers {
    /// Reads all layers and checks the result.
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
    let mut text = String::new();
    // A device such as /dev/zero never ends.
    let read = input::open_stream(path).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
    read.map_err(|source| ConfigError::Read { path: path.to_path_buf(), source })?;
    text.parse().map_err(|e: toml::de::Error| ConfigError::Parse { path: path.to_path_buf(), message: e.to_string() })
}

impl Config {
    /// Returns the settings in a table, over the defaults.
    ///
    /// # Errors
    /// For an unknown name or a value out of range.
    pub fn from_table(table: toml::Table) -> Result<Config, ConfigError> {
        // toml puts the key on a line after the message.
        let config: Config = table
            .try_into()
            .map_err(|e: toml::de::Error| ConfigError::Value(e.to_string().trim().replace('\n', " ")))?;
        for (name, bound, value) in [
            ("workers", WORKERS, f64::from(config.workers)),
            ("backlog", BACKLOG, f64::from(config.backlog)),
            ("contention", STRETCH, config.contention),
            ("coherency", STRETCH, config.coherency),
            ("body", BODY, config.body as f64),
            ("max_requests_per_worker", EVERY, config.max_requests_per_worker as f64),
            ("max_keepalive_requests", EVERY, config.max_keepalive_requests as f64),
            ("error_every", EVERY, config.error_every as f64),
            ("close_every", EVERY, config.close_every as f64),
            ("reset_every", EVERY, config.reset_every as f64),
            ("hang_every", EVERY, config.hang_every as f64),
        ] {
            bound.check(value).map_err(|e| ConfigError::Value(format!("{name}: {e}")))?;
        }
        Ok(config)
    }

    /// Returns the mean service time in seconds when `busy` workers are busy.
    #[must_use]
    pub fn service_seconds(&self, busy: u32) -> f64 {
        let (Service::Fixed(d) | Service::Exponential(d) | Service::Cpu(d)) = self.service;
        d.as_secs_f64() * self.stretch(busy)
    }

    /// Returns the factor of the service time when `busy` workers are busy.
    #[must_use]
    pub fn stretch(&self, busy: u32) -> f64 {
        let b = f64::from(busy.max(1));
        (1.0 + self.contention * (b - 1.0) + self.coherency * b * (b - 1.0)) * self.slowdown.at(b)
    }

    /// Throughput in requests/s if `workers` workers are always busy and never recycled.
    #[must_use]
    pub fn planted_rps(&self, workers: u32) -> f64 {
        f64::from(workers) / self.service_seconds(workers)
    }
}

/// Returns the pool size with the highest throughput among 1 to `max` workers, and that throughput.
#[must_use]
pub fn usl_best(config: &Config, max: u32) -> (u32, f64) {
    (1..=max.max(1)).map(|w| (w, config.planted_rps(w))).fold((1, 0.0), |best, x| if x.1 > best.1 { x } else { best })
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SettingValue {
    Integer(u64),
    Float(f64),
    Text(String),
}

impl SettingValue {
    fn text(self) -> String {
        match self {
            SettingValue::Integer(n) => n.to_string(),
            SettingValue::Float(n) => n.to_string(),
            SettingValue::Text(t) => t,
        }
    }
}

fn duration<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    SERVICE.read(&SettingValue::deserialize(d)?.text()).map_err(serde::de::Error::custom)
}

fn bytes<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    PLANTED.read(&SettingValue::deserialize(d)?.text()).map_err(serde::de::Error::custom)
}

fn service<'de, D: Deserializer<'de>>(d: D) -> Result<Service, D::Error> {
    SettingValue::deserialize(d)?.text().parse().map_err(serde::de::Error::custom)
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Service, String> {
        let (kind, time) = text.trim().split_once([' ', ':']).unwrap_or(("fixed", text));
        let kind: fn(Duration) -> Service = match kind {
            "fixed" => Service::Fixed,
            "exp" => Service::Exponential,
            "cpu" => Service::Cpu,
            _ => return Err(format!("service is '20ms', 'exp 20ms' or 'cpu 5ms', not '{text}'")),
        };
        SERVICE.read(time).map(kind).map_err(|e| e.to_string())
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
    fn any_surface_can_be_planted() {
        let c = config("service = '10ms'\nslowdown = '4:1, 12:5, 24:2, 48:9'").expect("valid");
        assert_eq!([1, 4, 8, 12, 18, 24, 100].map(|b| c.stretch(b)), [1.0, 1.0, 3.0, 5.0, 3.5, 2.0, 9.0]);
        // One peak at 4 workers, a higher one at 24.
        assert_eq!((usl_best(&c, 10).0, usl_best(&c, 64).0), (4, 24));
        for wrong in ["4", "4:x", "8:1,4:2", "0:1", "4:-1", "4:1,"] {
            assert!(config(&format!("slowdown = '{wrong}'")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_planted_best_is_where_the_usl_says() {
        let c = config("service = '40ms'\ncoherency = 0.00390625").expect("valid");
        // Gunther: with no contention the peak is at sqrt(1 / coherency).
        assert_eq!(usl_best(&c, 64).0, 16);
    }
}
