//! Input from users, their files and hostile servers: it takes effect as written, is bounded, or is refused.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{CommandOutput, Folder, Target, answer, free_port, n, serve};
use serde_json::Value;

/// A received request: head and body.
#[derive(Debug, Clone)]
struct ReceivedRequest {
    head: String,
    body: String,
}

impl ReceivedRequest {
    fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if reader.read_until(b'\n', &mut head).ok()? == 0 {
            return None;
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let lower = head.to_ascii_lowercase();
    if lower.contains("expect: 100-continue") {
        reader.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let mut body = Vec::new();
    if lower.contains("transfer-encoding: chunked") {
        while !body.ends_with(b"0\r\n\r\n") {
            reader.read_until(b'\n', &mut body).ok()?;
        }
    } else if let Some(length) = lower.split("content-length: ").nth(1) {
        body.resize(length.lines().next()?.trim().parse().ok()?, 0);
        reader.read_exact(&mut body).ok()?;
    }
    Some(ReceivedRequest { head, body: String::from_utf8_lossy(&body).into_owned() })
}

fn targets(seen: &Mutex<Vec<ReceivedRequest>>) -> Vec<String> {
    let mut all: Vec<String> = seen.lock().expect("nobody panicked").iter().map(|r| r.target().to_string()).collect();
    all.sort();
    all.dedup();
    all
}

fn main_phase(run: &Value) -> &Value {
    &run["phases"][0]
}

// ---- options, beside a plan and without one -------------------------------------------------------------------------

#[test]
fn options_about_how_requests_are_sent_act_beside_a_plan_file() {
    let (address, seen) = serve(read_request, |_| answer("200 OK", "Set-Cookie: a=b\r\n", "ok"));
    let folder = Folder::new();
    let plan = folder.join("plan.toml");
    let text =
        format!("url = 'http://{address}/'\nusers = 1\nrequests = 2\n[[request]]\nbody = 'hello'\nthink = '1ms'\n");
    fs::write(&plan, text).expect("written");
    let run = |args: &[&str]| {
        seen.lock().expect("nobody panicked").clear();
        let mut all = vec!["run", plan.to_str().expect("text")];
        all.extend(args);
        let run = folder.json(&all, 0);
        let last = seen.lock().expect("nobody panicked").last().expect("two requests").clone();
        (run, last)
    };
    let (_, plain) = run(&[]);
    assert!(plain.head.contains("HTTP/1.1\r\n") && plain.body == "hello", "{plain:?}");
    assert!(!plain.head.contains("Cookie") && !plain.head.contains("gzip"), "{plain:?}");
    let (_, old) = run(&["--http", "1.0"]);
    assert!(old.head.contains("HTTP/1.0\r\n"), "{old:?}");
    let (_, chunked) = run(&["--chunked", "2", "--cookies", "--compressed", "--expect-continue"]);
    assert_eq!(chunked.body, "2\r\nhe\r\n2\r\nll\r\n1\r\no\r\n0\r\n\r\n");
    for field in ["Cookie: a=b", "Accept-Encoding: gzip, br", "Expect: 100-continue"] {
        assert!(chunked.head.contains(field), "{field}: {chunked:?}");
    }
    let (decoded, _) = run(&["--decode", "--think", "2ms"]);
    assert_eq!((&decoded["plan"]["http"]["decode"], &decoded["plan"]["think"]), (&true.into(), &"2ms".into()));
    assert_eq!(decoded["plan"]["requests"][0]["think"], Value::Null, "the option goes before the file");
}

#[test]
fn arrivals_without_a_rate_are_refused() {
    let folder = Folder::new();
    for args in [["--arrivals", "poisson"], ["--burst", "5"]] {
        let done = folder.run(&["run", "http://127.0.0.1:9/", args[0], args[1], "-c", "2"]);
        assert!(done.code == 2 && done.stderr.contains("--rate"), "{done:?}");
    }
    let plan = folder.join("plan.toml");
    fs::write(&plan, "url = 'http://127.0.0.1:9/'\nusers = 2\nburst = 5\n").expect("written");
    let done = folder.run(&["run", plan.to_str().expect("text")]);
    assert!(done.code == 2 && done.stderr.contains("without a rate"), "{done:?}");
}

#[test]
fn connections_bound_a_closed_loop_too() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "8", "--service", "4ms"]);
    let url = target.url();
    let run = |args: &[&str]| {
        let mut all = vec!["run", &url, "-c", "20", "--connections", "4"];
        all.extend(args);
        let run = folder.json(&all, 0);
        let p = main_phase(&run).clone();
        let r = &p["requests"];
        assert_eq!(n(&r["due"]), n(&r["sent"]) + n(&r["unsent"]), "{p}");
        assert_eq!(n(&r["sent"]), n(&r["answered"]) + n(&r["censored"]), "{p}");
        assert!(n(&p["connections"]["peak"]) <= 4, "{p}");
        assert_eq!(n(&p["latency_us"]["blocked"]["count"]), n(&r["sent"]), "{p}");
        p
    };
    let kept = run(&["-n", "2000"]);
    assert_eq!((n(&kept["requests"]["answered"]), n(&kept["connections"]["opened"])), (2000, 4), "{kept}");
    // Sixteen wait while four are served, so each waits four service times.
    let latency = |kind: &str| kept["latency_us"][kind]["mean"].as_f64().expect("a number");
    let waited = latency("blocked") / latency("service");
    assert!((2.5..6.0).contains(&waited), "{}", kept["latency_us"]);
    assert!(latency("lateness") < latency("blocked") / 4.0, "{}", kept["latency_us"]);
    let timed = run(&["-d", "1s", "-t", "2", "--keepalive", "off"]);
    assert!(n(&timed["connections"]["opened"]) >= n(&timed["requests"]["answered"]), "{timed}");
    assert!((10..=16).contains(&n(&timed["requests"]["unsent"])), "who waits at the end is not sent: {timed}");
    let pausing = run(&["-n", "200", "--think", "1ms-5ms", "-t", "8"]);
    assert_eq!(n(&pausing["requests"]["answered"]), 200, "{pausing}");
}

