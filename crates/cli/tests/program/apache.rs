//! Size, sweep and tune on a real Apache: prefork with mod_perl, by `examples/mod_perl/server`; event and worker are read.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{Apache, Folder, alone, end_at_each_step, get, number, wait_until};
use serde_json::{Value, json};

const HEAVY: &str = "/perl/heavy.pl";

#[test]
fn a_prefork_server_is_sized_by_its_running_processes() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, |t| t.replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0"));
    // A pool that has served nothing does not show how much memory a worker will need.
    let file = folder.join("cold.json").display().to_string();
    let told = folder.run(&["size", &apache.name(), "--memory", "400M", "--json", &file]).stdout;
    let cold: Value = serde_json::from_str(&fs::read_to_string(&file).expect("written")).expect("JSON");
    assert_eq!(
        (&cold["fits"], &cold["workers_advice"], &cold["suggested"]),
        (&Value::Null, &Value::Null, &json!({})),
        "{cold:#}"
    );
    assert_eq!((&cold["workers"]["cold"], &cold["workers"]["count"]), (&json!(5), &json!(5)), "{cold:#}");
    assert!(told.contains("has served anything yet") && told.contains("--url") && !told.contains("surely"), "{told}");
    // With a URL each worker gets requests, and a short load measures a request: one number of workers, also in the block to copy.
    let url = apache.url(HEAVY);
    let size = folder.json(&["size", &apache.name(), "--memory", "400M", "--url", &url], 0);
    let advice = &size["workers_advice"];
    let lowest = advice["ceilings"].as_array().expect("ceilings")[0]["number"].as_u64().expect("a number");
    let need = advice["need"].as_u64().expect("a need: it was loaded");
    assert_eq!(advice["number"], need.min(lowest), "{advice:#}");
    assert_eq!(size["suggested"]["MaxRequestWorkers"], advice["number"], "{size:#}");
    assert_eq!(size["model"], "prefork");
    assert!(size["version"].as_str().expect("text").contains("Apache/2.4"));
    let bytes = |v: &Value| v.as_u64().expect("bytes");
    let workers = &size["workers"];
    assert!(bytes(&workers["pss_bytes"]["mean"]) < bytes(&workers["rss_bytes"]["mean"]), "pages are shared: {workers}");
    assert!(bytes(&size["real_memory_bytes"]) < bytes(&size["sum_rss_bytes"]));
    let fits = bytes(&size["fits"]["independent"]);
    assert!(fits > bytes(&size["fits"]["no_sharing"]), "{}", size["fits"]);
    assert_eq!(size["effective"]["MaxRequestWorkers"], 50);
    assert_eq!(size["effective"]["MaxConnectionsPerChild"], 0);
    // After they have served, a size without load reports a ceiling, but no need.
    let seen = folder.json(&["size", &apache.name(), "--memory", "400M"], 0);
    let advice = &seen["workers_advice"];
    assert_eq!((&advice["need"], &advice["number"]), (&Value::Null, &advice["ceilings"][0]["number"]), "{seen:#}");
    // A tune reports the same at its start: the need by its examination, the ceilings by its budget.
    let tune = ["tune", &apache.name(), "--memory", "400M", "--url", &url, "-d", "1s", "--dry-run", "--json", &file];
    let told = folder.run(&tune);
    let planned: Value = serde_json::from_str(&fs::read_to_string(&file).expect("written")).expect("JSON");
    let (planned, by) = (&planned["workers_advice"], |advice: &Value| {
        let all = advice["ceilings"].as_array().expect("ceilings").iter();
        all.map(|c| c["by"].to_string()).collect::<std::collections::BTreeSet<_>>()
    });
    let lowest = planned["ceilings"][0]["number"].as_u64().expect("a number");
    let need = planned["need"].as_u64().expect("a need: it was looked at under load");
    assert_eq!((planned["number"].as_u64(), by(planned)), (Some(need.min(lowest)), by(advice)), "{planned:#}");
    assert!(told.stdout.contains("workers: ") && told.stdout.contains("(need: "), "{told:?}");
    assert_eq!(size["effective"]["KeepAlive"], "Off");
}

