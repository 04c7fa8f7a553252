//! The host as a server: sysctls of a network namespace and limits of processes, really set in namespaces that the tests create
//! (they need root), and restored whatever happens in between. The machine's own settings stay unchanged.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::common::{CommandOutput, Folder, Namespace, as_nobody, free_port, json_of, signal, wait_until};
use lastdrop_model::{Setting, Settings};
use lastdrop_server::{Host, HostSession, OtherTrafficPolicy, ServerRef};
use serde_json::Value;

/// Not a test of its own: the session of another process, which obeys lines on stdin and may be killed.
#[test]
#[ignore = "the other process of the tests"]
fn session_of_another_process() {
    let server: ServerRef = std::env::var("HOST_SERVER").expect("a server").parse().expect("a name");
    let others =
        OtherTrafficPolicy { host_wide: std::env::var_os("HOST_WIDE").is_some(), ..OtherTrafficPolicy::default() };
    let opened = Host::find(&server).and_then(|host| HostSession::open(host, &others));
    let mut session = match opened {
        Ok(session) => session,
        Err(e) => return println!("\ntold: {e}"),
    };
    println!("\ntold: open");
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let settings: Settings = rest
            .split(';')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_string(), Setting::read(value)))
            .collect();
        let done = match word {
            "apply" => session.apply(settings).map(|()| "applied".to_string()),
            "keep" => session.keep(&settings).map(|kept| format!("kept {kept}")),
            _ => session.restore().map(|restored| format!("restored {:?}", restored.differences)),
        };
        println!("told: {}", done.unwrap_or_else(|e| e.to_string()).replace('\n', " "));
    }
}

/// A process with such a session.
struct Session {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

fn command(folder: &Folder, server: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["host::session_of_another_process", "--exact", "--ignored", "--nocapture"])
        .env("LASTDROP_STATE", folder.join("state"))
        .env("HOST_SERVER", server);
    command
}

impl Session {
    /// Starts one and waits until its session is open.
    fn open(folder: &Folder, server: &str) -> Session {
        let (session, told) = Session::start(command(folder, server));
        assert_eq!(told, "open");
        session
    }

    /// Starts one, and returns its first answer.
    fn start(mut command: Command) -> (Session, String) {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = piped.spawn().expect("it starts");
        let (orders, answers) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let mut session = Session { child, orders, answers: BufReader::new(answers) };
        let told = session.answer();
        (session, told)
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        while self.answers.read_line(&mut line).is_ok_and(|n| n > 0) {
            if let Some(told) = line.trim_end().strip_prefix("told: ") {
                return told.into();
            }
            line.clear();
        }
        "nothing".into()
    }

    fn tell(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    /// Sends an order without waiting; a killed process takes none.
    fn order(&mut self, order: &str) {
        let _ = writeln!(self.orders.as_mut().expect("open"), "{order}");
    }

    fn kill(&mut self) {
        self.child.kill().expect("ours");
        self.child.wait().expect("ends");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A namespace with a server.
struct Site {
    namespace: Namespace,
    server: Child,
    port: u16,
}

impl Site {
    fn new(folder: &Folder) -> Site {
        Site::with(folder, &["--workers", "2"])
    }

    fn with(folder: &Folder, args: &[&str]) -> Site {
        let namespace = Namespace::new();
        // The port is also free in the machine's own namespace, so that the name is unambiguous.
        let port = free_port();
        let server = Site::listen(folder, &namespace, port, args);
        Site { namespace, server, port }
    }

    fn listen(folder: &Folder, namespace: &Namespace, port: u16, args: &[&str]) -> Child {
        let listen = format!("127.0.0.1:{port}");
        let target = folder.lastdrop(&[&["target", "--listen", &listen], args].concat());
        let server = namespace.inside(&target).stderr(Stdio::null()).spawn().expect("nsenter runs");
        wait_until("the server in its namespace", || send_queue(namespace, port).is_some());
        server
    }

    fn name(&self) -> String {
        format!("host@http://127.0.0.1:{}/", self.port)
    }

    fn get(&self, name: &str) -> String {
        value(&self.namespace, name)
    }

    /// The server and its workers.
    fn processes(&self) -> Vec<u32> {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.server.id()));
        let children = children.unwrap_or_else(|_| {
            let ps = Command::new("pgrep").args(["-P", &self.server.id().to_string()]).output().expect("pgrep runs");
            String::from_utf8_lossy(&ps.stdout).into_owned()
        });
        std::iter::once(self.server.id()).chain(children.split_whitespace().filter_map(|p| p.parse().ok())).collect()
    }

    /// Their soft limits of open files.
    fn limits(&self) -> Vec<u64> {
        self.processes().into_iter().map(|pid| limit_of(pid).0).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        end(&mut self.server);
    }
}

/// Ends a server with SIGTERM, so that its workers end, too.
fn end(server: &mut Child) {
    if server.try_wait().is_ok_and(|status| status.is_none()) {
        signal(server, libc::SIGTERM);
        let _ = server.wait();
    }
}

/// Soft and hard limit.
fn limit_of(pid: u32) -> (u64, u64) {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).expect("readable");
    let line = text.lines().find(|l| l.starts_with("Max open files")).expect("its line");
    let values: Vec<u64> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    (values[0], values[1])
}

