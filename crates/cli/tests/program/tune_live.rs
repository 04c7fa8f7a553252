//! A tune of a server in use, and the watch after a tune, which restores the old settings if the server gets worse.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::servers::{Daemon, Fpm, children_of, nginx, open_folder, php, php_site};
use crate::common::{CommandOutput, Folder, Target, free_port, get, n, number, processes_with, signal, wait_until};
use serde_json::Value;

/// nginx with a log that has times, and a pool of two whose page sleeps for the time in a file. If the file says 0, the page
/// fails while the settings are not the original ones.
struct Site {
    folder: Folder,
    fpm: Fpm,
    _nginx: Daemon,
    port: u16,
}

const WORKERS: usize = 2;
const TIMES: &str = "log_format timed escape=json '{\"time\":\"$time_iso8601\",\"method\":\"$request_method\",\
                     \"uri\":\"$request_uri\",\"status\":\"$status\",\"request_time\":\"$request_time\",\"remote_addr\":\"$remote_addr\"}';";

impl Site {
    fn start() -> Site {
        let folder = Folder::new();
        // A reload waits for the end of requests.
        let lines = "pm.status_path = /status\n[global]\nprocess_control_timeout = 10s";
        let fpm = Fpm::start_in(&folder, WORKERS, lines, true);
        let (port, root) = (free_port(), open_folder(&folder, "docs"));
        let page = format!(
            "$ms = (int)file_get_contents('{}'); usleep(1000 * $ms); \
             if ($ms === 0 && file_exists('{}')) http_response_code(500); echo 'page';",
            folder.join("ms").display(),
            folder.join("pool.d/zz-lastdrop.conf").display()
        );
        php(&root, "page.php", &page);
        let log = format!(" server {{\n  access_log {} timed;\n", folder.join("access.log").display());
        let server = php_site(port, &root, &fpm.socket).replacen(" server {\n", &log, 1);
        let nginx = nginx(&folder, &format!("{TIMES}\n{server}"), port);
        let site = Site { folder, fpm, _nginx: nginx, port };
        site.takes(30);
        wait_until("a page", || get(port, "/page.php").is_some_and(|text| text.contains("page")));
        site
    }

    /// Sets the milliseconds that the page takes; with 0 it fails with the settings of a tune.
    fn takes(&self, ms: u32) {
        let new = self.folder.join("new");
        fs::write(&new, ms.to_string()).expect("written");
        fs::rename(new, self.folder.join("ms")).expect("renamed");
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/page.php", self.port)
    }

    fn names(&self) -> [String; 2] {
        [format!("nginx:{}", self.folder.join("nginx.conf").display()), self.fpm.name()]
    }

    fn pool(&self) -> usize {
        children_of(self.fpm.master())
    }

    fn ours(&self) -> PathBuf {
        self.folder.join("pool.d/zz-lastdrop.conf")
    }

    fn is_as_it_was(&self) {
        wait_until("the pool that it had", || self.pool() == WORKERS);
        assert!(!self.ours().exists() && self.folder.journal().is_none());
    }
}

/// Users of a site, each sending one request after the other until they are stopped.
struct Visitors {
    over: Arc<AtomicBool>,
    visits: Arc<AtomicU64>,
    failures: Arc<AtomicU64>,
    all: Vec<JoinHandle<()>>,
}

