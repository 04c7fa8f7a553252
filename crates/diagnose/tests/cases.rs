//! Tests the rules on stored examinations of real servers with one known fault each, from `./x lab doctor` and other
//! labs, and on healthy ones. Each rule has a case that fires it, and must not fire in any other case, look-alikes
//! included.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use lastdrop_diagnose::findings::{diagnose, finding_kinds, wants_code};
use lastdrop_model::SessionState;
use lastdrop_model::documents::{Severity, WorkersCeiling};
use lastdrop_model::examination::{
    Examination, ExaminationStep, HotFunction, LoadShape, PeerConnections, ServerMeasurements, StepKind,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct StoredCase {
    limit: Option<String>,
    found: BTreeSet<String>,
    examination: Examination,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

fn case(name: &str) -> StoredCase {
    let text = fs::read_to_string(folder().join(format!("{name}.json"))).unwrap_or_else(|e| panic!("{name}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn cases() -> Vec<(String, StoredCase)> {
    let mut all: Vec<(String, StoredCase)> = fs::read_dir(folder())
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
            // Administrators sort findings by the expected gain.
            assert!(finding.severity != Severity::Waste || finding.expect.is_some(), "{name}: {finding:?}");
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
fn redirects_that_nobody_follows_are_told() {
    let (mut told, mut tried) = (0, 0);
    for (name, mut case) in cases() {
        let all = &mut case.examination;
        let Some(kind) = all.main().map(|step| step.kind) else { continue };
        for (status, redirects) in [("302", true), ("304", false), ("200", false)] {
            for step in all.steps.iter_mut().filter(|s| s.kind == kind) {
                step.status = BTreeMap::from([(status.to_string(), step.answered.max(1))]);
            }
            let is_told = diagnose(all).notes.iter().any(|note| note.contains("most answers are redirects"));
            assert!(redirects || !is_told, "{name} {status}");
            (told, tried) = (told + u32::from(is_told), tried + u32::from(redirects));
        }
    }
    // With several machines, each is examined by itself.
    assert!(tried > 0 && told * 2 > tried, "{told} of {tried}");
}

#[test]
fn every_finding_has_a_stored_case() {
    let all = cases();
    let shown: BTreeSet<&str> =
        all.iter().flat_map(|(_, c)| c.found.iter().chain(&c.limit)).map(String::as_str).collect();
    let without: Vec<&str> = finding_kinds().iter().map(|a| a.id).filter(|id| !shown.contains(id)).collect();
    assert!(without.is_empty(), "{without:?}");
    assert!(all.iter().filter(|(name, c)| name.starts_with("healthy") && c.limit.is_none()).count() >= 3);
}

/// An ordinary user can see whether other users' threads run or sleep, but not what they wait for.
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

/// Users who are rejected at once ask again at once; on a quiet machine the generator has a core of its own for it.
#[test]
fn a_load_that_is_busy_with_being_turned_away_is_not_the_limit() {
    let all = cases();
    let (_, case) = all.iter().find(|(name, _)| name == "nginx-connections-exhausted").expect("stored");
    let mut examination = case.examination.clone();
    let main = examination.steps.iter_mut().find(|step| step.kind == StepKind::Main).expect("the load");
    assert!(main.unanswered() > main.answered);
    (main.generator.saturated, main.generator.cores) = (true, 0.98);
    assert_eq!(diagnose(&examination).limit.as_deref(), Some("nginx-connections-exhausted"));
    // A generator that is busy with answers is the limit.
    let main = examination.steps.iter_mut().find(|step| step.kind == StepKind::Main).expect("the load");
    main.answered += main.unanswered() + 1;
    assert_eq!(diagnose(&examination).limit.as_deref(), Some("generator-saturated"));
}

/// Returns the limit of a stored examination after `change`.
fn limit_of(name: &str, change: impl Fn(&mut Examination)) -> Option<String> {
    let mut examination = case(name).examination;
    change(&mut examination);
    diagnose(&examination).limit
}

fn main_of(all: &mut Examination) -> &mut ExaminationStep {
    all.steps.iter_mut().find(|step| step.kind == StepKind::Main).expect("the load")
}

/// A virtual machine that has used up its share of the processor looks idle by its own counters.
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

#[test]
fn full_processors_are_explained_by_the_costliest_function_of_the_programs_own_language() {
    let mut examination = case("cpu-saturated.modphp").examination;
    // An Apache without a module of a language has no functions of its own.
    assert_eq!(wants_code(&examination), None);
    examination.servers[0].embeds = vec!["libphp".into()];
    let server = wants_code(&examination).expect("a module of PHP executes code");
    let hot = |name: &str, share| HotFunction {
        name: name.into(),
        file: "/srv/page.php".into(),
        line: 7,
        share,
        how: "Excimer (CPU time)".into(),
    };
    let inside = examination.inside.iter_mut().find(|inside| inside.server == server).expect("a look inside");
    inside.code = vec![hot("heavy", 0.58), hot("light", 0.1)];
    let said = diagnose(&examination);
    let limit = said.findings.iter().find(|finding| finding.id == "cpu-saturated").expect("the limit");
    let text = format!("{limit:?}");
    assert!(text.contains("heavy (/srv/page.php:7) has 58 % of it: begin there"), "{text}");
    assert!(text.contains("share of CPU time in light (/srv/page.php:7)"), "{text}");
}

/// Memory shortage of others on the same machine is not the server's limit.
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
    // A control group at its limit lacks memory only if the pages that it gave up are read again.
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

/// The amount of other clients' load is unknown: a few started workers, or one retransmitted packet, are then few.
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

/// A loop without time leaves connections in its queue, however long that is. On a large machine several loops may be
/// full while the machine is not.
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
            // Among many thousands per second no request waits for a millisecond.
            (step.response.mean, step.service.mean) = (60.0, 60.0);
        }
        let main = main_of(all);
        main.cores[..4].fill(1.0);
        (main.answered, main.answered_rps, main.response.mean) = (480_000, 40_000.0, 500.0);
        let server = &mut main.servers[0];
        *server = ServerMeasurements {
            server: server.server.clone(),
            workers_most: 4,
            workers_first: 4,
            workers_last: 4,
            threads: 4.0,
            cpu_cores: Some(3.9),
            hottest_thread_cores: 0.98,
            hottest_process_cores: 0.98,
            waits: [("running".to_string(), 4.0)].into(),
            ..ServerMeasurements::default()
        };
    };
    assert_eq!(limit_of("slow-upstream.nginx", by_four).as_deref(), Some("single-worker-cpu"));
}

/// An application that also works itself waits for a full peer less than half of the time, but all of its extra time.
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

fn server<'a>(all: &'a mut Examination, called: &str) -> &'a mut ServerMeasurements {
    main_of(all).servers.iter_mut().find(|s| s.server == called).expect("it takes part")
}

