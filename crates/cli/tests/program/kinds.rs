//! Kinds of servers that are only data: one added by a file, changed by every method that a file can name, and the real
//! gunicorn. Changes take effect, are refused with the server's own message, and are restored whatever happens.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::slice;
use std::thread;
use std::time::Duration;

use crate::common::servers::{Daemon, children_of};
use crate::common::{CommandOutput, Folder, end_at_each_step, free_port, get, processes_with, signal, wait_until};
use serde_json::Value;

/// An unknown server: `procs` workers with a listen queue of `backlog`, set by options, variables or a file.
const SITE: &str = include_str!("common/site.py");

/// A kind of 30 lines, with one change method.
fn kind(way: &str) -> String {
    format!(
        "title = 'Site'\nprograms = ['python3*']\nargument = 'site.py'\nconfig = {{ flag = '--file' }}\n[change]\n{way}\n\
         test = ['{{argv}}', '--check']\n\
         [[knobs]]\nname = 'procs'\ncount = [1, 100]\ndefault = 3\nrole = 'pool-size'\noption = '--procs'\n\
         variable = 'PROCS'\neffect = 'requests at once'\nfindings = ['workers-exhausted']\n\
         [[knobs]]\nname = 'backlog'\ncount = [1, '1000 * processors']\ndefault = 9\nrole = 'backlog'\nneeds = 'restart'\n\
         option = '--backlog'\nvariable = 'BACKLOG'\neffect = 'connections that wait'\n"
    )
}

/// Workers, listen queue, what the master shows, files.
type State = (usize, Option<u64>, Option<Vec<u8>>, Vec<Option<Vec<u8>>>);

/// A server that its test starts and lastdrop restarts.
struct Server {
    mark: String,
    port: u16,
    child: Child,
}

impl Server {
    fn start(mut command: Command, mark: String, port: u16) -> Server {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        let server = Server { mark, port, child };
        wait_until("a server", || get(port, "/").is_some());
        server
    }

    fn site(folder: &Folder, way: &str, args: &[&str], environment: &[(&str, &str)]) -> Server {
        let (script, port) = (folder.join("site.py"), free_port());
        fs::write(&script, SITE).expect("written");
        fs::write(folder.join("kind.toml"), kind(way)).expect("written");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(&script).args(["--port", &port.to_string()]).args(args).envs(environment.iter().copied());
        Server::start(command, script.display().to_string(), port)
    }

