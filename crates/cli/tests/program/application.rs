//! Real applications: what their requests wait for, which system calls they make, and how many workers fit. With PHP on nginx
//! and PHP-FPM, on Apache with mod_php, with a real database, and with mod_perl.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::servers::{Fpm, Mariadb, ModPhp, nginx, open_folder, php, php_site};
use crate::common::{Apache, Folder, free_port, get, number};
use serde_json::Value;

fn list<'a>(v: &'a Value, what: &str) -> &'a Vec<Value> {
    v.as_array().unwrap_or_else(|| panic!("{what}: {v}"))
}

fn kind<'a>(trace: &'a Value, name: &str) -> Option<&'a Value> {
    list(&trace["kinds"], "kinds").iter().find(|k| k["kind"] == name)
}

/// The waits of a trace for one kind of thing: their total time, and the first of them.
fn waits<'a>(trace: &'a Value, what: &str) -> (f64, Option<&'a Value>) {
    let of: Vec<&Value> = list(&trace["waiting"], "waiting").iter().filter(|w| w["what"] == what).collect();
    (of.iter().map(|w| number(&w["us_per_request"])).sum(), of.first().copied())
}

#[test]
fn a_trace_tells_what_a_request_waits_for_and_how_often_it_asks_the_database() {
    let folder = Folder::new();
    let database = Mariadb::start(&folder, &[]);
    // Without its cache PHP reads every file again.
    let fpm = Fpm::start(&folder, 2, "php_admin_value[opcache.enable] = 0");
    let (port, root) = (free_port(), open_folder(&folder, "www"));
    let _nginx = nginx(&folder, &php_site(port, &root, &fpm.socket), port);
    let queries = "for ($i = 0; $i < 12; $i++) $db->query(\"SELECT $i\"); $db->query('SELECT SLEEP(0.2)'); echo 'ok';";
    php(&root, "queries.php", &format!("{}\n{queries}", database.connect()));
    let dir = root.display();
    php(
        &root,
        "program.php",
        &format!(
            "for ($i = 0; $i < 8; $i++) include \"{dir}/part$i.php\";\n\
             foreach (['single-post', 'single', 'page'] as $t) file_exists(\"{dir}/themes/$t.html\");\n\
             fwrite(fopen('/dev/null', 'w'), 'x'); $f = fopen('{dir}/lock', 'c'); flock($f, LOCK_EX); usleep(30000); echo 'ok';"
        ),
    );
    for i in 0..8 {
        php(&root, &format!("part{i}.php"), "$x = 1;");
    }
    fs::write(root.join("lock"), "").expect("written");
    fs::set_permissions(root.join("lock"), fs::Permissions::from_mode(0o666)).expect("its mode");
    open_folder(&folder, "www/themes");
    assert!(get(port, "/queries.php").is_some_and(|body| body.contains("ok")));
    let trace = |server: &str, page: &str| {
        let url = format!("http://127.0.0.1:{port}/{page}");
        folder.json(&["trace", server, "--url", &url, "-n", "5"], 0)
    };

    let queries = trace(&fpm.name(), "queries.php");
    let (us, first) = waits(&queries, "peer");
    let first = first.expect("a peer");
    assert!(us >= 195_000.0, "200 ms in a query: {:#}", queries["waiting"]);
    let peer = format!("unix:{}", database.socket.display());
    assert_eq!(
        (&first["peer"], &first["process"], &first["service"]),
        (&peer.into(), &"mariadbd".into(), &"mysql".into())
    );
    let all = number(&queries["waiting_us_per_request"]);
    assert!(all >= us - 1.0 && number(&queries["us_per_request"]) < us, "{queries:#}");
    // Thirteen queries, and those that open the connection.
    let trips = kind(&queries, "database-round-trips").expect("round trips");
    assert!((13.5..=15.0).contains(&number(&trips["per_request"])) && trips["advice"] != "", "{trips}");
    assert_eq!(kind(&queries, "source-files"), None, "one file is a program's own");
    let url = format!("http://127.0.0.1:{port}/queries.php");
    let text = folder.run(&["trace", &fpm.name(), "--url", &url, "-n", "5"]).stdout;
    assert!(text.contains("mariadbd (mysql) at unix:") && text.contains("a request waits for "), "{text}");

    // Another client holds the lock most of the time.
    let over = AtomicBool::new(false);
    let program = thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::File::open(root.join("lock")).expect("opened");
            while !over.load(Ordering::Relaxed) {
                // SAFETY: plain calls on a file that is open.
                unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
                thread::sleep(Duration::from_millis(100));
                unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
                thread::sleep(Duration::from_millis(10));
            }
        });
        let traced = trace(&fpm.name(), "program.php");
        over.store(true, Ordering::Relaxed);
        traced
    });
    let (us, lock) = waits(&program, "lock");
    let path = root.join("lock").display().to_string();
    assert!(us >= 10_000.0 && lock.is_some_and(|l| l["peer"] == *path), "{:#}", program["waiting"]);
    assert!(waits(&program, "sleep").0 >= 29_000.0, "{:#}", program["waiting"]);
    let sources = kind(&program, "source-files").expect("source files");
    assert!(number(&sources["per_request"]) >= 8.0 && sources["advice"].to_string().contains("opcache"), "{sources}");
    // A program looks for its templates in wrong folders; no <Location> would avoid that.
    assert_eq!(kind(&program, "virtual-path"), None, "{:#}", program["kinds"]);
    assert!(
        number(&kind(&program, "missing-lookup").expect("look-ups")["per_request"]) >= 3.0,
        "{:#}",
        program["kinds"]
    );
    let paths: Vec<&str> = list(&program["calls"], "calls").iter().filter_map(|r| r["path"].as_str()).collect();
    assert!(paths.contains(&"/dev/null") && !paths.iter().any(|p| p.contains("<char")), "{paths:?}");

    // nginx waits for any event; what it reads next shows which one it was.
    let front = trace(&format!("nginx:{}", folder.join("nginx.conf").display()), "queries.php");
    let (us, first) = waits(&front, "peer");
    let peer = format!("unix:{}", fpm.socket.display());
    assert!(us >= 195_000.0 && first.is_some_and(|f| f["peer"] == *peer && f["call"] == "epoll_wait"), "{front:#}");
}

