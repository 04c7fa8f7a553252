//! Servers that others use, too: visitors and health checks, also during trials, processes of other users, and guarded pools.
//! All with real servers; it needs root, as in `./x test`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::{Apache, CommandOutput, Folder, Target, free_port, get, n, processes_with, signal, wait_until};
use serde_json::Value;

/// A thread that repeats something until it is stopped.
struct Repeater(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Repeater {
    fn start(every: Duration, mut act: impl FnMut() + Send + 'static) -> Repeater {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                act();
                thread::sleep(every);
            }
        });
        Repeater(stop, Some(thread))
    }
}

impl Drop for Repeater {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _ = self.1.take().map(JoinHandle::join);
    }
}

/// The shortest command that changes a server and restores it: it restarts the server with its present settings.
fn change(folder: &Folder, apache: &Apache, more: &[&str]) -> CommandOutput {
    let (name, url) = (apache.name(), apache.url("/perl/light.pl"));
    let mut args = vec!["size", &name, "--variant", "plain=", "--url", &url, "--quiet"];
    args.extend(more);
    folder.run(&args)
}

/// Thirty workers of which at most ten may be idle: the master ends one per second.
fn shrinking(text: &str) -> String {
    text.replace("StartServers 5", "StartServers 30").replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0")
}

#[test]
fn what_apache_asks_of_itself_is_no_visitor_and_a_visitor_is_one() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, |t| shrinking(&t));
    let asks_itself = || get(apache.port, "/server-status").is_some_and(|page| page.contains("OPTIONS * HTTP/1.0"));
    let url = apache.url("/perl/light.pl");
    let done = folder.run(&["run", &url, "-c", "20", "-n", "300", "--keepalive", "off", "--quiet"]);
    assert_eq!(done.code, 0, "{done:?}");
    // The second follows the first at once, and the restored server shrinks again.
    for before in ["a load", "a change"] {
        wait_until("a look of Apache at itself", asks_itself);
        let done = change(&folder, &apache, &[]);
        assert_eq!(done.code, 0, "after {before}: {done:?}");
    }
    let port = apache.port;
    let visitor = Repeater::start(Duration::from_millis(300), move || drop(get(port, "/index.html")));
    let before = apache.masters();
    let done = change(&folder, &apache, &[]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("--live") && done.stderr.contains("GET /index.html from 127.0.0.1"), "{done:?}");
    assert_eq!(apache.masters(), before);
    drop(visitor);
}

#[test]
fn without_a_status_page_apache_is_told_from_visitors_too() {
    let folder = Folder::new();
    let apache =
        Apache::start_with(&folder, |t| shrinking(&t).replace("SetHandler server-status", "Require all granted"));
    let done = change(&folder, &apache, &[]);
    assert_eq!(done.code, 0, "{done:?}");
    let port = apache.port;
    let visitor = Repeater::start(Duration::from_millis(300), move || drop(get(port, "/index.html")));
    let done = change(&folder, &apache, &[]);
    assert!(done.code == 1 && done.stderr.contains("from 127.0.0.1"), "{done:?}");
    drop(visitor);
}