/// The value of a sysctl inside a namespace.
fn value(namespace: &Namespace, name: &str) -> String {
    let mut cat = Command::new("cat");
    cat.arg(format!("/proc/sys/{}", name.replace('.', "/")));
    let done = namespace.inside(&cat).output().expect("nsenter runs");
    String::from_utf8_lossy(&done.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The value of a sysctl where the tests run.
fn own_value(name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).expect("readable");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The limit of a listen queue, from ss inside.
fn send_queue(namespace: &Namespace, port: u16) -> Option<u64> {
    let mut ss = Command::new("ss");
    ss.args(["-Hltn", &format!("sport = :{port}")]);
    let done = namespace.inside(&ss).output().expect("ss runs");
    String::from_utf8_lossy(&done.stdout).split_whitespace().nth(2)?.parse().ok()
}

fn journals(folder: &Folder) -> usize {
    let Ok(entries) = fs::read_dir(folder.join("state")) else { return 0 };
    entries.filter_map(Result::ok).filter(|e| e.path().extension().is_some_and(|e| e == "journal")).count()
}

/// Restores what was left, and asserts that it succeeds.
fn restore(folder: &Folder) -> String {
    let done = folder.run(&["restore"]);
    assert_eq!((done.code, journals(folder)), (0, 0), "{done:?}");
    done.stdout
}

/// Settings that each namespace has for itself, with another value.
const OF_A_NAMESPACE: &[(&str, &str)] = &[
    ("net.core.somaxconn", "128"),
    ("net.ipv4.tcp_max_syn_backlog", "333"),
    ("net.ipv4.ip_local_port_range", "20000 29999"),
    ("net.ipv4.tcp_tw_reuse", "1"),
    ("net.netfilter.nf_conntrack_tcp_timeout_established", "3333"),
    ("net.netfilter.nf_conntrack_tcp_timeout_time_wait", "33"),
    ("net.netfilter.nf_conntrack_tcp_timeout_close_wait", "22"),
];

/// The settings that this kernel has.
fn of_a_namespace() -> Vec<(&'static str, &'static str)> {
    let is_there = |name: &str| Path::new(&format!("/proc/sys/{}", name.replace('.', "/"))).exists();
    OF_A_NAMESPACE.iter().copied().filter(|(name, _)| is_there(name)).collect()
}

fn row<'a>(knobs: &'a Value, name: &str) -> &'a Value {
    knobs["knobs"].as_array().expect("knobs").iter().find(|k| k["name"] == name).unwrap_or(&Value::Null)
}

