//! Changes of a server's settings and their restoration, whatever happens in between. With the target, which restarts fast;
//! `apache.rs` does the same with a real Apache.

use std::fs;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{
    CommandOutput, Folder, KILLED, Target, alone, end_at, end_at_each_step, get, processes_with, signal, wait_until,
};
use serde_json::Value;

const SETTINGS: &str = "workers = 3\nmax_requests_per_worker = 10\nservice = '5ms'\nstartup = '20ms'";

/// Starts a tune with short blocks, without a watchdog. It does not look for visitors, unless `more` is about them.
fn start_tune(folder: &Folder, target: &Target, more: &[&str]) -> Child {
    let (name, url) = (target.name(), target.url());
    let mut args = vec!["tune", &name, "--url", &url, "-c", "8", "--warm-up", "50ms", "--quiet", "--dead-man", "0s"];
    args.extend(["--only", "workers,max_requests_per_worker", "-d", "300ms"]);
    args.extend(more);
    folder.lastdrop(&args).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("runs")
}

fn end(child: Child) -> CommandOutput {
    CommandOutput::of(child.wait_with_output().expect("ends"), &[])
}

/// Asserts that the target runs once, with its original command line and pool.
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
    assert_eq!(left_in_state(folder), [""; 0], "{moment}: journals, locks, trials");
}

/// The names of the files in the state folder.
fn left_in_state(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.join("state")).map(|d| d.filter_map(|e| e.ok()?.file_name().into_string().ok()));
    entries.map(Iterator::collect).unwrap_or_default()
}

fn journal(folder: &Folder) -> Option<std::path::PathBuf> {
    let name = left_in_state(folder).into_iter().find(|name| name.ends_with(".journal"))?;
    Some(folder.join("state").join(name))
}

/// True while the target runs with the settings of a trial.
fn is_changed(folder: &Folder, target: &Target) -> bool {
    let of_ours = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&*folder.path().to_string_lossy())
    };
    processes_with(".trial.conf").iter().any(of_ours) && target.scoreboard().is_some()
}

/// Kills a sweep in its first row, so that the server runs with changed settings.
fn kill_in_a_trial(folder: &Folder, target: &Target) {
    let plan = folder.join("killed.toml");
    let text = format!(
        "server = '{}'\nurl = '{}'\nusers = 2\nduration = '60s'\n[settings]\nworkers = 5\n",
        target.name(),
        target.url()
    );
    fs::write(&plan, text).expect("written");
    let mut sweep = folder.lastdrop(&["sweep", &plan.display().to_string(), "--live", "--quiet"]);
    let mut sweep = sweep.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs");
    wait_until("a trial", || is_changed(folder, target));
    sweep.kill().expect("killed");
    sweep.wait().expect("ends");
    assert!(is_changed(folder, target), "it goes on with the changed settings");
}

/// Ends every process of the target and waits until each is gone: a process without a command line may still listen.
fn end_target(folder: &Folder) {
    let pids = processes_with(&folder.join("target.toml").display().to_string());
    for pid in &pids {
        // SAFETY: a plain call on a process of ours.
        unsafe { libc::kill(*pid, libc::SIGTERM) };
    }
    let is_over =
        |pid: &i32| fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
    wait_until("the end of the target", || pids.iter().all(is_over));
}

#[test]
fn whoever_misses_a_server_that_a_killed_tune_left_stopped_is_told_to_restore() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    kill_in_a_trial(&folder, &target);
    // As after the kill of a tune between two trials.
    end_target(&folder);
    let (name, url) = (target.name(), target.url());
    let by_url = format!("target@{url}");
    let commands: [&[&str]; 9] = [
        &["tune", &name, "--url", &url],
        &["size", &name],
        &["size", &by_url],
        &["watch", &by_url, "--once"],
        &["guard", &name, "--max-age", "1h"],
        &["profile", &name, "-d", "1s"],
        &["run", &url, "--server", &name, "-n", "1"],
        &["run", &url, "-n", "1"],
        &["capacity", &url, "--objective", "p50<1s"],
    ];
    for args in commands {
        let done = folder.run(args);
        assert!(done.code == 1 && done.stderr.contains("lastdrop restore"), "{done:?}");
    }
    // There is no message about another server.
    let other = folder.run(&["watch", &format!("target@http://127.0.0.1:{}/", crate::common::free_port()), "--once"]);
    assert!(other.code == 1 && !other.stderr.contains("restore"), "{other:?}");
    let restored = folder.run(&["restore"]);
    assert!(restored.code == 0 && restored.stdout.contains("put back"), "{restored:?}");
    assert_as_found(&folder, &target, "started again");
}

