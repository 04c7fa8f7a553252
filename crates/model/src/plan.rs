//! What to do to a server: where, how much, for how long. A plan is complete (defaults filled in, seed chosen) and
//! serialisable, so that a stored run says exactly what was done.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use crate::url::{Url, UrlError};

use crate::objective::Objective;
use crate::request::{Auth, Data, Page, Pick, RequestSpec, Think};
use crate::units::{serde_seconds, serde_seconds_option};

/// What the generator does with a connection after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KeepAlive {
    /// Keep it as long as the server does.
    On,
    /// A new connection for each request; the request says `Connection: close`.
    Off,
    /// At most this many requests on a connection.
    Requests(u32),
}

impl FromStr for KeepAlive {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" => Ok(KeepAlive::On),
            "off" | "1" => Ok(KeepAlive::Off),
            n => match n.parse::<u32>() {
                Ok(n) if n > 1 => Ok(KeepAlive::Requests(n)),
                _ => Err(format!("'{text}' is not on, off or a number of requests a connection")),
            },
        }
    }
}

impl fmt::Display for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeepAlive::On => f.write_str("on"),
            KeepAlive::Off => f.write_str("off"),
            KeepAlive::Requests(n) => write!(f, "{n}"),
        }
    }
}

impl TryFrom<String> for KeepAlive {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<KeepAlive> for String {
    fn from(k: KeepAlive) -> String {
        k.to_string()
    }
}

/// How the gaps between arrivals of an open loop are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    Uniform,
    Poisson,
    /// Each gap differs from the mean by at most so many thousandths of it, evenly spread.
    Jitter(u16),
}

impl FromStr for Arrival {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "uniform" => Ok(Arrival::Uniform),
            "poisson" => Ok(Arrival::Poisson),
            "jitter" => Ok(Arrival::Jitter(100)),
            other => other
                .strip_prefix("jitter ")
                .and_then(|share| share.trim().strip_suffix('%')?.trim().parse::<f64>().ok())
                .filter(|percent| (0.0..=100.0).contains(percent))
                .map(|percent| Arrival::Jitter((percent * 10.0).round() as u16))
                .ok_or_else(|| format!("'{text}' is not uniform, poisson, jitter or 'jitter 25%'")),
        }
    }
}

/// What makes requests come due.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "loop", rename_all = "lowercase")]
pub enum Load {
    /// `users` people, each sending the next request when the answer to the last one is there.
    Closed {
        users: u32,
        /// So many at the end of the phase, with a straight line between.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to_users: Option<u32>,
    },
    /// Requests arrive at `rate_rps` whatever the server does, over at most `connections` at once.
    Open {
        rate_rps: f64,
        /// So many at the end of the phase: in a straight line, or in `steps`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to_rps: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        steps: Option<u32>,
        arrivals: Arrival,
        /// So many arrive together.
        #[serde(default = "one")]
        burst: u32,
        connections: u32,
    },
}

fn one() -> u32 {
    1
}

impl Load {
    #[must_use]
    pub fn closed(users: u32) -> Load {
        Load::Closed { users, to_users: None }
    }

    #[must_use]
    pub fn open(rate_rps: f64, arrivals: Arrival, connections: u32) -> Load {
        Load::Open { rate_rps, to_rps: None, steps: None, arrivals, burst: 1, connections }
    }

    /// Users, or connections of an open loop, at most.
    #[must_use]
    pub fn most_concurrent(&self) -> u32 {
        match self {
            Load::Closed { users, to_users } => to_users.unwrap_or(*users).max(*users),
            Load::Open { connections, .. } => *connections,
        }
    }
}

/// One stretch of a run with one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    /// Does it count? A warm-up is recorded but not part of the result.
    pub measured: bool,
    pub load: Load,
    /// Stop after this many requests came due.
    pub requests: Option<u64>,
    /// Nothing becomes due after this long.
    #[serde(with = "serde_seconds_option", default)]
    pub duration: Option<Duration>,
}