#[test]
fn the_settings_of_the_host_are_listed_with_where_they_are_from() {
    let folder = Folder::new();
    let site = Site::new(&folder);
    site.namespace.set("net.core.somaxconn", "300");
    // From inside, it is our own namespace, and the name has no process.
    let knobs = json_of(site.namespace.inside(&folder.lastdrop(&["knobs", "host", "--json", "-"])));
    let somaxconn = row(&knobs, "net.core.somaxconn");
    assert_eq!((&somaxconn["value"], &somaxconn["needs"]), (&300.into(), &"sysctl".into()));
    assert_eq!(somaxconn["source"], "/proc/sys/net/core/somaxconn, of this network namespace");
    assert_eq!((&somaxconn["range"], &somaxconn["default"]), (&serde_json::json!([1, 65535]), &4096.into()));
    assert_eq!(row(&knobs, "net.ipv4.ip_local_port_range")["value"], site.get("net.ipv4.ip_local_port_range"));
    assert_eq!(row(&knobs, "vm.swappiness")["source"], "/proc/sys/vm/swappiness, of the whole machine");
    let fin = row(&knobs, "net.ipv4.tcp_fin_timeout");
    assert!(fin["value"] == 60 && fin["constraint"].to_string().contains("useless for TIME_WAIT"), "{fin}");
    assert!(fin["range"].is_null(), "{fin}");
    // In a new namespace the kernel does not show the general settings of devices.
    assert!(row(&knobs, "nofile").is_null() && row(&knobs, "net.core.default_qdisc").is_null(), "{knobs:#}");
    // From outside it is the namespace of the listening process.
    let knobs = folder.json(&["knobs", &site.name()], 0);
    assert_eq!(row(&knobs, "net.core.somaxconn")["value"], 300);
    assert_eq!(row(&knobs, "nofile")["value"], limit_of(site.server.id()).0);
    let about = format!("that of process {} (lastdrop), not ours", site.server.id());
    assert!(knobs["notes"][0].to_string().contains(&about), "{}", knobs["notes"]);
    let text = folder.run(&["knobs", &site.name()]).stdout;
    assert!(text.contains("of this network namespace") && text.contains("hard limit"), "{text}");
    for (server, words) in
        [("host@http://127.0.0.1:1/", "nobody who can be seen listens"), ("host:x", "no configuration file")]
    {
        let done = folder.run(&["knobs", server]);
        assert!(done.code != 0 && done.stderr.contains(words), "{done:?}");
    }
    let watch = folder.run(&["watch", "host", "--once"]);
    assert!(watch.code == 1 && watch.stderr.contains("no process that is it"), "{watch:?}");
}

#[test]
fn each_setting_of_a_namespace_acts_there_and_nowhere_else() {
    let folder = Folder::new();
    let site = Site::new(&folder);
    let other = Namespace::new();
    let all = of_a_namespace();
    let state = |get: &dyn Fn(&str) -> String| all.iter().map(|(name, _)| get(name)).collect::<Vec<_>>();
    let before = state(&|name| site.get(name));
    let elsewhere = || (state(&own_value), state(&|name| value(&other, name)));
    let before_elsewhere = elsewhere();
    let mut session = Session::open(&folder, &site.name());
    for (name, wanted) in &all {
        assert_eq!(session.tell(&format!("apply {name}={wanted}")), "applied");
        assert_eq!(site.get(name), *wanted);
    }
    // Each trial undoes the settings of the one before.
    let (last, wanted) = all[all.len() - 1];
    let expected: Vec<String> = all
        .iter()
        .zip(&before)
        .map(|((name, _), was)| if *name == last { wanted.into() } else { was.clone() })
        .collect();
    assert_eq!(state(&|name| site.get(name)), expected);
    let pairs: Vec<String> = all.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(session.tell(&format!("apply {}", pairs.join(";"))), "applied");
    assert_eq!(state(&|name| site.get(name)), all.iter().map(|(_, value)| (*value).to_string()).collect::<Vec<_>>());
    assert_eq!(elsewhere(), before_elsewhere, "another namespace has its own");
    assert_eq!(session.tell("restore"), "restored []");
    assert_eq!((state(&|name| site.get(name)), journals(&folder)), (before, 0));
}