impl Visitors {
    fn come(site: &Site, count: usize) -> Visitors {
        let (over, visits, failures) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let one = |_| {
            let (over, visits, failures) = (over.clone(), visits.clone(), failures.clone());
            let port = site.port;
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    visits.fetch_add(1, Ordering::Relaxed);
                    if !get(port, "/page.php").is_some_and(|body| body.contains("page")) {
                        failures.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        };
        let all = (0..count).map(one).collect();
        Visitors { over, visits, failures, all }
    }

    /// The numbers of visits and of failed ones.
    fn leave(mut self) -> (u64, u64) {
        self.over.store(true, Ordering::Relaxed);
        self.all.drain(..).for_each(|one| one.join().expect("ends"));
        (self.visits.load(Ordering::Relaxed), self.failures.load(Ordering::Relaxed))
    }
}

impl Drop for Visitors {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// A running tune, and its output.
struct Tune {
    child: Child,
    told: Option<JoinHandle<Vec<String>>>,
    watches: Arc<AtomicBool>,
    document: PathBuf,
}

impl Tune {
    fn start(folder: &Folder, args: &[&str]) -> Tune {
        let document = folder.join("tune.json");
        let _ = fs::remove_file(&document);
        let out = document.display().to_string();
        let mut child = folder
            .lastdrop(&[args, &["--json", &out]].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let watches = Arc::new(AtomicBool::new(false));
        let (lines, seen) = (BufReader::new(child.stderr.take().expect("piped")).lines(), watches.clone());
        let told = thread::spawn(move || {
            let mut all = Vec::new();
            for line in lines.map_while(Result::ok) {
                if line.contains("in force and watched") {
                    seen.store(true, Ordering::Relaxed);
                }
                all.push(line);
            }
            all
        });
        Tune { child, told: Some(told), watches, document }
    }

    /// Waits until the tune watches the better settings, longer than for other things.
    fn wait_for_watch(&mut self) {
        while !self.watches.load(Ordering::Relaxed) {
            if let Ok(Some(code)) = self.child.try_wait() {
                panic!("{code}: {:?} {:?}", self.told.take().map(JoinHandle::join), fs::read_to_string(&self.document));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn end(mut self) -> (Option<i32>, Value) {
        let code = self.child.wait().expect("ends").code();
        let told = self.told.take().map(|told| told.join().expect("read"));
        let text = fs::read_to_string(&self.document).unwrap_or_default();
        let document = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}; {told:?}"));
        (code, document)
    }
}

impl Drop for Tune {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            signal(&self.child, libc::SIGTERM);
            let _ = self.child.wait();
        }
    }
}

fn steps(document: &Value) -> &Vec<Value> {
    document["visited"]["steps"].as_array().unwrap_or_else(|| panic!("{document:#}"))
}

#[test]
fn beside_visitors_one_small_step_after_the_other_is_judged_by_what_they_see() {
    let site = Site::start();
    let visitors = Visitors::come(&site, 6);
    let ([web, pool], url) = (site.names(), site.url());
    let args = ["tune", &web, &pool, "--url", &url, "-d", "1s", "--warm-up", "200ms", "--blocks", "6"];
    let refused = site.folder.run(&args);
    assert!(refused.code == 1 && refused.stderr.contains("--live"), "{refused:?}");
    let more = ["--live", "--only", "php-fpm.pm.max_children", "--trials", "2"];
    let document = site.folder.json(&[&args[..], &more].concat(), 0);
    let (visits, failures) = visitors.leave();
    assert_eq!(failures, 0, "of {visits} visits");
    assert_eq!((&document["verdict"], &document["restored"]), (&"improved".into(), &true.into()), "{document:#}");
    assert!(document["visited"]["by"].to_string().contains("access.log"), "{}", document["visited"]);
    let first = &steps(&document)[0];
    assert_eq!((&first["name"], &first["to"]), (&"php-fpm.pm.max_children".into(), &"3".into()), "{first:#}");
    assert!(first["taken"] == true && number(&first["ratio"]) > 1.15, "{first:#}");
    for step in steps(&document) {
        let [from, to] =
            ["from", "to"].map(|end| step[end].as_str().and_then(|t| t.parse::<f64>().ok()).expect("a number"));
        assert!((to / from).max(from / to) <= 1.5, "{step}");
    }
    // There was no load of ours: all requests came from visitors and health checks.
    assert!(document["trials"].as_array().expect("trials").iter().all(|t| t["run"] == ""), "{document:#}");
    let lines = fs::read_to_string(site.folder.join("access.log")).expect("a log").lines().count() as u64;
    assert!(lines < visits + 150, "{lines} requests, {visits} visits");
    site.is_as_it_was();
}

#[test]
fn what_visitors_come_to_fear_is_put_back_during_the_watch() {
    let site = Site::start();
    let visitors = Visitors::come(&site, 6);
    let ([web, pool], url) = (site.names(), site.url());
    let args = ["tune", &web, &pool, "--url", &url, "-d", "1s", "--warm-up", "200ms", "--blocks", "6", "--live"];
    let wrong = site.folder.run(&[&args[..], &["--watch", "5s"]].concat());
    assert!(wrong.code == 2 && wrong.stderr.contains("--keep"), "{wrong:?}");
    let more = [
        "--range",
        "php-fpm.pm.max_children=2..3",
        "--only",
        "php-fpm.pm.max_children",
        "--trials",
        "4",
        "--keep",
        "--watch",
        "100s",
    ];
    let mut tune = Tune::start(&site.folder, &[&args[..], &more].concat());
    tune.wait_for_watch();
    wait_until("the larger pool", || site.pool() == 3);
    site.takes(0);
    let (code, document) = tune.end();
    let watch = &document["watch"];
    assert_eq!((code, &watch["went_back"], &document["kept"]), (Some(0), &true.into(), &false.into()), "{document:#}");
    assert!(
        watch["watched"].to_string().contains("visitors") && watch["because"].to_string().contains("no good answer"),
        "{watch:#}"
    );
    assert!(n(&watch["during"]["errors"]) > 0 && n(&watch["before"]["errors"]) == 0, "{watch:#}");
    drop(visitors);
    site.is_as_it_was();
}

/// Starts a tune of a target with a long watch at its end; also returns its watchdog.
fn watched(folder: &Folder, target: &Target) -> (Tune, i32) {
    let (name, url) = (target.name(), target.url());
    let args = ["tune", &name, "--url", &url, "-c", "4", "-d", "600ms", "--warm-up", "50ms", "--blocks", "4", "--live"];
    let more = ["--range", "workers=1..4", "--only", "workers", "--trials", "3", "--keep", "--watch", "100s"];
    let mut tune = Tune::start(folder, &[&args[..], &more].concat());
    tune.wait_for_watch();
    let ours = folder.path().display().to_string();
    let of_ours = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains(&ours);
    let watchdog = processes_with("--patience").into_iter().find(of_ours).expect("a watchdog");
    (tune, watchdog)
}

#[test]
fn who_ends_a_watch_has_the_settings_and_who_dies_in_it_has_not() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 1\nservice = '8ms'");
    let workers = || target.scoreboard().map(|all| all.len());
    let left = || fs::read_dir(folder.join("state")).map_or(0, Iterator::count);

