//! Examinations of real servers with one known fault each, as `./x lab doctor` and labs of others stored them, and healthy ones: what the rules
//! say of each. A rule has a case that fires it; all others are cases in which it must not, those that look like it among
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use lastdrop_diagnose::findings::{all_about, diagnose};
use lastdrop_model::SessionState;
use lastdrop_model::documents::Severity;
use lastdrop_model::examination::{Examination, LoadShape, PeerSeen, ServerSeen, Step, StepKind};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    limit: Option<String>,
    found: BTreeSet<String>,
    examination: Examination,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

fn case(name: &str) -> Case {
    let text = fs::read_to_string(folder().join(format!("{name}.json"))).unwrap_or_else(|e| panic!("{name}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn cases() -> Vec<(String, Case)> {
    let mut all: Vec<(String, Case)> = fs::read_dir(folder())
        .expect("cases")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name.clone(), case(&name))
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn each_stored_examination_shows_what_was_planted_and_nothing_else() {
    let mut wrong = Vec::new();
    for (name, case) in cases() {
        let said = diagnose(&case.examination);
        let found: BTreeSet<String> =
            said.findings.iter().map(|f| f.id.clone()).filter(|id| Some(id) != said.limit.as_ref()).collect();
        if (&said.limit, &found) != (&case.limit, &case.found) {
            wrong.push(format!("{name}: {:?} {found:?}, not {:?} {:?}", said.limit, case.limit, case.found));
        }
        for finding in &said.findings {
            let numbers = finding.evidence.iter().filter(|e| e.speaks()).count();
            assert!(finding.severity != Severity::Limit || numbers >= 3, "{name}: {finding:?}");
            assert!(!finding.evidence.is_empty() && !finding.title.is_empty(), "{name}: {finding:?}");
            assert!((0.0..=1.0).contains(&finding.confidence), "{name}: {finding:?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn nothing_is_concluded_where_the_load_that_is_asked_about_lost_an_agent() {
    for (name, mut case) in cases() {
        let all = &mut case.examination;
        let Some(main) = all.main().map(|step| step.kind) else { continue };
        all.steps.iter_mut().filter(|s| s.kind == main).for_each(|s| s.lost.push("b".into()));
        let said = diagnose(all);
        assert!(all.has_lost_main() && said.limit.is_none() && said.findings.is_empty(), "{name}: {said:?}");
    }
}

#[test]
fn every_finding_has_a_stored_case() {
    let all = cases();
    let shown: BTreeSet<&str> =
        all.iter().flat_map(|(_, c)| c.found.iter().chain(&c.limit)).map(String::as_str).collect();
    let without: Vec<&str> = all_about().iter().map(|a| a.id).filter(|id| !shown.contains(id)).collect();
    assert!(without.is_empty(), "{without:?}");
    assert!(all.iter().filter(|(name, c)| name.starts_with("healthy") && c.limit.is_none()).count() >= 3);
}

/// An ordinary user sees the threads of others run or sleep, and not what they wait for.
#[test]
fn threads_that_may_not_be_seen_are_not_taken_for_busy_ones_and_are_told() {
    let all = cases();
    for name in ["db-locked", "slow-upstream.fpm", "session-lock", "workers-exhausted"] {
        let (_, case) = all.iter().find(|(n, _)| n == name).expect(name);
        let mut examination = case.examination.clone();
        for server in examination.steps.iter_mut().flat_map(|step| &mut step.servers) {
            let asleep: f64 = server.waits.iter().filter(|(at, _)| *at != "running").map(|(_, n)| n).sum();
            server.waits.retain(|at, _| at == "running");
            server.waits.insert("unseen".into(), asleep);
            server.status_busy = None;
            server.scoreboard.clear();
        }
        let said = diagnose(&examination);
        assert_eq!(said.limit, None, "{name}: {:#?}", said.findings);
        assert!(
            said.unseen.iter().any(|u| u.contains("threads of") && u.contains("root may see it")),
            "{:?}",
            said.unseen
        );
    }
}

/// Whoever is turned away at once asks again at once, and has a core of its own to do so on a quiet machine.
#[test]
fn a_load_that_is_busy_with_being_turned_away_is_not_the_limit() {
    let all = cases();
    let (_, case) = all.iter().find(|(name, _)| name == "nginx-connections-exhausted").expect("stored");
    let mut examination = case.examination.clone();
    let main = examination.steps.iter_mut().find(|step| step.kind == StepKind::Main).expect("the load");
    assert!(main.unanswered() > main.answered);
    (main.generator.saturated, main.generator.cores) = (true, 0.98);
    assert_eq!(diagnose(&examination).limit.as_deref(), Some("nginx-connections-exhausted"));
    // One that is busy with answers is.
    let main = examination.steps.iter_mut().find(|step| step.kind == StepKind::Main).expect("the load");
    main.answered += main.unanswered() + 1;
    assert_eq!(diagnose(&examination).limit.as_deref(), Some("generator-saturated"));
}

/// What the rules say of a stored examination of which something is another machine's.
fn limit_of(name: &str, change: impl Fn(&mut Examination)) -> Option<String> {
    let mut examination = case(name).examination;
    change(&mut examination);
    diagnose(&examination).limit
}

fn main_of(all: &mut Examination) -> &mut Step {
    all.steps.iter_mut().find(|step| step.kind == StepKind::Main).expect("the load")
}

/// A virtual machine whose share of the processor is used up looks idle by its own counters.
#[test]
fn time_that_the_hypervisor_has_taken_is_not_idle() {
    let stolen = |all: &mut Examination| {
        for step in &mut all.steps {
            step.steal = 0.7;
            step.cores.iter_mut().for_each(|busy| *busy *= 0.3);
            step.generator.cores *= 0.3;
            for server in &mut step.servers {
                server.cpu_cores = server.cpu_cores.map(|cores| cores * 0.3);
            }
        }
    };
    assert_eq!(limit_of("cpu-saturated.modphp", stolen).as_deref(), Some("cpu-saturated"));
    let idle = |all: &mut Examination| {
        stolen(all);
        all.steps.iter_mut().for_each(|step| step.steal = 0.0);
    };
    assert_eq!(limit_of("cpu-saturated.modphp", idle).as_deref(), Some("workers-exhausted"));
}

/// What happens to others on the same machine is not the server's limit.
#[test]
fn what_neighbours_lack_is_not_the_servers_limit() {
    let swaps = |available: u64| {
        move |all: &mut Examination| {
            main_of(all).swapped_pages = 50_000;
            main_of(all).memory_available_bytes = Some(available);
        }
    };
    assert_eq!(limit_of("workers-exhausted", swaps(20_000_000_000)).as_deref(), Some("workers-exhausted"));
    assert_eq!(limit_of("workers-exhausted", swaps(100_000_000)).as_deref(), Some("memory-pressure"));
    // A control group that has reached its limit lacks memory only where what it gave up is wanted again.
    let full = |again: u64, stalled: f64| {
        move |all: &mut Examination| {
            let server = &mut main_of(all).servers[0];
            (server.memory_max, server.memory_limit_bytes) = (500, Some(200_000_000));
            (server.refaulted_pages, server.memory_stalled) = (again, stalled);
        }
    };
    assert_eq!(limit_of("workers-exhausted", full(0, 0.0)).as_deref(), Some("workers-exhausted"));
    assert_eq!(limit_of("workers-exhausted", full(500_000, 0.02)).as_deref(), Some("workers-exhausted"));
    assert_eq!(limit_of("workers-exhausted", full(500_000, 0.4)).as_deref(), Some("memory-pressure"));
}

/// Of other people's load it is not known how much there was: a few births of workers, or one packet that was sent again, are then few.
#[test]
fn what_is_seen_of_other_peoples_load_is_no_number_a_request() {
    let watched = |all: &mut Examination| {
        all.load = LoadShape::Foreign;
        all.steps.retain(|step| step.kind == StepKind::Main);
        let main = main_of(all);
        (main.answered, main.answered_rps) = (0, 0.0);
        main.failed.clear();
        for server in &mut main.servers {
            server.queue_mean = Some(5.0);
            server.kernel.insert("PassiveOpens".into(), 3000);
        }
    };
    let with_births = |all: &mut Examination| {
        watched(all);
        let pool = main_of(all).servers.iter_mut().find(|s| s.workers_most > 2).expect("a pool");
        pool.born = 4;
    };
    assert_eq!(limit_of("workers-exhausted", with_births).as_deref(), Some("workers-exhausted"));
}

/// A loop that has no time leaves connections in its queue, however long that is; several are full while a large machine is not.
#[test]
fn loops_without_time_on_a_large_machine() {
    let large = |all: &mut Examination| {
        all.processors = 16;
        for step in &mut all.steps {
            step.cores = vec![0.05; 16];
            step.generator.others_cores = 0.0;
        }
    };
    let by_a_loop = |all: &mut Examination| {
        large(all);
        all.servers[0].kind = "node".into();
        all.servers[0].pool = None;
        let main = main_of(all);
        main.cores[0] = 1.0;
        let server = &mut main.servers[0];
        (server.workers_most, server.threads) = (1, 11.0);
        (server.hottest_thread_cores, server.hottest_process_cores, server.cpu_cores) = (0.98, 1.0, Some(1.0));
        server.waits = [("running".to_string(), 1.0), ("futex".to_string(), 9.0), ("events".to_string(), 1.0)].into();
    };
    assert_eq!(limit_of("accept-queue-overflow", by_a_loop).as_deref(), Some("single-process"));
    let by_four = |all: &mut Examination| {
        large(all);
        all.servers.truncate(1);
        (all.servers[0].kind, all.servers[0].cpus) = ("nginx".into(), Vec::new());
        for step in &mut all.steps {
            step.servers.truncate(1);
            // None of many thousands a second waits for a millisecond.
            (step.response.mean, step.service.mean) = (60.0, 60.0);
        }
        let main = main_of(all);
        main.cores[..4].fill(1.0);
        (main.answered, main.answered_rps, main.response.mean) = (480_000, 40_000.0, 500.0);
        let server = &mut main.servers[0];
        *server = ServerSeen {
            server: server.server.clone(),
            workers_most: 4,
            workers_first: 4,
            workers_last: 4,
            threads: 4.0,
            cpu_cores: Some(3.9),
            hottest_thread_cores: 0.98,
            hottest_process_cores: 0.98,
            waits: [("running".to_string(), 4.0)].into(),
            ..ServerSeen::default()
        };
    };
    assert_eq!(limit_of("slow-upstream.nginx", by_four).as_deref(), Some("single-worker-cpu"));
}

/// An application that does something of its own as well waits for a full peer less than half of the time, and all that it takes longer.
#[test]
fn what_a_request_takes_longer_is_what_limits_it() {
    let less = |slower: f64| {
        move |all: &mut Examination| {
            let alone = all.step(StepKind::Alone).map_or(0.0, |step| step.service.mean / 1e6);
            let main = main_of(all);
            let pool = main.servers.iter_mut().find(|s| s.server == "php-fpm").expect("the pool");
            pool.waits = [("peer 127.0.0.1:18001".to_string(), 9.0), ("sleep".to_string(), 11.0)].into();
            (pool.status_busy, pool.threads, pool.workers_most) = (Some(20.0), 20.0, 20);
            (pool.workers_first, pool.workers_last) = (20, 20);
            main.answered_rps = 20.0 / (slower * alone);
            main.answered = (main.answered_rps * main.duration_s) as u64;
            for server in &mut all.servers {
                server.settings.insert("pm.max_children".into(), 40.into());
            }
        }
    };
    assert_eq!(limit_of("slow-upstream.fpm", less(1.7)).as_deref(), Some("slow-upstream"));
    assert_ne!(limit_of("slow-upstream.fpm", less(4.0)).as_deref(), Some("slow-upstream"));
}

fn server<'a>(all: &'a mut Examination, called: &str) -> &'a mut ServerSeen {
    main_of(all).servers.iter_mut().find(|s| s.server == called).expect("it takes part")
}

fn waits<const N: usize>(all: [(&str, f64); N]) -> BTreeMap<String, f64> {
    all.into_iter().map(|(what, n)| (what.to_string(), n)).collect()
}

/// A pool that grew until it was full had fewer workers on average than it has then.
#[test]
fn a_pool_that_has_grown_to_its_limit_is_full() {
    let grows_to_12_of = |most: u64| {
        move |all: &mut Examination| {
            all.servers[1].settings.insert("pm.max_children".into(), most.into());
            let pool = server(all, "php-fpm");
            (pool.workers_first, pool.workers_last, pool.workers_most, pool.born) = (5, 12, 12, 7);
            (pool.threads, pool.waits) = (9.7, waits([("sleep", 9.6), ("idle", 0.1)]));
        }
    };
    assert_eq!(limit_of("fpm-children-exhausted", grows_to_12_of(12)).as_deref(), Some("fpm-children-exhausted"));
    let limit = limit_of("fpm-children-exhausted", grows_to_12_of(16));
    assert_ne!(limit.as_deref(), Some("fpm-children-exhausted"), "it is not there yet");
}

/// Health checks that are refused take a server out: then nobody is asked, and nobody waits.
#[test]
fn a_front_that_asks_nobody_any_more_has_somebody_down() {
    let down = |refused: u64, queued: u64| {
        move |all: &mut Examination| {
            all.servers[0].kind = "haproxy".into();
            all.servers[0].settings.insert("maxconn".into(), 4000.into());
            let main = main_of(all);
            let answered = main.answered;
            main.status = [("503".to_string(), answered)].into();
            let front = &mut main.servers[0];
            (front.queued, front.log) = (Some(queued), BTreeMap::new());
            front.kernel = [("AttemptFails".to_string(), refused), ("PassiveOpens".to_string(), answered)].into();
        }
    };
    assert_eq!(limit_of("upstream-refused", down(6, 0)).as_deref(), Some("upstream-refused"));
    assert_ne!(limit_of("upstream-refused", down(0, 0)).as_deref(), Some("upstream-refused"), "no check was refused");
    assert_ne!(limit_of("upstream-refused", down(6, 9)).as_deref(), Some("upstream-refused"), "it waits for somebody");
}

/// However fast: whoever is turned away by order waits for nothing.
#[test]
fn what_a_limit_turns_away_is_not_limited() {
    let turned_away = |code: &'static str, share: f64, logged: u64| {
        move |all: &mut Examination| {
            let main = main_of(all);
            let away = (main.answered as f64 * share) as u64;
            main.status = [(code.to_string(), away), ("200".to_string(), main.answered - away)].into();
            main.servers[0].log = [("rate-limited".to_string(), logged)].into();
        }
    };
    assert_eq!(limit_of("cpu-saturated.modphp", turned_away("503", 0.9, 12_000)), None);
    assert_eq!(limit_of("cpu-saturated.modphp", turned_away("429", 0.9, 0)), None);
    assert_eq!(limit_of("cpu-saturated.modphp", turned_away("503", 0.2, 3_000)).as_deref(), Some("cpu-saturated"));
    assert!(limit_of("cpu-saturated.modphp", turned_away("503", 0.9, 0)).is_some(), "nobody has ordered it");
}

/// A program that is a pool of workers itself, and has some free, is waited for as any other.
#[test]
fn who_waits_for_a_pool_with_room_waits_for_it() {
    let is_pool = |busy: f64| {
        move |all: &mut Examination| {
            let behind = all.servers.iter_mut().find(|s| s.kind == "python3" || s.server == "python3").expect("it");
            (behind.kind, behind.pool) = ("gunicorn".into(), Some("workers".into()));
            behind.settings = [("workers".to_string(), 2.into()), ("threads".to_string(), 12.into())].into();
            let alone = all.step(StepKind::Alone).map_or(0.0, |step| step.answered_rps);
            let main = main_of(all);
            main.answered_rps = 4.0 * alone;
            main.answered = (main.answered_rps * main.duration_s) as u64;
            (main.response.mean, main.service.mean) = (20e6 / main.answered_rps, 20e6 / main.answered_rps);
            server(all, "php-fpm").waits = waits([("peer 127.0.0.1:18001", 3.9), ("idle", 0.1)]);
            let seen = server(all, "python3");
            (seen.workers_first, seen.workers_last, seen.workers_most, seen.threads) = (2, 2, 2, 26.0);
            seen.waits = waits([("events", 2.0), ("sleep", busy), ("futex", 24.0 - busy)]);
        }
    };
    assert_eq!(limit_of("slow-upstream.few-children", is_pool(8.0)).as_deref(), Some("slow-upstream"));
    assert_ne!(limit_of("slow-upstream.few-children", is_pool(24.0)).as_deref(), Some("slow-upstream"));
}

/// What a queue's limit lets through is that limit, by what one request alone takes.
#[test]
fn a_limit_of_a_proxy_binds_only_where_so_many_are_served() {
    let with = |queued: Option<u64>, answered_rps: f64| {
        move |all: &mut Examination| {
            let main = main_of(all);
            main.answered_rps = answered_rps;
            main.answered = (answered_rps * main.duration_s) as u64;
            let mean = 20e6 / answered_rps;
            (main.response.mean, main.response.p50, main.service.mean) = (mean, mean, mean);
            server(all, "haproxy").queued = queued;
        }
    };
    assert_eq!(limit_of("proxy-maxconn", with(None, 76.0)).as_deref(), Some("proxy-maxconn"), "no socket to ask");
    assert_ne!(
        limit_of("proxy-maxconn", with(None, 140.0)).as_deref(),
        Some("proxy-maxconn"),
        "more than that are served"
    );
    assert_ne!(
        limit_of("proxy-maxconn", with(Some(16), 19.6)).as_deref(),
        Some("proxy-maxconn"),
        "one after the other"
    );
}

/// A database that rests would answer more statements, whatever they take.
#[test]
fn few_connections_to_a_database_that_rests_are_the_limit_though_statements_take_long() {
    let sleeps = |open: f64, cores: f64| {
        move |all: &mut Examination| {
            let alone = all.step(StepKind::Alone).map_or(0.0, |step| step.answered_rps);
            let peer = all.servers.iter().find(|s| s.server == "node").expect("it").connects[0].clone();
            let main = main_of(all);
            main.answered_rps = open * alone;
            main.answered = (main.answered_rps * main.duration_s) as u64;
            (main.response.mean, main.service.mean) = (20e6 / main.answered_rps, 20e6 / main.answered_rps);
            let look = &mut main.databases[0];
            look.states = [(SessionState::Active, open as u64)].into();
            look.active_mean = Some(open);
            let node = server(all, "node");
            node.peers.insert(peer, PeerSeen { open, opening: 0.0 });
            server(all, "postgresql").cpu_cores = Some(cores);
        }
    };
    assert_eq!(limit_of("db-pool-exhausted.node", sleeps(2.0, 0.03)).as_deref(), Some("db-pool-exhausted"));
    assert_eq!(limit_of("db-pool-exhausted.node", sleeps(10.0, 0.03)).as_deref(), Some("db-slow"), "most have one");
    assert_eq!(limit_of("db-pool-exhausted.node", sleeps(2.0, 0.9)).as_deref(), Some("db-slow"), "it works for them");
}

/// Workers that end after some requests, beside others of which all serve as many as they can, are not in the way.
#[test]
fn workers_that_are_replaced_are_the_limit_only_where_they_are_missing() {
    let recycled = |all: &mut Examination| {
        all.servers[1].settings.insert("pm.max_requests".into(), 10.into());
        server(all, "php-fpm").born = 25;
    };
    assert_eq!(limit_of("db-slow.sleep", recycled).as_deref(), Some("db-slow"));
}
