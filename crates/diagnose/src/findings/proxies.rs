//! Rules about queues in proxies.

use lastdrop_model::documents::Finding;
use lastdrop_model::examination::LoadShape;
use serde_json::json;

use super::Rule;
use super::evidence::{FindingBuilder, LoadEvidence, ONE_CORE, finding, longer_queue};

pub(super) const QUEUES: &[Rule] =
    &[Rule { id: "uwsgi-queue-full", look: uwsgi_queue }, Rule { id: "proxy-maxconn", look: maxconn }];

fn uwsgi_queue(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().find(|v| v.is(&["uwsgi"]))?;
    let lines = v.log("uwsgi-queue");
    let (most, limit) = (v.seen.queue_most.unwrap_or(0), v.seen.queue_limit.filter(|n| *n > 0).unwrap_or(100));
    let overflows = v.moved("ListenOverflows");
    (lines > 0 || most >= limit || overflows >= 5).then(|| {
        finding(0.88, "uWSGI's listen queue is full")
            .of(&v)
            .evidence("error log", "listen queue of socket … full", lines, 1)
            .evidence("sock_diag", "most that waited", most, limit)
            .evidence("TcpExt", "ListenOverflows", overflows, 5)
            .fix(
                vec![v.fix("listen", json!(longer_queue(limit)))],
                "and more workers where they all wait; net.core.somaxconn has to allow it",
            )
            .verify("no such line in its log")
    })
}

fn maxconn(case: &LoadEvidence<'_>) -> Option<Finding> {
    let servers = case.servers();
    let v = servers.iter().find(|v| v.is(&["haproxy"]))?;
    let queued = v.seen.queued.unwrap_or(0);
    // The servers behind it have free workers, or are unknown.
    let room = servers.iter().skip(v.place + 1).filter(|b| b.has_pool()).all(|b| !b.is_full());
    // An event loop that has time but leaves connections in its listen queue is configured to accept no more.
    let named = v
        .about
        .settings
        .keys()
        .filter(|k| k.ends_with("maxconn") && v.count(k).is_some_and(|n| n > 0.0))
        .min_by_key(|k| v.count(k).unwrap_or(f64::INFINITY) as u64)
        .cloned();
    // A limit that is not reached does not count: then the loop lacks a processor.
    let reached = named
        .as_ref()
        .and_then(|name| v.count(name))
        .is_none_or(|n| case.all.load != LoadShape::Closed || n <= f64::from(case.main.users) + v.seen.other_clients);
    let not_accepting = v.queue() >= 0.9 && v.seen.hottest_thread_cores < ONE_CORE && reached;
    // Little's law gives the number of requests at the servers behind, each as long as for one user alone. Without a
    // stats socket this number decides. With one, it tells a reached maxconn from a server behind that takes one
    // request after the other.
    let most = named.as_ref().and_then(|name| v.count(name));
    let served = case.alone_s().map(|s| case.main.answered_rps * s);
    let of_most = served.zip(most).map(|(served, most)| served / most);
    let waits = if v.seen.queued.is_some() || not_accepting {
        (queued >= 1 || not_accepting) && of_most.is_none_or(|share| share >= 0.6)
    } else {
        of_most.is_some_and(|share| (0.8..1.25).contains(&share)) && most.is_some_and(|n| case.in_flight() >= 1.5 * n)
    };
    (waits && room && !case.cpu_full()).then(|| {
        let fix = named.map(|name| {
            let to = (f64::from(case.main.users).max(v.count(&name).unwrap_or(1.0)) * 2.0).ceil() as i64;
            v.fix(&name, json!(to))
        });
        finding(0.92, "HAProxy keeps requests waiting: a maxconn is reached while those behind it have room")
            .of(v)
            .evidence("stats socket", "requests in its queue (qcur)", queued, 1)
            .evidence("sock_diag", "connections that it leaves in its listen queue", v.seen.queue_mean, 0.9)
            .evidence(
                "load",
                "requests with those behind it, by what one alone takes (Little), of the maxconn",
                of_most.unwrap_or(0.0),
                0.6,
            )
            .evidence("/proc/stat", "cores busy", case.busy_cores(), 0)
            .ruled_out("servers behind it whose workers are all at work")
            .fix(fix.into_iter().collect(), "the maxconn of a server should be what that can do at once, not less")
            .expected(case.bound(None))
            .verify("qcur and qtime on its stats page")
    })
}
