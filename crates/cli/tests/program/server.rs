//! The server's side: samples during a run, watch, real memory and size, traces and the guard, checked against real servers,
//! planted numbers and the kernel's own counts. Control groups and tracing need root, as in `./x test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{Apache, Folder, Target, free_port, get, json_of, number, processes_with, signal, wait_until};
use serde_json::Value;

fn looks(run: &Value) -> &Vec<Value> {
    run["server"]["looks"].as_array().unwrap_or_else(|| panic!("looks: {}", run["server"]))
}

/// Times at which something was counted, in seconds of the run.
fn when(run: &Value, count: impl Fn(&Value) -> f64) -> Vec<f64> {
    looks(run).iter().filter(|l| count(l) > 0.0).map(|l| number(&l["t_s"])).collect()
}

#[test]
fn an_overflowing_listen_queue_shows_in_its_second() {
    let folder = Folder::new();
    // From 2 s to 4 s after the first request nothing is answered: 200 connections compete for a queue of 4.
    let stall = ["--workers", "1", "--backlog", "4", "--stall-at", "2s", "--stall-for", "2s"];
    let target = Target::start(&folder, &stall);
    let args = ["run", &target.url(), "-r", "100", "-d", "5s", "--keepalive", "off", "--timeout", "4s"];
    let run = folder.json(&args, 0);
    // The seconds without responses show when it happened; a busy machine is late.
    let seconds = run["phases"][0]["seconds"].as_array().expect("seconds");
    let whole = seconds.iter().filter(|s| number(&s["t"]) < 5.0);
    let stalled = whole.min_by(|a, b| number(&a["answered"]).total_cmp(&number(&b["answered"])));
    let stalled = number(&stalled.expect("seconds")["t"]);
    // A sample in that second or in the neighbouring stalled one; or the first one after, if the machine had no time for one
    // before.
    let late = stalled + 2.5;
    let next = looks(&run).iter().map(|l| number(&l["t_s"])).find(|t| *t > late).unwrap_or(late);
    let seen_between = |from: f64| looks(&run).iter().any(|l| (from + 0.5..=late).contains(&number(&l["t_s"])));
    let near = |t: &f64| (stalled - 1.0..=if seen_between(stalled) { late } else { next }).contains(t);
    let at = when(&run, |l| l["kernel"]["ListenOverflows"].as_f64().unwrap_or(0.0));
    // The kernel counts those of all listeners, also of other tests.
    assert!(at.iter().any(near), "overflows at {at:?}, answers missing at {stalled}: {:#}", run["server"]);
    let full = when(&run, |l| f64::from(u8::from(number(&l["listen"][0]["queue"]) >= 4.0)));
    assert!(full.iter().any(near), "full at {full:?}, answers missing at {stalled}: {:#}", run["server"]);
    assert_eq!(run["server"]["looks"][0]["listen"][0]["limit"], 4);
    assert_eq!(number(&run["server"]["master"]), f64::from(target.child.id()));
    // Found by its socket only: its status page was not requested.
    assert_eq!(target.counts()["status_requests"], 1, "our own question only");
    // Stored with the run, and shown.
    let shown = folder.run(&["show", "last"]);
    assert!(shown.stdout.contains("ListenOverflows") && shown.stdout.contains("real memory"), "{shown:?}");
    let again = folder.json(&["show", "last"], 0);
    assert_eq!(again["server"], run["server"]);
}

#[test]
fn a_server_that_is_named_tells_its_scoreboard() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "3", "--service", "50ms"]);
    let server = format!("target@{}", target.url());
    let run = folder.json(&["run", &target.url(), "-c", "2", "-d", "3s", "--server", &server], 0);
    let busy = looks(&run).iter().filter_map(|l| l["busy"].as_f64()).fold(0.0, f64::max);
    assert!((2.0..=3.0).contains(&busy), "{busy}");
    let rate = looks(&run).iter().filter_map(|l| l["requests_rps"].as_f64()).fold(0.0, f64::max);
    assert!(rate > 10.0 && rate < 60.0, "two users of 50 ms: {rate}");
    assert_eq!(run["server"]["workers"].as_array().expect("workers").len(), 3);
}

/// A sample of a target with the given memory: means of private and shared bytes.
fn memory_of(folder: &Folder, memory: &str, shared: &str) -> (f64, f64) {
    let target = Target::start(folder, &["--workers", "6", "--memory", memory, "--shared-memory", shared]);
    wait_until("six workers", || target.scoreboard().is_some_and(|b| b.matches('_').count() >= 5));
    let args = ["watch", &format!("pid:{}", target.child.id()), "--once", "--interval", "300ms"];
    let watch = folder.json(&args, 0);
    let workers = watch["workers"].as_array().expect("workers");
    assert_eq!(workers.len(), 6);
    let mean = |field: &str| workers.iter().map(|w| number(&w[field])).sum::<f64>() / 6.0;
    let pss: f64 = workers.iter().map(|w| number(&w["pss_bytes"])).sum();
    assert!(number(&watch["real_memory_bytes"]) >= pss, "the master has some too");
    (mean("private_bytes"), mean("shared_bytes"))
}

#[test]
fn planted_private_and_shared_memory_are_seen() {
    let folder = Folder::new();
    // Differences, so that the program's own memory does not count.
    let (private_a, shared_a) = memory_of(&folder, "4M", "8M");
    let (private_b, shared_b) = memory_of(&folder, "20M", "8M");
    let (private_c, shared_c) = memory_of(&folder, "4M", "40M");
    let mb = 1_048_576.0;
    let near = |seen: f64, planted: f64| assert!((seen / planted - 1.0).abs() < 0.02, "{seen} of {planted}");
    near(private_b - private_a, 16.0 * mb);
    near(shared_c - shared_a, 32.0 * mb);
    assert!((shared_b - shared_a).abs() < mb && (private_c - private_a).abs() < mb);
}

