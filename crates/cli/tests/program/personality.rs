//! Personalities compared with their originals on the same server: the same lines in the same order, with the same labels, units
//! and number formats, and the same counts, exit codes and files. `./x test` installs the originals.

use std::fs;
use std::ops::Deref;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::originals::{OriginalAndOwn, fields, shape};
use crate::common::{Folder, Target, free_port, get, signal, wait_until};
use regex::Regex;

/// An nginx, and two working folders.
struct Server {
    beside: OriginalAndOwn,
    port: u16,
}

/// A page that nginx delays, so that a client that asks as fast as it can takes no processor.
const SLOW: &str = "location = /slow { limit_req zone=z burst=1000; }";
const SIEGE_TEXT: &str =
    "verbose = true\nquiet = false\njson_output = false\ncolor = off\nbenchmark = true\nparser = true\n";

impl Server {
    fn start() -> Server {
        let (folder, port, tls) = (Folder::new(), free_port(), free_port());
        let dir = folder.path().display().to_string();
        let key = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout"])
            .args([format!("{dir}/k.pem"), "-out".into(), format!("{dir}/c.pem")])
            .stderr(Stdio::null())
            .status();
        assert!(key.expect("openssl (./x test installs it)").success());
        let text = format!(
            "worker_processes 1;\npid {dir}/nginx.pid;\nerror_log {dir}/error.log;\nevents {{ worker_connections 4096; }}\n\
             http {{\n split_clients $request_id $body {{ 50% a; * bbb; }}\n limit_req_zone $server_name zone=z:64k rate=100r/s;\n access_log off;\n keepalive_requests 1000000;\n server {{\n  listen 127.0.0.1:{port};\n  listen [::1]:{port};\n  \
             root {dir}/www;\n  location /redir {{ return 302 /; }}\n  location = /text {{ return 200 \"hello\\n\"; }}\n  \
             location /err {{ return 500 \"bad\\n\"; }}\n  location /post {{ return 200 \"posted\\n\"; }}\n  \
             location /close {{ return 444; }}\n  location /vary {{ return 200 $body; }}\n  {SLOW}\n }}\n server {{\n  listen 127.0.0.1:{tls} ssl;\n  ssl_certificate {dir}/c.pem;\n  \
             ssl_certificate_key {dir}/k.pem;\n  root {dir}/www;\n  {SLOW}\n }}\n}}\n"
        );
        fs::create_dir(folder.join("www")).expect("created");
        for page in ["index.html", "slow"] {
            fs::write(folder.join("www").join(page), "x".repeat(1000)).expect("written");
        }
        fs::write(folder.join("nginx.conf"), text).expect("written");
        let started = Command::new("/usr/sbin/nginx").arg("-c").arg(folder.join("nginx.conf")).output();
        let started = started.expect("nginx (./x test installs it)");
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        wait_until("nginx", || get(port, "/text").is_some());
        let url = format!("http://127.0.0.1:{port}");
        let words = vec![
            ("{U}", url.clone()),
            ("{6}", format!("http://[::1]:{port}")),
            ("{P}", port.to_string()),
            ("{T}", tls.to_string()),
            ("{H}", format!("--server 127.0.0.1 --port {port}")),
        ];
        let files = [
            ("post", "abc\n".to_string()),
            ("rc", SIEGE_TEXT.to_string()),
            ("rcq", SIEGE_TEXT.replace("verbose = true", "verbose = false")),
            ("rcc", SIEGE_TEXT.replace("off", "on")),
            ("rcsv", format!("{SIEGE_TEXT}csv = true\ntimestamp = true\nfullurl = true\n")),
            (
                "urls",
                format!(
                    "A=127.0.0.1:{port}\nhttp://$(A)/text\n# c\nhttp://$(A)/post POST a=b&c=d\n{url}/post POST <post\n"
                ),
            ),
            ("sess", "/ think=0.1\n  /text\n/err\n\n/text method=POST contents=\"a b\"\n".to_string()),
            ("wl", "/\0/text\0".to_string()),
        ];
        let files = files.into_iter().map(|(name, text)| (name, text.into_bytes())).collect();
        Server { beside: OriginalAndOwn::new(folder, words, files), port }
    }

