//! Resources that the generator used and ran out of during a run, and other programs that used the machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Resources that the kernel refused the generator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shortage {
    /// Requests that had to wait because this process could not open another descriptor (EMFILE, ENFILE).
    pub descriptors: u64,
    /// Connections that failed because no local port was free (EADDRNOTAVAIL).
    pub ports: u64,
}

impl Shortage {
    pub fn add(&mut self, other: Shortage) {
        self.descriptors += other.descriptors;
        self.ports += other.ports;
    }
}

/// Resources that the generator used, and its errors.
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
    /// Failed connections by reason, including TLS handshakes and proxies.
    pub connect_errors: BTreeMap<String, u64>,
    /// Answers that are not HTTP, by what is wrong with them.
    pub protocol_errors: BTreeMap<String, u64>,
    /// Weaknesses of the server's certificate if it was not verified (`--insecure`); `None` otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unverified: Option<Vec<String>>,
    /// Parts of measured pages that got no good answer: the outcome and the URL.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub page_errors: BTreeMap<String, u64>,
    /// Requests without an expectation in the plan, and how many of their answers were checked. `doubts` says why some
    /// of these answers suggest that the work was not done: `GET /mine/ redirects to /login?next`. Each begins with the
    /// request's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub looked_at: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub doubts: BTreeMap<String, u64>,
    /// Resources that the generator ran out of.
    pub shortage: Shortage,
    /// Most open files that this process may have.
    pub descriptor_limit: u64,
    /// Local ports that connections to one address can use, and connections in TIME_WAIT at the end. With several
    /// servers, those to the server with the most.
    pub local_ports: u64,
    pub time_wait: u64,
    /// Time for which the generator's own cgroup was throttled during the run.
    pub throttled_s: Option<f64>,
    /// Seconds by which the wall clock was set forward (or back, if negative) during the run.
    pub clock_step_s: f64,
    /// Seconds for which the machine was suspended during the run.
    pub suspended_s: f64,
    /// Share of host CPU time stolen by the hypervisor during the run; `None` if it cannot be read.
    pub steal: Option<f64>,
    /// True if the server is on this machine.
    pub co_located: bool,
    /// Processors of this machine.
    pub processors: u64,
    /// Processors that unrelated programs on this machine used in the measured phase: not this process, the server, or
    /// what the server talks to. `None` if they cannot be told apart.
    pub others_cores: Option<f64>,
    /// The unrelated programs that used most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherProgram>,
}

impl Generator {
    /// Returns the doubts about requests of which most checked answers are doubtful, the most frequent doubt first.
    #[must_use]
    pub fn doubted(&self) -> Vec<&str> {
        let of = |name: &str, doubt: &str| doubt.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '));
        let name = |doubt: &str| self.looked_at.keys().filter(|name| of(name, doubt)).max_by_key(|name| name.len());
        let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
        for (doubt, n) in &self.doubts {
            *seen.entry(name(doubt).map_or("", String::as_str)).or_insert(0) += n;
        }
        let is_most = |doubt: &str| {
            name(doubt).is_some_and(|name| seen.get(name.as_str()).copied().unwrap_or(0) * 2 > self.looked_at[name])
        };
        let mut most: Vec<(&str, u64)> =
            self.doubts.iter().map(|(doubt, n)| (doubt.as_str(), *n)).filter(|(doubt, _)| is_most(doubt)).collect();
        most.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        most.into_iter().map(|(doubt, _)| doubt).collect()
    }
}

/// Returns the reason why nothing was answered, as a user reads it. A TLS error proves that a server runs, so it gets
/// no question.
#[must_use]
pub fn with_question(why: &str) -> String {
    if why.starts_with("TLS: ") { why.into() } else { format!("{why}; is the server running, and is that its port?") }
}

/// A program that is unrelated to a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherProgram {
    pub name: String,
    /// The process of it that used most.
    pub pid: i32,
    pub cores: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_in_doubt_where_most_of_its_answers_are() {
        let map = |all: &[(&str, u64)]| all.iter().map(|(what, n)| (what.to_string(), *n)).collect();
        let generator = Generator {
            looked_at: map(&[("GET /", 5), ("GET /a", 5), ("GET /a b", 5), ("POST /a", 4)]),
            doubts: map(&[
                ("GET / redirects to /login", 2),
                ("GET /a b redirects to /login", 2),
                ("GET /a b redirects to /other", 3),
                ("GET /a redirects to /login", 4),
                ("POST /a redirects to /login", 2),
            ]),
            ..Generator::default()
        };
        let doubted = generator.doubted();
        assert_eq!(
            doubted,
            ["GET /a redirects to /login", "GET /a b redirects to /other", "GET /a b redirects to /login"]
        );
        assert!(Generator::default().doubted().is_empty());
    }
}