/// A control group of the test, of version 1 or 2, whichever the machine has.
struct Cgroup {
    folder: PathBuf,
    v1: bool,
}

impl Cgroup {
    fn new(controller: &str) -> Cgroup {
        let name = format!("lastdrop-test-{}-{}", std::process::id(), free_port());
        let v1 = Path::new("/sys/fs/cgroup").join(controller);
        let (folder, v1) = if v1.is_dir() {
            (v1.join(name), true)
        } else {
            let _ = fs::write("/sys/fs/cgroup/cgroup.subtree_control", format!("+{controller}"));
            (Path::new("/sys/fs/cgroup").join(name), false)
        };
        fs::create_dir(&folder).expect("these tests make control groups: run them as root");
        Cgroup { folder, v1 }
    }

    fn set(&self, v1: &[(&str, &str)], v2: &[(&str, &str)]) {
        for (file, value) in if self.v1 { v1 } else { v2 } {
            fs::write(self.folder.join(file), value).unwrap_or_else(|e| panic!("{file}: {e}"));
        }
    }

    fn memory_limit(&self, bytes: u64) {
        let bytes = bytes.to_string();
        self.set(&[("memory.limit_in_bytes", &bytes)], &[("memory.max", &bytes)]);
        let _ = fs::write(self.folder.join("memory.swappiness"), "0");
        let _ = fs::write(self.folder.join("memory.swap.max"), "0");
    }

