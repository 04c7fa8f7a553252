//! `run --fleet`: one run on several machines, with the server's counts. Lost agents, brokers and coordinators: `fleet_blows`.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::Stdio;

use crate::common::fleet::Fleet;
use crate::common::servers::{Daemon, nginx};
use crate::common::{Folder, Target, assert_sums, free_port, n, number, signal, wait_until};
use serde_json::Value;

/// A broker, agents with folders of their own, and an nginx that logs each request.
struct Scene {
    folder: Folder,
    _fleet: Fleet,
    _server: Daemon,
    url: String,
}

impl Scene {
    fn new(agents: &[(&str, &[&str])]) -> Scene {
        let folder = Folder::new();
        let port = free_port();
        let log = folder.join("access.log");
        let lines = format!(
            "server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000;\n\
             location / {{ return 200 ok; }}\n location /counted {{ access_log {}; return 200 ok; }}\n\
             location /away {{ return 302 http://$arg_to/; }} }}",
            log.display()
        );
        let server = nginx(&folder, &lines, port);
        let fleet = Fleet::start(&folder, agents);
        Scene { folder, _fleet: fleet, _server: server, url: format!("http://127.0.0.1:{port}") }
    }

    /// Lines of the server's log; nginx writes one when a request has ended.
    fn logged(&self) -> u64 {
        fs::read_to_string(self.folder.join("access.log")).unwrap_or_default().lines().count() as u64
    }

    fn counted(&self) -> String {
        format!("{}/counted", self.url)
    }
}

/// Requests of all phases of a document.
fn requests(run: &Value) -> &Value {
    &run["phases"][0]["requests"]
}

#[test]
fn a_fleet_sends_what_one_machine_would_and_counts_what_the_server_counts() {
    let scene = Scene::new(&[("a", &[]), ("b", &["--skew", "5000000"])]);
    let target = scene.counted();
    // Open loop with weights: the schedule equals that of one machine with the same seed.
    let options = ["-r", "400", "--arrivals", "poisson", "-d", "3s", "--seed", "7", "--drain", "2s"];
    let run = scene.folder.json(&[&["run", &target, "--fleet", "a*2,b"], &options[..]].concat(), 0);
    assert_sums(&run);
    let seen = scene.logged();
    assert_eq!((n(&requests(&run)["sent"]), n(&requests(&run)["answered"])), (seen, seen), "{}", requests(&run));
    let agents = run["agents"].as_array().expect("agents");
    let of = |i: usize| n(&agents[i]["requests"]["due"]);
    assert_eq!(of(0) + of(1), n(&requests(&run)["due"]));
    assert!(of(0).abs_diff(2 * of(1)) <= 2, "{agents:?}");
    assert!(agents.iter().all(|a| a["complete"] == true), "{agents:?}");
    let off = agents[1]["offset_us"].as_i64().expect("a number") - 5_000_000;
    assert!(off.unsigned_abs() <= n(&agents[1]["error_us"]) + 20_000, "{agents:?}");
    assert_eq!(n(&run["phases"][0]["latency_us"]["response"]["count"]), seen);
    assert_eq!(run["generator"]["threads"], 2);
    let alone = scene.folder.json(&[&["run", &target], &options[..]].concat(), 0);
    assert_eq!(n(&requests(&alone)["due"]), n(&requests(&run)["due"]), "one schedule");
    // The seconds of the fleet equal those of one machine, except that each agent reads its clock a moment later.
    let seconds = |run: &Value| -> Vec<u64> {
        run["phases"][0]["seconds"].as_array().expect("seconds").iter().map(|s| n(&s["answered"])).collect()
    };
    for (a, b) in seconds(&run).iter().zip(seconds(&alone)) {
        assert!(a.abs_diff(b) <= 80, "{:?} {:?}", seconds(&run), seconds(&alone));
    }
    // A closed loop with a number of requests and a data file: each row once.
    let before = scene.logged();
    let rows: String = (0..500).map(|i| format!("{i}\n")).collect();
    fs::write(scene.folder.join("rows.csv"), format!("row\n{rows}")).expect("written");
    let plan = format!(
        "users = 10\nrequests = 500\n[data]\nfile = \"rows.csv\"\n[[request]]\nurl = \"{target}?row={{{{row}}}}\"\n"
    );
    fs::write(scene.folder.join("plan.toml"), plan).expect("written");
    let file = scene.folder.join("plan.toml").display().to_string();
    let run = scene.folder.json(&["run", &file, "--fleet", "all"], 0);
    assert_eq!((n(&requests(&run)["answered"]), scene.logged() - before), (500, 500));
    let log = fs::read_to_string(scene.folder.join("access.log")).expect("the log");
    let mut seen: Vec<u32> = log
        .lines()
        .skip(before as usize)
        .map(|line| line.split("row=").nth(1).and_then(|l| l.split(' ').next()?.parse().ok()).expect("a row"))
        .collect();
    seen.sort_unstable();
    let answered = |i: usize| n(&run["agents"][i]["requests"]["answered"]);
    assert_eq!(answered(0) + answered(1), 500);
    // Equal agents have half of the users each, and all users make the same number of requests.
    assert_eq!((answered(0), answered(1)), (250, 250));
    assert_eq!(seen, (0..500).collect::<Vec<_>>());
    // The report of the stored run lists the agents.
    let text = scene.folder.run(&["show", "last"]).stdout;
    assert!(text.contains("agent a: 250 sent") && text.contains("agent b: 250 sent"), "{text}");
}

