//! What a run leaves behind, and its JSON form `lastdrop.run/1`.
//!
//! A [`Run`] is always built from slices by [`RunBuilder`], whether they come from a run that just ended or from the
//! store after a kill, so a killed run is a shorter run and not another kind of thing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::counts::{Counts, Failed};
use crate::histogram::{Histogram, Kind, PERCENTILES};
use crate::look::Observed;
use crate::objective::Judged;
use crate::plan::Plan;
use crate::slice::Slice;
use crate::validity::{Validity, Verdict};

pub const RUN_SCHEMA: &str = "lastdrop.run/1";

/// How the run came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// As planned.
    Finished,
    /// By Ctrl-C or another signal, with its report.
    Interrupted,
    /// Given up early: nothing could be connected at all.
    Unreachable,
    /// The process died; the run is what the store held.
    Killed,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    pub due: u64,
    pub unsent: u64,
    pub sent: u64,
    pub answered: u64,
    pub failed: Failed,
    pub timed_out: u64,
    pub censored: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connections {
    pub opened: u64,
    pub peak: u64,
    pub lost_on_reuse: u64,
    /// TLS handshakes done in full, and those that resumed a session.
    pub handshakes_full: u64,
    pub handshakes_resumed: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bytes {
    /// HTTP as it was written and read, inside TLS where there is some.
    pub sent: u64,
    pub received: u64,
    /// Bodies after gzip or brotli was undone, where it was.
    pub decoded: u64,
}

/// Requests that follow from answers; each is due, sent and ended like any other.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Followed {
    pub redirects: u64,
    pub challenges: u64,
}

/// Pages of page mode; their times are the latency kind `page`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pages {
    pub loaded: u64,
    /// Pages of which something got no good answer.
    pub failed: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Expectations {
    pub missed: u64,
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
}

impl Second {
    #[must_use]
    pub fn of(slice: &Slice) -> Second {
        Second {
            t: slice.second,
            answered: slice.counts.answered,
            failed: slice.counts.failed.total() + slice.counts.timed_out,
            response_hdr: slice.latencies[Kind::Response as usize].encode_base64(),
        }
    }
}

/// One phase of a finished run. `latency_us` maps a [`Kind`] name to its summary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseReport {
    pub name: String,
    pub measured: bool,
    pub duration_s: f64,
    pub requests: Requests,
    pub status: BTreeMap<String, u64>,
    pub connections: Connections,
    pub bytes: Bytes,
    pub expectations: Expectations,
    #[serde(default)]
    pub followed: Followed,
    #[serde(default)]
    pub pages: Pages,
    pub rate: Rate,
    pub latency_us: Map<String, Value>,
    pub seconds: Vec<Second>,
}

impl PhaseReport {
    /// A number out of a latency summary, in microseconds: `latency(Kind::Response, "p99")`. None without samples.
    #[must_use]
    pub fn latency(&self, kind: Kind, field: &str) -> Option<f64> {
        self.latency_us.get(kind.name())?.get(field)?.as_f64()
    }

    /// Is this percentile of the response latency only a lower bound?
    #[must_use]
    pub fn is_lower_bound(&self, percentile: &str) -> bool {
        self.latency_us
            .get(Kind::Response.name())
            .and_then(|k| k.get("lower_bounds"))
            .and_then(Value::as_array)
            .is_some_and(|a| a.iter().any(|v| v.as_str() == Some(percentile)))
    }

    /// Requests that got no answer, whatever the reason, as a share of those due (0 to 1).
    #[must_use]
    pub fn unanswered_share(&self) -> f64 {
        let r = &self.requests;
        let bad = r.failed.total() + r.timed_out + r.censored + r.unsent;
        if r.due == 0 { 0.0 } else { bad as f64 / r.due as f64 }
    }
}

/// What the generator itself used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Generator {
    pub cpu_s: f64,
    pub cpu_us_per_request: f64,
    pub peak_rss_bytes: u64,
    pub threads: u32,
    pub saturated: bool,
    /// CPU of the busiest load thread, cores (0 to 1).
    pub busiest_thread_cores: f64,
    /// CPU of each load thread, cores (0 to 1).
    pub thread_cores: Vec<f64>,
    /// Why connections failed, TLS handshakes and proxies included.
    pub connect_errors: BTreeMap<String, u64>,
    /// What was wrong with answers that are not HTTP.
    pub protocol_errors: BTreeMap<String, u64>,
    /// Open files that this process may have.
    pub descriptor_limit: u64,
    /// Local ports that connections to one address can use, and those that TIME_WAIT held at the end.
    pub local_ports: u64,
    pub time_wait: u64,
    /// Time for which our own cgroup was throttled while the run lasted.
    pub throttled_s: Option<f64>,
    /// By how much the clock of the day was set forward (or, negative, back) during the run, seconds.
    pub clock_step_s: f64,
    /// For how long the machine was suspended during the run, seconds.
    pub suspended_s: f64,
    /// Share of host CPU time stolen by the hypervisor while the run lasted; None where it cannot be read.
    pub steal: Option<f64>,
    /// Is the server on this machine?
    pub co_located: bool,
}

