//! The settings of a real HAProxy with two servers: read, changed in its own files, refused, and restored whatever happens;
//! with a master and without.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::common::haproxy::Haproxy;
use crate::common::{CommandOutput, Folder, KILLED, end_at, end_at_each_step, free_port, get, signal, wait_until};
use serde_json::Value;

fn start_sweep(folder: &Folder, plan: &str) -> Child {
    let args = ["sweep", plan, "--live", "--quiet", "--json", "-"];
    folder.lastdrop(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs")
}

fn end(child: Child) -> CommandOutput {
    CommandOutput::of(child.wait_with_output().expect("ends"), &[])
}

#[test]
fn settings_are_those_that_it_says_itself() {
    let folder = Folder::new();
    let haproxy = Haproxy::start(&folder, &["-W"]);
    let knobs = folder.json(&["knobs", &haproxy.name()], 0);
    let row = |knobs: &Value, name: &str| {
        let rows = knobs["knobs"].as_array().expect("rows");
        rows.iter().find(|row| row["name"] == name).cloned().unwrap_or_else(|| panic!("{name}: {knobs:#}"))
    };
    let value = |name: &str| row(&knobs, name)["value"].to_string().trim_matches('"').to_string();
    let said = |name: &str| haproxy.info(name).expect("it says so").to_string();
    assert_eq!((value("maxconn"), value("nbthread")), (said("Maxconn"), said("Nbthread")));
    let stat = |proxy: &str, part: &str, column: &str| haproxy.stat(proxy, part, column).expect("it says so");
    assert_eq!(value("fe_main.maxconn"), stat("fe_main", "FRONTEND", "slim"));
    assert_eq!(value("be_app/app1.maxconn"), stat("be_app", "app1", "slim"));
    assert_eq!(value("be_app/app2.maxconn"), stat("be_app", "app2", "slim"));
    assert_eq!(value("be_app.balance"), stat("be_app", "BACKEND", "algo"));
    assert_eq!((value("be_app/app2.maxconn"), value("be_app.http-reuse")), ("50".into(), "safe".into()));
    let from = |name: &str| row(&knobs, name)["source"].as_str().expect("text").to_string();
    assert!(from("maxconn").ends_with("haproxy.cfg:3") && from("nbthread").ends_with("haproxy.cfg:4"), "{knobs:#}");
    assert!(from("be_app/app1.maxconn").ends_with("conf.d/site.cfg:11"), "{knobs:#}");
    assert!(from("be_app/app2.maxconn").ends_with("conf.d/site.cfg:10"), "{knobs:#}");
    assert_eq!(
        (from("fe_main.maxconn"), &row(&knobs, "nbthread")["needs"]),
        ("the global maxconn".into(), &"reload".into())
    );
    assert!(knobs["knobs"].as_array().expect("rows").iter().all(|row| row["name"] != "never.maxconn"), "{knobs:#}");
    assert_eq!(knobs["notes"].as_array().map(Vec::len), Some(0), "{knobs:#}");

    // Its frontends count requests; reading its settings makes none.
    let url = format!("http://127.0.0.1:{}/", haproxy.port);
    let look = || folder.json(&["watch", &haproxy.name(), "--once", "--interval", "300ms"], 0);
    assert_eq!((&look()["requests_rps"], &look()["queued"]), (&0.0.into(), &0.into()));
    let mut load = folder.lastdrop(&["run", &url, "-c", "100", "-d", "60s", "--quiet"]).spawn().expect("runs");
    let mut looks = Vec::new();
    wait_until("a queue before its servers", || {
        looks.push(look());
        looks.iter().any(|l| l["queued"].as_u64() > Some(0) && l["requests_rps"].as_f64() > Some(0.0))
    });
    signal(&load, libc::SIGTERM);
    load.wait().expect("ends");

    let text = fs::read_to_string(haproxy.config()).expect("readable");
    fs::write(haproxy.config(), text.replace("nbthread 2", "nbthread 1")).expect("written");
    let knobs = folder.json(&["knobs", &haproxy.name()], 0);
    assert_eq!(row(&knobs, "nbthread")["value"], 2, "it has not read that yet");
    assert!(knobs["notes"].to_string().contains("has changed since"), "{knobs:#}");

    let plain = Folder::new();
    let other = Haproxy::start(&plain, &["-D"]);
    let text = fs::read_to_string(other.config()).expect("readable");
    fs::write(other.config(), text.replace("stats socket", "# ")).expect("written");
    let knobs = folder.json(&["knobs", &other.name()], 0);
    assert_eq!(row(&knobs, "maxconn")["needs"], "restart", "{knobs:#}");
    let notes = knobs["notes"].to_string();
    assert!(notes.contains("no stats socket") && notes.contains("it has no master"), "{knobs:#}");
    let unnamed = folder.run(&["knobs", "haproxy"]);
    assert!(unnamed.code == 1 && unnamed.stderr.contains("could be any of"), "{unnamed:?}");
}

/// New connections and requests of each of the two servers.
type Counts = [[usize; 2]; 2];

/// Observations of HAProxy with certain settings.
#[derive(Debug, Default)]
struct Observation {
    threads: BTreeSet<usize>,
    /// Maximum of client connections, and of simultaneous requests at the first server.
    clients: u64,
    most: usize,
    counts: Counts,
}

/// Sweeps, and returns observations for each configuration.
fn sweep(folder: &Folder, haproxy: &Haproxy, settings: &str) -> BTreeMap<String, Observation> {
    let plan = haproxy.plan(folder, "1s", settings);
    let mut child = start_sweep(folder, &plan);
    let mut seen: BTreeMap<String, Observation> = BTreeMap::new();
    let key = || {
        let text = fs::read_to_string(haproxy.config()).ok()? + &fs::read_to_string(haproxy.site()).ok()?;
        // The running process may not have read the file yet.
        let is_read = haproxy.info("Nbthread").is_some_and(|n| text.contains(&format!("nbthread {n}\n")))
            && haproxy.info("Maxconn").is_some_and(|n| text.contains(&format!("maxconn  {n} ")))
            && haproxy.stat("be_app", "app1", "slim").is_some_and(|n| text.contains(&format!(" maxconn {n}   # few")));
        Some((text, haproxy.info("Pid").filter(|_| is_read)?))
    };
    let counts = || -> Counts { [haproxy.behind[0].counts(), haproxy.behind[1].counts()] };
    let mut before: Option<((String, u64), Counts)> = None;
    while child.try_wait().expect("waited for").is_none() {
        let (now, clients) = (counts(), haproxy.info("CurrConns"));
        let most = haproxy.behind[0].most.swap(0, SeqCst);
        let after = key();
        if let (Some((key, earlier)), Some(after)) = (&before, &after)
            && key == after
        {
            let of = seen.entry(key.0.clone()).or_default();
            of.threads.insert(haproxy.threads(key.1));
            of.clients = of.clients.max(clients.unwrap_or(0));
            of.most = of.most.max(most);
            for server in 0..2 {
                for what in 0..2 {
                    of.counts[server][what] += now[server][what] - earlier[server][what];
                }
            }
        }
        before = after.map(|key| (key, now));
        thread::sleep(Duration::from_millis(20));
    }
    let done = end(child);
    assert_eq!(done.code, 0, "{done:?}");
    // A configuration seen only in passing is not used.
    seen.retain(|_, of| of.counts[0][1] + of.counts[1][1] > 20);
    seen
}

/// Sets each knob to two values and asserts that it has its effect.
fn acts(flags: &[&'static str]) {
    let folder = Folder::new();
    let haproxy = Haproxy::start(&folder, flags);
    let (tree, masters) = (haproxy.tree(), haproxy.masters());
    let with = |seen: &BTreeMap<String, Observation>, part: &str, check: &dyn Fn(&Observation) -> bool| {
        let all: Vec<&Observation> = seen.iter().filter(|(text, _)| text.contains(part)).map(|(_, of)| of).collect();
        assert!(!all.is_empty() && all.into_iter().all(check), "{part}: {seen:#?}");
    };
    let variants = "\
        [[variant]]\nname = 'narrow'\n\
        settings = { nbthread = 1, maxconn = 5, 'be_app/app1.maxconn' = 1, 'be_app.http-reuse' = 'never' }\n\
        [[variant]]\nname = 'wide'\n\
        settings = { nbthread = 2, maxconn = 100, 'be_app/app1.maxconn' = 3, 'be_app.http-reuse' = 'always' }\n\
        [[variant]]\nname = 'source'\nsettings = { 'be_app.balance' = 'source' }\n";
    let seen = sweep(&folder, &haproxy, variants);
    with(&seen, "nbthread 1\n", &|of| of.threads == BTreeSet::from([1]));
    with(&seen, "nbthread 2\n", &|of| of.threads == BTreeSet::from([2]));
    with(&seen, "maxconn  5 ", &|of| of.clients <= 5);
    with(&seen, "maxconn  100 ", &|of| of.clients > 5);
    with(&seen, " maxconn 1   # few", &|of| of.most <= 1);
    with(&seen, " maxconn 3   # few", &|of| of.most <= 3 && of.most > 1);
    let sum = |of: &Observation, what: usize| of.counts[0][what] + of.counts[1][what];
    // Each connection of a client opens a connection to a server, or reuses one.
    with(&seen, "http-reuse never", &|of| sum(of, 0) * 5 > sum(of, 1) * 4);
    with(&seen, "http-reuse always", &|of| sum(of, 0) * 2 < sum(of, 1));
    // By turns, if nothing else is set.
    with(&seen, "http-reuse", &|of| of.counts[0][1] > 0 && of.counts[1][1] > 0);
    with(&seen, "balance source", &|of| of.counts[0][1] == 0 || of.counts[1][1] == 0);

    wait_until("it is as it was", || haproxy.masters().len() == 1 && get(haproxy.port, "/").is_some());
    assert_eq!((haproxy.tree(), folder.journal()), (tree, None));
    let now = haproxy.masters();
    assert_eq!(now[0].1, masters[0].1);
    assert_eq!(now == masters, flags.contains(&"-W"), "only one without a master is started again");
    assert_eq!((haproxy.info("Nbthread"), haproxy.info("Maxconn")), (Some(2), Some(200)));
}

#[test]
fn a_sweep_acts_on_one_with_a_master() {
    acts(&["-W"]);
}

#[test]
fn a_sweep_acts_on_one_without_a_master() {
    acts(&["-D"]);
}

#[test]
fn one_that_has_locked_itself_up_is_started_by_root_again() {
    let folder = Folder::new();
    let jail = folder.join("jail");
    fs::create_dir(&jail).expect("a folder");
    // The pid file, which only root could write, shows that root has started it.
    let pid_file = folder.join("pid");
    let global = format!("\tuser nobody\n\tchroot {}\n\tdaemon\n\tpidfile {}\n", jail.display(), pid_file.display());
    let haproxy = Haproxy::start_by(&folder, &[], &[], &global, "");
    let tree = haproxy.tree();
    let looks = || {
        let pid = haproxy.info("Pid").expect("it runs");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("readable");
        let line = |name: &str| status.lines().find(|line| line.starts_with(name)).map(str::to_string);
        (haproxy.threads(pid), line("Uid:"), fs::read_link(format!("/proc/{pid}/root")).ok(), haproxy.masters().len())
    };
    let before = looks();
    assert_eq!((before.0, before.2.as_ref(), before.3), (2, Some(&jail), 1));
    let plan = haproxy.plan(&folder, "200ms", "nbthread = 1");
    let done = end(start_sweep(&folder, &plan));
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!((haproxy.tree(), looks()), (tree, before));
}

#[test]
fn one_that_nothing_shows_to_be_roots_is_not_stopped() {
    let folder = Folder::new();
    let haproxy = Haproxy::start_by(&folder, &[], &[], "\tuser nobody\n\tdaemon\n", "");
    let before = haproxy.masters();
    let done = end(start_sweep(&folder, &haproxy.plan(&folder, "200ms", "nbthread = 1")));
    assert!(done.code != 0 && done.stderr.contains("started as root by nobody that can be shown"), "{done:?}");
    assert!(haproxy.masters() == before && folder.journal().is_none(), "it runs on as it was");
}

#[test]
fn what_it_would_not_take_is_refused_in_its_words_and_nothing_is_changed() {
    let folder = Folder::new();
    let more = format!("  bind 127.0.0.1:{} thread 2\n", free_port());
    let launcher =
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "prlimit", "--nofile=2000:2000", "--"];
    fs::create_dir_all(folder.join("haproxy")).expect("a folder");
    std::os::unix::fs::chown(folder.join("haproxy"), Some(65_534), Some(65_534)).expect("its owner");
    let haproxy = Haproxy::start_by(&folder, &launcher, &["-W"], "", &more);
    // The files of a user's server are changed with that user's rights, and stay that user's.
    let own = Command::new("chown").args(["-R", "65534:65534"]).arg(folder.join("haproxy")).status();
    assert!(own.expect("chown runs").success());
    let before = (haproxy.tree(), haproxy.masters(), haproxy.info("Pid"));
    let sweep = |settings: &str| {
        let plan = haproxy.plan(&folder, "200ms", settings);
        folder.run(&["sweep", &plan, "--live", "--json", "-"])
    };
    for (settings, words) in [
        ("nbthread = 1", "contains threads that belong to no group"),
        ("maxconn = 5000", "it may have 2000 at most and is not root"),
        ("'fe_main.maxconn' = 500", "the global maxconn is 200"),
    ] {
        let refused = sweep(settings);
        assert!(refused.stdout.contains(words), "{settings}: {refused:?}");
    }
    let unknown = sweep("'be_app/app3.maxconn' = 5");
    assert!(unknown.code == 2 && unknown.stderr.contains("it knows maxconn, nbthread"), "{unknown:?}");
    let wrong = sweep("'be_app.balance' = 'best'");
    assert!(wrong.code == 2 && wrong.stderr.contains("is one of roundrobin"), "{wrong:?}");
    // Its frontends count requests of others.
    let stop = AtomicBool::new(false);
    let busy = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                let _ = get(haproxy.port, "/visitor");
                thread::sleep(Duration::from_millis(20));
            }
        });
        let plan = haproxy.plan(&folder, "200ms", "maxconn = 100");
        let busy = folder.run(&["sweep", &plan, "--quiet"]);
        stop.store(true, SeqCst);
        busy
    });
    assert!(busy.code == 1 && busy.stderr.contains("is serving other people"), "{busy:?}");
    assert_eq!((haproxy.tree(), haproxy.masters(), haproxy.info("Pid")), before);

    // A used address shows only at the reload. No client connects from this one, so nothing else takes it once it is free.
    let taken = TcpListener::bind("127.0.9.9:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let site = fs::read_to_string(haproxy.site()).expect("readable");
    let longer = format!("{site}frontend taken\n  bind 127.0.9.9:{port}\n  default_backend be_app\n");
    fs::write(haproxy.site(), &longer).expect("written");
    let kept = sweep("'be_app.balance' = 'leastconn'");
    assert!(kept.code == 1 && kept.stderr.contains("runs on") && kept.stderr.contains("frontend taken"), "{kept:?}");
    assert!(get(haproxy.port, "/").is_some() && folder.journal().is_some(), "{kept:?}");
    drop(taken);
    let restored = folder.run(&["restore"]);
    assert!(restored.code == 0 && folder.journal().is_none(), "{restored:?}");
    assert_eq!(fs::read_to_string(haproxy.site()).expect("readable"), longer);

    fs::write(haproxy.site(), format!("{site}  oops 1\n")).expect("written");
    let before = (haproxy.tree(), haproxy.info("Pid"));
    let broken = sweep("nbthread = 2");
    assert!(broken.code == 1 && broken.stderr.contains("unknown keyword 'oops'"), "{broken:?}");
    assert_eq!((haproxy.tree(), haproxy.info("Pid"), folder.journal()), (before.0, before.1, None));
}

