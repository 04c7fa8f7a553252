//! A real nginx with a real PHP-FPM, changed together: what each row of a sweep measures, and that both are restored whatever
//! happens.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use crate::common::servers::{Daemon, Fpm, Mariadb, children_of, nginx, open_folder, php, php_site};
use crate::common::{CommandOutput, Folder, KILLED, Target, end_at, free_port, get, n, signal, wait_until};
use serde_json::{Value, json};

/// Two nginx workers, and a pool of three.
struct Site {
    folder: Folder,
    fpm: Fpm,
    _nginx: Daemon,
    port: u16,
}

const SPARES: &str =
    "pm.start_servers = 1\npm.min_spare_servers = 1\npm.max_spare_servers = 2\npm.status_path = /status";

/// A page that logs the number of workers of both servers at each request.
fn counting(folder: &Path) -> String {
    let (pid, log) = (folder.join("nginx.pid"), folder.join("seen/log"));
    format!(
        "function parent($pid) {{ $s = @file_get_contents(\"/proc/$pid/stat\"); \
         return $s === false ? 0 : (int)explode(' ', substr($s, strrpos($s, ') ') + 2))[1]; }}\n\
         $nginx = (int)file_get_contents('{}'); $fpm = parent(getmypid()); $workers = $children = 0;\n\
         foreach (scandir('/proc') as $p) if (ctype_digit($p)) {{ $of = parent($p); \
         if ($of === $nginx) $workers++; if ($of === $fpm) $children++; }}\n\
         file_put_contents('{}', \"$workers $children\\n\", FILE_APPEND | LOCK_EX); echo 'counted';",
        pid.display(),
        log.display()
    )
}

impl Site {
    fn start() -> Site {
        Site::start_with("", |_| String::new())
    }

    /// Starts it with further parameters of `listen`, and further code of the page, which gets the port.
    fn start_with(listen: &str, page: impl Fn(u16) -> String) -> Site {
        let folder = Folder::new();
        let fpm = Fpm::start_in(&folder, 3, SPARES, true);
        let (port, root) = (free_port(), open_folder(&folder, "docs"));
        open_folder(&folder, "seen");
        php(&root, "count.php", &(counting(folder.path()) + &page(port)));
        let site = php_site(port, &root, &fpm.socket);
        let nginx = nginx(&folder, &site.replace(&format!("{port};"), &format!("{port}{listen};")), port);
        wait_until("a page", || get(port, "/count.php").is_some_and(|text| text.contains("counted")));
        Site { folder, fpm, _nginx: nginx, port }
    }

    fn config(&self) -> PathBuf {
        self.folder.join("nginx.conf")
    }

    fn ours(&self) -> PathBuf {
        self.folder.join("pool.d/zz-lastdrop.conf")
    }

    fn names(&self) -> [String; 2] {
        [format!("web=nginx:{}", self.config().display()), self.fpm.name()]
    }

    fn nginx_master(&self) -> i32 {
        fs::read_to_string(self.folder.join("nginx.pid")).ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
    }

    /// The number of workers of both.
    fn workers(&self) -> (usize, usize) {
        (children_of(self.nginx_master()), children_of(self.fpm.master()))
    }

    /// Every file of both configurations.
    fn tree(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let inside = |folder: PathBuf| fs::read_dir(folder).expect("readable").filter_map(|e| Some(e.ok()?.path()));
        let of_servers =
            |path: &PathBuf| path.extension().is_some_and(|e| e == "conf") || path.ends_with("lastdrop-new");
        let mut files: Vec<PathBuf> = inside(self.folder.path().into()).filter(of_servers).collect();
        files.extend(inside(self.folder.join("pool.d")));
        files.sort();
        files.into_iter().map(|f| (f.clone(), fs::read(f).expect("readable"))).collect()
    }