/// Warms a pool of the size that `size` said to fit; returns the share of the budget that it uses.
fn share_used(folder: &Folder, name: &str, url: &str, workers: u64, budget: f64) -> f64 {
    let users = workers.to_string();
    let requests = (60 * workers).to_string();
    let run = folder.run(&["run", url, "-c", &users, "-n", &requests, "--timeout", "60s", "--quiet", "--no-store"]);
    assert_eq!(run.code, 0, "{run:?}");
    let watch = folder.json(&["watch", name, "--once", "--interval", "300ms"], 0);
    assert_eq!(watch["worker_count"], workers, "{}", watch["worker_count"]);
    number(&watch["real_memory_bytes"]) / budget
}

#[test]
fn the_workers_of_mod_php_that_fit_use_the_budget_once_they_are_warm() {
    let folder = Folder::new();
    let database = Mariadb::start(&folder, &["--max-connections=60"]);
    let apache = ModPhp::start(&folder, 12, "ExtendedStatus On");
    let seen = open_folder(&folder, "seen");
    // A worker grows with each of its first 25 requests; part of its time it waits for the database.
    php(
        &apache.docs,
        "grow.php",
        &format!(
            "{}\n$db->query('SELECT SLEEP(0.01)');\n$f = '{}/' . getmypid(); $n = min(25, (int)@file_get_contents($f) + 1);\n\
             file_put_contents($f, $n); $keep = [];\nfor ($i = 0; $i < $n; $i++) $keep[] = str_repeat('x', 200000);\n\
             echo strlen(implode('', $keep));",
            database.connect(),
            seen.display()
        ),
    );
    let url = apache.url("/grow.php");
    let fit = ["size", &apache.name(), "--fit", "--url", &url, "--memory", "160M", "--sizes", "4,8,12"];
    let size = folder.json(&[&fit[..], &["--requests-per-worker", "60"]].concat(), 0);
    let fits = number(&size["fits"]["independent"]) as u64;
    assert_eq!(size["fit"]["settling"], "settled", "{:#}", size["fit"]);
    assert_eq!(size["fit"]["growth"]["grows"], false, "{:#}", size["fit"]["growth"]);
    assert!(number(&size["fit"]["warmed_requests"]) >= 10.0, "{:#}", size["fit"]);
    let bound = |what: &str| list(&size["bounds"], "bounds").iter().find(|b| b["what"] == what).cloned();
    assert_eq!(bound("database-connections").expect("a database")["workers"], 60, "{:#}", size["bounds"]);
    let advice = &size["workers_advice"];
    let database = list(&advice["ceilings"], "ceilings").iter().find(|c| c["by"] == "database").cloned();
    assert_eq!(database.expect("a database")["number"], 60, "{advice:#}");
    // Requests wait for the database, so more workers are busy than there are processors.
    assert!(number(&advice["need"]) >= 3.0 && advice["number"] == size["suggested"]["MaxRequestWorkers"], "{advice:#}");
    apache.restart_with(fits);
    let share = share_used(&folder, &apache.name(), &url, fits, 160.0 * 1_048_576.0);
    println!("mod_php: {fits} workers use {:.1} % of the budget", share * 100.0);
    assert!((0.85..=1.0).contains(&share), "{fits} workers use {share}: {:#}", size["fit"]);
}