/// HTTP as it is spoken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HttpOptions {
    /// HTTP/1.0 instead of 1.1.
    pub http10: bool,
    /// Requests in flight on one connection.
    pub pipeline: u32,
    /// Redirects that are followed, one after the other, at most.
    pub redirects: u32,
    /// A user keeps the cookies that it is given.
    pub cookies: bool,
    /// Ask for gzip and brotli.
    pub compressed: bool,
    /// Undo gzip and brotli: for expectations, for values taken from answers, and counted.
    pub decode: bool,
    /// Send bodies in chunks of this many bytes.
    pub chunked: Option<u32>,
    /// Send bodies only after `100 Continue`, or a second without it.
    pub expect_continue: bool,
}

impl Default for HttpOptions {
    fn default() -> Self {
        HttpOptions {
            http10: false,
            pipeline: 1,
            redirects: 0,
            cookies: false,
            compressed: false,
            decode: false,
            chunked: None,
            expect_continue: false,
        }
    }
}

/// A proxy, `http://user:password@host:port` taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proxy {
    pub host: String,
    pub port: u16,
    /// `user:password`.
    #[serde(default)]
    pub credentials: Option<String>,
    /// CONNECT for http too; https always does.
    #[serde(default)]
    pub tunnel: bool,
}

impl FromStr for Proxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials.to_string()), rest),
            None => (None, rest),
        };
        let url: Url = format!("http://{rest}").parse().map_err(|e: UrlError| e.why)?;
        if url.path != "/" || text.contains("://") && !text.starts_with("http://") {
            return Err(format!("'{text}' is not a proxy; write http://host:3128"));
        }
        Ok(Proxy { host: url.host, port: url.port, credentials, tunnel: false })
    }
}

/// How connections are made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Network {
    /// Connect here instead of to the host of the URL.
    pub unix_socket: Option<PathBuf>,
    /// Addresses to connect from, in turn.
    pub sources: Vec<IpAddr>,
    pub proxy: Option<Proxy>,
    /// Only addresses of this family: 4 or 6.
    pub family: Option<u8>,
    /// Names are resolved again this often.
    #[serde(with = "serde_seconds_option")]
    pub dns_refresh: Option<Duration>,
    /// Bytes per second that each connection reads, and writes, at most.
    pub bandwidth_bytes: Option<u64>,
    pub receive_buffer_bytes: Option<u32>,
    pub send_buffer_bytes: Option<u32>,
}

/// TLS, for https URLs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsOptions {
    /// Any certificate is good.
    pub insecure: bool,
    /// Certificates that are trusted besides the system's.
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// The name to ask for and to verify, instead of the host of the URL.
    pub server_name: Option<String>,
    /// Only this version: `1.2` or `1.3`.
    pub version: Option<String>,
    pub resumption: bool,
    /// Do not say the server's name in the handshake.
    pub no_sni: bool,
}

impl Default for TlsOptions {
    fn default() -> Self {
        TlsOptions {
            insecure: false,
            ca: None,
            certificate: None,
            key: None,
            server_name: None,
            version: None,
            resumption: true,
            no_sni: false,
        }
    }
}

/// A complete description of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Names the run: the URL of its first request.
    pub url: Url,
    /// At least one. An empty list, from a run that an older version stored, is a GET of `url`.
    #[serde(default)]
    pub requests: Vec<RequestSpec>,
    #[serde(default)]
    pub pick: Pick,
    #[serde(default)]
    pub data: Option<Data>,
    /// Pause of each user between an answer and the next request.
    #[serde(default)]
    pub think: Option<Think>,
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
    /// How long requests in flight may take to end once nothing more comes due.
    #[serde(with = "serde_seconds")]
    pub drain: Duration,
    pub keepalive: KeepAlive,
    pub seed: u64,
    /// What the measured phase has to reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<Objective>,
}

impl Plan {
    /// Puts so much of the measured phase's load before it, outside the numbers; nothing for no time.
    pub fn warm_up(&mut self, name: &str, duration: Duration) {
        if let Some(at) = self.phases.iter().position(|p| p.measured).filter(|_| !duration.is_zero()) {
            let measured = self.phases[at].clone();
            let phase =
                Phase { name: name.into(), measured: false, requests: None, duration: Some(duration), ..measured };
            self.phases.insert(at, phase);
        }
    }

