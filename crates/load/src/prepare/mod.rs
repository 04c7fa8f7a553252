//! Turns a plan into what the event loops need: files read, names resolved, templates and expressions compiled. Request
//! bytes that never change are built once. Every mistake that can be found before the first request is found here.

mod body;
mod choice;
mod framing;
mod request;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Instant, SystemTime};

use lastdrop_model::Classes;
use lastdrop_model::plan::{Load, Plan, REQUEST_ID, ServerTimeFrom, TRACEPARENT};
use lastdrop_model::request::{Pick, RequestSpec};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustls::ClientConfig;

use crate::endpoint::Endpoint;
use crate::error::LoadError;
use crate::part::RunPart;
use crate::request_ids::IdFields;
use crate::tape::Tape;
use crate::tape_file::TapeProgress;
use crate::template::{Names, Values};
use crate::tls_config;

use body::Bodies;
use choice::read_rows;
use request::prepare;

pub use choice::{Choice, Rows, draw};
pub use request::{Detour, RenderContext, Request};

/// Returns how the next request is chosen.
fn choice_of(plan: &Plan, specs: &[RequestSpec], requests: &[Request]) -> Choice {
    match plan.pick {
        Pick::Session => Choice::Session,
        Pick::Sessions => {
            let after_last = requests.iter().enumerate().filter(|(_, r)| r.last).map(|(i, _)| i + 1);
            Choice::Sessions(std::iter::once(0).chain(after_last.filter(|i| *i < requests.len())).collect())
        }
        _ if requests.len() == 1 => Choice::Only,
        Pick::Order => Choice::Order,
        Pick::Weighted => {
            let mut sum = 0.0;
            Choice::Weighted(
                specs
                    .iter()
                    .map(|s| {
                        sum += s.weight.max(0.0);
                        sum
                    })
                    .collect(),
            )
        }
    }
}

/// Returns the first half of a run's trace ids: random, so that no two runs share a trace, and never 0.
fn random_half() -> u64 {
    RandomState::new().hash_one(SystemTime::now()) | 1
}

/// A plan, ready to run.
#[derive(Debug)]
pub struct PreparedPlan {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) requests: Vec<Request>,
    pub(crate) choice: Choice,
    pub(crate) rows: Option<Rows>,
    /// Number of values of a user: columns, then extracted ones.
    pub(crate) values: usize,
    /// Whether users have state of their own: values, cookies, a session.
    pub(crate) personal: bool,
    /// Connections that a user may have open.
    pub(crate) connections_per_user: u32,
    /// Number of request classes, 0 if there is only one; and the class of page resources.
    pub(crate) classes: usize,
    pub(crate) class_of_parts: u16,
    /// Recorded requests to play instead of the plan's own.
    pub(crate) tape: Option<Tape>,
    /// The part of the run that this process does: all of it, except in a fleet.
    pub(crate) part: RunPart,
    /// Receives the moment at which the first phase begins, as soon as it is known.
    pub(crate) begins: Option<Sender<Instant>>,
    /// Ids that the requests carry.
    pub(crate) ids: IdFields,
    names: Names,
    tls: TlsNeed,
}

/// Whether the run needs TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TlsNeed {
    No,
    /// A redirect or a page may lead to it.
    Perhaps,
    Yes,
}

impl PreparedPlan {
    /// Checks a plan, resolves its names and reads its files.
    ///
    /// # Errors
    /// The plan contradicts itself, a file cannot be used, or a host does not resolve.
    pub fn new(plan: &Plan) -> Result<PreparedPlan, LoadError> {
        PreparedPlan::part(plan, RunPart::default())
    }