/// Processes of the server, where it runs on this machine and can be seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Process that owns the listener.
    pub master: i32,
    /// Its children when the measured phase began, and when it ended.
    pub workers_at_start: u32,
    pub workers_at_end: u32,
    /// May server and generator run on the same processors?
    pub shares_cpus: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub schema: String,
    pub id: String,
    pub seed: u64,
    /// Milliseconds since 1970, UTC.
    pub started_unix_ms: u64,
    /// What the run was for: empty, or such as `tune baseline`.
    #[serde(default)]
    pub label: String,
    pub end: End,
    pub environment: Value,
    pub plan: Plan,
    pub phases: Vec<PhaseReport>,
    pub generator: Generator,
    /// The server's processes, where they could be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// The server second by second, where it runs on this machine and can be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Observed>,
    pub validity: Validity,
    /// What the plan wanted to be reached, judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<Judged>,
}

impl Run {
    /// The phase that the result is about: the first measured one.
    #[must_use]
    pub fn measured(&self) -> Option<&PhaseReport> {
        self.phases.iter().find(|p| p.measured)
    }

    #[must_use]
    pub fn answered_anything(&self) -> bool {
        self.phases.iter().any(|p| p.requests.answered > 0)
    }
}

/// Adds up one phase.
#[derive(Debug)]
struct PhaseTotal {
    total: Slice,
    peak: u64,
    /// How long the phase lasted, once known; until then the seconds seen so far.
    duration_us: Option<u64>,
    seconds: Vec<Second>,
}

impl PhaseTotal {
    fn duration_s(&self) -> f64 {
        match self.duration_us {
            Some(us) => us as f64 / 1e6,
            None => self.seconds.last().map_or(0.0, |s| f64::from(s.t) + 1.0),
        }
    }
}

/// Builds a [`Run`] from its slices, in any grouping, one second at a time.
#[derive(Debug)]
pub struct RunBuilder {
    plan: Plan,
    phases: Vec<PhaseTotal>,
}

impl RunBuilder {
    #[must_use]
    pub fn new(plan: Plan) -> RunBuilder {
        let phases = (0..plan.phases.len())
            .map(|i| PhaseTotal { total: Slice::new(i as u16, 0), peak: 0, duration_us: None, seconds: Vec::new() })
            .collect();
        RunBuilder { plan, phases }
    }

    /// Adds one second, of all threads together. Seconds of a phase come in order.
    pub fn add(&mut self, slice: &Slice) {
        let Some(phase) = self.phases.get_mut(slice.phase as usize) else { return };
        phase.total.add(slice);
        phase.seconds.push(Second::of(slice));
    }

    /// Says how long a phase lasted (until nothing more came due) and how many connections it had open at most.
    pub fn end_phase(&mut self, index: usize, duration_us: u64, peak: u64) {
        if let Some(phase) = self.phases.get_mut(index) {
            phase.duration_us = Some(duration_us);
            phase.peak = peak;
        }
    }

    /// Counts so far of a phase.
    #[must_use]
    pub fn counts(&self, index: usize) -> Counts {
        self.phases.get(index).map(|p| p.total.counts).unwrap_or_default()
    }

    /// The phases as they will be reported. Phases that never began are left out: none that did comes after them.
    #[must_use]
    pub fn into_reports(self) -> Vec<PhaseReport> {
        self.plan
            .phases
            .iter()
            .zip(self.phases)
            .filter(|(_, total)| total.duration_us.is_some() || !total.seconds.is_empty())
            .map(|(phase, total)| report_phase(&phase.name, phase.measured, total))
            .collect()
    }
}

