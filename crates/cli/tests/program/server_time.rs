//! Server time and client time: planted times in front of a server, in it, behind it and on the link are found.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::link::{FAR, Link, NEAR};
use crate::common::servers::{Daemon, nginx};
use crate::common::{
    Apache, Folder, Namespace, Target, alone, answer, free_port, get, json_of, n, number, serve, signal, wait_until,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use regex::Regex;
use serde_json::Value;

fn main_phase(run: &Value) -> &Value {
    run["phases"].as_array().expect("phases").iter().find(|p| p["measured"] == true).expect("a measured one")
}

/// The faults of a measurement of planted times, in microseconds. Each part has to be right, within 5 % or 1 ms.
///
/// A busy machine adds time of its own: the requests' total beyond all planted times. No part may exceed its planted time by
/// more than that. A part may be shorter only if the load read a response late: then others had already waited as long.
fn wrong(latency: &Value, planted: &[(&str, f64)]) -> Option<String> {
    let seen = |part: &str, what: &str| latency[part][what].as_f64();
    let of_service = |part: &str| ["connect", "link", "queue", "server"].contains(&part);
    let all: f64 = planted.iter().filter(|(part, _)| of_service(part)).map(|(_, us)| us).sum();
    let took = ["mean", "p50"].into_iter().filter_map(|what| seen("service", what)).fold(0.0, f64::max);
    let (added, late) = ((took - all).max(0.0), seen("transfer", "p50").unwrap_or(0.0));
    let off = planted.iter().filter(|(part, us)| {
        let allowed = (0.05 * us).max(1000.0);
        !seen(part, "p50").is_some_and(|found| (us - allowed - late..=us + allowed + added).contains(&found))
    });
    let off: Vec<_> = off.map(|(part, us)| format!("{part}: {us} planted, {} seen", latency[*part]["p50"])).collect();
    (!off.is_empty()).then(|| format!("{} (the machine added {added}): {latency}", off.join("; ")))
}

/// Asserts that each planted part is found.
fn found(run: Value, planted: &[(&str, f64)]) -> Value {
    let wrong = wrong(&main_phase(&run)["latency_us"], planted);
    assert_eq!(wrong, None);
    run
}

/// A class of requests.
fn class<'a>(run: &'a Value, name: &str) -> &'a Value {
    let all = main_phase(run)["classes"].as_array().expect("classes");
    all.iter().find(|c| c["name"] == name).expect("the class")
}

#[test]
fn a_queue_before_a_server_and_its_own_time_are_found() {
    let _alone = alone();
    let folder = Folder::new();
    // One worker of 20 ms and three users: each user waits for two others.
    let target = Target::start(&folder, &["--workers", "1", "--service", "20ms", "--server-time"]);
    let args = ["run", &target.url(), "-c", "3", "-n", "150", "--keepalive", "off", "--server-time", "auto"];
    let planted = [("queue", 40_000.0), ("server", 20_000.0), ("link", 0.0), ("service", 60_000.0)];
    let run = found(folder.json(&args, 0), &planted);
    let p = main_phase(&run);
    for part in ["queue", "server", "link", "transfer"] {
        assert_eq!(n(&p["latency_us"][part]["count"]), 150, "{part}: {p}");
    }
    assert!(p["latency_us"]["upstream"].is_null(), "nobody said anything of a server behind: {p}");
    // Over time, too.
    let seconds = p["seconds"].as_array().expect("seconds");
    assert!(seconds.iter().any(|s| s["parts_us"]["queue"]["p50"].as_f64().is_some()), "{seconds:?}");
    let text = folder.run(&["show", "last"]).stdout;
    assert!(text.contains("of it upstream") && text.contains("all requests"), "{text}");
    // The queue is in the table of means, and in the table over time from the first second on.
    let over_time = text.split("second  ").nth(1).expect("a table over time");
    assert!(over_time.lines().nth(1).is_some_and(|l| l.trim_start().starts_with('0')), "{text}");
    let shown: Value = serde_json::from_str(&folder.run(&["show", "last", "--json"]).stdout).expect("JSON");
    assert_eq!(shown["phases"], run["phases"], "what is kept is what was measured");
    // With a single user there is no queue.
    let args = ["run", &target.url(), "-c", "1", "-n", "50", "--keepalive", "off", "--server-time", "auto"];
    found(folder.json(&args, 0), &[("queue", 0.0), ("server", 20_000.0)]);
    // Without --server-time the report has nothing of it.
    let plain = folder.json(&["run", &target.url(), "-n", "20"], 0);
    assert!(
        ["link", "queue", "server", "transfer"].iter().all(|part| main_phase(&plain)["latency_us"][*part].is_null())
    );
}