#[test]
fn threaded_servers_are_read_correctly() {
    for mpm in ["event", "worker"] {
        let folder = Folder::new();
        let apache = Apache::start_with(&folder, |text| {
            text.replace("mpm_prefork", &format!("mpm_{mpm}"))
                .replace("MinSpareServers 5", "ThreadsPerChild 20\nMinSpareThreads 20")
                .replace("MaxSpareServers 10", "MaxSpareThreads 80")
                .replace("StartServers 5", "StartServers 2")
                // The old name, with a value above what ServerLimit allows: 16 processes of 20.
                .replace("MaxRequestWorkers 50", "MaxClients 400")
        });
        let size = folder.json(&["size", &apache.name(), "--memory", "1G"], 0);
        assert_eq!((&size["model"], &size["threads_per_worker"]), (&mpm.into(), &20.into()), "{size}");
        assert_eq!(size["workers"]["count"], 2);
        // The configuration says 400, but the scoreboard shows that the server has 320.
        assert_eq!(size["effective"]["MaxRequestWorkers"], 320, "{size}");
        assert!(size["notes"].to_string().contains("clamped"), "{size}");
        let suggested = size["suggested"]["MaxRequestWorkers"].as_u64().expect("a number");
        assert_eq!(suggested % 20, 0, "whole processes");
    }
}

/// The number of idle keep-alive connections that the server accepts, up to 40.
fn kept_connections(port: u16) -> usize {
    let mut open = Vec::new();
    while open.len() < 40 {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { break };
        stream.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
        let answered = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").is_ok()
            && stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0);
        if !answered {
            break;
        }
        open.push(stream);
    }
    open.len()
}

#[test]
fn settings_of_threaded_servers_act() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, |text| {
        text.replace("mpm_prefork", "mpm_event")
            .replace("MinSpareServers 5", "ThreadsPerChild 8\nMinSpareThreads 8\nServerLimit 1")
            .replace(
                "MaxSpareServers 10",
                "MaxSpareThreads 16\nKeepAliveTimeout 60\nPerlInterpMax 2\nPerlInterpStart 1",
            )
            .replace("StartServers 5", "StartServers 1\nPerlInterpMinSpare 1")
            .replace("MaxRequestWorkers 50", "MaxRequestWorkers 8")
            .replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0")
            .replace("KeepAlive Off", "KeepAlive On")
    });
    let script = apache.folder.join("htdocs/perl/wait.pl");
    fs::write(&script, "select(undef, undef, undef, 0.2);\nprint \"Content-Type: text/plain\\n\\nok\\n\";\n")
        .expect("written");
    Command::new("chmod").arg("755").arg(&script).status().expect("chmod");
    wait_until("the script", || get(apache.port, "/perl/wait.pl").is_some_and(|b| b.contains("ok")));
    let before = apache.tree();
    let plan = folder.join("plan.toml");
    let write = |url: &str, users: u32, duration: &str, settings: &str| {
        let head = format!(
            "server = '{}'\nurl = '{}'\nusers = {users}\nduration = '{duration}'",
            apache.name(),
            apache.url(url)
        );
        fs::write(&plan, format!("{head}\nkeepalive = 'off'\n[settings]\n{settings}")).expect("written");
    };
    let path = plan.display().to_string();

    // Waiting requests need no CPU: as many run at once as there are interpreters. One can answer 5 requests/s, however busy the machine is.
    write("/perl/wait.pl", 6, "2s", "PerlInterpMax = [1, 4]\nPerlInterpMaxSpare = 4\nThreadLimit = 70\n");
    let done = folder.json(&["sweep", &path, "--quiet"], 0);
    let rps = |max: u64| {
        let row = done["rows"].as_array().expect("rows").iter().find(|r| r["settings"]["PerlInterpMax"] == max);
        number(&row.expect("a row")["rps"])
    };
    assert!(rps(4) > 5.5 && rps(1) < 5.5, "{done:#}");

    write("/", 1, "5s", "AsyncRequestWorkerFactor = [1, 4]\n");
    let args = ["sweep", path.as_str(), "--live", "--quiet"];
    let mut sweep = folder.lastdrop(&args).stdout(Stdio::null()).spawn().expect("runs");
    let factor = || {
        let lines = apache.masters().into_iter().next()?;
        let file = lines.split('\0').skip_while(|w| *w != "-f").nth(1).map(str::to_string)?;
        let text = fs::read_to_string(file).ok()?;
        text.lines().find_map(|l| l.strip_prefix("AsyncRequestWorkerFactor ")).map(str::to_string)
    };
    let mut most = BTreeMap::new();
    while sweep.try_wait().expect("waited for").is_none() {
        let now = factor();
        let kept = kept_connections(apache.port);
        if let (Some(now), true) = (now.clone(), now == factor()) {
            let so_far = most.entry(now).or_insert(0);
            *so_far = kept.max(*so_far);
        }
        thread::sleep(Duration::from_millis(100));
    }
    // Eight threads: 8 + 1 × 8 connections, or 8 + 4 × 8.
    let kept = |factor: &str| most.get(factor).copied().unwrap_or(0);
    assert!((8..=17).contains(&kept("1")) && kept("4") >= 25, "{most:?}");
    wait_until("the server as it was", || apache.tree() == before && get(apache.port, "/").is_some());
}

