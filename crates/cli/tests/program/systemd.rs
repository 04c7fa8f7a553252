//! Servers under systemd: drop-in files change the command line of their unit, and are removed again. The tests run without
//! systemd. `common/systemctl.py` replaces systemctl, in a mount namespace with its own /run/systemd and /etc/systemd, and puts
//! the server into a control group with the unit's name. It needs root.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::servers::{Fpm, children_of};
use crate::common::{Apache, CommandOutput, Folder, free_port, get, signal, wait_until};
use lastdrop_model::{Setting, Settings};
use lastdrop_server::{OtherTrafficPolicy, ServerRef, Session, discover};

/// A machine with a unit: the unit's command line, and its files.
struct Machine {
    folder: Folder,
    holder: Child,
    unit: String,
    cgroup: PathBuf,
    port: u16,
}

impl Machine {
    fn start(way: &str, args: &[&str], environment: &str) -> Machine {
        let (folder, port) = (Folder::new(), free_port());
        let made = "mount -t tmpfs none /run/systemd && mkdir /run/systemd/system && mount -t tmpfs none /etc/systemd && \
                    mkdir /etc/systemd/system && echo ready && exec sleep 1000000";
        let mut holder = Command::new("unshare")
            .args([
                "-m",
                "--propagation",
                "private",
                "sh",
                "-c",
                &format!("mkdir -p /run/systemd /etc/systemd; {made}"),
            ])
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n", "a mount namespace (as root)");
        let unit = format!("lastdrop-test-{port}.service");
        let hierarchy = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
        let hierarchy =
            hierarchy.into_iter().find(|h| Path::new(h).join("cgroup.procs").exists()).expect("control groups");
        let cgroup = Path::new(hierarchy).join(&unit);
        fs::create_dir(&cgroup).expect("a control group (as root)");
        let machine = Machine { folder, holder, unit, cgroup, port };
        let write = |name: &str, text: &str| fs::write(machine.folder.join(name), text).expect("written");
        write("site.py", include_str!("common/site.py"));
        write("unit", &machine.unit);
        write("systemctl", include_str!("common/systemctl.py"));
        write(
            "kind.toml",
            &format!(
                "title = 'Site'\nprograms = ['python3*']\nargument = 'site.py'\n[change]\n{way}\ntest = ['{{argv}}', '--check']\n\
                 [[knobs]]\nname = 'procs'\ncount = [1, 100]\ndefault = 3\noption = '--procs'\nvariable = 'PROCS'\neffect = 'e'\n"
            ),
        );
        let systemctl = machine.folder.join("systemctl");
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).expect("its mode");
        // As root, lastdrop looks for systemctl in the system's folders, whatever PATH says.
        let mounts = format!("--mount=/proc/{}/ns/mnt", machine.holder.id());
        let stand_in = [Path::new("mount"), Path::new("--bind"), &systemctl, Path::new("/usr/bin/systemctl")];
        let bound = Command::new("nsenter").arg(mounts).args(stand_in).status().expect("util-linux");
        assert!(bound.success(), "systemd (./x test installs it)");
        let site = machine.folder.join("site.py").display().to_string();
        let start = format!("/usr/bin/python3 {site} --port {port} {}", args.join(" "));
        let text = format!("[Service]\nExecStart={start}\nEnvironment=\"GREETING=100%% $good\" {environment}\n");
        fs::write(machine.inside(&format!("/run/systemd/system/{}", machine.unit)), text).expect("written");
        machine.systemctl("daemon-reload");
        machine.systemctl("restart");
        wait_until("the server", || get(port, "/").is_some() && machine.workers() == 3);
        machine
    }

    /// A path in the machine, seen from outside.
    fn inside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.id()))
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        let path = format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", self.folder.path().display());
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .arg(program)
            .env("PATH", path)
            .env("STAND_IN", self.folder.path())
            .env("STAND_IN_CGROUP", &self.cgroup)
            .env("LASTDROP_STATE", self.folder.join("state"))
            .stdin(Stdio::null());
        command
    }

    fn systemctl(&self, word: &str) {
        let done = self.command(&self.folder.join("systemctl")).args([word, &self.unit]).output().expect("runs");
        assert!(done.status.success(), "{done:?}");
    }

    fn lastdrop(&self, args: &[&str]) -> Command {
        let mut command = self.command(Path::new(env!("CARGO_BIN_EXE_lastdrop")));
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn main(&self) -> i32 {
        fs::read_to_string(self.folder.join("main")).ok().and_then(|t| t.parse().ok()).unwrap_or(0)
    }

    fn workers(&self) -> usize {
        Some(self.main()).filter(|pid| *pid > 0).map_or(0, children_of)
    }

    fn name(&self) -> String {
        format!("custom:{}@http://127.0.0.1:{}/", self.folder.join("kind.toml").display(), self.port)
    }

    fn drop_ins(&self) -> Vec<String> {
        let folders = ["/run", "/etc"].map(|place| self.inside(&format!("{place}/systemd/system/{}.d", self.unit)));
        let files = folders.iter().filter_map(|f| fs::read_dir(f).ok()).flatten();
        files.filter_map(|e| e.ok()?.file_name().into_string().ok()).filter(|n| n.ends_with(".conf")).collect()
    }

    fn shown(&self) -> (Vec<u8>, Vec<u8>) {
        let read = |what: &str| fs::read(format!("/proc/{}/{what}", self.main())).unwrap_or_default();
        (read("cmdline"), read("environ"))
    }

    fn plan(&self, duration: &str, settings: &str) -> String {
        let file = self.folder.join("plan.toml");
        let head = format!("server = '{}'\nurl = 'http://127.0.0.1:{}/'\nusers = 2", self.name(), self.port);
        fs::write(&file, format!("{head}\nduration = '{duration}'\nkeepalive = 'off'\n[settings]\n{settings}"))
            .expect("written");
        file.display().to_string()
    }

    /// Starts another process with a session, which carries out these orders; returns its output.
    fn session(&self, orders: &str) -> Vec<String> {
        let done = self
            .command(&std::env::current_exe().expect("this program"))
            .args(["systemd::session_of_another_process", "--exact", "--ignored", "--nocapture"])
            .env("SERVER", self.name())
            .env("ORDERS", orders)
            .output()
            .expect("it runs");
        let told = String::from_utf8_lossy(&done.stdout).into_owned();
        told.lines().filter_map(|line| line.strip_prefix("told: ")).map(str::to_string).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.command(&self.folder.join("systemctl")).args(["stop", &self.unit]).output();
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        // A control group can be removed after its last process has been waited for.
        for _ in 0..100 {
            if fs::remove_dir(&self.cgroup).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Not a test of its own: the session of a process inside the machine.
#[test]
#[ignore = "the other process of the tests"]
fn session_of_another_process() {
    let server: ServerRef = std::env::var("SERVER").expect("a server").parse().expect("a name");
    let url = server.url.clone();
    let opened =
        discover(&server).and_then(|adapter| Session::open(adapter, url.as_ref(), &OtherTrafficPolicy::default()));
    let mut session = match opened {
        Ok(session) => session,
        Err(e) => return println!("\ntold: {}", e.to_string().replace('\n', " ")),
    };
    println!("\ntold: open");
    for order in std::env::var("ORDERS").expect("orders").split('|') {
        let (word, rest) = order.split_once(' ').unwrap_or((order, ""));
        let pairs = rest.split(';').filter_map(|pair| pair.split_once('='));
        let settings: Settings = pairs.map(|(name, value)| (name.to_string(), Setting::read(value))).collect();
        let done = match word {
            "apply" => session.apply(settings).map(|()| "applied".to_string()),
            _ => session.keep(&settings).map(|kept| format!("kept {kept}")),
        };
        println!("told: {}", done.unwrap_or_else(|e| e.to_string()).replace('\n', " "));
    }
}

#[test]
fn a_unit_is_changed_by_a_drop_in_and_put_back_whatever_happens() {
    for (way, args, environment, word) in [
        ("command_line = true", &["--procs", "3", "--backlog", "9"][..], "", "ExecStart="),
        ("environment = true", &[], "PROCS=3", "Environment=\"PROCS="),
    ] {
        let machine = Machine::start(way, args, environment);
        let before = machine.shown();
        assert!(machine.drop_ins().is_empty());

        // Killed with the drop-in in force, and restored from the journal alone.
        let plan = machine.plan("30s", "procs = [5]\n");
        let mut sweep = machine.lastdrop(&["sweep", &plan, "--quiet"]).spawn().expect("runs");
        wait_until("the change", || machine.workers() == 5);
        signal(&sweep, libc::SIGKILL);
        let _ = sweep.wait();
        assert_eq!(machine.drop_ins(), ["zzz-lastdrop-trial.conf"], "{way}");
        let file = machine.inside(&format!("/run/systemd/system/{}.d/zzz-lastdrop-trial.conf", machine.unit));
        let text = fs::read_to_string(file).expect("there");
        assert!(text.contains(word), "{way}: {text}");
        let planned = machine.lastdrop(&["restore", "--dry-run", "--json", "-"]).output().expect("runs");
        let planned: serde_json::Value = serde_json::from_slice(&planned.stdout).expect("JSON");
        let steps = planned["servers"][0]["steps"].as_array().expect("steps");
        let of = |kind: &str| -> Vec<String> {
            let of_kind = steps.iter().filter(|step| step["kind"] == kind);
            of_kind.map(|step| step["target"].to_string()).collect()
        };
        let (files, commands) = (of("drop-in"), of("command"));
        assert!(matches!(&files[..], [file] if file.contains("zzz-lastdrop-trial.conf")), "{way}: {planned:#}");
        assert!(
            commands.iter().any(|c| c.contains(&format!("systemctl restart {}", machine.unit))),
            "{way}: {planned:#}"
        );
        assert_eq!((machine.drop_ins(), machine.workers()), (vec!["zzz-lastdrop-trial.conf".to_string()], 5), "{way}");
        let restored = machine.lastdrop(&["restore"]).output().expect("runs");
        assert!(restored.status.success(), "{way}: {restored:?}");
        wait_until("its own workers", || machine.workers() == 3 && get(machine.port, "/").is_some());
        assert_eq!((machine.shown(), machine.drop_ins()), (before.clone(), Vec::<String>::new()), "{way}");
        assert!(machine.folder.journal().is_none(), "{way}");
        // The rest is the same whatever the drop-in says.
        if word != "ExecStart=" {
            continue;
        }

        let mut sweep =
            machine.lastdrop(&["sweep", &machine.plan("400ms", "procs = [2, 60, 5]\n"), "--quiet", "--json", "-"]);
        let mut sweep = sweep.spawn().expect("runs");
        let mut seen = Vec::new();
        while sweep.try_wait().expect("waited for").is_none() {
            seen.push(machine.workers());
            thread::sleep(Duration::from_millis(20));
        }
        let done = CommandOutput::of(sweep.wait_with_output().expect("ends"), &[]);
        assert!(done.code == 0 && seen.contains(&2) && seen.contains(&5), "{way}: {seen:?} {done:?}");
        let document: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert!(document["rows"][1]["note"].as_str().is_some_and(|n| n.contains("at most 50")), "{document:#}");
        wait_until("its own workers", || machine.workers() == 3);
        assert_eq!((machine.shown(), machine.drop_ins()), (before.clone(), Vec::<String>::new()), "{way}");

        // A persisted change is below /etc, and a later trial overrides it.
        let kept = format!("kept /etc/systemd/system/{}.d/zz-lastdrop.conf", machine.unit);
        assert_eq!(machine.session("apply procs=2|keep procs=4"), ["open", "applied", &kept], "{way}");
        assert_eq!((machine.workers(), machine.drop_ins()), (4, vec!["zz-lastdrop.conf".to_string()]), "{way}");
        machine.systemctl("restart");
        wait_until("the kept number", || machine.workers() == 4 && get(machine.port, "/").is_some());
        let (_, environment) = machine.shown();
        assert!(String::from_utf8_lossy(&environment).contains("GREETING=100% $good"), "{way}");
        assert_eq!(machine.session("apply procs=2"), ["open", "applied"], "{way}");
        wait_until("the kept number again", || machine.workers() == 4 && get(machine.port, "/").is_some());
        let log = fs::read_to_string(machine.folder.join("log")).expect("there");
        assert!(log.lines().any(|l| l == format!("reset-failed {}", machine.unit)), "{log}");
    }
}

const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd");

/// The command line of a shipped unit, and its capabilities.
fn shipped(unit: &str) -> (String, String) {
    let text = fs::read_to_string(format!("{UNITS}/{unit}.service")).expect("a unit");
    let value =
        |key: &str| text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('=')).expect("a line").to_string();
    let name = |word: &str| format!("+{}", word.trim_start_matches("CAP_").to_ascii_lowercase());
    let capabilities = value("CapabilityBoundingSet").split_whitespace().map(name).collect::<Vec<_>>().join(",");
    assert_eq!(value("NoNewPrivileges"), "yes");
    (value("ExecStart"), capabilities)
}

/// Runs the program with the rights of a unit; returns its output, and the programs that it has executed.
fn in_unit(folder: &Folder, capabilities: &str, args: &[&str]) -> (CommandOutput, Vec<String>) {
    let (program, log) = (folder.lastdrop(args), folder.join("executed"));
    let mut command = Command::new("setpriv");
    command.args(["--no-new-privs", "--inh-caps=-all", &format!("--bounding-set=-all,{capabilities}")]);
    command.args(["strace", "-f", "-qq", "-e", "trace=execve,execveat", "-e", "signal=none", "-o"]).arg(&log);
    command.arg(program.get_program()).args(program.get_args());
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    let done = CommandOutput::of(command.output().expect("util-linux and strace"), args);
    let text = fs::read_to_string(log).expect("what was executed");
    (done, text.lines().filter(|line| line.contains("exec")).map(str::to_string).collect())
}

/// The names of all fields with a value.
fn fields(value: &serde_json::Value, path: &str, all: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(fields_of) => {
            fields_of.iter().for_each(|(name, value)| fields(value, &format!("{path}.{name}"), all));
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| fields(value, &format!("{path}[]"), all)),
        serde_json::Value::Null => {}
        _ => {
            all.insert(path.into());
        }
    }
}

#[test]
fn the_units_that_are_shipped_execute_nothing_and_have_the_rights_that_they_need() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, |t| t.replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0"));
    let fpm = Fpm::start(&folder, 2, "pm.status_path = /status");
    let (apache_name, fpm_name) = (apache.name(), fpm.name());
    let (line, capabilities) = shipped("lastdrop-watch");
    assert!(line.contains("--execute-nothing"), "{line}");
    let watch = ["watch", &apache_name, &fpm_name, "--once", "--interval", "500ms", "--execute-nothing", "--json", "-"];
    let (done, executed) = in_unit(&folder, &capabilities, &watch);
    assert_eq!((done.code, executed.len()), (0, 1), "itself alone: {executed:#?} {done:?}");
    let seen = |text: &str| {
        let mut all = BTreeSet::new();
        fields(&serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}")), "", &mut all);
        all
    };
    // Everything that root sees is visible there, too.
    let (mine, roots) = (seen(&done.stdout), seen(&folder.run(&watch).stdout));
    let missing: Vec<_> = roots.difference(&mine).collect();
    assert!(missing.is_empty(), "{missing:#?}");

    let (line, capabilities) = shipped("lastdrop-guard");
    assert!(line.contains("--execute-nothing"), "{line}");
    for name in [&apache_name, &fpm_name] {
        let guard = ["guard", name, "--max-age", "1s", "--every", "200ms", "-d", "4s", "--act", "--execute-nothing"];
        let (done, executed) = in_unit(&folder, &capabilities, &guard);
        assert_eq!((done.code, executed.len()), (0, 1), "itself alone: {executed:#?} {done:?}");
        assert!(done.stdout.contains("has left"), "{done:?}");
    }
}
