//! Changing a server's settings and putting them back, whatever happens in between. Judged on the target, which
//! restarts in no time; `apache.rs` does the same on a real Apache.

mod common;

use std::fs;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use common::{Done, Folder, Target, alone, get, processes_with, signal, wait_until};
use serde_json::Value;

const SETTINGS: &str = "workers = 3\nmax_requests_per_worker = 10\nservice = '5ms'\nstartup = '20ms'";

/// Starts a tune with blocks as short as they go.
fn start_tune(folder: &Folder, target: &Target, more: &[&str]) -> Child {
    let (name, url) = (target.name(), target.url());
    let mut args = vec!["tune", &name, "--url", &url, "-c", "8", "-d", "150ms", "--warm-up", "50ms", "--quiet"];
    args.extend(more);
    folder.lastdrop(&args).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs")
}

fn end(child: Child) -> Done {
    Done::of(child.wait_with_output().expect("ends"), &[])
}

/// The target runs once, as it was started, with its own pool.
fn assert_as_found(folder: &Folder, target: &Target, moment: &str) {
    assert_eq!(target.scoreboard().map(|s| s.len()), Some(3), "{moment}");
    let config = folder.join("target.toml");
    assert_eq!(
        fs::read_to_string(&config).expect("there"),
        format!("{SETTINGS}\nlisten = '127.0.0.1:{}'\n", target.port)
    );
    let with = |text: &str| processes_with(text).len();
    assert!(with(&config.to_string_lossy()) > 0, "{moment}");
    assert_eq!(with(&folder.join("state").to_string_lossy()), 0, "{moment}: it runs on a file of ours");
    let journals = fs::read_dir(folder.join("state"))
        .map(|d| d.filter_map(Result::ok).filter(|e| e.path().extension().is_some_and(|e| e == "journal")).count());
    assert_eq!(journals.unwrap_or(0), 0, "{moment}: a journal is left");
}

#[test]
fn a_tune_killed_at_any_moment_is_undone_by_restore() {
    let _alone = alone();
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    for i in 0..20 {
        // The first two seconds only watch for visitors; the trials take some eight more.
        let moment = Duration::from_millis(2200 + 330 * i);
        let mut tune = start_tune(&folder, &target, &[]);
        thread::sleep(moment);
        signal(&tune, libc::SIGKILL);
        tune.wait().expect("ends");
        let restored = folder.run(&["restore"]);
        assert_eq!(restored.code, 0, "killed after {moment:?}: {restored:?}");
        assert!(!restored.stdout.contains("but "), "{restored:?}");
        assert_as_found(&folder, &target, &format!("killed after {moment:?}"));
    }
    // What the killed tunes measured is there.
    let history = folder.run(&["history", "-n", "1000"]);
    assert!(history.stdout.contains("tune baseline"), "{}", history.stdout);
}

#[test]
fn restore_with_nothing_to_do_is_no_error() {
    let done = Folder::new().run(&["restore"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "Nothing to put back.\n"));
}

#[test]
fn signals_put_everything_back_before_they_end_it() {
    let _alone = alone();
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    for (number, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        let tune = start_tune(&folder, &target, &[]);
        thread::sleep(Duration::from_millis(4000));
        signal(&tune, number);
        let done = end(tune);
        assert_eq!(done.code, code, "{done:?}");
        assert_as_found(&folder, &target, &format!("signal {number}"));
    }
}

#[test]
fn one_server_is_tuned_by_one_lastdrop() {
    let _alone = alone();
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    let mut first = start_tune(&folder, &target, &[]);
    wait_until("the lock", || folder.join("state").read_dir().is_ok_and(|mut d| d.next().is_some()));
    let second = end(start_tune(&folder, &target, &[]));
    assert_eq!(second.code, 1);
    assert!(second.stderr.contains(&format!("process {}", first.id())), "{second:?}");
    // A restore leaves a server alone that somebody is at work on.
    thread::sleep(Duration::from_millis(3500));
    let restore = folder.run(&["restore"]);
    assert!(restore.code == 1 && restore.stderr.contains("at work"), "{restore:?}");
    signal(&first, libc::SIGKILL);
    first.wait().expect("ends");
    let third = end(start_tune(&folder, &target, &[]));
    assert!(third.code == 1 && third.stderr.contains("lastdrop restore"), "{third:?}");
    assert_eq!(folder.run(&["restore"]).code, 0);
    assert_as_found(&folder, &target, "after the restore");
}

