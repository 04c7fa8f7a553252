//! Samples of real servers during a run and in `watch`: the right listen queue, short events, other programs, our own requests.
//! No assertion depends on the speed of the machine.

use std::fs;
use std::thread;

use crate::common::servers::{Fpm, Hog, Mariadb, ask_and_leave, haproxy, nginx, open_folder, php, php_site};
use crate::common::{Apache, Folder, Target, alone, free_port, n, number, wait_until};
use serde_json::Value;

fn list<'a>(v: &'a Value, what: &str) -> &'a Vec<Value> {
    v.as_array().unwrap_or_else(|| panic!("{what}: {v}"))
}

fn looks(run: &Value) -> &Vec<Value> {
    list(&run["server"]["looks"], "looks")
}

/// The first column of the table at the end of `show`.
fn seconds_shown(text: &str) -> Vec<u64> {
    let rows = text.lines().skip_while(|l| !l.trim_start().starts_with("second ")).skip(1);
    rows.map_while(|l| l.split_whitespace().next()?.parse().ok()).collect()
}

#[test]
fn an_overflow_of_a_part_of_a_second_shows_its_queue_and_no_second_comes_twice() {
    let runs = [300, 500, 900].map(|ms| {
        thread::spawn(move || {
            let folder = Folder::new();
            // Between two samples at whole seconds, and late enough that the server has been found on any machine.
            let stall = format!("{ms}ms");
            let args = ["--workers", "1", "--backlog", "4", "--stall-at", "5050ms", "--stall-for", &stall];
            let target = Target::start(&folder, &args);
            let args = ["run", &target.url(), "-r", "100", "-d", "7s", "--keepalive", "off", "--timeout", "4s"];
            let run = folder.json(&args, 0);
            (ms, run, folder.run(&["show", "last"]).stdout)
        })
    });
    for run in runs {
        let (ms, run, shown) = run.join().expect("a run");
        let overflows: f64 = looks(&run).iter().filter_map(|l| l["kernel"]["ListenOverflows"].as_f64()).sum();
        assert!(overflows > 0.0, "{ms} ms: {:#}", run["server"]);
        let full = looks(&run).iter().find(|l| number(&l["listen"][0]["queue"]) >= 4.0);
        let full = &full.unwrap_or_else(|| panic!("{ms} ms: never seen full: {:#}", run["server"]))["listen"][0];
        assert!(number(&full["queue_mean"]) > 0.0 && full["limit"] == 4 && full["of_url"] == true, "{full}");
        let readings: f64 = looks(&run).iter().map(|l| number(&l["readings"])).sum();
        assert!(readings >= 30.0, "{ms} ms: {readings} readings in 7 s");
        let shown = seconds_shown(&shown);
        // On a busy machine it takes long to find the server.
        assert!(shown.len() >= 2 && shown.windows(2).all(|w| w[0] < w[1]), "{shown:?}");
    }
}