    let (mut tune, watchdog) = watched(&folder, &target);
    signal(&tune.child, libc::SIGKILL);
    tune.child.wait().expect("ends");
    wait_until("the end of the watchdog", || !PathBuf::from(format!("/proc/{watchdog}/exe")).exists());
    wait_until("the server as it was", || workers() == Some(1) && left() == 0);
    drop(tune);

    let (tune, watchdog) = watched(&folder, &target);
    signal(&tune.child, libc::SIGINT);
    let (code, document) = tune.end();
    assert_eq!(
        (code, &document["kept"], &document["interrupted"]),
        (Some(130), &true.into(), &true.into()),
        "{document:#}"
    );
    assert!(document["watch"]["because"].to_string().contains("the settings stay"), "{document:#}");
    assert!(
        workers() > Some(1) && folder.journal().is_none() && !PathBuf::from(format!("/proc/{watchdog}/exe")).exists()
    );
    assert_eq!(folder.run(&["restore"]).stdout, "Nothing to put back.\n");
}

#[test]
fn an_objective_on_the_processors_is_judged_on_runs_and_on_trials() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 2\nservice = '5ms'");
    let (name, url) = (target.name(), target.url());
    let run = ["run", &url, "-c", "2", "-d", "1s", "--quiet", "--objective"];
    let met = folder.run(&[&run[..], &["cpu<=100%,cpu_per_request<1s"]].concat());
    assert_eq!(met.code, 0, "{met:?}");
    let missed: CommandOutput = folder.run(&[&run[..], &["cpu_per_request<1us"]].concat());
    assert_eq!(missed.code, 3, "{missed:?}");
    let tune = ["tune", &name, "--url", &url, "-c", "4", "-d", "1s", "--warm-up", "50ms", "--live", "--trials", "2"];
    let tune = [&tune[..], &["--goal", "latency", "--only", "workers"]].concat();
    let document =
        folder.json(&[&tune[..], &["--objective", "cpu_per_request<1us", "--range", "workers=1..4"]].concat(), 1);
    let trials = document["trials"].as_array().expect("trials");
    assert!(
        trials.iter().all(|t| t["valid"] == false && t["why"].to_string().contains("cpu_per_request<1us is missed")),
        "{document:#}"
    );
    for (wrong, said) in [("cpu<200%", "cpu<80%"), ("home.cpu<80%", "of all requests")] {
        let done = folder.run(&[&run[..], &[wrong]].concat());
        assert!(done.code == 2 && done.stderr.contains(said), "{done:?}");
    }
}
