//! Rules about processors: all of them full, one full, or their time spent on starting workers or on one avoidable
//! task.

use lastdrop_model::documents::{ExpectedGain, Finding, Fix};
use lastdrop_model::examination::{ExaminationStep, HotFunction, LoadShape, StepKind};
use lastdrop_model::units::show_us;
use serde_json::json;

use super::evidence::{FindingBuilder, LONG_US, LoadEvidence, ONE_CORE, OTHERS_FILL, ServerEvidence, finding, round};
use super::{Rule, databases};

const LESS_COMPRESSION: &str = "a level of 1 to 4 costs a fraction of 9 for a few percent more bytes; compress static files once (gzip_static, \
                                mod_deflate with pre-compressed files)";
/// A request that holds a loop this much longer than others do delays them all.
const LONG_HOLD_US: f64 = 20_000.0;

/// Functions of the program's own language that a finding names, and the least share of the one to begin with.
const HOT_FUNCTIONS: usize = 3;
const WORTH_A_LOOK: f64 = 0.2;

pub(super) const CHURN: &[Rule] = &[Rule { id: "process-churn", look: churn }];
pub(super) const FULL: &[Rule] = &[
    Rule { id: "opcode-cache-off", look: opcode_cache },
    Rule { id: "compression-bound", look: compression },
    Rule { id: "compression-bound", look: uncompressed },
    Rule { id: "tls-bound", look: tls },
    Rule { id: "interpreter-lock", look: interpreter_lock },
    Rule { id: "gc-pauses", look: collector },
    Rule { id: "libuv-pool", look: libuv },
    Rule { id: "db-slow", look: databases::one_statement },
    Rule { id: "cpu-saturated", look: saturated },
];
pub(super) const ONE: &[Rule] = &[
    Rule { id: "event-loop-blocked", look: loop_blocked },
    Rule { id: "single-worker-cpu", look: single_worker },
    Rule { id: "single-process", look: single_process },
];

/// Finds workers that are started all the time, with the requests.
fn churn(case: &LoadEvidence<'_>) -> Option<Finding> {
    // A database has a process for each connection: it starts them with its connections.
    let all = case.servers().into_iter().filter(|v| !v.is(&["mariadb", "postgresql"]));
    all.into_iter().find_map(|v| {
        let recycle = v.recycling().filter(|(_, most)| *most > 0.0);
        let born = v.seen.born.max(unseen_births(case, &v, recycle));
        let (a_request, a_second) = (case.per_request(born), case.per_second(born));
        // A pool that only grows is another finding.
        let replaced = born as f64 > (v.seen.workers_last as f64 - v.seen.workers_first as f64).max(0.0) * 1.5;
        let crashed = v.log("crash") > 0 || v.log("killed") > 0;
        // A pool that follows other clients' load up and down starts workers, too.
        let counted = case.all.load != LoadShape::Foreign;
        // A worker that takes seconds to start is not started often, and yet starting is most of the work.
        let often = a_request > 0.01 && (a_second > 1.5 || counted && a_request >= 0.05 && born >= 3) && replaced && !crashed;
        // If the pool serves as many requests as it could without starting workers, the starts cost nothing.
        let serves = case.alone_s().map_or(0.0, |s| case.main.answered_rps * s / v.size().max(1.0));
        let in_the_way = !(case.cpu_idle() && serves >= 0.85);
        let due = recycle.map_or(counted, |(_, n)| n < 200.0) && in_the_way;
        (often && due).then(|| {
            let knob = recycle.map(|(name, _)| v.fix(name, json!(if v.is(&["apache"]) { 0 } else { 10_000 })));
            let source = if born > v.seen.born { "requests, by what a worker may serve" } else { "processes" };
            finding(0.9, format!("workers of {} are replaced all the time: {a_second:.0} a second are born", v.about.server))
                .of(&v)
                .evidence(source, "workers born a request", a_request, 0.01)
                .evidence(source, "workers born a second", a_second, 1.5)
                .evidence("configuration", recycle.map_or("recycling", |(name, _)| name), recycle.map_or(json!(null), |(_, n)| json!(n)), 200)
                .evidence("/proc/PID/task", "workers there on average", v.seen.threads, 0)
                .evidence("listen queue", "connections that wait", v.seen.queue_mean, 1)
                .ruled_out("the same process ids before and after")
                // No gain is promised: the cost of a start is not known before.
                .fix(knob.into_iter().collect(), "a worker that leaks can serve thousands of requests before it matters; lastdrop size --fit says how much it grows")
                .verify("the ids of workers stay the same")
        })
    })
}