#[test]
fn users_keep_their_cookies_and_pages_their_parts_over_shared_connections() {
    let (address, seen) = serve(read_request, |request| match request.target() {
        "/login" => answer("200 OK", format!("Set-Cookie: who={}\r\n", request.body), ""),
        "/page" => answer("200 OK", "", (0..10).map(|i| format!("<img src=i{i}>")).collect::<String>()),
        _ => answer("200 OK", "", "ok"),
    });
    let folder = Folder::new();
    let plan = folder.join("plan.toml");
    let text = format!(
        "url = 'http://{address}/'\nusers = 6\nconnections = 2\nrequests = 120\npick = 'session'\n\
         [[request]]\nurl = 'http://{address}/login'\nbody = '{{{{user}}}}'\n\
         [[request]]\nurl = 'http://{address}/is/{{{{user}}}}'\n"
    );
    fs::write(&plan, text).expect("written");
    let run = folder.json(&["run", plan.to_str().expect("text")], 0);
    assert_eq!((n(&main_phase(&run)["requests"]["answered"]), n(&main_phase(&run)["connections"]["opened"])), (120, 2));
    for request in seen.lock().expect("nobody panicked").iter().filter(|r| r.target().starts_with("/is/")) {
        let user = request.target().trim_start_matches("/is/");
        assert!(request.head.contains(&format!("Cookie: who={user}\r\n")), "{request:?}");
    }
    let url = format!("http://{address}/page");
    let run = folder.json(&["run", &url, "-n", "12", "-c", "4", "--connections", "3", "--page"], 0);
    let p = main_phase(&run);
    assert_eq!((n(&p["pages"]["loaded"]), n(&p["requests"]["answered"])), (12, 12 * 11), "{p}");
    assert!(
        n(&p["connections"]["peak"]) <= 3 && run["generator"]["busiest_thread_cores"].as_f64() < Some(0.9),
        "{run}"
    );
}

// ---- text that is sent ----------------------------------------------------------------------------------------------

