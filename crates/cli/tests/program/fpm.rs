//! The settings of a real PHP-FPM behind a real nginx: read, changed in an included file, refused, and restored whatever
//! happens.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::servers::{Daemon, Fpm, children_of, nginx, open_folder, php, php_site};
use crate::common::{CommandOutput, Folder, end_at_each_step, free_port, get, processes_with, signal, wait_until};
use serde_json::Value;

/// A pool of three with its settings in an included file, and a page.
struct Site {
    fpm: Fpm,
    _nginx: Daemon,
    port: u16,
    pool: PathBuf,
}

const SPARES: &str = "pm.start_servers = 1\npm.min_spare_servers = 1\npm.max_spare_servers = 2";

impl Site {
    fn start(folder: &Folder, lines: &str) -> Site {
        Site::start_by(folder, lines, &["-F", "-y"])
    }

    fn start_by(folder: &Folder, lines: &str, words: &[&str]) -> Site {
        Site::of(folder, Fpm::start_by(folder, 3, &format!("{SPARES}\n{lines}"), true, words))
    }

    fn of(folder: &Folder, fpm: Fpm) -> Site {
        let (port, root) = (free_port(), open_folder(folder, "docs"));
        php(&root, "pid.php", "echo getmypid();");
        let nginx = nginx(folder, &php_site(port, &root, &fpm.socket), port);
        wait_until("a page", || get(port, "/pid.php").is_some());
        Site { pool: folder.join("pool.d/www.conf"), fpm, _nginx: nginx, port }
    }

    /// The process title of its master.
    fn title(&self) -> String {
        let shown = fs::read(format!("/proc/{}/cmdline", self.master())).unwrap_or_default();
        String::from_utf8_lossy(&shown).trim_end_matches('\0').to_string()
    }

    fn master(&self) -> i32 {
        self.fpm.master()
    }

    fn children(&self) -> usize {
        children_of(self.master())
    }

    fn ours(&self) -> PathBuf {
        self.pool.with_file_name("zz-lastdrop.conf")
    }

    fn tree(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let folder = self.pool.parent().expect("has one");
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder).expect("readable").filter_map(|e| Some(e.ok()?.path())).collect();
        files.push(self.fpm.config.clone());
        files.sort();
        files.into_iter().map(|f| (f.clone(), fs::read(f).expect("readable"))).collect()
    }

    fn plan(&self, folder: &Folder, duration: &str, settings: &str) -> String {
        let file = folder.join("plan.toml");
        let head = format!(
            "server = '{}'\nurl = 'http://127.0.0.1:{}/pid.php'\nusers = 2\nduration = '{duration}'\nkeepalive = 'off'",
            self.fpm.name(),
            self.port
        );
        fs::write(&file, format!("{head}\n[settings]\n{settings}")).expect("written");
        file.display().to_string()
    }
}

fn start_sweep(folder: &Folder, plan: &str) -> Child {
    let args = ["sweep", plan, "--live", "--quiet", "--json", "-"];
    folder.lastdrop(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs")
}

#[test]
fn settings_are_those_that_it_tells() {
    let folder = Folder::new();
    let site = Site::start(&folder, "pm.max_requests = 900\npm.process_idle_timeout = 20s");
    let exe = fs::read_link(format!("/proc/{}/exe", site.master())).expect("its program");
    let told = Command::new(exe).arg("-tt").arg("-y").arg(&site.fpm.config).output().expect("it runs");
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    let knobs = folder.json(&["knobs", &site.fpm.name()], 0);
    let rows = knobs["knobs"].as_array().expect("rows");
    assert_eq!(rows.len(), 11, "{knobs:#}");
    let told_by_php =
        Command::new(fs::read_link(format!("/proc/{}/exe", site.master())).expect("its program")).arg("-i").output();
    let told_by_php = String::from_utf8_lossy(&told_by_php.expect("it runs").stdout).into_owned();
    for row in &rows[8..] {
        let name = row["name"].as_str().expect("text");
        let said = told_by_php.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(" => ")).expect(name);
        let said = said.split(" => ").next().expect("a value").to_lowercase();
        assert_eq!(row["value"].to_string().trim_matches('"'), said, "{knobs:#}");
    }
    for row in &rows[..8] {
        let name = row["name"].as_str().expect("text");
        let said = told.lines().find_map(|l| l.split_once(&format!("\t{name} = "))).expect(name).1;
        assert_eq!(row["value"].to_string().trim_matches('"'), said, "{name}: {knobs:#}");
        if name == "listen.backlog" {
            assert_eq!((&row["source"], &row["needs"]), (&"default of PHP-FPM".into(), &"restart".into()));
            continue;
        }
        assert!(row["source"].as_str().expect("text").contains("www.conf:") && row["needs"] == "reload", "{row}");
    }
    let size = folder.json(&["size", &site.fpm.name(), "--memory", "400M"], 0);
    let notes = size["notes"].to_string();
    assert!(notes.contains("process_control_timeout is 0") && !notes.contains("was loaded"), "{size:#}");
    assert!(size["version"].as_str().expect("text").starts_with("PHP-FPM 8."), "{size:#}");
    let text = fs::read_to_string(&site.pool).expect("readable");
    fs::write(&site.pool, text.replace("max_children = 3", "max_children = 4")).expect("written");
    let size = folder.json(&["size", &site.fpm.name()], 0);
    assert!(size["notes"].to_string().contains("pm.max_children 4, the running server has 3"), "{size:#}");
}