    fn matrix(&self, lines: &str, equal: &[&str]) {
        assert!(lines.lines().count() >= 24);
        self.beside.matrix(lines, equal);
    }
}

impl Deref for Server {
    type Target = OriginalAndOwn;

    fn deref(&self) -> &OriginalAndOwn {
        &self.beside
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = fs::read_to_string(self.folder.join("nginx.pid")).unwrap_or_default();
        if let Ok(pid) = pid.trim().parse::<i32>() {
            // SAFETY: a plain call on the server that was started above.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
    }
}

#[test]
fn ab_is_ab() {
    let server = Server::start();
    server.matrix(
        "ab -n 5 -c 2 {U}/
         ab -n 200 -k -c 2 {U}/
         ab -n 200 -c 3 -q -S -d {U}/
         ab -w -n 10 {U}/
         ab -w -n 10 -k -x border=1 -y a=b -z c=d {U}/err
         ab -n 10 -e e.csv -g g.tsv {U}/
         ab -n 3 -C a=b -C c=d -H 'X-A: b' -A u:p {U}/text
         ab -n 3 -v 2 {U}/text
         ab -n 3 -v 3 {U}/err
         ab -n 2 -X 127.0.0.1:{P} {U}/
         ab -B 127.0.0.9 -n 2 {U}/
         ab -n 2 -p post -T text/x {U}/post
         ab -w -n 2 -u post {U}/post
         ab -n 3 {U}/close
         ab -n 3 -l {U}/
         ab -n 3 -i {U}/
         ab -n 10 {6}/
         ab -n 3 https://127.0.0.1:{T}/
         ab -n 3 https://localhost:{T}/
         ab -n 2 -I -k -f TLS1.2 https://localhost:{T}/
         ab -n 1 {U}/
         ab -n 20 -m DELETE {U}/
         ab -n 400 -c 10 -s 5 -b 4096 -r {U}/
         ab -n 5000 -c 50 {U}/
         ab -n 5000 -c 15 -k {U}/
         ab -n 1000 -c 500 {U}/text
         ab
         ab -h
         ab -V
         ab -Q {U}/
         ab -Q -n 5 {U}/
         ab -n
         ab -n x {U}/
         ab -c 5 -n 2 {U}/
         ab -c -1 {U}/
         ab -n 2 127.0.0.1:{P}
         ab -n 2 {U}/ extra
         ab -n 5 http://127.0.0.1:1/
         ab -n 2 -p /nonexistent {U}/
         ab -n 2 -i -p post {U}/
         ab -n 2 ftp://x/
         ab -n 2 -B xx {U}/",
        &[
            "Document Length",
            "Concurrency Level",
            "Complete requests",
            "Failed requests",
            "Non-2xx responses",
            "Keep-Alive requests",
            "Total transferred",
            "HTML transferred",
            "Total body sent",
            "Server Port",
        ],
    );
    server.compare("ab -t 1 -q {U}/", &["Document Length", "Failed requests"]);
}

#[test]
fn siege_is_siege() {
    let server = Server::start();
    server.matrix(
        "siege -c 2 -r 2 -b {U}/
         siege -c 1 -r 2 -b -j {U}/
         siege -g {U}/
         siege -c 1 -r 3 -b {U}/err
         siege -c 1 -r 1 -b http://127.0.0.1:1/
         siege -R rc -c 2 -r 2 -b {U}/
         siege -R rc -c 1 -r 1 -q {U}/
         siege -R rcq -c 200 -r 5 -b {U}/
         siege -R rcq -c 50 -r 4 -d 0.1 {U}/text
         siege -R rc -f urls -c 1 -r 3
         siege -R rc -f urls -c 1 -r once
         siege -R rc -c 1 -r 1 {U}/redir
         siege -R rc -c 1 -r 1 --no-follow {U}/redir
         ~siege -R rc -c 1 -r 2 {U}/missing
         siege -R rc -g {U}/
         siege -R rc -p {U}/text
         siege -R rc -c 1 -r 1 -j -v {U}/
         siege -R rc -c1 -r2 {U}/close
         siege -R rc -c1 -r1 http://127.0.0.1:1/
         siege -R rc -c1 -r 1 -lsiege.log -m mark {U}/
         siege -R rc -c2 -r1 127.0.0.1:{P}/text
         siege -R rc -c1 -r1 -H 'X: y' -A agent -T text/q {U}/
         siege -R rc -c 1 -r 1 -v https://127.0.0.1:{T}/
         siege -R rcc -c1 -r1 {U}/redir
         siege -R rcc -c1 -r1 {U}/err
         siege -R rcc -c1 -r1 '{U}/post POST a=b'
         siege -R rcsv -c1 -r1 {U}/
         siege -R rc -c 1 -r 1 -N {U}/
         siege -R rc -c 2 -r 3 -i -f urls -q
         siege -R rc --concurrent=1 --reps=2 --benchmark {U}/
         siege --foo -c 1 -r 1 {U}/
         siege
         siege -h
         siege -V
         siege -c 1
         siege -R rc -c 1 -r 1 -T
         siege -R rc -c1 -r1 -f /nonexistent
         siege -R /nonexistent -c1 -r1 {U}/",
        &[
            "Transactions",
            "Availability",
            "Successful transactions",
            "Failed transactions",
            "transactions",
            "availability",
            "successful_transactions",
            "failed_transactions",
        ],
    );
    for line in ["siege -R rcq -c 2 -t1S -b {U}/", "siege -j -c 2 --time=1S -b {U}/"] {
        server.compare(line, &["Availability", "Failed transactions"]);
    }
    let (original, own) = server.both("siege -R rc -c 1 -r 4 {U}/missing");
    let availability = |o: &Output| fields(&String::from_utf8_lossy(&o.stderr))["Availability"][0].clone();
    assert_eq!((availability(&original).as_str(), availability(&own).as_str()), ("100.00", "0.00"), "a 404 is no page");
    // siege's own helper reads our report like siege's.
    let (original, own) = server.both("siege -R rc -c 3 -r 2 {U}/");
    let table = |output: &Output, name: &str| {
        let place = server.folder.join(name);
        fs::write(place.join("siege.out"), &output.stderr).expect("written");
        let done = Command::new("siege2csv").arg("siege.out").current_dir(&place).output().expect("siege2csv");
        let made = fs::read_dir(&place).expect("readable").filter_map(|e| Some(e.ok()?.path()));
        let made: Vec<String> = made
            .filter(|p| p.to_string_lossy().ends_with(".csv"))
            .map(|p| fs::read_to_string(p).expect("text"))
            .collect();
        (shape(&made.concat()), shape(&String::from_utf8_lossy(&done.stdout)))
    };
    let (theirs, ours) = (table(&original, "theirs"), table(&own, "ours"));
    assert_eq!(theirs, ours);
    assert!(theirs.0.iter().chain(&theirs.1).any(|l| l.contains('#')), "{theirs:?}");
}

#[test]
fn httperf_is_httperf() {
    let server = Server::start();
    server.matrix(
        "httperf {H} --num-conns 10
         httperf {H} --num-conns 10 --num-calls 5 --rate 100 --uri /index.html
         httperf {H} --hog --num-conns 530 --rate 500 --timeout 5 -v
         httperf {H} --wsess 5,3,0.1 --rate 10 --timeout 5
         httperf {H} --wsess 3,4,0.1 --burst-length 2
         ~httperf {H} --wsesslog 4,0.1,sess --rate 5
         ~httperf {H} --wlog y,wl --num-conns 6
         ~httperf {H} --wlog n,wl --num-conns 2
         ~httperf {H} --wset 3,0.5 --num-conns 4
         httperf {H} --num-conns 2 --print-reply=header --print-request=header
         httperf {H} --num-conns 1 --print-reply --uri /text
         httperf {H} --num-conns 4 --period e0.05
         httperf {H} --num-conns 4 --period u0.01,0.03
         httperf {H} --num-conns 4 --num-calls 6 --burst-length 3
         httperf {H} --num-conns 3 --method HEAD --add-header 'X-a: b\\n' --http-version 1.0
         httperf {H} --num-conns 3 --server-name foo --timeout 2.5 --think-timeout 1
         httperf {H} --num-conns 3 --uri /err --num-calls 2
         httperf {H} --num-conns 3 --uri /close --num-calls 2
         httperf {H} --session-cookies --wsess 2,2,0
         httperf {H} --num-conns 5 --rate 20 --client 0/2 --send-buffer 8192 --recv-buffer 8192
         httperf {H} --rat 5
         httperf {H} extra
         httperf --ssl --server 127.0.0.1 --port {T} --num-conns 3
         httperf --ssl --ssl-no-reuse --server 127.0.0.1 --port {T} --num-conns 3
         httperf --server 127.0.0.1 --port 1 --num-conns 3
         httperf --server nohost.invalid
         httperf -h
         httperf --foo
         httperf --num-conns
         httperf --num
         httperf {H} --num-conns x
         httperf {H} --num-conns 2 --period x1
         httperf --wsess 1,2",
        &[
            "Connection length [replies/conn]",
            "Request size [B]",
            "Reply size [B]",
            "Reply status",
            "Session",
            "Session length histogram",
        ],
    );
    // Without a Host the original ends its head with an extra empty line.
    server.compare("httperf {H} --num-conns 3 --no-host-hdr", &["Reply status"]);
    for line in ["httperf {H} --num-conns 7 --num-calls 3", "httperf {H} --num-conns 20 --rate 100"] {
        let (original, own) = server.both(line);
        let totals = |o: &Output| fields(&String::from_utf8_lossy(&o.stdout))["Total"][..3].to_vec();
        assert_eq!(totals(&original), totals(&own), "{line}");
    }
}

#[test]
fn wrk_is_wrk() {
    let server = Server::start();
    server.matrix(
        "wrk -t1 -c2 -d1s {U}/slow
         wrk -t2 -c4 -d1s --latency {U}/slow
         wrk -t1 -c1 -d1 {U}/err
         ~wrk -d1s -t1 -c1 --timeout 1 {U}/close
         wrk -t1 -c2 -d1s https://127.0.0.1:{T}/slow
         wrk --dur 1 --conn 2 --thr 1 -H 'X-A: b' -H 'Host: foo' {6}/slow
         wrk --version -d1 -c2 -t2 {U}
         wrk -t1 -c2 -d1s http://127.0.0.1:1/
         wrk
         wrk -h
         wrk -v
         wrk -c 1 -t 2 {U}/
         wrk -x {U}/
         wrk -d
         wrk -c x {U}/
         wrk -d 1x {U}/
         wrk -d1 -c1 -t1 ftp://x
         wrk -d1 http://nohost.invalid/
         wrk --foo {U}/
         wrk -H
         wrk -d0 {U}/
         wrk -t0 {U}/
         wrk -c2 -t1 -d1s 127.0.0.1:{P}
         wrk --latency",
        &[],
    );
    let (_, mut own) = server.commands("wrk -d1s -s post.lua {U}/");
    let script = own.output().expect("runs");
    let words = String::from_utf8_lossy(&script.stderr).into_owned();
    assert!(script.status.code() == Some(1) && words.contains("-s post.lua") && words.contains("plan"), "{words}");
    // wrk2's constant rate; Debian has no package of it.
    let place = server.place("ours");
    let rate = Command::new(env!("CARGO_BIN_EXE_lastdrop"))
        .args(server.words("wrk -t1 -c4 -d1s -R 100 --latency {U}/"))
        .current_dir(place)
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&rate.stdout).into_owned();
    // As many as are due, or fewer on a busy machine; without the rate it would be some thousands.
    let requests = text.split(" requests in 1.0").next().and_then(|t| t.split_whitespace().last()?.parse::<u32>().ok());
    assert!(requests.is_some_and(|n| (1..=100).contains(&n)) && text.contains("99.999%"), "{text}");
}

