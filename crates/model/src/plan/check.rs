//! Checks that a plan can be carried out: no contradictions between its parts, no numbers out of bounds.

use crate::bounds::{
    BANDWIDTH, BUFFER, BURST, Bound, CONNECTIONS, DRAIN, DURATION, INTERVAL, KEEPALIVE, PAGE_CONNECTIONS, PAUSE,
    PHASES, RAMP_RATE, RAMP_USERS, RATE, REQUESTS, STEPS, THREADS, TIMEOUT, USERS, WEIGHT,
};
use crate::class::Classes;
use crate::http_options::{HTTP_OPTIONS, OptionKind};
use crate::objective::{Metric, Objective};
use crate::request::{Auth, Pick, RequestSpec, ThinkTime};

use super::{KeepAlive, Load, Plan, REQUEST_ID, ServerTimeFrom, TRACEPARENT};

/// Most request classes that an error lists.
const NAMES_SHOWN: usize = 20;

impl Plan {
    /// Checks that the plan can be carried out.
    ///
    /// # Errors
    /// With the first contradiction, in words for the user.
    pub fn check(&self) -> Result<(), PlanError> {
        fn wrong(part: PlanPart, what: &str, advice: &str) -> Result<(), PlanError> {
            Err(PlanError { part, what: what.into(), advice: advice.into() })
        }
        if self.phases.is_empty() {
            return wrong(PlanPart::Whole, "a plan needs a phase", "write [[phase]]");
        }
        self.check_bounds()?;
        let last = self.phases.len() - 1;
        for (i, phase) in self.phases.iter().enumerate() {
            let wrong = |what: &str, advice: &str| {
                wrong(PlanPart::Phase(i), &format!("phase '{}': {what}", phase.name), advice)
            };
            if phase.duration.is_none() && (i < last || phase.requests.is_none()) {
                return wrong("it has no end, or others follow it", "give it a duration");
            }
            match &phase.load {
                Load::Open { to_rps, steps, .. } => {
                    if phase.duration.is_none() && to_rps.is_some() {
                        return wrong("a ramp needs a duration", "write duration = \"1m\"");
                    }
                    if steps.is_some() && to_rps.is_none() {
                        return wrong("steps need a rate to go to", "write to_rate = 1000");
                    }
                }
                Load::Closed { to_users, .. } => {
                    if phase.duration.is_none() && to_users.is_some() {
                        return wrong("a ramp needs a duration", "write duration = \"1m\"");
                    }
                }
            }
        }
        if !self.requests.is_empty() && self.requests.iter().all(|r| r.weight <= 0.0) {
            return wrong(PlanPart::Request(0), "no request has a weight", "write weight = 1");
        }
        let session = matches!(self.pick, Pick::Session | Pick::Sessions);
        if self.pick == Pick::Sessions && self.requests.last().is_none_or(|r| !r.last) {
            return wrong(
                PlanPart::Request(self.requests.len().saturating_sub(1)),
                "the last of several sessions has no end",
                "write last = true in its last request",
            );
        }
        if let Some(i) = self.requests.iter().position(|r| r.once).filter(|_| !session) {
            return wrong(
                PlanPart::Request(i),
                "only a session has requests that are sent once",
                "write pick = \"session\"",
            );
        }
        if session && !self.requests.is_empty() && self.requests.iter().all(|r| r.once) {
            return wrong(PlanPart::Request(0), "a session needs a request that is sent each time", "leave once away");
        }
        if self.http.pipeline > 1 {
            let follows = session
                || self.page.is_some()
                || self.http.redirects > 0
                || self.http.cookies
                || self.http.decode
                || self.keepalive != KeepAlive::On
                || self.network.bandwidth_bytes.is_some()
                || self.data.is_some()
                || self.requests.iter().any(|r| {
                    matches!(r.auth, Some(Auth::Digest { .. }))
                        || !r.extract.is_empty()
                        || !r.expect.is_empty()
                        || r.method != "GET"
                });
            if follows || self.requests.iter().any(|r| r.url.origin() != self.url.origin()) {
                return wrong(
                    PlanPart::Http,
                    "pipelining is for independent GETs of one server on kept connections",
                    "leave pipeline away, or: sessions, pages, data, redirects, cookies, expectations, digest, bandwidth \
                     and keep-alive off or N",
                );
            }
        }
        self.check_http2()?;
        self.check_request_ids()?;
        self.check_classes(&self.objectives)?;
        if self.network.unix_socket.is_some() && (self.network.proxy.is_some() || !self.network.sources.is_empty()) {
            return wrong(
                PlanPart::Network,
                "a unix socket excludes a proxy and source addresses",
                "keep the socket or the others",
            );
        }
        if self.network.family.is_some_and(|f| f != 4 && f != 6) {
            return wrong(PlanPart::Network, "that is no family of addresses", "write family = 4 or 6");
        }
        if self.tls.certificate.is_some() != self.tls.key.is_some() {
            return wrong(
                PlanPart::Tls,
                "a client certificate needs its key, and a key its certificate",
                "give both, as PEM files",
            );
        }
        Ok(())
    }

