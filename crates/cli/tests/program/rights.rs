//! The rights with which lastdrop executes a server's program. A process of an ordinary user with the name of a server, or a
//! container of that user, cannot make root execute anything. Programs of root's servers are executed as before. It needs root.

use std::fs;
use std::os::unix::fs::chown;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::common::hostile::{NOBODY, Scene};
use crate::common::servers::{children_of, nginx};
use crate::common::{Folder, free_port, get, n, wait_until};

/// A kind of server that another user fakes. `{config}`, `{theirs}` and `{secret}` are placeholders in its arguments.
struct FakeServer {
    /// The part of its name before the colon; after `pid` comes the process.
    kind: &'static str,
    program: &'static str,
    argv: &'static [&'static str],
    /// A configuration that names root's files and never ends.
    hostile: &'static str,
    /// A configuration that can be read completely.
    calm: &'static str,
    /// The settings that a sweep tries; empty for a server without workers, for which a sweep would wait.
    settings: &'static str,
}

const fn unchanged(kind: &'static str, program: &'static str, argv: &'static [&'static str]) -> FakeServer {
    FakeServer { kind, program, argv, hostile: "", calm: "", settings: "" }
}

const FAKES: &[FakeServer] = &[
    FakeServer {
        kind: "nginx",
        program: "nginx",
        argv: &["nginx: master process nginx -c {config}"],
        hostile: "load_module {theirs}/hostile.so;\ninclude /*/*/*/*/*/*/*;\ninclude {secret};\nevents {}\n",
        calm: "worker_processes 2;\nerror_log {secret};\nevents {}\nhttp { include {roots}/*.conf; }\n",
        settings: "",
    },
    FakeServer {
        kind: "apache",
        program: "apache2",
        argv: &["apache2", "-DFOREGROUND", "-k", "start", "-f", "{config}"],
        hostile: "LoadModule x_module {theirs}/hostile.so\nInclude {self}\nInclude {self}\nInclude /\nInclude /*/*/*/*/*/*\n\
                  Include {secret}\nInclude {theirs}/conf.d/*.conf\nPerlRequire {theirs}/Hostile.pm\n",
        calm: "MaxRequestWorkers 4\nDocumentRoot /\nIncludeOptional {roots}/*.conf\n",
        settings: "MaxRequestWorkers = [5]",
    },
    FakeServer {
        kind: "php-fpm",
        program: "php-fpm8.2",
        argv: &["php-fpm: master process ({config})"],
        hostile: "include={self}\ninclude={self}\ninclude=/*/*/*/*/*/*\ninclude={secret}\ninclude={theirs}/conf.d/*.conf\n\
                  [www]\nlisten={socket}\npm.status_path=/status\npm=static\npm.max_children=2\n",
        calm: "[www]\nlisten=127.0.0.1:1\npm=static\npm.max_children=2\ninclude={roots}/*.conf\n",
        settings: "",
    },
    FakeServer {
        kind: "haproxy",
        program: "haproxy",
        argv: &["haproxy", "-f", "{config}"],
        hostile: "global\n stats socket {socket}\n lua-load {theirs}/x.lua\n.if feature(OPENSSL)\n.endif\ninclude {secret}\n",
        calm: "global\n maxconn 50\n stats socket {socket}\ndefaults\n mode http\n",
        settings: "maxconn = [60]",
    },
    FakeServer {
        kind: "lighttpd",
        program: "lighttpd",
        argv: &["lighttpd", "-D", "-f", "{config}"],
        hostile: "include \"/*/*/*/*/*/*/*\"\ninclude \"{secret}\"\ninclude_shell \"{theirs}/hostile.sh\"\n",
        calm: "server.max-worker = 2\ninclude \"{theirs}/conf.d/*.conf\"\n",
        settings: "'server.max-worker' = [3]",
    },
    FakeServer {
        kind: "gunicorn",
        program: "python3",
        argv: &["python3", "{theirs}/gunicorn", "-c", "{config}"],
        hostile: "open('{secret}').read()\n",
        calm: "workers = 2\n",
        settings: "",
    },
    FakeServer {
        kind: "uwsgi",
        program: "uwsgi",
        argv: &["uwsgi", "--ini", "{config}"],
        hostile: "[uwsgi]\nini = {self}\nini = {self}\nini = {self}\nini = {secret}\nini = {theirs}/conf.d/link.conf\n",
        calm: "[uwsgi]\nprocesses = 2\nini = {secret}\n",
        settings: "",
    },
    FakeServer {
        kind: "puma",
        program: "ruby",
        argv: &["ruby", "{theirs}/puma", "-C", "{config}"],
        hostile: "puts File.read('{secret}')\n",
        calm: "workers 2\n",
        settings: "",
    },
    FakeServer {
        kind: "target",
        program: "lastdrop",
        argv: &["lastdrop", "target", "--overlay", "{secret}", "--config", "{config}"],
        hostile: "workers = \"{secret}\"\n",
        calm: "workers = 3\n",
        settings: "workers = [3]",
    },
    FakeServer {
        kind: "mariadb",
        program: "mariadbd",
        argv: &["mariadbd", "--defaults-file={config}", "--datadir={theirs}"],
        hostile: "[mysqld]\n!include {secret}\n!includedir {roots}\n",
        calm: "[mysqld]\nmax_connections = 7\n",
        settings: "",
    },
    FakeServer {
        kind: "postgresql",
        program: "postgres",
        argv: &["postgres", "-D", "{theirs}", "--config_file={config}"],
        hostile: "include '{secret}'\n",
        calm: "max_connections = 7\n",
        settings: "",
    },
    FakeServer {
        kind: "caddy",
        program: "caddy",
        argv: &["caddy", "run", "--config", "{config}"],
        hostile: "import {secret}\n",
        calm: ":80\n",
        settings: "GOGC = [200]",
    },
    FakeServer { settings: "UV_THREADPOOL_SIZE = [5]", ..unchanged("node", "node", &["node", "{theirs}/app.js"]) },
    unchanged("tomcat", "java", &["java", "-cp", "{theirs}", "org.apache.catalina.startup.Bootstrap", "run"]),
    unchanged("pid", "redis-server", &["redis-server", "{secret}"]),
    unchanged("pid", "memcached", &["memcached", "-u", "root"]),
    unchanged("pid", "varnishd", &["varnishd", "-f", "{secret}"]),
    unchanged("pid", "squid", &["squid", "-f", "{secret}"]),
    unchanged("pid", "nginx (deleted)", &["nginx (deleted)"]),
];