#[test]
fn braces_are_sent_as_they_are() {
    let (address, seen) = serve(read_request, |_| answer("200 OK", "Connection: close\r\n", "ok"));
    let folder = Folder::new();
    let url = format!("http://{address}/{{{{x}}}}");
    let (port, log) = (address.rsplit(':').next().expect("a port"), folder.join("log"));
    fs::write(&log, "/{{x}} method=POST contents='{{y}}'\n").expect("written");
    fs::write(folder.join("urls"), format!("{url}\n")).expect("written");
    let (log, urls) = (format!("1,0,{}", log.display()), folder.join("urls").display().to_string());
    let lines: [&[&str]; 6] = [
        &["ab", "-n", "1", "-H", "X: {{z}}", &url],
        &["siege", "-c", "1", "-r", "1", "-H", "X: {{z}}", &url],
        &["wrk", "-c", "1", "-t", "1", "-d", "1", "-H", "X: {{z}}", &url],
        &["httperf", "--server", "127.0.0.1", "--port", port, "--wsesslog", &log, "--add-header", "X: {{z}}\\n"],
        &["http_load", "-parallel", "1", "-fetches", "1", &urls],
        &["lwp-bench", "-n", "1", "-A", "{{z}}", &url],
    ];
    for line in lines {
        seen.lock().expect("nobody panicked").clear();
        let done = Command::new(env!("CARGO_BIN_EXE_lastdrop")).args(line).env("HOME", folder.path()).output();
        let done = done.expect("the program runs");
        let all = seen.lock().expect("nobody panicked").clone();
        let one = all.first().unwrap_or_else(|| panic!("nothing came of {line:?}: {done:?}"));
        // siege encodes them, as all characters that are invalid in a URL.
        let target = if line[0] == "siege" { "/%7B%7Bx%7D%7D" } else { "/{{x}}" };
        assert_eq!(one.target(), target, "{line:?}");
        assert!(one.head.contains("{{z}}") || line[0] == "http_load", "{line:?}: {one:?}");
        assert!(one.body == if line[0] == "httperf" { "{{y}}" } else { "" }, "{line:?}: {one:?}");
    }
    // In our own requests, four braces stand for two.
    let own = format!("http://{address}/{{{{{{{{x}}}}?{{{{user}}}}");
    seen.lock().expect("nobody panicked").clear();
    folder.json(&["run", &own, "-n", "1", "-c", "1", "--body", "{{{{"], 0);
    let one = seen.lock().expect("nobody panicked")[0].clone();
    assert_eq!((one.target(), one.body.as_str()), ("/{{x}}?1", "{{"));
}

#[test]
fn a_column_goes_before_the_built_in_of_its_name() {
    let (address, seen) = serve(read_request, |_| answer("200 OK", "", "ok"));
    let folder = Folder::new();
    let data = folder.join("users.csv");
    fs::write(&data, "user,random,iteration\nann,a,b\n").expect("written");
    let url = format!("http://{address}/{{{{user}}}}-{{{{random}}}}-{{{{iteration}}}}");
    folder.json(&["run", &url, "-n", "3", "-c", "1", "--data", data.to_str().expect("text")], 0);
    assert_eq!(targets(&seen), ["/ann-a-b"]);
    fs::write(&data, "a,b,a\n1,2,3\n").expect("written");
    let done = folder.run(&["run", &url, "--data", data.to_str().expect("text")]);
    assert!(done.code == 2 && done.stderr.contains("two columns have the name 'a'"), "{done:?}");
}

// ---- what servers say -----------------------------------------------------------------------------------------------

#[test]
fn redirects_and_parts_of_pages_are_encoded_as_browsers_do() {
    const PAGE: &[u8] =
        b"<img src='a b<c>`.png'><img src=\"/x\xff?q=\xe4 'y'\"><img src='\\d\\e'><img src=//other.example/z>\
        <img src=http://[bad/><img src=data:image/png,x>";
    let (address, seen) = serve(read_request, |request| match request.target() {
        "/" => answer("302 Found", b"Location: /to here<\xe9>`\r\n", ""),
        "/away" => answer("302 Found", "Location: http://other.example/\r\n", ""),
        "/broken" => answer("302 Found", "Location: http://:x/\r\n", ""),
        "/page" => answer("200 OK", "Content-Type: text/html\r\n", PAGE),
        _ => answer("200 OK", "", "ok"),
    });
    let folder = Folder::new();
    let run = |path: &str, option: &[&str]| {
        let url = format!("http://{address}{path}");
        let mut args = vec!["run", &url, "-n", "1", "-c", "1"];
        args.extend(option);
        let run = folder.json(&args, 0);
        let followed = main_phase(&run)["followed"].clone();
        (
            run,
            [n(&followed["redirects"]), n(&followed["elsewhere"]), n(&followed["unusable"]), n(&followed["left_out"])],
        )
    };
    assert_eq!(run("/", &["--redirects", "2"]).1, [1, 0, 0, 0]);
    assert_eq!(targets(&seen), ["/", "/to%20here%3C%E9%3E%60"]);
    assert_eq!(run("/away", &["--redirects", "2"]).1, [0, 1, 0, 0]);
    assert_eq!(run("/broken", &["--redirects", "2"]).1, [0, 0, 1, 0]);
    seen.lock().expect("nobody panicked").clear();
    let (page, counts) = run("/page", &["--page"]);
    assert_eq!(targets(&seen), ["/a%20b%3Cc%3E%60.png", "/d/e", "/page", "/x%FF?q=%E4%20%27y%27"]);
    assert_eq!((counts, n(&main_phase(&page)["requests"]["answered"])), ([0, 1, 1, 0], 4));
    let text = folder.run(&["show", "last"]).stdout;
    assert!(text.contains("1 on hosts that the plan does not name, 1 no URL that can be loaded"), "{text}");
}