#[test]
fn a_sweep_acts_on_the_pool_and_leaves_it_as_it_was() {
    let folder = Folder::new();
    let site = Site::start(&folder, "pm.status_path = /status");
    let before = site.tree();
    // Nobody else sends requests: the status page proves it.
    let variants = "[[variant]]\nname = 'few'\nsettings = { pm = 'static', 'pm.max_children' = 2 }\n\
        [[variant]]\nname = 'more'\nsettings = { pm = 'dynamic', 'pm.max_children' = 5 }\n\
        [[variant]]\nname = 'none'\nsettings = { pm = 'ondemand' }\n";
    let plan = site.plan(&folder, "600ms", variants);
    let args = ["sweep", plan.as_str(), "--quiet", "--json", "-"];
    let mut sweep = folder.lastdrop(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    let mut seen = BTreeSet::new();
    while sweep.try_wait().expect("waited for").is_none() {
        let text = fs::read_to_string(site.ours()).unwrap_or_default();
        let now = ["static", "dynamic", "ondemand"].into_iter().find(|pm| text.contains(&format!("pm = {pm}")));
        seen.extend(now.map(|pm| (pm, site.children())));
        thread::sleep(Duration::from_millis(20));
    }
    let done = CommandOutput::of(sweep.wait_with_output().expect("ends"), &[]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(seen.contains(&("static", 2)) && seen.contains(&("dynamic", 1)), "{seen:?}");
    assert!(seen.contains(&("ondemand", 0)), "{seen:?}");
    let document: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let rows = document["rows"].as_array().expect("rows");
    assert!(rows.len() == 3 && rows.iter().all(|row| row["answered"].as_u64() > Some(0)), "{document:#}");
    wait_until("its own pool", || site.children() == 3);
    assert_eq!((site.tree(), folder.journal()), (before, None));
}

#[test]
fn a_pool_in_the_main_file_runs_on_a_file_of_ours_and_is_as_it_was_afterwards() {
    let folder = Folder::new();
    let site = Site::of(&folder, Fpm::start_by(&folder, 3, "pm.status_path = /status", false, &["-F", "-y"]));
    let state = || (site.title(), site.children(), fs::read(&site.fpm.config).expect("readable"));
    let before = state();
    let plan = site.plan(&folder, "1s", "'pm.max_children' = [2, 5]");
    let mut sweep = start_sweep(&folder, &plan);
    let mut seen = BTreeSet::new();
    while sweep.try_wait().expect("waited for").is_none() {
        seen.insert((site.children(), site.title().contains("trial.conf")));
        thread::sleep(Duration::from_millis(20));
    }
    let done = CommandOutput::of(sweep.wait_with_output().expect("ends"), &[]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(seen.contains(&(2, true)) && seen.contains(&(5, true)), "{seen:?}");
    assert_eq!(state(), before, "{done:?}");

    let plan = site.plan(&folder, "60s", "'pm.max_children' = 5");
    let mut sweep = start_sweep(&folder, &plan);
    wait_until("the changed pool", || site.children() == 5);
    signal(&sweep, libc::SIGKILL);
    sweep.wait().expect("ended");
    // The test reads its own configuration, not our file on which it runs and which is lost.
    let mut ours = fs::read_dir(folder.join("state")).expect("a folder").filter_map(|e| Some(e.ok()?.path()));
    let ours = ours.find(|path| path.display().to_string().ends_with(".trial.conf")).expect("an override");
    fs::remove_file(ours).expect("removed");
    let restored = folder.run(&["restore"]);
    assert_eq!((restored.code, state()), (0, before), "{restored:?}");
    assert!(folder.journal().is_none());
}

#[test]
fn a_number_that_is_a_variable_is_that_of_the_running_pool() {
    let folder = Folder::new();
    let lines = "pm.max_children = ${CHILDREN}\npm.max_requests = ${CHILDREN}";
    let fpm = Fpm::start_by(&folder, 3, lines, true, &["-F", "-y"]);
    let knobs = folder.json(&["knobs", &fpm.name()], 0);
    let row = |name: &str| {
        let rows = knobs["knobs"].as_array().expect("rows");
        rows.iter().find(|row| row["name"] == name).expect("a setting").clone()
    };
    let children = row("pm.max_children");
    assert!(children["value"] == 3 && children["source"].to_string().contains("${CHILDREN}"), "{children}");
    assert!(row("pm.max_requests")["value"].is_null(), "its value cannot be seen: {knobs:#}");
}

#[test]
fn settings_of_php_act_and_what_the_pool_sets_for_good_is_refused() {
    let folder = Folder::new();
    let site = Site::start(&folder, "php_admin_value[opcache.revalidate_freq] = 7");
    let root = folder.join("docs");
    php(
        &root,
        "ini.php",
        "foreach (['enable', 'validate_timestamps'] as $k) echo ini_get(\"opcache.$k\") ? 'Y' : 'N';",
    );
    let before = site.tree();
    let says = || {
        let page = get(site.port, "/ini.php")?;
        ["YY", "YN", "NY", "NN"].into_iter().find(|words| page.contains(words))
    };
    assert_eq!(says(), Some("YY"));
    let plan =
        site.plan(&folder, "1s", "'opcache.enable' = ['on', 'off']\n'opcache.validate_timestamps' = ['on', 'off']");
    let mut sweep = start_sweep(&folder, &plan);
    let mut seen = BTreeSet::new();
    while sweep.try_wait().expect("waited for").is_none() {
        seen.extend(says());
        thread::sleep(Duration::from_millis(20));
    }
    let done = CommandOutput::of(sweep.wait_with_output().expect("ends"), &[]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(["YY", "YN", "NY", "NN"].iter().all(|wanted| seen.contains(wanted)), "{seen:?}");
    let refused = folder.run(&["sweep", &site.plan(&folder, "200ms", "'opcache.revalidate_freq' = 5"), "--live"]);
    assert!(refused.stdout.contains("over which nothing later counts"), "{refused:?}");
    wait_until("as it was", || says() == Some("YY"));
    assert_eq!((site.tree(), folder.journal()), (before, None));
}

#[test]
fn what_it_would_not_take_is_refused_in_its_words_and_nothing_is_changed() {
    let folder = Folder::new();
    let site = Site::start(&folder, "");
    let before = (site.tree(), site.children());
    let sweep = |settings: &str, live: bool| {
        let plan = site.plan(&folder, "200ms", settings);
        let args = ["sweep", plan.as_str(), "--json", "-", "--live"];
        folder.run(&args[..if live { 5 } else { 4 }])
    };
    let wrong = sweep("pm = 'dynamic'\n'pm.min_spare_servers' = 2\n'pm.max_spare_servers' = 1", true);
    assert!(wrong.stdout.contains("pm.max_spare_servers(1) must not be less than"), "{wrong:?}");
    let unknown = sweep("'pm.threads' = 5", true);
    assert!(unknown.code == 2 && unknown.stderr.contains("it knows pm, pm.max_children"), "{unknown:?}");
    let blind = sweep("'pm.max_children' = 2", false);
    assert!(blind.code == 1 && blind.stderr.contains("pm.status_path"), "{blind:?}");
    assert_eq!((site.tree(), site.children()), before);

    let text = fs::read_to_string(&site.pool).expect("readable");
    fs::write(&site.pool, format!("{text}pm.oops = 1\n")).expect("written");
    let before = site.tree();
    let broken = sweep("'pm.max_children' = 2", true);
    assert!(broken.code == 1 && broken.stderr.contains("unknown entry 'pm.oops'"), "{broken:?}");
    assert_eq!((site.tree(), site.children(), folder.journal()), (before, 3, None));
}

#[test]
fn a_sweep_killed_at_any_step_is_put_back_byte_for_byte() {
    let folder = Folder::new();
    let site = Site::start(&folder, "");
    let before = site.tree();
    let plan = site.plan(&folder, "20ms", "'pm.max_children' = 2");
    let steps = end_at_each_step(&folder, &["sweep", &plan, "--live", "--quiet"], |moment| {
        wait_until("its own pool", || site.children() == 3 && get(site.port, "/pid.php").is_some());
        assert_eq!((site.tree(), folder.journal()), (before.clone(), None), "{moment}");
    });
    assert!(steps >= 12, "{steps}");
}

#[test]
fn one_that_detaches_itself_again_at_each_reload_is_followed() {
    let folder = Folder::new();
    let (config, socket) = (folder.join("fpm.conf"), folder.join("fpm.sock"));
    let at = folder.path().display();
    // Its pool is in the main file, so it runs on a file of ours meanwhile, with another command line.
    let text = format!(
        "[global]\npid = {at}/fpm.pid\nerror_log = {at}/fpm.log\n[www]\nuser = www-data\ngroup = www-data\n\
         listen = {at}/fpm.sock\nlisten.owner = www-data\npm = static\npm.max_children = 3\n"
    );
    fs::write(&config, text).expect("written");
    let program = fs::read_dir("/usr/sbin").expect("readable").filter_map(|e| Some(e.ok()?.path()));
    let is_fpm = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("php-fpm"));
    let program = program.into_iter().find(is_fpm).expect("PHP-FPM (./x test installs it)");
    let mut shell = Command::new("sh");
    let script = "\"$0\" -D -y \"$1\"; is() { kill -0 \"$(cat \"$2\")\" 2>&-; }; \
                  while is \"$@\" || { sleep 0.5; is \"$@\"; }; do sleep 0.1; done";
    shell.args(["-c", script]).arg(&program).arg(&config).arg(folder.join("fpm.pid"));
    let daemon = Daemon::start(shell, "php-fpm", |_| socket.exists());
    let site = Site::of(&folder, Fpm { daemon, socket, config });
    let first = site.master();
    let plan = site.plan(&folder, "200ms", "'pm.max_children' = [2, 4, 5]");
    let sweep = folder.json(&["sweep", &plan, "--live", "--quiet"], 0);
    let rows = sweep["rows"].as_array().expect("rows");
    let answered = rows.iter().filter(|row| row["answered"].as_u64() > Some(0)).count();
    assert!(rows.len() == 3 && answered == 3, "{sweep:#}");
    wait_until("its own pool", || site.children() == 3 && get(site.port, "/pid.php").is_some());
    assert!(folder.journal().is_none() && site.master() != first, "it is another process now");
}

/// The limit of a unix socket's listen queue, from the kernel.
fn longest_queue(socket: &Path) -> Option<u64> {
    let filter = format!("src {}", socket.display());
    let out = Command::new("ss").args(["-lxnH", &filter]).output().expect("ss runs").stdout;
    String::from_utf8_lossy(&out).split_whitespace().nth(3)?.parse().ok()
}

#[test]
fn its_listen_queue_is_changed_by_a_start_with_the_words_and_variables_that_it_was_started_with() {
    let folder = Folder::new();
    let words = ["-d", "memory_limit=77M", "-F", "--fpm-config"];
    let site = Site::start_by(&folder, "listen.backlog = 200\nenv[SITE] = $SITE", &words);
    php(&folder.join("docs"), "how.php", "echo ini_get('memory_limit'), '|', getenv('SITE'), '|';");
    let says = || get(site.port, "/how.php").is_some_and(|page| page.contains("77M|with = sign|"));
    wait_until("its own page", says);
    let before = site.tree();
    let queue = || longest_queue(&site.fpm.socket);
    assert_eq!(queue(), Some(200));

    let most = fs::read_to_string("/proc/sys/net/core/somaxconn").expect("readable");
    let beyond = site.plan(&folder, "200ms", "'listen.backlog' = 65535");
    if most.trim().parse::<u64>().expect("a number") < 65_535 {
        let refused = folder.run(&["sweep", &beyond, "--live"]);
        assert!(refused.stderr.contains("no queue gets longer than that"), "{refused:?}");
    }

    let variants = "[[variant]]\nname = 'short'\nsettings = { 'listen.backlog' = 33, 'pm.max_children' = 2 }\n\
        [[variant]]\nname = 'long'\nsettings = { 'listen.backlog' = 77, 'pm.max_children' = 4 }\n";
    let plan = site.plan(&folder, "1s", variants);
    let mut sweep = start_sweep(&folder, &plan);
    let (mut seen, mut words) = (BTreeSet::new(), String::new());
    while sweep.try_wait().expect("waited for").is_none() {
        let journal = folder.journal().and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        if journal.contains("\"launch_is_known\": true") {
            words = journal;
        }
        if let (Some(queue), true) = (queue(), says()) {
            seen.insert((queue, children_of(site.fpm.master())));
        }
        thread::sleep(Duration::from_millis(20));
    }
    let done = CommandOutput::of(sweep.wait_with_output().expect("ends"), &[]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!([(33, 2), (77, 4)].iter().all(|row| seen.contains(row)), "{seen:?}");
    let words: Value = serde_json::from_str(&words).expect("a journal");
    assert_eq!(
        (words["birth"]["argv"][1].as_str(), words["daemonizes"].as_bool()),
        (Some("-d"), Some(false)),
        "{words:#}"
    );
    assert!(!words["birth"]["environment"].to_string().contains("FPM_SOCKETS"));
    assert_eq!((queue(), site.tree(), folder.journal(), says()), (Some(200), before.clone(), None, true));

    let mut sweep = start_sweep(&folder, &plan);
    wait_until("another queue", || queue() == Some(33));
    signal(&sweep, libc::SIGKILL);
    sweep.wait().expect("ends");
    let restored = folder.run(&["restore"]);
    assert!(restored.code == 0, "{restored:?}");
    wait_until("its own page", || says() && queue() == Some(200));
    assert_eq!((site.tree(), folder.journal()), (before, None));
}

#[test]
fn each_of_several_pools_has_settings_of_its_own() {
    let folder = Folder::new();
    let second = format!(
        "[other.site]\nuser = www-data\ngroup = www-data\nlisten = {0}\nlisten.owner = www-data\npm = dynamic\n\
         pm.max_children = 3\npm.start_servers = 1\npm.min_spare_servers = 1\npm.max_spare_servers = 1",
        folder.join("other.sock").display()
    );
    let site = Site::start(&folder, &second);
    let workers = |pool: &str| {
        let title = format!("php-fpm: pool {pool}");
        let pids = processes_with(&title).into_iter();
        pids.filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(&format!(" {} ", site.master())))
        })
        .count()
    };
    let all = || (workers("www"), workers("other.site"));
    wait_until("both pools", || all() == (3, 1));
    let before = site.tree();
    let knobs = folder.json(&["knobs", &site.fpm.name()], 0);
    let of = |name: &str| {
        knobs["knobs"].as_array().expect("rows").iter().find(|k| k["name"] == name).map(|k| k["value"].clone())
    };
    assert_eq!(of("www.pm.max_children"), Some(3.into()), "{knobs:#}");
    assert_eq!((of("other.site.pm.max_children"), of("pm")), (Some(3.into()), None));
    let size = folder.json(&["size", &site.fpm.name(), "--memory", "2G"], 0);
    assert!(size["suggested"]["www.pm.max_children"] == size["suggested"]["other.site.pm.max_children"], "{size:#}");

    let variants = "'other.site.pm' = 'static'\n\
        [[variant]]\nname = 'first'\nsettings = { 'www.pm.max_children' = 5, 'other.site.pm.max_children' = 1 }\n\
        [[variant]]\nname = 'second'\nsettings = { 'www.pm.max_children' = 2, 'other.site.pm.max_children' = 4 }\n";
    let plan = site.plan(&folder, "1s", variants);
    let mut sweep = start_sweep(&folder, &plan);
    let mut seen = BTreeSet::new();
    while sweep.try_wait().expect("waited for").is_none() {
        seen.insert(all());
        thread::sleep(Duration::from_millis(20));
    }
    let done = CommandOutput::of(sweep.wait_with_output().expect("ends"), &[]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!([(5, 1), (2, 4)].iter().all(|row| seen.contains(row)), "{seen:?}");
    wait_until("its own pools", || all() == (3, 1));
    assert_eq!((site.tree(), folder.journal()), (before.clone(), None));

    let url = format!("http://127.0.0.1:{}/pid.php", site.port);
    let name = site.fpm.name();
    let only = ["--only", "www.pm.max_children,other.site.pm.max_children"];
    let tune = [&["tune", &name, "--url", &url, "--live", "-c", "2", "--dry-run"][..], &only].concat();
    let planned = folder.json(&tune, 0);
    let searched = planned["searched"].as_array().expect("settings").iter().filter(|s| s["values"][0].is_string());
    let searched: BTreeSet<_> = searched.filter_map(|s| s["name"].as_str()).collect();
    assert_eq!(searched, BTreeSet::from(["www.pm.max_children", "other.site.pm.max_children"]), "{planned:#}");
    let fit = folder.run(&["size", &site.fpm.name(), "--fit", "--url", &url, "--live"]);
    assert!(fit.code == 1 && fit.stderr.contains("has several pools (www.pm.max_children, other.site"), "{fit:?}");
    wait_until("its own pools", || all() == (3, 1));
    assert_eq!((site.tree(), folder.journal()), (before, None));
}
