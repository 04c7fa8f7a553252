//! What a machine may lack: /proc, IPv4, room for a large file.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::{Done, Folder, Namespace, Target, signal};
use serde_json::Value;

/// Runs the program by a shell, after something that the shell does first.
fn after(folder: &Folder, first: &str, args: &[&str]) -> Command {
    let program = folder.lastdrop(args);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{first} && exec \"$0\" \"$@\"")]).arg(program.get_program()).args(program.get_args());
    shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    shell
}

/// The log of requests that a run could not finish.
fn unfinished(folder: &Folder) -> fs::DirEntry {
    let mut entries = fs::read_dir(folder.path()).expect("readable").map(|e| e.expect("an entry"));
    let partial = |e: &fs::DirEntry| e.file_name().to_string_lossy().ends_with(".partial");
    entries.find(partial).expect("the part that was written")
}

fn without_proc(folder: &Folder, args: &[&str]) -> Done {
    let inner = after(folder, "umount -l /proc", args);
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--"]).arg(inner.get_program()).args(inner.get_args());
    unshare.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    Done::of(unshare.output().expect("unshare runs (these tests want root)"), args)
}

#[test]
fn without_proc_it_is_proc_that_is_missed() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let url = target.url();
    for args in [
        &["run", &url, "-n", "10", "--server", "nginx"][..],
        &["knobs", "nginx"],
        &["doctor", "--url", &url],
        &["watch", "nginx", "--once"],
    ] {
        let done = without_proc(&folder, args);
        assert!(done.code == 1 && done.stderr.contains("/proc is not mounted"), "{done:?}");
    }
    // A load alone is put on and kept, and what only reads the store does so.
    let run = without_proc(&folder, &["run", &url, "-n", "10", "-c", "1"]);
    assert!(run.code == 0 && run.stdout.contains("/proc"), "{run:?}");
    let done = without_proc(&folder, &["show", "last"]);
    assert!(done.code == 0 && done.stdout.contains("answered"), "{done:?}");
}

#[test]
fn where_there_is_only_ipv6_loopback_is_that_of_ipv6() {
    let folder = Folder::new();
    let space = Namespace::new();
    let mut remove = Command::new("ip");
    remove.args(["addr", "del", "127.0.0.1/8", "dev", "lo"]);
    assert!(space.inside(&remove).status().expect("ip runs").success());
    let plan = folder.join("plan.toml").display().to_string();
    for (args, said) in [
        (&["record", "--to", "http://[::1]:1/", "-o", &plan][..], "http://[::1]:8888/ stands for"),
        (&["ui"], "http://[::1]:"),
    ] {
        let mut command = space.inside(&folder.lastdrop(args));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut first = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut first).expect("text");
        signal(&child, libc::SIGINT);
        let done = Done::of(child.wait_with_output().expect("it ends"), args);
        assert!(first.contains(said), "{first:?} {done:?}");
    }
    let mut other =
        space.inside(&folder.lastdrop(&["record", "--to", "http://[::1]:1/", "--listen", "127.0.0.1:8888"]));
    let done = Done::of(other.output().expect("it runs"), &[]);
    assert!(done.code == 2 && done.stderr.contains("cannot listen on 127.0.0.1:8888"), "{done:?}");
}

#[test]
fn a_limit_on_the_size_of_files_is_a_full_disk_and_no_end() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    // Blocks of 512 bytes: a log of requests is soon full.
    let log = folder.join("requests.csv").display().to_string();
    let args = ["run", &target.url(), "-c", "2", "-n", "24000", "-d", "60s", "--log", &log];
    let done = Done::of(after(&folder, "ulimit -f 3000", &args).output().expect("it runs"), &args);
    assert!(done.code >= 0 && done.stdout.contains("answered"), "{done:?}");
    assert!(done.stderr.contains("File too large"), "{done:?}");
    let written = unfinished(&folder).metadata().expect("it is there").len();
    assert!(written > 0 && written <= 3000 * 512, "{written}");
    // There is no room for a store, and a run is not kept then.
    let args = ["run", &target.url(), "-c", "2", "-d", "2s", "--json", "-"];
    let first = format!("unset LASTDROP_STORE XDG_DATA_HOME && export HOME={} && ulimit -f 1", folder.path().display());
    let done = Done::of(after(&folder, &first, &args).output().expect("it runs"), &args);
    let run: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:?}"));
    assert!(run["phases"][0]["requests"]["answered"].as_u64() > Some(0), "{run}");
}

#[test]
fn a_watchdog_that_would_end_its_own_tune_is_refused() {
    let folder = Folder::new();
    for time in ["1us", "4999ms"] {
        let args = ["tune", "nginx", "--url", "http://127.0.0.1:1/", "--dead-man", time];
        let done = folder.run(&args);
        assert!(done.code == 2 && done.stderr.contains("write 5s or more"), "{done:?}");
    }
}