    fn oom_kills(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(if self.v1 { "memory.oom_control" } else { "memory.events" }));
        let text = text.expect("readable");
        text.lines().find_map(|l| l.strip_prefix("oom_kill ")?.trim().parse().ok()).expect("a count")
    }

    /// Total throttled time of its processes, in microseconds.
    fn throttled_us(&self) -> f64 {
        let text = fs::read_to_string(self.folder.join("cpu.stat")).expect("readable");
        let value = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<f64>().ok());
        value("throttled_usec ").or_else(|| Some(value("throttled_time ")? / 1e3)).expect("a time")
    }

    /// Starts the program in the group, as a process of its own, so that the group is charged for all of its memory.
    fn spawn(&self, folder: &Folder, args: &[&str]) -> Child {
        let program = folder.lastdrop(args);
        let mut command = Command::new("sh");
        let script = format!("echo $$ > '{}/cgroup.procs'; exec \"$0\" \"$@\"", self.folder.display());
        command.arg("-c").arg(script).arg(program.get_program()).args(program.get_args());
        command.env("LASTDROP_STATE", folder.join("state")).env("LASTDROP_STORE", folder.join("runs.sqlite"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("sh")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            let pids = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
            for pid in pids.lines().filter_map(|p| p.parse::<i32>().ok()) {
                // SAFETY: a plain call on processes that we started in a group of ours.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn end(mut child: Child) {
    signal(&child, libc::SIGTERM);
    let _ = child.wait();
}

#[test]
fn workers_that_fit_are_those_that_a_memory_group_sustains() {
    let folder = Folder::new();
    let budget = 300u64 << 20;
    let port = free_port();
    let config = folder.join("fit.toml");
    let settings = |workers: u64| {
        format!("workers = {workers}\nmemory = '6M'\nshared_memory = '40M'\nlisten = '127.0.0.1:{port}'\n")
    };
    fs::write(&config, settings(12)).expect("written");
    let args = ["target", "--config", config.to_str().expect("text")];
    let name = format!("target:{}", config.display());
    let url = format!("http://127.0.0.1:{port}/");

    let own = Cgroup::new("memory");
    let mut server = own.spawn(&folder, &args);
    wait_until("the target", || get(port, "/").is_some());
    let fit = ["size", &name, "--fit", "--url", &url, "--memory", "300M"];
    let size = folder.json(&fit, 0);
    // The restored server is another process, in the same group; ours was ended.
    let _ = server.wait();
    for pid in processes_with(&config.to_string_lossy()) {
        // SAFETY: a plain call on a process of ours.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
    wait_until("its end", || processes_with(&config.to_string_lossy()).is_empty());
    drop(own);
    let fits = number(&size["fits"]["independent"]);
    let ratio = number(&size["fit"]["cgroup_ratio"]);
    assert!((0.95..1.05).contains(&ratio), "anonymous Σ PSS against the control group: {ratio}\n{size:#}");
    let each = number(&size["fit"]["per_worker_bytes"]["value"]) / 1_048_576.0;
    assert!((6.0..6.6).contains(&each), "6 MB and what the kernel needs: {each}");
    assert_eq!(size["fit"]["growth"]["grows"], false, "{}", size["fit"]["growth"]);

    // The real maximum: the largest pool that starts within the limit without an OOM kill.
    let sustains = |workers: u64| {
        fs::write(&config, settings(workers)).expect("written");
        let group = Cgroup::new("memory");
        group.memory_limit(budget);
        let server = group.spawn(&folder, &args);
        let full = |board: &str| board.len() as u64 == workers && !board.contains(['.', 'S']);
        let mut all = false;
        for _ in 0..100 {
            thread::sleep(Duration::from_millis(50));
            let board = get(port, "/server-status?auto")
                .and_then(|page| page.lines().find_map(|l| l.strip_prefix("Scoreboard: ").map(str::to_string)));
            all = board.is_some_and(|b| full(&b));
            if all || group.oom_kills() > 0 {
                break;
            }
        }
        let kills = group.oom_kills();
        end(server);
        all && kills == 0
    };
    let (mut good, mut bad) = (10u64, 80u64);
    while bad - good > 1 {
        let middle = u64::midpoint(good, bad);
        if sustains(middle) { good = middle } else { bad = middle }
    }
    let error = fits / good as f64 - 1.0;
    println!("fits {fits}, sustained {good} ({:+.1} %); classic {}", error * 100.0, size["fits"]["classic_sharing"]);
    assert!(error.abs() <= 0.05, "{fits} were said to fit, {good} do\n{size:#}");
}

#[test]
fn growth_of_workers_is_found_and_split() {
    let folder = Folder::new();
    let planted = "workers = 8\nmemory = '4M'\nshared_memory = '32M'\nleak = '16k'\nunshare = '32k'";
    let target = Target::with_config(&folder, planted);
    let before = fs::read(folder.join("target.toml")).expect("readable");
    let fit = ["size", &target.name(), "--fit", "--url", &target.url(), "--memory", "400M", "--sizes", "3,5,8"];
    let size = folder.json(&fit, 0);
    let growth = &size["fit"]["growth"];
    let near = |field: &str, planted: f64| {
        let seen = number(&growth[field]["value"]);
        assert!((seen / planted - 1.0).abs() < 0.10, "{field}: {seen} of {planted}\n{growth:#}");
    };
    near("private_bytes", 48.0 * 1024.0);
    near("leaked_bytes", 16.0 * 1024.0);
    near("unshared_bytes", 32.0 * 1024.0);
    assert_eq!(growth["grows"], true);
    assert!(number(&growth["best_age"]) >= 1.0);
    assert_eq!(size["fit"]["points"].as_array().expect("points").len(), 3);
    assert!(size["notes"].to_string().contains("grow"), "{}", size["notes"]);
    assert!(number(&size["fits"]["worst_case"]) < number(&size["fits"]["independent"]));
    assert_eq!(fs::read(folder.join("target.toml")).expect("readable"), before);
    assert_eq!(target.scoreboard().map(|b| b.len()), Some(8), "put back");
}

#[test]
fn a_leak_and_a_preloaded_module_of_mod_perl_are_seen() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, |t| t.replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0"));
    let script =
        "our @kept; push @kept, 'x' x 20000; print \"Content-Type: text/plain\\n\\n\", scalar(@kept), \"\\n\";\n";
    fs::write(apache.folder.join("htdocs/perl/leak.pl"), script).expect("written");
    let before = apache.tree();
    let url = apache.url("/perl/leak.pl");
    let variants = ["--variant", "plain=", "--variant", "preloaded=PerlModule POSIX"];
    let mut args = vec!["size", "", "--fit", "--url", &url, "--memory", "400M", "--sizes", "4,6,8"];
    let name = apache.name();
    args[1] = &name;
    args.extend(variants);
    let size = folder.json(&args, 0);
    let leaked = number(&size["fit"]["growth"]["leaked_bytes"]["value"]);
    assert!((leaked / 20_000.0 - 1.0).abs() < 0.10, "20,000 bytes a request: {leaked}\n{:#}", size["fit"]);
    let rows = size["variants"].as_array().expect("variants");
    assert_eq!(rows.len(), 2, "{:#}", size["notes"]);
    let shared = |i: usize| number(&rows[i]["second"]["shared_bytes"]);
    assert!(shared(1) > shared(0), "what is loaded before the fork is shared: {rows:#?}");
    assert_eq!(apache.tree(), before);
}

#[test]
fn limits_of_control_groups_show_in_a_run() {
    let folder = Folder::new();
    // A twentieth of a core for a server that needs a whole one: less than any machine has available.
    let group = Cgroup::new("cpu");
    group.set(&[("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "5000")], &[("cpu.max", "5000 100000")]);
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let server = group.spawn(&folder, &["target", "--listen", &listen, "--workers", "2", "--service", "cpu 20ms"]);
    wait_until("the target", || get(port, "/").is_some());
    let before = group.throttled_us();
    let run = folder.json(&["run", &format!("http://{listen}/"), "-c", "2", "-d", "3s", "--timeout", "10s"], 0);
    let by_itself = group.throttled_us() - before;
    let sum = |look: &Value, field: &str| {
        let groups = look["cgroups"].as_array().expect("groups");
        groups.iter().map(|g| g[field].as_f64().unwrap_or(0.0)).sum::<f64>()
    };
    let throttled: f64 = looks(&run).iter().map(|l| sum(l, "throttled_us")).sum();
    // How much it is depends on the free CPU time.
    assert!(throttled > 0.0 && throttled <= by_itself, "throttled {throttled} µs of {by_itself}");
    let limit = looks(&run).iter().flat_map(|l| l["cgroups"].as_array().expect("groups").clone());
    assert!(limit.into_iter().any(|g| g["cpu_limit_cores"].as_f64() == Some(0.05)));
    end(server);
    drop(group);

    // Workers that leak until the group reaches its limit, and one is killed.
    let group = Cgroup::new("memory");
    group.memory_limit(40 << 20);
    let server = group.spawn(&folder, &["target", "--listen", &listen, "--workers", "2", "--leak", "256k"]);
    wait_until("the target", || get(port, "/").is_some());
    let run = folder.json(&["run", &format!("http://{listen}/"), "-r", "60", "-d", "5s", "--keepalive", "off"], 0);
    assert!(group.oom_kills() > 0);
    let killed = when(&run, |l| sum(l, "oom_kills"));
    let at_limit = when(&run, |l| sum(l, "memory_max"));
    assert!(!killed.is_empty() && !at_limit.is_empty(), "{killed:?} {at_limit:?}");
    // 40 MB at 256 kB per request and 60 requests per second: not before two seconds.
    assert!(killed[0] >= 2.0 && at_limit[0] <= killed[0], "{killed:?} {at_limit:?}");
    end(server);
    drop(group);

    // A limit of processes below the number of workers.
    let group = Cgroup::new("pids");
    if group.folder.join("pids.max").exists() {
        let limit = |n: &str| fs::write(group.folder.join("pids.max"), n).expect("written");
        limit("4");
        let server = group.spawn(&folder, &["target", "--listen", &listen, "--workers", "3"]);
        wait_until("the target", || get(port, "/").is_some());
        // From now on a master and two of its three workers are allowed; it tries to start the third again and again.
        let procs = || fs::read_to_string(group.folder.join("cgroup.procs")).expect("readable");
        wait_until("all workers", || procs().lines().count() == 4);
        limit("3");
        let pids = procs();
        let worker = pids.lines().filter_map(|p| p.parse::<i32>().ok()).find(|p| *p != server.id() as i32);
        // SAFETY: a plain call on a worker of the target that was started above.
        unsafe { libc::kill(worker.expect("a worker"), libc::SIGKILL) };
        let url = format!("http://{listen}/");
        let args = ["run", &url, "-c", "1", "-d", "3s"];
        let run = folder.json(&args, 0);
        let last = looks(&run).last().expect("a look");
        let pids = last["cgroups"].as_array().expect("groups").iter().find(|g| g["pids_limit"] == 3);
        assert_eq!(pids.expect("the limit")["pids"], 3, "{last:#}");
        let refused = when(&run, |l| sum(l, "pids_refused"));
        assert!(!refused.is_empty(), "{:#}", run["server"]);
        end(server);
    }
}

/// A target alone in a network namespace of its own.
struct IsolatedTarget {
    target: Child,
    pid: String,
}

impl IsolatedTarget {
    fn start(args: &[&str]) -> IsolatedTarget {
        let mut command = Command::new("unshare");
        command
            .args([
                "-n",
                "sh",
                "-c",
                "ip link set lo up && exec \"$0\" \"$@\"",
                env!("CARGO_BIN_EXE_lastdrop"),
                "target",
            ])
            .args(["--listen", "127.0.0.1:8080"])
            .args(args);
        let target = command.stderr(Stdio::null()).spawn().expect("unshare runs (these tests want root)");
        let pid = target.id().to_string();
        wait_until("the target in its namespace", || {
            fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default().contains(":1F90 ")
        });
        IsolatedTarget { target, pid }
    }

    /// The program, run inside.
    fn inside(&self, folder: &Folder, args: &[&str]) -> Command {
        let program = folder.lastdrop(args);
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid, "-n"]).arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs().filter_map(|(n, v)| Some((n, v?))) {
            command.env(name, value);
        }
        command
    }

    fn tell(&self, program: &str, args: &[&str]) {
        let done = Command::new("nsenter").args(["-t", &self.pid, "-n", program]).args(args).output().expect("nsenter");
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for IsolatedTarget {
    fn drop(&mut self) {
        signal(&self.target, libc::SIGTERM);
        let _ = self.target.wait();
    }
}

#[test]
fn a_server_in_another_network_namespace_is_seen_from_outside() {
    let folder = Folder::new();
    let server = IsolatedTarget::start(&["--workers", "1", "--backlog", "2", "--stall-for", "3s"]);
    let name = format!("pid:{}", server.pid);
    let watch = folder.lastdrop(&["watch", &name, "--once", "--interval", "3s", "--json", "-"]);
    let watch = { watch }.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("runs");
    thread::sleep(Duration::from_millis(300));
    let load = ["run", "http://127.0.0.1:8080/", "-r", "30", "-d", "2s", "--keepalive", "off", "--timeout", "1s"];
    let _ = server.inside(&folder, &load).stdout(Stdio::null()).stderr(Stdio::null()).status().expect("nsenter runs");
    let watch: Value = serde_json::from_slice(&watch.wait_with_output().expect("ends").stdout).expect("JSON");
    assert!(number(&watch["kernel"]["ListenOverflows"]) > 0.0, "{:#}", watch["kernel"]);
    assert_eq!((&watch["listen"][0]["address"], &watch["listen"][0]["limit"]), (&"127.0.0.1:8080".into(), &2.into()));
}

#[test]
fn of_servers_with_one_address_in_several_namespaces_our_own_is_meant() {
    let folder = Folder::new();
    let servers = [IsolatedTarget::start(&["--workers", "1"]), IsolatedTarget::start(&["--workers", "1"])];
    let name = "target@http://127.0.0.1:8080/";
    let look = ["watch", name, "--once", "--interval", "200ms", "--json", "-"];
    for server in &servers {
        let watch = json_of(server.inside(&folder, &look));
        assert_eq!(watch["master"].to_string(), server.pid, "{watch:#}");
    }
    // Neither of the others is a closer match.
    let outside = folder.run(&look);
    assert!(outside.code != 0 && outside.stderr.contains("could be any of "), "{outside:?}");
}

#[test]
fn a_shortage_of_local_ports_shows_in_its_second() {
    let folder = Folder::new();
    let server = IsolatedTarget::start(&["--workers", "2"]);
    // 100 ports, none of them reused within a minute; 60 connections per second use them up in the second second.
    server.tell("sh", &["-c", "echo 40000 40099 > /proc/sys/net/ipv4/ip_local_port_range"]);
    server.tell("sh", &["-c", "echo 0 > /proc/sys/net/ipv4/tcp_tw_reuse"]);
    // The side that closes first keeps the port in TIME_WAIT. With keep-alive on the server's side that is always the client,
    // however late it closes.
    let load = ["run", "http://127.0.0.1:8080/", "-r", "60", "-d", "6s", "--keepalive", "off", "--json", "-"];
    let args = [&load[..], &["-H", "Connection: keep-alive"]].concat();
    let run = json_of(server.inside(&folder, &args));
    assert_eq!(run["generator"]["local_ports"], 100);
    let refused = run["generator"]["connect_errors"].to_string();
    assert!(refused.contains("Cannot assign requested address"), "{refused}");
    let seconds = run["phases"][0]["seconds"].as_array().expect("seconds");
    let failed = seconds.iter().position(|s| number(&s["failed"]) > 0.0).expect("failures");
    let full = when(&run, |l| {
        assert_eq!(l["local_ports"], 100);
        f64::from(u8::from(number(&l["sockets"]["time_wait"]) >= 90.0))
    });
    // At 60 per second they last for more than a second, and longer on a busy machine.
    assert!(failed >= 1, "second {failed}");
    // The sample at the end of the second of the first failure, or a little earlier if half of the ports are of the wrong kind. A
    // late sample is still the next one.
    let near = |t: &f64| *t >= 1.5 && (t - failed as f64 - 1.0).abs() <= 2.1;
    assert!(full.first().is_some_and(near), "full at {full:?}, first failure in second {failed}");
    // Where to they were is asked in the measure of what that takes.
    let told = when(&run, |l| {
        let to_server = l["ports_held"]["to"] == "127.0.0.1:8080";
        f64::from(u8::from(to_server && number(&l["ports_held"]["time_wait"]) >= 90.0))
    });
    assert!(!told.is_empty(), "{:#}", run["server"]);
    let shown = folder.run(&["show", "last"]);
    assert!(shown.stdout.contains("closed connections to 127.0.0.1:8080 hold most local ports"), "{shown:?}");
}

#[test]
fn a_full_connection_table_shows_in_its_second() {
    let folder = Folder::new();
    let server = IsolatedTarget::start(&["--workers", "2"]);
    // A rule that needs connection tracking, so that the kernel keeps its table; it only counts.
    let rules = "add table inet t; add chain inet t c { type filter hook output priority 0; }; add rule inet t c ct state new counter";
    server.tell("nft", &[rules]);
    let max = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").expect("connection tracking");
    let max: u64 = max.trim().parse().expect("a number");
    let args = ["run", "http://127.0.0.1:8080/", "-r", "50", "-d", "60s", "--keepalive", "off", "--json", "-"];
    let load =
        server.inside(&folder, &args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("nsenter runs");
    thread::sleep(Duration::from_secs(2));
    // Datagrams from and to many ports, each an entry of the table.
    let pid = server.pid.clone();
    let flood = thread::spawn(move || {
        use std::os::fd::AsRawFd;
        let namespace = fs::File::open(format!("/proc/{pid}/ns/net")).expect("its namespace");
        // SAFETY: moves this thread, which ends with the flood, into the namespace of an open descriptor.
        assert_eq!(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
        let mut sent = 0;
        for _ in 0..=max / 60_000 + 1 {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
            for port in 1000..=61_000 {
                sent += u64::from(socket.send_to(b"", ("127.0.0.1", port)).is_ok());
            }
        }
        sent
    });
    let sent = flood.join().expect("ends");
    // There is a sample of the second in which it ended.
    thread::sleep(Duration::from_millis(1500));
    signal(&load, libc::SIGINT);
    let output = load.wait_with_output().expect("ends");
    let run: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let moved = |l: &Value| {
        let n = |name: &str| l["kernel"][name].as_f64().unwrap_or(0.0);
        n("conntrack_early_drop") + n("conntrack_drop")
    };
    let at = when(&run, moved);
    assert!(at.first().is_some_and(|t| *t > 1.5), "{sent} sent: {at:?}");
    let full =
        when(&run, |l| f64::from(u8::from(l["conntrack"].as_f64() >= l["conntrack_limit"].as_f64().map(|m| 0.99 * m))));
    // The table is reported full when it drops packets, not earlier.
    assert!(full.first().is_some_and(|t| *t >= at[0] - 1.1), "{full:?} {at:?}");
    assert_eq!(looks(&run)[0]["conntrack_limit"], max);
    let shown = folder.run(&["show", "last"]);
    assert!(shown.stdout.contains("conntrack_") && shown.stdout.contains("connection table"), "{shown:?}");
}

#[test]
fn a_worker_without_descriptors_shows_in_its_second() {
    let folder = Folder::new();
    let (port, config, dir) = (free_port(), folder.join("nginx.conf"), folder.path().display().to_string());
    // From second 2 on each user has one connection: 40 are too many for a worker with 30 descriptors.
    let text = format!(
        "worker_processes 1;\nworker_rlimit_nofile 30;\npid {dir}/nginx.pid;\nerror_log {dir}/error.log;\nevents {{ worker_connections 30; }}\n\
         http {{\n access_log off;\n server {{\n  listen 127.0.0.1:{port};\n  location / {{ return 200 ok; }}\n }}\n}}\n"
    );
    fs::write(&config, text).expect("written");
    let started =
        Command::new("/usr/sbin/nginx").arg("-c").arg(&config).output().expect("nginx (./x test installs it)");
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    wait_until("nginx", || get(port, "/").is_some());
    let url = format!("http://127.0.0.1:{port}/");
    let load = folder.lastdrop(&["run", &url, "-c", "2", "-d", "5s", "--think", "100ms", "--json", "-"]);
    let load = { load }.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("runs");
    thread::sleep(Duration::from_secs(2));
    let idle: Vec<_> = (0..40).filter_map(|_| std::net::TcpStream::connect(("127.0.0.1", port)).ok()).collect();
    let output = load.wait_with_output().expect("ends");
    drop(idle);
    let pid = fs::read_to_string(folder.join("nginx.pid")).expect("its pid").trim().parse::<i32>().expect("a number");
    // SAFETY: a plain call on the server that was started above.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    let run: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let near = when(&run, |l| {
        assert_eq!(l["fds_limit"].as_f64(), Some(30.0), "{l:#}");
        f64::from(u8::from(number(&l["fds"]) >= 27.0))
    });
    assert!(near.first().is_some_and(|t| *t >= 1.5), "{near:?}\n{:#}", run["server"]);
    assert!(fs::read_to_string(folder.join("error.log")).expect("a log").contains("24: Too many open files"));
    let shown = folder.run(&["show", "last"]);
    assert!(shown.stdout.contains("limit of open files"), "{shown:?}");
}

#[test]
fn nginx_and_php_fpm_are_watched_with_their_status_pages() {
    let folder = Folder::new();
    let port = free_port();
    let (config, dir) = (folder.join("nginx.conf"), folder.path().display());
    let text = format!(
        "worker_processes 2;\npid {dir}/nginx.pid;\nerror_log {dir}/error.log;\nevents {{}}\n\
         http {{\n access_log off;\n server {{\n  listen 127.0.0.1:{port} backlog=77;\n  location / {{ return 200 ok; }}\n  \
         location = /nginx_status {{ stub_status; }}\n }}\n}}\n"
    );
    fs::write(&config, text).expect("written");
    let started =
        Command::new("/usr/sbin/nginx").arg("-c").arg(&config).output().expect("nginx runs (./x test installs it)");
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    wait_until("nginx", || get(port, "/").is_some());
    let watch = folder.json(&["watch", &format!("nginx:{}", config.display()), "--once", "--interval", "500ms"], 0);
    let pid = fs::read_to_string(folder.join("nginx.pid")).expect("its pid").trim().parse::<i32>().expect("a number");
    assert_eq!((number(&watch["master"]), watch["workers"].as_array().map(Vec::len)), (f64::from(pid), Some(2)));
    assert_eq!(watch["listen"][0]["limit"], 77, "{watch:#}");
    assert!(watch["busy"].is_number(), "stub_status: {watch:#}");
    // SAFETY: a plain call on the server that was started above.
    unsafe { libc::kill(pid, libc::SIGTERM) };

    let program = fs::read_dir("/usr/sbin")
        .expect("readable")
        .filter_map(|e| Some(e.ok()?.path()))
        .find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("php-fpm")))
        .expect("PHP-FPM (./x test installs it)");
    for listen in [format!("127.0.0.1:{}", free_port()), folder.join("fpm.sock").display().to_string()] {
        let config = folder.join("fpm.conf");
        let text = format!(
            "[global]\npid = {dir}/fpm.pid\nerror_log = {dir}/fpm.log\n[www]\nuser = www-data\ngroup = www-data\nlisten = {listen}\n\
             listen.backlog = 33\npm = static\npm.max_children = 3\npm.status_path = /fpm-status\n"
        );
        fs::write(&config, text).expect("written");
        let fpm =
            Command::new(&program).arg("-F").arg("-y").arg(&config).stderr(Stdio::null()).spawn().expect("starts");
        wait_until("three children", || crate::common::servers::children_of(fpm.id() as i32) == 3);
        let name = format!("php-fpm:{}", config.display());
        let watch = folder.json(&["watch", &name, "--once", "--interval", "500ms"], 0);
        let workers = watch["workers"].as_array().expect("workers");
        assert_eq!(workers.len(), 3, "{watch:#}");
        assert!(workers.iter().all(|w| w["requests"].is_number()), "the full status page: {watch:#}");
        assert_eq!(watch["scoreboard"].as_str().map(str::len), Some(3));
        assert_eq!(watch["listen"][0]["limit"], 33, "{watch:#}");
        end(fpm);
    }
}

#[test]
fn a_recording_is_shown_again_and_a_cut_one_says_where() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "2"]);
    let name = format!("pid:{}", target.child.id());
    let file = folder.join("watch.jsonl");
    let path = file.to_str().expect("text");
    let recorded = folder.run(&["watch", &name, "--interval", "200ms", "-d", "1500ms", "--record", path]);
    assert_eq!(recorded.code, 0, "{recorded:?}");
    let shown = folder.run(&["watch", "--replay", path]);
    assert!(shown.code == 0 && shown.stdout == recorded.stdout, "{recorded:?}\n{shown:?}");
    let text = fs::read_to_string(&file).expect("readable");
    fs::write(&file, &text[..text.len() - 40]).expect("written");
    let torn = folder.run(&["watch", "--replay", path]);
    assert!(torn.code == 1 && torn.stderr.contains("line "), "{torn:?}");
    let nobody = folder.run(&["watch", "pid:1999999999", "--once"]);
    assert!(nobody.code == 1 && nobody.stderr.contains("no process"), "{nobody:?}");
}

#[test]
fn a_trace_finds_htaccess_and_virtual_paths_and_their_absence() {
    let folder = Folder::new();
    // Documents four folders below the first one that may be overridden.
    let apache = Apache::start_with(&folder, |t| {
        let overrides = "<Directory \"/\">\nAllowOverride All\n</Directory>\n";
        t.replace("AllowOverride None", "AllowOverride All")
            .replace("KeepAlive Off", &format!("KeepAlive Off\n{overrides}"))
    });
    let trace = |path: &str, more: &[&str]| {
        let (name, url) = (apache.name(), apache.url(path));
        let mut args = vec!["trace", &name, "--url", &url, "-n", "10"];
        args.extend(more);
        folder.json(&args, 0)
    };
    let rows = |trace: &Value, test: &dyn Fn(&Value) -> bool| {
        trace["calls"].as_array().expect("calls").iter().filter(|r| test(r)).cloned().collect::<Vec<_>>()
    };
    let htaccess = |r: &Value| r["path"].as_str().expect("text").ends_with("/.htaccess");
    let before = trace("/index.html", &[]);
    assert_eq!(before["requests"], 10);
    // Each folder of the path once per request: the root, /tmp, the test's folder, its apache, htdocs.
    let depth = apache.folder.components().count() + 1;
    let found = rows(&before, &|r| htaccess(r) && r["error"] == "ENOENT");
    assert_eq!(found.len(), depth, "{found:#?}");
    for row in &found {
        assert!((number(&row["per_request"]) - 1.0).abs() < 0.01 && number(&row["us_per_request"]) > 0.0, "{row}");
    }
    let kinds = |trace: &Value| -> Vec<String> {
        let kinds = trace["kinds"].as_array().expect("kinds");
        kinds.iter().map(|k| k["kind"].as_str().expect("text").to_string()).collect()
    };
    assert!(kinds(&before).contains(&"htaccess".to_string()));
    let missing = trace("/app/list/7", &[]);
    assert!(kinds(&missing).contains(&"virtual-path".to_string()), "{:#}", missing["kinds"]);
    let file = folder.join("before.json");
    fs::write(&file, before.to_string()).expect("written");

    let config = fs::read_to_string(apache.config()).expect("readable");
    fs::write(apache.config(), config.replace("AllowOverride All", "AllowOverride None")).expect("written");
    let reloaded = Command::new("/usr/sbin/apache2").arg("-f").arg(apache.config()).args(["-k", "graceful"]).output();
    assert!(reloaded.expect("apache2 runs").status.success());
    let mut after = trace("/index.html", &[]);
    wait_until("workers with the new configuration", || {
        let is_old = !rows(&after, &htaccess).is_empty();
        if is_old {
            after = trace("/index.html", &[]);
        }
        !is_old
    });
    assert_eq!(rows(&after, &htaccess), Vec::<Value>::new());
    assert!(!kinds(&after).contains(&"htaccess".to_string()));
    let (name, url, file) = (apache.name(), apache.url("/index.html"), file.display().to_string());
    let compared = folder.run(&["trace", &name, "--url", &url, "--against", &file]);
    assert!(compared.stdout.contains("before") && compared.stdout.contains(".htaccess"), "{compared:?}");
}

#[test]
fn a_trace_changes_a_setting_itself_and_puts_it_back() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, |t| {
        let overrides = "<Directory \"/\">\nAllowOverride All\n</Directory>\n";
        t.replace("KeepAlive Off", &format!("KeepAlive Off\n{overrides}"))
    });
    let tree = apache.tree();
    let (name, url) = (apache.name(), apache.url("/index.html"));
    let with = |directives: &str| folder.run(&["trace", &name, "--url", &url, "-n", "10", "--with", directives]);
    let traced = with("<Directory />; AllowOverride None; </Directory>");
    assert_eq!(traced.code, 0, "{traced:?}");
    let table = traced.stdout.split("before:").nth(1).expect("a table");
    // The folders above the documents, for which the test's configuration has no rule.
    let gone: Vec<&str> = table.lines().filter(|l| l.contains("/.htaccess")).collect();
    assert!(!gone.is_empty() && gone.iter().all(|l| l.contains("1.00") && l.contains("0.00")), "{table}");
    assert_eq!(apache.tree(), tree, "put back");
    let wrong = with("NoSuchDirective On");
    assert!(wrong.code == 1 && wrong.stderr.contains("NoSuchDirective"), "{wrong:?}");
    assert_eq!(apache.tree(), tree, "put back");
    assert!(get(apache.port, "/index.html").is_some());
}

