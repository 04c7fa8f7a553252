//! How many workers a pool should have: the need, capped by ceilings. All commands that advise a number use
//! this.
//!
//! The need is the number of workers that keep the CPU busy, plus those held by idle keep-alive connections.
//!
//! Busy workers: a request takes D seconds of CPU and holds its worker for S seconds. The cores can answer X
//! = cores / D requests/s. By Little's law X · S workers are then busy: cores · (1 + wait / compute), as in
//! Goetz, "Java Concurrency in Practice", 8.2. With exactly as many, the CPU idles whenever more of them wait
//! than on average. √n more keep 95 to 98 % of the throughput, 2·√n more keep 99 % (square-root staffing; Whitt,
//! "What you should know about queueing models", 2007; the machine-repair model on 1 to 64 cores says the
//! same). If the rate is known and lower than the cores allow, it replaces X.
//!
//! D is measured beside a light load, since the pool may be too small for a full one. On busy cores a request
//! takes less: fewer switches, warmer caches. So the waits are divided by 0.7 (`BUSY_COST`).
//!
//! Held workers: measured if clients are connected. Otherwise each request may leave a connection that holds
//! its worker for the keep-alive timeout: X · timeout, again by Little's law.

use lastdrop_model::documents::{WorkersAdvice, WorkersCeiling};

/// CPU time of a request on busy cores, as a share of that beside a light load: 0.72 to 0.95 on prefork,
/// gunicorn and PHP-FPM with pages that mostly wait (`./x lab tune --advised`). With 0.8 some advised numbers
/// came to 94 % of the best only; workers beyond the need cost memory alone, which has a ceiling.
const BUSY_COST: f64 = 0.7;

/// Workers beyond those at work on average, in units of the square root of their number.
const SPARE: f64 = 2.0;

/// The cost of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestCost {
    /// CPU time of the server and its backends, seconds.
    pub cpu_s: f64,
    /// Time that it holds a worker without other load, seconds.
    pub held_s: f64,
}

/// A server in which idle keep-alive connections hold workers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KeepAliveHold {
    /// Keep-alive timeout, seconds.
    pub timeout_s: f64,
    /// Workers held by idle connections now, if clients are connected.
    pub idle: Option<f64>,
    /// Users of a load that each keep one connection.
    pub users: f64,
}

/// The measurements that the advice is based on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkersEvidence {
    /// CPU cores that the server may use.
    pub cores: f64,
    /// `None` without a load.
    pub request: Option<RequestCost>,
    /// Required requests/s, if known and lower than the cores allow.
    pub rate_rps: Option<f64>,
    /// `None` if idle connections hold no workers.
    pub keep_alive: Option<KeepAliveHold>,
    pub ceilings: Vec<WorkersCeiling>,
    /// Workers come in multiples of this: the threads of a process. 0 and 1 mean single workers.
    pub together: u64,
    /// The application could run in a threaded process in which idle connections hold no worker.
    pub event_mpm: bool,
}

/// Returns the rate, and the workers that are busy when the cores are, or at the required rate.
fn busy(e: &WorkersEvidence, cost: &RequestCost) -> Option<(f64, f64)> {
    let usable = cost.cpu_s > 0.0 && cost.held_s > 0.0 && e.cores > 0.0;
    if !usable || !cost.cpu_s.is_finite() || !cost.held_s.is_finite() {
        return None;
    }
    // CPU time above the total time is an artefact of the clock tick.
    let held = cost.held_s.max(cost.cpu_s);
    let most = e.cores / cost.cpu_s;
    let rate = e.rate_rps.filter(|r| *r > 0.0).map_or(most, |r| r.min(most));
    let waits = if rate < most { rate * (held - cost.cpu_s) } else { most * (held - cost.cpu_s) / BUSY_COST };
    let at_once = rate * cost.cpu_s + waits.max(0.0);
    // Subtract a millionth, so that rounding does not add a worker to 2 cores with requests that only
    // compute.
    Some((rate, (at_once + SPARE * at_once.sqrt() - 1e-6).ceil().max(1.0)))
}

fn held(k: &KeepAliveHold, rate: f64, busy: f64) -> f64 {
    let by_timeout = k.idle.unwrap_or(rate * k.timeout_s);
    by_timeout.max(k.users - busy).max(0.0).ceil()
}