    /// Its process whose parent is another program.
    fn master(&self) -> Option<i32> {
        let all = processes_with(&self.mark);
        let parent = |pid: &i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<i32>().ok()
        };
        all.iter().copied().find(|pid| parent(pid).is_some_and(|p| !all.contains(&p)))
    }

    fn workers(&self) -> usize {
        self.master().map_or(0, children_of)
    }

    /// The limit of the listen queue, from the kernel.
    fn backlog(&self) -> Option<u64> {
        let output = Command::new("ss").args(["-ltnH", &format!("sport = :{}", self.port)]).output().expect("iproute2");
        String::from_utf8_lossy(&output.stdout).split_whitespace().nth(2)?.parse().ok()
    }

    fn name(&self, kind: &str) -> String {
        format!("{kind}@http://127.0.0.1:{}/", self.port)
    }

    /// Everything that shows whether the server is as before.
    fn state(&self, files: &[PathBuf]) -> State {
        let line = self.master().and_then(|pid| fs::read(format!("/proc/{pid}/cmdline")).ok());
        (self.workers(), self.backlog(), line, files.iter().map(|f| fs::read(f).ok()).collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for pid in self.master().into_iter().chain(processes_with(&self.mark)) {
            // SAFETY: plain call; these are ours.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let _ = self.child.wait();
    }
}

fn plan(folder: &Folder, server: &Server, name: &str, duration: &str, settings: &str) -> String {
    let file = folder.join("plan.toml");
    let head = format!(
        "server = '{name}'\nurl = 'http://127.0.0.1:{}/'\nusers = 2\nduration = '{duration}'\nkeepalive = 'off'",
        server.port
    );
    fs::write(&file, format!("{head}\n[settings]\n{settings}")).expect("written");
    file.display().to_string()
}

fn start_sweep(folder: &Folder, plan: &str) -> Child {
    let args = ["sweep", plan, "--live", "--quiet", "--json", "-"];
    folder.lastdrop(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs")
}

/// Sweeps, and returns all observed numbers of workers and limits of the listen queue.
fn sweep_and_see(folder: &Folder, server: &Server, plan: &str) -> (Value, BTreeSet<(usize, Option<u64>)>) {
    let mut sweep = start_sweep(folder, plan);
    let mut seen = BTreeSet::new();
    while sweep.try_wait().expect("waited for").is_none() {
        seen.insert((server.workers(), server.backlog()));
        thread::sleep(Duration::from_millis(20));
    }
    let done = CommandOutput::of(sweep.wait_with_output().expect("ends"), &[]);
    assert_eq!(done.code, 0, "{done:?}");
    (serde_json::from_str(&done.stdout).expect("JSON"), seen)
}

/// Every change method that a file can name, with the server's arguments and files.
#[test]
fn a_kind_of_30_lines_is_swept_in_every_way_and_is_as_it_was() {
    assert!(kind("").lines().count() <= 30);
    let ways = [
        ("command_line = true", "option"),
        ("environment = true", "variable"),
        ("lines = {}\nreload = 'SIGHUP'", "file"),
        ("included = 'ours.conf'", "file"),
        ("own_file = 'include {config}'", "file"),
        ("template = 'site.in'", "file"),
    ];
    for (way, by) in ways {
        let folder = Folder::new();
        let file = folder.join("site.conf");
        let included = format!("include {}\n", folder.join("ours.conf").display());
        fs::write(&file, format!("procs = 3 # workers\nbacklog = 9\n{included}")).expect("written");
        fs::write(
            folder.join("site.in"),
            format!("procs = {{{{procs}}}} # workers\nbacklog = {{{{backlog}}}}\n{included}"),
        )
        .expect("written");
        let path = file.display().to_string();
        let (args, environment): (Vec<&str>, Vec<(&str, &str)>) = match by {
            "option" => (vec!["--procs", "3", "--backlog", "9"], vec![]),
            "variable" => (vec![], vec![("PROCS", "3"), ("BACKLOG", "9")]),
            _ => (vec!["--file", &path], vec![]),
        };
        let server = Server::site(&folder, way, &args, &environment);
        let name = server.name(&format!("custom:{}", folder.join("kind.toml").display()));
        let files = [file.clone(), folder.join("site.in"), folder.join("ours.conf")];
        wait_until("its workers", || server.workers() == 3);
        let before = server.state(&files);
        let knobs = folder.json(&["knobs", &name], 0);
        let values: Vec<u64> =
            knobs["knobs"].as_array().expect("rows").iter().filter_map(|k| k["value"].as_u64()).collect();
        assert_eq!(values, [3, 9], "{way}: {knobs:#}");
        let plan = plan(&folder, &server, &name, "400ms", "procs = [2, 60, 5]\nbacklog = 17\n");
        let (document, seen) = sweep_and_see(&folder, &server, &plan);
        let rows = document["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 3, "{way}: {document:#}");
        for row in rows {
            let refused = row["note"].as_str().is_some_and(|n| n.contains("procs: at most 50"));
            assert_eq!(refused, row["settings"]["procs"] == 60, "{way}: {row:#}");
        }
        for wanted in [(2, Some(17)), (5, Some(17))] {
            assert!(seen.contains(&wanted), "{way}: {wanted:?} was not seen: {seen:?}");
        }
        wait_until("its own workers", || server.workers() == 3);
        assert_eq!(server.state(&files), before, "{way}");
        assert!(folder.journal().is_none(), "{way}");
    }
}

#[test]
fn a_sweep_killed_at_any_step_is_put_back() {
    // One that is started again, and one that is reloaded.
    let ways = [
        ("command_line = true", &["--procs", "3"][..], "procs = 5\nbacklog = 17\n"),
        ("lines = {}\nreload = 'SIGHUP'", &["--file"], "procs = 5\n"),
    ];
    for (way, args, settings) in ways {
        let folder = Folder::new();
        let file = folder.join("site.conf");
        fs::write(&file, "procs = 3\n").expect("written");
        let path = file.display().to_string();
        let args: Vec<&str> = if args.len() == 1 { vec!["--file", &path] } else { args.to_vec() };
        let server = Server::site(&folder, way, &args, &[]);
        let name = server.name(&format!("custom:{}", folder.join("kind.toml").display()));
        wait_until("its workers", || server.workers() == 3);
        let before = server.state(slice::from_ref(&file));
        let plan = plan(&folder, &server, &name, "50ms", settings);
        let steps = end_at_each_step(&folder, &["sweep", &plan, "--live", "--quiet"], |moment| {
            wait_until("its own workers", || server.workers() == 3 && get(server.port, "/").is_some());
            let now = (server.state(slice::from_ref(&file)), folder.journal().is_none());
            assert_eq!(now, (before.clone(), true), "{way}: {moment}");
        });
        assert!(steps >= 10, "{way}: {steps}");
    }
}

#[test]
fn mistakes_are_told_and_nothing_is_changed() {
    let folder = Folder::new();
    let server = Server::site(&folder, "command_line = true", &["--procs", "3"], &[]);
    let file = folder.join("kind.toml");
    let name = server.name(&format!("custom:{}", file.display()));
    wait_until("its workers", || server.workers() == 3);
    let before = server.state(&[]);
    let sweep = |settings: &str| folder.run(&["sweep", &plan(&folder, &server, &name, "200ms", settings)]);
    let unknown = sweep("threads = 5");
    assert!(unknown.code == 2 && unknown.stderr.contains("it knows procs, backlog"), "{unknown:?}");
    let range = sweep("procs = 101");
    assert!(range.code == 2 && range.stderr.contains("procs is a number from 1 to 100"), "{range:?}");
    let good = fs::read_to_string(&file).expect("readable");
    for (from, to, words) in [
        ("[change]\n", "[change]\ntemplate = 'x'\nlines = {}\n", "[change] is one of"),
        ("default = 3", "default = 300", "knob procs: its default"),
        ("count = [1, 100]", "count = 100", "knobs"),
        ("'--check'", "'--check', '{fille}'", "{fille} stands for nothing"),
        ("'pool-size'", "'pool'", "unknown variant `pool`"),
    ] {
        fs::write(&file, good.replacen(from, to, 1)).expect("written");
        let done = folder.run(&["knobs", &name]);
        assert!(done.code == 2 && done.stderr.contains(words), "{words}: {done:?}");
    }
    // A configuration test that does not end, and one that already fails with the present configuration.
    fs::write(&file, good.replace("'{argv}', '--check'", "'/bin/sh', '-c', 'echo no good >&2; exit 3'"))
        .expect("written");
    let failing = sweep("procs = 2");
    assert!(failing.code == 1 && failing.stderr.contains("no good"), "{failing:?}");
    fs::write(&file, good.replace("'{argv}', '--check'", "'/no/such/program'")).expect("written");
    let missing = sweep("procs = 2");
    assert!(missing.code == 1 && missing.stderr.contains("cannot run /no/such/program"), "{missing:?}");
    // Writable by others.
    Command::new("chmod").arg("666").arg(&file).status().expect("chmod");
    let open = folder.run(&["knobs", &name]);
    assert!(open.code == 2 && open.stderr.contains("somebody else may write"), "{open:?}");
    assert_eq!((server.state(&[]), folder.journal().is_none()), (before, true));
}

/// Starts gunicorn with an application and settings in a file. `titled`: with the module that replaces its command line.
fn gunicorn(folder: &Folder, titled: bool) -> Server {
    gunicorn_with(folder, titled, "workers = 2\n", &[])
}

/// Starts gunicorn with these lines in its configuration, and these arguments.
fn gunicorn_with(folder: &Folder, titled: bool, lines: &str, words: &[&str]) -> Server {
    let port = free_port();
    let app = "def application(env, start):\n    start('200 OK', [('Content-Length', '3')])\n    return [b'ok\\n']\n";
    fs::write(folder.join("app.py"), app).expect("written");
    let config = folder.join("gunicorn.conf.py");
    fs::write(&config, format!("bind = '127.0.0.1:{port}'\n{lines}backlog = 50\n")).expect("written");
    let modules = folder.join("modules");
    fs::create_dir_all(&modules).expect("a folder");
    if !titled {
        fs::write(modules.join("setproctitle.py"), "raise ImportError('no titles here')\n").expect("written");
    }
    // Use a class of workers that this machine does not have.
    fs::write(modules.join("gevent.py"), "raise ImportError('not installed')\n").expect("written");
    // Its process title contains the application's name, by which its processes are found.
    let application = format!("app_{port}:application");
    fs::rename(folder.join("app.py"), folder.join(format!("app_{port}.py").as_str())).expect("renamed");
    let mut command = Command::new("/usr/bin/gunicorn");
    command.args(["-c", &config.display().to_string()]).args(words).arg(&application);
    command.env("PYTHONPATH", &modules).env_remove("WEB_CONCURRENCY").current_dir(folder.path());
    Server::start(command, application, port)
}

#[test]
fn gunicorn_is_changed_by_its_command_line() {
    let folder = Folder::new();
    let server = gunicorn(&folder, false);
    let config = folder.join("gunicorn.conf.py");
    let name = format!("gunicorn:{}", config.display());
    wait_until("its workers", || server.workers() == 2);
    let before = server.state(slice::from_ref(&config));
    let told = Command::new("/usr/bin/gunicorn")
        .args(["-c", &config.display().to_string(), "--print-config", &server.mark])
        .current_dir(folder.path())
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let knobs = folder.json(&["knobs", &name], 0);
    let rows = knobs["knobs"].as_array().expect("rows");
    assert_eq!(rows.len(), 10, "{knobs:#}");
    for row in rows {
        let name = row["name"].as_str().expect("text");
        let said = told.lines().find_map(|l| l.strip_prefix(name)?.trim().strip_prefix("= ")).expect(name);
        assert_eq!(row["value"].to_string().trim_matches('"'), said, "{knobs:#}");
    }
    let settings = "preload_app = 'True'\n\
        [[variant]]\nname = 'few'\nsettings = { workers = 1, backlog = 33 }\n\
        [[variant]]\nname = 'more'\nsettings = { workers = 3, backlog = 44 }\n\
        [[variant]]\nname = 'missing'\nsettings = { worker_class = 'gevent' }\n";
    let (document, seen) = sweep_and_see(&folder, &server, &plan(&folder, &server, &name, "600ms", settings));
    assert_eq!(document["rows"].as_array().map(Vec::len), Some(3), "{document:#}");
    for row in document["rows"].as_array().expect("rows") {
        let refused = row["note"].as_str().expect("text");
        // The class is not installed, which gunicorn notices only when it starts.
        assert_eq!(refused.contains("ended"), row["settings"]["worker_class"] == "gevent", "{row:#}");
        assert!(!refused.is_empty() || row["answered"].as_u64() > Some(0), "{row:#}");
    }
    for wanted in [(1, Some(33)), (3, Some(44))] {
        assert!(seen.contains(&wanted), "{wanted:?} was not seen: {seen:?}");
    }
    wait_until("its own workers", || server.workers() == 2);
    assert_eq!((server.state(slice::from_ref(&config)), folder.journal().is_none()), (before.clone(), true));

    let plan = plan(&folder, &server, &name, "60s", "workers = 3\n");
    let mut sweep = start_sweep(&folder, &plan);
    wait_until("a trial", || server.workers() == 3);
    signal(&sweep, libc::SIGKILL);
    sweep.wait().expect("ends");
    let restored = folder.run(&["restore"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    wait_until("its own workers", || server.workers() == 2 && get(server.port, "/").is_some());
    assert_eq!((server.state(slice::from_ref(&config)), folder.journal().is_none()), (before.clone(), true));

    let url = format!("http://127.0.0.1:{}/", server.port);
    let fit =
        ["size", &name, "--fit", "--url", &url, "--sizes", "1,2,4", "--requests-per-worker", "20", "--memory", "1G"];
    let fit = folder.json(&[&fit[..], &["--variant", "threads=threads 3"]].concat(), 0);
    let points = fit["fit"]["points"].as_array().expect("points");
    let sizes: BTreeSet<u64> = points.iter().filter_map(|p| p["workers"].as_u64()).collect();
    assert_eq!(sizes, BTreeSet::from([1, 2, 4]), "{fit:#}");
    assert!(fit["fits"]["independent"].as_u64() > Some(4), "{fit:#}");
    assert_eq!(fit["suggested"]["workers"], fit["workers_advice"]["number"], "one number: {fit:#}");
    assert_eq!(fit["variants"][0]["name"], "threads", "{fit:#}");
    wait_until("its own workers", || server.workers() == 2);
    assert_eq!((server.state(slice::from_ref(&config)), folder.journal().is_none()), (before, true));
}

#[test]
fn gunicorn_with_a_title_is_changed_by_its_file() {
    let folder = Folder::new();
    let server = gunicorn(&folder, true);
    let config = folder.join("gunicorn.conf.py");
    let name = format!("gunicorn:{}", config.display());
    wait_until("its workers", || server.workers() == 2);
    let before = server.state(slice::from_ref(&config));
    let title = String::from_utf8(before.2.clone().expect("a title")).expect("text");
    assert!(title.starts_with("gunicorn: master ["), "python3-setproctitle (./x test installs it): {title}");
    let (document, seen) = sweep_and_see(
        &folder,
        &server,
        &plan(&folder, &server, &name, "600ms", "workers = [1, 3]\nbacklog = [50, 44]\n"),
    );
    for row in document["rows"].as_array().expect("rows") {
        let refused = row["note"].as_str().expect("text").contains("instead of how it was started");
        assert_eq!(refused, row["settings"]["backlog"] == 44, "{row:#}");
    }
    assert!(seen.contains(&(1, Some(50))) && seen.contains(&(3, Some(50))), "{seen:?}");
    wait_until("its own workers", || server.workers() == 2);
    assert_eq!((server.state(slice::from_ref(&config)), folder.journal().is_none()), (before, true));
}

#[test]
fn a_title_that_hides_its_file_is_not_taken_for_a_server_whose_file_is_known() {
    let (folder, apart) = (Folder::new(), Folder::new());
    let server = gunicorn(&folder, true);
    let port = free_port();
    fs::write(apart.join("app.py"), "def application(env, start):\n    start('200 OK', [])\n    return [b'']\n")
        .expect("written");
    let mut other = Command::new("/usr/bin/gunicorn");
    other.args(["-b", &format!("127.0.0.1:{port}"), "app:application"]).current_dir(apart.path());
    let _other = Daemon::start(other, "gunicorn", |_| get(port, "/").is_some());
    wait_until("its workers", || server.workers() == 2);
    let name = format!("gunicorn:{}", folder.join("gunicorn.conf.py").display());
    let knobs = folder.json(&["knobs", &name], 0);
    assert!(knobs["knobs"].as_array().expect("rows").iter().any(|row| row["value"] == 50), "{knobs:#}");
    let size = folder.json(&["size", &name], 0);
    assert_eq!(size["server"], name, "{size:#}");
    // Its title does not say that this is not its file.
    let hidden = apart.join("hidden.py");
    fs::write(&hidden, "workers = 1\n").expect("written");
    let at = |port: u16| format!("gunicorn:{}@http://127.0.0.1:{port}/", hidden.display());
    let size = folder.json(&["size", &at(port)], 0);
    assert!(size["server"].as_str().is_some_and(|name| name.contains("hidden.py")), "{size:#}");
    let wrong = folder.run(&["size", &at(server.port)]);
    assert!(wrong.code == 1 && wrong.stderr.contains("no running gunicorn is meant"), "{wrong:?}");
}

#[test]
fn a_configuration_that_is_a_program_is_asked_and_never_edited_in_the_middle() {
    let folder = Folder::new();
    let lines = "workers = max(\n    1,\n    2,\n)\ndef later():\n    \"\"\"\nworkers = 77\n\"\"\"\n    workers = 99\n";
    let server = gunicorn_with(&folder, true, lines, &[]);
    let config = folder.join("gunicorn.conf.py");
    let name = format!("gunicorn:{}", config.display());
    wait_until("its workers", || server.workers() == 2);
    let before = server.state(slice::from_ref(&config));
    let knobs = folder.json(&["knobs", &name], 0);
    let row = |name: &str| {
        let rows = knobs["knobs"].as_array().expect("rows");
        rows.iter().find(|row| row["name"] == name).expect("a setting").clone()
    };
    assert_eq!((row("workers")["value"].as_i64(), row("backlog")["value"].as_i64()), (Some(2), Some(50)), "{knobs:#}");
    let (document, seen) = sweep_and_see(&folder, &server, &plan(&folder, &server, &name, "600ms", "workers = [3]\n"));
    assert!(document["rows"][0]["answered"].as_u64() > Some(0) && seen.iter().any(|(n, _)| *n == 3), "{document:#}");
    wait_until("its own workers", || server.workers() == 2);
    assert_eq!((server.state(slice::from_ref(&config)), folder.journal().is_none()), (before, true));
}

#[test]
fn a_row_whose_setting_did_not_come_into_force_is_not_measured() {
    let folder = Folder::new();
    // The title hides the option, which overrides the file.
    let server = gunicorn_with(&folder, true, "", &["-w", "2"]);
    let config = folder.join("gunicorn.conf.py");
    let name = format!("gunicorn:{}", config.display());
    wait_until("its workers", || server.workers() == 2);
    let plan = plan(&folder, &server, &name, "600ms", "workers = [3]\n");
    let done = folder.run(&["sweep", &plan, "--quiet", "--json", "-"]);
    assert!(done.stdout.contains("2 workers run all the same"), "{done:?}");
    let document: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(document["rows"][0]["answered"].as_u64().unwrap_or(0), 0, "{document:#}");
    assert_eq!((server.workers(), folder.journal().is_none()), (2, true));
}