    /// Like `new`, for a part of the run.
    ///
    /// # Errors
    /// As [`PreparedPlan::new`], or the plan leads to where the part may not connect.
    pub fn part(plan: &Plan, part: RunPart) -> Result<PreparedPlan, LoadError> {
        plan.check()?;
        let specs: Vec<RequestSpec> =
            if plan.requests.is_empty() { vec![RequestSpec::get(plan.url.clone())] } else { plan.requests.clone() };
        let (rows, mut names) = match &plan.data {
            Some(data) => {
                let (rows, names) = read_rows(&data.file, &part.files)?;
                let columns = names.list().len();
                (Some(Rows { rows, per: data.per, random: data.random, columns }), names)
            }
            None => (None, Names::default()),
        };
        let columns = names.list().len();
        for (index, spec) in specs.iter().enumerate() {
            if let Some(extract) = spec.extract.iter().find(|e| names.add(&e.name) < columns) {
                let what =
                    format!("'{}' is a column of the data file, too; give one of them another name", extract.name);
                return Err(LoadError::Request { index, what });
            }
        }
        let classes = Classes::of(plan);
        let mut bodies = Bodies::new(&part.files);
        let mut endpoints: Vec<Endpoint> = Vec::new();
        let mut requests = Vec::with_capacity(specs.len());
        for (index, spec) in specs.iter().enumerate() {
            let known = endpoints.iter().position(|e| {
                e.tls == spec.url.tls && e.port == spec.url.port && e.host.eq_ignore_ascii_case(&spec.url.host)
            });
            let endpoint = match known {
                Some(at) => at,
                None => {
                    if spec.url.tls {
                        tls_config::server_name(&spec.url.host, &plan.tls)?;
                    }
                    endpoints.push(Endpoint::new(&spec.url, &plan.network, part.allow.as_ref())?);
                    endpoints.len() - 1
                }
            };
            let mut request = prepare(spec, plan, endpoint, &endpoints[endpoint], &names, &mut bodies)
                .map_err(|what| LoadError::Request { index, what: format!("{} {}: {what}", spec.method, spec.url) })?;
            request.class = classes.of_request[index];
            requests.push(request);
        }
        let choice = choice_of(plan, &specs, &requests);
        let personal = matches!(plan.pick, Pick::Session | Pick::Sessions)
            || plan.page.is_some()
            || plan.http.cookies
            || plan.http.redirects > 0
            || requests.iter().any(|r| r.wire.is_none() || r.answer.wanted.is_some());
        let tls = if endpoints.iter().any(|e| e.tls) {
            TlsNeed::Yes
        } else if plan.http.redirects > 0 || plan.page.is_some() {
            TlsNeed::Perhaps
        } else {
            TlsNeed::No
        };
        let servers = endpoints.len() as u32;
        let connections_per_user = match &plan.page {
            // A browser's connections to a host, and as many to each of a few other hosts of the plan.
            Some(page) => page.connections_per_host.max(1) * servers.clamp(1, 4),
            None if plan.http.is_http2() || plan.phases.iter().any(|p| matches!(p.load, Load::Open { .. })) => 1,
            None => servers.clamp(1, 8),
        };
        let values = names.list().len();
        Ok(PreparedPlan {
            endpoints,
            requests,
            choice,
            rows,
            values,
            personal,
            connections_per_user,
            classes: if classes.names.len() > 1 { classes.names.len() } else { 0 },
            class_of_parts: classes.parts,
            tape: None,
            part,
            begins: None,
            ids: IdFields { log_prefix: None, trace_prefix: plan.http.traceparent.then(random_half) },
            names,
            tls,
        })
    }

    /// Number of columns of the data file, which are the first of a user's values.
    pub(crate) fn columns(&self) -> usize {
        self.rows.as_ref().map_or(0, |r| r.columns)
    }

    /// Plays the requests of a tape as they come due, instead of the plan's own. The plan's requests define their
    /// header fields and classes. One thread plays the tape.
    #[must_use]
    pub fn playing(self, tape: Tape) -> PreparedPlan {
        PreparedPlan { tape: Some(tape), personal: true, ..self }
    }

    /// How far a tape was played, once the run is over; `None` if the tape's length is not known.
    #[must_use]
    pub fn progress(&self) -> Option<TapeProgress> {
        self.tape.as_ref()?.progress.clone()
    }

    /// Begins at this moment, not as soon as all threads are ready.
    #[must_use]
    pub fn starting(mut self, at: Instant) -> PreparedPlan {
        self.part.start = Some(at);
        self
    }

    /// Sends the moment at which the first phase begins, as soon as all threads are ready.
    #[must_use]
    pub fn telling(self, begins: Sender<Instant>) -> PreparedPlan {
        PreparedPlan { begins: Some(begins), ..self }
    }

    /// Gives each request an id in a separate field: this prefix and a number.
    #[must_use]
    pub fn identified(mut self, prefix: String) -> PreparedPlan {
        self.ids.log_prefix = Some(prefix);
        self
    }