/// A running fake.
struct RunningServer {
    fake: &'static FakeServer,
    name: String,
    config: String,
    pid: i32,
    port: u16,
}

impl RunningServer {
    fn start(scene: &mut Scene, fake: &'static FakeServer, within: &[&str]) -> RunningServer {
        let file = format!("{}.conf", fake.program.replace(' ', "-"));
        let config = scene.write(&file, fake.calm);
        let filled = |word: &&str| {
            let word = word.replace("{config}", &config).replace("{secret}", &scene.text("secret"));
            word.replace("{theirs}", &scene.text("theirs"))
        };
        let argv: Vec<String> = fake.argv.iter().map(filled).collect();
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let (pid, port) = scene.fake(fake.program, &argv, within);
        let root = if within.is_empty() { String::new() } else { format!("/proc/{pid}/root") };
        let name = match fake.kind {
            "pid" => format!("pid:{pid}"),
            "postgresql" => format!("postgresql:{root}{}", scene.text("theirs")),
            kind if fake.calm.is_empty() => format!("{kind}@http://127.0.0.1:{port}/"),
            kind => format!("{kind}:{root}{config}"),
        };
        RunningServer { fake, name, config, pid, port }
    }

    fn file(&self) -> &str {
        self.config.rsplit('/').next().expect("a name")
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// All commands that only read.
    fn look(&self, scene: &Scene) {
        let name = self.name.as_str();
        for words in [
            &["knobs", name, "--json", "-"][..],
            &["size", name, "--json", "-"],
            &["watch", name, "--once", "--interval", "50ms", "--json", "-"],
        ] {
            scene.run(words);
        }
    }

    /// All commands that change something.
    fn change(&self, scene: &Scene) {
        scene.run(&["guard", &self.name, "--max-age", "1d", "-d", "100ms"]);
        scene.run(&["tune", &self.name, "--url", &self.url(), "-d", "100ms", "--live", "--dry-run", "--json", "-"]);
        if self.fake.settings.is_empty() {
            return;
        }
        let plan = scene.at(&format!("{}.toml", self.file()));
        let text = format!(
            "server = '{}'\nurl = '{}'\nduration = '100ms'\nusers = 1\n[settings]\n{}\n",
            self.name,
            self.url(),
            self.fake.settings
        );
        fs::write(&plan, text).expect("written");
        let plan = plan.display().to_string();
        scene.run(&["sweep", &plan, "--live", "--quiet", "--json", "-"]);
    }
}

/// Calls a function for each item, three at a time.
fn for_all(all: &[RunningServer], what: impl Fn(&RunningServer) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    what(one);
                }
            });
        }
    });
}