#[test]
fn a_redirect_beyond_the_limit_is_counted() {
    let (address, _) = serve(read_request, |_| answer("302 Found", "Location: /again\r\n", ""));
    let folder = Folder::new();
    let run = folder.json(&["run", &format!("http://{address}/"), "-n", "2", "-c", "1", "--redirects", "3"], 0);
    let followed = &main_phase(&run)["followed"];
    assert_eq!((n(&followed["redirects"]), n(&followed["left_out"])), (6, 2), "{followed}");
}

#[test]
fn a_hostile_page_costs_little_time_and_memory_and_what_is_left_out_is_told() {
    let folder = Folder::new();
    let base = format!("<base href='/{}'>", "d/".repeat(4000));
    let many: String = (0..350_000).map(|i| format!("<img src={i}>")).collect();
    fs::write(folder.join("many"), format!("{base}{many}")).expect("written");
    // A few kilobytes that become four megabytes of NULs.
    let made = Command::new("sh")
        .args(["-c", "head -c 4000000 /dev/zero | gzip -9 > nul.gz"])
        .current_dir(folder.path())
        .status()
        .expect("sh and gzip run");
    assert!(made.success());
    let (many, nul) = (fs::read(folder.join("many")).expect("there"), fs::read(folder.join("nul.gz")).expect("there"));
    let (address, _) = serve(read_request, move |request| match request.target() {
        "/many" => answer("200 OK", "", &many),
        "/nul" => answer("200 OK", "Content-Encoding: gzip\r\n", &nul),
        _ => answer("200 OK", "", "ok"),
    });
    for path in ["many", "nul"] {
        let url = format!("http://{address}/{path}");
        let run = folder.json(&["run", &url, "-n", "4", "-c", "2", "--page", "--timeout", "30s"], 0);
        let p = main_phase(&run);
        assert!(n(&p["followed"]["left_out"]) >= 4, "{path}: {}", p["followed"]);
        let parts = n(&p["requests"]["answered"]);
        // A megabyte of URLs, each of them 8 KB.
        assert!(if path == "many" { (4 * 130..=4 * 133).contains(&parts) } else { parts == 4 }, "{path}: {parts}");
        assert!(n(&run["generator"]["peak_rss_bytes"]) < 80 << 20, "{path}: {}", run["generator"]);
        // One of them once took 21 s.
        assert!(run["generator"]["cpu_s"].as_f64().expect("a number") < 5.0, "{path}: {}", run["generator"]);
    }
}

#[test]
fn what_must_not_be_cached_is_fetched_again() {
    let (address, seen) = serve(read_request, |request| match request.target() {
        "/" => answer("200 OK", "", "<img src=kept><img src=fresh>"),
        "/fresh" => answer("200 OK", "Cache-Control: no-store\r\n", "x"),
        _ => answer("200 OK", "", "x"),
    });
    Folder::new().json(&["run", &format!("http://{address}/"), "-n", "3", "-c", "1", "--page", "--page-cache"], 0);
    let seen = seen.lock().expect("nobody panicked");
    let times = |path: &str| seen.iter().filter(|r| r.target() == path).count();
    assert_eq!((times("/"), times("/kept"), times("/fresh")), (3, 1, 3));
}

// ---- large and hostile files ----------------------------------------------------------------------------------------