#[test]
fn a_listener_that_begins_meanwhile_has_the_queue_that_was_set() {
    let folder = Folder::new();
    let site = Site::with(&folder, &["--workers", "1", "--backlog", "600"]);
    assert_eq!(send_queue(&site.namespace, site.port), Some(600));
    let mut session = Session::open(&folder, &site.name());
    for limit in [128, 500] {
        assert_eq!(session.tell(&format!("apply net.core.somaxconn={limit}")), "applied");
        let port = free_port();
        let mut second = Site::listen(&folder, &site.namespace, port, &["--workers", "1", "--backlog", "600"]);
        assert_eq!(send_queue(&site.namespace, port), Some(limit));
        end(&mut second);
    }
    // The existing listener keeps its limit, as the list says.
    assert_eq!(send_queue(&site.namespace, site.port), Some(600));
}

#[test]
fn a_limit_of_open_files_reaches_all_processes_and_goes_again() {
    let folder = Folder::new();
    let site = Site::with(&folder, &["--workers", "3", "--max-requests-per-worker", "1"]);
    let (soft, hard) = limit_of(site.server.id());
    let same = |limit: u64| site.limits().iter().all(|l| *l == limit);
    let prlimit = |pid: u32, soft: u64| {
        let args = [format!("--pid={pid}"), format!("--nofile={soft}:")];
        assert!(Command::new("prlimit").args(args).status().expect("prlimit runs").success());
    };
    // One worker has another limit, which it has again whenever ours is undone.
    let worker = site.processes()[1];
    prlimit(worker, 700);
    let mut session = Session::open(&folder, &site.name());
    assert_eq!(session.tell("apply nofile=320"), "applied");
    assert!(same(320), "{:?}", site.limits());
    assert_eq!(session.tell("apply"), "applied");
    assert_eq!(site.limits(), [soft, 700, soft, soft]);
    assert_eq!(session.tell("apply nofile=319"), "applied");
    prlimit(worker, 701);
    let told = session.tell("apply nofile=318");
    assert!(told.contains(&format!("nofile of process {worker} to 701 meanwhile (it was 700)")), "{told}");
    let told = session.tell("restore");
    assert!(told.contains(&format!("nofile of process {worker}: was 700, is 701: somebody else")), "{told}");
    assert_eq!(site.limits(), [soft, 701, soft, soft]);
    prlimit(worker, soft);
    drop(session);
    let mut session = Session::open(&folder, &site.name());
    assert_eq!(session.tell("apply nofile=321"), "applied");
    assert!(same(321) && limit_of(site.server.id()).1 == hard, "{:?}", site.limits());
    let high = session.tell(&format!("apply nofile={}", hard + 1));
    assert!(high.contains("above the hard limit") && same(321), "{high}");
    assert_eq!(session.tell("apply nofile=322"), "applied");
    assert!(same(322), "{:?}", site.limits());
    // A worker that starts meanwhile inherits the limit, and is restored, too.
    let old = site.processes();
    let mut get = Command::new("curl");
    get.args(["-s", "-o", "/dev/null", &format!("http://127.0.0.1:{}/", site.port)]);
    wait_until("a new worker", || {
        assert!(site.namespace.inside(&get).status().expect("curl runs").success());
        site.processes().len() == 4 && site.processes().iter().any(|pid| !old.contains(pid))
    });
    session.kill();
    assert!(restore(&folder).contains("put back as it was found"));
    wait_until("all limits as they were", || same(soft));
}

#[test]
fn a_dry_run_lists_sysctls_and_limits_and_sets_neither() {
    let folder = Folder::new();
    let site = Site::new(&folder);
    let (before, soft) = (site.get("net.core.somaxconn"), limit_of(site.server.id()).0);
    let mut session = Session::open(&folder, &site.name());
    assert_eq!(session.tell("apply net.core.somaxconn=101;nofile=201"), "applied");
    session.kill();
    let planned = folder.json(&["restore", "--dry-run"], 0);
    let steps = planned["servers"][0]["steps"].as_array().expect("steps");
    let of = |kind: &str| steps.iter().filter(|step| step["kind"] == kind).collect::<Vec<_>>();
    let sysctls = of("sysctl");
    assert_eq!(sysctls.len(), 1, "{planned:#}");
    assert_eq!(sysctls[0]["target"], "net.core.somaxconn");
    assert_eq!(sysctls[0]["action"], format!("set from 101 to {before}"));
    let limits = of("limit");
    assert_eq!(limits.len(), site.processes().len(), "{planned:#}");
    assert!(
        limits.iter().all(|limit| limit["action"].to_string().contains(&format!("from 201 to {soft}"))),
        "{planned:#}"
    );
    assert_eq!((site.get("net.core.somaxconn").as_str(), site.limits()[0]), ("101", 201));
    assert!(restore(&folder).contains(&site.name()));
    assert_eq!((site.get("net.core.somaxconn"), site.limits()[0]), (before, soft));
}

