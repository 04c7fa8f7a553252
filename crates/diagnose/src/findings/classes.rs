//! Rule about one class of requests that holds the workers which the other classes wait for.

use lastdrop_model::documents::{ExpectedGain, Finding};
use lastdrop_model::examination::{ClassMeasurements, ExaminationStep};
use lastdrop_model::units::show_us;

use super::Rule;
use super::evidence::{FindingBuilder, LoadEvidence, ServerEvidence, finding, round};

pub(super) const ALL: &[Rule] = &[Rule { id: "class-starves-others", look: starving_class }];

/// Least share of the workers' time that a class takes, and greatest share of the requests, to starve the others.
const TAKES: f64 = 0.6;
const ASKS: f64 = 0.4;
/// How many times as long as the others a request of the class takes for one user alone.
const LONGER: f64 = 4.0;
/// Slowdown of the others against one user alone, and least difference, µs.
const SLOWED: f64 = 3.0;
const SLOWED_US: f64 = 10_000.0;
/// Least number of answers of a class, from which its mean is known.
const ANSWERS: u64 = 3;

/// Classes of the load that is asked about, each with its mean time for one user alone, µs.
fn with_times_alone<'a>(case: &LoadEvidence<'a>, alone: &ExaminationStep) -> Vec<(&'a ClassMeasurements, f64)> {
    let known = |class: &&ClassMeasurements| {
        alone.classes.iter().find(|c| c.name == class.name).filter(|c| c.service.count >= ANSWERS)
    };
    let both = case.main.classes.iter().filter(|c| c.answered >= ANSWERS);
    both.filter_map(|class| Some((class, known(&class)?.service.mean))).collect()
}

/// Returns the full pool that requests wait for, the furthest back.
fn full_pool<'a>(case: &'a LoadEvidence<'a>) -> Option<ServerEvidence<'a>> {
    let mut servers = case.servers().into_iter().rev();
    servers.find(|v| v.has_pool() && !v.is_async() && v.is_full() && v.size() >= 2.0 && v.queue() >= 0.5)
}

fn starving_class(case: &LoadEvidence<'_>) -> Option<Finding> {
    let classes = with_times_alone(case, case.alone?);
    // Without the time of each class alone, nobody knows which of them holds the workers.
    if classes.len() < 2 || classes.len() < case.main.classes.iter().filter(|c| c.answered > 0).count() {
        return None;
    }
    let v = full_pool(case)?;
    let time = |(class, alone_us): &(&ClassMeasurements, f64)| class.answered as f64 * alone_us;
    let (heavy, heavy_us) = *classes.iter().max_by(|a, b| time(a).total_cmp(&time(b)))?;
    let others: Vec<_> = classes.iter().filter(|(class, _)| class.name != heavy.name).collect();
    let count = |of: &[&(&ClassMeasurements, f64)]| of.iter().map(|(class, _)| class.answered).sum::<u64>() as f64;
    let others_count = count(&others);
    let whole: f64 = classes.iter().map(time).sum();
    let of_time = heavy.answered as f64 * heavy_us / whole.max(1.0);
    let of_requests = heavy.answered as f64 / (heavy.answered as f64 + others_count);
    let alone_us = others.iter().map(|c| time(c)).sum::<f64>() / others_count.max(1.0);
    let now_us = others.iter().map(|(class, _)| class.answered as f64 * class.response.mean).sum::<f64>()
        / others_count.max(1.0);
    let p99_us = others.iter().map(|(class, _)| class.response.p99).fold(0.0, f64::max);
    // If a lock or peer slows all of them, the others hold workers, too, and for longer than alone.
    let held = case.per_second(heavy.answered) * heavy_us / 1e6;
    let of_pool = held / v.size();
    let starves = of_time >= TAKES
        && of_requests <= ASKS
        && of_pool >= TAKES
        && heavy_us >= LONGER * alone_us
        && now_us >= SLOWED * alone_us
        && now_us - alone_us >= SLOWED_US;
    let needed = (case.per_second(others_count as u64) * alone_us / 1e6 * 2.0).ceil().max(1.0);
    let room = (v.size() - needed).clamp(1.0, (0.75 * v.size()).floor().max(1.0));
    starves.then(|| {
        finding(
            0.88,
            format!("{} holds the workers of {} that other requests wait for", heavy.name, v.about.server),
        )
        .of(&v)
        .evidence("load", &format!("share of the requests: {}", heavy.name), of_requests, ASKS)
        .evidence("load", "share of the workers' time that they take", of_time, TAKES)
        .evidence("arithmetic", "workers that they hold, of all", of_pool, TAKES)
        .evidence("load", "ms of one of them for one user alone", heavy_us / 1e3, 0)
        .evidence("load", "ms of the others for one user alone", alone_us / 1e3, 0)
        .evidence("load", "ms of the others now", now_us / 1e3, SLOWED * alone_us / 1e3)
        .evidence("load", "ms of the others now, p99", p99_us / 1e3, 0)
        .evidence("sock_diag", "connections that wait to be accepted", v.seen.queue_mean, 0.5)
        .ruled_out("all classes take as long; a pool with room; others that are as slow for one user alone; a lock that all of them wait for")
        .fix(Vec::new(), limit_of_class(case, &v, &heavy.name, room))
        .expected(Some(ExpectedGain {
            ratio: round((now_us / alone_us.max(1.0)).min(100.0)),
            interval: Some([round((0.5 * now_us / alone_us.max(1.0)).clamp(1.0, 50.0)), round((now_us / alone_us.max(1.0)).min(100.0))]),
            reason: format!(
                "times of the other requests: {} instead of {}, if {room:.0} of {:.0} workers at most serve {}. That costs {}: {:.1} of them in a second at most, {:.1} now",
                show_us(alone_us),
                show_us(now_us),
                v.size(),
                heavy.name,
                heavy.name,
                room / (heavy_us / 1e6),
                case.per_second(heavy.answered)
            ),
        }))
        .verify("p99 of the other requests, and answers and refusals of the class, before and after (lastdrop run prints each class)")
    })
}

/// Returns how the first server of the chain that can limits one class of requests.
fn limit_of_class(case: &LoadEvidence<'_>, v: &ServerEvidence<'_>, class: &str, room: f64) -> String {
    let servers = case.servers();
    let front = servers.iter().find(|s| s.place <= v.place && s.is(&["nginx", "haproxy", "apache"]));
    let path = class.split_once(' ').map_or("PATH", |(_, path)| path.split('?').next().unwrap_or(path));
    let at_front = match front.map(ServerEvidence::kind) {
        Some("nginx") => format!(
            "in http: limit_conn_zone $server_name zone=class:1m; in a location of {path}: limit_conn class {room:.0}; limit_conn_status 503"
        ),
        Some("haproxy") => format!(
            "a backend of its own for path {path} (use_backend class if {{ path {path} }}) with maxconn {room:.0} on its server lines and timeout queue"
        ),
        Some("apache") if v.is(&["apache"]) => {
            format!("mod_qos: QS_LocRequestLimit {path} {room:.0}; or a second instance for {path}")
        }
        _ => format!("a limit of {room:.0} requests at once for {path} in the front"),
    };
    let own = if v.is(&["php-fpm"]) {
        format!("; or a pool of its own in PHP-FPM with pm.max_children = {room:.0}, and fastcgi_pass of {path} to it")
    } else {
        String::new()
    };
    format!("{at_front}{own}. What takes so long may also be done by a queue, after a short answer")
}