#[test]
fn a_server_with_visitors_is_not_touched_without_live() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    let port = target.port;
    let visitor = thread::spawn(move || {
        for _ in 0..60 {
            let _ = get(port, "/");
            thread::sleep(Duration::from_millis(50));
        }
    });
    let done = end(start_tune(&folder, &target, &[]));
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("--live"), "{done:?}");
    visitor.join().expect("ends");
    assert_eq!(target.counts()["generation"], 0);
    assert_as_found(&folder, &target, "not touched");
}

#[test]
fn kept_settings_stay_and_can_be_tuned_again() {
    let _alone = alone();
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    let out = folder.join("tune.json");
    let done = end(start_tune(&folder, &target, &["--keep", "--json", out.to_str().expect("text")]));
    assert_eq!(done.code, 0, "{done:?}");
    let tune: Value = serde_json::from_str(&fs::read_to_string(&out).expect("written")).expect("JSON");
    assert_eq!((&tune["verdict"], &tune["kept"]), (&"improved".into(), &true.into()), "{tune}");
    let workers = tune["winner"]["settings"]["workers"].as_u64().unwrap_or(3);
    assert_eq!(target.scoreboard().map(|s| s.len() as u64), Some(workers));
    // A killed second tune goes back to what was kept, and not to what was there before.
    let mut again = start_tune(&folder, &target, &[]);
    thread::sleep(Duration::from_millis(4000));
    signal(&again, libc::SIGKILL);
    again.wait().expect("ends");
    assert_eq!(folder.run(&["restore"]).code, 0);
    assert_eq!(target.scoreboard().map(|s| s.len() as u64), Some(workers));
    assert!(!processes_with("kept.conf").is_empty());
}

#[test]
fn a_restarted_server_has_the_limits_cpus_environment_and_folder_that_it_had() {
    let _alone = alone();
    let folder = Folder::new();
    let port = common::free_port();
    let config = folder.join("target.toml");
    fs::write(&config, format!("{SETTINGS}\nlisten = '127.0.0.1:{port}'\n")).expect("written");
    let program = env!("CARGO_BIN_EXE_lastdrop");
    // A relative name of the configuration, too: it means something in the server's own folder only.
    let script = format!("ulimit -n 777; umask 027; exec taskset -c 0 {program} target --config target.toml");
    let mut child = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(folder.path())
        .env("PLANTED", "a value")
        .stderr(Stdio::null())
        .spawn()
        .expect("sh");
    wait_until("the target", || get(port, "/").is_some());
    let facts = |pid: i32| {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).expect("readable");
        let lines = |text: String, names: &[&str]| -> Vec<String> {
            text.lines().filter(|l| names.iter().any(|n| l.starts_with(n))).map(str::to_string).collect()
        };
        (
            read("limits"),
            lines(read("status"), &["Cpus_allowed_list", "Umask", "Uid", "Groups"]),
            read("environ").split('\0').any(|v| v == "PLANTED=a value"),
            fs::read_link(format!("/proc/{pid}/cwd")).expect("a folder"),
            read("cmdline"),
            read("cgroup"),
        )
    };
    let before = facts(child.id() as i32);
    let server = format!("target:{}", config.display());
    let url = format!("http://127.0.0.1:{port}/");
    let args = ["tune", &server, "--url", &url, "-c", "4", "-d", "100ms", "--warm-up", "50ms", "--quiet"];
    let done = folder.run(&args);
    assert_eq!(done.code, 0, "{done:?}");
    child.wait().expect("the first one was ended");
    // Relative, so found by its port: the master is the one whose parent is not a target.
    let masters: Vec<i32> = processes_with("target.toml")
        .into_iter()
        .filter(|pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|d| d == folder.path()))
        .collect();
    let master = *masters.iter().min().expect("it runs again");
    assert_eq!(facts(master), before);
    assert!(before.2 && before.0.contains("777"), "the case is one: {before:?}");
    // SAFETY: a plain call on a process of ours.
    unsafe { libc::kill(master, libc::SIGTERM) };
}

