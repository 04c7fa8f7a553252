//! Machines that lack something: /proc, IPv4, room for a large file, a steady clock, an administrator who allows everything.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{CommandOutput, Folder, Namespace, Target, n, number, signal, wait_until};
use serde_json::Value;

/// Runs the program in a shell after another command.
fn after(folder: &Folder, first: &str, args: &[&str]) -> Command {
    let program = folder.lastdrop(args);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{first} && exec \"$0\" \"$@\"")]).arg(program.get_program()).args(program.get_args());
    shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    shell
}

/// The partial log of requests of a failed run.
fn unfinished(folder: &Folder) -> fs::DirEntry {
    let mut entries = fs::read_dir(folder.path()).expect("readable").map(|e| e.expect("an entry"));
    let partial = |e: &fs::DirEntry| e.file_name().to_string_lossy().ends_with(".partial");
    entries.find(partial).expect("the part that was written")
}

fn without_proc(folder: &Folder, args: &[&str]) -> CommandOutput {
    let inner = after(folder, "umount -l /proc", args);
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--"]).arg(inner.get_program()).args(inner.get_args());
    unshare.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    CommandOutput::of(unshare.output().expect("unshare runs (these tests want root)"), args)
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
    // A run without a server works and is stored, and commands that only read the store work.
    let run = without_proc(&folder, &["run", &url, "-n", "10", "-c", "1"]);
    assert!(
        run.code == 0 && run.stderr.contains("/proc is not mounted") && !run.stdout.contains("0 B memory"),
        "{run:?}"
    );
    let done = without_proc(&folder, &["show", "last"]);
    assert!(done.code == 0 && done.stdout.contains("answered"), "{done:?}");
}

/// Runs the program with the machine's /etc and this /etc/lastdrop.toml.
fn with_abilities(folder: &Folder, text: &str, args: &[&str]) -> CommandOutput {
    let (etc, file) = (folder.join("etc"), folder.join("abilities.toml"));
    fs::create_dir_all(&etc).expect("a folder");
    fs::write(&file, text).expect("written");
    let first = format!(
        "mount --rbind /etc {0} && mount -t tmpfs -o mode=755 none /etc && ln -s {0}/* /etc && cp {1} /etc/lastdrop.toml",
        etc.display(),
        file.display()
    );
    let inner = after(folder, &first, args);
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "--"]).arg(inner.get_program()).args(inner.get_args());
    unshare.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    CommandOutput::of(unshare.output().expect("unshare runs (these tests want root)"), args)
}

#[test]
fn what_the_administrator_has_turned_off_is_refused_by_name_and_nothing_else_is() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 2\nservice = '100us'\n");
    let (url, token) = (target.url(), folder.join("token"));
    fs::write(&token, "no token\n").expect("written");
    let (name, token) = (format!("target:{}", folder.join("target.toml").display()), token.display().to_string());
    let tune = ["tune", &name, "--url", &url, "-d", "100ms", "--trials", "2", "--no-store"];
    let plan = folder.join("plan.toml").display().to_string();
    let text = format!("server = '{name}'\nurl = '{url}'\nduration = '100ms'\n[settings]\nworkers = [1, 2]\n");
    fs::write(&plan, text).expect("written");
    let sweep = ["sweep", &plan, "--no-store"];
    let guard = ["guard", &name, "-d", "100ms", "--every", "100ms", "--memory", "1G"];
    let act = ["guard", &name, "-d", "100ms", "--every", "100ms", "--memory", "1G", "--act"];
    let agent = ["agent", "tls://127.0.0.1:1", "--token-file", &token];
    let broker = ["fleet", "up", "--dir", &token];
    let database = ["watch", &name, "--once", "--interval", "100ms", "--db", "postgres://a@127.0.0.1:1/"];
    let look = ["watch", &name, "--once", "--interval", "100ms"];
    let trusted = ["watch", &name, "--once", "--interval", "100ms", "--trust", "nobody"];
    let config = fs::read(folder.join("target.toml")).expect("there");
    type Commands<'a> = &'a [&'a [&'a str]];
    let cases: [(&str, Commands<'_>, Commands<'_>); 4] = [
        ("changes", &[&tune[..], &sweep, &act][..], &[&look[..], &guard, &["restore"], &trusted][..]),
        ("trust", &[&trusted], &[&look, &guard]),
        ("agents", &[&agent, &broker], &[&look]),
        ("databases", &[&database], &[&look, &trusted]),
    ];
    for (key, refused, allowed) in cases {
        let text = format!("{key} = false\n");
        for args in refused {
            let done = with_abilities(&folder, &text, args);
            assert!(done.code == 1 && done.stderr.contains(&format!("/etc/lastdrop.toml: {key} = false")), "{done:?}");
        }
        for args in allowed {
            let done = with_abilities(&folder, &text, args);
            assert!(done.code == 0 && !done.stderr.contains("turned off"), "{done:?}");
        }
        assert!(fs::read(folder.join("target.toml")).expect("there") == config && folder.journal().is_none());
    }
    // If nothing is turned off, the commands above are not refused. A mistake in the file does not count as permission.
    let done = with_abilities(&folder, "", &database);
    assert!(!done.stderr.contains("turned off"), "{done:?}");
    let wrong = with_abilities(&folder, "database = false\n", &look);
    assert!(wrong.code == 1 && wrong.stderr.contains("/etc/lastdrop.toml"), "{wrong:?}");
}

