//! The flags of lwp-bench.

use lastdrop_model::bounds::{REQUESTS, TIMEOUT, USERS};

use crate::personality::getopt::{Argument, Opt, Style, opt, parse};
use crate::personality::{Refusal, refuse, whole};
use crate::stdio::out;

const USAGE: &str = "Usage: lwp-bench [-n requests] [-c agents] [-t seconds] [-A agent] URL [URL ...]\n  \
    -n N        total requests [100]\n  -c N        parallel agents [10]\n  -t SECONDS  a request without an answer after this \
    long has failed [30]\n  -A AGENT    what the agents say they are";
/// User-Agent of a browser of its time.
const AGENT: &str = "Mozilla/4.0 (compatible; MSIE 5.0; Windows NT)";

const TABLE: &[Opt] = &[
    opt('n', "requests", Argument::Required),
    opt('c', "agents", Argument::Required),
    opt('t', "timeout", Argument::Required),
    opt('A', "agent", Argument::Required),
    opt('h', "help", Argument::None),
];

#[derive(Debug)]
pub struct LwpBenchOptions {
    pub requests: u64,
    pub agents: u64,
    pub timeout_s: u64,
    pub agent: String,
    pub urls: Vec<String>,
}

pub fn read(args: &[String]) -> Result<LwpBenchOptions, Refusal> {
    let parsed = parse("lwp-bench", Style::Long, TABLE, args);
    if let Some(e) = parsed.errors.first() {
        return refuse(1, format!("{e}\n{USAGE}"));
    }
    let mut o = LwpBenchOptions { requests: 100, agents: 10, timeout_s: 30, agent: AGENT.into(), urls: parsed.words };
    for (at, value) in parsed.options {
        let value = value.unwrap_or_default();
        let count = |what: &str, bound| match whole("lwp-bench", what, &value, bound)? {
            n if n > 0 => Ok(n as u64),
            _ => refuse(1, format!("lwp-bench: {what} '{value}' is not a number above 0\n{USAGE}")),
        };
        match TABLE[at].short {
            'n' => o.requests = count("-n", REQUESTS)?,
            'c' => o.agents = count("-c", USERS)?,
            't' => o.timeout_s = count("-t", TIMEOUT)?,
            'A' => o.agent = value,
            _ => {
                out(format!("{USAGE}\n"));
                return refuse(0, "");
            }
        }
    }
    if o.urls.is_empty() { refuse(1, format!("lwp-bench: no URL\n{USAGE}")) } else { Ok(o) }
}