#[test]
fn the_queue_of_a_run_is_that_of_its_urls_listener() {
    let folder = Folder::new();
    let (a, b, c, dir) = (free_port(), free_port(), free_port(), folder.path().display().to_string());
    let site = |listen: &str| format!(" server {{\n  listen {listen};\n  location / {{ return 200 ok; }}\n }}\n");
    let sites = [
        site(&format!("127.0.0.1:{a} backlog=33")),
        site(&format!("127.0.0.1:{b} backlog=77")),
        site(&format!("unix:{dir}/web.sock backlog=44")),
    ];
    let _nginx = nginx(&folder, &sites.concat(), a);
    let config = format!(
        "global\n maxconn 100\n stats socket {dir}/stats.sock\ndefaults\n mode http\n timeout connect 5s\n timeout client 5s\n \
         timeout server 5s\nfrontend f\n bind 127.0.0.1:{c} backlog 55\n http-request return status 200 content-type text/plain \
         string ok\n"
    );
    let _haproxy = haproxy(&folder, &config, c);
    let run = |port: u16, more: &[&str]| {
        let mut args: Vec<String> =
            ["run", &format!("http://127.0.0.1:{port}/"), "-c", "2", "-d", "3s", "--think", "20ms", "--json", "-"]
                .map(str::to_string)
                .to_vec();
        args.extend(more.iter().map(ToString::to_string));
        thread::spawn(move || {
            let folder = Folder::new();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let done = folder.run(&args);
            assert_eq!(done.code, 0, "{done:?}");
            let run: Value = serde_json::from_str(&done.stdout).expect("JSON");
            (run, folder.run(&["show", "last"]).stdout)
        })
    };
    let socket = format!("{dir}/web.sock");
    let runs = [(run(a, &[]), 33), (run(b, &[]), 77), (run(1, &["--unix-socket", &socket]), 44), (run(c, &[]), 55)];
    for (run, limit) in runs {
        let (run, shown) = run.join().expect("a run");
        for look in looks(&run) {
            let listen = list(&look["listen"], "listen");
            assert!(listen[0]["of_url"] == true && listen[0]["limit"] == limit, "{limit}: {listen:#?}");
            assert!(listen[1..].iter().all(|l| l.get("of_url").is_none()), "{limit}: {listen:#?}");
        }
        assert!(shown.contains(&format!(" of {limit}")), "{limit}: {shown}");
    }
}

/// A site of PHP on nginx and PHP-FPM: its port and the folder of its scripts.
fn site(folder: &Folder, fpm: &Fpm) -> (crate::common::servers::Daemon, u16, std::path::PathBuf) {
    let (port, root) = (free_port(), open_folder(folder, "www"));
    let daemon = nginx(folder, &php_site(port, &root, &fpm.socket), port);
    (daemon, port, root)
}

#[test]
fn the_worker_of_a_status_page_is_no_child_and_a_page_that_waits_for_one_is_news() {
    let sleep = |folder: &Folder, fpm: &Fpm| {
        let (nginx, port, root) = site(folder, fpm);
        php(&root, "sleep.php", "sleep(15);");
        (nginx, (0..5).map(|_| ask_and_leave(port, "/sleep.php")).collect::<Vec<_>>())
    };
    let watch = |folder: &Folder, fpm: &Fpm| folder.json(&["watch", &fpm.name(), "--once", "--interval", "300ms"], 0);

    // The page has a worker of its own: it always answers, and is not counted as a child.
    let folder = Folder::new();
    let lines = format!("pm.status_path = /fpm-status\npm.status_listen = 127.0.0.1:{}", free_port());
    let fpm = Fpm::start(&folder, 3, &lines);
    let seen = watch(&folder, &fpm);
    assert_eq!((list(&seen["workers"], "workers").len(), &seen["worker_count"]), (3, &3.into()), "{seen:#}");
    assert_eq!(seen["busy"], 0, "{seen:#}");
    let busy = sleep(&folder, &fpm);
    wait_until("three busy children", || watch(&folder, &fpm)["busy"] == 3);
    drop((busy, fpm));

    // None: the request for the page waits in the queue like all others.
    let folder = Folder::new();
    let fpm = Fpm::start(&folder, 2, "pm.status_path = /fpm-status");
    let _busy = sleep(&folder, &fpm);
    let (mut seen, mut text) = (Value::Null, String::new());
    wait_until("a queue", || {
        let file = folder.join("watch.json");
        let path = file.to_str().expect("text");
        text = folder.run(&["watch", &fpm.name(), "--once", "--interval", "300ms", "--json", path]).stdout;
        seen = serde_json::from_slice(&fs::read(&file).expect("written")).expect("JSON");
        seen["listen"].as_array().is_some_and(|l| l.iter().any(|l| l["queue"].as_u64() >= Some(3)))
    });
    assert!(number(&seen["status_waits_s"]) >= 0.5 && seen["busy"] == 2, "{seen:#}");
    assert!(!seen["unread"].to_string().contains("connect"), "{}", seen["unread"]);
    assert!(text.contains("every worker is busy: the status page waits"), "{text}");
}