    /// Returns what a plan would send.
    ///
    /// # Errors
    /// A certificate or key cannot be used.
    pub fn preview(&self, plan: &Plan) -> Result<Preview, LoadError> {
        self.tls_configs(plan, 1)?;
        let servers = self
            .endpoints
            .iter()
            .map(|e| (e.origin.clone(), e.addresses.iter().map(ToString::to_string).collect()))
            .collect();
        // Values from answers are shown by their names.
        let mut values: Vec<Vec<u8>> = self.names.list().iter().map(|n| format!("({n})").into_bytes()).collect();
        if let Some(row) = self.rows.as_ref().and_then(|r| r.rows.first()) {
            values[..row.len()].clone_from_slice(row);
        }
        let mut rng = <Xoshiro256PlusPlus as rand_core::SeedableRng>::seed_from_u64(plan.seed);
        let is_logged = plan.server_time.as_ref().is_some_and(ServerTimeFrom::is_log);
        let ids = [(is_logged, REQUEST_ID), (plan.http.traceparent, TRACEPARENT)];
        let ids: String =
            ids.iter().filter(|(is_sent, _)| *is_sent).map(|(_, name)| format!("{name}: (id)\r\n")).collect();
        let requests = self
            .requests
            .iter()
            .map(|request| {
                let mut out = Vec::new();
                let mut filling = RenderContext {
                    values: Values { user: 1, iteration: 1, values: &values, rng: &mut rng },
                    ids: ids.as_bytes(),
                    cookie: None,
                    authorization: None,
                };
                let target = request.target(&mut filling.values);
                request.render(&self.endpoints[request.endpoint], &plan.http, None, &target, &mut filling, &mut out);
                out
            })
            .collect();
        Ok(Preview { servers, requests })
    }

    /// The TLS configuration of each thread, if the plan needs TLS.
    ///
    /// # Errors
    /// A certificate or key cannot be used.
    pub fn tls_configs(&self, plan: &Plan, threads: usize) -> Result<Vec<Option<Arc<ClientConfig>>>, LoadError> {
        let configs = match self.tls {
            TlsNeed::No => return Ok(vec![None; threads]),
            TlsNeed::Yes => tls_config::configs(&plan.tls, &plan.http, threads, &self.part.files)?,
            TlsNeed::Perhaps => match tls_config::configs(&plan.tls, &plan.http, threads, &self.part.files) {
                Ok(configs) => configs,
                // A machine without certificates can still load plain pages.
                Err(_) => return Ok(vec![None; threads]),
            },
        };
        Ok(configs.into_iter().map(Some).collect())
    }
}

/// What a plan would send: the servers with their addresses, and the bytes of each request with its first values.
#[derive(Debug)]
pub struct Preview {
    pub servers: Vec<(String, Vec<String>)>,
    pub requests: Vec<Vec<u8>>,
}

/// Prepares a plan without sending anything.
///
/// # Errors
/// The plan cannot run.
pub fn preview(plan: &Plan) -> Result<Preview, LoadError> {
    PreparedPlan::new(plan)?.preview(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;

    #[test]
    fn what_is_for_the_proxy_is_shown_to_the_proxy_alone() {
        let mut plan = Plan::new("http://127.0.0.1:1/".parse().expect("valid"), 1);
        let mut other = plan.requests[0].clone();
        other.url = "https://127.0.0.1:2/".parse().expect("valid");
        plan.requests.push(other);
        plan.http.redirects = 1;
        plan.network.proxy = Some("http://me:pw@127.0.0.1:3".parse().expect("valid"));
        let sent = |plan: &Plan, request: usize, endpoint: usize| {
            let prepared = PreparedPlan::new(plan).expect("valid");
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
            let values = Values { user: 1, iteration: 1, values: &[], rng: &mut rng };
            let mut filling = RenderContext { values, ids: &[], cookie: None, authorization: None };
            let detour = Detour { endpoint, method: "GET".into(), path: "/".into(), body: false, host: None };
            let detour = (endpoint != prepared.requests[request].endpoint).then_some(&detour);
            let mut out = Vec::new();
            prepared.requests[request].render(
                &prepared.endpoints[endpoint],
                &plan.http,
                detour,
                b"/",
                &mut filling,
                &mut out,
            );
            String::from_utf8(out).expect("text")
        };
        let line = "Proxy-Authorization: Basic bWU6cHc=\r\n";
        for request in [0, 1] {
            // With http each request carries it to the proxy, even after a redirect from https; a tunnel has it in its
            // CONNECT.
            assert_eq!(sent(&plan, request, 0).matches(line).count(), 1, "{request}");
            assert!(!sent(&plan, request, 1).contains("Proxy-Authorization"), "{request}");
        }
        // The header that the user wrote.
        plan.network.proxy = Some("http://127.0.0.1:3".parse().expect("valid"));
        for request in &mut plan.requests {
            request.headers.push(("Proxy-Authorization".into(), "Own".into()));
        }
        assert!(sent(&plan, 0, 0).contains("Proxy-Authorization: Own\r\n"));
        assert!(sent(&plan, 1, 0).contains("Proxy-Authorization: Own\r\n"));
        assert!(!sent(&plan, 0, 1).contains("Own") && !sent(&plan, 1, 1).contains("Own"));
        // Without a proxy it is a header like any other, for its own server only.
        plan.network.proxy = None;
        assert!(sent(&plan, 0, 0).contains("Own") && !sent(&plan, 0, 1).contains("Own"));
    }
}
