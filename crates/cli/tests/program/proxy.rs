//! Connections of a real Apache to its backend: parameters of mod_proxy's workers, each observed at that backend.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Apache, Folder, free_port, get, n, number, signal, wait_until};
use serde_json::Value;

/// Observations of the backend while the file had a certain text.
#[derive(Debug, Default, Clone, Copy)]
struct Observation {
    requests: usize,
    connections: usize,
    /// Maximum of simultaneous requests.
    now: usize,
    most: usize,
}

/// A backend that answers after a tenth of a second, and `/slow` after three seconds.
struct BackendServer {
    port: u16,
    seen: Arc<Mutex<BTreeMap<String, Observation>>>,
}

impl BackendServer {
    fn start(site: &Path) -> BackendServer {
        let listener = TcpListener::bind(("127.0.0.1", free_port())).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let (all, site) = (Arc::clone(&seen), site.to_path_buf());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (all, site) = (Arc::clone(&all), site.clone());
                thread::spawn(move || answer(stream, &all, &site));
            }
        });
        BackendServer { port, seen }
    }

    /// The observations while the lines of workers had exactly these parameters.
    fn seen(&self, parameters: &str) -> Observation {
        self.seen.lock().expect("nobody panicked").get(parameters).copied().unwrap_or_default()
    }

    fn forget(&self) {
        self.seen.lock().expect("nobody panicked").clear();
    }
}

fn answer(stream: TcpStream, all: &Mutex<BTreeMap<String, Observation>>, site: &Path) {
    let mut writer = stream.try_clone().expect("a second handle");
    let mut lines = BufReader::new(stream).lines();
    let mut is_new = true;
    while let Some(Ok(first)) = lines.next() {
        while lines.next().is_some_and(|line| line.is_ok_and(|l| !l.is_empty())) {}
        let text = fs::read_to_string(site).unwrap_or_default();
        let line = text.lines().find(|l| l.starts_with("ProxyPass")).unwrap_or_default();
        let key = line.split_once("/ ").map_or("", |(_, rest)| rest.trim_start_matches("http").trim()).to_string();
        let mut words: Vec<&str> = key.split_whitespace().filter(|w| w.contains('=')).collect();
        words.sort_unstable();
        let key = words.join(" ");
        let with = |change: &dyn Fn(&mut Observation)| {
            change(all.lock().expect("nobody panicked").entry(key.clone()).or_default())
        };
        with(&|seen| {
            seen.requests += 1;
            seen.connections += usize::from(is_new);
            seen.now += 1;
            seen.most = seen.most.max(seen.now);
        });
        thread::sleep(Duration::from_millis(if first.contains("/slow") { 3000 } else { 100 }));
        with(&|seen| seen.now -= 1);
        is_new = false;
        if writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
            return;
        }
    }
}

struct Site {
    apache: Apache,
    behind: BackendServer,
    file: PathBuf,
}

impl Site {
    /// Starts Apache event with a virtual host in its own file; `workers` returns its lines for the backend's port.
    fn start(folder: &Folder, workers: impl Fn(u16) -> String) -> Site {
        let sites = folder.join("apache/sites");
        fs::create_dir_all(&sites).expect("made");
        let file = sites.join("site.conf");
        let behind = BackendServer::start(&file);
        fs::write(&file, workers(behind.port)).expect("written");
        let modules = ["proxy", "proxy_http", "proxy_balancer", "lbmethod_byrequests", "slotmem_shm"];
        let load = modules.map(|m| format!("LoadModule {m}_module /usr/lib/apache2/modules/mod_{m}.so\n")).concat();
        let apache = Apache::start_with(folder, |text| {
            text.replace("mpm_prefork", "mpm_event")
                .replace("MinSpareServers 5", "ThreadsPerChild 8\nMinSpareThreads 8\nServerLimit 1")
                .replace("MaxSpareServers 10", "MaxSpareThreads 16")
                .replace("StartServers 5", "StartServers 1")
                .replace("MaxRequestWorkers 50", "MaxRequestWorkers 8")
                .replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0")
                .replace("LoadModule perl_module", &format!("{load}LoadModule perl_module"))
                + &format!("\nInclude {}/site.conf\n", sites.display())
        });
        wait_until("an answer from behind", || get(apache.port, "/back/").is_some_and(|b| b == "ok"));
        behind.forget();
        Site { apache, behind, file }
    }