#[test]
fn a_journal_that_cannot_be_used_says_what_to_do_and_can_be_forgotten() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    kill_in_a_trial(&folder, &target);
    let path = journal(&folder).expect("a journal");
    let whole = fs::read_to_string(&path).expect("readable");
    let version = whole.replace("lastdrop.journal/1", "lastdrop.journal/7");
    let (name, url) = (target.name(), target.url());
    for (text, fault) in [
        ("", "empty"),
        (&whole[..whole.len() / 2], "ends in the middle"),
        ("hello", "no journal"),
        (&version, "journal/7"),
    ] {
        fs::write(&path, text).expect("written");
        for args in [&["restore"][..], &["tune", &name, "--url", &url]] {
            let done = folder.run(args);
            assert_eq!(done.code, 1, "{done:?}");
            let trial = path.with_extension("trial.conf").display().to_string();
            for part in [fault, "By hand", "--forget", &path.to_string_lossy(), &trial] {
                assert!(done.stderr.contains(part), "{part}: {done:?}");
            }
        }
        assert!(target.scoreboard().is_some(), "nothing was changed");
    }
    // A usable journal is not forgotten along with it.
    fs::write(&path, &whole).expect("written");
    let kept = folder.run(&["restore", "--forget"]);
    assert!(kept.code == 0 && path.exists(), "{kept:?}");
    fs::write(&path, "").expect("written");
    // Do by hand what the message says: end the server that runs with the trial's settings, and start the original one.
    end_target(&folder);
    let forgotten = folder.run(&["restore", "--forget"]);
    assert!(forgotten.code == 0 && forgotten.stdout.contains("forgotten"), "{forgotten:?}");
    assert_eq!(left_in_state(&folder), [""; 0]);
    let mut own = folder.lastdrop(&["target", "--config", &folder.join("target.toml").to_string_lossy()]);
    let mut own = own.stderr(Stdio::null()).spawn().expect("starts");
    wait_until("its own", || target.scoreboard().is_some());
    assert_as_found(&folder, &target, "by hand");
    signal(&own, libc::SIGTERM);
    own.wait().expect("ends");
}

#[test]
fn a_server_that_somebody_started_otherwise_is_left_as_it_runs() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    kill_in_a_trial(&folder, &target);
    end_target(&folder);
    let config = folder.join("target.toml").display().to_string();
    // Another process has its port: the error comes at once, and nothing is lost.
    let other = std::net::TcpListener::bind(("127.0.0.1", target.port)).expect("its port");
    let refused = folder.run(&["restore"]);
    let own = format!("process {} ", std::process::id());
    assert!(refused.code == 1 && refused.stderr.contains(&own) && journal(&folder).is_some(), "{refused:?}");
    drop(other);
    // The administrator starts it with a further option.
    let pid_file = folder.join("pid").display().to_string();
    let mut theirs = folder.lastdrop(&["target", "--config", &config, "--pid-file", &pid_file]);
    let mut theirs = theirs.stderr(Stdio::null()).spawn().expect("starts");
    wait_until("theirs", || target.scoreboard().is_some());
    let restored = folder.run(&["restore"]);
    assert!(restored.code == 0 && restored.stdout.contains("--pid-file"), "{restored:?}");
    assert!(theirs.try_wait().expect("a child").is_none(), "it runs on");
    assert_as_found(&folder, &target, "left as it runs");
    signal(&theirs, libc::SIGTERM);
    theirs.wait().expect("ends");
}