    fn journals(&self) -> Vec<(PathBuf, Value)> {
        let Ok(entries) = fs::read_dir(self.folder.join("state")) else { return Vec::new() };
        let paths =
            entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.extension().is_some_and(|e| e == "journal"));
        let read = |p: PathBuf| Some((p.clone(), serde_json::from_slice(&fs::read(&p).ok()?).ok()?));
        paths.filter_map(read).collect()
    }

    fn plan(&self, servers: &[&str], more: &str, settings: &str) -> String {
        let file = self.folder.join("plan.toml");
        let url = format!("http://127.0.0.1:{}/count.php", self.port);
        let head = format!("server = {servers:?}\nurl = '{url}'\nusers = 2\nkeepalive = 'off'\n{more}\n");
        fs::write(&file, format!("{head}[settings]\n{settings}")).expect("written");
        file.display().to_string()
    }

    fn both(&self, more: &str, settings: &str) -> String {
        let [web, pool] = self.names();
        self.plan(&[&web, &pool], more, settings)
    }

    /// Starts a sweep of servers in use, to be killed.
    fn start_sweep(&self) -> Child {
        let plan = self.both("duration = '300ms'", "web.worker_processes = [1, 4]\nphp-fpm.pm.max_children = [2, 5]");
        let args = ["sweep", &plan, "--live", "--quiet"];
        self.folder.lastdrop(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs")
    }

    fn is_as_it_was(&self, before: &[(PathBuf, Vec<u8>)], when: &str) {
        wait_until("the workers that it had", || self.workers() == (2, 3) && get(self.port, "/count.php").is_some());
        assert_eq!(self.tree(), before, "{when}");
        assert!(self.journals().is_empty(), "{when}");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // A restarted server is another process than the one that the test has started.
        let pid = self.nginx_master();
        if pid > 0 {
            // SAFETY: a plain call on a server of ours.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
    }
}

/// Sets a flag on drop, so that threads end even if the test fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn kill(mut child: Child) {
    signal(&child, libc::SIGKILL);
    child.wait().expect("ends");
}