    fn plan(&self, folder: &Folder, load: &str, path: &str, settings: &str) -> String {
        let file = folder.join("plan.toml");
        let (server, url) = (self.apache.name(), self.apache.url(path));
        let head = format!("server = '{server}'\nurl = '{url}'\n{load}\nkeepalive = 'off'");
        fs::write(&file, format!("{head}\n[settings]\n{settings}")).expect("written");
        file.display().to_string()
    }

    fn sweep(&self, folder: &Folder, load: &str, path: &str, settings: &str, more: &[&str]) -> Value {
        let plan = self.plan(folder, load, path, settings);
        let mut args = vec!["sweep", plan.as_str(), "--quiet"];
        args.extend(more);
        self.behind.forget();
        folder.json(&args, 0)
    }
}

fn one_worker(port: u16) -> String {
    // With Windows line ends and continued lines.
    format!("<VirtualHost *>\r\nProxyPass /back/ http://127.0.0.1:{port}/ retry=0\r\n</VirtualHost>\r\n")
}

/// Answers in the row with these parameters.
fn answered(sweep: &Value, max: u64, acquire: u64) -> u64 {
    let has = |row: &&Value| row["settings"]["proxy.max"] == max && row["settings"]["proxy.acquire"] == acquire;
    let row = sweep["rows"].as_array().expect("rows").iter().find(has);
    n(&row.unwrap_or_else(|| panic!("{max} {acquire}: {sweep:#}"))["answered"])
}