#[test]
fn a_broken_configuration_stops_no_running_server() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    kill_in_a_trial(&folder, &target);
    let config = folder.join("target.toml");
    let good = fs::read_to_string(&config).expect("readable");
    fs::write(&config, format!("{good}\nno_such_setting = 1\n")).expect("written");
    let (name, url) = (target.name(), target.url());
    let master = || processes_with(&config.to_string_lossy()).into_iter().min();
    let before = master();
    let refused = folder.run(&["restore"]);
    assert!(refused.code == 1 && refused.stderr.contains("no_such_setting"), "{refused:?}");
    assert!(before.is_some() && master() == before && target.scoreboard().is_some(), "it runs on");
    fs::write(&config, &good).expect("written");
    assert_eq!(folder.run(&["restore"]).code, 0);
    assert_as_found(&folder, &target, "mended");
    // A tune refuses to begin.
    fs::write(&config, format!("{good}\nno_such_setting = 1\n")).expect("written");
    let refused = folder.run(&["tune", &name, "--url", &url]);
    assert!(refused.code == 1 && refused.stderr.contains("no_such_setting"), "{refused:?}");
    assert!(target.scoreboard().is_some());
    // If the server is down and cannot start, the error comes at once.
    fs::write(&config, &good).expect("written");
    kill_in_a_trial(&folder, &target);
    end_target(&folder);
    fs::write(&config, format!("{good}\nno_such_setting = 1\n")).expect("written");
    let began = std::time::Instant::now();
    let refused = folder.run(&["restore"]);
    assert!(refused.code == 1 && refused.stderr.contains("ended as soon as"), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(15), "it is not waited for: {:?}", began.elapsed());
    fs::write(&config, &good).expect("written");
    assert_eq!(folder.run(&["restore"]).code, 0);
    assert_as_found(&folder, &target, "started again");
}

#[test]
fn a_server_whose_override_is_lost_is_put_back() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    kill_in_a_trial(&folder, &target);
    let trial = left_in_state(&folder).into_iter().find(|name| name.ends_with(".trial.conf")).expect("an override");
    fs::remove_file(folder.join("state").join(trial)).expect("removed");
    let restored = folder.run(&["restore"]);
    assert!(restored.code == 0 && restored.stdout.contains("put back as it was found"), "{restored:?}");
    assert_as_found(&folder, &target, "its own configuration was tested, not the lost one");
}

#[test]
fn a_dry_run_lists_what_would_be_undone_and_changes_nothing() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    kill_in_a_trial(&folder, &target);
    let left = || {
        let mut names = left_in_state(&folder);
        names.retain(|name| !name.ends_with(".lock"));
        names
    };
    let (before, config) = (left(), folder.join("target.toml").display().to_string());
    let document = folder.json(&["restore", "--dry-run"], 0);
    assert_eq!((document["schema"].as_str(), document["dry_run"].as_bool()), (Some("lastdrop.restore/1"), Some(true)));
    let steps = document["servers"][0]["steps"].as_array().expect("steps");
    let of = |kind: &str| {
        let step = steps.iter().find(|step| step["kind"] == kind).unwrap_or_else(|| panic!("{kind}: {document:#}"));
        (step["target"].as_str().expect("text").to_string(), step["action"].as_str().expect("text").to_string())
    };
    assert!(of("file").0.ends_with(".trial.conf") && of("file").1 == "remove", "{document:#}");
    assert!(of("process").1.contains("end"), "{document:#}");
    let user = nix::unistd::geteuid();
    assert!(of("command").0.contains(&config) && of("command").1 == format!("start as user {user}"), "{document:#}");
    let text = folder.run(&["restore", "--dry-run"]).stdout;
    for words in ["would be put back\n", "  file /", "  process ", "  command "] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!((left(), target.scoreboard().is_some()), (before, true));
    assert_eq!(folder.json(&["restore"], 0)["servers"][0]["was_changed"], true);
    assert_as_found(&folder, &target, "after the dry run");
}

#[test]
fn a_log_that_became_a_link_or_a_pipe_gets_nothing_of_a_server_that_is_started_again() {
    const NOBODY: u32 = 65_534;
    let folder = Folder::new();
    let (logs, secret) = (folder.join("logs"), folder.join("secret"));
    let log = logs.join("log");
    fs::create_dir(&logs).expect("made");
    fs::write(&log, "").expect("written");
    fs::write(&secret, "").expect("written");
    for path in [&logs, &log] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("given away");
    }
    let read = |path: &std::path::Path| fs::read_to_string(path).expect("there");
    let target = Target::with_config_as(&folder, SETTINGS, NOBODY, &log);
    // In a tune the server keeps its open file, whatever its name is now.
    let moved = logs.join("moved");
    let tune = start_tune(&folder, &target, &["--live"]);
    wait_until("a trial", || is_changed(&folder, &target));
    fs::rename(&log, &moved).expect("moved");
    std::os::unix::fs::symlink(&secret, &log).expect("linked");
    let before = read(&moved).lines().count();
    wait_until("another start", || read(&moved).lines().count() > before);
    signal(&tune, libc::SIGTERM);
    end(tune);
    assert_as_found(&folder, &target, "after a tune");
    assert_eq!(read(&secret), "", "root's file was written for another user");
    // After a kill of both no process has the file open, and its name leads to root's file, or to a pipe without a reader.
    fs::remove_file(&log).expect("removed");
    fs::rename(&moved, &log).expect("moved");
    for is_link in [true, false] {
        end_target(&folder);
        let mut own = folder.lastdrop(&["target", "--config", &folder.join("target.toml").to_string_lossy()]);
        std::os::unix::process::CommandExt::uid(&mut own, NOBODY);
        let mut own = own.stderr(fs::File::options().append(true).open(&log).expect("a log")).spawn().expect("starts");
        wait_until("the target", || target.scoreboard().is_some());
        kill_in_a_trial(&folder, &target);
        end_target(&folder);
        own.wait().expect("ended");
        fs::rename(&log, &moved).expect("moved");
        if is_link {
            std::os::unix::fs::symlink(&secret, &log).expect("linked");
        } else {
            nix::unistd::mkfifo(&log, nix::sys::stat::Mode::from_bits_truncate(0o666)).expect("made");
        }
        let began = std::time::Instant::now();
        let restored = folder.run(&["restore"]);
        assert!(restored.code == 0 && began.elapsed() < Duration::from_secs(20), "{restored:?}");
        assert_as_found(&folder, &target, "after a kill");
        assert_eq!(read(&secret), "", "root's file was written for another user");
        fs::remove_file(&log).expect("removed");
        fs::rename(&moved, &log).expect("moved");
    }
}