#[test]
fn thousands_of_phases_cost_no_memory_until_they_are_there() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let plan = folder.join("plan.toml");
    let phases: String = (0..2000).map(|_| "[[phase]]\nrate = 1000\nduration = '1ms'\n").collect();
    fs::write(&plan, format!("url = '{}'\n{phases}", target.url())).expect("written");
    let run = folder.json(&["run", plan.to_str().expect("text")], 0);
    assert_eq!(run["phases"].as_array().expect("phases").len(), 2000);
    // It once took 3 GB. On a busy machine thousands of phases have requests in flight at once (0.53 GB was seen).
    assert!(n(&run["generator"]["peak_rss_bytes"]) < 1 << 30, "{}", run["generator"]);
    fs::write(&plan, format!("url = '{}'\n{}", target.url(), phases.repeat(6))).expect("written");
    let done = folder.run(&["run", plan.to_str().expect("text")]);
    assert!(done.code == 2 && done.stderr.contains("phases must be a whole number from 1 to 10000"), "{done:?}");
}

#[test]
fn thousands_of_requests_are_read_in_a_moment_and_kept_once() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let plan = folder.join("plan.toml");
    let requests: String = (0..50_000).map(|i| format!("[[request]]\nurl = '{}{i}'\n", target.url())).collect();
    fs::write(&plan, format!("users = 1\nrequests = 10\n{requests}")).expect("written");
    let plan = plan.to_str().expect("text");
    let size = || {
        let names = ["runs.sqlite", "runs.sqlite-wal"].map(|name| fs::metadata(folder.join(name)));
        names.into_iter().flatten().map(|m| m.len()).sum::<u64>()
    };
    let small = Instant::now();
    assert_eq!(folder.run(&["run", &target.url(), "-n", "10", "-c", "1"]).code, 0);
    let small = small.elapsed();
    let large = Instant::now();
    assert_eq!(folder.run(&["run", plan]).code, 0);
    let large = large.elapsed();
    // It takes some 2 s longer than the other on a busy machine. When the place of each was found by counting lines from the
    // beginning of the file, 100,000 took 8 s, and twice as many four times as long.
    assert!(large < small + Duration::from_secs(20), "{large:?}, beside {small:?}");
    let before = size();
    assert_eq!(folder.run(&["run", plan]).code, 0);
    let after = size();
    assert!(after < before + 1_000_000, "{before} and then {after} bytes");
    let shown: Value = serde_json::from_str(&folder.run(&["show", "last", "--json"]).stdout).expect("JSON");
    assert_eq!(shown["plan"]["requests"].as_array().expect("a list").len(), 50_000);
}

#[test]
fn files_without_an_end_and_variables_that_double_are_refused() {
    let folder = Folder::new();
    let urls = folder.join("urls");
    let bomb: String = (1..64).map(|i| format!("V{i} = $(V{0})$(V{0})\n", i - 1)).collect();
    for (text, words) in [
        ("http://127.0.0.1:9/ POST </dev/zero\n".to_string(), "no regular file"),
        (format!("V0 = 0123456789\n{bomb}http://127.0.0.1:9/$(V63)\n"), "64 KB"),
    ] {
        fs::write(&urls, text).expect("written");
        let path = urls.to_str().expect("text");
        for args in [["run", "-f", path], ["siege", "-f", path]] {
            let done = Command::new(env!("CARGO_BIN_EXE_lastdrop")).args(args).env("HOME", folder.path()).output();
            let done = done.expect("the program runs");
            let stderr = String::from_utf8_lossy(&done.stderr);
            assert!(matches!(done.status.code(), Some(1 | 2)) && stderr.contains(words), "{args:?}: {stderr}");
        }
    }
    for args in [["--body", "@/dev/zero"], ["--data", "/dev/zero"], ["--ca", "/dev/zero"]] {
        let done = folder.run(&["run", "https://127.0.0.1:9/", args[0], args[1]]);
        assert!(done.code == 2 && done.stderr.contains("no regular file"), "{done:?}");
    }
    let done = folder.run(&["run", "-f", "/dev/zero"]);
    assert!(done.code != 0 && done.stderr.contains("no regular file"), "{done:?}");
}

// ---- words in reports -----------------------------------------------------------------------------------------------

#[test]
fn phases_of_the_same_name_each_show_their_own_load() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let plan = folder.join("plan.toml");
    let text = "[[phase]]\nname = 'p'\nusers = 3\nduration = '100ms'\n[[phase]]\nname = 'p'\nusers = 5\nduration = '100ms'\n\
                [[phase]]\nname = 'p'\nrate = 50\narrivals = 'jitter 10%'\nduration = '100ms'\n";
    fs::write(&plan, format!("url = '{}'\n{text}", target.url())).expect("written");
    let done = folder.run(&["run", plan.to_str().expect("text")]);
    for words in ["p: 3 users", "p: 5 users", "p: 50 requests/s, jitter 10%, over at most 256"] {
        assert!(done.stdout.contains(words), "{words}: {done:?}");
    }
}