#[test]
fn the_questions_of_a_watch_are_no_visitors() {
    let folder = Folder::new();
    let port = free_port();
    let http = format!(
        " server {{\n  listen 127.0.0.1:{port};\n  location / {{ return 200 ok; }}\n  location = /nginx_status {{ stub_status; }}\n }}"
    );
    let _nginx = nginx(&folder, &http, port);
    let apache = Apache::start(&folder);
    let fpm = Fpm::start(&folder, 2, "pm.status_path = /fpm-status");
    let target = Target::start(&folder, &["--workers", "2"]);
    let names = [
        format!("nginx:{}", folder.join("nginx.conf").display()),
        apache.name(),
        fpm.name(),
        format!("target@{}", target.url()),
    ];
    thread::scope(|scope| {
        for (i, name) in names.iter().enumerate() {
            let folder = &folder;
            scope.spawn(move || {
                let file = folder.join(&format!("watch-{i}.jsonl"));
                let path = file.to_str().expect("text");
                // Only we send requests to these servers.
                let args = ["watch", name, "--interval", "250ms", "-d", "3s", "--record", path, "--quiet"];
                let done = folder.run(&args);
                assert_eq!(done.code, 0, "{done:?}");
                let text = fs::read_to_string(&file).expect("a recording");
                let all: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
                let rates: Vec<f64> = all.iter().filter_map(|d| d["requests_rps"].as_f64()).collect();
                assert!(!rates.is_empty() && rates.iter().all(|r| *r == 0.0), "{name}: {rates:?}");
                let busy: Vec<u64> = all.iter().filter_map(|d| d["busy"].as_u64()).collect();
                assert!(!busy.is_empty() && busy.iter().all(|b| *b == 0), "{name}: {busy:?}");
            });
        }
    });
}

#[test]
fn compressed_bodies_are_told_apart_from_all_that_was_received() {
    let folder = Folder::new();
    let (port, root) = (free_port(), open_folder(&folder, "www"));
    let http = format!(
        " gzip on;\n gzip_types text/plain;\n types {{ text/plain txt; }}\n default_type image/png;\n server {{\n  \
         listen 127.0.0.1:{port};\n  root {};\n }}",
        root.display()
    );
    fs::write(root.join("a.txt"), "so it goes\n".repeat(2000)).expect("written");
    fs::write(root.join("b.png"), [7u8; 100_000]).expect("written");
    fs::write(root.join("index.html"), "ok").expect("written");
    let _nginx = nginx(&folder, &http, port);
    let urls = folder.join("urls.txt");
    let url = |name: &str| format!("http://127.0.0.1:{port}/{name}");
    fs::write(&urls, format!("{}\n{}\n", url("a.txt"), url("b.png"))).expect("written");
    let args = ["run", "-f", urls.to_str().expect("text"), "--in-order", "-c", "1", "-n", "20", "--decode"];
    let run = folder.json(&args, 0);
    let bytes = &run["phases"][0]["bytes"];
    assert_eq!(bytes["decoded"], 220_000, "ten texts: {bytes}");
    let (received, coded) = (number(&bytes["received"]), number(&bytes["coded"]));
    assert!(received > 1_000_000.0 && coded > 0.0 && coded < 10_000.0, "{bytes}");
    let text = folder.run(&["show", "last"]).stdout;
    assert!(text.contains("of it compressed") && text.contains("decoded)"), "{text}");
}