#[test]
fn whatever_the_step_before_which_it_is_killed_everything_comes_back() {
    let folder = Folder::new();
    let site = Site::new(&folder);
    let names: Vec<&str> = of_a_namespace().iter().map(|(name, _)| *name).collect();
    let state = || (names.iter().map(|name| site.get(name)).collect::<Vec<_>>(), site.limits());
    let before = state();
    let all: Vec<String> = of_a_namespace().iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut changed = 0;
    for step in 1.. {
        let mut command = command(&folder, &site.name());
        command.env("LASTDROP_END_AT", step.to_string());
        let (mut session, told) = Session::start(command);
        for order in ["apply net.core.somaxconn=100;nofile=200", &format!("apply {};nofile=300", all.join(";"))] {
            session.order(order);
        }
        // The end of stdin ends its session.
        session.orders = None;
        let ended = session.child.wait().expect("ends");
        let killed = ended.signal() == Some(libc::SIGKILL);
        let is_changed = state() != before;
        changed += u32::from(is_changed);
        if folder.journal().is_some() {
            assert!(killed, "step {step}: {told}");
            let again = Session::start(self::command(&folder, &site.name())).1;
            assert!(again.contains("first: lastdrop restore"), "{again}");
            let dry_run = folder.run(&["restore", "--dry-run"]).stdout;
            assert!(!is_changed || dry_run.contains("would be put back"), "step {step}: {dry_run}");
            assert!(restore(&folder).contains(&site.name()));
        }
        assert_eq!(state(), before, "step {step}");
        if !killed {
            break;
        }
    }
    assert!(changed > 5, "the case is one: {changed}");
}