#[test]
fn planted_memory_is_found_by_size() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 5\nmemory = '20M'\nshared_memory = '30M'");
    let name = target.name();
    wait_until("workers that have their memory", || target.scoreboard().is_some_and(|s| !s.contains('S')));
    let size = folder.json(&["size", &name, "--memory", "400M"], 0);
    let mb = |v: &Value| v.as_u64().expect("bytes") as f64 / f64::from(1 << 20);
    assert_eq!(size["workers"]["count"], 5);
    let private = mb(&size["workers"]["private_bytes"]["mean"]);
    assert!((20.0..20.9).contains(&private), "{private}");
    let shared = mb(&size["workers"]["shared_bytes"]["mean"]);
    assert!((30.0..36.0).contains(&shared), "{shared}");
    let real = mb(&size["real_memory_bytes"]);
    assert!((130.0..142.0).contains(&real), "five times 20 and 30 once: {real}");
    assert!(mb(&size["sum_rss_bytes"]) > 250.0);
    // (400 − 30 and the program) / 20
    let fits = size["fits"]["independent"].as_u64().expect("a number");
    assert!((16..=18).contains(&fits), "{fits}");
    assert_eq!(size["suggested"]["workers"], fits);
}

#[test]
fn a_sweep_measures_every_row_and_puts_the_server_back() {
    let _alone = alone();
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    let plan = folder.join("plan.toml");
    let text = format!(
        "server = 'target:target.toml'\nurl = '{}'\nusers = [2, 6]\nrequests = 60\nwarm_up = '100ms'\n\
         [settings]\nmax_requests_per_worker = [0, 10]\n[[series]]\nsettings.workers = [2, 4]\n",
        target.url()
    );
    fs::write(&plan, text).expect("written");
    let csv = folder.join("table.csv");
    let sweep = folder.json(&["sweep", plan.to_str().expect("text"), "--csv", csv.to_str().expect("text")], 0);
    let rows = sweep["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 8);
    assert_eq!(sweep["varying"], serde_json::json!(["users", "max_requests_per_worker", "workers"]));
    for row in rows {
        assert_eq!((&row["answered"], &row["failed"]), (&60.into(), &0.into()), "{row}");
        // Ten requests a worker do not last for sixty: such rows are warmed by load.
        let warmed = if row["settings"]["max_requests_per_worker"] == 10 { "0.1s" } else { "each" };
        assert_eq!(row["warmed"], warmed, "{row}");
        assert_eq!(folder.run(&["show", row["run"].as_str().expect("an id")]).code, 0);
    }
    assert_eq!(fs::read_to_string(csv).expect("written").lines().count(), 9);
    assert_as_found(&folder, &target, "after the sweep");
}

#[test]
fn wrong_plans_of_a_sweep_change_nothing() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    let plan = folder.join("plan.toml");
    for (setting, word) in
        [("wokers = 3", "wokers"), ("workers = 0", "1 to 2048"), ("keepalive = 'perhaps'", "On or Off")]
    {
        let text = format!("server = 'target:target.toml'\nurl = '{}'\n[settings]\n{setting}\n", target.url());
        fs::write(&plan, text).expect("written");
        let done = folder.run(&["sweep", plan.to_str().expect("text")]);
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.stderr.contains(word), "{done:?}");
    }
    fs::write(&plan, "url = 5 5\n").expect("written");
    let done = folder.run(&["sweep", plan.to_str().expect("text")]);
    assert!(done.code == 2 && done.stderr.contains("line 1"), "{done:?}");
    assert_as_found(&folder, &target, "after wrong plans");
}

#[test]
fn the_demo_finds_the_planted_best() {
    let _alone = alone();
    let folder = Folder::new();
    let demo = folder.json(&["demo"], 0);
    assert_eq!(demo["verdict"], "improved");
    assert_eq!(demo["restored"], true);
    // 16 workers that stay answer 206 a second: planted in crates/experiment/src/demo.rs.
    let reached = demo["winner"]["objective"].as_f64().expect("a rate");
    assert!(reached >= 0.8 * 206.4, "{reached}");
    let low = demo["winner"]["interval"][0].as_f64().expect("a bound");
    assert!(low > 1.0, "{demo}");
}