#[test]
fn journals_and_locks_that_others_had_a_hand_in_are_refused_by_name_and_the_rest_is_put_back() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    kill_in_a_trial(&folder, &target);
    let own = journal(&folder).expect("a journal");
    let state = |name: &str| folder.join("state").join(name);
    let victim = folder.join("victim");
    fs::write(&victim, "text").expect("written");
    // Each of these journals would restart the server if it were obeyed.
    for (name, mode, owner) in [("theirs", 0o600, 65_534), ("of-all", 0o666, 0), ("of-group", 0o660, 0)] {
        let path = state(&format!("{name}.journal"));
        fs::copy(&own, &path).expect("copied");
        chown(&path, Some(owner), None).expect("its owner");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
    }
    nix::unistd::mkfifo(&state("pipe.journal"), nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("made");
    symlink(&own, state("link.journal")).expect("linked");
    let lock = own.with_extension("lock");
    let _ = fs::remove_file(&lock);
    symlink(&victim, &lock).expect("linked");
    let refused = folder.run(&["restore"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    for words in
        ["theirs.journal (owner 65534, mode 600)", "of-all.journal", "of-group.journal", "pipe.journal", "link.journal"]
    {
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
    assert!(refused.stderr.contains(&lock.display().to_string()), "{refused:?}");
    assert_eq!(fs::read_to_string(&victim).expect("there"), "text");
    fs::remove_file(&lock).expect("removed");
    let restored = folder.run(&["restore"]);
    assert!(restored.code == 1 && restored.stdout.contains("put back as it was found"), "{restored:?}");
    for name in ["theirs", "of-all", "of-group", "pipe", "link"] {
        fs::remove_file(state(&format!("{name}.journal"))).expect("still there");
    }
    assert_as_found(&folder, &target, "the rest");
    // A folder of another user, sticky or not, is refused for journals.
    let shared = folder.join("shared");
    fs::create_dir(&shared).expect("made");
    chown(&shared, Some(65_534), None).expect("given away");
    let evil = shared.join("evil.journal");
    fs::write(&evil, "{}").expect("written");
    for mode in [0o1777, 0o755] {
        fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).expect("its mode");
        for args in [&["restore"][..], &["tune", &target.name(), "--url", &target.url()]] {
            for at in [&shared, &shared.join("new")] {
                let done =
                    CommandOutput::of(folder.lastdrop(args).env("LASTDROP_STATE", at).output().expect("runs"), args);
                let is_told = done.stderr.contains("shared (owner 65534");
                let has_nothing = done.stdout == "Nothing to put back.\n" && at != &shared;
                assert!(is_told || has_nothing, "{done:?}");
            }
        }
    }
    assert_eq!(fs::read_dir(&shared).expect("readable").count(), 1, "nothing was made there");
}

#[test]
fn what_a_kill_left_half_written_is_taken_away() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    let state = folder.join("state");
    fs::create_dir_all(&state).expect("made");
    // As after a kill in the middle of a write, before there is a journal; the lock belongs to a process that is gone.
    for (name, text) in
        [(".lock", "1999999999\n"), (".trial.conf.new", "half"), (".journal.new", "{"), (".test.conf", "x = 1")]
    {
        fs::write(state.join(format!("target--somewhere{name}")), text).expect("written");
    }
    let done = folder.run(&["restore"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "Nothing to put back.\n"));
    assert_eq!(left_in_state(&folder), [""; 0]);
    assert_as_found(&folder, &target, "not touched");
}

#[test]
fn a_tune_killed_at_any_step_is_undone_by_restore() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    let plan = folder.join("plan.toml");
    let (name, url) = (target.name(), target.url());
    let text =
        format!("server = '{name}'\nurl = '{url}'\nusers = 2\nrequests = 10\n[settings]\nworkers = [5]\nbacklog = 7\n");
    fs::write(&plan, text).expect("written");
    let plan = plan.display().to_string();
    let sweep = ["sweep", &plan, "--live", "--quiet"];
    let steps = end_at_each_step(&folder, &sweep, |moment| assert_as_found(&folder, &target, moment));
    assert!(steps >= 12, "{steps}");
    // It does not matter how far a killed restore came.
    for step in 1.. {
        assert_eq!(end_at(&folder, &sweep, steps / 2).code, KILLED);
        let restore = end_at(&folder, &["restore"], step);
        assert_eq!(folder.run(&["restore"]).code, 0);
        assert_as_found(&folder, &target, &format!("a restore that ended before step {step}"));
        if restore.code != KILLED {
            assert!(step > 4, "{restore:?}");
            break;
        }
    }
    // The measurements of the killed tune are stored.
    let tune = start_tune(&folder, &target, &["--live"]);
    wait_until("a run in the store", || {
        folder.run(&["history", "--all", "-n", "1000"]).stdout.contains("tune baseline")
    });
    signal(&tune, libc::SIGKILL);
    end(tune);
    assert_eq!(folder.run(&["restore"]).code, 0);
    assert_as_found(&folder, &target, "a tune that was killed");
    assert!(folder.run(&["history", "--all", "-n", "1000"]).stdout.contains("tune baseline"));
}