#[test]
fn the_delay_of_the_link_is_found_and_is_in_nothing_else() {
    let _alone = alone();
    let (folder, space) = (Folder::new(), Namespace::new());
    let Some(_link) = Link::start(&space, Duration::from_millis(5)) else {
        eprintln!("skipped: no link can be made here (/dev/net/tun)");
        return;
    };
    let port = free_port();
    let listen = format!("{NEAR}:{port}");
    let target = ["target", "--listen", &listen, "--workers", "1", "--service", "20ms", "--server-time"];
    let _server = ServerInside(space.inside(&folder.lastdrop(&target)).stderr(Stdio::null()).spawn().expect("starts"));
    let url = format!("http://{FAR}:{port}/");
    let probe = ["run", &url, "-n", "1", "--quiet"];
    wait_until("the target", || space.inside(&folder.lastdrop(&probe)).output().is_ok_and(|o| o.status.success()));
    for (args, planted) in [
        (&["-c", "1", "-n", "60"][..], &[("link", 10_000.0), ("server", 20_000.0), ("queue", 0.0)][..]),
        (
            &["-c", "1", "-n", "30", "--keepalive", "off"],
            &[("link", 10_000.0), ("server", 20_000.0), ("connect", 10_000.0), ("queue", 0.0)],
        ),
        // A new connection each time: one round trip to connect, a second for the request.
        (
            &["-c", "5", "-n", "100", "--keepalive", "off"],
            // In each cycle of 100 ms, a user's own request takes 20 ms, and two round trips take 20 ms. The rest is the queue,
            // and as much less as the machine adds to the round trips.
            &[("link", 10_000.0), ("server", 20_000.0), ("connect", 10_000.0)],
        ),
    ] {
        let all = [&["run", &url][..], args, &["--server-time", "auto", "--json", "-"]].concat();
        let run = found(json_of(space.inside(&folder.lastdrop(&all))), planted);
        // The parts add up: the queue contains nothing of the link, and the link nothing of the queue.
        let p = main_phase(&run);
        let mean = |part: &str| number(&p["latency_us"][part]["mean"]);
        let connecting = if args.contains(&"off") { mean("connect") } else { 0.0 };
        let sum = connecting + mean("link") + mean("queue") + mean("server") + mean("transfer");
        let service = mean("service");
        assert!(sum - service <= (0.05 * service).max(1000.0), "nothing counts twice: {sum} of {service}");
        // What a busy machine adds on the way back is in no part. It is known where nobody waits for another.
        let added = if args.contains(&"5") { 0.3 * service } else { (service - 30_000.0 - connecting).max(0.0) };
        assert!(service - sum <= (0.05 * service).max(1000.0) + added, "{sum} of {service}");
        assert!(!args.contains(&"5") || mean("queue") >= 30_000.0, "four of five wait: {}", p["latency_us"]);
    }
}

/// A server that ends with the test.
struct ServerInside(Child);

impl Drop for ServerInside {
    fn drop(&mut self) {
        signal(&self.0, libc::SIGTERM);
        let _ = self.0.wait();
    }
}