#[test]
fn closed_connections_to_other_servers_hold_none_of_a_runs_ports() {
    let folder = Folder::new();
    let (one, other) = (Target::start(&folder, &["--workers", "2"]), Target::start(&folder, &["--workers", "2"]));
    let run = |target: &Target, n: &str| {
        folder.json(&["run", &target.url(), "-c", "2", "-n", n, "--keepalive", "off"], 0)["generator"].clone()
    };
    let first = run(&one, "400");
    let waiting = || -> u64 {
        let text = fs::read_to_string("/proc/net/sockstat").expect("readable");
        let words: Vec<&str> = text.lines().find(|l| l.starts_with("TCP:")).expect("TCP").split(' ').collect();
        let at = words.iter().position(|w| *w == "tw").expect("TIME_WAIT");
        words[at + 1].parse().expect("a number")
    };
    let second = run(&other, "10");
    let here = waiting();
    assert!(number(&first["time_wait"]) <= 400.0 && number(&second["time_wait"]) <= 10.0, "{first:#}\n{second:#}");
    assert!(here > 100, "{here} closed connections on this machine: nothing was to be left out");
}

#[test]
fn a_program_that_takes_a_processor_is_named_and_the_servers_own_are_not() {
    let _alone = alone();
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "2", "--service", "5ms"]);
    {
        let hog = Hog::start(&folder);
        let run = folder.json(&["run", &target.url(), "-r", "20", "-d", "3s"], 0);
        let reasons = list(&run["validity"]["reasons"], "reasons");
        let reason = reasons.iter().find(|r| r["rule"] == "others-busy");
        let reason = reason.unwrap_or_else(|| panic!("nothing of the hog: {:#}", run["validity"]));
        assert_eq!(reason["verdict"], "doubtful");
        let others = list(&run["generator"]["others"], "others");
        assert!(others.iter().any(|o| o["name"] == *hog.name && number(&o["cores"]) > 0.05), "{others:#?}");
        let text = folder.run(&["show", "last"]).stdout;
        assert!(text.contains("other programs took"), "{text}");
    }
    drop(target);

    // A web server, PHP, and a database that does all the work: they all belong to the run.
    let database = Mariadb::start(&folder, &[]);
    let fpm = Fpm::start(&folder, 3, "");
    let (nginx, port, root) = site(&folder, &fpm);
    let query = "$db->query('SELECT BENCHMARK(400000, MD5(1))'); $t = hrtime(true); while (hrtime(true) < $t + 2e7); echo 'ok';";
    php(&root, "work.php", &format!("{}\n{query}", database.connect()));
    let url = format!("http://127.0.0.1:{port}/work.php");
    let run = folder.json(&["run", &url, "-c", "3", "-d", "4s", "--timeout", "20s"], 0);
    let generator = &run["generator"];
    assert!(generator["others_cores"].is_number(), "the server and what is behind it were found: {generator:#}");
    let none = Vec::new();
    let others = generator["others"].as_array().unwrap_or(&none);
    for o in others {
        let pid = number(&o["pid"]) as i32;
        let ours = [nginx.pid(), fpm.daemon.pid(), database.daemon.pid()];
        let parent = fs::read_to_string(format!("/proc/{pid}/stat"))
            .ok()
            .and_then(|s| s.rsplit(") ").next()?.split(' ').nth(1)?.parse::<i32>().ok());
        assert!(!ours.contains(&pid) && !parent.is_some_and(|p| ours.contains(&p)), "{others:#?}");
    }
}

#[test]
fn a_row_that_was_measured_beside_another_program_is_measured_again_a_few_times_at_most() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "2", "--service", "5ms"]);
    let plan = folder.join("sweep.toml");
    let text = format!("url = \"{}\"\nusers = [1, 2, 3]\nduration = \"300ms\"\n", target.url());
    fs::write(&plan, text).expect("written");
    let _hog = Hog::start(&folder);
    let file = folder.join("sweep.json");
    let done = folder.run(&["sweep", plan.to_str().expect("text"), "--json", file.to_str().expect("text")]);
    assert_eq!(done.code, 0, "{done:?}");
    let again = done.stderr.matches("measured again").count();
    // The other program stays busy, so more repetitions would not help. Other tests start and end meanwhile.
    assert!((1..=6).contains(&again), "{again}: {}", done.stderr);
    assert!(done.stderr.contains("stay busy"), "{}", done.stderr);
    let rows: Value = serde_json::from_slice(&fs::read(file).expect("written")).expect("JSON");
    assert_eq!(list(&rows["rows"], "rows").len(), 3);
}