/// Number of worker starts that sampling missed, if most of the pool is missing while connections wait. Each worker
/// serves its allowed number of requests and ends; one that lives for a millisecond is never sampled.
fn unseen_births(case: &LoadEvidence<'_>, v: &ServerEvidence<'_>, recycle: Option<(&str, f64)>) -> u64 {
    let Some((name, most)) = recycle.filter(|_| v.seen.threads < 0.5 * v.size() && v.queue() >= 0.5) else { return 0 };
    let served = if name == "MaxConnectionsPerChild" { case.main.connections } else { case.main.answered };
    (served as f64 / most) as u64
}

/// Returns the server that uses most processor time.
pub(super) fn top<'a>(case: &'a LoadEvidence<'a>) -> Option<ServerEvidence<'a>> {
    let all = case.servers();
    all.into_iter().max_by(|a, b| a.seen.cpu_cores.unwrap_or(0.0).total_cmp(&b.seen.cpu_cores.unwrap_or(0.0)))
}

/// True if this server lacks processor time: all processors are full, or the core of its only busy thread is.
fn short_of_cpu(v: &ServerEvidence<'_>) -> bool {
    v.case.cpu_full() || v.seen.hottest_thread_cores >= ONE_CORE || v.seen.hottest_process_cores >= ONE_CORE
}

fn share_of(case: &LoadEvidence<'_>, v: &ServerEvidence<'_>, libraries: &[&str], functions: &[&str]) -> f64 {
    let Some(inside) = case.inside(&v.about.server) else { return 0.0 };
    let sum = |all: &std::collections::BTreeMap<String, f64>, names: &[&str]| -> f64 {
        all.iter().filter(|(name, _)| names.iter().any(|n| name.contains(n))).map(|(_, share)| share).sum()
    };
    sum(&inside.libraries, libraries).max(sum(&inside.functions, functions))
}

fn compression(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let share = share_of(
            case,
            &v,
            &["libz", "libbrotli", "libzstd", "libdeflate"],
            &["deflate", "longest_match", "Brotli", "compress/flate", "klauspost/compress"],
        );
        (share >= 0.33 && short_of_cpu(&v)).then(|| {
            let knob = ["gzip_comp_level", "DeflateCompressionLevel"]
                .iter()
                .find(|name| v.about.settings.contains_key(**name));
            finding(0.9, "the processor's time goes into compressing answers")
                .of(&v)
                .evidence("profile", "share of the compression library", share, 0.33)
                .evidence("/proc/PID/stat", "cores used", v.seen.cpu_cores, 0)
                .ruled_out("compression below a third of the profile")
                .fix(knob.map(|name| v.fix(name, json!(1))).into_iter().collect(), LESS_COMPRESSION)
                .expected(case.bound(None).map(|mut e| {
                    e.ratio = (1.0 / (1.0 - 0.7 * share)).min(e.ratio.max(1.0 / (1.0 - 0.7 * share)));
                    e.reason = format!(
                        "{:.0} % of the time is compression, of which a low level saves about two thirds",
                        share * 100.0
                    );
                    e
                }))
                .verify("the share of libz in lastdrop profile")
        })
    })
}

/// True if compression may take the processor time, in a program whose profile does not show it.
pub(super) fn may_compress(case: &LoadEvidence<'_>) -> bool {
    let short = case.cpu_full() || case.servers().iter().any(short_of_cpu);
    short && compression(case).is_none()
}