#[test]
fn classes_have_their_own_server_time() {
    let _alone = alone();
    let folder = Folder::new();
    let start = |service| Target::start(&folder, &["--workers", "4", "--service", service, "--server-time"]);
    let (quick, slow) = (start("5ms"), start("30ms"));
    let plan = folder.join("two.toml");
    let text = format!(
        "server_time = \"auto\"\n[[request]]\nname = \"quick\"\nurl = \"{}\"\n[[request]]\nname = \"slow\"\nurl = \"{}\"\n",
        quick.url(),
        slow.url()
    );
    fs::write(&plan, text).expect("a plan");
    let args = ["run", &plan.to_string_lossy(), "-c", "2", "-n", "120", "-t", "2"];
    let run = folder.json(&args, 0);
    for (name, us) in [("quick", 5000.0), ("slow", 30_000.0)] {
        assert_eq!(wrong(&class(&run, name)["latency_us"], &[("server", us)]), None, "{name}");
    }
    let met = folder.run(&[&args[..], &["--objective", "slow.server.p50<1ms"]].concat());
    assert_eq!(met.code, 3, "{met:?}");
}

#[test]
fn a_real_apache_says_when_it_began_and_how_long_it_took() {
    let _alone = alone();
    let folder = Folder::new();
    let apache = Apache::start_with(&folder, |text| {
        text.replace(
            "LoadModule perl_module",
            "LoadModule headers_module @MODULES@/mod_headers.so\nLoadModule perl_module",
        )
        .replace("@MODULES@", "/usr/lib/apache2/modules")
        .replace("StartServers 5", "StartServers 1")
        .replace("MinSpareServers 5", "MinSpareServers 1")
        .replace("MaxSpareServers 10", "MaxSpareServers 1")
        .replace("MaxRequestWorkers 50", "MaxRequestWorkers 1")
        .replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0")
            + "Header always set X-Request-Received \"%t %D\"\n"
    });
    let script = apache.folder.join("htdocs/perl/wait.pl");
    fs::write(&script, "select(undef, undef, undef, 0.03); print \"Content-Type: text/plain\\n\\nok\\n\";\n")
        .expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, mode).expect("its mode");
    let url = apache.url("/perl/wait.pl");
    // Two users and one worker of 30 ms: each user waits for the other.
    let args = ["run", &url, "-c", "2", "-n", "60", "--keepalive", "off", "--server-time", "header:X-Request-Received"];
    let run = found(folder.json(&args, 0), &[("server", 30_000.0), ("queue", 30_000.0)]);
    assert_eq!(n(&main_phase(&run)["status"]["200"]), 60);
}

#[test]
fn what_a_proxy_waits_for_the_server_behind_is_upstream() {
    let _alone = alone();
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "4", "--service", "25ms"]);
    let port = free_port();
    let http = format!(
        "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{}/;
           add_header X-Upstream-Response-Time $upstream_header_time; add_header X-Request-Time $request_time; }} }}",
        target.port
    );
    let _nginx = nginx(&folder, &http, port);
    let url = format!("http://127.0.0.1:{port}/");
    let args = ["run", &url, "-c", "2", "-n", "60", "--server-time", "auto"];
    let run = found(folder.json(&args, 0), &[("server", 25_000.0), ("upstream", 25_000.0)]);
    assert!(main_phase(&run)["latency_us"]["queue"].is_null(), "nobody said when it began");
}

#[test]
fn a_server_that_says_nothing_is_told() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let done = folder.run(&["run", &target.url(), "-n", "20", "--server-time", "header:X-Nothing:ms"]);
    assert!(done.stdout.contains("no answer says it (header:X-Nothing:ms)"), "{done:?}");
    let wrong = folder.run(&["run", &target.url(), "--server-time", "X-Nothing"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("header:NAME"), "{}", wrong.stderr);
}

#[test]
fn a_server_whose_clock_is_another_is_measured_all_the_same() {
    let _alone = alone();
    let folder = Folder::new();
    let read = |reader: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        while reader.read_line(&mut line).ok().filter(|n| *n > 0)? > 2 {}
        Some(())
    };
    // Its clock is five seconds ahead; it takes 10 ms.
    let (address, _) = serve(read, |()| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() + 5_000_000;
        thread::sleep(Duration::from_millis(10));
        answer("200 OK", format!("X-Request-Received: t={now} D=10000\r\n"), "ok")
    });
    let url = format!("http://{address}/");
    let args = ["run", &url, "-c", "1", "-n", "60", "--server-time", "auto"];
    found(folder.json(&args, 0), &[("queue", 0.0), ("server", 10_000.0)]);
}