fn executed(document: &Value) -> Vec<(String, u64)> {
    let all = document["environment"]["executed"].as_array().unwrap_or_else(|| panic!("{document:#}"));
    all.iter().map(|one| (one["program"].as_str().expect("a name").to_string(), n(&one["uid"]))).collect()
}

/// First with configurations that never end or belong to root, then with those that can be read and changed.
fn look_at_and_change(all: &[RunningServer], scene: &Scene) {
    for one in all.iter().filter(|one| !one.fake.hostile.is_empty()) {
        scene.write(one.file(), one.fake.hostile);
    }
    for_all(all, |one| one.look(scene));
    for one in all {
        scene.write(one.file(), one.fake.calm);
    }
    for_all(all, |one| {
        one.look(scene);
        one.change(scene);
    });
}

#[test]
fn programs_of_an_ordinary_user_are_never_executed_as_root() {
    let mut scene = Scene::new();
    let all: Vec<RunningServer> = FAKES.iter().map(|fake| RunningServer::start(&mut scene, fake, &[])).collect();
    let before = scene.records().len();
    look_at_and_change(&all, &scene);
    for one in &all {
        assert!(std::net::TcpStream::connect(("127.0.0.1", one.port)).is_ok(), "{} was stopped", one.fake.program);
    }
    scene.assert_all_as_nobody(before + 20);
    scene.assert_roots_are_as_they_were();
    assert!(!scene.at("state").exists() || scene.folder.journal().is_none(), "something is left changed");
}

#[test]
fn what_meets_servers_of_an_ordinary_user_by_chance_executes_nothing_as_root() {
    let mut scene = Scene::new();
    let kinds = ["nginx", "apache", "php-fpm", "caddy", "target", "mariadb"];
    let met = FAKES.iter().filter(|fake| kinds.contains(&fake.kind));
    let all: Vec<RunningServer> = met.map(|fake| RunningServer::start(&mut scene, fake, &[])).collect();
    let [log, pipe] = ["access.log", "pipe"].map(|name| scene.at("theirs").join(name));
    std::os::unix::fs::symlink(scene.at("secret"), &log).expect("a link");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o666)).expect("a pipe");
    let (log, pipe) = (log.display().to_string(), pipe.display().to_string());
    // Status pages of ten gigabytes, and with a byte now and then.
    scene.write("mischief", "");
    for_all(&all, |one| {
        let url = one.url();
        scene.run(&["doctor", "--url", &url, "-d", "200ms", "--no-store", "--gentle", "--json", "-"]);
        scene.run(&["top", &one.name, "-d", "200ms", "--interval", "100ms"]);
    });
    for file in [&log, &pipe] {
        scene.run(&["doctor", "--from", file]);
        scene.run(&["top", file, "--from-start", "-d", "100ms"]);
        scene.run(&["knobs", &format!("custom:{file}")]);
    }
    let one = all.iter().find(|one| one.fake.kind == "caddy").expect("a kind");
    let search = ["--only", "GOGC", "--trials", "1", "--time", "5s", "-d", "100ms", "--no-store"];
    scene.run(&[&["tune", &one.name, "--url", &one.url()][..], &search].concat());
    scene.assert_all_as_nobody(2 * all.len());
    scene.assert_roots_are_as_they_were();
}