#[test]
fn the_workers_of_mod_perl_that_fit_use_the_budget_once_they_are_warm() {
    let folder = Folder::new();
    let workers = |text: String, n: u64| -> String {
        let changed: Vec<String> = text
            .lines()
            .map(|line| match line.split_once(' ') {
                Some((name @ ("MaxRequestWorkers" | "StartServers" | "MinSpareServers"), _)) => format!("{name} {n}"),
                Some((name @ "MaxSpareServers", _)) => format!("{name} {}", n + 1),
                Some((name @ "MaxConnectionsPerChild", _)) => format!("{name} 0"),
                _ => line.to_string(),
            })
            .collect();
        changed.join("\n") + "\n"
    };
    let script = "our @kept; push @kept, 'x' x 150000 if @kept < 20; print \"Content-Type: text/plain\\n\\nok\\n\";\n";
    let start = |folder: &Folder, n: u64| {
        let apache = Apache::start_with(folder, |text| workers(text, n));
        fs::write(apache.folder.join("htdocs/perl/grow.pl"), script).expect("written");
        apache
    };
    let apache = start(&folder, 10);
    let url = apache.url("/perl/grow.pl");
    let fit = ["size", &apache.name(), "--fit", "--url", &url, "--memory", "150M", "--sizes", "3,6,10"];
    let size = folder.json(&[&fit[..], &["--requests-per-worker", "60"]].concat(), 0);
    let fits = number(&size["fits"]["independent"]) as u64;
    assert_eq!(size["fit"]["growth"]["grows"], false, "{:#}", size["fit"]);
    drop(apache);
    let folder = Folder::new();
    let apache = start(&folder, fits);
    let share = share_used(&folder, &apache.name(), &apache.url("/perl/grow.pl"), fits, 150.0 * 1_048_576.0);
    println!("mod_perl: {fits} workers use {:.1} % of the budget", share * 100.0);
    assert!((0.85..=1.0).contains(&share), "{fits} workers use {share}: {:#}", size["fit"]);
}
