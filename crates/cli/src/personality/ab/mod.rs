//! ApacheBench 2.3, as of Apache 2.4.

mod counts;
mod flags;
mod plan;
mod report;

use std::net::ToSocketAddrs;

use lastdrop_model::{CaptureLevel, Exchange, Failure, Micros, RequestOutcome, printable};

use self::counts::AbCounts;
use self::flags::{read, read_url, usage};
use self::plan::plan_of;
use self::report::{Report, answer_log, start_line, unresolved};
use super::{
    Compatibility, Refusal, carry_out, catch_signals, errno_of, failed, first_error, first_wire, refuse, remark,
};
use crate::stdio::{note, out};

/// APR's error number 70007 as an exit code.
const NO_ANSWER: u8 = 119;
const EXPIRED: &str = "apr_pollset_poll: The timeout specified has expired (70007)";
const RESET: &str = "Connection reset by peer";

fn recv_error(text: &str) -> String {
    format!("apr_socket_recv: {text} ({})", errno_of(text))
}

pub fn main(args: &[String], compatibility: Compatibility) -> Result<u8, Refusal> {
    let o = read(args)?;
    let Some(url) = read_url(&o.url) else {
        // ab takes the text before the path, or before an unknown colon, for a host.
        let rest = o.url.strip_prefix("http://").or_else(|| o.url.strip_prefix("https://"));
        let host = match (rest, o.url.split_once("://")) {
            (Some(rest), _) if rest.contains('@') => {
                rest.split('/').next().unwrap_or_default().rsplit_once(':').map(|h| h.0.to_string())
            }
            (None, Some((scheme, _))) => Some(format!("{scheme}:")),
            _ => None,
        };
        if let Some(host) = host {
            return unresolved(&o, &host, &host);
        }
        return usage("invalid URL");
    };
    let plan = plan_of(&o, &url)?;
    out(start_line(&o, &url.host, o.proxy.as_ref()));
    let (host, port) = o.proxy.clone().unwrap_or_else(|| (url.host.clone(), url.port));
    if (host.as_str(), port).to_socket_addrs().is_err() {
        return refuse(50, format!("apr_sockaddr_info_get() for {host}: Name or service not known (670002)"));
    }
    if o.verbosity >= 2 {
        let wire = printable::lossless(&first_wire(&plan));
        let head = wire.split("\r\n\r\n").next().unwrap_or_default().to_string();
        let method = &plan.requests[0].method;
        out(format!("INFO: {method} header == \n---\n{head}\r\n\r\n\n---\n"));
    }
    if o.concurrency == 0 {
        return refuse(22, "apr_pollset_poll: Invalid argument (22)");
    }
    if o.timeout_s == 0 {
        return refuse(NO_ANSWER, EXPIRED);
    }
    let stop = catch_signals()?;
    let mut counts = AbCounts::default();
    let mut gave_up = None;
    let half = plan.timeout.as_micros() as Micros / 2;
    let wish = if o.verbosity >= 2 { CaptureLevel::Answers } else { CaptureLevel::Exchanges };
    let mut show = |some: &[Exchange]| {
        for e in some {
            if gave_up.is_some() {
                return;
            }
            if let Some(raw) = e.raw.as_ref().filter(|raw| o.verbosity >= 2 && !raw.is_empty()) {
                out(answer_log(raw, o.verbosity));
            }
            // ab ends at the first such failure, without a report.
            match e.fate {
                RequestOutcome::Failed(Failure::Connect | Failure::Reset) if !o.go_on => gave_up = Some(e.fate),
                RequestOutcome::TimedOut if counts.last_end <= e.sent.unwrap_or(e.due) + half => gave_up = Some(e.fate),
                RequestOutcome::Failed(Failure::Reset) if o.verbosity >= 1 => note!("{}", recv_error(RESET)),
                _ => {}
            }
            if gave_up.is_none() {
                counts.take(e, &o);
            }
        }
    };
    let finished = carry_out(&plan, wish, &stop, &mut show).map_err(|e| failed("ab", e))?;
    if let Some(fate) = gave_up {
        if counts.done > 0 {
            out(format!("Total of {} requests completed\n", counts.done));
        }
        let text = match fate {
            RequestOutcome::TimedOut => return refuse(NO_ANSWER, EXPIRED),
            RequestOutcome::Failed(Failure::Reset) => RESET.to_string(),
            _ => first_error(&finished.run).unwrap_or_else(|| "Connection refused".into()),
        };
        return refuse(errno_of(&text), recv_error(&text));
    }
    if o.heartbeat().is_some() {
        note!("Finished {} requests", counts.done);
    } else if finished.signal.is_none() {
        out("..done\n");
    }
    let report = Report { o: &o, url: &url, counts: &counts, finished: &finished, compatibility };
    out(if o.html { report.html() } else { report.text() });
    if !o.html {
        report.files()?;
    }
    remark(
        compatibility,
        &finished.run,
        "a closed loop: while the server stalls nobody else asks, so these times leave out those who would have come",
    );
    Ok(u8::from(finished.signal.is_some()))
}