    /// Refuses an objective about a class that the plan does not have: it could never be met.
    ///
    /// # Errors
    /// With the first such objective, and the classes that exist.
    pub fn check_classes(&self, objectives: &[Objective]) -> Result<(), PlanError> {
        if let Some(objective) = objectives.iter().find(|o| o.metric == Metric::Mismatch && self.replay.is_none()) {
            return Err(PlanError {
                part: PlanPart::Whole,
                what: format!("objective {objective}: only a replay compares answers with those of a log"),
                advice: "write errors<…, which counts missed expectations, or replay a log: `lastdrop replay`".into(),
            });
        }
        let mut asked = objectives.iter().filter_map(|o| o.class.as_ref().map(|class| (o, class))).peekable();
        if asked.peek().is_none() {
            return Ok(());
        }
        let names = Classes::of(self).names;
        let Some((objective, class)) = asked.find(|(_, class)| !names.contains(class)) else { return Ok(()) };
        let shown = names.iter().take(NAMES_SHOWN).map(|n| format!("'{n}'")).collect::<Vec<_>>().join(", ");
        let more = if names.len() > NAMES_SHOWN { ", …" } else { "" };
        Err(PlanError {
            part: PlanPart::Whole,
            what: format!("objective {objective}: no requests are called '{class}'"),
            advice: format!("there are {shown}{more}; name = in a plan's request gives it a name"),
        })
    }

    /// Refuses what HTTP/2 does not have, and what lastdrop does not do over it.
    fn check_http2(&self) -> Result<(), PlanError> {
        if !self.http.is_http2() {
            return Ok(());
        }
        let other = [
            (self.http.pipeline > 1, "pipelining (streams take its place: --streams)"),
            (self.http.chunked.is_some(), "chunks"),
            (self.http.expect_continue, "'Expect: 100-continue'"),
            (self.network.proxy.is_some(), "a proxy"),
            (self.network.bandwidth_bytes.is_some(), "a limited bandwidth"),
            (self.page.is_some(), "pages"),
            (self.replay.is_some(), "replays"),
            (self.requests.iter().any(|r| r.lines.is_some()), "header lines as they are written"),
        ];
        match other.iter().find(|(is_asked, _)| *is_asked) {
            None => Ok(()),
            Some((_, what)) => Err(PlanError {
                part: PlanPart::Http,
                what: format!("lastdrop does not do this over HTTP/2: {what}"),
                advice: "leave it away, or choose --http 1.1".into(),
            }),
        }
    }

    /// Refuses a request with an id of its own where lastdrop adds one: with two ids it is not found by either.
    fn check_request_ids(&self) -> Result<(), PlanError> {
        let is_logged = self.server_time.as_ref().is_some_and(ServerTimeFrom::is_log);
        let ids = [
            (is_logged, REQUEST_ID, "by which its line in the server's log is to be found", "server_time = \"log:…\""),
            (self.http.traceparent, TRACEPARENT, "and is to begin a trace of its own", "--traceparent"),
        ];
        for (_, field, why, option) in ids.into_iter().filter(|(is_sent, ..)| *is_sent) {
            let is_id = |name: &str| name.trim().eq_ignore_ascii_case(field);
            let own = |r: &RequestSpec| {
                let mut lines = r.lines.as_deref().unwrap_or_default().lines();
                r.headers.iter().any(|(name, _)| is_id(name))
                    || lines.any(|line| line.split_once(':').is_some_and(|(name, _)| is_id(name)))
            };
            if let Some(i) = self.requests.iter().position(own) {
                return Err(PlanError {
                    part: PlanPart::Request(i),
                    what: format!("it has a field {field} of its own, {why}"),
                    advice: format!("leave that field away, or {option}"),
                });
            }
        }
        Ok(())
    }

