//! Clues: findings that the evidence points to, for a search that tries settings itself.
//!
//! A finding must exclude what looks like it, which takes half a minute of experiments. A search needs only a reason to
//! try a setting. A wrong clue costs it some trials; a missing one costs the gain. So thresholds are lower here than in
//! the rules, and one sign points to all findings that it may belong to. The tables of knobs say which settings are
//! worth trying for a finding.

use lastdrop_model::documents::Clue;
use lastdrop_model::examination::{Examination, ServerMeasurements};

use super::evidence::{LoadEvidence, ServerEvidence};
use super::{LIMITS, RISKS, WASTES};

/// A thread or process that uses this much of a core may soon use all of it. If the load runs on the same processors,
/// it never does.
const NEARLY_ONE_CORE: f64 = 0.6;
/// Share of its server's CPU use from which on one thread does most of the work.
const MOST_OF_THE_WORK: f64 = 0.5;
/// Processor use from which on processors may be lacking.
const NEARLY_FULL: f64 = 0.75;
/// Share of the processor time of all servers from which on one of them is worth a trial.
const TAKES_PART: f64 = 0.2;
/// Share of busy workers from which on a pool may be too small.
const MOST_OF_A_POOL: f64 = 0.7;
/// Share of a limit (queue, files, ports) from which on it may be reached.
const NEAR_A_LIMIT: f64 = 0.7;
/// Workers started per request, and connections opened per request, from which on they may matter.
const BIRTHS: f64 = 0.002;
const CONNECTS: f64 = 0.5;

/// Findings that one sign may belong to.
const ONE_CORE: &[&str] =
    &["single-worker-cpu", "single-process", "interpreter-lock", "event-loop-blocked", "cpu-saturated"];
const PROCESSORS: &[&str] = &["cpu-saturated", "compression-bound"];
const POOL: &[&str] =
    &["workers-exhausted", "fpm-children-exhausted", "sync-workers-waiting", "perl-interpreters-exhausted"];
const QUEUE: &[&str] = &["accept-queue-overflow", "upstream-backlog-overflow", "uwsgi-queue-full"];

/// Returns the clues under the load that was asked about, those that explain others first. Each pair of finding and
/// server occurs once.
#[must_use]
pub fn clues(examination: &Examination) -> Vec<Clue> {
    let mut all: Vec<Clue> = Vec::new();
    let Some(case) = LoadEvidence::of(examination) else { return all };
    let mut add = |server: &str, findings: &[&str], reason: &str| {
        for finding in findings {
            if !all.iter().any(|c| c.finding == *finding && c.server == server) {
                all.push(Clue { finding: (*finding).into(), server: server.into(), reason: reason.into() });
            }
        }
    };
    for rule in [LIMITS, WASTES, RISKS].into_iter().flatten().flat_map(|table| table.iter()) {
        if let Some(finding) = (rule.look)(&case) {
            add(&finding.server, &[rule.id], &finding.title);
        }
    }
    let mut servers = case.servers();
    servers.sort_by(|a, b| b.seen.cpu_cores.unwrap_or(0.0).total_cmp(&a.seen.cpu_cores.unwrap_or(0.0)));
    let all_cores: f64 = servers.iter().filter_map(|v| v.seen.cpu_cores).sum();
    for v in &servers {
        for (findings, reason) in signs(&case, v, all_cores) {
            add(&v.about.server, findings, &reason);
        }
    }
    all
}

