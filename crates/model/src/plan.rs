//! What to do to a server: where, how much, for how long. A plan is complete (defaults filled in, seed chosen) and
//! serialisable, so that a stored run says exactly what was done.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{serde_seconds, serde_seconds_option};

/// Where requests go: an absolute http URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Url {
    /// Host without brackets: a name, an IPv4 or an IPv6 address.
    pub host: String,
    pub port: u16,
    /// Path and query, starting with `/`.
    pub path: String,
}

/// A URL that cannot be used, with what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{url}' is not a URL that can be loaded: {why}")]
pub struct UrlError {
    pub url: String,
    pub why: String,
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let err = |why: &str| UrlError { url: text.to_string(), why: why.to_string() };
        let full = if text.contains("://") { text.to_string() } else { format!("http://{text}") };
        let without_fragment = full.split('#').next().unwrap_or_default();
        let uri: http::Uri = without_fragment
            .parse()
            .map_err(|e: http::uri::InvalidUri| err(&format!("{e}; write it as http://127.0.0.1:8080/path")))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(err("TLS is not supported yet; load the plain http listener")),
            _ => return Err(err("it must start with http://")),
        }
        let authority = uri.authority().ok_or_else(|| err("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(err("user and password do not belong in it; send a header: -H 'Authorization: Basic …'"));
        }
        let port = match authority.as_str().rsplit_once(':') {
            Some((_, digits)) if !digits.ends_with(']') => {
                digits.parse::<u16>().ok().filter(|p| *p > 0).ok_or_else(|| err("the port must be 1 to 65535"))?
            }
            _ => 80,
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_string();
        if host.is_empty() {
            return Err(err("it has no host"));
        }
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let path = if path.starts_with('/') { path.to_string() } else { format!("/{path}") };
        Ok(Url { host, port, path })
    }
}

impl Url {
    /// The value of the Host header: brackets around IPv6, the port unless it is 80.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == 80 { host } else { format!("{host}:{}", self.port) }
    }

    /// The same server, another path.
    #[must_use]
    pub fn with_path(&self, path: &str) -> Url {
        Url { path: path.to_string(), ..self.clone() }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.path)
    }
}

impl TryFrom<String> for Url {
    type Error = UrlError;

    fn try_from(text: String) -> Result<Self, UrlError> {
        text.parse()
    }
}

impl From<Url> for String {
    fn from(url: Url) -> String {
        url.to_string()
    }
}

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
}

impl FromStr for Arrival {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "uniform" => Ok(Arrival::Uniform),
            "poisson" => Ok(Arrival::Poisson),
            _ => Err(format!("'{text}' is not uniform or poisson")),
        }
    }
}

/// What makes requests come due.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "loop", rename_all = "lowercase")]
pub enum Load {
    /// `users` people, each sending the next request when the answer to the last one is there.
    Closed { users: u32 },
    /// Requests arrive at `rate_rps` whatever the server does, over at most `connections` at once.
    Open { rate_rps: f64, arrivals: Arrival, connections: u32 },
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

/// A complete description of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub url: Url,
    pub method: String,
    /// Extra header lines, in order; one of ours (Host, User-Agent, Accept, Connection) is replaced by its namesake.
    pub headers: Vec<(String, String)>,
    #[serde(default)]
    pub body: Option<String>,
    pub phases: Vec<Phase>,
    pub threads: u32,
    #[serde(with = "serde_seconds")]
    pub timeout: Duration,
    /// How long requests in flight may take to end once nothing more comes due.
    #[serde(with = "serde_seconds")]
    pub drain: Duration,
    pub keepalive: KeepAlive,
    pub seed: u64,
}

impl Plan {
    /// A plan of one measured phase with the documented defaults: 10 users, 10 s, one thread, 5 s timeout.
    #[must_use]
    pub fn new(url: Url, seed: u64) -> Plan {
        Plan {
            url,
            method: "GET".into(),
            headers: Vec::new(),
            body: None,
            phases: vec![Phase {
                name: "main".into(),
                measured: true,
                load: Load::Closed { users: 10 },
                requests: None,
                duration: Some(Duration::from_secs(10)),
            }],
            threads: 1,
            timeout: Duration::from_secs(5),
            drain: Duration::from_secs(5),
            keepalive: KeepAlive::On,
            seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let u: Url = "http://[::1]:8080/a?b=c#d".parse().expect("valid");
        assert_eq!((u.host.as_str(), u.port, u.path.as_str()), ("::1", 8080, "/a?b=c"));
        assert_eq!(u.to_string(), "http://[::1]:8080/a?b=c");
        let u: Url = "localhost:81".parse().expect("valid");
        assert_eq!((u.host.as_str(), u.port, u.path.as_str()), ("localhost", 81, "/"));
        let u: Url = "http://h?x".parse().expect("valid");
        assert_eq!(u.path, "/?x");
    }

    #[test]
    fn wrong_urls_say_what_to_write() {
        for bad in ["", "http://", "ftp://x/", "http://h:0/", "http://h:99999/", "http://a b/", "http://u:p@h/"] {
            assert!(bad.parse::<Url>().is_err(), "{bad}");
        }
    }

    #[test]
    fn keep_alive_reads_what_it_prints() {
        for k in [KeepAlive::On, KeepAlive::Off, KeepAlive::Requests(7)] {
            assert_eq!(k.to_string().parse::<KeepAlive>(), Ok(k));
        }
        assert!("0".parse::<KeepAlive>().is_err());
    }
}
