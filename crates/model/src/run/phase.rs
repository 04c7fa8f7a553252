//! Results of one phase of a run: its counts, latencies and seconds.

use std::collections::BTreeMap;
use std::ops::Deref;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::summary::summarise;
use crate::counts::FailureCounts;
use crate::histogram::Kind;
use crate::slice::{Slice, TraceId};
use crate::timeline::{Timeline, TimelineEntry};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    pub due: u64,
    pub unsent: u64,
    pub sent: u64,
    pub answered: u64,
    pub failed: FailureCounts,
    pub timed_out: u64,
    pub censored: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connections {
    pub opened: u64,
    pub peak: u64,
    pub lost_on_reuse: u64,
    /// Full TLS handshakes, and handshakes that resumed a session.
    pub handshakes_full: u64,
    pub handshakes_resumed: u64,
    /// Connections opened, by version of HTTP.
    pub by_version: BTreeMap<String, u64>,
    /// HTTP/2: connections that the server told to end (GOAWAY), and requests sent again because the server surely had
    /// not processed them.
    pub goaway: u64,
    pub sent_again: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bytes {
    /// Bytes of HTTP written and read, inside TLS.
    pub sent: u64,
    pub received: u64,
    /// Bytes of gzip and brotli bodies before decoding; part of `received`.
    pub coded: u64,
    /// Bytes of the same bodies after decoding.
    pub decoded: u64,
}

/// Requests that follow from answers. Each comes due, is sent and ends like any other.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FollowUpCounts {
    pub redirects: u64,
    pub challenges: u64,
    /// Targets of redirects and pages that were not requested because the plan does not name their host.
    pub elsewhere: u64,
    /// Targets that are not URLs that can be loaded.
    pub unusable: u64,
    /// Targets beyond a limit: redirects in a row, references of a page and their length, bytes of an answer searched.
    pub left_out: u64,
}

/// Pages of page mode; their times are the latency kind `page`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PageCounts {
    pub loaded: u64,
    /// Pages of which a part got no good answer.
    pub failed: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Expectations {
    pub missed: u64,
}

/// Differences between the answers to a replay and those of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mismatch {
    /// Answers whose status class or redirect target differs from the log's.
    pub status: u64,
    /// Other answers of unusual size: below ¼ of the p5 or above 4 × the p95 of their class in the log. Not a mismatch
    /// by itself.
    pub size: u64,
    /// Answers that the log has a record to compare with.
    pub compared: u64,
}

impl Mismatch {
    /// Returns the share of the compared answers that differ in status class or redirect target (0 to 1).
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.compared == 0 { 0.0 } else { self.status as f64 / self.compared as f64 }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    pub due_rps: f64,
    /// Answers before the end of the phase, per second.
    pub answered_rps: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Second {
    pub t: u32,
    pub answered: u64,
    pub failed: u64,
    /// Compressed HDR V2 histogram of response latency, base64.
    pub response_hdr: String,
    /// A summary of each of [`Kind::PARTS`], if servers report their time.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub parts_us: Map<String, Value>,
}

impl TimelineEntry for Second {
    fn key(&self) -> u64 {
        u64::from(self.t)
    }
}

impl Second {
    #[must_use]
    pub fn of(slice: &Slice) -> Second {
        Second {
            t: slice.second,
            answered: slice.counts.answered,
            failed: slice.counts.failed.total() + slice.counts.timed_out,
            response_hdr: slice.latencies[Kind::Response as usize].encode_base64(),
            parts_us: parts_of(slice),
        }
    }
}

fn parts_of(slice: &Slice) -> Map<String, Value> {
    let counted = |kind: &Kind| slice.latencies[*kind as usize].count() > 0;
    let of = |kind: Kind| (kind.name().to_string(), Value::Object(summarise(&slice.latencies[kind as usize])));
    Kind::PARTS.into_iter().filter(counted).map(of).collect()
}

/// Results of the requests of a phase, or of one class in it. `latency_us` maps a [`Kind`] name to its summary.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    pub requests: Requests,
    pub status: BTreeMap<String, u64>,
    pub bytes: Bytes,
    pub expectations: Expectations,
    /// Only for replays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<Mismatch>,
    pub rate: Rate,
    pub latency_us: Map<String, Value>,
}

/// CPU time (user and system) of the server and of all that it talks to on its machine, such as backends or a database.
/// Includes processes that have exited meanwhile; excludes the generator and other programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerCpu {
    pub cpu_s: f64,
    /// Of workers that have started: without what `starting` has.
    pub us_per_request: f64,
    /// Workers that served their first requests meanwhile, where that cost much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting: Option<StartingWorkers>,
}