#[test]
fn connections_to_the_server_behind_are_as_the_parameters_say() {
    let folder = Folder::new();
    let site = Site::start(&folder, one_worker);
    let before = (site.apache.tree(), site.apache.masters());
    let load = "users = 6\nduration = '1s'";

    let knobs = folder.json(&["knobs", &site.apache.name()], 0);
    let of = |name: &str| knobs["knobs"].as_array().expect("rows").iter().find(|k| k["name"] == name).cloned();
    assert_eq!(of("proxy.enablereuse").expect("a knob")["value"], "On");
    let timeout = of("ProxyTimeout").expect("a knob");
    assert_eq!((&timeout["value"], &timeout["source"]), (&60.into(), &"Timeout".into()));

    site.sweep(&folder, load, "/back/", "'proxy.enablereuse' = ['On', 'Off']", &["--live"]);
    let (on, off) = (site.behind.seen("enablereuse=On retry=0"), site.behind.seen("enablereuse=Off retry=0"));
    assert!(off.requests > 10 && off.connections == off.requests, "{off:?}");
    assert!(on.requests > 10 && on.connections <= 8, "{on:?}");

    // A row that is refused, one connection with and without a limit of the wait for it, and three; all with keep-alive
    // probes. Apache answers 503 at once when it gives up waiting.
    let rows = "'proxy.max' = [9, 1, 3]\n'proxy.acquire' = [0, 5]\n'proxy.keepalive' = 'On'";
    let plan = site.plan(&folder, load, "/back/", rows);
    site.behind.forget();
    let args = ["sweep", plan.as_str(), "--quiet", "--json", "-"];
    let mut sweep = folder.lastdrop(&args).stdout(Stdio::piped()).spawn().expect("runs");
    let filter = format!("dst 127.0.0.1:{}", site.behind.port);
    let mut probes = false;
    while sweep.try_wait().expect("waited for").is_none() {
        let sockets = Command::new("ss").args(["-tnoH", &filter]).output().expect("ss runs").stdout;
        probes |= String::from_utf8_lossy(&sockets).contains("timer:(keepalive");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(probes, "no socket with a timer for keep-alive was seen");
    let done: Value = serde_json::from_slice(&sweep.wait_with_output().expect("ends").stdout).expect("JSON");
    assert!(done["rows"][0]["note"].to_string().contains("8 threads (ThreadsPerChild)"), "{done:#}");
    let most = |max: u64| site.behind.seen(&format!("keepalive=On max={max} retry=0"));
    let (one, three) = (most(1), most(3));
    assert_eq!((one.most, one.connections, three.most, three.connections), (1, 1, 3, 3), "{one:?} {three:?}");
    let (waits, gives_up) = (answered(&done, 1, 0), answered(&done, 1, 5));
    assert!(waits <= 20 && gives_up > 2 * waits, "{done:#}");

    // A visitor comes every two seconds; a connection with a limit of one second is too old by then.
    let plan = site.plan(&folder, "users = 1\nduration = '5s'", "/", "'proxy.ttl' = [0, 1]");
    site.behind.forget();
    let args = ["sweep", plan.as_str(), "--live", "--quiet"];
    let mut sweep = folder.lastdrop(&args).stdout(Stdio::null()).spawn().expect("runs");
    while sweep.try_wait().expect("waited for").is_none() {
        let _ = get(site.apache.port, "/back/");
        thread::sleep(Duration::from_secs(2));
    }
    let (ever, second) = (site.behind.seen("retry=0"), site.behind.seen("retry=0 ttl=1"));
    assert!(second.requests >= 2 && second.connections == second.requests, "{second:?}");
    assert!(ever.requests >= 2 && ever.connections < ever.requests, "{ever:?}");

    // The backend takes three seconds; a shorter timeout gives an error.
    let plan = site.plan(&folder, "users = 1\nduration = '6s'", "/", "'proxy.timeout' = [0, 1]\nProxyTimeout = 2");
    let args = ["sweep", plan.as_str(), "--live", "--quiet"];
    let mut sweep = folder.lastdrop(&args).stdout(Stdio::null()).spawn().expect("runs");
    let own = || fs::read_to_string(&site.file).expect("readable").contains("timeout=1");
    let (mut after_two, mut after_one) = (false, false);
    while sweep.try_wait().expect("waited for").is_none() {
        let (had, began) = (own(), Instant::now());
        let body = get(site.apache.port, "/back/slow");
        let took = began.elapsed();
        let gave_up = body.is_some_and(|b| b.contains("Proxy Error") || b.contains("Timeout"));
        after_two |= gave_up && !had && !own() && took >= Duration::from_secs(2);
        after_one |= gave_up && had && own() && took < Duration::from_secs(2);
    }
    assert!(after_two && after_one, "ProxyTimeout: {after_two}, its own: {after_one}");

    assert_eq!((site.apache.tree(), site.apache.masters(), folder.journal()), (before.0, before.1, None));
}

#[test]
fn members_of_a_balancer_are_changed_with_a_setting_of_the_server_and_put_back_after_a_kill() {
    let folder = Folder::new();
    let site = Site::start(&folder, |port| {
        format!(
            "<VirtualHost *>\n<Proxy balancer://both>\nBalancerMember http://127.0.0.1:{port} retry=0\n\
             BalancerMember http://localhost:{port} retry=0 \\\n   max=7\n</Proxy>\nProxyPass /back/ balancer://both/\n\
             </VirtualHost>\n"
        )
    });
    let before = site.apache.tree();
    let plan = site.plan(
        &folder,
        "users = 4\nduration = '300ms'",
        "/back/",
        "'proxy.max' = [1, 2]\nKeepAliveTimeout = [3, 4]\nThreadsPerChild = 6\nMaxRequestWorkers = 6\nMinSpareThreads = 6",
    );
    let edited = |text: &str| fs::read_to_string(&site.file).is_ok_and(|now| now.matches(text).count() == 2);
    for moment in 0..2 {
        let args = ["sweep", plan.as_str(), "--quiet"];
        let mut sweep = folder.lastdrop(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs");
        match moment {
            0 => wait_until("an edited file", || edited("max=1")),
            _ => wait_until("an answer with a change", || edited("max=1") && get(site.apache.port, "/back/").is_some()),
        }
        signal(&sweep, libc::SIGKILL);
        sweep.wait().expect("ends");
        let restored = folder.run(&["restore"]);
        assert!(restored.code == 0, "{moment}: {restored:?}");
        wait_until("its own page", || get(site.apache.port, "/back/").is_some_and(|b| b == "ok"));
        assert_eq!((site.apache.tree(), folder.journal()), (before.clone(), None), "{moment}");
    }
    let done = folder.json(&["sweep", &plan, "--quiet"], 0);
    assert!(done["rows"].as_array().expect("rows").iter().all(|r| number(&r["rps"]) > 0.0), "{done:#}");
    assert_eq!(site.apache.tree(), before);
}