const NGINX_FIELDS: &str = "$remote_addr [$time_local] \"$request\" $status $body_bytes_sent $request_time \
                            $upstream_response_time \"$http_x_request_id\"";

/// The value of `--server-time` for a log with a format.
fn from_log(log: &Path, format: &str) -> String {
    format!("log:{},{format}", log.display())
}

fn lines_of(log: &Path) -> usize {
    fs::read_to_string(log).unwrap_or_default().lines().count()
}

#[test]
fn the_log_of_a_real_nginx_says_where_the_time_went() {
    let _alone = alone();
    let (folder, port) = (Folder::new(), free_port());
    let target = Target::start(&folder, &["--workers", "4", "--service", "25ms"]);
    let log = folder.join("access.log");
    let http = format!(
        "log_format timed '{NGINX_FIELDS}'; server {{ listen 127.0.0.1:{port}; access_log {} timed;
           location / {{ return 200 ok; }} location /slow {{ proxy_pass http://127.0.0.1:{}/; }} }}",
        log.display(),
        target.port
    );
    let _nginx = nginx(&folder, &http, port);
    let (plan, url) = (folder.join("two.toml"), format!("http://127.0.0.1:{port}/"));
    // The name of a log is relative to the plan's folder.
    let text = format!(
        "server_time = 'log:access.log,{NGINX_FIELDS}'\npick = \"order\"\n[[request]]\nname = \"quick\"\nurl = \"{url}\"\n\
         [[request]]\nname = \"slow\"\nurl = \"{url}slow\"\n"
    );
    fs::write(&plan, text).expect("a plan");
    let plan = plan.to_string_lossy();
    let run = folder.json(&["run", &plan, "-c", "2", "-n", "120", "-t", "2"], 0);
    let (p, joined) = (main_phase(&run), &run["joined_log"]);
    assert_eq!((n(&joined["joined"]), n(&joined["without_line"])), (120, 0), "{joined}");
    assert_eq!(n(&p["latency_us"]["server"]["count"]), 120);
    let (quick, slow) = (&class(&run, "quick")["latency_us"], &class(&run, "slow")["latency_us"]);
    assert!(quick["upstream"].is_null(), "nobody is behind it");
    let seconds = p["seconds"].as_array().expect("seconds");
    let timed: u64 = seconds.iter().filter_map(|s| s["parts_us"]["server"]["count"].as_u64()).sum();
    assert_eq!(timed, 120, "by second, too: {seconds:?}");
    // nginx counts milliseconds.
    assert_eq!(wrong(quick, &[("server", 0.0)]), None);
    assert_eq!(wrong(slow, &[("server", 25_000.0), ("upstream", 25_000.0)]), None);
    let shown: Value = serde_json::from_str(&folder.run(&["show", "last", "--json"]).stdout).expect("JSON");
    assert_eq!((&shown["phases"], &shown["joined_log"]), (&run["phases"], joined), "what is kept is the same");
    let text = folder.run(&["show", "last"]).stdout;
    assert!(text.contains("120 of 120 answers have their line") && text.contains("of it upstream"), "{text}");
    // Without --server-time requests are unchanged.
    let before = lines_of(&log);
    folder.json(&["run", &url, "-n", "5"], 0);
    wait_until("the last lines", || lines_of(&log) >= before + 5);
    assert!(fs::read_to_string(&log).expect("a log").trim_end().ends_with("\"-\""));
}

#[test]
fn the_log_of_a_real_apache_says_how_long_it_took() {
    let _alone = alone();
    let folder = Folder::new();
    let fields = r#"%h %l %u %t "%r" %>s %b %D %{X-Request-Id}i"#;
    let quoted = fields.replace('"', r#"\""#);
    let apache = Apache::start_with(&folder, |text| {
        let log = folder.join("apache/logs/timed.log");
        text + &format!("\nLogFormat \"{quoted}\" timed\nCustomLog {} timed\n", log.display())
    });
    let script = apache.folder.join("htdocs/perl/wait.pl");
    fs::write(&script, "select(undef, undef, undef, 0.03); print \"Content-Type: text/plain\\n\\nok\\n\";\n")
        .expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, mode).expect("its mode");
    let from = from_log(&apache.folder.join("logs/timed.log"), fields);
    let url = apache.url("/perl/wait.pl");
    for keepalive in ["on", "off"] {
        let args = ["run", &url, "-c", "2", "-n", "60", "--keepalive", keepalive, "--server-time", &from];
        let run = found(folder.json(&args, 0), &[("server", 30_000.0)]);
        assert_eq!(n(&run["joined_log"]["joined"]), 60, "{}", run["joined_log"]);
    }
}

#[test]
fn the_log_of_a_real_haproxy_says_how_long_requests_waited_there() {
    let _alone = alone();
    let (folder, port) = (Folder::new(), free_port());
    let target = Target::start(&folder, &["--workers", "4", "--service", "20ms"]);
    let (log, config) = (folder.join("haproxy.log"), folder.join("haproxy.cfg"));
    let text = format!(
        "global\n log stdout format raw local0\ndefaults\n mode http\n log global\n option httplog\n timeout connect 5s\n \
         timeout client 1m\n timeout server 1m\nfrontend front\n bind 127.0.0.1:{port}\n \
         capture request header X-Request-Id len 64\n default_backend back\nbackend back\n \
         server one 127.0.0.1:{} maxconn 1\n",
        target.port
    );
    fs::write(&config, text).expect("written");
    let mut command = Command::new("sh");
    command.args(["-c", "exec /usr/sbin/haproxy -db -f \"$0\" > \"$1\""]).arg(&config).arg(&log);
    let _haproxy = Daemon::start(command, "haproxy", |_| get(port, "/").is_some());
    // Three users and one slot: each user waits for two others.
    let url = format!("http://127.0.0.1:{port}/");
    let args = ["run", &url, "-c", "3", "-n", "150", "--server-time", &from_log(&log, "haproxy")];
    let planted = [("queue", 40_000.0), ("server", 20_000.0), ("upstream", 20_000.0), ("service", 60_000.0)];
    let run = found(folder.json(&args, 0), &planted);
    assert_eq!(n(&run["joined_log"]["joined"]), 150, "{}", run["joined_log"]);
}

#[test]
fn every_request_has_an_id_of_its_own_however_it_is_sent() {
    let (folder, port) = (Folder::new(), free_port());
    let log = folder.join("access.log");
    let http = format!(
        "log_format timed escape=json '{{\"time\":\"$time_iso8601\",\"request\":\"$request\",\"status\":$status,'
           '\"request_time\":$request_time,\"id\":\"$http_x_request_id\"}}';
         server {{ listen 127.0.0.1:{port}; access_log {} timed; location / {{ return 200 ok; }}
           location /moved {{ return 302 /; }} }}",
        log.display()
    );
    let _nginx = nginx(&folder, &http, port);
    wait_until("the line of the first request", || lines_of(&log) > 0);
    // JSON is recognised.
    let from = format!("log:{}", log.display());
    let mut answers = 0;
    for (path, more) in [
        ("/", &["-t", "2"][..]),
        ("/", &["--pipeline", "4"]),
        ("/", &["--cookies"]),
        ("/", &["-H", "X-User: {{user}}"]),
        ("/moved", &["--redirects", "2"]),
        ("/", &["--body", "some words", "--expect-continue"]),
        ("/", &["--body", "some words", "--chunked", "4"]),
        ("/", &["-r", "200"]),
    ] {
        let url = format!("http://127.0.0.1:{port}{path}");
        let users = if more[0] == "-r" { &[][..] } else { &["-c", "2"] };
        let args = [&["run", &url, "-n", "60", "--server-time", &from], users, more].concat();
        let run = folder.json(&args, 0);
        let (joined, answered) = (&run["joined_log"], n(&main_phase(&run)["requests"]["answered"]));
        assert!(answered >= 60 && joined["format"] == "json", "{more:?}: {joined}");
        assert_eq!((n(&joined["joined"]), n(&joined["without_line"])), (answered, 0), "{more:?}: {joined}");
        assert_eq!(n(&main_phase(&run)["latency_us"]["server"]["count"]), answered, "{more:?}");
        answers += answered as usize;
    }
    let text = fs::read_to_string(&log).expect("a log");
    let ids: HashSet<&str> = text.split('"').filter(|word| word.starts_with("lastdrop-")).collect();
    assert_eq!(ids.len(), answers);
}

#[test]
fn every_request_begins_a_trace_and_those_of_the_slowest_are_told() {
    let (folder, port, port2) = (Folder::new(), free_port(), free_port());
    let log = folder.join("access.log");
    let http = format!(
        "log_format traced '$http_traceparent $request_uri';
         server {{ listen 127.0.0.1:{port}; listen 127.0.0.1:{port2} http2; access_log {} traced; location / {{ return 200 ok; }}
           location /slow {{ limit_rate 300; return 200 '{}'; }} }}",
        log.display(),
        "slow".repeat(100)
    );
    let _nginx = nginx(&folder, &http, port);
    let plan = folder.join("plan.toml");
    let text = format!(
        "users = 2\nrequests = 60\n[http]\ntraceparent = true\n[[request]]\nurl = 'http://127.0.0.1:{port}/'\nweight = 8\n\
         [[request]]\nurl = 'http://127.0.0.1:{port}/slow'\n"
    );
    fs::write(&plan, text).expect("written");
    let plan = plan.display().to_string();
    let run = folder.json(&["run", &plan], 0);
    let slowest = main_phase(&run)["slowest"].as_array().expect("the slowest");
    let times: Vec<u64> = slowest.iter().map(|slow| n(&slow["response_us"])).collect();
    assert!(times.len() == 10 && times.is_sorted_by(|a, b| a >= b), "{slowest:#?}");
    assert!(slowest[0]["class"] == "GET /slow" && slowest[0]["status"] == 200, "{slowest:#?}");
    let mut of = BTreeMap::new();
    wait_until("sixty lines", || {
        let text = fs::read_to_string(&log).expect("a log");
        of = text.lines().filter_map(|l| l.split_once(' ')).map(|(t, url)| (t.to_string(), url.to_string())).collect();
        of.len() >= 61
    });
    let parent = Regex::new("^00-[0-9a-f]{32}-[0-9a-f]{16}-01$").expect("valid");
    let traced: Vec<&str> = of.keys().map(String::as_str).filter(|t| parent.is_match(t)).collect();
    assert_eq!(traced.len(), 60, "{of:#?}");
    let trace = slowest[0]["trace"].as_str().expect("an id");
    let found = of.iter().find(|(t, _)| t.split('-').nth(1) == Some(trace));
    assert_eq!(found.map(|(_, url)| url.as_str()), Some("/slow"), "{trace} in {of:#?}");
    let shown = folder.run(&["show", "last"]);
    assert!(shown.stdout.contains("slowest:\n") && shown.stdout.contains(trace), "{shown:?}");

    // A request that timed out is the slowest of all; over HTTP/2 it is as over HTTP/1.1.
    let url = format!("http://127.0.0.1:{port2}/slow");
    let args = ["run", &url, "--http", "2", "--traceparent", "--timeout", "200ms", "-n", "4", "-c", "2"];
    let run = folder.json(&args, 1);
    let slowest = main_phase(&run)["slowest"].as_array().expect("the slowest");
    assert!(slowest.len() == 4 && slowest.iter().all(|slow| slow["status"].is_null()), "{slowest:#?}");
    let twice = folder.run(&["run", &url, "--traceparent", "-H", "Traceparent: 00-1", "-n", "1"]);
    assert!(twice.code == 2 && twice.stderr.contains("traceparent of its own"), "{twice:?}");
    assert!(twice.stderr.contains("--traceparent"), "{twice:?}");
}

#[test]
fn a_log_is_followed_through_rotation_and_lines_of_others_are_left_out() {
    let (folder, port) = (Folder::new(), free_port());
    let log = folder.join("access.log");
    let http = format!(
        "log_format timed '{NGINX_FIELDS}'; server {{ listen 127.0.0.1:{port}; access_log {} timed; location / {{ return 200 ok; }} }}",
        log.display()
    );
    let daemon = nginx(&folder, &http, port);
    let (json, url) = (folder.join("run.json"), format!("http://127.0.0.1:{port}/"));
    let (json, from) = (json.to_string_lossy(), from_log(&log, NGINX_FIELDS));
    let args = ["run", &url, "-r", "100", "-d", "4s", "--server-time", &from, "--json", &json];
    wait_until("the line of the first request", || lines_of(&log) > 0);
    let before = lines_of(&log);
    let mut run = folder.lastdrop(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
    wait_until("some lines", || lines_of(&log) > before + 20);
    get(port, "/of-somebody-else").expect("an answer");
    fs::rename(&log, folder.join("access.log.1")).expect("renamed");
    kill(Pid::from_raw(daemon.pid()), Signal::SIGUSR1).expect("told");
    wait_until("lines in the new log", || lines_of(&log) > 20);
    run.wait().expect("it ends");
    let run: Value = serde_json::from_str(&fs::read_to_string(&*json).expect("a report")).expect("JSON");
    let (joined, answered) = (&run["joined_log"], n(&main_phase(&run)["requests"]["answered"]));
    assert_eq!((n(&joined["joined"]), n(&joined["without_line"])), (answered, 0), "{joined}");
    assert_eq!((n(&joined["others"]), n(&joined["rotations"]), n(&joined["unparsed"])), (1, 1, 0), "{joined}");
}

#[test]
fn a_log_that_cannot_be_joined_is_an_error_with_what_to_write() {
    let (folder, port) = (Folder::new(), free_port());
    let log = folder.join("access.log");
    let without = "$remote_addr [$time_local] \"$request\" $status $request_time -";
    let http = format!(
        "log_format timed '{without}'; server {{ listen 127.0.0.1:{port}; access_log {} timed; location / {{ return 200 ok; }} }}",
        log.display()
    );
    let _nginx = nginx(&folder, &http, port);
    let url = format!("http://127.0.0.1:{port}/");
    wait_until("the line of the first request", || lines_of(&log) > 0);
    let before = lines_of(&log);
    for (format, why) in [("combined", "no time that the server took"), (without, "no id of a request")] {
        let done = folder.run(&["run", &url, "-n", "20", "--server-time", &from_log(&log, format)]);
        assert!(done.code == 1 && done.stderr.contains(why), "{done:?}");
        for directive in ["%D %{X-Request-Id}i", "$request_time $upstream_response_time $http_x_request_id"] {
            assert!(done.stderr.contains(directive), "{done:?}");
        }
    }
    assert_eq!(lines_of(&log), before, "nothing was sent");
    // A field that the server leaves empty is noticed during the run, long before its end.
    let with = "$remote_addr [$time_local] \"$request\" $status $request_time $http_x_request_id";
    let done = folder.run(&["run", &url, "-r", "50", "-d", "10m", "--server-time", &from_log(&log, with)]);
    assert!(done.code == 1 && done.stderr.contains("has the X-Request-Id of its request"), "{done:?}");
    // A log without new lines.
    let empty = from_log(&folder.join("empty.log"), with);
    fs::write(folder.join("empty.log"), "").expect("a file");
    let done = folder.run(&["run", &url, "-n", "20", "--server-time", &empty]);
    assert!(done.code == 0 && done.stdout.contains("0 of 20 answers have their line"), "{done:?}");
    // Requests with ids of their own.
    let done = folder.run(&["run", &url, "-n", "1", "-H", "x-request-id: mine", "--server-time", &empty]);
    assert!(done.code == 2 && done.stderr.contains("X-Request-Id of its own"), "{done:?}");
}