#[test]
fn what_an_agent_may_not_do_does_not_begin_and_a_stopped_run_is_whole() {
    let scene = Scene::new(&[("a", &["--max-rate", "100"]), ("b", &["--allow", "192.0.2.0/24"])]);
    let target = scene.counted();
    let refused = |args: &[&str], code: i32, words: &str| {
        let done = scene.folder.run(&[&["run", &target, "--no-store", "--fleet"], args].concat());
        assert!(done.code == code && done.stderr.contains(words), "{done:?}");
    };
    refused(&["b", "-d", "1s"], 1, "--allow");
    refused(&["a", "-r", "101", "-d", "1s"], 1, "--max-rate");
    refused(&["c", "-d", "1s"], 2, "no agent c in the fleet");
    refused(&["3", "-d", "1s"], 2, "3 agents are wanted");
    refused(&["a", "-d", "1s", "--log", "x.csv"], 2, "--log");
    refused(&["a", "-d", "1s", "--unix-socket", "/tmp/x"], 2, "Unix socket");
    assert_eq!(scene.logged(), 0);
    // Stopped by the user: the report contains everything that was sent.
    let args = ["run", &target, "--fleet", "a", "-r", "50", "-d", "60s", "--json", "-", "--quiet"];
    let child = scene.folder.lastdrop(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    wait_until("a second of load", || scene.logged() >= 60);
    signal(&child, libc::SIGINT);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    let run: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_sums(&run);
    assert_eq!(n(&requests(&run)["sent"]), scene.logged());
    assert!(number(&run["phases"][0]["duration_s"]) < 30.0);
    assert_eq!(run["agents"][0]["complete"], true);
}

#[test]
fn questions_of_several_runs_put_their_load_on_from_a_fleet_too() {
    let scene = Scene::new(&[("a", &[]), ("b", &[])]);
    let folder = &scene.folder;
    let target = Target::with_config(folder, "workers = 2\nservice = '10ms'\n");
    let (name, url) = (target.name(), target.url());
    let ask = |args: &[&str]| folder.json(&[args, &["--fleet", "a,b"]].concat(), 0);
    let of_fleet = |id: &str| {
        let run = folder.json(&["show", id], 0);
        let agents = run["agents"].as_array().expect("agents").iter().filter(|a| a["complete"] == true).count();
        assert_eq!(agents, 2, "{}", run["agents"]);
    };
    let compared = ask(&["compare", "--live", &url, "--aa", "--blocks", "4", "-d", "200ms", "-c", "2"]);
    let runs = |side: &str| compared[side]["runs"].as_array().expect("ids").clone();
    let all = [runs("a"), runs("b")].concat();
    assert!(all.len() >= 4, "{compared:#}");
    all.iter().for_each(|id| of_fleet(id.as_str().expect("an id")));
    let sweep = folder.join("sweep.toml");
    let rows = format!("server = '{name}'\nurl = '{url}'\nusers = 4\nrequests = 60\n[settings]\nworkers = [1, 3]\n");
    fs::write(&sweep, rows).expect("written");
    let swept = ask(&["sweep", sweep.to_str().expect("text")]);
    let answered: Vec<u64> = swept["rows"].as_array().expect("rows").iter().map(|r| n(&r["answered"])).collect();
    assert_eq!(answered, [60; 2], "{swept:#}");
    let tuned = ask(&["tune", &name, "--url", &url, "-c", "8", "-d", "300ms", "--trials", "2", "--time", "1ms"]);
    let trials = tuned["trials"].as_array().expect("trials");
    assert!(trials.iter().any(|t| t["role"] == "baseline" && t["valid"] == true), "{trials:#?}");
    // A tenth of what two workers can do.
    let search = ["--objective", "p99<2s,errors<1%", "--rate", "20", "--max-rate", "20", "--no-staircase", "-d", "1s"];
    let found = ask(&[&["capacity", &url], &search[..]].concat());
    assert_eq!(found["met"], true, "{found:#}");
    let steps = found["steps"].as_array().expect("steps");
    assert!(steps.iter().any(|s| s["ok"] == true) && number(&found["capacity_rps"]) >= 20.0, "{found:#}");
    // A comparison of stored runs needs no fleet.
    let refused = folder.run(&["compare", "1", "2", "--fleet", "all"]);
    assert!(refused.code == 2 && refused.stderr.contains("--live"), "{refused:?}");
}

#[test]
fn a_redirect_takes_no_agent_where_it_may_not_go() {
    let scene = Scene::new(&[("a", &["--allow", "127.0.0.1"])]);
    // It listens and would record any connection.
    let elsewhere = TcpListener::bind("127.0.0.2:0").expect("an address of this machine");
    elsewhere.set_nonblocking(true).expect("set");
    let address = elsewhere.local_addr().expect("its address");
    let go = |to: &str| {
        let url = format!("{}/away?to={to}", scene.url);
        scene.folder.json(&["run", &url, "--redirects", "2", "--fleet", "a", "-n", "20", "-c", "2"], 0)
    };
    let run = go(&address.to_string());
    assert_eq!(n(&run["phases"][0]["followed"]["elsewhere"]), 20, "{}", run["phases"][0]["followed"]);
    assert_eq!((n(&requests(&run)["sent"]), n(&requests(&run)["answered"])), (20, 20));
    // A redirect to an allowed host is followed.
    let run = go(&format!("127.0.0.1:{}", scene.url.rsplit(':').next().expect("a port")));
    assert_eq!(n(&run["phases"][0]["followed"]["redirects"]), 20, "{}", run["phases"][0]["followed"]);
    // A plan that names the host is refused before anything begins.
    let refused = scene.folder.run(&["run", &format!("http://{address}/"), "--fleet", "a", "-n", "1", "--no-store"]);
    assert!(refused.code == 1 && refused.stderr.contains("--allow"), "{refused:?}");
    assert!(elsewhere.accept().is_err_and(|e| e.kind() == ErrorKind::WouldBlock), "somebody came");
}