/// Evaluates the experiment without compressed answers: more of them, and each is larger.
fn uncompressed(case: &LoadEvidence<'_>) -> Option<Finding> {
    let plain = case.all.step(StepKind::Uncompressed)?;
    let bytes = |step: &ExaminationStep| step.bytes_received as f64 / step.answered.max(1) as f64;
    let (gain, larger) =
        (plain.answered_rps / case.main.answered_rps.max(1e-9), bytes(plain) / bytes(case.main).max(1.0));
    let v = case.servers().into_iter().find(|v| short_of_cpu(v)).filter(|_| gain >= 1.5 && larger >= 1.3)?;
    let share = 1.0 - 1.0 / gain;
    Some(
        finding(0.88, "the processor's time goes into compressing answers")
            .of(&v)
            .evidence("load", "throughput when nobody asks for compressed answers, against that", gain, 1.5)
            .evidence("load", "bytes of an answer then, against that", larger, 1.3)
            .evidence("/proc/PID/stat", "cores used", v.seen.cpu_cores, 0)
            .ruled_out("as few answers without it")
            .fix(Vec::new(), LESS_COMPRESSION)
            .expected(Some(ExpectedGain {
                interval: None,
                ratio: round(1.0 / (1.0 - 0.7 * share)),
                reason: format!(
                    "{:.0} % of the time is compression, of which a low level saves about two thirds",
                    share * 100.0
                ),
            }))
            .verify("the same load without Accept-Encoding"),
    )
}

fn tls(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().next().filter(|_| case.all.tls)?;
    let share = share_of(case, &v, &["libcrypto", "libssl", "libgnutls"], &["rsaz_", "bn_mul", "ecp_", "RSA_"]);
    let full = case.per_request(case.main.handshakes_full.max(if case.main.handshakes_resumed == 0 {
        case.main.connections
    } else {
        0
    }));
    (share >= 0.4 && full >= 0.3 && short_of_cpu(&v)).then(|| {
        finding(0.9, "TLS handshakes take the processor's time")
            .of(&v)
            .evidence("profile", "share of the crypto library", share, 0.4)
            .evidence("load", "full handshakes a request", full, 0.3)
            .evidence("load", "handshakes resumed", case.main.handshakes_resumed, 0)
            .ruled_out("handshakes are resumed, or connections kept")
            .fix(
                v.about.settings.contains_key("ssl_session_cache").then(|| v.fix("ssl_session_cache", json!(10))).into_iter().collect(),
                "keep connections; a shared session cache or tickets; an ECDSA (P-256) certificate, or RSA of 2048 bits: RSA of 4096 \
                 costs six times that",
            )
            .verify("handshakes a request in lastdrop run")
    })
}

fn opcode_cache(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let inside = case.inside(&v.about.server)?;
        // A program may read a hundred templates per request: only compiled files count. Older examinations count all.
        let opens = ["open-source", "open"].iter().find_map(|sort| inside.calls.get(*sort).copied()).unwrap_or(0.0);
        let compiles = share_of(case, &v, &[], &["zendparse", "lex_scan", "zend_compile", "zendlex", "zend_hash_add", "zend_ast"]);
        // On a large machine a small pool can lack time while processors are idle.
        let computes = v.has_pool() && v.is_full() && v.seen.waiting("running") >= 0.6 * v.busy();
        let is_php = v.is(&["php-fpm"]) || v.about.software.contains("PHP") || inside.libraries.keys().any(|l| l.contains("libphp"));
        (is_php && (compiles >= 0.1 || (opens >= 50.0 && (short_of_cpu(&v) || computes))) && (case.cpu_full() || computes)).then(|| {
            finding(0.9, "PHP compiles its files again for each request")
                .of(&v)
                .evidence("profile", "share of the compiler (zendparse, lex_scan …)", compiles, 0.1)
                .evidence("trace", "source files opened a request", opens, 50)
                .ruled_out("files are opened by the dozen and the compiler is not in the profile")
                .fix(
                    cache_of_code(&v),
                    "opcache.enable=1 with memory for all files (opcache.memory_consumption, opcache.max_accelerated_files)",
                )
                .expected(case.bound(None).map(|mut e| {
                    e.ratio = (1.0 / (1.0 - compiles.min(0.85))).max(2.0);
                    e.reason = "what the compiler takes, and what reading its files costs".into();
                    e
                }))
                .verify("files opened a request in lastdrop trace")
        })
    })
}

/// Returns the fixes for the opcode cache: enable it; or enlarge it, if it is on.
fn cache_of_code(v: &ServerEvidence<'_>) -> Vec<Fix> {
    let Some(now) = v.about.settings.get("opcache.enable") else { return Vec::new() };
    if !now.is_on() && v.count("opcache.enable") != Some(1.0) {
        return vec![v.fix("opcache.enable", json!(1))];
    }
    let larger = |(name, least): (&str, f64)| Some(v.fix(name, json!((v.count(name)? * 8.0).max(least) as i64)));
    [("opcache.memory_consumption", 128.0), ("opcache.max_accelerated_files", 10_000.0)]
        .into_iter()
        .filter_map(larger)
        .collect()
}