/// A library that changes a program's time of day: the kernel's plus the seconds in a shared file.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile int64_t *step;
__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("CLOCK_STEP"), O_RDONLY | O_CLOEXEC);
    void *at = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    step = at == MAP_FAILED ? 0 : at;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int done = syscall(SYS_clock_gettime, id, at);
    if (!done && id == CLOCK_REALTIME && step) at->tv_sec += *step;
    return done;
}
"#;

struct Clock {
    library: PathBuf,
    step: PathBuf,
}

impl Clock {
    fn new(folder: &Folder) -> Clock {
        let clock = Clock { library: folder.join("clock.so"), step: folder.join("step") };
        let source = folder.join("clock.c");
        fs::write(&source, CLOCK).expect("written");
        let made = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&clock.library).arg(&source).status();
        assert!(made.expect("a C compiler").success());
        clock.set(0);
        clock
    }

    /// Writes in place, because the program has the file mapped.
    fn set(&self, seconds: i64) {
        let file = fs::File::options().create(true).truncate(false).write(true).open(&self.step).expect("a file");
        file.write_all_at(&seconds.to_ne_bytes(), 0).expect("written");
    }

    /// Runs the program, and changes its clock once a condition holds.
    fn run(&self, folder: &Folder, args: &[&str], when: impl Fn() -> bool, seconds: i64) -> CommandOutput {
        self.set(0);
        let mut command = folder.lastdrop(args);
        command.env("LD_PRELOAD", &self.library).env("CLOCK_STEP", &self.step).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        wait_until("the moment for another time", when);
        self.set(seconds);
        CommandOutput::of(child.wait_with_output().expect("it ends"), args)
    }
}