fn waits<const N: usize>(all: [(&str, f64); N]) -> BTreeMap<String, f64> {
    all.into_iter().map(|(what, n)| (what.to_string(), n)).collect()
}

/// A pool that grew until it was full had fewer workers on average than at the end.
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

/// Refused health checks take a server out: then no request reaches it, and none waits.
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

/// Full processors make answers late, and no error of them.
#[test]
fn errors_that_one_user_alone_gets_are_no_matter_of_processors() {
    let fails = |kinds: &'static [StepKind]| {
        move |all: &mut Examination| {
            for step in all.steps.iter_mut().filter(|step| kinds.contains(&step.kind)) {
                step.status = [("500".to_string(), step.answered)].into();
            }
        }
    };
    assert_eq!(limit_of("cpu-saturated.modphp", fails(&[StepKind::Alone, StepKind::Main])), None);
    assert_eq!(limit_of("cpu-saturated.modphp", fails(&[StepKind::Main])).as_deref(), Some("cpu-saturated"));
}

/// A request that a configured limit rejects waits for nothing, however fast the rejection is.
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

/// A server may wait for a program that is a pool of workers itself and has some free.
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

/// HAProxy's maxconn is the limit only if about that many requests are served at once, each as long as one alone.
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

/// An idle database would answer more statements, whatever each takes.
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
            node.peers.insert(peer, PeerConnections { open, opening: 0.0 });
            server(all, "postgresql").cpu_cores = Some(cores);
        }
    };
    assert_eq!(limit_of("db-pool-exhausted.node", sleeps(2.0, 0.03)).as_deref(), Some("db-pool-exhausted"));
    assert_eq!(limit_of("db-pool-exhausted.node", sleeps(10.0, 0.03)).as_deref(), Some("db-slow"), "most have one");
    assert_eq!(limit_of("db-pool-exhausted.node", sleeps(2.0, 0.9)).as_deref(), Some("db-slow"), "it works for them");
}