/// Returns the advice; `None` if neither a need nor a ceiling is known.
#[must_use]
pub fn advise(e: &WorkersEvidence) -> Option<WorkersAdvice> {
    let together = e.together.max(1);
    let up = |n: f64| (n.clamp(1.0, 1e9) as u64).div_ceil(together) * together;
    let down = |n: u64| (n / together).max(1) * together;
    let ceilings: Vec<WorkersCeiling> =
        e.ceilings.iter().map(|c| WorkersCeiling { number: down(c.number), ..c.clone() }).collect();
    let at_work = e.request.as_ref().and_then(|cost| busy(e, cost));
    let Some((rate, busy)) = at_work else {
        let reason = "no load tells how many would be at work".into();
        let unknown = WorkersAdvice { reason, ..WorkersAdvice::default() };
        return (!ceilings.is_empty()).then(|| capped(unknown, ceilings));
    };
    let idle = e.keep_alive.as_ref().map_or(0.0, |k| held(k, rate, busy));
    let need = up(busy + idle);
    let mut lower = Vec::new();
    if let Some(k) = e.keep_alive.as_ref().filter(|_| idle >= 1.0) {
        lower.push(format!("KeepAlive Off: {} workers", up(busy)));
        let short =
            held(&KeepAliveHold { timeout_s: 1.0, idle: k.idle.map(|n| n / k.timeout_s.max(1.0)), ..*k }, rate, busy);
        if k.timeout_s > 1.0 && short < idle {
            lower.push(format!("KeepAliveTimeout 1: {} workers", up(busy + short)));
        }
        lower.push(format!("a proxy in front that keeps the clients' connections (nginx): {} workers", up(busy)));
        if e.event_mpm {
            lower.push("an event MPM, where an idle connection holds no worker".into());
        }
    }
    let advice = WorkersAdvice {
        need: Some(need),
        held_by_idle_connections: need.saturating_sub(up(busy)),
        cpu_us_per_request: e.request.map(|cost| cost.cpu_s * 1e6),
        held_us_per_request: e.request.map(|cost| cost.held_s * 1e6),
        reason: reason(e, rate, busy, idle),
        lower,
        ..WorkersAdvice::default()
    };
    Some(capped(advice, ceilings))
}

/// Applies other ceilings to the same need, such as those of another memory budget. Without a need the lowest
/// ceiling is the number; with neither the advice stays unchanged.
#[must_use]
pub fn capped(advice: WorkersAdvice, mut ceilings: Vec<WorkersCeiling>) -> WorkersAdvice {
    ceilings.sort_by_key(|c| c.number);
    let lowest = ceilings.first().filter(|c| advice.need.is_none_or(|need| c.number < need)).cloned();
    let (number, bound_by) = match (lowest, advice.need) {
        (Some(c), _) => (c.number, c.by),
        (None, Some(need)) => (need, "need".into()),
        (None, None) => return advice,
    };
    WorkersAdvice { number, bound_by, too_few: advice.need.is_some_and(|need| number < need), ceilings, ..advice }
}

