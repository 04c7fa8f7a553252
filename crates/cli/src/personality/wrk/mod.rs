//! wrk 4.1, and wrk2's constant rate.

mod counts;
mod flags;
mod plan;
mod report;
mod spectrum;

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use lastdrop_load::describe;
use lastdrop_model::{CaptureLevel, Exchange, Url, secrets};

use self::counts::WrkCounts;
use self::flags::{Program, read, usage};
use self::plan::plan_of;
use self::report::{report, scaled};
use super::{Compatibility, Refusal, carry_out, catch_signals, failed, refuse, remark};
use crate::stdio::out;

pub fn main(args: &[String], compatibility: Compatibility) -> Result<u8, Refusal> {
    run(Program::Wrk, args, compatibility)
}

/// Runs wrk2.
pub fn main2(args: &[String], compatibility: Compatibility) -> Result<u8, Refusal> {
    run(Program::Wrk2, args, compatibility)
}

/// A URL as wrk parses it: it drops a user's name and sends the path unchanged.
fn read_url(text: &str) -> Option<Url> {
    let (scheme, rest) = text.split_once("://")?;
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let url: Url = format!("{scheme}://{host}/").parse().ok()?;
    Some(url.with_path(if path.starts_with('/') { path } else { "/" }))
}

fn run(program: Program, args: &[String], compatibility: Compatibility) -> Result<u8, Refusal> {
    let o = read(program, args)?;
    let can_be_sent = o.url.bytes().all(|b| b.is_ascii_graphic());
    if !o.url.contains("://") || o.url.ends_with("://") || !can_be_sent {
        return usage(program, &format!("invalid URL: {}", o.url));
    }
    let Some(url) = read_url(&o.url) else {
        let (scheme, rest) = o.url.split_once("://").unwrap_or(("http", &o.url));
        let host = rest.split(['/', ':']).next().unwrap_or_default();
        return refuse(1, format!("unable to resolve {host}:{scheme} Name or service not known"));
    };
    let service = match (url.port, url.tls) {
        (80, false) => "http".into(),
        (443, true) => "https".into(),
        (port, _) => port.to_string(),
    };
    let addresses: Vec<_> = (url.host.as_str(), url.port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    if addresses.is_empty() {
        return refuse(1, format!("unable to resolve {}:{service} Name or service not known", url.host));
    }
    // wrk tries one connection before it starts; so do we, with the same message.
    let tried: Vec<_> = addresses.iter().map(|a| TcpStream::connect_timeout(a, Duration::from_secs(10))).collect();
    if let (true, Some(Err(e))) = (tried.iter().all(Result::is_err), tried.last()) {
        return refuse(1, format!("unable to connect to {}:{service} {}", url.host, describe(e)));
    }
    drop(tried);
    let plan = plan_of(&o, &url);
    out(format!(
        "Running {} test @ {}\n  {} threads and {} connections\n",
        scaled(o.duration_s as f64, 60.0, &["s", "m"], 0),
        secrets::url(&o.url),
        o.threads,
        o.connections
    ));
    let stop = catch_signals()?;
    let mut counts = WrkCounts::default();
    let open = o.rate.is_some();
    let mut show = |some: &[Exchange]| some.iter().for_each(|e| counts.take(e, open));
    let finished = carry_out(&plan, CaptureLevel::Exchanges, &stop, &mut show).map_err(|e| failed("wrk", e))?;
    let run_s = finished.run.phases[0].duration_s.max(1e-6);
    out(report(&o, &counts, run_s, compatibility));
    let what = if open {
        "an open loop: times count from when a request was due"
    } else {
        "a closed loop: while the server stalls nobody else asks, so these times leave out those who would have come; -R RATE shows them"
    };
    remark(compatibility, &finished.run, what);
    Ok(0)
}