#[test]
fn a_checker_of_health_is_named_and_can_be_left_out_of_account() {
    let folder = Folder::new();
    let apache = Apache::start(&folder);
    let url = apache.url("/health");
    let checker = Repeater::start(Duration::from_millis(500), move || {
        let _ = Command::new("curl").args(["-s", "--interface", "127.0.0.9", &url]).stdout(Stdio::null()).status();
    });
    let refused = change(&folder, &apache, &["--ignore-source", "127.0.0.8"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    for part in ["GET /health from 127.0.0.9", "--ignore-source", "--live"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    let done = change(&folder, &apache, &["--ignore-source", "127.0.0.8", "--ignore-source", "127.0.0.9"]);
    assert_eq!(done.code, 0, "{done:?}");
    drop(checker);
}

#[test]
fn directives_come_into_force_by_what_they_need_and_unknown_ones_do_not_cut_visitors_off() {
    let folder = Folder::new();
    let conf_d = folder.join("apache/conf.d");
    fs::create_dir_all(&conf_d).expect("made");
    let apache = Apache::start_with(&folder, |text| format!("{text}\nIncludeOptional {}/*.conf\n", conf_d.display()));
    let backlog = |port: u16| {
        let ss = Command::new("ss").args(["-Hltn", &format!("sport = :{port}")]).output().expect("ss runs");
        let line = String::from_utf8_lossy(&ss.stdout).into_owned();
        line.split_whitespace().nth(2).and_then(|n| n.parse::<usize>().ok())
    };
    let before = (apache.tree(), backlog(apache.port));
    assert_eq!(before.1, Some(511));
    let pid = || fs::read_to_string(folder.join("apache/logs/apache2.pid")).expect("a pid");
    let trace = |directives: &str| {
        let (name, url) = (apache.name(), apache.url("/index.html"));
        folder.run(&["trace", &name, "--url", &url, "-n", "5", "--with", directives, "--live"])
    };
    // A listening socket keeps its backlog at a reload.
    let smallest = Arc::new(AtomicUsize::new(usize::MAX));
    let (seen, port) = (smallest.clone(), apache.port);
    let look = Repeater::start(Duration::from_millis(30), move || {
        seen.fetch_min(backlog(port).unwrap_or(usize::MAX), Ordering::Relaxed);
    });
    let done = trace("ListenBacklog 77");
    drop(look);
    assert!(done.code == 0 && done.stdout.contains("started afresh"), "{done:?}");
    assert_eq!(smallest.load(Ordering::Relaxed), 77, "it was in force");
    assert_eq!((apache.tree(), backlog(apache.port)), before, "put back");
    // A setting that needs only a reload is reloaded; an unknown one is refused before anything is changed.
    let master = pid();
    let done = trace("EnableMMAP Off");
    assert_eq!((done.code, pid()), (0, master.clone()), "{done:?}");
    let done = trace("AllowEncodedSlashes On");
    assert!(done.code == 1 && done.stderr.contains("AllowEncodedSlashes"), "{done:?}");
    assert_eq!((apache.tree(), pid()), (before.0, master));
}

#[test]
fn a_limit_below_what_a_fresh_worker_has_is_refused_by_the_guard() {
    let folder = Folder::new();
    let guard = |target: &Target, limit: &str| {
        let name = format!("target@{}", target.url());
        folder.run(&["guard", &name, "--max-private", limit, "--act", "-d", "15s", "--every", "300ms"])
    };
    let refused = |done: &CommandOutput| {
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.stderr.contains("--max-private") && done.stderr.contains("private)"), "{done:?}");
    };
    // Workers that have 20 MB before they serve anything: none of them is replaced.
    let target = Target::start(&folder, &["--workers", "3", "--memory", "20M"]);
    wait_until("workers", || target.scoreboard().is_some_and(|s| s.len() == 3 && !s.contains(['.', 'S'])));
    let done = guard(&target, "10M");
    refused(&done);
    assert_eq!(target.counts()["forks"], 3, "{done:?}");
    // Workers that grow by 8 MB at their first request: noticed after a few.
    let target = Target::start(&folder, &["--workers", "3", "--leak", "8M"]);
    let port = target.port;
    let visitors = Repeater::start(Duration::from_millis(50), move || drop(get(port, "/")));
    wait_until("workers that have served", || target.counts()["requests"].as_u64() > Some(20));
    refused(&guard(&target, "5M"));
    assert!(target.counts()["forks"].as_u64() < Some(15), "{}", target.counts());
    drop(visitors);
}

#[test]
fn a_guarded_pool_is_whole_before_the_next_worker_goes() {
    let folder = Folder::new();
    // Apache checks once per second whether workers are missing.
    let apache = Apache::start_with(&folder, |t| {
        t.replace("StartServers 5", "StartServers 8")
            .replace("MinSpareServers 5", "MinSpareServers 8")
            .replace("MaxSpareServers 10", "MaxSpareServers 9")
            .replace("MaxRequestWorkers 50", "MaxRequestWorkers 8")
    });
    let config = apache.config().display().to_string();
    wait_until("eight workers", || processes_with(&config).len() == 9);
    let fewest = Arc::new(AtomicUsize::new(usize::MAX));
    let seen = fewest.clone();
    let look = Repeater::start(Duration::from_millis(20), move || {
        // The guard's command line contains it, too.
        let servers = || -> Vec<i32> {
            processes_with(&config)
                .into_iter()
                .filter(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("apache2")))
                .collect()
        };
        // Reading /proc takes time: a process that starts behind the reader and one that ends before it are both missing. Two equal
        // readings are correct.
        let first = servers();
        if first == servers() {
            seen.fetch_min(first.len(), Ordering::Relaxed);
        }
    });
    let done = folder.run(&["guard", &apache.name(), "--max-age", "1s", "--every", "200ms", "--act", "-d", "8s"]);
    drop(look);
    assert!(done.code == 0 && done.stdout.matches("has left").count() >= 2, "{done:?}");
    assert_eq!(fewest.load(Ordering::Relaxed), 8, "the master and seven: {done:?}");
}

#[test]
fn a_guard_outlives_its_server_and_its_log_and_the_server_outlives_a_killed_guard() {
    let folder = Folder::new();
    let settings = "workers = 3\nservice = '100us'\n";
    let target = Target::with_config(&folder, settings);
    let (name, port) = (target.name(), target.port);
    // Writing to /dev/full fails like on a full disk.
    let args = ["guard", &name, "--max-age", "1s", "--every", "100ms", "--act", "--log", "/dev/full"];
    let start = || folder.lastdrop(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    let forks = || n(&target.counts()["forks"]);
    let mut guard = start();
    wait_until("a replaced worker", || forks() > 3);
    signal(&guard, libc::SIGKILL);
    guard.wait().expect("ended");
    // Nothing is left half done: all workers are there, and nothing has to be restored.
    wait_until("a whole pool", || target.scoreboard().is_some_and(|s| s.len() == 3 && !s.contains(['.', 'S'])));
    assert!(folder.journal().is_none());

    let guard = start();
    let before = forks();
    wait_until("another replaced worker", || forks() > before);
    // The server dies while the guard acts, and the administrator starts it again.
    let config = folder.join("target.toml");
    for pid in processes_with(&config.display().to_string()) {
        if pid != guard.id() as i32 {
            // SAFETY: a plain call on a process of ours.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
    wait_until("its end", || get(port, "/").is_none());
    let again = Target::with_config(&folder, settings);
    wait_until("workers replaced again", || n(&again.counts()["forks"]) > 3);
    signal(&guard, libc::SIGINT);
    let done = CommandOutput::of(guard.wait_with_output().expect("ends"), &args);
    assert!(done.code == 1 && done.stderr.contains("the log could not be written"), "{done:?}");
    for said in ["the server was restarted", "has left"] {
        assert!(done.stdout.contains(said), "{said}: {done:?}");
    }
}

#[test]
fn another_users_workers_are_not_taken_for_the_master() {
    let folder = Folder::new();
    let (port, config, dir) = (free_port(), folder.join("nginx.conf"), folder.path().display().to_string());
    // The workers belong to the user who runs watch, their master to root.
    let text = format!(
        "user www-data;\nworker_processes 2;\npid {dir}/nginx.pid;\nerror_log {dir}/error.log;\nevents {{}}\n\
         http {{\n access_log off;\n server {{\n  listen 127.0.0.1:{port};\n  location / {{ return 200 ok; }}\n  \
         location = /nginx_status {{ stub_status; }}\n }}\n}}\n"
    );
    fs::write(&config, text).expect("written");
    let started =
        Command::new("/usr/sbin/nginx").arg("-c").arg(&config).output().expect("nginx (./x test installs it)");
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    wait_until("nginx", || get(port, "/").is_some());
    let pid = fs::read_to_string(folder.join("nginx.pid")).expect("its pid").trim().parse::<i32>().expect("a number");
    // A copy of the program that this user can run.
    let program = folder.join("lastdrop");
    fs::copy(env!("CARGO_BIN_EXE_lastdrop"), &program).expect("copied");
    let as_user = |args: &[&str]| {
        let output = Command::new(&program).args(args).env("LASTDROP_STATE", "/nonexistent").uid(33).gid(33).output();
        CommandOutput::of(output.expect("runs"), args)
    };
    let name = format!("nginx@http://127.0.0.1:{port}/");
    let watched = as_user(&["watch", &name, "--once", "--interval", "300ms", "--json", "-"]);
    let run =
        as_user(&["run", &format!("http://127.0.0.1:{port}/"), "-c", "1", "-d", "4s", "--no-store", "--json", "-"]);
    // SAFETY: a plain call on the server that was started above.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    assert_eq!(watched.code, 0, "{watched:?}");
    let watch: Value = serde_json::from_str(&watched.stdout).expect("JSON");
    assert_eq!((&watch["master"], watch["workers"].as_array().map(Vec::len)), (&pid.into(), Some(2)), "{watch:#}");
    // It is also found by its socket.
    let run: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    assert_eq!(run["server"]["master"], pid, "{:#}", run["server"]);
}

#[test]
fn short_blocks_become_long_enough_for_answers() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 1\nservice = '60ms'");
    let out = folder.join("tune.json").display().to_string();
    let (name, url) = (target.name(), target.url());
    let mut args = vec!["tune", &name, "--url", &url, "-c", "4", "-d", "300ms", "--warm-up", "50ms", "--json", &out];
    args.extend(["--only", "workers"]);
    let mut tune = folder.lastdrop(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("runs");
    let mut errors = std::io::BufReader::new(tune.stderr.take().expect("piped"));
    let mut told = String::new();
    // Two measurements of the baseline, the second in a longer block.
    while told.matches("as it is").count() < 2 {
        let read = std::io::BufRead::read_line(&mut errors, &mut told).expect("text");
        assert!(read > 0, "it ended early: {told}");
    }
    signal(&tune, libc::SIGINT);
    thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
    assert_eq!(tune.wait().expect("ends").code(), Some(130), "{told}");
    assert!(told.contains("a block of 300ms has") && told.contains("for at least 30"), "{told}");
    let tune: Value = serde_json::from_str(&fs::read_to_string(&out).expect("written")).expect("JSON");
    let trials = tune["trials"].as_array().expect("trials");
    assert_eq!((&trials[0]["role"], &trials[0]["valid"]), (&"baseline".into(), &false.into()), "{trials:#?}");
    assert!(trials[0]["why"].as_str().expect("text").contains("too few"), "{trials:#?}");
    assert_eq!((&trials[1]["role"], &trials[1]["valid"]), (&"baseline".into(), &true.into()), "{trials:#?}");
}