/// Finds threads of one interpreter: together they use one core, and the others wait for its lock.
fn interpreter_lock(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let is_python = v.is(&["gunicorn", "uwsgi"]) || v.about.software.to_lowercase().contains("python");
        let is_ruby = v.is(&["puma"]);
        let alone = v.seen.workers_most <= 1;
        let one = v.seen.hottest_process_cores;
        // On a busy machine it gets less than a core, though several of its threads are always runnable.
        let disturbed =
            case.own_cores() < 0.75 * case.busy_cores() && alone && one >= 0.15 && v.seen.waiting("running") >= 1.0;
        let waiting = v.seen.waiting("futex");
        let processes = v.seen.workers_most.max(1) as f64;
        // Each process uses what one interpreter can, and all together use less than the machine.
        let all = v.seen.cpu_cores.unwrap_or(0.0);
        // With one process for each processor already, more of them bring nothing.
        let fires = (is_python || is_ruby)
            && processes < case.cpus_of(&v)
            && (one >= ONE_CORE || disturbed)
            && one < 1.35
            && v.seen.threads >= 2.0 * processes
            && waiting >= 0.8
            && all < case.main.cores.len() as f64 * 0.95
            && (alone || all >= 0.85 * processes.min(case.main.cores.len() as f64 - 0.2));
        fires.then(|| {
            let name = v.about.pool.clone();
            finding(0.88, "threads share one interpreter lock: more of them add nothing, more processes do")
                .of(&v)
                .evidence("/proc/PID/stat", "cores of the busiest process", one, ONE_CORE)
                .evidence("/proc/PID/task", "threads", v.seen.threads, 2.0 * processes)
                .evidence("/proc/PID/syscall", "threads in futex", waiting, 0.8)
                .ruled_out("a process that uses more than one core, or threads that wait for a peer")
                .fix(
                    name.map(|n| v.fix(&n, json!(case.main.cores.len()))).into_iter().collect(),
                    "processes instead of threads for code that computes",
                )
                .expected(case.bound(None))
                .verify("the cores of all workers together")
        })
    })
}

/// Parts of the function names of garbage collectors (C++ names as the linker has them): V8's; HotSpot's serial,
/// parallel, G1, Shenandoah and Z; Ruby's and Python's.
const COLLECTORS: &[&str] = &[
    "MarkCompact",
    "ConcurrentMarking",
    "Scavenge",
    "MarkingVisitor",
    "Sweeper",
    "MarkSweep",
    "CompactibleSpace",
    "prepare_for_compaction",
    "OopOopIterate",
    "DefNew",
    "PSParallel",
    "PSPromotion",
    "ParCompaction",
    "ParNew",
    "G1Par",
    "G1CM",
    "G1Full",
    "G1Root",
    "G1Scan",
    "G1Evac",
    "G1Rem",
    "G1Young",
    "G1Collect",
    "G1Concurrent",
    "G1Merge",
    "G1Card",
    "G1Dirty",
    "G1Refine",
    "G1Rebuild",
    "G1Mark",
    "G1Adjust",
    "G1Compact",
    "G1Block",
    "ShenandoahHeap",
    "ZMark",
    "ZRelocate",
    "gc_mark",
    "rb_gc",
    "gc_collect",
];

fn collector(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let share = share_of(case, &v, &[], COLLECTORS);
        // Collectors with their own threads fill more than one processor together.
        let short = short_of_cpu(&v) || v.seen.cpu_cores.unwrap_or(0.0) >= 0.8;
        (share >= 0.25 && short).then(|| {
            finding(0.8, "the collector of garbage takes the time")
                .of(&v)
                .evidence("profile", "share of the collector", share, 0.25)
                .fix(Vec::new(), "a larger heap (--max-old-space-size, -Xmx), fewer objects a request")
                .verify("the collector's share in lastdrop profile")
        })
    })
}