#[test]
fn who_ends_in_order_puts_back_and_who_comes_second_waits() {
    let folder = Folder::new();
    let site = Site::new(&folder);
    let before = site.get("net.core.somaxconn");
    let mut first = Session::open(&folder, &site.name());
    assert_eq!(first.tell("apply net.core.somaxconn=77"), "applied");
    let second = Session::start(command(&folder, &site.name())).1;
    assert!(second.contains(&format!("another lastdrop (process {})", first.child.id())), "{second}");
    assert_eq!(folder.run(&["restore"]).code, 1);
    assert_eq!(site.get("net.core.somaxconn"), "77");
    // The end of stdin ends its session.
    first.orders = None;
    first.child.wait().expect("ends");
    assert_eq!((site.get("net.core.somaxconn"), journals(&folder)), (before, 0));
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_changed() {
    let folder = Folder::new();
    let site = Site::new(&folder);
    let before = site.get("net.core.somaxconn");
    let mut session = Session::open(&folder, &site.name());
    for (setting, words) in [
        ("net.core.somaxcon=5", "it knows net.core.somaxconn, "),
        ("net.core.somaxconn=0", "a number from 1 to 65535, not '0'"),
        ("net.core.somaxconn=many", "a number from 1 to 65535"),
        ("net.ipv4.ip_local_port_range=5000 2000", "the lower one first"),
        ("net.ipv4.tcp_tw_reuse=3", "from 0 to 2"),
        ("net.ipv4.tcp_fin_timeout=10", "useless for TIME_WAIT, which is always 60 s"),
        ("vm.swappiness=10", "--host-wide"),
        ("net.netfilter.nf_conntrack_max=5000", "--host-wide"),
        ("transparent_hugepage=never", "--host-wide"),
        ("nofile=63", "from 64 to"),
    ] {
        // A valid setting next to it is not changed either.
        let told = session.tell(&format!("apply net.core.somaxconn=99;{setting}"));
        assert!(told.contains(words), "{setting}: {told}");
        assert_eq!(site.get("net.core.somaxconn"), before, "{setting}");
    }
    assert_eq!(session.tell("restore"), "restored []");
    drop(session);
    let (mut own, told) = Session::start(site.namespace.inside(&command(&folder, "host")));
    assert_eq!(told, "open");
    let told = own.tell("apply nofile=400");
    assert!(told.contains("host@http://127.0.0.1:80/"), "{told}");
}

#[test]
fn without_rights_nothing_is_changed() {
    let folder = Folder::new();
    let site = Site::new(&folder);
    fs::create_dir(folder.join("state")).expect("made");
    let opened = Command::new("chown").args(["65534:65534", folder.join("state").to_str().expect("text")]).status();
    assert!(opened.expect("chown runs").success());
    // An ordinary user may read everything of our own namespace, and set nothing.
    let before = site.get("net.core.somaxconn");
    let (mut session, told) = Session::start(site.namespace.inside(&as_nobody(&command(&folder, "host"), &[])));
    assert_eq!(told, "open");
    let told = session.tell("apply net.core.somaxconn=99");
    assert!(told.contains("cannot set net.core.somaxconn: permission denied; run as root"), "{told}");
    assert_eq!(session.tell("restore"), "restored []");
    // That user cannot see listeners in another user's namespace.
    let (_, told) = Session::start(as_nobody(&command(&folder, &site.name()), &[]));
    assert!(told.contains("as root"), "{told}");
    assert_eq!((site.get("net.core.somaxconn"), journals(&folder)), (before, 0));
}

#[test]
fn on_a_full_disk_nothing_is_changed() {
    let folder = Folder::new();
    let site = Site::new(&folder);
    let state = folder.join("state");
    fs::create_dir(&state).expect("made");
    let before = (site.get("net.core.somaxconn"), site.limits());
    let mount = format!("mount -t tmpfs -o size=64k none {} && exec \"$0\" \"$@\"", state.display());
    let told = command(&folder, &site.name());
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "sh", "-c", &mount]).arg(told.get_program()).args(told.get_args());
    unshare.envs(told.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (mut session, told) = Session::start(unshare);
    assert_eq!(told, "open");
    let inside = format!("/proc/{}/root{}", session.child.id(), state.display());
    let full = fs::write(format!("{inside}/full"), vec![0; 1 << 20]).expect_err("a small disk");
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    let told = session.tell("apply net.core.somaxconn=99;nofile=300");
    assert!(told.contains("the journal") && told.contains("No space left"), "{told}");
    assert_eq!((site.get("net.core.somaxconn"), site.limits()), before);
    fs::remove_file(format!("{inside}/full")).expect("removed");
    assert_eq!(session.tell("apply net.core.somaxconn=99;nofile=300"), "applied");
    assert_eq!(session.tell("restore"), "restored []");
    assert_eq!((site.get("net.core.somaxconn"), site.limits()), before);
}

#[test]
fn what_somebody_else_has_set_meanwhile_is_left_and_told() {
    let folder = Folder::new();
    let site = Site::new(&folder);
    let before = site.get("net.ipv4.tcp_max_syn_backlog");
    let mut session = Session::open(&folder, &site.name());
    let both = "net.core.somaxconn=90;net.ipv4.tcp_max_syn_backlog=91";
    assert_eq!(session.tell(&format!("apply {both}")), "applied");
    site.namespace.set("net.core.somaxconn", "555");
    let told = session.tell("apply net.core.somaxconn=92");
    assert!(told.contains("somebody else has set net.core.somaxconn to 555 meanwhile"), "{told}");
    session.kill();
    let told = restore(&folder);
    assert!(told.contains("is 555: somebody else has set it, and it is left"), "{told}");
    assert_eq!(site.get("net.core.somaxconn"), "555");
    assert_eq!(site.get("net.ipv4.tcp_max_syn_backlog"), before);
}