#[test]
fn rates_are_what_was_counted_in_the_time_and_no_more_than_the_server_allows() {
    let server = Server::start();
    // Four workers of 25 ms: at most 160 requests per second for any client, on any machine.
    let target = Target::start(&server.folder, &["--workers", "4", "--service", "25ms", "--keepalive", "false"]);
    let at = format!("http://127.0.0.1:{}/", target.port);
    for (line, count, seconds, rate, latency_ms) in [
        (
            format!("ab -n 60 -c 4 {at}"),
            r"Complete requests: +(\S+)",
            r"Time taken for tests: +(\S+)",
            r"Requests per second: +(\S+)",
            Some(r"Total: +\S+ +(\S+)"),
        ),
        (
            format!("siege -R rc -q -j -c 4 -r 15 {at}"),
            r#""transactions":\s+(\d+)"#,
            r#""elapsed_time":\s+([\d.]+)"#,
            r#""transaction_rate":\s+([\d.]+)"#,
            None,
        ),
        (
            format!("httperf --server 127.0.0.1 --port {} --num-conns 50 --rate 100", target.port),
            r"Total: connections (\d+)",
            r"test-duration (\S+)",
            r"Connection rate: (\S+)",
            Some(r"Reply time \[ms\]: response (\S+)"),
        ),
        (
            format!("wrk -t1 -c4 -d1s {at}"),
            r"(\d+) requests in",
            r"requests in ([\d.]+)s",
            r"Requests/sec: +(\S+)",
            None,
        ),
    ] {
        let (original, own) = server.both(&line);
        for output in [original, own] {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let number = |form: &str| {
                let found = Regex::new(form).expect("valid").captures(&text);
                found.and_then(|c| c[1].parse::<f64>().ok()).unwrap_or_else(|| panic!("{form} in {text}"))
            };
            let (rate, counted) = (number(rate), number(count) / number(seconds));
            // Seconds have two decimals.
            assert!((rate / counted - 1.0).abs() < 0.05, "{line}: {rate}, not {counted}: {text}");
            assert!(rate > 0.0 && rate < 162.0, "{line}: {rate}: {text}");
            assert!(latency_ms.is_none_or(|form| number(form) >= 25.0), "{line}: {text}");
        }
    }
}

