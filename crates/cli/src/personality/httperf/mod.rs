//! httperf 0.9.0.

mod counts;
mod flags;
mod parameters;
mod plan;
mod report;

use std::net::ToSocketAddrs;

use lastdrop_model::{CaptureLevel, Exchange, RequestOutcome, Url};

use self::counts::HttperfCounts;
use self::flags::{ConnectionSchedule, Workload, port, read};
use self::plan::plan_of;
use self::report::{begun_head, echo, marked, report};
use super::{Compatibility, Refusal, carry_out, catch_signals, failed, refuse, remark};
use crate::stdio::{note, out};

/// Limit of a session's simultaneous connections.
const MOST_OF_A_SESSION: u32 = 4;

pub fn main(args: &[String], compatibility: Compatibility) -> Result<u8, Refusal> {
    let o = read(args)?;
    out(echo(&o));
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    if limit.is_ok_and(|(soft, _)| soft > 1024) {
        note!("httperf: warning: open file limit > FD_SETSIZE; limiting max. # of open files to FD_SETSIZE");
    }
    if o.verbose > 0 {
        out("httperf: maximum number of open descriptors = 1024\n");
    }
    if (o.server.as_str(), port(&o)).to_socket_addrs().is_err() {
        return refuse(1, format!("httperf.core_addr_intern: invalid server address {}", o.server));
    }
    if !matches!(o.http_version, (1, 0 | 1)) {
        let (major, minor) = o.http_version;
        return refuse(1, format!("httperf: unexpected version code {:x}", major << 16 | minor & 0xffff));
    }
    let sessions = matches!(o.work, Workload::Sessions(..) | Workload::SessionLog(..));
    if sessions && o.max_connections.is_some_and(|n| n > MOST_OF_A_SESSION) {
        return refuse(1, format!("httperf.session_init: --max-conns must be <= {MOST_OF_A_SESSION}"));
    }
    // httperf sends its URI unchanged.
    let url = Url { tls: o.ssl, host: o.server.clone(), port: port(&o), path: o.uri.clone() };
    let plan = plan_of(&o, &url)?;
    let stop = catch_signals()?;
    let mut counts = HttperfCounts::default();
    let mut serial = 0u64;
    let wires = if o.print_request.is_some() {
        lastdrop_load::preview(&plan).map(|p| p.requests).unwrap_or_default()
    } else {
        Vec::new()
    };
    let mut show = |some: &[Exchange]| {
        for e in some {
            counts.take(e, &o, &plan);
            // The second one is the call that finds its connection closed.
            for index in (e.request as usize..).take(1 + usize::from(HttperfCounts::is_cut_short(e, &o, &plan))) {
                if o.verbose > 0 && o.uris.is_some() {
                    out(format!("httperf: accessing URI `{}'\n", plan.requests[index].url.path));
                }
                if let Some(wire) = wires.get(index) {
                    out(marked('S', serial, wire, o.print_request.as_deref()));
                }
                if let Some(raw) = e.raw.as_ref().filter(|_| index == e.request as usize) {
                    match e.fate {
                        RequestOutcome::Answered => out(marked('R', serial, raw, o.print_reply.as_deref())),
                        // The part that has arrived.
                        _ => out(begun_head(serial, raw, o.print_reply.as_deref())),
                    }
                }
                // A repeated call of a session keeps its number.
                let goes_again = sessions && index != e.request as usize || HttperfCounts::is_sent_again(e, &o);
                serial += u64::from(!goes_again);
            }
        }
    };
    let wish = if o.print_reply.is_some() { CaptureLevel::Answers } else { CaptureLevel::Exchanges };
    let finished = carry_out(&plan, wish, &stop, &mut show).map_err(|e| failed("httperf", e))?;
    counts.finish();
    let after_setup = usage_s();
    out(report(&o, &counts, &finished, after_setup, compatibility));
    let bursts = if o.burst > 1 { "the calls of a burst follow each other here, they are not pipelined; " } else { "" };
    let what = match o.begin {
        ConnectionSchedule::InTurn => "one connection after the other: while the server stalls nobody else asks",
        ConnectionSchedule::Rate(..) => {
            "httperf's response times count from when a request was sent, these from when it was due"
        }
    };
    remark(compatibility, &finished.run, &format!("{bursts}{what}"));
    Ok(0)
}

/// CPU time of this process, user and system, seconds.
fn usage_s() -> (f64, f64) {
    use nix::sys::resource::{UsageWho, getrusage};
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_SELF).map_or((0.0, 0.0), |u| (seconds(u.user_time()), seconds(u.system_time())))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lastdrop_model::Arrival;

    use super::flags::HttperfOptions;
    use super::*;

    fn order(text: &str) -> Result<HttperfOptions, Refusal> {
        read(&text.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn options_may_be_short_for_what_they_begin() {
        let o = order("--rat 5 --num-conn 3 -v -v").expect("valid");
        assert_eq!((o.begin, o.num_conns, o.verbose), (ConnectionSchedule::Rate(5.0, Arrival::Uniform), 3, 2));
        assert_eq!(
            order("--num-conns x").expect_err("wrong").message.as_str(),
            "httperf: illegal number of connections x"
        );
        assert_eq!(order("--period e0.1").expect("valid").begin, ConnectionSchedule::Rate(10.0, Arrival::Poisson));
        let url: Url = "http://h/".parse().expect("valid");
        assert!(plan_of(&order("--num-calls 100001").expect("valid"), &url).is_err());
        assert!(order("--close-with-reset").expect_err("refused").message.as_str().contains("--close-with-reset"));
    }

    #[test]
    fn what_no_run_can_do_is_refused_with_its_bound() {
        for line in [
            "--wsess 1,1,inf",
            "--wsess 99999999999,1,1",
            "--wsesslog 1,nan,f",
            "--wset 5,inf",
            "--max-connections 4000000000",
            "--num-conns 99999999999",
            "--rate inf",
            "--rate nan",
            "--rate 1e300",
            "--period 1e-300",
            "--period einf",
            "--period u0,nan",
            "--timeout inf",
            "--think-timeout 1e300",
            "--send-buffer 4294967295",
        ] {
            let refusal = order(line).expect_err(line);
            let flag = line.split(' ').next().expect("a flag");
            assert!(
                refusal.code == 2 && refusal.message.as_str().starts_with(&format!("httperf: {flag} ")),
                "{refusal:?}"
            );
        }
        // The original treats a negative pause as none.
        let o = order("--timeout 1 --think-timeout=-5").expect("valid");
        let url: Url = "http://h/".parse().expect("valid");
        assert_eq!(plan_of(&o, &url).expect("a plan").timeout, Duration::from_secs(1));
    }
}