/// Workers of the server that had served nothing before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StartingWorkers {
    pub workers: u64,
    /// The part of the CPU time that their first requests took. It is in no `us_per_request`.
    pub cpu_s: f64,
    /// False if too little was answered after those first requests: `us_per_request` then has all CPU time in it.
    pub settled: bool,
}

impl ServerCpu {
    /// Divides CPU seconds by answers: the one definition of "CPU per request". 0 without answers.
    #[must_use]
    pub fn of(cpu_s: f64, answered: u64) -> ServerCpu {
        let us_per_request = if answered == 0 { 0.0 } else { cpu_s * 1e6 / answered as f64 };
        ServerCpu { cpu_s, us_per_request, starting: None }
    }

    /// Leaves the first requests of new workers out of `us_per_request`: a request costs `each_s` after them.
    #[must_use]
    pub fn with_starting(self, workers: u64, each_s: f64, settled: bool, answered: u64) -> ServerCpu {
        let cpu_s = (self.cpu_s - each_s * answered as f64).max(0.0);
        ServerCpu { us_per_request: each_s * 1e6, starting: Some(StartingWorkers { workers, cpu_s, settled }), ..self }
    }

    /// Returns true if `us_per_request` has the first requests of starting workers in it.
    #[must_use]
    pub fn has_starts(&self) -> bool {
        self.starting.is_some_and(|starting| !starting.settled)
    }

    /// The CPU seconds of so many answers, without those of starting workers.
    #[must_use]
    pub fn settled_s(&self, answered: u64) -> f64 {
        self.us_per_request * answered as f64 / 1e6
    }
}

/// One of the slowest requests of a phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowRequest {
    pub trace: TraceId,
    pub response_us: u64,
    /// None if it timed out.
    pub status: Option<u16>,
    /// Second of the phase in which it ended.
    pub second: u32,
    /// Only where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}

/// One phase of a finished run; it dereferences to its [`Results`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseReport {
    pub name: String,
    pub measured: bool,
    pub duration_s: f64,
    #[serde(flatten)]
    pub results: Results,
    pub connections: Connections,
    #[serde(default)]
    pub followed: FollowUpCounts,
    #[serde(default)]
    pub pages: PageCounts,
    /// Only for the measured phase, if the server is on this machine and its processes are visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu: Option<ServerCpu>,
    /// The slowest requests with the traces that they began, if the plan asks for traces; slowest first. A killed run has
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slowest: Vec<SlowRequest>,
    /// Classes in the order of the plan. In a killed run they are some seconds old.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassReport>,
    pub seconds: Timeline<Second>,
}

/// One request class in a phase; it dereferences to its [`Results`]. Its latencies are response, service and first
/// byte, because connecting and waiting for a connection belong to no class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassReport {
    pub name: String,
    /// Number of names and patterns in this class.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub patterns: usize,
    #[serde(flatten)]
    pub results: Results,
}

fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde wants a reference
fn is_one(n: &usize) -> bool {
    *n == 1
}

impl Deref for PhaseReport {
    type Target = Results;

    fn deref(&self) -> &Results {
        &self.results
    }
}

impl Deref for ClassReport {
    type Target = Results;

    fn deref(&self) -> &Results {
        &self.results
    }
}

impl PhaseReport {
    /// Returns the results of a class, or without a name those of the phase.
    #[must_use]
    pub fn of_class(&self, name: Option<&str>) -> Option<&Results> {
        match name {
            None => Some(&self.results),
            Some(name) => self.classes.iter().find(|c| c.name == name).map(|c| &c.results),
        }
    }
}

impl Results {
    /// Returns a number of a latency summary in microseconds: `latency(Kind::Response, "p99")`. `None` without samples.
    #[must_use]
    pub fn latency(&self, kind: Kind, field: &str) -> Option<f64> {
        self.latency_us.get(kind.name())?.get(field)?.as_f64()
    }

    /// Returns true if this percentile of the response latency is only a lower bound.
    #[must_use]
    pub fn is_lower_bound(&self, percentile: &str) -> bool {
        self.latency_us
            .get(Kind::Response.name())
            .and_then(|k| k.get("lower_bounds"))
            .and_then(Value::as_array)
            .is_some_and(|a| a.iter().any(|v| v.as_str() == Some(percentile)))
    }

    /// Returns the requests without an answer, for whatever reason, as a share of those due (0 to 1).
    #[must_use]
    pub fn unanswered_share(&self) -> f64 {
        let r = &self.requests;
        let bad = r.failed.total() + r.timed_out + r.censored + r.unsent;
        if r.due == 0 { 0.0 } else { bad as f64 / r.due as f64 }
    }
}