#[test]
fn the_guard_keeps_a_leaking_pool_in_order_and_no_request_fails() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, |t| {
        t.replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0").replace("StartServers 5", "StartServers 8")
    });
    let script = "our @kept; push @kept, 'x' x 400000; print \"Content-Type: text/plain\\n\\nok\\n\";\n";
    fs::write(apache.folder.join("htdocs/perl/leak.pl"), script).expect("written");
    let (name, url) = (apache.name(), apache.url("/perl/leak.pl"));
    // 80 requests per second leak 32 MB per second.
    let load = ["run", &url, "-r", "80", "-d", "9s", "--keepalive", "off", "--timeout", "20s"];
    let largest = |run: &Value| looks(run).iter().filter_map(|l| l["real_memory_bytes"].as_f64()).fold(0.0, f64::max);
    let limit = 200.0 * 1_048_576.0;

    // Without --act the guard changes nothing.
    let dry = folder.run(&["guard", &name, "--max-age", "100ms", "--every", "300ms", "-d", "2s"]);
    assert!(dry.code == 0 && dry.stdout.contains("would replace") && dry.stdout.contains("--act"), "{dry:?}");
    let log = folder.join("guard.log").display().to_string();
    let args = ["guard", &name, "--memory", "200M", "--every", "250ms", "--act", "--log", &log];
    let mut guard = folder.lastdrop(&args).stdout(Stdio::null()).spawn().expect("runs");
    let run = folder.json(&load, 0);
    signal(&guard, libc::SIGINT);
    assert_eq!(guard.wait().expect("ends").code(), Some(130), "a clean stop");
    let requests = &run["phases"][0]["requests"];
    assert_eq!((&requests["answered"], &requests["due"]), (&720.into(), &720.into()), "{requests}");
    assert!(largest(&run) < limit, "{} MB", largest(&run) / 1_048_576.0);
    let log = fs::read_to_string(log).expect("readable");
    assert!(log.matches("has left").count() >= 3, "{log}");

    // As many requests without it.
    let done = folder.run(&["run", &url, "-c", "8", "-n", "720", "--keepalive", "off", "--timeout", "20s"]);
    assert_eq!(done.code, 0, "{done:?}");
    let watch = folder.json(&["watch", &name, "--once", "--interval", "200ms"], 0);
    let used = number(&watch["real_memory_bytes"]);
    assert!(used > limit, "{} MB", used / 1_048_576.0);
}

