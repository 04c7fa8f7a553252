//! The settings of a real nginx: read, changed in its own files, refused, and restored whatever happens.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{CommandOutput, Folder, KILLED, end_at, end_at_each_step, free_port, get, signal, wait_until};
use serde_json::Value;

/// An nginx in the background, with its site in a file that is included by a link, as on Debian.
struct Nginx {
    folder: PathBuf,
    port: u16,
    /// Words in front of its command line.
    launcher: Vec<&'static str>,
}

impl Nginx {
    fn start(folder: &Folder) -> Nginx {
        Nginx::start_by(folder, &[])
    }

    fn start_by(folder: &Folder, launcher: &[&'static str]) -> Nginx {
        let at = folder.join("nginx");
        for name in ["sites-available", "sites-enabled"] {
            fs::create_dir_all(at.join(name)).expect("a folder");
        }
        let port = free_port();
        let dir = at.display();
        let main = format!(
            "# By hand.\r\nworker_processes  2 ;\npid {dir}/nginx.pid; error_log {dir}/error.log;\n\nevents {{ worker_connections 100; }}\n\
             http {{\n\taccess_log off;  # nobody reads it\n\tgzip_min_length 1;\n\tkeepalive_timeout   20s 30;\n\tinclude sites-enabled/*;\n}}\n"
        );
        let site = format!(
            "upstream back {{ server 127.0.0.1:1; }}\nserver {{\n  listen 127.0.0.1:{port} default_server;\n  \
             default_type text/html;\n  sendfile on;\n  \
             location / {{ return 200 \"a page of some length, a page of some length\"; }}\n  \
             location /own {{ sendfile off; }}\n  location = /nginx_status {{ stub_status; }}\n}}\n"
        );
        fs::write(at.join("nginx.conf"), main).expect("written");
        fs::write(at.join("sites-available/site"), site).expect("written");
        fs::set_permissions(at.join("sites-available/site"), fs::Permissions::from_mode(0o640)).expect("its mode");
        symlink("../sites-available/site", at.join("sites-enabled/site")).expect("a link");
        let nginx = Nginx { folder: at, port, launcher: launcher.to_vec() };
        nginx.run();
        nginx
    }

    fn run(&self) {
        let config = self.config().display().to_string();
        let words: Vec<&str> = self
            .launcher
            .iter()
            .copied()
            .chain(["/usr/sbin/nginx", "-c", &config, "-g", "worker_priority 0;"])
            .collect();
        let output = Command::new(words[0]).args(&words[1..]).output().expect("nginx runs (./x test installs it)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        wait_until("nginx", || get(self.port, "/").is_some());
    }

    fn config(&self) -> PathBuf {
        self.folder.join("nginx.conf")
    }

    fn site(&self) -> PathBuf {
        self.folder.join("sites-available/site")
    }

    fn name(&self) -> String {
        format!("nginx:{}", self.config().display())
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    fn master(&self) -> Option<i32> {
        fs::read_to_string(self.folder.join("nginx.pid")).ok()?.trim().parse().ok()
    }

    /// Workers that are not shutting down.
    fn workers(&self) -> Vec<i32> {
        let Some(master) = self.master() else { return Vec::new() };
        let of_master = fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap_or_default();
        let title = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let pids = of_master.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.filter(|pid| !title(pid).contains("shutting down")).collect()
    }

    /// The limit of its listen queue.
    fn backlog(&self) -> Option<u64> {
        let port = format!("sport = :{}", self.port);
        let output = Command::new("ss").args(["-ltnH", &port]).output().expect("ss runs");
        String::from_utf8_lossy(&output.stdout).split_whitespace().nth(2)?.parse().ok()
    }

    /// Whether it keeps the connection, and whether it compresses.
    fn answers(&self) -> Option<(bool, bool)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n").ok()?;
        let mut bytes = [0; 2048];
        let n = stream.read(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
        Some((text.contains("Connection: keep-alive"), text.contains("Content-Encoding: gzip")))
    }

    /// All of its files except logs, with content, mode, and the target of links.
    fn tree(&self) -> Vec<(PathBuf, u32, Vec<u8>)> {
        let mut files = Vec::new();
        for folder in ["", "sites-available", "sites-enabled"].map(|name| self.folder.join(name)) {
            for entry in fs::read_dir(folder).expect("readable").filter_map(Result::ok) {
                let (path, metadata) = (entry.path(), entry.metadata().expect("there"));
                let content = match fs::read_link(&path) {
                    Ok(link) => link.to_string_lossy().into_owned().into_bytes(),
                    Err(_) if metadata.is_dir() || path.ends_with("error.log") || path.ends_with("nginx.pid") => {
                        continue;
                    }
                    Err(_) => fs::read(&path).expect("readable"),
                };
                files.push((path, metadata.permissions().mode(), content));
            }
        }
        files.sort();
        files
    }

    /// Writes a plan of a sweep.
    fn plan(&self, folder: &Folder, duration: &str, settings: &str) -> String {
        let file = folder.join("plan.toml");
        let (server, url) = (self.name(), self.url());
        let head = format!("server = '{server}'\nurl = '{url}'\nusers = 2\nduration = '{duration}'\nkeepalive = 'off'");
        fs::write(&file, format!("{head}\n[settings]\n{settings}")).expect("written");
        file.display().to_string()
    }

    fn stop(&self) {
        let Some(pid) = self.master() else { return };
        // SAFETY: a plain call on a server of ours.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.folder.join("nginx.pid").exists() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A sweep with --live, which does not look for visitors.
fn start_sweep(folder: &Folder, plan: &str) -> Child {
    let args = ["sweep", plan, "--live", "--quiet", "--json", "-"];
    folder.lastdrop(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs")
}

fn end(child: Child) -> CommandOutput {
    CommandOutput::of(child.wait_with_output().expect("ends"), &[])
}

#[test]
fn settings_are_those_of_its_files_and_of_its_workers() {
    let folder = Folder::new();
    let nginx = Nginx::start(&folder);
    let effective = |size: &Value, name: &str| size["effective"][name].to_string();
    let size = folder.json(&["size", &nginx.name(), "--memory", "400M"], 0);
    let dumped = Command::new("/usr/sbin/nginx").arg("-T").arg("-c").arg(nginx.config()).output().expect("nginx runs");
    let dumped = String::from_utf8_lossy(&dumped.stdout).into_owned();
    let said = |name: &str| {
        let after = dumped.split_whitespace().skip_while(|word| *word != name).nth(1).expect("it is set");
        after.trim_end_matches([';', 's']).to_string()
    };
    for name in ["worker_processes", "worker_connections", "keepalive_timeout"] {
        assert_eq!(effective(&size, name), said(name), "{name}: {size:#}");
    }
    assert_eq!(effective(&size, "sendfile"), "\"on\"");
    for (name, default) in [("keepalive_requests", "1000"), ("gzip", "\"off\""), ("backlog", "511"), ("keepalive", "0")]
    {
        assert_eq!(effective(&size, name), default, "{name}: {size:#}");
    }
    let knobs = folder.json(&["knobs", &nginx.name()], 0);
    let row = |name: &str| knobs["knobs"].as_array().expect("rows").iter().find(|row| row["name"] == name).expect(name);
    let from = |name: &str| row(name)["source"].as_str().expect("text").to_string();
    assert!(from("keepalive_timeout").ends_with("nginx.conf:9") && from("gzip") == "default of nginx", "{knobs:#}");
    assert!(from("sendfile").ends_with("sites-enabled/site:5"), "{knobs:#}");
    assert_eq!((&row("worker_processes")["choices"][0], &row("gzip")["needs"]), (&"auto".into(), &"reload".into()));
    let notes = size["notes"].to_string();
    assert!(notes.contains("a location has its own sendfile") && !notes.contains("no status page"), "{size:#}");
    assert!(size["version"].as_str().expect("text").contains("nginx/1."), "{size:#}");

    let text = fs::read_to_string(nginx.config()).expect("readable");
    fs::write(nginx.config(), text.replace("worker_processes  2", "worker_processes  5")).expect("written");
    let size = folder.json(&["size", &nginx.name()], 0);
    assert_eq!(effective(&size, "worker_processes"), "2", "it has not read that yet");
    assert!(size["notes"].to_string().contains("has changed since"), "{size:#}");

    // Another nginx is running, too.
    let other = Folder::new();
    let _second = Nginx::start(&other);
    let unnamed = folder.run(&["size", "nginx"]);
    assert!(unnamed.code == 1 && unnamed.stderr.contains("could be any of"), "{unnamed:?}");
    assert!(unnamed.stderr.contains(&nginx.name()), "{unnamed:?}");
    let fit = folder.run(&["size", &nginx.name(), "--fit", "--url", &nginx.url()]);
    assert!(fit.code != 0 && fit.stderr.contains("no pool"), "{fit:?}");
}

#[test]
fn a_sweep_acts_on_the_server_and_leaves_its_files_as_they_were() {
    let folder = Folder::new();
    let nginx = Nginx::start(&folder);
    let (before, master) = (nginx.tree(), nginx.master());
    let settings = "worker_processes = [1, 3]\nkeepalive_timeout = [0, 65]\nbacklog = 77\ngzip = 'on'\nkeepalive = 4\n\
                    reuseport = 'on'\nopen_file_cache = 100";
    let plan = nginx.plan(&folder, "1s", settings);
    let mut sweep = start_sweep(&folder, &plan);
    let (mut seen, mut texts) = (BTreeSet::new(), BTreeSet::new());
    let ended = |sweep: &mut Child| sweep.try_wait().expect("waited for").is_some();
    while !ended(&mut sweep) {
        if let Some((keeps, compresses)) = nginx.answers() {
            seen.insert((nginx.workers().len(), keeps, compresses, nginx.backlog()));
        }
        texts.insert(
            fs::read_to_string(nginx.site()).expect("there") + &fs::read_to_string(nginx.config()).expect("there"),
        );
        thread::sleep(Duration::from_millis(20));
    }
    let done = end(sweep);
    assert_eq!(done.code, 0, "{done:?}");
    for (workers, keeps) in [(1, true), (1, false), (3, true), (3, false)] {
        assert!(seen.contains(&(workers, keeps, true, Some(77))), "{workers} {keeps}: {seen:?}");
    }
    let changed = texts.iter().find(|text| text.contains("worker_processes  3 ;")).expect("it was edited");
    for part in [
        "# By hand.\r\n",
        "default_server backlog=77 reuseport;",
        "server 127.0.0.1:1; keepalive 4; }",
        "http { gzip on; open_file_cache max=100;\n",
        " 30;\n\tinclude",
    ] {
        assert!(changed.contains(part), "{part}: {changed}");
    }
    let document: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(document["rows"].as_array().map(Vec::len), Some(4), "{document:#}");
    assert_eq!((nginx.tree(), nginx.master()), (before, master));
    assert_eq!((nginx.workers().len(), nginx.answers(), nginx.backlog()), (2, Some((true, false)), Some(511)));
    assert_eq!(folder.journal(), None);
}

#[test]
fn what_nginx_would_not_take_is_refused_in_its_words_and_nothing_is_changed() {
    let folder = Folder::new();
    let nginx = Nginx::start_by(&folder, &["prlimit", "--nofile=256:256", "--"]);
    wait_until("its workers", || nginx.workers().len() == 2);
    let before = (nginx.tree(), nginx.workers());
    let sweep = |settings: &str| {
        let plan = nginx.plan(&folder, "200ms", settings);
        folder.run(&["sweep", &plan, "--live", "--json", "-"])
    };
    let clamped = sweep("worker_connections = 5000");
    assert!(clamped.stdout.contains("5000 worker_connections exceed open file resource limit: 256"), "{clamped:?}");
    let unknown = sweep("worker_threads = 5");
    assert!(unknown.code == 2 && unknown.stderr.contains("it knows worker_processes"), "{unknown:?}");
    let wrong = sweep("worker_processes = 'many'");
    assert!(wrong.code == 2 && wrong.stderr.contains("or auto"), "{wrong:?}");
    assert_eq!((nginx.tree(), nginx.workers()), before);

    // A used address shows only at the reload.
    let mut site = fs::read_to_string(nginx.site()).expect("readable");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    site.push_str(&format!("server {{ listen 127.0.0.1:{port}; }}\n"));
    fs::write(nginx.site(), &site).expect("written");
    let kept = sweep("gzip = 'on'");
    let bind = "still could not bind()";
    assert!(kept.code == 1 && kept.stderr.contains(bind) && kept.stderr.contains("runs on"), "{kept:?}");
    drop(taken);
    let restored = folder.run(&["restore"]);
    assert!(restored.code == 0 && folder.journal().is_none(), "{restored:?}");
    assert_eq!(fs::read_to_string(nginx.site()).expect("readable"), site);

    fs::write(nginx.site(), format!("{site} worker_oops 1;")).expect("written");
    let before = (nginx.tree(), nginx.workers());
    let broken = sweep("worker_processes = 1");
    assert!(broken.code == 1 && broken.stderr.contains("unknown directive \"worker_oops\""), "{broken:?}");
    assert_eq!((nginx.tree(), nginx.workers(), folder.journal()), (before.0, before.1, None));
}

#[test]
fn a_sweep_killed_at_any_step_is_put_back_byte_for_byte() {
    let folder = Folder::new();
    let nginx = Nginx::start(&folder);
    let before = nginx.tree();
    let plan = nginx.plan(&folder, "20ms", "worker_processes = 1\nbacklog = 44");
    let title = || fs::read_to_string(format!("/proc/{}/cmdline", nginx.master().unwrap_or(0))).unwrap_or_default();
    let own = title();
    let is_as_found = |moment: &str| {
        wait_until("its own workers", || nginx.workers().len() == 2 && get(nginx.port, "/").is_some());
        assert_eq!(nginx.tree(), before, "{moment}");
        assert_eq!((nginx.answers(), nginx.backlog()), (Some((true, false)), Some(511)), "{moment}");
        assert_eq!((title(), folder.journal()), (own.clone(), None), "{moment}");
    };
    let sweep = ["sweep", &plan, "--live", "--quiet"];
    let steps = end_at_each_step(&folder, &sweep, is_as_found);
    assert!(steps >= 12, "{steps}");

    // As after a kill in the middle of a write to a file that is changed by then.
    let changed = |step: usize| {
        assert_eq!(end_at(&folder, &sweep, step).code, KILLED);
        let journal = fs::read_to_string(folder.journal()?).expect("readable");
        let journal: Value = serde_json::from_str(&journal).expect("JSON");
        let file = journal["edited"][0]["path"].as_str().map(PathBuf::from);
        if file.is_none() {
            assert_eq!(folder.run(&["restore"]).code, 0);
        }
        file
    };
    let file = (steps / 2..steps).find_map(changed).expect("a file that is changed");
    let name = file.file_name().expect("a name").to_string_lossy();
    fs::write(file.with_file_name(format!(".{name}.lastdrop-new")), "half").expect("written");
    // A server that is down by then is started.
    nginx.stop();
    let restored = folder.run(&["restore"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    is_as_found("stopped meanwhile");
}

#[test]
fn where_the_master_is_killed_under_a_sweep_files_are_put_back_at_once_and_the_rest_once_its_place_is_free() {
    let folder = Folder::new();
    let nginx = Nginx::start(&folder);
    let before = nginx.tree();
    let plan = nginx.plan(&folder, "60s", "worker_processes = 1");
    let sweep = start_sweep(&folder, &plan);
    wait_until("the changed pool", || nginx.workers().len() == 1);
    let (master, workers) = (nginx.master().expect("it runs"), nginx.workers());
    let kill = |pid: i32| {
        // SAFETY: a plain call on a server of ours.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    };
    kill(master);
    signal(&sweep, libc::SIGTERM);
    let swept = end(sweep);
    assert!(swept.code != 0 && swept.stderr.contains("lastdrop restore"), "{swept:?}");
    assert_eq!(nginx.tree(), before, "{swept:?}");
    // Its workers survive it and keep its address: lastdrop does not end them unasked.
    let refused = folder.run(&["restore"]);
    assert!(refused.code == 1 && refused.stderr.contains("its place is taken"), "{refused:?}");
    workers.into_iter().for_each(kill);
    wait_until("a free place", || get(nginx.port, "/").is_none());
    let restored = folder.run(&["restore"]);
    assert!(restored.code == 0 && folder.journal().is_none(), "{restored:?}");
    wait_until("its own workers", || nginx.workers().len() == 2 && get(nginx.port, "/").is_some());
}

#[test]
fn what_somebody_else_writes_meanwhile_is_not_overwritten() {
    let folder = Folder::new();
    let nginx = Nginx::start(&folder);
    let plan = nginx.plan(&folder, "2s", "worker_processes = [1, 3]\nbacklog = 44");
    let sweep = start_sweep(&folder, &plan);
    wait_until("an edit", || fs::read_to_string(nginx.config()).is_ok_and(|text| text.contains("worker_processes  1")));
    wait_until("one worker", || nginx.workers().len() == 1);
    let theirs = fs::read_to_string(nginx.config()).expect("readable") + "# mine\n";
    fs::write(nginx.config(), &theirs).expect("written");
    let done = end(sweep);
    assert!(done.code == 1 && done.stderr.contains("somebody else has changed"), "{done:?}");
    assert!(done.stderr.contains("'worker_processes  1 ;' was 'worker_processes  2 ;'"), "{done:?}");
    assert_eq!(fs::read_to_string(nginx.config()).expect("readable"), theirs);
    assert!(!fs::read_to_string(nginx.site()).expect("readable").contains("backlog"), "the other file is put back");
    let again = folder.run(&["restore"]);
    assert!(again.code == 1 && again.stderr.contains("--forget") && folder.journal().is_some(), "{again:?}");
    fs::write(nginx.config(), theirs.replace("worker_processes  1", "worker_processes  2")).expect("written");
    let name = nginx.name();
    let forgotten = folder.run(&["restore", "--forget", &name]);
    assert!(forgotten.code == 0 && folder.journal().is_none(), "{forgotten:?}");
}

#[test]
fn a_tune_looks_for_visitors_and_tries_without_keepalive() {
    let folder = Folder::new();
    let nginx = Nginx::start(&folder);
    let before = nginx.tree();
    let (name, url) = (nginx.name(), nginx.url());
    let mut args = vec!["tune", &name, "--url", &url, "-c", "2", "-d", "150ms", "--warm-up", "50ms"];
    args.extend(["--keepalive", "on", "--blocks", "4", "--trials", "4", "--only", "keepalive_timeout"]);
    // Another client with occasional requests is noticed by the count of requests, or by its connection.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let busy = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = get(nginx.port, "/visitor");
                thread::sleep(Duration::from_millis(20));
            }
        });
        let busy = folder.run(&args);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        busy
    });
    assert!(busy.code == 1 && busy.stderr.contains("is serving other people"), "{busy:?}");
    let tune = folder.json(&args, 0);
    let trials = tune["trials"].as_array().expect("trials");
    let of = |role: &str| trials.iter().filter(|t| t["role"] == role).map(|t| &t["settings"]).collect::<Vec<_>>();
    let timeout = tune["searched"].as_array().expect("settings").iter().find(|s| s["name"] == "keepalive_timeout");
    assert!(timeout.expect("a setting")["values"].as_array().is_some_and(|v| v.iter().any(|v| v == "0")), "{tune:#}");
    assert!(!of("search").is_empty(), "{tune:#}");
    assert!(of("race").len() >= 8 && tune["restored"] == true, "{tune:#}");
    assert_eq!((nginx.tree(), nginx.workers().len()), (before, 2));
}

/// True if a returning client resumes its TLS session.
fn resumes(folder: &Folder, port: u16) -> Option<bool> {
    let session = folder.join("session.pem");
    let _ = fs::remove_file(&session);
    let connect = |flag: &str| {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &format!("127.0.0.1:{port}"), "-tls1_2", flag]).arg(&session);
        let output = command.stdin(Stdio::null()).output().expect("openssl");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    connect("-sess_out");
    if !session.exists() {
        return Some(false);
    }
    let said = connect("-sess_in");
    (said.contains("Reused, ") || said.contains("New, ")).then(|| said.contains("Reused, "))
}

/// Creates a key and a self-signed certificate: `key.pem`, `cert.pem`.
fn certificate(folder: &str) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3", "-subj", "/CN=localhost"])
        .args(["-keyout", &format!("{folder}/key.pem"), "-out", &format!("{folder}/cert.pem")])
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{made:?}");
}

#[test]
fn one_that_speaks_tls_alone_is_asked_for_its_health_too() {
    let folder = Folder::new();
    let (port, dir) = (free_port(), folder.path().display().to_string());
    certificate(&dir);
    let http = format!(
        "  server {{\n   listen 127.0.0.1:{port} ssl;\n   ssl_certificate {dir}/cert.pem;\n   ssl_certificate_key \
         {dir}/key.pem;\n   location / {{ return 200 ok; }}\n  }}"
    );
    let server = crate::common::servers::nginx(&folder, &http, port);
    let config = folder.join("nginx.conf");
    let before = fs::read(&config).expect("readable");
    let plan = folder.join("plan.toml");
    let text = format!(
        "server = 'nginx:{}'\nurl = 'https://127.0.0.1:{port}/'\nusers = 2\nrequests = 40\ninsecure = true\n[settings]\n\
         worker_processes = [1, 2]\n",
        config.display()
    );
    fs::write(&plan, text).expect("written");
    let document = folder.json(&["sweep", &plan.display().to_string()], 0);
    let rows = document["rows"].as_array().expect("rows");
    assert!(rows.len() == 2 && rows.iter().all(|r| r["answered"] == 40 && r["warmed"] == "each"), "{document:#}");
    assert_eq!((fs::read(&config).expect("readable"), folder.journal()), (before, None));
    drop(server);
}

#[test]
fn buffers_of_logs_and_caches_of_sessions_act() {
    let folder = Folder::new();
    let (port, tls, dir) = (free_port(), free_port(), folder.path().display().to_string());
    certificate(&dir);
    let log = folder.join("access.log");
    let http = format!(
        "  log_format long '$status {:0>999}';\n  server {{\n   access_log {dir}/access.log long;\n   listen \
         127.0.0.1:{port};\n   listen 127.0.0.1:{tls} ssl;\n   ssl_certificate {dir}/cert.pem;\n   \
         ssl_certificate_key {dir}/key.pem;\n   ssl_session_tickets off;\n   ssl_protocols TLSv1.2;\n   location / {{ \
         return 200 ok; }}\n  }}",
        0
    );
    let server = crate::common::servers::nginx(&folder, &http, port);
    let config = folder.join("nginx.conf");
    let before = fs::read(&config).expect("readable");
    let name = format!("nginx:{}", config.display());
    let knobs = folder.json(&["knobs", &name], 0);
    let value = |name: &str| {
        let rows = knobs["knobs"].as_array().expect("rows").iter();
        rows.clone().find(|row| row["name"] == name).expect(name)["value"].clone()
    };
    assert_eq!((value("access_log_buffer"), value("ssl_session_cache")), (0.into(), 0.into()), "{knobs:#}");
    let plan = folder.join("plan.toml");
    let text = format!(
        "server = '{name}'\nurl = 'http://127.0.0.1:{port}/'\nusers = 1\nduration = '3s'\nkeepalive = 'off'\n\
         [[variant]]\nname = 'none'\nsettings = {{ access_log_buffer = 0, ssl_session_cache = 0 }}\n\
         [[variant]]\nname = 'sessions'\nsettings = {{ access_log_buffer = 0, ssl_session_cache = 1 }}\n\
         [[variant]]\nname = 'both'\nsettings = {{ access_log_buffer = 64, ssl_session_cache = 1 }}\n"
    );
    fs::write(&plan, text).expect("written");
    let mut sweep = start_sweep(&folder, &plan.display().to_string());
    // What was seen while each configuration stood in the file: whether the log grew by a buffer, and whether a session was
    // resumed.
    let mut seen: HashMap<_, Vec<_>> = HashMap::new();
    let size = || fs::metadata(&log).map_or(0, |m| m.len());
    let says = || {
        let text = fs::read_to_string(&config).unwrap_or_default();
        (text.contains("buffer=64k"), text.contains("shared:lastdrop:1m"))
    };
    while sweep.try_wait().expect("waited for").is_none() {
        let (state, was) = (says(), size());
        // A line has 1 KB, so 64 requests fill a buffer.
        let grown = std::iter::repeat_with(|| thread::sleep(Duration::from_millis(2)))
            .take_while(|()| state == says() && sweep.try_wait().expect("waited for").is_none())
            .find_map(|()| Some(size().saturating_sub(was)).filter(|grown| *grown > 0));
        let resumed = resumes(&folder, tls);
        if let (Some(grown), Some(resumed), true) = (grown, resumed, state == says()) {
            seen.entry(state).or_default().push((grown >= 60 << 10, resumed));
        }
    }
    let done = end(sweep);
    assert_eq!(done.code, 0, "{done:?}");
    // Most of the time: nginx reads its file somewhat later, and an unbuffered log may grow by much between two checks.
    for (state, wanted) in
        [((false, false), (false, false)), ((false, true), (false, true)), ((true, true), (true, true))]
    {
        let all = seen.remove(&state).unwrap_or_default();
        let most = |what: &dyn Fn(&(bool, bool)) -> bool| 2 * all.iter().filter(|one| what(one)).count() > all.len();
        assert!(!all.is_empty(), "{state:?} was not seen");
        assert_eq!((most(&|one| one.0), most(&|one| one.1)), wanted, "{state:?}: {all:?}");
    }
    assert_eq!(fs::read(&config).expect("readable"), before);
    drop(server);
}