#[test]
fn what_cannot_be_tuned_says_why_and_changes_nothing() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, |text| text.replace("SetHandler server-status", "Require all granted"));
    let (name, url) = (apache.name(), apache.url(HEAVY));

    // Without a status page the sizes are there, and a note says what is missing.
    let size = folder.json(&["size", &name], 0);
    assert!(size["notes"].to_string().contains("no status page at"), "{size}");
    assert_eq!(size["effective"]["MaxRequestWorkers"], 50);

    let done = folder.run(&["tune", "apache:/no/such/apache2.conf", "--url", &url]);
    assert!(done.code == 1 && done.stderr.contains("/no/such/apache2.conf"), "{done:?}");
    let other = folder.join("other.conf");
    fs::write(&other, "ServerName other\n").expect("written");
    let done = folder.run(&["size", &format!("apache:{}", other.display())]);
    assert!(done.code == 1 && done.stderr.contains("-k start"), "{done:?}");
    let done = folder.run(&["tune", &name, "--url", &format!("http://127.0.0.1:{}/", crate::common::free_port())]);
    assert!(done.code == 1 && done.stderr.contains("not healthy"), "{done:?}");

    // Settings that Apache would silently change are refused with its own message, and the server is not stopped.
    let before = apache.masters();
    let pid = || fs::read_to_string(folder.join("apache/logs/apache2.pid")).expect("a pid");
    let old_pid = pid();
    let plan = folder.join("clamped.toml");
    let text = format!(
        "server = '{name}'\nurl = '{url}'\nrequests = 10\n[settings]\nServerLimit = 10\nMaxRequestWorkers = 50\n"
    );
    fs::write(&plan, text).expect("written");
    let sweep = folder.json(&["sweep", plan.to_str().expect("text")], 1);
    let row = &sweep["rows"][0];
    assert!(row["note"].as_str().expect("text").contains("ServerLimit") && row["run"] == "", "{row}");
    assert!(row["note"].to_string().contains("AH00"), "{row}");
    assert_eq!((apache.masters(), pid()), (before, old_pid));

    // A configuration that was broken after the server started is noticed before anything is stopped.
    let good = fs::read_to_string(apache.config()).expect("there");
    fs::write(apache.config(), format!("{good}\nNoSuchDirective On\n")).expect("written");
    let before = apache.masters();
    let done = folder.run(&["tune", &name, "--url", &url, "-d", "200ms", "--warm-up", "100ms", "--quiet"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("NoSuchDirective"), "{done:?}");
    assert_eq!(apache.masters(), before);
    fs::write(apache.config(), good).expect("written");
    assert_eq!(folder.run(&["restore"]).code, 0);
}