#[test]
fn a_restore_writes_nothing_of_roots_for_an_ordinary_user() {
    let mut scene = Scene::new();
    let fake = FAKES.iter().find(|fake| fake.kind == "lighttpd").expect("a kind");
    let one = RunningServer::start(&mut scene, fake, &[]);
    let plan = scene.text("plan.toml");
    let text = format!(
        "server = '{}'\nurl = '{}'\nduration = '60s'\nusers = 1\n[settings]\n{}\n",
        one.name,
        one.url(),
        fake.settings
    );
    fs::write(&plan, text).expect("written");
    let mut sweep = scene.folder.lastdrop(&["sweep", &plan, "--quiet"]).spawn().expect("the program runs");
    wait_until("a changed configuration", || fs::read_to_string(&one.config).is_ok_and(|text| text.contains("= 3")));
    let changed = fs::read(&one.config).expect("there");
    sweep.kill().expect("killed");
    sweep.wait().expect("ended");
    // The folder of the configuration is now a link to root's folder, where a file of that name has exactly the content to undo.
    let roots = scene.at("roots").join(one.file());
    fs::write(&roots, &changed).expect("written");
    let theirs = scene.at("theirs");
    fs::rename(&theirs, scene.at("moved")).expect("moved");
    std::os::unix::fs::symlink("roots", &theirs).expect("a link");
    std::os::unix::fs::lchown(&theirs, Some(NOBODY), Some(NOBODY)).expect("given away");
    scene.run(&["restore", "--dry-run", "--json", "-"]);
    scene.run(&["restore"]);
    assert_eq!(fs::read(&roots).expect("there"), changed, "root's file was written for another user");
    // When the folder is as before, the file is restored.
    fs::remove_file(&theirs).expect("removed");
    fs::remove_file(&roots).expect("removed");
    fs::rename(scene.at("moved"), &theirs).expect("moved");
    let restored = scene.run(&["restore"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert!(fs::read_to_string(&one.config).expect("there").contains("= 2"), "{restored:?}");
    scene.assert_all_as_nobody(2);
    scene.assert_roots_are_as_they_were();
}

#[test]
fn a_file_of_roots_is_not_changed_for_a_server_of_an_ordinary_user() {
    let mut scene = Scene::new();
    // Every user may read it, and the user's server claims to be started with it.
    let config = scene.text("roots/own.conf");
    let (_, port) = scene.fake("lighttpd", &["lighttpd", "-D", "-f", &config], &[]);
    let plan = scene.text("plan.toml");
    let text = format!(
        "server = 'lighttpd:{config}'\nurl = 'http://127.0.0.1:{port}/'\nduration = '100ms'\nusers = 1\n[settings]\n\
         'server.max-worker' = [3]\n"
    );
    fs::write(&plan, text).expect("written");
    let swept = scene.run(&["sweep", &plan]);
    let told = ["own.conf", "with the rights of user 65534, whose server it is"];
    let said = format!("{}{}", swept.stdout, swept.stderr);
    assert!(told.iter().all(|text| said.contains(text)), "{swept:?}");
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok(), "it was stopped");
    scene.assert_roots_are_as_they_were();
}

#[test]
fn a_container_of_an_ordinary_user_has_nothing_executed_as_root() {
    let mut scene = Scene::new();
    let within = ["unshare", "-Urmpf", "--mount-proc", "--kill-child"];
    let kinds = ["nginx", "apache", "php-fpm", "haproxy", "lighttpd", "gunicorn", "uwsgi", "target", "caddy"];
    let kept = FAKES.iter().filter(|fake| kinds.contains(&fake.kind));
    let all: Vec<RunningServer> = kept.map(|fake| RunningServer::start(&mut scene, fake, &within)).collect();
    look_at_and_change(&all, &scene);
    for one in &all {
        assert!(fs::metadata(format!("/proc/{}", one.pid)).is_ok(), "{} was stopped", one.fake.program);
    }
    // Inside it is root; on this machine that is the ordinary user.
    scene.assert_all_as_nobody(all.len() + 10);
    scene.assert_roots_are_as_they_were();
}

/// A genuine server of the ordinary user: its program, its command line, the word that identifies it, and its files.
struct GenuineServer {
    kind: &'static str,
    program: &'static str,
    argv: &'static [&'static str],
    config: &'static str,
    /// The minimum number of workers.
    workers: usize,
}