#[test]
fn a_clock_that_is_set_by_an_hour_changes_no_number_and_holds_nothing_up() {
    let folder = Folder::new();
    let clock = Clock::new(&folder);
    let target = Target::with_config(&folder, "workers = 2\nservice = '100us'\n");
    let (url, name) = (target.url(), format!("target:{}", folder.join("target.toml").display()));
    for seconds in [3_600, -3_600] {
        let begun = Instant::now();
        let so_far = n(&target.counts()["requests"]);
        let under_way = || n(&target.counts()["requests"]) > so_far + 60;
        let run = ["run", &url, "-r", "200", "-d", "1s", "--json", "-"];
        let done = clock.run(&folder, &run, under_way, seconds);
        let run: Value = serde_json::from_str(&done.stdout).expect("a document");
        let phase = &run["phases"][0];
        // The numbers are right, and a note says that the clock was changed.
        assert!(done.code == 4 && run["validity"].to_string().contains("the clock was set by"), "{run:#}");
        // On a busy machine the generator itself may be too late for some.
        let (sent, unsent) = (n(&phase["requests"]["answered"]), n(&phase["requests"]["unsent"]));
        assert_eq!((n(&phase["requests"]["due"]), sent + unsent), (200, 200), "{phase:#}");
        assert!((0.9..1.5).contains(&number(&phase["duration_s"])), "{phase:#}");
        assert!(number(&phase["latency_us"]["response"]["max"]) < 3e6, "{phase:#}");

        let so_far = n(&target.counts()["requests"]);
        let under_way = || n(&target.counts()["requests"]) > so_far + 20;
        let blocks = ["compare", "--live", &url, &url, "-r", "100", "-d", "300ms", "--blocks", "4", "--json", "-"];
        let done = clock.run(&folder, &blocks, under_way, seconds);
        assert!([0, 4].contains(&done.code) && !done.stdout.contains("\"worse\""), "{done:?}");

        // In a watch and a guard, nothing becomes an hour older.
        let file = folder.join("looks").display().to_string();
        let _ = fs::remove_file(&file);
        let lines = || fs::read_to_string(&file).map_or(0, |text| text.lines().count());
        let watch = ["watch", &name, "--interval", "100ms", "-d", "1s", "--quiet", "--json", &file];
        let done = clock.run(&folder, &watch, || lines() > 1, seconds);
        assert_eq!(done.code, 0, "{done:?}");
        for line in fs::read_to_string(&file).expect("looks").lines() {
            let look: Value = serde_json::from_str(line).expect("a document");
            for worker in look["workers"].as_array().expect("workers") {
                assert!((0.0..64.0).contains(&number(&worker["cpu_cores"])), "{look:#}");
                assert!((0.0..1_800.0).contains(&number(&worker["age_s"])), "{look:#}");
            }
        }
        let log = folder.join("guard.log").display().to_string();
        let _ = fs::remove_file(&log);
        let begun_to = || fs::metadata(&log).is_ok_and(|m| m.len() > 0);
        let guard = ["guard", &name, "--max-age", "30m", "--every", "100ms", "-d", "800ms", "--act", "--log", &log];
        let done = clock.run(&folder, &guard, begun_to, seconds);
        assert!(done.code == 0 && done.stdout.contains(" 0 workers asked to leave"), "{done:?}");

        // Trials of settings: the server is restored, whatever their results.
        let plan = folder.join("plan.toml");
        let text =
            format!("server = '{name}'\nurl = '{url}'\nduration = '200ms'\nusers = 1\n[settings]\nworkers = [1, 3]\n");
        fs::write(&plan, text).expect("written");
        let sweep = ["sweep", &plan.display().to_string(), "--live", "--quiet"];
        let done = clock.run(&folder, &sweep, || folder.journal().is_some(), seconds);
        assert!([0, 4].contains(&done.code) && folder.journal().is_none(), "{done:?}");
        assert!(begun.elapsed() < Duration::from_secs(60), "something waited for the clock");
    }
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
        let done = CommandOutput::of(child.wait_with_output().expect("it ends"), args);
        assert!(first.contains(said), "{first:?} {done:?}");
    }
    let mut other =
        space.inside(&folder.lastdrop(&["record", "--to", "http://[::1]:1/", "--listen", "127.0.0.1:8888"]));
    let done = CommandOutput::of(other.output().expect("it runs"), &[]);
    assert!(done.code == 2 && done.stderr.contains("cannot listen on 127.0.0.1:8888"), "{done:?}");
}

#[test]
fn a_limit_on_the_size_of_files_is_a_full_disk_and_no_end() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    // Blocks of 512 bytes: a log of requests soon reaches the limit.
    let log = folder.join("requests.csv").display().to_string();
    let args = ["run", &target.url(), "-c", "2", "-n", "24000", "-d", "60s", "--log", &log];
    let done = CommandOutput::of(after(&folder, "ulimit -f 3000", &args).output().expect("it runs"), &args);
    assert!(done.code >= 0 && done.stdout.contains("answered"), "{done:?}");
    assert!(done.stderr.contains("File too large"), "{done:?}");
    let written = unfinished(&folder).metadata().expect("it is there").len();
    assert!(written > 0 && written <= 3000 * 512, "{written}");
    // There is no room for a store, so the run is not stored.
    let args = ["run", &target.url(), "-c", "2", "-d", "2s", "--json", "-"];
    let first = format!("unset LASTDROP_STORE XDG_DATA_HOME && export HOME={} && ulimit -f 1", folder.path().display());
    let done = CommandOutput::of(after(&folder, &first, &args).output().expect("it runs"), &args);
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