#[test]
fn an_included_folder_takes_the_override() {
    let folder = Folder::new();
    let conf_d = folder.join("apache/conf.d");
    fs::create_dir_all(&conf_d).expect("made");
    let apache = Apache::start_with(&folder, |text| format!("{text}\nIncludeOptional {}/*.conf\n", conf_d.display()));
    let before = apache.masters();
    let out = folder.join("tune.json");
    let (name, url) = (apache.name(), apache.url(HEAVY));
    let mut args = vec!["tune", &name, "--url", &url, "-c", "20", "-d", "500ms", "--warm-up", "1500ms", "--quiet"];
    let json = out.to_str().expect("text").to_string();
    args.extend(["--json", &json, "--keep", "--trials", "4", "--range", "MaxConnectionsPerChild=1000..9000"]);
    // As many pairs as a busy machine needs to be sure; a quiet one is sure of such a difference after four.
    args.extend(["--only", "MaxConnectionsPerChild", "--blocks", "12"]);
    let done = folder.run(&args);
    assert_eq!(done.code, 0, "{done:?}");
    let tune: Value = serde_json::from_str(&fs::read_to_string(&out).expect("written")).expect("JSON");
    assert_eq!((&tune["verdict"], &tune["kept"]), (&"improved".into(), &true.into()), "{tune}");
    // If the baseline answered too few requests for a ratio, the text says so.
    match tune["winner"]["ratio"].as_f64() {
        Some(_) => assert!(number(&tune["winner"]["interval"][0]) > 1.0, "{tune}"),
        None => assert!(tune["because"].to_string().contains("too little to divide by"), "{tune}"),
    }
    assert!(tune["diff"].to_string().contains("-MaxConnectionsPerChild 10 "), "{}", tune["diff"]);
    let kept = fs::read_to_string(conf_d.join("zz-lastdrop.conf")).expect("kept there");
    let mut directives: Vec<String> = kept.lines().filter(|l| !l.starts_with('#')).map(str::to_string).collect();
    directives.sort();
    let settings = tune["winner"]["settings"].as_object().expect("settings");
    let mut expected: Vec<String> = settings
        .iter()
        .map(|(k, v)| format!("{k} {}", v.as_str().map_or_else(|| v.to_string(), str::to_string)))
        .collect();
    expected.sort();
    assert_eq!(directives, expected, "the winner's settings and nothing that other trials left");
    // The planted bad setting is ten requests per worker.
    assert!(kept.contains("MaxConnectionsPerChild ") && !kept.contains("MaxConnectionsPerChild 10\n"), "{kept}");
    assert_eq!(apache.masters(), before, "the command line is the server's own");
}

#[test]
fn a_server_in_use_is_reloaded_and_no_visitor_notices() {
    let folder = Folder::new();
    let conf_d = folder.join("apache/conf.d");
    fs::create_dir_all(&conf_d).expect("made");
    let apache = Apache::start_with(&folder, |text| {
        let text = text.replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0");
        format!("{text}\nIncludeOptional {}/*.conf\n", conf_d.display())
    });
    let pid_file = folder.join("apache/logs/apache2.pid");
    let before = (apache.tree(), fs::read_to_string(&pid_file).expect("a pid"));
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let visitor = {
        let (stop, port) = (stop.clone(), apache.port);
        thread::spawn(move || {
            let (mut visits, mut failures) = (0, 0);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                visits += 1;
                failures += u32::from(!crate::common::get(port, "/").is_some_and(|b| b.contains("hello")));
                thread::sleep(Duration::from_millis(20));
            }
            (visits, failures)
        })
    };
    let (name, url) = (apache.name(), apache.url(HEAVY));
    let plan = folder.join("plan.toml");
    let text = format!(
        "server = '{name}'\nurl = '{url}'\nusers = 4\nrequests = 20\n[settings]\nMaxRequestWorkers = [20, 30]\n"
    );
    fs::write(&plan, text).expect("written");
    let sweep = ["sweep", &plan.display().to_string(), "--quiet"];
    let refused = folder.run(&sweep);
    assert!(refused.code == 1 && refused.stderr.contains("--live"), "{refused:?}");
    let done = folder.json(&[&sweep[..], &["--live"]].concat(), 0);
    assert!(done["rows"].as_array().is_some_and(|rows| rows.iter().all(|r| r["answered"] == 20)), "{done:#}");
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let (visits, failures) = visitor.join().expect("ends");
    assert!(visits > 50 && failures == 0, "{failures} of {visits} visits failed");
    assert_eq!((apache.tree(), fs::read_to_string(&pid_file).expect("a pid")), before, "the same master all along");
}