/// Returns the signs of one server: the findings that each may belong to, and a description.
fn signs(case: &LoadEvidence<'_>, v: &ServerEvidence<'_>, all_cores: f64) -> Vec<(&'static [&'static str], String)> {
    let mut all: Vec<(&'static [&'static str], String)> = Vec::new();
    let (seen, main) = (v.seen, case.main);
    let cores = seen.cpu_cores.unwrap_or(0.0);
    if let Some((does_most, reason)) = never_idle(seen, cores) {
        if does_most {
            all.push((ONE_CORE, reason.clone()));
        }
        all.push((PROCESSORS, reason));
    }
    let used = main.busy(&v.about.cpus) + main.steal;
    if used >= NEARLY_FULL && cores >= TAKES_PART * all_cores && cores > 0.0 {
        let reason = format!("processors are {:.0} % busy, and it uses {cores:.2} of them", used.min(1.0) * 100.0);
        all.push((PROCESSORS, reason.clone()));
        if case.all.tls && v.place == 0 {
            all.push((&["tls-bound"], reason));
        }
    }
    if v.has_pool() && (v.busy() >= MOST_OF_A_POOL * v.size().max(1.0) || v.queue() >= 0.5) {
        let (busy, size, queue) = (v.busy(), v.size(), v.queue());
        all.push((POOL, format!("{busy:.1} of {size:.0} workers are at work, {queue:.1} connections wait for one")));
    }
    let overflows = v.moved("ListenOverflows");
    let near_its_end = |most: Option<u64>, limit: Option<u64>| {
        most.zip(limit).is_some_and(|(most, limit)| limit > 0 && most as f64 >= NEAR_A_LIMIT * limit as f64)
    };
    if overflows > 0 || near_its_end(seen.queue_most, seen.queue_limit) {
        let (most, limit) = (seen.queue_most.unwrap_or(0), seen.queue_limit.unwrap_or(0));
        all.push((
            QUEUE,
            format!("{most} of at most {limit} connections waited to be accepted, {overflows} found no room"),
        ));
    }
    if case.per_request(seen.born) >= BIRTHS && seen.born >= 2 {
        let reason = format!("{} workers were born for {} requests", seen.born, main.answered);
        all.push((&["process-churn"], reason.clone()));
        if seen.workers_last > seen.workers_first {
            all.push((&["spawn-ramp", "fpm-spawn-lag"], reason));
        }
    }
    if v.share("peer") >= 0.5 && v.busy() >= 0.5 {
        all.push((&["slow-upstream"], "most of its workers wait for a server behind it".into()));
    }
    let opened = v.moved("ActiveOpens").saturating_sub(main.connections);
    let passes_on = v.is(&["nginx", "haproxy", "apache"]) && !v.about.connects.is_empty();
    if passes_on && case.per_request(opened) >= CONNECTS {
        let each = case.per_request(opened);
        all.push((&["upstream-connect-per-request"], format!("{each:.1} connections a request are opened behind it")));
    }
    if main.keepalive && v.place == 0 && case.per_request(main.connections) >= CONNECTS && main.answered >= 20 {
        let reason =
            format!("clients that keep connections had to open {} for {} requests", main.connections, main.answered);
        all.push((&["keepalive-off"], reason));
    }
    let kept = seen.waiting("client kept").max(seen.scoreboard.get("K").copied().unwrap_or(0.0));
    if kept >= 0.3 * v.size().max(1.0) && v.has_pool() {
        all.push((&["keepalive-hogging"], format!("{kept:.1} workers are held by idle connections of clients")));
    }
    if near_its_end(seen.fds, seen.fds_limit) {
        all.push((&["fd-limit", "nginx-connections-exhausted"], "its files are near their limit".into()));
    }
    if near_its_end(seen.ports_held, seen.local_ports) {
        all.push((&["port-exhaustion"], "most local ports are taken".into()));
    }
    all
}

/// Describes a thread or process that nearly fills a core, or would without other programs; true if it alone does most
/// of its server's work. Beside programs that use the processors no thread fills a core, so its wait for one counts. In
/// a pool that computes on few processors each worker waits like that.
fn never_idle(seen: &ServerMeasurements, cores: f64) -> Option<(bool, String)> {
    let hottest = seen.hottest_thread_cores.max(seen.hottest_process_cores);
    if hottest >= NEARLY_ONE_CORE {
        return Some((true, format!("the busiest of its processes uses {hottest:.2} of a processor")));
    }
    let thread = seen.most_runnable.filter(|thread| thread.share() >= NEARLY_ONE_CORE)?;
    let reason = format!(
        "the busiest of its threads uses {:.2} of a processor, and waits for one {:.2} of the time",
        thread.cores, thread.run_delay
    );
    Some((thread.cores >= MOST_OF_THE_WORK * cores, reason))
}

#[cfg(test)]
mod tests {
    use lastdrop_model::examination::{ExaminationStep, ExaminedServer, LatencySummary, Runnable, StepKind};

    use super::*;