    /// Checks every number against its bounds, whichever way the plan was made.
    fn check_bounds(&self) -> Result<(), PlanError> {
        let within = |part: PlanPart, bound: &'static Bound, value: f64| {
            bound.check(value).map_err(|e| {
                let of = match part {
                    PlanPart::Phase(i) => format!("phase '{}': ", self.phases[i].name),
                    _ => String::new(),
                };
                PlanError { part, what: format!("{of}{e}"), advice: "correct it".into() }
            })
        };
        let think = |part: PlanPart, think: Option<ThinkTime>| match think {
            None => Ok(()),
            Some(ThinkTime::Fixed(d) | ThinkTime::Exponential(d) | ThinkTime::Uniform(_, d)) => {
                within(part, PAUSE, d.as_secs_f64())
            }
        };
        within(PlanPart::Whole, PHASES, self.phases.len() as f64)?;
        for (i, phase) in self.phases.iter().enumerate() {
            let within = |bound, value| within(PlanPart::Phase(i), bound, value);
            if let Some(n) = phase.requests {
                within(REQUESTS, n as f64)?;
            }
            if let Some(d) = phase.duration {
                within(DURATION, d.as_secs_f64())?;
            }
            match phase.load {
                Load::Closed { users, to_users, connections } => {
                    if let Some(n) = connections {
                        within(CONNECTIONS, f64::from(n))?;
                    }
                    let to = f64::from(to_users.unwrap_or(users));
                    within(RAMP_USERS, to)?;
                    within(USERS, to.max(f64::from(users)))?;
                }
                Load::Open { rate_rps, to_rps, steps, burst, connections, .. } => {
                    let to = to_rps.unwrap_or(rate_rps);
                    within(RAMP_RATE, rate_rps)?;
                    within(RAMP_RATE, to)?;
                    within(RATE, to.max(rate_rps))?;
                    within(BURST, f64::from(burst))?;
                    within(CONNECTIONS, f64::from(connections))?;
                    if let Some(steps) = steps {
                        within(STEPS, f64::from(steps))?;
                    }
                }
            }
        }
        for (i, request) in self.requests.iter().enumerate() {
            within(PlanPart::Request(i), WEIGHT, request.weight)?;
            think(PlanPart::Request(i), request.think)?;
        }
        let within = |part: PlanPart, bound: &'static Bound, value: Option<f64>| match value {
            Some(value) => within(part, bound, value),
            None => Ok(()),
        };
        let keep = if let KeepAlive::Requests(n) = self.keepalive { Some(n) } else { None };
        let (http, network) = (&self.http, &self.network);
        think(PlanPart::Whole, self.think)?;
        within(PlanPart::Whole, THREADS, Some(f64::from(self.threads)))?;
        within(PlanPart::Whole, TIMEOUT, Some(self.timeout.as_secs_f64()))?;
        within(PlanPart::Whole, DRAIN, Some(self.drain.as_secs_f64()))?;
        within(PlanPart::Whole, KEEPALIVE, keep.map(f64::from))?;
        within(PlanPart::Page, PAGE_CONNECTIONS, self.page.as_ref().map(|p| f64::from(p.connections_per_host)))?;
        for option in HTTP_OPTIONS {
            if let OptionKind::Number(bound) = option.takes {
                within(PlanPart::Http, bound, (option.number)(http).map(f64::from))?;
            }
        }
        within(PlanPart::Network, INTERVAL, network.dns_refresh.map(|d| d.as_secs_f64()))?;
        within(PlanPart::Network, BANDWIDTH, network.bandwidth_bytes.map(|b| b as f64))?;
        within(PlanPart::Network, BUFFER, network.receive_buffer_bytes.map(f64::from))?;
        within(PlanPart::Network, BUFFER, network.send_buffer_bytes.map(f64::from))
    }
}

/// A part of a plan, to locate a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanPart {
    Whole,
    Phase(usize),
    Request(usize),
    Http,
    Page,
    Network,
    Tls,
}

/// The error for a plan that cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {advice}")]
pub struct PlanError {
    pub part: PlanPart,
    pub what: String,
    pub advice: String,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::http_options::Version;
    use crate::plan::Arrival;

    #[test]
    fn whoever_makes_a_plan_its_numbers_are_bounded() {
        type Change = fn(&mut Plan);
        let wrong = |change: Change| {
            let mut plan = Plan::new("http://h/".parse().expect("valid"), 1);
            change(&mut plan);
            plan.check().expect_err("out of bounds").to_string()
        };
        let changes: [(Change, &str); 10] = [
            (|p| p.phases[0].load = Load::closed(0), "users must be a whole number from 1 to 1000000, not '0'"),
            (|p| p.phases[0].load = Load::open(f64::NAN, Arrival::Uniform, 1), "the rate of a ramp"),
            (|p| p.phases[0].load = Load::open(1.0, Arrival::Uniform, 0), "connections"),
            (|p| p.requests[0].weight = f64::INFINITY, "a weight"),
            (|p| p.timeout = Duration::ZERO, "a timeout must be from 1us to 366d, not '0s'"),
            (|p| p.think = Some(ThinkTime::Fixed(Duration::MAX)), "a pause"),
            (|p| p.threads = 0, "threads"),
            (|p| p.phases = vec![p.phases[0].clone(); 10_001], "phases"),
            (|p| (p.http.version, p.http.pipeline) = (Version::Http2, 2), "does not do this over HTTP/2: pipelining"),
            (|p| p.http.streams = Some(0), "streams must be a whole number from 1 to 10000"),
        ];
        for (change, words) in changes {
            let message = wrong(change);
            assert!(message.contains(words), "{message}");
        }
    }
}