#[test]
fn a_sweep_killed_at_any_step_is_undone_by_restore() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, Apache::without_perl);
    let before = (apache.tree(), apache.masters());
    assert_eq!(before.1.len(), 1, "{before:?}");
    let plan = folder.join("plan.toml");
    let (name, url) = (apache.name(), apache.url("/"));
    let settings = "MaxRequestWorkers = 20\nMaxConnectionsPerChild = 0";
    fs::write(&plan, format!("server = '{name}'\nurl = '{url}'\nusers = 2\nrequests = 4\n[settings]\n{settings}\n"))
        .expect("written");
    let plan = plan.display().to_string();
    let steps = end_at_each_step(&folder, &["sweep", &plan, "--live", "--quiet"], |moment| {
        assert_eq!((apache.tree(), apache.masters()), before, "{moment}");
        assert_eq!(apache.pool(), Some(50), "{moment}");
    });
    assert!(steps >= 12, "{steps}");
}

#[test]
fn the_shapes_of_the_tuning_table_come_back() {
    let _alone = alone();
    let folder = Folder::new();
    let apache = Apache::start(&folder);
    let plan = folder.join("plan.toml");
    // examples/tuning-table.toml with fewer requests, and without its rows about absolute numbers.
    let text = format!(
        "server = '{}'\nurl = '{}'\nusers = 50\nrequests = 1000\ntimeout = '30s'\nwarm_up = '2s'\n\
         [settings]\nMaxRequestWorkers = 50\nMaxConnectionsPerChild = 5000\n\
         [[series]]\nname = 'recycling'\nsettings.MaxConnectionsPerChild = [5000, 10]\n\
         [[series]]\nname = 'cgi or perl'\nurl = ['{}', '{}']\n",
        apache.name(),
        apache.url(HEAVY),
        apache.url("/cgi/light.pl"),
        apache.url("/perl/light.pl"),
    );
    fs::write(&plan, text).expect("written");
    let before = (apache.tree(), apache.masters());
    let sweep = folder.json(&["sweep", plan.to_str().expect("text")], 0);
    assert_eq!((apache.tree(), apache.masters()), before);
    let rows = sweep["rows"].as_array().expect("rows");
    let rps = |i: usize| rows[i]["rps"].as_f64().expect("a rate");
    for row in rows {
        assert_eq!((&row["answered"], &row["failed"]), (&1000.into(), &0.into()), "{row}");
    }
    assert_eq!((&rows[0]["warmed"], &rows[1]["warmed"]), (&"each".into(), &"2s".into()));
    assert!(rps(0) >= 1.5 * rps(1), "recycling every 10: {} against {}", rps(1), rps(0));
    assert!(rps(3) >= 1.5 * rps(2), "mod_cgi: {} against mod_perl {}", rps(2), rps(3));
}

/// The example in the manual is a valid plan and covers the table.
#[test]
fn the_example_plan_is_valid() {
    let folder = Folder::new();
    let example = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tuning-table.toml");
    let done = folder.run(&["sweep", example.to_str().expect("text"), "--quiet"]);
    // Without its server the command fails only when it looks for that.
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("mod_perl/run/apache2.conf"), "{done:?}");
}

#[test]
fn a_pool_that_still_grows_makes_a_run_doubtful() {
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, |t| t.replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0"));
    // A page occupies a worker for a fixed time, however fast the machine is.
    let script = "select undef, undef, undef, 0.2; print \"Content-Type: text/plain\\n\\nok\\n\";\n";
    fs::write(apache.folder.join("htdocs/perl/wait.pl"), script).expect("written");
    let url = apache.url("/perl/wait.pl");
    let rules = |args: &[&str]| -> Vec<String> {
        let mut all = vec!["run", url.as_str(), "-c", "12", "--timeout", "20s"];
        all.extend(args);
        let run = folder.json(&all, 0);
        let reasons = run["validity"]["reasons"].as_array().expect("a list").clone();
        assert!(run["pool"]["master"].is_number(), "{:#}", run["pool"]);
        reasons.iter().map(|r| r["rule"].as_str().expect("text").to_string()).collect()
    };
    // Five workers at first, and 12 users who need one each: Apache starts more, second by second.
    let cold = rules(&["-d", "4s"]);
    assert!(cold.contains(&"growing-pool".to_string()), "{cold:?}");
    let warm = rules(&["--warm-up", "6s", "-d", "4s"]);
    assert!(!warm.contains(&"growing-pool".to_string()), "{warm:?}");
}