    fn examination(about: ExaminedServer, seen: ServerMeasurements, step: ExaminationStep) -> Examination {
        let (response, server) = (
            LatencySummary { count: 100, mean: 5e3, p50: 5e3, p99: 6e3, ..LatencySummary::default() },
            about.server.clone(),
        );
        let step = ExaminationStep {
            kind: StepKind::Main,
            users: 10,
            answered: 1000,
            due: 1000,
            duration_s: 3.0,
            answered_rps: 333.0,
            response,
            service: response,
            servers: vec![ServerMeasurements { server, ..seen }],
            ..step
        };
        Examination { servers: vec![about], steps: vec![step], processors: 2, ..Examination::default() }
    }

    fn of(server: &str) -> ExaminedServer {
        ExaminedServer { server: server.into(), kind: server.into(), ..ExaminedServer::default() }
    }

    fn ids(all: &[Clue]) -> Vec<&str> {
        all.iter().map(|c| c.finding.as_str()).collect()
    }

    #[test]
    fn a_worker_that_nearly_fills_a_core_points_to_more_of_them_and_to_less_work() {
        let seen = ServerMeasurements {
            hottest_thread_cores: 0.8,
            hottest_process_cores: 0.8,
            cpu_cores: Some(0.8),
            ..ServerMeasurements::default()
        };
        let all = clues(&examination(
            of("nginx"),
            seen,
            ExaminationStep { cores: vec![0.5, 0.8], ..ExaminationStep::default() },
        ));
        for id in ["single-worker-cpu", "single-process", "cpu-saturated", "compression-bound"] {
            let clue = all.iter().find(|c| c.finding == id).unwrap_or_else(|| panic!("{id} in {all:?}"));
            assert!(clue.server == "nginx" && clue.reason.contains("0.80"), "{clue:?}");
        }
        let once = ids(&all).iter().filter(|id| **id == "cpu-saturated").count();
        assert!(once == 1 && !ids(&all).contains(&"accept-queue-overflow"), "{all:?}");
    }

    #[test]
    fn a_worker_that_waits_for_a_processor_that_others_have_is_as_busy_as_one_that_has_it() {
        let looked = |cores, run_delay, of_server| {
            let seen = ServerMeasurements {
                hottest_thread_cores: cores,
                hottest_process_cores: cores,
                most_runnable: Some(Runnable { cores, run_delay }),
                cpu_cores: Some(of_server),
                ..ServerMeasurements::default()
            };
            clues(&examination(
                of("nginx"),
                seen,
                ExaminationStep { cores: vec![0.5, 0.5], ..ExaminationStep::default() },
            ))
        };
        let all = looked(0.4, 0.5, 0.4);
        for id in ["single-worker-cpu", "cpu-saturated", "compression-bound"] {
            let clue = all.iter().find(|c| c.finding == id).unwrap_or_else(|| panic!("{id} in {all:?}"));
            assert!(clue.reason.contains("0.40 of a processor, and waits for one 0.50 of the time"), "{clue:?}");
        }
        // One of many threads that take turns: processors are lacking, not a second worker.
        let all = looked(0.1, 0.8, 1.6);
        assert!(ids(&all).contains(&"cpu-saturated") && !ids(&all).contains(&"single-worker-cpu"), "{all:?}");
        // This thread gets the time that it needs.
        assert_eq!(looked(0.4, 0.1, 0.4), []);
    }

    #[test]
    fn a_server_that_has_nothing_to_do_points_to_nothing() {
        let all = clues(&examination(
            of("nginx"),
            ServerMeasurements::default(),
            ExaminationStep { cores: vec![0.1, 0.1], ..ExaminationStep::default() },
        ));
        assert_eq!(all, []);
        assert_eq!(clues(&Examination::default()), []);
    }

    #[test]
    fn a_pool_at_work_and_a_queue_near_its_end_are_clues() {
        let seen = ServerMeasurements {
            workers_most: 2,
            workers_last: 2,
            threads: 2.0,
            waits: [("sleep".to_string(), 2.0)].into(),
            queue_mean: Some(4.0),
            queue_most: Some(5),
            queue_limit: Some(5),
            ..ServerMeasurements::default()
        };
        let about = ExaminedServer { one_request_a_worker: true, ..of("php-fpm") };
        let all =
            clues(&examination(about, seen, ExaminationStep { cores: vec![0.1, 0.1], ..ExaminationStep::default() }));
        for id in ["fpm-children-exhausted", "upstream-backlog-overflow"] {
            assert!(ids(&all).contains(&id), "{id} in {all:?}");
        }
    }
}