#[test]
fn restore_with_nothing_to_do_is_no_error() {
    let done = Folder::new().run(&["restore"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "Nothing to put back.\n"));
}

#[test]
fn signals_put_everything_back_before_they_end_it() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    for (number, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        let tune = start_tune(&folder, &target, &["--live"]);
        wait_until("a trial", || is_changed(&folder, &target));
        signal(&tune, number);
        let done = end(tune);
        assert_eq!(done.code, code, "{done:?}");
        assert_as_found(&folder, &target, &format!("signal {number}"));
    }
}

#[test]
fn one_server_is_tuned_by_one_lastdrop() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    let mut first = start_tune(&folder, &target, &["--live"]);
    wait_until("the lock", || folder.join("state").read_dir().is_ok_and(|mut d| d.next().is_some()));
    let second = end(start_tune(&folder, &target, &["--live"]));
    assert_eq!(second.code, 1);
    assert!(second.stderr.contains(&format!("process {}", first.id())), "{second:?}");
    // A restore leaves a server alone that another command is changing.
    wait_until("a journal", || journal(&folder).is_some());
    let restore = folder.run(&["restore"]);
    assert!(restore.code == 1 && restore.stderr.contains("at work"), "{restore:?}");
    signal(&first, libc::SIGKILL);
    first.wait().expect("ends");
    let third = end(start_tune(&folder, &target, &["--live"]));
    assert!(third.code == 1 && third.stderr.contains("lastdrop restore"), "{third:?}");
    assert_eq!(folder.run(&["restore"]).code, 0);
    assert_as_found(&folder, &target, "after the restore");
}

#[test]
fn a_server_with_visitors_is_not_touched_without_live() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    let port = target.port;
    let (leave, stays) = std::sync::mpsc::channel::<()>();
    let visitor = thread::spawn(move || {
        while stays.recv_timeout(Duration::from_millis(50)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = get(port, "/");
        }
    });
    let done = end(start_tune(&folder, &target, &[]));
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("--live"), "{done:?}");
    drop(leave);
    visitor.join().expect("ends");
    assert_eq!(target.counts()["generation"], 0);
    assert_as_found(&folder, &target, "not touched");
}