/// The same command without perf: root finds perf in the system's folders, whatever PATH says, so they are hidden.
fn without_perf(command: &Command) -> Command {
    let hide = "for perf in /usr/local/sbin/perf /usr/local/bin/perf /usr/sbin/perf /usr/bin/perf; do \
                [ ! -e $perf ] || mount --bind /dev/null $perf || exit 1; done; exec \"$@\"";
    let mut hidden = Command::new("unshare");
    hidden.args(["--mount", "sh", "-c", hide, "sh"]).arg(command.get_program()).args(command.get_args());
    hidden.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    hidden
}

#[test]
fn a_profile_finds_the_function_that_burns_the_time() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, |t| t.replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0"));
    let (name, url) = (apache.name(), apache.url("/perl/heavy.pl"));
    let flame = folder.join("flame.svg").display().to_string();
    let args = ["profile", &name, "--url", &url, "-c", "3", "-d", "2s"];
    let home = folder.join("home");
    fs::create_dir(&home).expect("made");
    let with = [&args[..], &["--flame", &flame, "--json", "-"]].concat();
    let output = folder.lastdrop(&with).env("HOME", &home).output().expect("runs");
    let profile: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(!home.join(".debug").exists(), "perf keeps no copies of what was profiled");
    assert!(number(&profile["requests"]) > 0.0 && number(&profile["us_per_request"]) > 0.0, "{profile:#}");
    assert!(profile["how"].as_str().expect("text").starts_with("perf"), "./x test installs perf: {profile:#}");
    // Ten thousand logarithms: Perl and the mathematical library take the time. The kernel's share depends on the machine.
    let burns = |l: &Value| ["libperl", "libm."].iter().any(|n| l["name"].as_str().expect("text").contains(n));
    let libraries = profile["libraries"].as_array().expect("libraries");
    let share: f64 = libraries.iter().filter(|l| burns(l)).map(|l| number(&l["share"])).sum();
    let others = libraries.iter().filter(|l| !burns(l)).map(|l| number(&l["share"])).fold(0.0, f64::max);
    assert!(share > others, "{:#}", profile["libraries"]);
    assert!(fs::read_to_string(&flame).expect("written").contains("Perl_"));
    // Without perf the report says so, and what it could see.
    let without = without_perf(&folder.lastdrop(&[&args[..], &["--json", "-"]].concat())).output();
    let without: Value = serde_json::from_slice(&without.expect("runs").stdout).expect("JSON");
    assert_eq!(without["how"], "/proc");
    assert!(without["notes"].to_string().contains("perf") && number(&without["samples"]) > 0.0, "{without:#}");
}