/// The whole chain in a network namespace: the kernel's limit of the listen queue is the smaller one of nginx's backlog and the
/// host's limit.
#[test]
fn each_row_of_a_table_of_two_servers_and_the_host_is_measured_with_all_values() {
    // For this thread, and the processes that it starts.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace (these tests want root)");
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("iproute2").success());
    let site = Site::start_with(" backlog=5000", |port| {
        format!(
            "\n$q = preg_split('/ +/', trim(shell_exec('ss -ltnH \"sport = :{port}\"')));\n\
             file_put_contents(__DIR__ . '/../seen/all', \"$workers $children $q[2]\\n\", FILE_APPEND | LOCK_EX);"
        )
    });
    let before = site.tree();
    let somaxconn = || {
        let output = Command::new("cat").arg("/proc/sys/net/core/somaxconn").output().expect("cat");
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    };
    let own = somaxconn();
    let queue = || {
        let output = Command::new("ss").args(["-ltnH", &format!("sport = :{}", site.port)]).output().expect("iproute2");
        String::from_utf8_lossy(&output.stdout).split_whitespace().nth(2).map(str::to_string)
    };
    assert_eq!(queue().as_ref(), Some(&own));
    let log = site.folder.join("seen/all");
    fs::write(&log, "").expect("written");
    Command::new("chmod").arg("666").arg(&log).status().expect("chmod");
    let [web, pool] = site.names();
    let host = format!("host@http://127.0.0.1:{}/", site.port);
    let settings = "'web.worker_processes' = [1, 4]\n'php-fpm.pm.max_children' = [2, 5]\n\
                    'host.net.core.somaxconn' = [100, 3000]";
    let plan = site.plan(&[&web, &pool, &host], "requests = 20", settings);
    let document = site.folder.json(&["sweep", &plan, "--quiet"], 0);
    let mut seen: BTreeMap<Vec<u64>, u64> = BTreeMap::new();
    for line in fs::read_to_string(&log).expect("readable").lines() {
        *seen.entry(line.split(' ').map(|n| n.parse().expect("a count")).collect()).or_default() += 1;
    }
    let varying = ["host.net.core.somaxconn", "php-fpm.pm.max_children", "web.worker_processes"];
    assert_eq!(document["varying"], json!(varying), "{document:#}");
    // The host is changed first.
    assert_eq!(document["server"], format!("{host}, {web}, {pool}"));
    let rows = document["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().map(|row| row["settings"].to_string()).collect::<BTreeSet<_>>().len(), 8, "{document:#}");
    for row in rows {
        let value = |name: &str| row["settings"][name].as_u64().expect(name);
        let values =
            vec![value("web.worker_processes"), value("php-fpm.pm.max_children"), value("host.net.core.somaxconn")];
        let counted = seen.get(&values).copied().unwrap_or(0);
        // Requests of warm-up and health checks count, too.
        assert!(
            row["answered"] == 20 && row["failed"] == 0 && counted >= 20,
            "{values:?}: {counted} requests have seen that: {seen:?}"
        );
    }
    assert_eq!((somaxconn(), queue()), (own.clone(), Some(own.clone())));
    site.is_as_it_was(&before, "after the sweep");

    // Kill it while all three are changed.
    let plan = site.plan(&[&web, &pool, &host], "duration = '60s'", settings);
    let sweep = site.folder.lastdrop(&["sweep", &plan, "--live", "--quiet"]);
    let sweep = { sweep }.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("runs");
    wait_until("a change of all", || somaxconn() != own && site.ours().exists() && site.workers().0 != 2);
    kill(sweep);
    let restored = site.folder.run(&["restore"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    site.is_as_it_was(&before, "after a kill");
    assert_eq!((somaxconn(), queue()), (own.clone(), Some(own)));
}

#[test]
fn a_sweep_of_two_servers_that_is_killed_at_any_step_is_put_back() {
    let site = Site::start();
    let before = site.tree();
    let plan = site.both("duration = '50ms'", "web.worker_processes = 1\nphp-fpm.pm.max_children = 2");
    let sweep = ["sweep", &plan, "--live", "--quiet"];
    let stages = || -> Vec<(u64, String)> {
        let of = |j: &Value| (j["stack"]["place"].as_u64().unwrap_or(9), j["stage"].as_str().unwrap_or("").to_string());
        site.journals().iter().map(|(_, j)| of(j)).collect()
    };
    let (mut between, mut both) = (0, 0);
    // Every seventh step is enough: the tests of each adapter go through all of them.
    for step in (1..).step_by(7) {
        let done = end_at(&site.folder, &sweep, step);
        if done.code != KILLED {
            assert_eq!(done.code, 0, "{done:?}");
            break;
        }
        let left = stages();
        let is = |place, stage: &str| left.contains(&(place, stage.to_string()));
        between += u32::from(is(0, "changed") && is(1, "armed"));
        let whole = is(0, "changed") && is(1, "changed");
        both += u32::from(whole);
        let is_twice = step % 2 == 0;
        if is_twice {
            // The restore is killed, too.
            end_at(&site.folder, &["restore"], 1 + step / 4);
        }
        let restored = site.folder.run(&["restore"]);
        assert!(restored.code == 0, "{step}: {restored:?}");
        if whole && !is_twice {
            let at = |name: &str| restored.stdout.find(&format!("{name}: put back as it was found"));
            let [web, pool] = site.names();
            let (web, pool) = (at(web.trim_start_matches("web=")), at(&pool));
            assert!(pool.is_some() && pool < web, "the last first: {restored:?}");
        }
        site.is_as_it_was(&before, &format!("{step}: {left:?}"));
    }
    assert!(between > 0 && both > 0, "killed between the two {between} times, with both changed {both} times");
}

#[test]
fn a_server_that_is_down_or_not_ours_any_more_keeps_the_other_from_nothing() {
    let site = Site::start();
    let before = site.tree();
    let changed = || site.ours().exists() && site.workers() == (1, 2);
    let sweep = site.start_sweep();
    wait_until("the first row", changed);
    let [web, pool] = site.names();
    let other = site.plan(&[&pool, &web], "", "");
    let held = site.folder.run(&["sweep", &other]);
    assert!(held.code == 1 && held.stderr.contains("php-fpm: another lastdrop (process"), "{held:?}");
    kill(sweep);
    // Requests reach the pool only through nginx, and that is down.
    // SAFETY: a plain call on a server of ours.
    unsafe { libc::kill(site.nginx_master(), libc::SIGTERM) };
    wait_until("the end of nginx", || get(site.port, "/").is_none());
    let since = Instant::now();
    let restored = site.folder.run(&["restore"]);
    assert!(restored.code == 0 && restored.stdout.matches("put back as it was found").count() == 2, "{restored:?}");
    site.is_as_it_was(&before, &format!("{:?}", since.elapsed()));

    let sweep = site.start_sweep();
    wait_until("the first row", changed);
    kill(sweep);
    let theirs = fs::read_to_string(site.config()).expect("readable") + "# mine\n";
    fs::write(site.config(), &theirs).expect("written");
    let half = site.folder.run(&["restore"]);
    assert!(
        half.code == 1 && half.stderr.contains("nginx:") && half.stderr.contains("somebody else has changed"),
        "{half:?}"
    );
    assert!(half.stdout.contains(&format!("{}: put back as it was found", site.fpm.name())), "{half:?}");
    wait_until("its own pool", || site.workers().1 == 3);
    assert!(!site.ours().exists());
    let left: Vec<Value> = site.journals().into_iter().map(|(_, journal)| journal["stack"]["called"].clone()).collect();
    assert_eq!(left, ["web"]);
    fs::write(site.config(), theirs.trim_end_matches("# mine\n")).expect("written");
    let whole = site.folder.run(&["restore"]);
    assert!(whole.code == 0, "{whole:?}");
    site.is_as_it_was(&before, "at the end");

    let nowhere = site.folder.join("none.conf");
    fs::write(&nowhere, "").expect("written");
    let gone = site.plan(&[&web, &format!("php-fpm:{}", nowhere.display())], "", "web.gzip = 'on'");
    let down = site.folder.run(&["sweep", &gone]);
    assert!(down.code == 1 && down.stderr.contains("php-fpm: no running PHP-FPM"), "{down:?}");
    fs::remove_file(&nowhere).expect("removed");
    site.is_as_it_was(&before, "not begun");
}

#[test]
fn servers_and_their_settings_are_told_apart_by_name() {
    let site = Site::start();
    let before = site.tree();
    let [web, pool] = site.names();
    let plain = web.trim_start_matches("web=");
    let sweep = |servers: &[&str], settings: &str| {
        let plan = site.plan(servers, "requests = 4", settings);
        site.folder.run(&["sweep", &plan, "--live", "--quiet", "--json", "-"])
    };
    let refused =
        |done: CommandOutput, words: &str| assert!(done.code == 2 && done.stderr.contains(words), "{words}: {done:?}");
    refused(sweep(&[plain, plain], ""), "two servers are called 'nginx'");
    refused(sweep(&[plain, plain], ""), &format!("a={plain} b={plain}"));
    refused(sweep(&["we.b=nginx"], ""), "'we.b' is no name for a server");
    refused(sweep(&[&web, &pool], "worker_processes = 1"), "such as web.worker_processes");
    refused(sweep(&[&web, &pool], "nginx.worker_processes = 1"), "the servers are web, php-fpm");
    refused(sweep(&[&web, &pool], "web.pm = 'static'"), "web: pm is not a setting");
    refused(site.folder.run(&["tune", plain, plain, "--url", "http://127.0.0.1/"]), "two servers are called 'nginx'");
    let same = sweep(&[&web, &format!("b={plain}")], "web.gzip = 'on'");
    assert!(same.code == 1 && same.stderr.contains("are the same server"), "{same:?}");
    let out_of_range = sweep(&[&web, &pool], "php-fpm.pm.max_children = 0");
    refused(out_of_range, "php-fpm: pm.max_children is a number from");

    // With a single server, settings have their plain names; if it has a name, qualified ones work, too.
    for (server, setting) in [(plain, "worker_processes"), (&*web, "worker_processes"), (&*web, "web.worker_processes")]
    {
        let done = sweep(&[server], &format!("{setting} = [1, 3]"));
        let document: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:?}"));
        assert_eq!((done.code, &document["varying"]), (0, &json!(["worker_processes"])), "{done:?}");
    }
    refused(sweep(&[plain], "web.worker_processes = 1"), "web.worker_processes is not a setting");

    // A value that the second server refuses is a row of the table, with its error message.
    let wrong =
        sweep(&[&web, &pool], "web.gzip = 'on'\n'php-fpm.pm' = ['dynamic', 'static']\n'php-fpm.pm.start_servers' = 3");
    assert!(wrong.code == 0 && wrong.stdout.contains("php-fpm: the server would not take"), "{wrong:?}");
    site.is_as_it_was(&before, "after all");
}

#[test]
fn a_tune_finds_what_to_turn_in_the_server_that_has_it_and_keeps_that_alone() {
    let site = Site::start();
    let before = site.tree();
    php(&site.folder.join("docs"), "slow.php", "usleep(30000); echo 'slow';");
    let ([web, pool], url) = (site.names(), format!("http://127.0.0.1:{}/slow.php", site.port));
    let mut args = vec!["tune", &web, &pool, "--url", &url, "--live", "-c", "9", "-d", "400ms", "--warm-up", "50ms"];
    args.extend(["--blocks", "4", "--trials", "6", "--keepalive", "on"]);
    let both = [&args[..], &["--only", "php-fpm.pm.max_children,web.keepalive_timeout"]].concat();
    let tune = site.folder.json(&both, 0);
    let trials = tune["trials"].as_array().expect("trials");
    let names = |t: &Value| t["settings"].as_object().expect("settings").keys().cloned().collect::<Vec<String>>();
    let tried: std::collections::BTreeSet<String> = trials.iter().flat_map(names).collect();
    let turned = ["php-fpm.pm.max_children", "web.keepalive_timeout"].map(String::from);
    assert!(turned.iter().all(|name| tried.contains(name)), "{tune:#}");
    assert_eq!((&tune["verdict"], &tune["restored"]), (&json!("improved"), &json!(true)), "{tune:#}");
    assert_eq!(tune["server"], format!("{web}, {pool}"));
    site.is_as_it_was(&before, "after the tune");

    args.pop();
    // Otherwise a setting that looks better by chance would be kept, too.
    args.extend(["off", "--keep", "--only", "php-fpm.pm.max_children"]);
    let kept = site.folder.json(&args, 0);
    let winner = kept["winner"]["settings"]["php-fpm.pm.max_children"].as_u64().expect("a pool");
    assert_eq!(
        (&kept["kept"], &kept["kept_in"]),
        (&json!(true), &json!(site.ours().display().to_string())),
        "{kept:#}"
    );
    wait_until("the pool that was kept", || site.workers() == (2, winner as usize));
    let now = site.tree();
    let beside: Vec<_> = now.iter().filter(|(path, _)| *path != site.ours()).cloned().collect();
    assert_eq!(beside, before, "of nginx nothing was to be kept");
    assert!(site.journals().is_empty() && fs::read_to_string(site.ours()).is_ok_and(|t| t.contains("max_children")));
}

#[test]
fn size_trace_and_guard_are_about_each_of_several_servers() {
    let site = Site::start();
    let [web, pool] = site.names();
    let size = site.folder.json(&["size", &web, &pool, "--memory", "400M"], 0);
    let sized: Vec<(&Value, &Value)> =
        size["servers"].as_array().expect("servers").iter().map(|s| (&s["server"], &s["workers"]["count"])).collect();
    assert_eq!(sized, [(&json!(web), &json!(2)), (&json!(pool), &json!(3))], "{size:#}");
    assert_eq!(size["schema"], "lastdrop.size/1");
    let url = format!("http://127.0.0.1:{}/count.php", site.port);
    let before = site.tree();
    let variant = ["--variant", "off=php-fpm.opcache.enable off", "--requests-per-worker", "8"];
    let fit = [&["size", &web, &pool, "--fit", "--url", &url, "--sizes", "2,3,4", "--memory", "400M"], &variant[..]];
    let fit = site.folder.json(&fit.concat(), 0);
    let points = fit["servers"][1]["fit"]["points"].as_array().expect("points");
    let sizes: BTreeSet<u64> = points.iter().filter_map(|p| p["workers"].as_u64()).collect();
    assert_eq!((sizes, &fit["servers"][0]["fit"]), (BTreeSet::from([2, 3, 4]), &Value::Null), "{fit:#}");
    let off = &fit["servers"][1]["variants"][0];
    assert!(off["name"] == "off" && off["second"]["size_bytes"].as_u64().expect("bytes") > 0, "{fit:#}");
    site.is_as_it_was(&before, "fitted");
    let whose = site.folder.run(&["size", &web, &pool, "--url", &url, "--variant", "off=opcache.enable off"]);
    assert!(whose.code == 2 && whose.stderr.contains("web.opcache.enable off"), "{whose:?}");

    let profile = site.folder.json(&["profile", &web, &pool, "--url", &url, "-c", "2", "-d", "1s"], 0);
    let profiled = profile["servers"].as_array().expect("servers");
    assert_eq!([&profiled[0]["server"], &profiled[1]["server"]], [&json!(web), &json!(pool)], "{profile:#}");
    assert!(profiled.iter().all(|p| p["requests"].as_u64() > Some(0)), "{profile:#}");

    let trace = site.folder.json(&["trace", &web, &pool, "--url", &url, "-n", "4"], 0);
    let traced = |place: usize, call: &str, path: &str| {
        let calls = trace["servers"][place]["calls"].as_array().expect("calls");
        calls.iter().any(|c| c["call"] == call && c["path"].as_str().is_some_and(|p| p.contains(path)))
    };
    assert_eq!(trace["servers"][1]["server"], pool.as_str());
    assert!(traced(0, "connect", "fpm.sock") && traced(1, "openat", "/seen/log"), "{trace:#}");
    assert!(!traced(0, "openat", "/seen/log"), "{trace:#}");
    let against = site.folder.run(&["trace", &web, &pool, "--url", &url, "--with", "x"]);
    assert!(against.code == 2 && against.stderr.contains("name that alone"), "{against:?}");

    let guard = |more: &[&str]| site.folder.run(&[&["guard", &web, &pool, "--every", "200ms"], more].concat());
    let seen = guard(&["--max-age", "1h", "-d", "600ms"]);
    assert_eq!(seen.code, 0, "{seen:?}");
    let workers = |called: &str, n: u32| {
        let begins = format!(" {called}: ");
        seen.stdout.lines().any(|l| l.contains(&begins) && l.contains(&format!("{n} workers")))
    };
    assert!(workers("web", 2) && workers("php-fpm", 3), "{seen:?}");
    assert!(seen.stdout.contains("\nweb: ") && seen.stdout.contains("\nphp-fpm: "), "{seen:?}");
    // A limit that cannot be persisted for one ends the command for both.
    let hopeless = guard(&["--min-shared", "100G", "--act", "--even-busy", "-d", "60s"]);
    assert!(hopeless.code == 1 && hopeless.stderr.contains("cannot be kept"), "{hopeless:?}");
}

#[test]
fn a_watch_of_several_servers_shows_each_of_them_and_who_is_connected_to_whom() {
    let site = Site::start();
    let db = Mariadb::start(&site.folder, &[]);
    php(
        &site.folder.join("docs"),
        "db.php",
        &format!("{} $db->query('select sleep(0.02)'); echo 'asked';", db.connect()),
    );
    let [web, pool] = site.names();
    let database = format!("db=pid:{}", db.daemon.pid());
    let args = ["watch", &web, &pool, &database, "--once", "--interval", "500ms"];
    let paths = [&site.fpm.socket, &db.socket].map(|socket| format!("unix:{}", socket.display()));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = SetOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(get(site.port, "/db.php").is_some_and(|text| text.contains("asked")));
            }
        });
        let line = format!("web (nginx) -> php-fpm via {} -> db (mariadbd) via {}", paths[0], paths[1]);
        wait_until("the whole chain", || site.folder.run(&args).stdout.starts_with(&format!("{line}\n")));
        let mut document = Value::Null;
        wait_until("the same as a document", || {
            document = site.folder.json(&args, 0);
            document["chain"][0]["to"] == json!(["php-fpm"]) && document["chain"][1]["to"] == json!(["db"])
        });
        let chain = &document["chain"];
        assert_eq!(chain[0]["listens"], json!([format!("127.0.0.1:{}", site.port)]), "{chain:#}");
        assert_eq!(
            (&chain[1]["listens"], &chain[1]["connects"]),
            (&json!([paths[0]]), &json!([paths[1]])),
            "{chain:#}"
        );
        assert_eq!(document["schema"], "lastdrop.watch/1");
        let of = |server: &str| {
            let workers = document["workers"].as_array().expect("workers");
            workers.iter().filter(|w| w["server"] == server && w["pid"].is_u64()).count()
        };
        assert_eq!((of("web"), of("php-fpm")), (2, 3), "{document:#}");
        let looks: Vec<&Value> = document["looks"].as_array().expect("looks").iter().map(|l| &l["server"]).collect();
        assert_eq!(looks, ["web", "php-fpm", "db"]);
        assert_eq!(document["databases"][0]["server"], "db", "{document:#}");
        // A server that the user does not name is found by its connections, and its status page is read at its own socket.
        wait_until("the database at the end", || {
            document = site.folder.json(&["watch", &web, &pool, "--once", "--interval", "500ms"], 0);
            document["chain"][1]["to"] == json!(["mariadb"]) && document["databases"][0]["max_connections"].is_u64()
        });
        assert_eq!(document["chain"][2]["listens"], json!([paths[1]]), "{document:#}");
        assert_eq!((&document["databases"][0]["server"], &document["looks"][2]), (&json!("mariadb"), &Value::Null));
    });

    // The recording of several servers is replayed like that of one.
    let file = site.folder.join("watch.jsonl").display().to_string();
    let record =
        site.folder.run(&["watch", &web, &pool, "--interval", "200ms", "-d", "500ms", "--record", &file, "--quiet"]);
    assert_eq!(record.code, 0, "{record:?}");
    let shown = site.folder.run(&["watch", "--replay", &file]);
    assert!(shown.code == 0 && shown.stdout.contains("\nphp-fpm  "), "{shown:?}");
    let one = site.folder.json(&["watch", &pool, "--once", "--interval", "100ms"], 0);
    assert!(one["server"] == pool.as_str() && one["workers"][0]["server"].is_null(), "{one:#}");

    let knobs = site.folder.json(&["knobs", &web, &pool], 0);
    let row = |setting: &str| {
        let rows = knobs["knobs"].as_array().expect("rows").iter();
        rows.filter(|row| row["setting"] == setting).map(|row| (&row["server"], &row["name"], &row["value"])).next()
    };
    assert_eq!(row("web.worker_processes"), Some((&json!(web), &json!("worker_processes"), &json!(2))));
    assert_eq!(row("php-fpm.pm.max_children"), Some((&json!(pool), &json!("pm.max_children"), &json!(3))));
    let plain = web.trim_start_matches("web=");
    for command in ["knobs", "watch"] {
        let twice = site.folder.run(&[command, plain, plain]);
        assert!(twice.code == 2 && twice.stderr.contains("two servers are called 'nginx'"), "{twice:?}");
    }
}