fn report_phase(name: &str, measured: bool, phase: PhaseTotal) -> PhaseReport {
    let c = &phase.total.counts;
    let duration_s = phase.duration_s();
    let per_second = |n: u64| if duration_s > 0.0 { n as f64 / duration_s } else { 0.0 };
    let mut latency_us = Map::new();
    for kind in Kind::ALL {
        let h = &phase.total.latencies[kind as usize];
        if h.count() > 0 {
            let mut summary = summarise(h);
            if kind == Kind::Response {
                mark_lower_bounds(&mut summary, c);
            }
            latency_us.insert(kind.name().into(), Value::Object(summary));
        }
    }
    PhaseReport {
        name: name.to_string(),
        measured,
        duration_s,
        requests: Requests {
            due: c.due,
            unsent: c.unsent(),
            sent: c.sent,
            answered: c.answered,
            failed: c.failed,
            timed_out: c.timed_out,
            censored: c.censored(),
        },
        status: phase
            .total
            .status
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(code, n)| (code.to_string(), *n))
            .collect(),
        connections: Connections {
            opened: c.opened,
            peak: phase.peak,
            lost_on_reuse: c.lost_on_reuse,
            handshakes_full: c.handshakes_full,
            handshakes_resumed: c.handshakes_resumed,
        },
        bytes: Bytes { sent: c.bytes_sent, received: c.bytes_received, decoded: c.bytes_decoded },
        expectations: Expectations { missed: c.missed },
        followed: Followed { redirects: c.redirected, challenges: c.challenged },
        pages: Pages { loaded: c.pages, failed: c.pages_failed },
        rate: Rate { due_rps: per_second(c.due), answered_rps: per_second(c.answered_in_time) },
        latency_us,
        seconds: phase.seconds,
    }
}

fn summarise(h: &Histogram) -> Map<String, Value> {
    let mut m = Map::new();
    m.insert("count".into(), json!(h.count()));
    m.insert("min".into(), json!(h.min()));
    m.insert("mean".into(), json!((h.mean() * 10.0).round() / 10.0));
    for (name, q) in PERCENTILES {
        m.insert(name.into(), json!(h.quantile(q)));
    }
    m.insert("max".into(), json!(h.max()));
    m
}

/// A percentile q is only a lower bound where more than (1 − q) of the requests due have no answer at all.
fn mark_lower_bounds(summary: &mut Map<String, Value>, c: &Counts) {
    let missing = (c.failed.total() + c.timed_out + c.censored() + c.unsent()) as f64;
    let bounds: Vec<&str> = PERCENTILES
        .iter()
        // The tolerance keeps "exactly 1 % missing" from marking p99 through rounding of 1 − 0.99.
        .filter(|(_, q)| missing > (1.0 - q) * c.due as f64 + 1e-9 * c.due as f64)
        .map(|(name, _)| *name)
        .collect();
    if !bounds.is_empty() {
        summary.insert("lower_bound".into(), json!(true));
        summary.insert("lower_bounds".into(), json!(bounds));
    }
}

impl Default for Validity {
    fn default() -> Self {
        Validity { verdict: Verdict::Valid, reasons: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan::new("http://127.0.0.1/".parse().expect("valid"), 1)
    }

    #[test]
    fn the_two_sums_hold_when_requests_are_still_in_flight() {
        let mut b = RunBuilder::new(plan());
        let mut s = Slice::new(0, 0);
        s.counts = Counts { due: 100, sent: 90, answered: 50, timed_out: 10, ..Counts::default() };
        s.counts.failed.reset = 5;
        b.add(&s);
        let r = &b.into_reports()[0].requests;
        assert_eq!(r.due, r.sent + r.unsent);
        assert_eq!(r.sent, r.answered + r.failed.total() + r.timed_out + r.censored);
        assert_eq!((r.unsent, r.censored), (10, 25));
    }

    #[test]
    fn percentiles_beyond_the_missing_answers_are_lower_bounds() {
        let mut b = RunBuilder::new(plan());
        let mut s = Slice::new(0, 0);
        s.counts = Counts { due: 1000, sent: 1000, answered: 980, timed_out: 20, ..Counts::default() };
        for _ in 0..980 {
            s.record(Kind::Response, 100);
        }
        b.add(&s);
        let p = &b.into_reports()[0];
        assert!(p.is_lower_bound("p99") && p.is_lower_bound("p99_9"));
        assert!(!p.is_lower_bound("p95") && !p.is_lower_bound("p50"));
    }

    #[test]
    fn exactly_one_percent_missing_leaves_p99_alone() {
        let mut b = RunBuilder::new(plan());
        let mut s = Slice::new(0, 0);
        s.counts = Counts { due: 1000, sent: 1000, answered: 990, timed_out: 10, ..Counts::default() };
        s.record(Kind::Response, 100);
        b.add(&s);
        assert!(!b.into_reports()[0].is_lower_bound("p99"));
    }
}