#[test]
fn a_stuck_worker_is_ended_and_another_takes_its_place() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "3", "--hang-every", "1"]);
    let hanging = thread::spawn({
        let port = target.port;
        move || get(port, "/")
    });
    let stuck = || {
        let counts = target.counts();
        let workers = counts["workers"].as_array().expect("workers").clone();
        workers.iter().find(|w| w["state"] == "W" && w["requests"] == 1).map(|w| number(&w["pid"]))
    };
    wait_until("a worker at work", || stuck().is_some());
    let pid = stuck().expect("there");
    let name = format!("target@{}", target.url());
    let none = folder.run(&["guard", &name, "--act"]);
    assert!(none.code == 2 && none.stderr.contains("--max-private"), "{none:?}");
    let done = folder.run(&["guard", &name, "--stuck", "1s", "--every", "500ms", "--act", "-d", "4s"]);
    assert!(done.code == 0 && done.stdout.contains(&format!("replacing {pid}: stuck")), "{done:?}");
    assert!(done.stdout.contains(&format!("{pid} has left")), "{done:?}");
    wait_until("a whole pool", || target.scoreboard().is_some_and(|b| b.len() == 3 && !b.contains('.')));
    let _ = hanging.join();
}

#[test]
fn a_profile_goes_on_when_workers_leave() {
    let folder = Folder::new();
    // Each worker serves five requests, so there is always one that has just ended.
    let target = Target::with_config(&folder, "workers = 8\nmax_requests_per_worker = 5\nservice = '2ms'");
    let args = ["profile", &target.name(), "--url", &target.url(), "-c", "8", "-d", "4s"];
    let document = folder.json(&args, 0);
    assert!(document["how"].to_string().contains("perf"), "{document:#}");
    assert!(document["samples"].as_u64().is_some_and(|n| n > 0), "{document:#}");
    // Twenty times as many workers have left.
    assert!(target.counts()["requests"].as_u64() > Some(800), "{}", target.counts());
}