#[test]
fn scripts_that_parse_reports_work_on_ours() {
    let server = Server::start();
    let place = server.place("ours");
    // Typical command lines of build jobs, with the program found by a link of its name.
    let bin = server.folder.join("bin");
    fs::create_dir(&bin).expect("created");
    for name in ["ab", "siege", "httperf", "wrk", "http_load", "lwp-bench"] {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_lastdrop"), bin.join(name)).expect("linked");
    }
    let url = format!("http://127.0.0.1:{}", server.port);
    fs::write(place.join("list"), format!("{url}/\n{url}/text\n")).expect("written");
    let shell = |script: &str| {
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        let done = Command::new("bash")
            .args(["-c", &script.replace("{U}", &url).replace("{P}", &server.port.to_string())])
            .env("PATH", path)
            .env("HOME", server.folder.join("home"))
            .current_dir(&place)
            .output()
            .expect("bash");
        let text = String::from_utf8_lossy(&done.stdout).trim().to_string();
        text.parse::<f64>().unwrap_or_else(|_| panic!("{script}: {text} {}", String::from_utf8_lossy(&done.stderr)))
    };
    let scripts: &[(&str, Option<f64>)] = &[
        ("ab -n 100 -c 5 {U}/ 2>/dev/null | grep 'Requests per second' | awk '{print $4}'", None),
        ("ab -q -n 100 -c 5 {U}/ 2>/dev/null | awk '/Failed requests:/ {print $3}'", Some(0.0)),
        ("ab -n 100 -c 5 {U}/ 2>/dev/null | sed -n 's/^Complete requests: *//p'", Some(100.0)),
        ("ab -n 100 -k {U}/ 2>/dev/null | awk '/^ *99%/ {print $2}'", None),
        ("ab -n 50 -e out.csv {U}/ >/dev/null 2>&1; tail -1 out.csv | cut -d, -f1", Some(100.0)),
        ("ab -n 50 -g out.tsv {U}/ >/dev/null 2>&1; awk -F'\\t' 'NR>1 {n++} END {print n}' out.tsv", Some(50.0)),
        (
            "siege -c 2 -r 5 -b -j {U}/ 2>/dev/null | tr -d ' \\t\\n{}\"' | tr , '\\n' | sed -n 's/^transactions://p'",
            Some(10.0),
        ),
        ("siege -R rc -c 2 -r 5 {U}/ 2>&1 >/dev/null | grep '^Availability' | awk '{print $2}'", Some(100.0)),
        ("siege -R rc -c 2 -r 5 {U}/ 2>&1 >/dev/null | awk '/Transaction rate/ {print $3}'", None),
        (
            "httperf --server 127.0.0.1 --port {P} --num-conns 20 --rate 100 2>/dev/null | sed -n 's/^Errors: total \\([0-9]*\\).*/\\1/p'",
            Some(0.0),
        ),
        (
            "httperf --server 127.0.0.1 --port {P} --num-conns 20 2>/dev/null | grep 'Connection rate' | awk '{print $3}'",
            None,
        ),
        ("wrk -t1 -c2 -d1s {U}/ 2>/dev/null | grep 'Requests/sec' | awk '{print $2}'", None),
        ("http_load -parallel 2 -fetches 30 list 2>/dev/null | awk '/fetches,/ {print $1}'", Some(30.0)),
        ("http_load -p 2 -f 30 list 2>/dev/null | sed -n 's/.*code 200 -- //p'", Some(30.0)),
        ("http_load -rate 50 -seconds 1 list 2>/dev/null | awk '/fetches.sec/ {print $1}'", Some(50.0)),
        ("http_load -p 1 -f 4 list 2>/dev/null | awk '/msecs.connect/ {print $2}'", None),
        ("lwp-bench -n 40 -c 4 {U}/ {U}/text 2>/dev/null | awk '/^Succeeded:/ {print $2}'", Some(40.0)),
        ("lwp-bench -n 40 -c 4 {U}/ {U}/missing 2>/dev/null | sed -n 's/^Errors: *404: //p'", Some(20.0)),
    ];
    for (script, expected) in scripts {
        let number = shell(script);
        match expected {
            Some(expected) => assert!((number - expected).abs() < 0.5, "{script}: {number}"),
            None => assert!(number >= 0.0, "{script}: {number}"),
        }
    }
}