#[test]
fn a_namespace_outlives_its_server_and_is_forgotten_when_it_is_gone() {
    let folder = Folder::new();
    let mut site = Site::new(&folder);
    let before = site.get("net.core.somaxconn");
    let mut session = Session::open(&folder, &site.name());
    assert_eq!(session.tell("apply net.core.somaxconn=88"), "applied");
    session.kill();
    // Only another process inside leads to it now.
    end(&mut site.server);
    assert!(restore(&folder).contains("put back as it was found"));
    assert_eq!(site.get("net.core.somaxconn"), before);

    let site = Site::new(&folder);
    let mut session = Session::open(&folder, &site.name());
    assert_eq!(session.tell("apply net.core.somaxconn=88"), "applied");
    session.kill();
    drop(site);
    // Workers that are asked to end take some time.
    let mut told = String::new();
    wait_until("the end of the namespace", || {
        let copy = Folder::new();
        Command::new("cp").arg("-a").arg(folder.join("state")).arg(copy.path()).status().expect("cp runs");
        told = restore(&copy);
        told.contains("is gone")
    });
    // Another namespace gets the same inode number: it is not the same one, and its values stay.
    let others: Vec<Namespace> = (0..8).map(|_| Namespace::new()).collect();
    others.iter().for_each(|namespace| namespace.set("net.core.somaxconn", "88"));
    let told = restore(&folder);
    assert!(told.contains("its network namespace is gone, and what was changed in it"), "{told}");
    assert!(others.iter().all(|namespace| value(namespace, "net.core.somaxconn") == "88"));
}

#[test]
fn a_journal_that_cannot_be_used_says_so_and_is_forgotten_only_then() {
    let folder = Folder::new();
    let site = Site::new(&folder);
    let mut session = Session::open(&folder, &site.name());
    assert_eq!(session.tell("apply net.core.somaxconn=66"), "applied");
    session.kill();
    assert!(folder.run(&["restore", "--forget"]).stdout.contains("No journal that cannot be used"));
    let state = folder.join("state");
    let entries = fs::read_dir(&state).expect("readable").filter_map(|e| Some(e.ok()?.path()));
    let journal = { entries }.find(|path| path.extension().is_some_and(|e| e == "journal")).expect("a journal");
    let text = fs::read_to_string(&journal).expect("readable");
    fs::write(&journal, &text[..text.len() / 2]).expect("written");
    let done = folder.run(&["restore"]);
    assert!(
        done.code == 1 && done.stderr.contains("sysctl -w") && done.stderr.contains("ends in the middle"),
        "{done:?}"
    );
    fs::write(&journal, &text).expect("written");
    assert!(restore(&folder).contains("put back as it was found"));
}