/// After a sweep that is killed at any step, a restore leaves nothing changed.
fn is_put_back(flags: &[&'static str]) {
    let folder = Folder::new();
    let haproxy = Haproxy::start(&folder, flags);
    let (tree, line) = (haproxy.tree(), haproxy.masters()[0].1.clone());
    let plan = haproxy.plan(&folder, "20ms", "nbthread = 1");
    let is_as_found = |moment: &str| {
        assert_eq!((haproxy.tree(), folder.journal()), (tree.clone(), None), "{moment}");
        let is_as_before = || {
            let masters = haproxy.masters();
            masters.len() == 1 && masters[0].1 == line && haproxy.info("Nbthread") == Some(2)
        };
        wait_until("it is as it was", || is_as_before() && get(haproxy.port, "/").is_some());
        assert_eq!(haproxy.info("Maxconn"), Some(200), "{moment}");
        let workers = usize::from(flags.contains(&"-W"));
        wait_until("no process more", || haproxy.processes().len() == 1 + workers);
    };
    let sweep = ["sweep", &plan, "--live", "--quiet"];
    let steps = end_at_each_step(&folder, &sweep, is_as_found);
    assert!(steps >= 12, "{steps}");

    // The machine had too little memory.
    assert_eq!(end_at(&folder, &sweep, steps / 2).code, KILLED);
    haproxy.end(libc::SIGKILL);
    let restored = folder.run(&["restore"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    is_as_found("killed meanwhile");
}

#[test]
fn a_killed_sweep_is_put_back_with_a_master() {
    is_put_back(&["-W", "-D"]);
}

#[test]
fn a_killed_sweep_is_put_back_without_a_master() {
    is_put_back(&["-db"]);
}

#[test]
fn a_tune_without_anything_to_try_says_so() {
    let folder = Folder::new();
    let haproxy = Haproxy::start(&folder, &["-W"]);
    let url = format!("http://127.0.0.1:{}/", haproxy.port);
    let short = ["-c", "2", "-d", "150ms", "--warm-up", "50ms", "--live", "--quiet"];
    let nothing = ["--only", "nbthread", "--not", "nbthread"];
    let document = folder.json(&[&["tune", &haproxy.name(), "--url", &url], &short[..], &nothing].concat(), 0);
    // Without a trial the gain is unknown.
    assert!(
        document["verdict"] == "inconclusive" && document["because"].to_string().contains("nothing to try"),
        "{document:#}"
    );
    assert!(document["trials"].as_array().expect("trials").iter().all(|t| t["role"] == "baseline"), "{document:#}");
    assert_eq!(folder.journal(), None);
}