#[test]
fn what_http_load_and_lwp_bench_print_has_their_form() {
    let server = Server::start();
    let place = server.place("ours");
    let url = format!("http://127.0.0.1:{}", server.port);
    fs::write(place.join("list"), format!("{url}/\n{url}/text\n")).expect("written");
    let run = |args: &[&str]| {
        let done =
            Command::new(env!("CARGO_BIN_EXE_lastdrop")).args(args).arg("--no-remark").current_dir(&place).output();
        let done = done.expect("runs");
        (
            done.status.code(),
            String::from_utf8_lossy(&done.stdout).into_owned(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        )
    };
    let (code, text, errors) = run(&["http_load", "-rate", "40", "-jitter", "-seconds", "1", "list"]);
    let g = r"[0-9.]+(e[+-]\d+)?";
    let form = format!(
        "^\\d+ fetches, \\d+ max parallel, {g} bytes, in {g} seconds\n{g} mean bytes/connection\n{g} fetches/sec, {g} bytes/sec\n\
         msecs/connect: {g} mean, {g} max, {g} min\nmsecs/first-response: {g} mean, {g} max, {g} min\nHTTP response codes:\n  \
         code 200 -- \\d+\n$"
    );
    assert!(
        code == Some(0) && errors.is_empty() && Regex::new(&form).expect("valid").is_match(&text),
        "{text}{errors}"
    );
    // A page whose length varies.
    fs::write(place.join("changing"), format!("{url}/vary\n")).expect("written");
    let (_, text, errors) = run(&["http_load", "-p", "1", "-f", "60", "changing"]);
    let wrong = text.lines().find_map(|l| l.strip_suffix(" bad byte counts")?.parse::<usize>().ok()).unwrap_or(0);
    assert!(wrong > 0 && errors.matches("byte count wrong").count() == wrong, "{text}{errors}");
    let (_, text, _) = run(&["http_load", "-checksum", "-p", "1", "-f", "60", "changing"]);
    assert!(text.contains("bad checksums"), "{text}");
    for wrong in
        [&["http_load", "list"][..], &["http_load", "-p", "1", "-r", "1", "-f", "1", "list"], &["http_load", "-p"]]
    {
        let (code, _, errors) = run(wrong);
        assert!(code == Some(1) && errors.starts_with("usage:  http_load"), "{errors}");
    }
    let (code, _, errors) = run(&["http_load", "-cipher", "fastsec", "-p", "1", "-f", "1", "list"]);
    assert!(code == Some(1) && errors.contains("-cipher"), "{errors}");

    let (code, text, _) = run(&["lwp-bench", "-n", "20", "-c", "2", &format!("{url}/"), &format!("{url}/text")]);
    let form = "^URL\\(s\\):          http://\\S+/\n                 http://\\S+/text\nTotal Requests:  20\nParallel Agents: 2\n\
                Succeeded:       20 \\(100.00%\\)\nErrors:          NONE\n\nTotal Time:      \\d+\\.\\d\\d secs\n\
                Throughput:      \\d+\\.\\d\\d Requests/sec\nLatency:         \\d+\\.\\d\\d secs/Request\n$";
    assert!(code == Some(0) && Regex::new(form).expect("valid").is_match(&text), "{text}");
    let (code, _, errors) = run(&["lwp-bench"]);
    assert!(code == Some(1) && errors.contains("Usage: lwp-bench"), "{errors}");
}

#[test]
fn ctrl_c_still_reports_and_numbers_are_right_unless_the_originals_are_wanted() {
    let server = Server::start();
    let place = server.place("ours");
    let (url, port) = (format!("http://127.0.0.1:{}/", server.port), server.port.to_string());
    let commands = [
        (vec!["ab", "-n", "100000000", "-c", "2", &url], 1, "Requests per second:"),
        (vec!["siege", "-R", "rc", "-q", "-j", "-c", "2", "-b", &url], 0, "\"transactions\":"),
        (vec!["wrk", "-t1", "-c2", "-d60s", &url], 0, "Requests/sec:"),
        (
            vec!["httperf", "--server", "127.0.0.1", "--port", &port, "--num-conns", "900", "--rate", "10"],
            0,
            "Total: connections",
        ),
    ];
    let start = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lastdrop"));
        command.args(args).arg("--remark").current_dir(&place).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("runs")
    };
    let started = commands.map(|(args, code, line)| (start(&args), args, code, line));
    thread::sleep(Duration::from_millis(1500));
    started.iter().for_each(|(child, ..)| signal(child, libc::SIGINT));
    for (child, args, code, line) in started {
        let done = child.wait_with_output().expect("ends");
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.code() == Some(code) && text.contains(line), "{args:?}: {:?} {text}", done.status);
        let remarks = String::from_utf8_lossy(&done.stderr).matches("--no-remark").count();
        assert_eq!(remarks, 1, "one line on what is hidden: {args:?}");
    }
    // One response in 20 ms and one in 60: their median is 40, but ab's is the larger one.
    let mixed = Target::start(&server.folder, &["--workers", "1", "--service", "30ms"]);
    let median = |like: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lastdrop"));
        // Two users and one worker: the second waits for the first, so 30 ms and 60 ms.
        command
            .args(["ab", "-n", "2", "-c", "2", "--no-remark", &mixed.url()])
            .args(like.then_some("--like-the-original"));
        let text = String::from_utf8_lossy(&command.output().expect("runs").stdout).into_owned();
        let total = text.lines().find(|l| l.starts_with("Total:  ")).expect("a row").to_string();
        let numbers: Vec<f64> = total.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        // min, mean, deviation, median, max
        ((numbers[3] - f64::midpoint(numbers[0], numbers[4])).abs(), (numbers[3] - numbers[4]).abs())
    };
    let (right, like) = (median(false), median(true));
    assert!(right.0 <= 1.0 && like.1 <= 0.0, "{right:?} {like:?}");
}