#[test]
fn pages_behind_a_login_are_traced_profiled_and_sized_by_the_sessions_of_a_plan() {
    let folder = Folder::new();
    let sessions = open_folder(&folder, "sessions");
    let lines = format!("pm.status_path = /status\nphp_admin_value[session.save_path] = {}", sessions.display());
    let fpm = Fpm::start(&folder, 2, &lines);
    let (_nginx, port, root) = site(&folder, &fpm);
    fs::write(root.join("secret.txt"), "for members").expect("written");
    let hits = open_folder(&folder, "hits").join("hits");
    php(
        &root,
        "login.php",
        "session_start(); if (($_POST['password'] ?? '') === 'open') $_SESSION['in'] = 1; echo 'hello';",
    );
    php(
        &root,
        "member.php",
        &format!(
            "session_start(); if (!isset($_SESSION['in'])) {{ http_response_code(403); exit; }} \
             echo file_get_contents(__DIR__ . '/secret.txt'); file_put_contents('{}', 'x', FILE_APPEND);",
            hits.display()
        ),
    );
    let plan = folder.join("members.toml").display().to_string();
    let text = format!(
        "pick = \"session\"\nusers = 50\nduration = \"1h\"\n[http]\ncookies = true\n\
         [[request]]\nurl = \"http://127.0.0.1:{port}/login.php\"\nform = {{ password = \"open\" }}\n\
         [[request]]\nurl = \"http://127.0.0.1:{port}/member.php\"\nexpect = [\"status=200\"]\n"
    );
    fs::write(&plan, text).expect("written");
    let seen = || fs::metadata(&hits).map_or(0, |m| m.len());
    let server = fpm.name();
    // Only the requests of the plan, not its load: ten requests are five sessions.
    let traced = folder.json(&["trace", &server, "--url", &plan, "-n", "10"], 0);
    assert_eq!((n(&traced["requests"]), seen()), (10, 5), "{traced:#}");
    let calls = list(&traced["calls"], "calls");
    let secret = calls.iter().find(|c| {
        c["path"].as_str().is_some_and(|p| p.ends_with("/secret.txt"))
            && c["call"].as_str().is_some_and(|c| c.starts_with("open"))
    });
    let secret = secret.unwrap_or_else(|| panic!("the page behind the login was not reached: {traced:#}"));
    assert!((0.4..=0.6).contains(&number(&secret["per_request"])), "{secret}");
    let before = seen();
    let profiled = folder.json(&["profile", &server, "--url", &plan, "-c", "2", "-d", "1s"], 0);
    assert!(n(&profiled["requests"]) > 4 && seen() > before, "{}", profiled["requests"]);
    let before = seen();
    let sized = folder.json(&["size", &server, "--url", &plan, "--variant", "as it is="], 0);
    assert!(list(&sized["variants"], "variants").len() == 1 && seen() > before, "{sized:#}");
    let before = seen();
    let fit = ["size", &server, "--fit", "--url", &plan, "--sizes", "1,2,3", "--requests-per-worker", "4"];
    let fitted = folder.json(&[&fit[..], &["--memory", "1G"]].concat(), 0);
    let sizes: Vec<u64> = list(&fitted["fit"]["points"], "points").iter().map(|p| n(&p["workers"])).collect();
    assert!([1, 2, 3].iter().all(|size| sizes.contains(size)), "{fitted:#}");
    assert!(number(&fitted["workers_advice"]["number"]) >= 1.0 && seen() > before, "{fitted:#}");
    // Each login succeeded: a failed session would have ended before the member's page.
    let (answered, members) = (number(&fitted["workers_advice"]["cpu_us_per_request"]), seen() - before);
    assert!(answered > 0.0 && members >= 6, "{members} pages behind the login: {fitted:#}");
    let wrong = folder.run(&["trace", &server, "--url", "nowhere.toml"]);
    assert!(wrong.code != 0 && wrong.stderr.contains("nowhere.toml"), "{wrong:?}");
}