/// Finds a full libuv pool of Node: four threads behind one loop that read files, compute and look up names. At most
/// half of them look up names (`threadpool.c` of libuv: slow I/O).
fn libuv(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let processes = v.seen.workers_most.max(1) as f64;
        let all = v.count("UV_THREADPOOL_SIZE").filter(|n| *n >= 1.0).unwrap_or(4.0);
        let at_work = v.seen.threads - v.seen.waiting("futex") - v.seen.waiting("events") - v.seen.waiting("idle");
        let pooled = at_work / processes;
        let (for_names, looking) = (((all + 1.0) / 2.0).floor(), v.names_asked() / processes);
        let full = (0.7 * all..=all + 0.8).contains(&pooled);
        let full_of_names = (0.85 * for_names..=for_names + 0.2).contains(&looking);
        let loops_idle = v.seen.waiting("events") >= 0.5 * processes;
        // V8's collector threads compute as well.
        let collects = share_of(case, &v, &[], COLLECTORS) >= 0.15;
        (v.is_node() && loops_idle && !collects && (full || full_of_names)).then(|| {
            let (threads, most) = if full { (pooled, all) } else { (looking, for_names) };
            let title = if full {
                format!("the {all:.0} pool threads of Node are busy, its loop is not")
            } else {
                format!("names are looked up by {for_names:.0} of Node's pool threads at once, and no more may")
            };
            finding(0.8, title)
                .of(&v)
                .evidence("/proc/PID/task", "threads at work beside the loop, a process", threads, 0.7 * most)
                .evidence("environment", "UV_THREADPOOL_SIZE", all, 0)
                .evidence("/proc/PID/syscall", "loops that wait for events", v.seen.waiting("events"), 0.5 * processes)
                .ruled_out("a loop that computes")
                .fix(
                    vec![v.fix("UV_THREADPOOL_SIZE", json!((4.0 * all).max(16.0) as i64))],
                    "or fewer calls of crypto, zlib, fs and dns.lookup a request",
                )
                .verify("threads that wait in futex")
        })
    })
}

fn saturated(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = top(case).filter(|_| case.cpu_full() && !case.fails_for_one_user())?;
    let used = v.seen.cpu_cores.unwrap_or(0.0);
    let own = case.main.generator.cores_beside_servers();
    let others = case.main.generator.others_cores;
    let title = if others >= 0.5 * case.busy_cores() {
        format!(
            "the processors are full, for the most part with programs that have nothing to do with {}",
            v.about.server
        )
    } else {
        format!("the processors are full: this is what the machine can do; {} uses most", v.about.server)
    };
    let each = case.cpu_per_request_s();
    let costs = each.map_or_else(String::new, |s| {
        format!(" a request costs {} of processor time of the servers.", show_us(s * 1e6))
    });
    let mut found = finding(0.9, title).of(&v);
    let code = case.inside(&v.about.server).map_or(&[][..], |inside| &inside.code);
    for function in code.iter().take(HOT_FUNCTIONS) {
        found = found.evidence(
            &function.how,
            &format!("share of CPU time in {}", place_of(function)),
            round(function.share),
            0,
        );
    }
    let next = match code.first().filter(|function| function.share >= WORTH_A_LOOK) {
        Some(hot) => format!("{} has {:.0} % of it: begin there", place_of(hot), hot.share * 100.0),
        None => format!("lastdrop profile {} says where it goes", v.about.named),
    };
    if let Some(s) = each {
        found = found.evidence("/proc/PID/stat", "ms of processor time of the servers per answer", s * 1e3, 0);
    }
    Some(
        found
            .evidence(
                "/proc/stat",
                "cores busy",
                case.busy_cores(),
                (0.9 - case.main.steal).max(0.0) * case.main.cores.len() as f64,
            )
            .evidence("/proc/stat", "share of the time that the hypervisor gave to others", case.main.steal, 0.02)
            .evidence("/proc/PID/stat", &format!("cores of {}", v.about.server), used, 0)
            .evidence("load", "cores of the generator", own, 0)
            .evidence("/proc/stat", "cores of other programs", others, 0)
            .evidence("load", "answers are so many times slower than for one user alone", case.slower(), 1.3)
            .ruled_out("processors that idle while somebody waits")
            .fix(
                Vec::new(),
                format!(
                    "more workers will not help:{costs} {next}; then a cache, less work per request, or more processors"
                ),
            )
            .verify("processor time a request"),
    )
}

/// A function with its file and line.
fn place_of(function: &HotFunction) -> String {
    match (function.file.as_str(), function.line) {
        ("", _) => function.name.clone(),
        (file, 0) => format!("{} ({file})", function.name),
        (file, line) => format!("{} ({file}:{line})", function.name),
    }
}