fn reason(e: &WorkersEvidence, rate: f64, busy: f64, idle: f64) -> String {
    let Some(cost) = &e.request else { return String::new() };
    let what = match e.rate_rps {
        Some(r) if r <= rate => format!("{rate:.1} requests/s are asked for"),
        _ => {
            format!(
                "{:.1} cores can answer {rate:.1} requests/s, and up to two fifths more when they are busy",
                e.cores
            )
        }
    };
    let mut text = format!(
        "a request takes {:.1} ms of processor time and holds a worker for {:.1} ms: {what}, which keeps about {busy:.0} workers at work",
        cost.cpu_s * 1e3,
        cost.held_s * 1e3
    );
    if let Some(k) = e.keep_alive.as_ref().filter(|_| idle >= 1.0) {
        let why = match k.idle {
            Some(n) if n >= k.users - busy => format!("{n:.0} idle connections were there"),
            None if rate * k.timeout_s >= k.users - busy => {
                format!("KeepAliveTimeout {:.0} s, a request per connection", k.timeout_s)
            }
            _ => format!("{:.0} users keep a connection each", k.users),
        };
        text += &format!("; idle keep-alive connections hold {idle:.0} more ({why})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceilings(all: &[(&str, u64)]) -> Vec<WorkersCeiling> {
        all.iter()
            .map(|(by, number)| WorkersCeiling { by: (*by).into(), number: *number, reason: String::new() })
            .collect()
    }

    fn evidence(cores: f64, cpu_ms: f64, held_ms: f64, all: &[(&str, u64)]) -> WorkersEvidence {
        WorkersEvidence {
            cores,
            request: Some(RequestCost { cpu_s: cpu_ms / 1e3, held_s: held_ms / 1e3 }),
            ceilings: ceilings(all),
            ..WorkersEvidence::default()
        }
    }

    #[test]
    fn the_number_is_the_need_capped_by_the_lowest_ceiling() {
        let keep = |timeout_s, idle, users| Some(KeepAliveHold { timeout_s, idle, users });
        // Cores, ms of CPU, ms held, keep-alive, rate, threads of a process, ceilings; number, need, bound by.
        type TestRow<'a> =
            (f64, f64, f64, Option<KeepAliveHold>, Option<f64>, u64, &'a [(&'a str, u64)], u64, Option<u64>, &'a str);
        let rows: &[TestRow<'_>] = &[
            // Pure computation needs a worker per core, and some for the moments between two requests.
            (2.0, 10.0, 10.0, None, None, 1, &[("memory", 200)], 5, Some(5), "need"),
            // 200 of 210 ms are waiting: 2 · (1 + 20 / 0.7) workers are busy, plus 2·√59.
            (2.0, 10.0, 210.0, None, None, 1, &[("memory", 200), ("database", 77)], 75, Some(75), "need"),
            // The database allows fewer than memory does.
            (4.0, 10.0, 210.0, None, None, 1, &[("memory", 200), ("database", 57)], 57, Some(141), "database"),
            (4.0, 10.0, 210.0, None, None, 1, &[("memory", 30), ("database", 57)], 30, Some(141), "memory"),
            // A required rate replaces what the cores allow, but only if it is lower.
            (2.0, 10.0, 210.0, None, Some(20.0), 1, &[("memory", 200)], 9, Some(9), "need"),
            (2.0, 10.0, 210.0, None, Some(1e6), 1, &[("memory", 200)], 75, Some(75), "need"),
            // 9 requests/s leave 45 connections that wait for 5 s.
            (
                2.0,
                220.0,
                250.0,
                keep(5.0, None, 0.0),
                None,
                1,
                &[("memory", 210), ("database", 57)],
                52,
                Some(52),
                "need",
            ),
            (2.0, 220.0, 250.0, keep(5.0, None, 0.0), None, 1, &[("memory", 20)], 20, Some(52), "memory"),
            // Ten measured connections; then a load of a hundred users.
            (2.0, 220.0, 250.0, keep(5.0, Some(10.0), 0.0), None, 1, &[("memory", 210)], 16, Some(16), "need"),
            (2.0, 220.0, 250.0, keep(5.0, None, 100.0), None, 1, &[("memory", 210)], 100, Some(100), "need"),
            // Whole processes of 25 threads.
            (2.0, 10.0, 210.0, None, None, 25, &[("memory", 210)], 75, Some(75), "need"),
            (2.0, 10.0, 210.0, None, None, 25, &[("memory", 40)], 25, Some(75), "memory"),
            // CPU time above the total time is an artefact of the clock tick.
            (4.0, 6.0, 5.0, None, None, 1, &[], 8, Some(8), "need"),
            // A value that was not measured gives no need.
            (4.0, 0.0, 5.0, None, None, 1, &[("memory", 40)], 40, None, "memory"),
            (4.0, f64::NAN, 5.0, None, None, 1, &[("memory", 40)], 40, None, "memory"),
        ];
        for (cores, cpu, held, keep_alive, rate_rps, together, all, number, need, by) in rows {
            let e = WorkersEvidence {
                keep_alive: *keep_alive,
                rate_rps: *rate_rps,
                together: *together,
                ..evidence(*cores, *cpu, *held, all)
            };
            let a = advise(&e).expect("something is known");
            assert_eq!((a.number, a.need, a.bound_by.as_str()), (*number, *need, *by), "{e:?} {a:?}");
            assert_eq!(a.too_few, need.is_some_and(|need| need > *number), "{a:?}");
            let line = a.line();
            assert!(line.contains(&number.to_string()) && line.contains("TOO FEW") == a.too_few, "{line}");
        }
    }

    #[test]
    fn without_load_the_number_is_a_ceiling_and_without_either_there_is_none() {
        let e = WorkersEvidence {
            cores: 2.0,
            ceilings: ceilings(&[("memory", 213), ("database", 57)]),
            ..Default::default()
        };
        let a = advise(&e).expect("ceilings");
        assert_eq!((a.number, a.need, a.bound_by.as_str(), a.too_few), (57, None, "database", false));
        let line = a.line();
        assert!(line.contains("no more than 57") && line.contains("need: unknown without load"), "{line}");
        assert_eq!(advise(&WorkersEvidence::default()), None);
    }

    #[test]
    fn a_need_stays_the_same_below_other_ceilings() {
        let free = advise(&evidence(2.0, 10.0, 210.0, &[("memory", 200)])).expect("known");
        assert_eq!((free.number, free.need, free.too_few), (75, Some(75), false));
        let tight = capped(free.clone(), ceilings(&[("database", 57), ("memory", 20)]));
        assert_eq!((tight.number, tight.need, tight.bound_by.as_str(), tight.too_few), (20, Some(75), "memory", true));
        assert_eq!(tight.ceilings.len(), 2);
        assert_eq!(capped(tight, free.ceilings.clone()), free);
        let unknown = capped(WorkersAdvice::default(), ceilings(&[("memory", 20)]));
        assert_eq!((unknown.number, unknown.too_few), (20, false));
    }

    #[test]
    fn what_lowers_the_need_has_its_numbers_and_an_event_mpm_only_where_the_application_allows_it() {
        let hold = KeepAliveHold { timeout_s: 5.0, idle: None, users: 0.0 };
        let e = WorkersEvidence { keep_alive: Some(hold), ..evidence(2.0, 220.0, 250.0, &[("memory", 20)]) };
        let lower = advise(&e).expect("known").lower.join("; ");
        assert!(
            lower.contains("KeepAlive Off: 6 workers") && lower.contains("KeepAliveTimeout 1: 16 workers"),
            "{lower}"
        );
        assert!(!lower.contains("event MPM"), "{lower}");
        let lower = advise(&WorkersEvidence { event_mpm: true, ..e }).expect("known").lower.join("; ");
        assert!(lower.contains("event MPM"), "{lower}");
    }
}