/// Workers that end after some requests do no harm if the others serve as many as they can.
#[test]
fn workers_that_are_replaced_are_the_limit_only_where_they_are_missing() {
    let recycled = |all: &mut Examination| {
        all.servers[1].settings.insert("pm.max_requests".into(), 10.into());
        server(all, "php-fpm").born = 25;
    };
    assert_eq!(limit_of("db-slow.sleep", recycled).as_deref(), Some("db-slow"));
}

/// Gunicorn's sync workers close each connection after its answer, whatever the proxy before them does.
#[test]
fn a_connection_is_not_to_be_kept_to_who_closes_it() {
    let advice = |class: &str| {
        let mut all = case("sync-workers-waiting.few-connections").examination;
        for server in all.servers.iter_mut().filter(|s| s.kind == "gunicorn") {
            server.settings.insert("worker_class".into(), class.into());
        }
        for server in all.servers.iter_mut().filter(|s| s.kind == "haproxy") {
            server.settings.insert("http-reuse".into(), "never".into());
        }
        let said = diagnose(&all);
        let found =
            said.findings.into_iter().find(|f| f.id == "upstream-connect-per-request").expect("it connects each time");
        (found.advice, found.fix.len())
    };
    let (sync, fixes) = advice("sync");
    assert!(sync.contains("sync workers of") && sync.contains("gthread") && !sync.contains("http-reuse"), "{sync}");
    assert_eq!(fixes, 0, "{sync}");
    let (threads, _) = advice("gthread");
    assert!(threads.contains("http-reuse") && !threads.contains("close each connection"), "{threads}");
}

/// The advice is neither more workers than a ceiling allows, nor more than the cores need.
#[test]
fn as_many_workers_are_advised_as_are_needed_and_as_ceilings_allow() {
    let advised = |ceilings: &[(&str, u64)], cpu_s: f64| {
        let mut all = case("sync-workers-waiting").examination;
        let users = main_of(&mut all).users;
        let gunicorn = all.servers.iter_mut().find(|s| s.kind == "gunicorn").expect("the pool");
        gunicorn.ceilings = ceilings
            .iter()
            .map(|(by, number)| WorkersCeiling {
                by: (*by).into(),
                number: *number,
                reason: format!("{by} allows {number}"),
            })
            .collect();
        let main = main_of(&mut all);
        main.server_cpu_s = Some(cpu_s * main.answered as f64);
        let said = diagnose(&all);
        let advice = said.workers_advice.clone().expect("a pool");
        let limit = said.findings.into_iter().find(|f| Some(&f.id) == said.limit.as_ref()).expect("a limit");
        let to = limit.fix.iter().find(|f| f.knob == "workers").and_then(|f| f.to.as_u64());
        (limit.id, to, advice, limit.advice, users)
    };
    let alone = case("sync-workers-waiting").examination.step(StepKind::Alone).expect("one user").service.mean / 1e6;
    // A request that computes for half of its time beside a light load, and waits for longer than it computes on busy
    // cores: two of them need 4.9 workers, and twice the root of that for fluctuations.
    let (id, to, advice, _, _) = advised(&[("memory", 500)], alone / 2.0);
    assert_eq!(id, "sync-workers-waiting");
    assert_eq!(
        (to, advice.need, advice.bound_by.as_str()),
        (Some(advice.number), Some(advice.number), "need"),
        "{advice:?}"
    );
    let cores = case("sync-workers-waiting").examination.main().expect("a load").cores.len() as f64;
    let at_work = cores * (1.0 + 1.0 / 0.7);
    assert_eq!(advice.number, (at_work + 2.0 * at_work.sqrt()).ceil() as u64, "{advice:?}");
    // The database allows fewer workers than there are: no more are advised, and the advice says why.
    let (_, to, advice, words, _) = advised(&[("memory", 500), ("database", 1)], alone / 2.0);
    assert_eq!((to, advice.number, advice.too_few), (None, 1, true), "{advice:?}");
    assert!(words.contains("more workers would not help") && words.contains("database allows 1"), "{words}");
}

