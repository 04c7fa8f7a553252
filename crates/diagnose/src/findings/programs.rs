//! The rule about programs that are started for each request: CGI, `system()`, a shell.

use lastdrop_model::documents::{ExpectedGain, Finding};
use lastdrop_model::units::show_us;

use super::Rule;
use super::evidence::{FindingBuilder, LoadEvidence, ServerEvidence, finding, round};

pub(super) const ALL: &[Rule] = &[Rule { id: "process-per-request", look: per_request }];

/// Executed programs per request from which on requests start them, by the trace.
const EXECUTED: f64 = 0.3;
/// Processes and threads that the machine starts per request, without a trace: other programs start some, too.
const STARTED: f64 = 0.7;
/// Running children of another program, on average, without a trace. A pipe of a log is one, and starts nothing.
const RUNNING: f64 = 0.02;
/// Cores that they use, without a trace.
const USED_CORES: f64 = 0.02;
/// Share of a program's time that a process which stays would spare: at least, likely, and at most. Most of a small
/// script's time is its interpreter's start; a program that computes keeps its own part.
const OF_STARTING: [f64; 3] = [0.2, 0.7, 0.95];

/// What shows that a server starts programs for requests.
struct StartedPrograms<'a> {
    view: ServerEvidence<'a>,
    /// Executed programs per request in the trace; of these, shells.
    executed: f64,
    shells: f64,
    /// Processes and threads that the machine started per request.
    tasks: f64,
    /// Cores that the programs used.
    cores: f64,
    program: String,
}

/// Returns true if the server starts programs for requests. Its workers wait for their ends then, in whatever state.
pub(super) fn starts_programs(case: &LoadEvidence<'_>, v: &ServerEvidence<'_>) -> bool {
    started(case, *v).is_some()
}

/// Returns the cores that ended programs used. A daemon that does not wait for its children (mod_cgid) gets none of
/// their time: then it is what no other process has used.
fn cores_of_programs(case: &LoadEvidence<'_>, v: &ServerEvidence<'_>) -> f64 {
    let unknown = case.busy_cores() - case.own_cores() - case.main.generator.others_cores;
    match v.seen.ended_children_cores {
        known if known > 0.0 => known,
        _ if !v.seen.programs.is_empty() => unknown.max(0.0),
        _ => 0.0,
    }
}

fn started<'a>(case: &LoadEvidence<'a>, v: ServerEvidence<'a>) -> Option<StartedPrograms<'a>> {
    let inside = case.inside(&v.about.server).filter(|i| i.requests >= 3.0);
    let calls = |sort: &str| inside.and_then(|i| i.calls.get(sort)).copied().unwrap_or(0.0);
    let traced = inside.and_then(|i| ["exec-program", "exec-shell"].iter().find_map(|sort| i.objects.get(*sort)));
    let running = v.seen.programs.iter().max_by(|a, b| a.1.total_cmp(b.1));
    let tasks = case.main.started_tasks.map_or(0.0, |n| n as f64 / case.main.answered.max(1) as f64);
    let by_trace = calls("exec") >= EXECUTED;
    let cores = cores_of_programs(case, &v);
    // The daemon of mod_cgid and fcgiwrap are traced by chance or never. A pipe of a log runs, and starts nothing.
    let by_children = tasks >= STARTED
        && running.is_some_and(|(_, n)| *n >= RUNNING)
        && cores >= USED_CORES
        && case.main.answered >= 20;
    let program = traced.filter(|_| by_trace).or(running.map(|(name, _)| name))?.clone();
    (by_trace || by_children).then(|| StartedPrograms {
        view: v,
        executed: calls("exec"),
        shells: calls("exec-shell"),
        tasks,
        cores,
        program,
    })
}

fn per_request(case: &LoadEvidence<'_>) -> Option<Finding> {
    let servers = case.servers().into_iter().filter(|v| !v.is(&["mariadb", "mysql", "postgresql"]));
    // The one that starts them, not one before it: of several, the one whose children use most.
    let found = servers.filter_map(|v| started(case, v)).max_by(|a, b| a.cores.total_cmp(&b.cores))?;
    let v = found.view;
    let answered = case.main.answered.max(1) as f64;
    let each_s = found.cores * case.main.duration_s / answered;
    // The servers' own time has no program in it that ended between two samples.
    let all_s = case.cpu_per_request_s().unwrap_or(0.0) + each_s;
    let shell = found.shells >= EXECUTED && found.executed >= found.shells;
    let through = if shell { ", through a shell" } else { "" };
    let known = found.executed >= EXECUTED;
    Some(
        finding(if known { 0.93 } else { 0.8 }, format!("{} starts {} for each request{through}", v.about.server, found.program))
            .of(&v)
            .evidence("trace", "programs executed a request", found.executed, EXECUTED)
            .evidence("trace", "of these, shells", found.shells, EXECUTED)
            .evidence("/proc/stat", "processes and threads started a request", found.tasks, STARTED)
            .evidence("processes", "children of another program that run, on average", v.seen.programs.values().sum::<f64>(), RUNNING)
            .evidence("/proc", "ms of processor time that they take a request", each_s * 1e3, 0)
            .evidence("/proc", "share of the processor time of a request", if all_s > 0.0 { each_s / all_s } else { 0.0 }, 0)
            .ruled_out("workers that are replaced and execute nothing (process-churn); children that stay, such as a pipe of a log")
            .expected(without_starting(case, each_s, all_s))
            .fix(Vec::new(), advice(&v, shell))
            .verify(format!("execve in lastdrop trace {}; requests/s of the page without the program", v.about.named)),
    )
}

fn advice(v: &ServerEvidence<'_>, shell: bool) -> String {
    let without_shell =
        if shell { "; without a shell (a list of arguments) one process less is started each time" } else { "" };
    let kept = match v.kind() {
        "apache" | "nginx" | "lighttpd" | "pid" => {
            "a process that stays instead of CGI: PHP-FPM, mod_perl or Starman (PSGI), gunicorn or uWSGI, FastCGI"
        }
        "php-fpm" => {
            "an extension or library instead of the program (Imagick for convert, an SMTP client for sendmail), a queue for what may come later, or a service that stays"
        }
        _ => "a library instead of the program, a queue for what may come later, or a worker process that stays",
    };
    format!("{kept}{without_shell}")
}

/// Expected gain of a process that stays. With full processors it is the programs' processor time; otherwise the time
/// for which a request of one user alone waits for them, and for Apache, which looks for their end every 47 ms.
fn without_starting(case: &LoadEvidence<'_>, each_s: f64, all_s: f64) -> Option<ExpectedGain> {
    let own_s = all_s - each_s;
    let (whole_s, theirs_s) = match case.alone_s().filter(|_| !case.cpu_full()) {
        Some(alone_s) if alone_s > own_s => (alone_s, alone_s - own_s),
        _ => (all_s, each_s),
    };
    let ratio = |share: f64| round(1.0 / (1.0 - (share * theirs_s / whole_s.max(1e-9)).clamp(0.0, 0.95)));
    let [least, likely, most] = OF_STARTING.map(ratio);
    Some(ExpectedGain {
        ratio: likely,
        interval: Some([least, most]),
        reason: format!(
            "of {} of a request the programs take {}, {} of it processor time; the servers take {} without them. To start a program is most of its time where it does little",
            show_us(whole_s * 1e6),
            show_us(theirs_s * 1e6),
            show_us(each_s * 1e6),
            show_us(own_s * 1e6)
        ),
    })
}