/// The last rule: nothing of the servers themselves limits, and other programs use the processors.
pub(super) const TAKEN_BY_OTHERS: &[Rule] = &[Rule { id: "cpu-saturated", look: others_compute }];

fn others_compute(case: &LoadEvidence<'_>) -> Option<Finding> {
    let (others, all) = (case.main.generator.others_cores, case.main.cores.len() as f64);
    let v = case.servers().into_iter().next()?;
    let slower = case.main.response.mean >= LONG_US && case.slower().is_some_and(|t| t >= 5.0);
    // One user alone waits for a processor as long as many.
    let slow = slower || case.is_starved_by_others();
    // A thread whose state is hidden may be waiting for something else.
    let all_seen = case.servers().iter().all(|v| v.seen.waiting("unseen") < 0.5);
    let fills = others >= OTHERS_FILL * all && case.busy_cores() >= 0.95 * all;
    (fills && slow && all_seen && !case.fails_for_one_user()).then(|| {
        finding(0.7, "the processors are full with other programs, which the servers wait for")
            .of(&v)
            .evidence("/proc/stat", "cores of other programs", others, OTHERS_FILL * all)
            .evidence("/proc/stat", "cores busy", case.busy_cores(), 0.95 * all)
            .evidence("/proc/PID/stat", &format!("cores of {}", v.about.server), v.seen.cpu_cores, 0)
            .ruled_out("processors that idle while somebody waits; something that the servers themselves wait for")
            .fix(Vec::new(), "see who they are (top): give them less (nice, CPUWeight=, a quota), another time or another machine; then ask again")
            .verify("cores of other programs")
    })
}

/// Finds an event loop that does one long task after the other.
fn loop_blocked(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let loops = v.seen.workers_most.max(1) as f64;
        let one_loop = v.is(&["node", "nginx", "haproxy", "lighttpd"]) || v.about.software.contains("node") || v.is_async();
        if !one_loop || case.cpu_full() {
            return None;
        }
        let alone = case.alone_s()?;
        // The loop computes for as long as an answer takes, again and again or in one request of many. Or it sleeps
        // where a loop must not.
        let hot = v.seen.hottest_process_cores >= ONE_CORE;
        let computes =
            alone >= 0.008 && v.seen.cpu_cores.unwrap_or(0.0) / case.main.answered_rps.max(1e-9) >= 0.6 * alone;
        let service = case.alone.map(|step| step.service).unwrap_or_default();
        let uneven = v.is_node() && service.count >= 50 && service.p99 - service.p50 >= LONG_HOLD_US && service.p99 >= 2.0 * service.p50;
        let elsewhere = ["sleep", "disk", "lock", "read", "child", "peer", "file", "write"];
        let stuck: f64 = elsewhere.iter().map(|what| v.seen.waiting(what)).sum::<f64>() / loops;
        let waits = stuck >= 0.7 && v.seen.waiting("events") <= 0.4 * loops;
        let stuck = if waits { stuck } else { in_no_events(&v, loops) };
        // Connections wait for a loop that looks idle: it runs an inner loop of its own until a program that it has
        // called ends.
        let in_another = v.is_node() && v.queue() >= 1.0 && v.seen.hottest_process_cores < 0.5;
        let waits = waits || stuck >= 0.7 || in_another;
        ((hot && (computes || uneven)) || waits).then(|| {
            finding(0.85, "one request holds the whole event loop while all others wait")
                .of(&v)
                .evidence("/proc/PID/stat", "cores of the busiest process", v.seen.hottest_process_cores, ONE_CORE)
                .evidence("load", "one user alone, ms", alone * 1e3, 8)
                .evidence("load", "the slowest of a hundred of one user alone, ms", service.p99 / 1e3, 0)
                .evidence("/proc/PID/syscall", "loops that wait for something else than events", stuck, 0.7)
                .evidence("sock_diag", "connections that wait until it takes them, on average", v.seen.queue_mean, 1)
                .ruled_out("loops that wait for events while answers are slow")
                .fix(Vec::new(), "take the long work out of the loop (worker threads, a queue, asynchronous calls, aio threads in nginx)")
                .verify("the loop waits for events most of the time")
        })
    })
}