#[test]
fn what_one_of_the_servers_keeps_open_to_the_other_is_no_visitor() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 4");
    let port = free_port();
    let http = format!(
        " upstream back {{ server 127.0.0.1:{}; keepalive 4; }}\n server {{ listen 127.0.0.1:{port};\n  location / {{ \
         proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }}",
        target.port
    );
    let _front = nginx(&folder, &http, port);
    let (web, back) = (format!("nginx:{}", folder.join("nginx.conf").display()), target.name());
    let plan = folder.join("plan.toml");
    let text = format!(
        "server = [{web:?}, {back:?}]\nurl = 'http://127.0.0.1:{port}/'\nusers = 2\nrequests = 20\nkeepalive = 'on'\n\
         [settings]\n'target.workers' = [2, 4]\n"
    );
    fs::write(&plan, text).expect("written");
    // nginx keeps the connection of the health check to the pool open.
    let sweep = folder.json(&["sweep", plan.to_str().expect("text"), "--quiet"], 0);
    let rows = sweep["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().map(|r| n(&r["answered"]) + n(&r["failed"])).collect::<Vec<_>>(), [20, 20], "{sweep:#}");
    // On a busy machine nginx notices late that the pool has closed a keep-alive connection.
    assert!(rows.iter().all(|r| n(&r["answered"]) >= 12), "{sweep:#}");
}