const GENUINE: &[GenuineServer] = &[
    GenuineServer {
        kind: "apache",
        program: "/usr/sbin/apache2",
        argv: &["/usr/sbin/apache2", "-DFOREGROUND", "-f", "{config}"],
        config: "ServerRoot {theirs}\nServerName localhost\nPidFile {theirs}/apache.pid\nErrorLog {theirs}/apache.log\n\
                 DefaultRuntimeDir {theirs}\nLoadModule mpm_prefork_module /usr/lib/apache2/modules/mod_mpm_prefork.so\n\
                 LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
                 LoadModule x_module {theirs}/hostile.so\nListen 127.0.0.1:{port}\nDocumentRoot {theirs}\n\
                 StartServers 2\nMinSpareServers 2\nMaxSpareServers 2\nMaxRequestWorkers 2\n",
        workers: 2,
    },
    GenuineServer {
        kind: "nginx",
        program: "/usr/sbin/nginx",
        argv: &["/usr/sbin/nginx", "-p", "{theirs}", "-c", "{config}"],
        config: "daemon off;\nworker_processes 2;\npid {theirs}/nginx.pid;\nerror_log {theirs}/nginx.log;\nuser root;\nevents {}\nhttp {\n\
                 access_log off;\nclient_body_temp_path {theirs}/b;\nproxy_temp_path {theirs}/p;\nfastcgi_temp_path {theirs}/f;\n\
                 uwsgi_temp_path {theirs}/u;\nscgi_temp_path {theirs}/s;\nserver { listen 127.0.0.1:{port}; return 200 ok; }\n}\n",
        workers: 2,
    },
    GenuineServer {
        kind: "haproxy",
        program: "/usr/sbin/haproxy",
        argv: &["/usr/sbin/haproxy", "-W", "-f", "{config}"],
        config: "global\n stats socket {theirs}/haproxy.sock\n maxconn 100\ndefaults\n mode http\n timeout client 5s\n timeout server 5s\n \
                 timeout connect 5s\nfrontend f\n bind 127.0.0.1:{port}\n http-request return status 200 content-type text/plain string ok\n",
        workers: 1,
    },
    GenuineServer {
        kind: "lighttpd",
        program: "/usr/sbin/lighttpd",
        argv: &["/usr/sbin/lighttpd", "-D", "-f", "{config}"],
        config: "server.document-root = \"{theirs}\"\nserver.port = {port}\nserver.bind = \"127.0.0.1\"\nserver.max-worker = 2\n\
                 server.errorlog = \"{theirs}/lighttpd.log\"\n",
        workers: 2,
    },
    GenuineServer {
        kind: "gunicorn",
        program: "/usr/bin/python3",
        argv: &["/usr/bin/python3", "/usr/bin/gunicorn", "-c", "{config}", "app:app"],
        config: "bind = '127.0.0.1:{port}'\nworkers = 2\n",
        workers: 2,
    },
];

#[test]
fn genuine_servers_of_an_ordinary_user_are_looked_at_and_load_nothing_of_theirs_as_root() {
    let mut scene = Scene::new();
    scene.write("app.py", "def app(environ, start):\n    start('200 OK', [])\n    return [b'ok']\n");
    let pool = scene.write(
        "fpm.conf",
        "[global]\nerror_log = {theirs}/fpm.log\ndaemonize = no\n[www]\nlisten = {theirs}/fpm.sock\npm = static\npm.max_children = 2\n\
         pm.status_path = /status\n",
    );
    let fpm = fs::read_dir("/usr/sbin").expect("there").flatten().map(|e| e.path());
    let fpm = fpm.into_iter().find(|p| p.display().to_string().contains("/php-fpm")).expect("php-fpm");
    let mut all: Vec<(String, i32, usize)> = Vec::new();
    let master = scene.start(&fpm, &["php-fpm", "-F", "-y", &pool], &[], &[]);
    all.push((format!("php-fpm:{pool}"), master, 2));
    for one in GENUINE {
        let port = free_port();
        let config = scene.write(&format!("{}.genuine", one.kind), &one.config.replace("{port}", &port.to_string()));
        let words = one.argv.iter().map(|w| w.replace("{config}", &config).replace("{theirs}", &scene.text("theirs")));
        let words: Vec<String> = words.collect();
        let argv: Vec<&str> = words.iter().map(String::as_str).collect();
        let master = scene.start(one.program.as_ref(), &argv, &[], &[]);
        wait_until(one.kind, || get(port, "/").is_some());
        let name = if one.kind == "gunicorn" {
            format!("gunicorn:{config}@http://127.0.0.1:{port}/")
        } else {
            format!("{}:{config}", one.kind)
        };
        all.push((name, master, one.workers));
    }
    for (name, master, workers) in &all {
        wait_until(name, || children_of(*master) >= *workers);
        let knobs = scene.run(&["knobs", name, "--json", "-"]);
        assert_eq!(knobs.code, 0, "{knobs:?}");
        let of = |words: &[&str]| -> Value {
            let done = scene.run(words);
            assert_eq!(done.code, 0, "{done:?}");
            serde_json::from_str(&done.stdout).expect("a document")
        };
        let watched = of(&["watch", name, "--once", "--interval", "50ms", "--json", "-"]);
        assert_eq!(n(&watched["master"]), *master as u64, "{watched:#}");
        assert!(watched["workers"].as_array().is_some_and(|w| w.len() >= *workers), "{watched:#}");
        let sized = of(&["size", name, "--json", "-"]);
        assert!(n(&sized["real_memory_bytes"]) > 0, "{sized:#}");
        let guarded = scene.run(&["guard", name, "--max-age", "1d", "-d", "100ms"]);
        assert!(!guarded.stderr.contains("not asked"), "{guarded:?}");
    }
    scene.assert_all_as_nobody(all.len());
}