    /// A plan of one measured phase with the documented defaults: 10 users, 10 s, one thread, 5 s timeout.
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
        }
    }

    /// What cannot be carried out, in words for the user.
    ///
    /// # Errors
    /// With the first contradiction.
    pub fn check(&self) -> Result<(), PlanError> {
        fn wrong(part: Trouble, what: &str, advice: &str) -> Result<(), PlanError> {
            Err(PlanError { part, what: what.into(), advice: advice.into() })
        }
        if self.phases.is_empty() {
            return wrong(Trouble::Whole, "a plan needs a phase", "write [[phase]]");
        }
        let last = self.phases.len() - 1;
        for (i, phase) in self.phases.iter().enumerate() {
            let wrong =
                |what: &str, advice: &str| wrong(Trouble::Phase(i), &format!("phase '{}': {what}", phase.name), advice);
            if phase.duration.is_some_and(|d| d.is_zero()) {
                return wrong("its duration is 0", "write duration = \"10s\"");
            }
            if phase.duration.is_none() && (i < last || phase.requests.is_none()) {
                return wrong("it has no end, or others follow it", "give it a duration");
            }
            match &phase.load {
                Load::Open { rate_rps, to_rps, steps, .. } => {
                    if phase.duration.is_none() && to_rps.is_some() {
                        return wrong("a ramp needs a duration", "write duration = \"1m\"");
                    }
                    if steps.is_some() && to_rps.is_none() {
                        return wrong("steps need a rate to go to", "write to_rate = 1000");
                    }
                    if *rate_rps <= 0.0 && to_rps.is_none_or(|to| to <= 0.0) {
                        return wrong("its rate is 0", "write rate = 100");
                    }
                }
                Load::Closed { users, to_users } => {
                    if phase.duration.is_none() && to_users.is_some() {
                        return wrong("a ramp needs a duration", "write duration = \"1m\"");
                    }
                    if *users == 0 && to_users.is_none_or(|to| to == 0) {
                        return wrong("it has no users", "write users = 10");
                    }
                }
            }
        }
        if !self.requests.is_empty() && self.requests.iter().all(|r| r.weight <= 0.0) {
            return wrong(Trouble::Request(0), "no request has a weight", "write weight = 1");
        }
        let session = matches!(self.pick, Pick::Session | Pick::Sessions);
        if self.pick == Pick::Sessions && self.requests.last().is_none_or(|r| !r.last) {
            return wrong(
                Trouble::Request(self.requests.len().saturating_sub(1)),
                "the last of several sessions has no end",
                "write last = true in its last request",
            );
        }
        if let Some(i) = self.requests.iter().position(|r| r.once).filter(|_| !session) {
            return wrong(
                Trouble::Request(i),
                "only a session has requests that are sent once",
                "write pick = \"session\"",
            );
        }
        if session && !self.requests.is_empty() && self.requests.iter().all(|r| r.once) {
            return wrong(Trouble::Request(0), "a session needs a request that is sent each time", "leave once away");
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
                    Trouble::Http,
                    "pipelining is for independent GETs of one server on kept connections",
                    "leave pipeline away, or: sessions, pages, data, redirects, cookies, expectations, digest, bandwidth \
                     and keep-alive off or N",
                );
            }
        }
        if self.page.is_some() && session {
            return wrong(Trouble::Page, "page mode loads single pages; it excludes sessions", "choose one of them");
        }
        if self.network.unix_socket.is_some() && (self.network.proxy.is_some() || !self.network.sources.is_empty()) {
            return wrong(
                Trouble::Network,
                "a unix socket excludes a proxy and source addresses",
                "keep the socket or the others",
            );
        }
        if self.network.family.is_some_and(|f| f != 4 && f != 6) {
            return wrong(Trouble::Network, "that is no family of addresses", "write family = 4 or 6");
        }
        if self.tls.certificate.is_some() != self.tls.key.is_some() {
            return wrong(
                Trouble::Tls,
                "a client certificate needs its key, and a key its certificate",
                "give both, as PEM files",
            );
        }
        Ok(())
    }
}

/// The part of a plan that a mistake is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    Whole,
    Phase(usize),
    Request(usize),
    Http,
    Page,
    Network,
    Tls,
}

/// A plan that contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {advice}")]
pub struct PlanError {
    pub part: Trouble,
    pub what: String,
    pub advice: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_reads_what_it_prints() {
        for k in [KeepAlive::On, KeepAlive::Off, KeepAlive::Requests(7)] {
            assert_eq!(k.to_string().parse::<KeepAlive>(), Ok(k));
        }
        assert!("0".parse::<KeepAlive>().is_err());
    }
}