#[test]
fn kept_settings_stay_and_can_be_tuned_again() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, SETTINGS);
    let out = folder.join("tune.json");
    let few = ["--live", "--range", "workers=3..8", "--trials", "4", "--blocks", "6"];
    let keep = ["--keep", "--json", out.to_str().expect("text")];
    let done = end(start_tune(&folder, &target, &[&few[..], &keep].concat()));
    assert_eq!(done.code, 0, "{done:?}");
    let tune: Value = serde_json::from_str(&fs::read_to_string(&out).expect("written")).expect("JSON");
    assert_eq!((&tune["verdict"], &tune["kept"]), (&"improved".into(), &true.into()), "{tune}");
    let workers = tune["winner"]["settings"]["workers"].as_u64().unwrap_or(3);
    assert_eq!(target.scoreboard().map(|s| s.len() as u64), Some(workers));
    // The restore of a killed second tune goes back to the settings kept by the first, not to those before it.
    let mut again = start_tune(&folder, &target, &["--live"]);
    wait_until("a trial", || is_changed(&folder, &target));
    signal(&again, libc::SIGKILL);
    again.wait().expect("ends");
    assert_eq!(folder.run(&["restore"]).code, 0);
    assert_eq!(target.scoreboard().map(|s| s.len() as u64), Some(workers));
    assert!(!processes_with("kept.conf").is_empty());
}

#[test]
fn a_restarted_server_has_the_limits_cpus_environment_and_folder_that_it_had() {
    let folder = Folder::new();
    let port = crate::common::free_port();
    let config = folder.join("target.toml");
    fs::write(&config, format!("{SETTINGS}\nlisten = '127.0.0.1:{port}'\n")).expect("written");
    let program = env!("CARGO_BIN_EXE_lastdrop");
    // Also with a relative name of the configuration, which is valid only in the server's own folder.
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
    let plan = folder.join("plan.toml");
    let text = format!("server = '{server}'\nurl = '{url}'\nusers = 2\nrequests = 10\n[settings]\nworkers = [4, 5]\n");
    fs::write(&plan, text).expect("written");
    let done = folder.run(&["sweep", &plan.display().to_string(), "--live", "--quiet"]);
    assert_eq!(done.code, 0, "{done:?}");
    child.wait().expect("the first one was ended");
    // With a relative name it is found by its port; the master is the one whose parent is not a target.
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
    // Workers that have served nothing are too small to measure.
    assert_eq!(
        folder.run(&["run", &target.url(), "-c", "20", "-n", "400", "--keepalive", "off", "--no-store", "-q"]).code,
        0
    );
    let size = folder.json(&["size", &name, "--memory", "400M"], 0);
    let mb = |v: &Value| v.as_u64().expect("bytes") as f64 / f64::from(1 << 20);
    assert_eq!(size["workers"]["count"], 5);
    let private = mb(&size["workers"]["private_bytes"]["mean"]);
    assert!((20.0..20.9).contains(&private), "{private}");
    let shared = mb(&size["workers"]["shared_bytes"]["mean"]);
    // The code that answers requests is shared memory, too.
    assert!((30.0..42.0).contains(&shared), "{shared}");
    let real = mb(&size["real_memory_bytes"]);
    assert!((130.0..150.0).contains(&real), "five times 20 and 30 once: {real}");
    assert!(mb(&size["sum_rss_bytes"]) > 250.0);
    // (400 − 30 and the program) / 20
    let fits = size["fits"]["independent"].as_u64().expect("a number");
    assert!((16..=18).contains(&fits), "{fits}");
    assert_eq!(size["suggested"]["workers"], fits);
}

#[test]
fn a_sweep_measures_every_row_and_puts_the_server_back() {
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
    let sweep =
        folder.json(&["sweep", plan.to_str().expect("text"), "--live", "--csv", csv.to_str().expect("text")], 0);
    let rows = sweep["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 8);
    assert_eq!(sweep["varying"], serde_json::json!(["users", "max_requests_per_worker", "workers"]));
    for row in rows {
        assert_eq!((&row["answered"], &row["failed"]), (&60.into(), &0.into()), "{row}");
        // With ten requests per worker, sixty requests replace workers: such rows are warmed by load.
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
        let done = folder.run(&["sweep", plan.to_str().expect("text"), "--live"]);
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.stderr.contains(word), "{done:?}");
    }
    fs::write(&plan, "url = 5 5\n").expect("written");
    let done = folder.run(&["sweep", plan.to_str().expect("text"), "--live"]);
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
    // 16 permanent workers answer 206 requests per second, as planted in crates/experiment/src/trials/demo.rs.
    let reached = demo["winner"]["objective"].as_f64().expect("a rate");
    assert!(reached >= 0.8 * 206.4, "{reached}");
    assert!(demo["winner"]["interval"][0].as_f64().is_some_and(|low| low > 1.0), "{demo:#}");
}
