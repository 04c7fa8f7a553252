//! The plan of a run: which requests, how much load, for how long. A plan is complete (defaults filled in, seed
//! chosen), so that a stored run says exactly what was done.

mod abandon;
mod check;
mod keepalive;
mod load;
mod network;
mod replay;
mod server_time;
mod tls;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use abandon::{AbandonRules, GiveUpRule};
pub use check::{PlanError, PlanPart};
pub use keepalive::KeepAlive;
pub use load::{Arrival, BEGIN_TOGETHER, Load, Phase};
pub use network::{ConnectTo, Network, Proxy};
pub use replay::{Pace, Replay, ReplaySummary, UsualAnswer};
pub use server_time::{REQUEST_ID, ServerTimeFrom, TRACEPARENT, TimeUnit};
pub use tls::TlsOptions;

pub use crate::http_options::HttpOptions;
pub use crate::url::{Url, UrlError};

use crate::objective::Objective;
use crate::request::{DataSource, Page, Pick, RequestSpec, ThinkTime};
use crate::units::serde_seconds;

/// A complete description of a run, with the passwords that it needs. It cannot be serialised directly; what is stored
/// and shown is a [`KeptPlan`](crate::KeptPlan).
// `remote` generates functions instead of the serde traits, so that nothing serialises a plan by accident.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Plan {
    /// URL of the first request; it names the run.
    pub url: Url,
    /// At least one. An empty list, stored by an older version, means a GET of `url`.
    #[serde(default)]
    pub requests: Vec<RequestSpec>,
    #[serde(default)]
    pub pick: Pick,
    #[serde(default)]
    pub data: Option<DataSource>,
    /// Think time of each user between an answer and the next request.
    #[serde(default)]
    pub think: Option<ThinkTime>,
    #[serde(default)]
    pub page: Option<Page>,
    #[serde(default)]
    pub http: HttpOptions,
    #[serde(default)]
    pub network: Network,
    #[serde(default)]
    pub tls: TlsOptions,
    pub phases: Vec<Phase>,
    pub threads: u32,
    #[serde(with = "serde_seconds")]
    pub timeout: Duration,
    /// How long requests in flight may take once nothing more comes due.
    #[serde(with = "serde_seconds")]
    pub drain: Duration,
    pub keepalive: KeepAlive,
    pub seed: u64,
    /// Objectives of the measured phase.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<Objective>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub abandon: AbandonRules,
    /// A log whose requests are replayed instead of the plan's own; the plan's requests then only define the classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
    /// Where the server reports its own time per request; `None` if that is not wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_time: Option<ServerTimeFrom>,
    /// The user wants stored plans to contain their secrets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_secrets: bool,
}

impl Plan {
    /// Inserts a warm-up phase with the measured phase's load before it. Does nothing if `duration` is zero.
    pub fn warm_up(&mut self, name: &str, duration: Duration) {
        if let Some(at) = self.phases.iter().position(|p| p.measured).filter(|_| !duration.is_zero()) {
            let measured = self.phases[at].clone();
            let phase =
                Phase { name: name.into(), measured: false, requests: None, duration: Some(duration), ..measured };
            self.phases.insert(at, phase);
        }
    }

    /// Returns a plan of one measured phase with the documented defaults: 10 users, 10 s, one thread, 5 s timeout.
    #[must_use]
    pub fn new(url: Url, seed: u64) -> Plan {
        Plan {
            requests: vec![RequestSpec::get(url.clone())],
            url,
            pick: Pick::Weighted,
            data: None,
            think: None,
            page: None,
            http: HttpOptions::default(),
            network: Network::default(),
            tls: TlsOptions::default(),
            phases: vec![Phase {
                name: "main".into(),
                measured: true,
                load: Load::closed(10),
                requests: None,
                duration: Some(Duration::from_secs(10)),
            }],
            threads: 1,
            timeout: Duration::from_secs(5),
            drain: Duration::from_secs(5),
            keepalive: KeepAlive::On,
            seed,
            objectives: Vec::new(),
            abandon: AbandonRules::default(),
            replay: None,
            server_time: None,
            keep_secrets: false,
        }
    }

    /// Returns the plan without its requests, which may be thousands.
    #[must_use]
    pub fn without_requests(&self) -> Plan {
        Plan {
            url: self.url.clone(),
            requests: Vec::new(),
            pick: self.pick,
            data: self.data.clone(),
            think: self.think,
            page: self.page.clone(),
            http: self.http.clone(),
            network: self.network.clone(),
            tls: self.tls.clone(),
            phases: self.phases.clone(),
            threads: self.threads,
            timeout: self.timeout,
            drain: self.drain,
            keepalive: self.keepalive,
            seed: self.seed,
            objectives: self.objectives.clone(),
            abandon: self.abandon.clone(),
            replay: self.replay.clone(),
            server_time: self.server_time.clone(),
            keep_secrets: self.keep_secrets,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