#[test]
fn knobs_say_what_is_where_that_comes_from_and_what_may_be() {
    let folder = Folder::new();
    let apache = Apache::start(&folder);
    let target = Target::with_config(&folder, "workers = 3\nbacklog = 77");
    let (a, t) = (apache.name(), target.name());
    let d = folder.json(&["knobs", &a, &t], 0);
    assert_eq!(d["schema"], "lastdrop.knobs/1");
    let row = |server: &str, name: &str| {
        let rows = list(&d["knobs"], "knobs").iter();
        let row = rows.filter(|r| r["server"] == server && r["name"] == name).collect::<Vec<_>>();
        assert_eq!(row.len(), 1, "{server} {name}: {:#}", d["knobs"]);
        row[0].clone()
    };
    let pool = row(&a, "MaxRequestWorkers");
    assert_eq!((&pool["value"], &pool["default"], &pool["needs"]), (&50.into(), &256.into(), &"reload".into()));
    assert!(pool["source"].as_str().expect("text").contains("scoreboard"), "{pool}");
    assert_eq!(pool["range"], serde_json::json!([1, 200_000]));
    let recycle = row(&a, "MaxConnectionsPerChild");
    let place = recycle["source"].as_str().expect("text").rsplit_once(':').expect("file and line");
    let text = fs::read_to_string(place.0).expect("the file of the setting");
    let line = text.lines().nth(place.1.parse::<usize>().expect("a line") - 1).expect("that line");
    assert_eq!(line.trim(), "MaxConnectionsPerChild 10");
    let keep = row(&a, "KeepAlive");
    assert_eq!((&keep["choices"], keep.get("range")), (&serde_json::json!(["On", "Off"]), None));
    let backlog = row(&t, "backlog");
    assert_eq!((&backlog["value"], &backlog["needs"]), (&77.into(), &"restart".into()));
    for row in list(&d["knobs"], "knobs") {
        assert!(!row["effect"].as_str().expect("text").is_empty(), "{row}");
    }
    let text = folder.run(&["knobs", &t]).stdout;
    assert!(text.contains("backlog") && text.contains("1 to 2048") && text.contains("restart"), "{text}");
    let refused = folder.run(&["knobs", &format!("pid:{}", std::process::id())]);
    assert!(refused.code == 1 && refused.stderr.contains("cannot be read or changed"), "{refused:?}");
}

#[test]
fn a_kind_of_ones_own_is_a_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "2"]);
    let (file, site) = (folder.join("site.toml"), folder.join("other.toml"));
    fs::write(&file, "# a site\nprograms = ['lastdrop']\nargument = 'target'\nleave = { signal = 'SIGUSR1' }\n")
        .expect("written");
    let name = format!("custom:{}@{}", file.display(), target.url());
    wait_until("workers", || target.scoreboard().is_some_and(|s| s.len() == 2 && !s.contains(['.', 'S'])));
    let watch = folder.json(&["watch", &name, "--once", "--interval", "300ms"], 0);
    assert_eq!((&watch["software"], list(&watch["workers"], "workers").len()), (&"lastdrop".into(), 2), "{watch:#}");
    assert!(watch["server"].as_str().expect("text").starts_with("custom:/"), "{}", watch["server"]);
    let guard =
        folder.run(&["guard", &name, "--max-age", "1s", "--every", "200ms", "--act", "--even-busy", "-d", "4s"]);
    assert!(guard.code == 0 && guard.stdout.contains("has left"), "{guard:?}");
    // Mistakes are reported with their line and advice; a file that others may write is not read.
    fs::write(&site, "programs = ['x']\nprogams = ['y']\n").expect("written");
    let wrong = folder.run(&["watch", &format!("custom:{}", site.display()), "--once"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("line 2: unknown field `progams`"), "{wrong:?}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).expect("set");
    let refused = folder.run(&["watch", &name, "--once"]);
    assert!(refused.code == 2 && refused.stderr.contains("somebody else may write"), "{refused:?}");
}