/// Ten visitors on keep-alive connections hold ten of twelve workers. A few users of ours need not wait, and visitors
/// who share an address are not a greedy client.
#[test]
fn workers_that_idle_connections_hold_are_named_beside_visitors_too() {
    let beside = |kept: f64, told: bool| {
        move |all: &mut Examination| {
            all.steps.retain(|s| s.kind == StepKind::Main);
            let main = main_of(all);
            (main.kind, main.users) = (StepKind::Few, 2);
            main.cores.iter_mut().for_each(|busy| *busy = 0.1);
            (main.response.mean, main.timed_out) = (2_000.0, 0);
            main.failed.clear();
            let apache = &mut main.servers[0];
            (apache.workers_first, apache.workers_last, apache.workers_most, apache.threads) = (12, 12, 12, 12.0);
            let idle = if told { "client kept" } else { "client request" };
            apache.waits = waits([("idle", 12.0 - kept), (idle, kept)]);
            (apache.queue_mean, apache.queue_most, apache.status_busy) = (Some(0.0), Some(0), None);
            apache.scoreboard.clear();
            (apache.top_client, apache.other_clients) = (Some(("10.0.0.9".into(), 1.0)), kept);
            let about = &mut all.servers[0];
            about.settings.insert("MaxRequestWorkers".into(), 12.into());
            about.settings.insert("KeepAlive".into(), "On".into());
        }
    };
    let said = |kept, told| {
        let mut all = case("keepalive-hogging").examination;
        beside(kept, told)(&mut all);
        diagnose(&all)
    };
    let found = said(10.0, true);
    assert_eq!(found.limit.as_deref(), Some("keepalive-hogging"), "{:#?}", found.findings);
    assert!(found.findings.iter().all(|f| f.id != "greedy-client"), "{:#?}", found.findings);
    let limit = &found.findings[0];
    // A scoreboard that could not be read is not evidence.
    assert!(limit.evidence.iter().all(|e| e.source != "scoreboard"), "{limit:#?}");
    let advice = found.workers_advice.as_ref();
    assert!(advice.is_none_or(|a| a.need.is_none_or(|need| need >= 10)), "{advice:?}");
    // Two of twelve are not a limit. Connections that send requests belong to a greedy client.
    assert_eq!(said(2.0, true).limit, None);
    let found = said(10.0, false);
    assert!(found.findings.iter().any(|f| f.id == "greedy-client"), "{:#?}", found.findings);
}

/// mod_perl and mod_php need a process for each request.
#[test]
fn an_event_mpm_is_advised_only_where_the_application_bears_it() {
    let advice = |embeds: &[&str]| {
        let mut all = case("keepalive-hogging").examination;
        for server in &mut all.servers {
            server.embeds = embeds.iter().map(|name| (*name).to_string()).collect();
        }
        for inside in &mut all.inside {
            inside.libraries.clear();
        }
        let found = diagnose(&all).findings.into_iter().find(|f| f.id == "keepalive-hogging").expect("its limit");
        found.advice
    };
    assert!(advice(&[]).contains("event MPM"), "{}", advice(&[]));
    for embeds in [&["mod_perl.so"][..], &["libphp8.2.so"]] {
        assert!(!advice(embeds).contains("event MPM") && advice(embeds).contains("nginx"), "{}", advice(embeds));
    }
}