#[test]
fn kept_settings_stay_in_force_and_in_the_file_of_every_start() {
    let folder = Folder::new();
    let site = Site::new(&folder);
    let sysctl_d = folder.join("sysctl.d");
    fs::create_dir(&sysctl_d).expect("made");
    let file = sysctl_d.join("90-lastdrop.conf");
    let keep = |settings: &str| {
        let mut command = command(&folder, &site.name());
        command.env("LASTDROP_SYSCTL_D", &sysctl_d);
        let (mut session, told) = Session::start(command);
        assert_eq!(told, "open");
        assert_eq!(session.tell("apply net.ipv4.tcp_tw_reuse=0;net.core.somaxconn=50"), "applied");
        assert_eq!(session.tell(&format!("keep {settings}")), format!("kept {}", file.display()));
        fs::read_to_string(&file).expect("written")
    };
    let reuse = site.get("net.ipv4.tcp_tw_reuse");
    let text = keep("net.core.somaxconn=1111;net.ipv4.ip_local_port_range=10000 60000");
    assert!(text.contains("\nnet.core.somaxconn = 1111\nnet.ipv4.ip_local_port_range = 10000 60000\n"), "{text}");
    let text = keep("net.core.somaxconn=2222");
    assert!(text.contains("\nnet.core.somaxconn = 2222\nnet.ipv4.ip_local_port_range = 10000 60000\n"), "{text}");
    assert_eq!(
        (site.get("net.core.somaxconn"), site.get("net.ipv4.ip_local_port_range")),
        ("2222".into(), "10000 60000".into())
    );
    assert_eq!(site.get("net.ipv4.tcp_tw_reuse"), reuse, "what was only tried is taken back");
    assert!(restore(&folder).contains("Nothing to put back"));
    // sysctl itself accepts the file.
    let mut sysctl = Command::new("sysctl");
    sysctl.args(["-q", "-p"]).arg(&file);
    site.namespace.set("net.core.somaxconn", "1");
    assert!(site.namespace.inside(&sysctl).status().expect("sysctl runs").success());
    assert_eq!(site.get("net.core.somaxconn"), "2222");
    // The boot sets only the machine's own namespace; and if the file cannot be written, nothing is persisted.
    let machines = Path::new("/etc/sysctl.d/90-lastdrop.conf");
    let was_there = machines.exists();
    let mut session = Session::open(&folder, &site.name());
    let told = session.tell("keep net.core.somaxconn=3333");
    assert!(told.contains("LASTDROP_SYSCTL_D") && told.contains("net.core.somaxconn 3333"), "{told}");
    drop(session);
    restore(&folder);
    let mut elsewhere = command(&folder, &site.name());
    elsewhere.env("LASTDROP_SYSCTL_D", folder.join("nowhere"));
    let (mut session, _) = Session::start(elsewhere);
    assert!(session.tell("keep net.core.somaxconn=3333").contains("cannot write"));
    assert_eq!(session.tell("restore"), "restored []");
    assert_eq!((site.get("net.core.somaxconn"), machines.exists()), ("2222".into(), was_there));
}

#[test]
fn what_belongs_to_the_machine_is_changed_only_when_that_is_said() {
    let folder = Folder::new();
    // Our own files over the kernel's, in this mount namespace.
    let (swappiness, pages) = (folder.join("swappiness"), folder.join("pages"));
    fs::write(&swappiness, "60\n").expect("written");
    fs::write(&pages, "always [madvise] never\n").expect("written");
    let (ours, theirs) =
        (own_value("vm.swappiness"), fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled"));
    let mounts = format!(
        "mount --bind {} /proc/sys/vm/swappiness && mount --bind {} /sys/kernel/mm/transparent_hugepage/enabled && \
         exec \"$0\" \"$@\"",
        swappiness.display(),
        pages.display()
    );
    let inside = |command: &Command| {
        let mut unshare = Command::new("unshare");
        unshare.args(["-mn", "sh", "-c", &mounts]).arg(command.get_program()).args(command.get_args());
        unshare.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("HOST_WIDE", "1");
        unshare
    };
    let read = |path: &Path| fs::read_to_string(path).expect("readable").trim().to_string();
    let (mut session, told) = Session::start(inside(&command(&folder, "host")));
    assert_eq!(told, "open");
    assert_eq!(session.tell("apply vm.swappiness=7;transparent_hugepage=never"), "applied");
    assert_eq!((read(&swappiness), read(&pages)), ("7".into(), "never".into()));
    // Another command that would change the machine has to wait, in any namespace.
    let (_, told) = Session::start(inside(&command(&folder, "host")));
    assert!(told.contains("another lastdrop"), "{told}");
    assert_eq!(session.tell("apply vm.swappiness=8"), "applied");
    assert_eq!((read(&swappiness), read(&pages)), ("8".into(), "madvise".into()));
    session.kill();
    let (_, told) = Session::start(inside(&command(&folder, "host")));
    assert!(told.contains("first: lastdrop restore"), "{told}");
    let done = CommandOutput::of(inside(&folder.lastdrop(&["restore"])).output().expect("runs"), &[]);
    assert!(done.code == 0 && done.stdout.contains("put back"), "{done:?}");
    assert_eq!((read(&swappiness), journals(&folder)), ("60".into(), 0));
    let now = (own_value("vm.swappiness"), fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled"));
    assert_eq!((ours, theirs.ok()), (now.0, now.1.ok()), "the machine's own");
}