/// User and system time of a process and its children, ended ones included, in seconds, from /proc.
fn processor_time(pid: u32) -> f64 {
    let ticks = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<u64> =
            stat.rsplit(')').next().unwrap_or("").split_whitespace().map(|w| w.parse().unwrap_or(0)).collect();
        // The state is the first field after the name; utime is the 14th of all fields, cstime the 17th.
        fields.get(11..15).map_or(0, |times| times.iter().sum::<u64>())
    };
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let all = children.split_whitespace().filter_map(|child| child.parse().ok()).chain([pid]);
    all.map(ticks).sum::<u64>() as f64 / 100.0
}

#[test]
fn a_request_costs_the_same_processor_time_to_run_size_doctor_and_the_kernel() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 3\nservice = 'cpu 10ms'");
    // Another program computes meanwhile: none of its time is the server's.
    let mut other = Command::new("perl").args(["-e", "alarm 120; 1 while 1"]).spawn().expect("perl");
    let before = processor_time(target.child.id());
    let run = folder.json(&["run", &target.url(), "-c", "2", "-d", "3s"], 0);
    let used = processor_time(target.child.id()) - before;
    let by_kernel = used * 1e6 / number(&run["phases"][0]["requests"]["answered"]);
    let by_run = number(&run["phases"][0]["server_cpu"]["us_per_request"]);
    let size = folder.json(&["size", &target.name(), "--url", &target.url(), "--memory", "1G"], 0);
    let by_size = number(&size["workers_advice"]["cpu_us_per_request"]);
    let doctor =
        folder.json(&["doctor", &target.name(), "--url", &target.url(), "-c", "4", "-d", "2s", "--no-store"], 0);
    let steps = doctor["examination"]["steps"].as_array().expect("steps");
    let main = steps.iter().find(|s| s["kind"] == "main").expect("the load");
    let by_doctor = number(&main["server_cpu_s"]) * 1e6 / number(&main["answered"]);
    let _ = other.kill();
    let _ = other.wait();
    for (whose, cost) in [("run", by_run), ("size", by_size), ("doctor", by_doctor)] {
        assert!((cost / by_kernel - 1.0).abs() < 0.10, "{whose}: {cost} µs, by the kernel {by_kernel} µs");
    }
    assert!(by_kernel > 8_000.0, "it computes for 10 ms: {by_kernel}");
}