/// Wastes are sorted by their cost, and each says what removing it should bring.
#[test]
fn wastes_are_told_by_what_they_would_bring() {
    let mut all = case("cpu-saturated.modphp").examination;
    let steps = all.steps.clone();
    let main = steps.iter().find(|s| s.kind == StepKind::Main).expect("the load");
    // With keep-alive 74.7 requests/s, without it 12.5: workers are replaced after five connections.
    all.steps.retain(|s| s.kind != StepKind::OtherKeepalive);
    let mut closing = main.clone();
    (closing.kind, closing.keepalive, closing.answered, closing.connections) =
        (StepKind::OtherKeepalive, false, 125, 125);
    (closing.duration_s, closing.answered_rps) = (10.0, 12.5);
    let name = all.servers[0].server.clone();
    for server in closing.servers.iter_mut().filter(|s| s.server == name) {
        server.born = 25;
    }
    all.steps.push(closing);
    let main = main_of(&mut all);
    (main.keepalive, main.answered_rps, main.duration_s, main.answered) = (true, 74.7, 10.0, 747);
    for server in &mut main.servers {
        server.born = 0;
    }
    all.servers[0].settings.insert("MaxConnectionsPerChild".into(), 5.into());
    let said = diagnose(&all);
    let rest: Vec<_> = said.findings.iter().filter(|f| f.severity == Severity::Waste).collect();
    let churn = rest.iter().find(|f| f.id == "process-churn").unwrap_or_else(|| panic!("{:#?}", said.findings));
    let expected = churn.expect.as_ref().expect("what it would bring");
    assert!((expected.ratio - 74.7 / 12.5).abs() < 0.02, "{expected:?}");
    assert_eq!(churn.fix[0].knob, "MaxConnectionsPerChild");
    assert_eq!(rest[0].id, "process-churn", "what brings most stands first");
    let json = serde_json::to_value(churn).expect("JSON");
    assert!(json["expected"]["ratio"].as_f64().is_some_and(|r| r > 5.0), "{json}");
}

/// The cost of a request is the processor time of the servers and all behind them, whatever else the machine does.
#[test]
fn what_a_request_costs_is_the_servers_processor_time_alone() {
    let said = |others: f64| {
        let mut all = case("cpu-saturated.modphp").examination;
        let main = main_of(&mut all);
        main.server_cpu_s = Some(0.0106 * main.answered as f64);
        main.generator.others_cores = others;
        let found = diagnose(&all);
        let limit = found.findings.into_iter().find(|f| f.id == "cpu-saturated").expect("its limit");
        let costs = limit.evidence.iter().find(|e| e.name.contains("processor time of the servers per answer"));
        (costs.and_then(|e| e.value.as_f64()), limit.advice)
    };
    for others in [0.0, 0.4] {
        let (costs, advice) = said(others);
        assert_eq!(costs, Some(10.6), "{advice}");
        assert!(advice.contains("a request costs 10.6 ms of processor time"), "{advice}");
    }
}

/// Where workers were at their first requests throughout the load, what those cost is no cost of a request.
#[test]
fn what_workers_load_first_is_no_cost_of_a_request() {
    let mut all = case("cpu-saturated.modphp").examination;
    let alone = all.steps.iter_mut().find(|s| s.kind == StepKind::Alone).expect("one user");
    alone.server_cpu_s = Some(0.0106 * alone.answered as f64);
    let main = main_of(&mut all);
    (main.server_cpu_s, main.starting) = (Some(0.0273 * main.answered as f64), true);
    let costs = |all: &Examination| {
        let limit = diagnose(all).findings.into_iter().find(|f| f.id == "cpu-saturated").expect("its limit");
        limit.evidence.iter().find(|e| e.name.contains("servers per answer")).and_then(|e| e.value.as_f64())
    };
    assert_eq!(costs(&all), Some(10.6));
    main_of(&mut all).starting = false;
    assert_eq!(costs(&all), Some(27.3), "without starts the load itself tells");
}

/// Growth that slows down from step to step is unsharing or a cache, and ends by itself.
#[test]
fn growth_whose_increments_fall_is_no_leak() {
    let found = |paces: &[f64]| {
        let mut all = case("memory-leak").examination;
        for growth in &mut all.growth {
            growth.steps_private_bytes = paces.to_vec();
        }
        diagnose(&all).findings.iter().any(|f| f.id == "memory-leak")
    };
    assert!(found(&[126e3, 127e3, 125e3]) && found(&[]) && !found(&[126e3, 100e3, 73e3]));
}