#[test]
fn siege_says_why_a_connection_failed() {
    // It accepts connections but does not speak TLS.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1000]).and_then(|_| stream.write_all(b"HTTP/1.1 400 No\r\n\r\n"));
        }
    });
    let folder = Folder::new();
    let siege = |url: String| {
        let args = ["siege", "-c", "1", "-r", "1", &url];
        let done = Command::new(env!("CARGO_BIN_EXE_lastdrop")).args(args).env("HOME", folder.path()).output();
        String::from_utf8_lossy(&done.expect("the program runs").stderr).into_owned()
    };
    let refused = siege(format!("http://127.0.0.1:{}/", free_port()));
    assert!(refused.contains("unable to connect sock.c:282: Connection refused"), "{refused}");
    let other = siege(format!("https://{address}/"));
    assert!(other.contains("unable to connect sock.c:282: TLS") && !other.contains("refused"), "{other}");
}

// ---- files without an end -------------------------------------------------------------------------------------------

#[test]
fn pipes_devices_and_sockets_are_refused_where_a_file_is_wanted() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let url = target.url();
    let pipe = folder.join("pipe.toml").display().to_string();
    let socket = folder.join("socket.toml").display().to_string();
    nix::unistd::mkfifo(pipe.as_str(), nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("made");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).expect("made");
    let plan = folder.join("plan.toml").display().to_string();
    let mut running = Vec::new();
    for name in [pipe.as_str(), &socket, "/dev/zero", "/"] {
        let (custom, log) = (format!("custom:{name}"), format!("log:{name}"));
        for args in [
            &["watch", &custom, "--once"][..],
            &["knobs", &custom],
            &["run", name],
            &["replay", name, "--to", &url],
            &["import", name, "-o", &plan],
            &["run", &url, "-n", "5", "--server-time", &log],
            &["watch", "--replay", name],
            &["run", "-n", "1", "--urls", name],
            &["fleet", "status", "--nats", "tls://127.0.0.1:1", "--token-file", name],
        ] {
            let args: Vec<String> = args.iter().map(ToString::to_string).collect();
            let words: Vec<&str> = args.iter().map(String::as_str).collect();
            let mut command = folder.lastdrop(&words);
            let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn();
            running.push((args, child.expect("runs")));
        }
    }
    // Each is reported within seconds; a named pipe waits some seconds for its writer.
    let deadline = Instant::now() + Duration::from_secs(30);
    for (args, mut child) in running {
        while child.try_wait().expect("a child").is_none() {
            if Instant::now() > deadline {
                let _ = child.kill();
                panic!("it hangs: {args:?}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        let done = CommandOutput::of(child.wait_with_output().expect("ended"), &words);
        assert!(done.code != 0 && !done.stderr.is_empty() && !done.stderr.contains("panicked"), "{done:?}");
    }
}

#[test]
fn a_log_comes_through_a_pipe_of_the_shell_or_a_named_one() {
    let folder = Folder::new();
    let log = folder.join("access.log");
    let line = |n: u32| format!("h - - [10/Oct/2000:13:00:0{n} +0000] \"GET /{n} HTTP/1.1\" 200 5\n");
    fs::write(&log, (0..3).map(line).collect::<String>()).expect("written");
    let pipe = folder.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).expect("made");
    let lastdrop = format!("{} replay", env!("CARGO_BIN_EXE_lastdrop"));
    let (log, pipe) = (log.display(), pipe.display());
    let rest = "--analyse --json - 2>/dev/null";
    for script in [
        format!("{lastdrop} <(cat {log}) {rest}"),
        format!("{lastdrop} /dev/stdin {rest} < {log}"),
        format!("cat {log} | {lastdrop} /dev/stdin {rest}"),
        format!("cat {log} | {lastdrop} - {rest}"),
        format!("{{ sleep 0.3; cat {log}; }} > {pipe} & {lastdrop} {pipe} {rest}"),
    ] {
        let output = Command::new("bash").args(["-c", &script]).output().expect("bash runs");
        let document: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{script}: {e}: {}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(n(&document["requests"]), 3, "{script}");
    }
}