#[test]
fn a_genuine_server_in_a_container_of_an_ordinary_user_is_asked_as_that_user() {
    let mut scene = Scene::new();
    let one = GENUINE.iter().find(|one| one.kind == "nginx").expect("a kind");
    let port = free_port();
    let config = scene.write("nginx.genuine", &one.config.replace("{port}", &port.to_string()));
    let words = one.argv.iter().map(|w| w.replace("{config}", &config).replace("{theirs}", &scene.text("theirs")));
    let words: Vec<String> = words.collect();
    let argv: Vec<&str> = words.iter().map(String::as_str).collect();
    let within = ["unshare", "-Urmpf", "--mount-proc", "--kill-child"];
    let master = scene.start(one.program.as_ref(), &argv, &[], &within);
    wait_until("nginx", || get(port, "/").is_some());
    let name = format!("nginx:/proc/{master}/root{config}");
    let document = scene.folder.json(&["knobs", &name], 0);
    assert!(
        executed(&document).iter().any(|(program, uid)| program.ends_with("/nginx") && *uid == u64::from(NOBODY)),
        "{document:#}"
    );
    let watched = scene.folder.json(&["watch", &name, "--once", "--interval", "50ms"], 0);
    assert_eq!(n(&watched["master"]), master as u64);
    // Its own start loads the library from its environment; the program that reads its settings has another environment.
    scene.assert_all_as_nobody(1);
}

#[test]
fn a_server_of_roots_is_asked_as_root_and_the_document_says_so() {
    let (folder, port) = (Folder::new(), free_port());
    let _server = nginx(&folder, &format!(" server {{ listen 127.0.0.1:{port}; }}"), port);
    let name = format!("nginx:{}", folder.join("nginx.conf").display());
    let document = folder.json(&["knobs", &name], 0);
    assert!(executed(&document).iter().any(|(program, uid)| program.ends_with("/nginx") && *uid == 0), "{document:#}");
    let text = document.to_string();
    assert!(!text.contains("not asked"), "{text}");
}

#[test]
fn root_executes_a_program_of_another_user_only_where_that_user_is_trusted() {
    let (folder, port) = (Folder::new(), free_port());
    // Root runs a program that a user could replace at any time.
    let (place, own) = (folder.join("theirs"), folder.join("theirs/nginx"));
    fs::create_dir(&place).expect("a folder");
    fs::copy("/usr/sbin/nginx", &own).expect("copied");
    chown(&own, Some(NOBODY), None).expect("given away");
    let config = folder.join("nginx.conf");
    let text = format!(
        "daemon off;\npid {0}/pid;\nerror_log {0}/error.log;\nevents {{}}\nhttp {{ access_log off; server {{ listen 127.0.0.1:{port}; }} }}\n",
        folder.path().display()
    );
    fs::write(&config, text).expect("written");
    let mut server = Command::new(&own)
        .arg("-c")
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    wait_until("nginx", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    let name = format!("nginx:{}", config.display());
    let refused = folder.run(&["knobs", &name]);
    let told = ["is not asked", &own.display().to_string(), "nobody", "0755", "--trust nobody"].map(str::to_string);
    assert!(refused.code == 1 && told.iter().all(|text| refused.stderr.contains(text)), "{refused:?}");
    let watched = folder.json(&["watch", &name, "--once", "--interval", "100ms"], 0);
    assert_eq!(n(&watched["master"]), u64::from(server.id()), "it is watched all the same");
    let trusted = folder.json(&["knobs", &name, "--trust", "nobody"], 0);
    assert!(executed(&trusted).iter().any(|(_, uid)| *uid == 0), "{trusted:#}");
    let _ = server.kill();
    let _ = server.wait();
}