/// Share of Node's loops that neither wait for events nor run. In an idle process two threads wait for events: the
/// loop, and the one with the timers of the pool. A loop that waits on a condition looks like a thread of the pool.
fn in_no_events(v: &ServerEvidence<'_>, loops: f64) -> f64 {
    if !v.is_node() || v.seen.threads < 6.0 * loops {
        return 0.0;
    }
    ((2.0 * loops - v.seen.waiting("events") - v.seen.waiting("running")) / loops).max(0.0)
}

/// Finds a pool or server in which one worker computes and the others are idle.
fn single_worker(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let knob = match v.kind() {
            "nginx" => "worker_processes",
            "haproxy" => "nbthread",
            "lighttpd" => "server.max-worker",
            "apache" | "php-fpm" | "gunicorn" | "uwsgi" | "puma" => v.about.pool.as_deref()?,
            _ => return None,
        };
        let hot = v.seen.hottest_thread_cores.max(if v.one_thread_each() { v.seen.hottest_process_cores } else { 0.0 });
        let all = v.seen.cpu_cores.unwrap_or(0.0);
        let idle = case.main.cores.len() as f64 - case.busy_cores();
        // On a small machine the generator takes the remaining time.
        let spare = idle + case.main.generator.cores_beside_servers();
        // Event loops that each fill a core, and are fewer than the processors.
        let loops = if v.is(&["haproxy"]) { v.seen.threads } else { v.seen.workers_most as f64 };
        let is_of_loops = v.is(&["nginx", "haproxy", "lighttpd"]) && loops >= 2.0;
        let all_full = is_of_loops && loops < case.cpus_of(&v) && all >= 0.85 * loops;
        (hot >= ONE_CORE && (all < hot + 0.35 || all_full) && spare >= 0.3).then(|| {
            let to = if v.is(&["nginx"]) { json!("auto") } else { json!(case.main.cores.len()) };
            let name = &v.about.server;
            let title = if all_full {
                format!("all {loops:.0} workers of {name} compute while processors idle")
            } else {
                format!("one worker of {name} computes alone while processors idle")
            };
            finding(0.88, title)
                .of(&v)
                .evidence("/proc/PID/task", "cores of the busiest thread", hot, ONE_CORE)
                .evidence("/proc/PID/stat", "cores of the whole server", all, 0)
                .evidence("/proc/stat", "cores idle or the generator's", spare, 0.3)
                .ruled_out("work that is spread over several threads")
                .fix(vec![v.fix(knob, to)], "as many as processors")
                .expected(case.bound(None))
                .verify("cores of each worker")
        })
    })
}

/// Runtimes that execute code in one thread at a time, however many threads they have.
const INTERPRETERS: &[&str] = &["node", "python", "ruby", "perl", "php", "lua"];

fn single_process(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let hot = v.seen.hottest_process_cores;
        // The cores of the load and of other programs are not the one core that this process can use.
        let beside = case.main.generator.cores_beside_servers() + case.main.generator.others_cores;
        let idle = case.main.cores.len() as f64 - case.busy_cores() + beside;
        let one = v.seen.workers_most <= 1 && v.one_computes() && v.seen.cpu_cores.unwrap_or(0.0) < 1.3;
        // Databases have rules of their own.
        let is_database = v.is(&["mariadb", "postgresql"])
            || v.about.software.contains("maria")
            || v.about.software.contains("mysql");
        // Threads that compute in parallel in one process.
        let is_interpreted =
            v.is_node() || INTERPRETERS.iter().any(|name| v.about.software.to_lowercase().contains(name));
        let side_by_side = !is_interpreted && v.seen.threads >= 2.0 && v.seen.hottest_thread_cores < 0.6 * hot;
        let has_threads = v.is(&["tomcat", "caddy"]) && v.seen.hottest_thread_cores < ONE_CORE || side_by_side;
        (one && idle >= 0.3 && !is_database && !has_threads).then(|| {
            finding(0.85, format!("{} is one process, and its one processor is full", v.about.server))
                .of(&v)
                .evidence("/proc/PID/stat", "cores of the process", hot, ONE_CORE)
                .evidence("processes", "workers", v.seen.workers_most, 2)
                .ruled_out("several processes, or a process that uses more than one core")
                .fix(Vec::new(), "run several (cluster, --workers), behind one listener or a proxy")
                .verify("cores of the server")
        })
    })
}
