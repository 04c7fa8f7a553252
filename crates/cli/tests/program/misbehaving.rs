//! Personalities compared with their originals on a server that misbehaves on purpose: counts, messages, requests, and when
//! each gives up. Intended differences are in the manual's table, and here.

use std::process::Output;

use crate::common::Folder;
use crate::common::misbehaving::{MisbehavingServer, ReceivedRequest};
use crate::common::originals::{OriginalAndOwn, fields};
use regex::Regex;

struct PersonalityTest {
    beside: OriginalAndOwn,
    server: MisbehavingServer,
}

impl PersonalityTest {
    fn start() -> PersonalityTest {
        let server = MisbehavingServer::start();
        let beside = OriginalAndOwn::for_misbehaving(Folder::new(), server.port);
        PersonalityTest { beside, server }
    }

    /// Asserts that both print the same except for numbers, and agree in the fields `equal`.
    fn compare(&self, lines: &str, equal: &[&str]) {
        for line in lines.lines().map(str::trim).filter(|l| !l.is_empty()) {
            self.beside.compare_with(line, equal, || drop(self.server.fresh()));
        }
    }

    /// The outputs of both for a line, and the requests of each.
    fn both(&self, line: &str) -> ((Output, Vec<ReceivedRequest>), (Output, Vec<ReceivedRequest>)) {
        self.server.fresh();
        let mut heard = Vec::new();
        let (original, own) = self.beside.both_with(line, || heard.push(self.server.fresh()));
        let ours = self.server.fresh();
        let theirs = heard.pop().expect("ours has begun");
        ((original, theirs), (own, ours))
    }

    /// Runs only ours; returns exit code, stdout, stderr.
    fn ours(&self, line: &str) -> (Option<i32>, String, String) {
        self.server.fresh();
        let place = self.beside.place("ours");
        let done = self.beside.run(|| self.beside.commands(line).1, &place);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    }
}

/// The first `n` numbers after a label.
fn numbers(text: &str, label: &str, n: usize) -> Vec<f64> {
    let all = fields(text).remove(label).unwrap_or_else(|| panic!("{label} in {text}"));
    all.iter().take(n).map(|t| t.parse().expect("a number")).collect()
}

#[test]
fn httperf_counts_what_ends_before_its_calls_do() {
    let both = PersonalityTest::start();
    both.compare(
        "httperf {H} --uri /nothing --num-conns 5
         httperf {H} --uri /nothing --num-conns 5 --num-calls 3
         httperf {H} --uri /shortchunk --num-conns 3
         httperf {H} --uri /head --num-conns 3 --num-calls 2
         httperf {H} --uri /garbage --num-conns 3
         httperf {H} --uri /reset --num-conns 3 --num-calls 2
         httperf {H} --uri /resetlater --num-conns 4 --num-calls 3
         httperf {H} --uri /nothinglater --num-conns 4 --num-calls 2
         httperf {H} --uri /once --num-conns 5 --num-calls 3
         httperf {H} --uri /once --num-conns 6 --num-calls 3 --rate 100
         httperf {H} --uri /close --num-conns 5 --num-calls 3
         httperf {H} --uri /close --num-conns 5
         httperf {H} --uri /hang --num-conns 2 --num-calls 2 --timeout 0.3
         httperf {H} --uri /hanglater --num-conns 2 --num-calls 3 --timeout 0.3
         httperf {H} --uri /chunked --num-conns 3 --num-calls 2
         httperf {H} --uri /chunked --num-conns 2 --print-reply
         httperf {H} --uri /chunked --num-conns 2 --print-reply=header
         httperf {H} --uri /once --num-conns 2 --num-calls 3 --print-request --print-reply=body
         httperf {H} --uri /404 --num-conns 2 --num-calls 3 --failure-status 404
         httperf {H} --uri /404 --wsess 3,4,0 --failure-status 404
         httperf {H} --uri /once --wsess 2,3,0
         httperf {H} --uri /close --wsess 2,3,0.05
         httperf {H} --uri /nothing --wsess 2,3,0
         httperf {H} --uri /reset --wsess 2,3,0 --rate 50
         ~httperf {H} --wlog n,two --num-conns 1 --num-calls 2
         ~httperf {H} --wlog y,two --num-conns 3 --num-calls 3
         httperf {H} -vv --num-conns 1 --uri /hang --timeout 0.2
         httperf {H} --num-conns 2 --http-version 1.0 --uri /ok --num-calls 2
         httperf {H} --num-conns 2 --client 1/3",
        &[
            "Total#3",
            "Errors",
            "Reply status",
            "Reply size [B]",
            "Connection length [replies/conn]",
            "Session",
            "Session failtime [s]",
            "Session length histogram",
        ],
    );
    both.compare(
        "httperf {H} --http-version abc
         httperf {H} --http-version 2.0
         httperf {H} --client 3/2
         httperf {H} --client 3
         httperf {H} --client x/2
         httperf {H} --period u0.1
         httperf {H} --period u-1,2
         httperf {H} --period d-1
         httperf {H} --period e
         httperf {H} --burst-length 0
         httperf {H} --failure-status 0
         httperf {H} --port 70000
         httperf {H} --timeout x
         httperf {H} --wsess 1,2
         httperf {H} --wsess 1,2,x
         httperf {H} --wsess 1,2,0,4
         httperf {H} --wset 3
         httperf {H} --wset 3,2
         httperf {H} --wsesslog 1,0",
        &[],
    );
    // The list may end within a connection: the remaining requests are sent.
    for (line, expected) in [
        ("httperf {H} --wlog n,two --num-conns 2 --num-calls 3", [1.0, 2.0, 2.0]),
        ("httperf {H} --wlog n,five-uris --num-conns 4 --num-calls 3", [2.0, 5.0, 5.0]),
    ] {
        let ((original, _), (own, _)) = both.both(line);
        let total = |o: &Output| numbers(&String::from_utf8_lossy(&o.stdout), "Total", 3);
        assert_eq!((total(&original), total(&own)), (expected.to_vec(), expected.to_vec()), "{line}");
    }
    // We do not count a response that was cut off; the original does.
    let (_, text, _) = both.ours("httperf {H} --uri /short --num-conns 5");
    assert_eq!(numbers(&text, "Total", 3), [5.0, 5.0, 0.0], "{text}");
    assert_eq!(numbers(&text, "Errors", 5), [5.0, 0.0, 0.0, 0.0, 5.0], "{text}");
}

#[test]
fn siege_counts_and_says_what_siege_does() {
    let both = PersonalityTest::start();
    both.compare(
        "siege -R rc -c 1 -r 3 {U}/nothing
         siege -R rc -c 1 -r 3 {U}/reset
         siege -R rc -c 1 -r 6 {U}/resetlater
         siege -R rc -c 1 -r 3 {U}/500
         ~siege -R rc -c 1 -r 3 {U}/404
         ~siege -R rc -c 1 -r 3 {U}/garbage
         siege -R rc -c 1 -r 3 {U}/close
         siege -R rc -c 1 -r 3 {U}/once
         siege -R waits -c 1 -r 1 {U}/nothinglater
         siege -R five -c 1 -r 20 {U}/nothing
         siege -R five -c 1 -r 20 {U}/reset
         siege -R five -c 1 -r 20 {U}/500
         siege -R five -c 1 -r 20 -lsiege.log -m mark {U}/nothing
         siege -R five -c 1 -r 20 -j {U}/nothing
         siege -R five -c 1 -r 20 -q {U}/nothing
         siege -R never -c 1 -r 3 {U}/500
         siege -R empty -r 2 {U}/page
         siege -R empty -C
         siege -R rc -C -t 3S
         siege -R rc -C -c 7 -r 5 {U}/ok
         siege -R rc -c1 -r 0 {U}/ok
         siege -R rc -c1 -r abc {U}/ok
         siege -R rc -c1 -r '' {U}/ok
         siege -R rc -c1 -r -1 {U}/ok
         siege -R rc -c1 -r -2 {U}/ok
         ~siege -R csv -c1 -r5 -f urls
         ~siege -R id -c1 -r5 -f urls
         ~siege -R csvurl -c1 -r5 -f urls
         siege -R csv -c1 -r1 -m mark {U}/ok
         siege -R head -g {U}/ok
         siege -R json -g {U}/ok
         siege -R head -p {U}/ok
         siege -R json -p {U}/ok
         siege -R json -q -p {U}/ok
         siege -R rc -g '{U}/ok POST a=b'
         siege -R json -p '{U}/ok POST a=b'
         siege -g {U}/ok
         siege -c1 -r1 {U}/ok",
        &[
            "Transactions",
            "Availability",
            "Successful transactions",
            "Failed transactions",
            "transactions",
            "availability",
            "successful_transactions",
            "failed_transactions",
            "concurrent users",
            "failures until abort",
            "repetitions",
            "time to run",
        ],
    );
    both.compare("siege -R empty -c 1 -r 1 -t1S {U}/ok", &["Availability", "Failed transactions"]);
    for (line, hits, failed) in [
        // We do not count a response that was cut off, nor a hit that is not HTTP.
        ("siege -R rc -c 1 -r 3 {U}/short", 0.0, 3.0),
        ("siege -R rc -c 1 -r 3 {U}/shortchunk", 0.0, 3.0),
        ("siege -R rc -c 1 -r 3 {U}/garbage", 0.0, 3.0),
        ("~siege -R rc -c 1 -r 3 {U}/garbage", 3.0, 3.0),
        // A timeout is a failure.
        ("siege -R waits -c 2 -r 1 {U}/hang", 0.0, 2.0),
    ] {
        let (_, out, text) = both.ours(line);
        let found = (numbers(&text, "Transactions", 1)[0], numbers(&text, "Failed transactions", 1)[0]);
        assert_eq!(found, (hits, failed), "{line}: {out}{text}");
    }
    // siege stops at the given number of failures, and sends nothing more.
    let ((_, theirs), (_, ours)) = both.both("siege -R five -c 1 -r 200 {U}/reset");
    assert_eq!((theirs.len(), ours.len()), (5, 5));
    // The mean is not above the longest, except with --like-the-original.
    let mean = |line: &str| {
        let text = both.ours(line).2;
        (numbers(&text, "Response time", 1)[0], numbers(&text, "Longest transaction", 1)[0])
    };
    let (right, longest) = mean("siege -R never -c 4 -r 6 {U}/resetlater");
    assert!(right <= longest, "{right} {longest}");
}

#[test]
fn ab_gives_up_where_ab_does() {
    let both = PersonalityTest::start();
    both.compare(
        "ab -q -n 6 {U}/nothing
         ab -q -n 6 -k {U}/nothing
         ab -q -n 6 {U}/nothinglater
         ab -q -n 6 -c 2 {U}/short
         ab -q -n 6 {U}/head
         ab -q -n 6 {U}/close
         ab -q -n 6 {U}/vary
         ab -q -n 6 -l {U}/vary
         ab -q -n 6 {U}/404
         ab -q -n 6 {U}/reset
         ab -q -n 6 {U}/resetlater
         ab -n 300 {U}/resetlater
         ab -q -n 6 -k {U}/resetlater
         ab -q -n 3 -v 2 {U}/reset
         ab -q -n 30 -c 1 -s 1 {U}/hang
         ab -q -n 30 -c 1 -s 1 {U}/hanglater
         ab -q -n 4 -c 4 -s 1 {U}/hang
         ab -q -n 2 -c 0 {U}/ok
         ab -q -n 2 -s -1 {U}/ok
         ab -q -n 1 -v 4 {U}/short
         ab -q -n 1 -v 2 {U}/nothing
         ab -q -n 1 -v 2 -C a=b -C c=d -A u:p -P x:y -H 'X-A:b' -H 'Host: foo' -H bad -k {U}/ok
         ab -q -n 1 -v 2 -p post -T text/x -H 'Content-type: q/q' -H 'User-Agent: me' -H 'Accept: none' {U}/ok
         ab -q -n 5 http://127.0.0.1:1/",
        &[
            "Server Software",
            "Document Length",
            "Complete requests",
            "Failed requests",
            "Non-2xx responses",
            "Keep-Alive requests",
            "Total transferred",
            "HTML transferred",
            "Total body sent",
            "Benchmarking 127.0.0.1 (be patient)...Total of",
        ],
    );
    // ab stops at the first failure.
    let ((_, theirs), (_, ours)) = both.both("ab -q -n 5000 -c 1 {U}/resetlater");
    assert_eq!((theirs.len(), ours.len()), (3, 3));
    for (line, length, failed) in [
        // With -r we count a reset once; bodies exclude the framing of chunks; and a response that is not HTTP does not count.
        ("ab -q -r -n 6 {U}/reset", 0.0, 6.0),
        ("ab -q -r -n 6 {U}/resetlater", 100.0, 2.0),
        ("ab -q -n 3 {U}/chunked", 150.0, 0.0),
        ("ab -q -n 3 {U}/shortchunk", 50.0, 0.0),
        ("ab -q -n 3 {U}/garbage", 0.0, 3.0),
    ] {
        let (code, text, errors) = both.ours(line);
        let found = (numbers(&text, "Document Length", 1)[0], numbers(&text, "Failed requests", 1)[0]);
        assert_eq!((code, found), (Some(0), (length, failed)), "{line}: {text}{errors}");
    }
    // Some requests are answered while another hangs: that one fails, and the others are reported.
    let (code, text, _) = both.ours("ab -q -n 40 -c 2 -s 1 {U}/hanglater");
    assert!(code == Some(119) && text.contains("Total of"), "{text}");
}

#[test]
fn what_is_sent_is_what_the_originals_send() {
    let both = PersonalityTest::start();
    let lines = "ab -q -n 1 '{U}/a b'
        ab -q -n 1 '{U}/a<b>\"c\"|^`{}\\d#e?f'
        ab -q -n 1 {U}/é{FF}
        ab -q -n 1 -H 'X: é{FF}' -C 'a={FF}' -A 'u:{FF}' {U}/ok
        ab -q -n 1 -C a=b -C c=d -A u:p -P x:y -H 'X-A:b' -H bad -k {U}/ok
        ab -q -n 1 -p post -T text/x -H 'Host: q' {U}/ok
        ab -q -n 1 -u post -H 'Content-Type: q/q' {U}/ok
        ab -q -n 1 -X {A} http://elsewhere:81/x
        httperf {H} --uri '/a b<\">'
        httperf {H} --uri /é{FF}
        httperf {H} --uri '?x'
        httperf {H} --add-header 'X:y\\nZ: {FF}\\n'
        httperf {H} --http-version 1.0 --method PUT --add-header 'X: y\\n'
        httperf {H} --wsesslog 2,0,sess --add-header 'X: y\\n'
        httperf {H} --no-host-hdr --server-name foo
        wrk -d1s -c1 -t1 http://u:p@{A}/hang
        wrk -d1s -c1 -t1 '{U}/hang?a<b>\"#c'
        wrk -d1s -c1 -t1 -H 'Host: q' {U}/hang
        siege -R rc -c1 -r1 http://u:p@{A}/ok
        siege -R rc -c1 -r1 '{U}/a b<c>\"d\"|^`{}\\e#f'
        siege -R rc -c1 -r1 {U}/é{FF}%20%
        siege -R rc -c1 -r1 HTTP://{A}/ok
        siege -R rc -c1 -r1 '{U}/ok POST'
        siege -R rc -c1 -r1 '{U}/ok DELETE'
        siege -R rc -c1 -r1 '{U}/ok OPTIONS'
        siege -R rc -c1 -r1 '{U}/ok PUT a b'
        siege -R rc -c1 -r1 '{U}/ok POST <post'
        siege -R rc -c1 -r1 -H 'Content-Type: application/json' '{U}/ok POST {}'
        siege -R rc -c1 -r1 -T application/json '{U}/ok POST {}'
        siege -R rc -c1 -r1 -H 'Host: q' -H 'User-Agent: z' -H 'X: 1' -H 'X: 2' {U}/ok
        siege -R rc -c1 -r1 -H 'Accept: t' {U}/ok
        siege -R empty -r1 {U}/ok
        siege -R head -g {U}/ok
        siege -R head -c1 -r2 {U}/ok
        siege -R rc -c1 -r once -f urls";
    for line in lines.lines().map(str::trim) {
        let ((_, theirs), (_, ours)) = both.both(line);
        let mut theirs: Vec<_> = theirs.iter().map(|h| (lossless(&h.head), h.body.clone())).collect();
        let mut ours: Vec<_> = ours.iter().map(|h| (lossless(&h.head), h.body.clone())).collect();
        if line.starts_with("wrk") {
            // The original has tried one more connection, and does not print how often.
            theirs.dedup();
            ours.dedup();
        }
        if line.contains("--no-host-hdr") {
            // The original sends an extra empty line.
            theirs.truncate(1);
        }
        assert_eq!(theirs, ours, "{line}");
        assert!(!ours.is_empty(), "{line}");
    }
}

fn lossless(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

#[test]
fn http_load_counts_whatever_came() {
    let both = PersonalityTest::start();
    let run = |url: &str, more: &str| {
        std::fs::write(both.beside.place("ours").join("list"), format!("{url}\n")).expect("written");
        both.server.fresh();
        let mut command = both.beside.commands(&format!("http_load -parallel 1 -fetches 6 -timeout 1 {more} list")).1;
        let done = command.current_dir(both.beside.folder.join("ours")).output().expect("runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&done.stdout), text(&done.stderr))
    };
    let url = |path: &str| both.server.url(path);
    // The output of the original, built from its source, for these.
    for (url, more, wrong, said) in [
        (url("resetlater"), "", "2 bad byte counts", "byte count wrong"),
        (url("nothinglater"), "", "2 bad byte counts", "byte count wrong"),
        (url("vary"), "", "3 bad byte counts", "byte count wrong"),
        (url("vary"), "-checksum", "3 bad checksums", "checksum wrong"),
        (url("changes"), "-checksum", "5 bad checksums", "checksum wrong"),
        (url("nothing"), "", "", ""),
        (url("ok"), "-checksum", "", ""),
        ("http://127.0.0.1:1/".into(), "", "", "Connection refused"),
    ] {
        let (out, err) = run(&url, more);
        assert!(out.starts_with("6 fetches, 1 max parallel, ") && out.contains(wrong), "{url}: {out}{err}");
        assert_eq!(out.contains("bad "), !wrong.is_empty(), "{url}: {out}{err}");
        let lines = if said.is_empty() { 0 } else { wrong.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(6) };
        assert_eq!(err.lines().filter(|l| *l == format!("{url}: {said}")).count(), lines, "{url}: {err}");
        assert_eq!(err.lines().count(), lines, "{url}: {err}");
    }
    let (out, err) = run(&url("hanglater"), "");
    assert!(out.contains("2 timeouts") && err.contains(": timed out"), "{out}{err}");
}

#[test]
fn the_remark_is_for_people() {
    let both = PersonalityTest::start();
    let remarks = |more: &str, variable: Option<&str>| {
        let mut command = both.beside.commands(&format!("ab -q -n 2 {more}{{U}}/ok")).1;
        if let Some(value) = variable {
            command.env("LASTDROP_REMARK", value);
        }
        let done = command.current_dir(both.beside.place("ours")).output().expect("runs");
        String::from_utf8_lossy(&done.stderr).matches("--no-remark").count()
    };
    for (more, variable, expected) in [
        ("", None, 0),
        ("", Some("always"), 1),
        ("", Some("never"), 0),
        ("--remark ", None, 1),
        ("--remark ", Some("never"), 1),
        ("--no-remark ", Some("always"), 0),
    ] {
        assert_eq!(remarks(more, variable), expected, "{more}{variable:?}");
    }
}

/// The patterns that public scripts search in reports, line by line.
const READERS: &[(&str, &[&str])] = &[
    (
        "httperf {H} --num-conns 12 --num-calls 2 --rate 100 --uri /resetlater",
        &[
            r"^Total: connections (\d+) requests (\d+) replies (\d+) test-duration (\S+) s",
            r"^Connection rate: (\S+) conn/s \((\S+) ms/conn, <=(\d+) concurrent connections\)",
            r"^Connection time \[ms\]: min (\S+) avg (\S+) max (\S+) median (\S+) stddev (\S+)",
            r"^Connection length \[replies/conn\]: (\S+)",
            r"^Request rate: (\S+) req/s",
            r"^Reply rate \[replies/s\]: min (\S+) avg (\S+) max (\S+) stddev (\S+) \((\d+) samples\)",
            r"^Reply time \[ms\]: response (\S+) transfer (\S+)",
            r"^Reply size \[B\]: header (\S+) content (\S+) footer (\S+) \(total (\S+)\)",
            r"^Net I/O: (\S+) KB/s",
            r"^Errors: total (\d+) client-timo (\d+) socket-timo (\d+) connrefused (\d+) connreset (\d+)",
            r"^Errors: fd-unavail (\d+) addrunavail (\d+) ftab-full (\d+) other (\d+)",
        ],
    ),
    (
        "ab -q -n 20 -c 2 -k {U}/404",
        &[
            r"^Server Software: +(\S+)",
            r"^Complete requests: +(\d+)",
            r"^Failed requests: +(\d+)",
            r"^Non-2xx responses: +(\d+)",
            r"^Requests per second: +([0-9.]+)",
            r"^Time per request: +([0-9.]+).*concurrent requests\)$",
            r"^Transfer rate: +([0-9.]+)",
            r"^Total: +(\d+) +(\d+) +([\d.]+) +(\d+) +(\d+)",
            r"^ +(\d+)% +(\d+)$",
            r"^ 100% +(\d+) \(longest request\)",
        ],
    ),
    (
        "siege -R rc -c 1 -r 6 {U}/resetlater",
        &[
            r"^Transactions:\s+(\d+)\s+hits",
            r"^Availability:\s+([\d.]+)\s+%",
            r"^Elapsed time:\s+([\d.]+)\s+secs",
            r"^Response time:\s+([\d.]+)\s+secs",
            r"^Transaction rate:\s+([\d.]+)\s+trans/sec",
            r"^Failed transactions:\s+(\d+)",
            r"^HTTP/1\.\d (\d+) +([\d.]+) secs: +(\d+) bytes ==> GET +\S+$",
        ],
    ),
    (
        // Comma-separated fields: protocol, status, seconds, bytes, path, its number, date.
        "siege -R csv -c 1 -r 4 {U}/ok",
        &[r"^ +\d+,(HTTP/1\.\d),(\d+), *([\d.]+), *(\d+),(/\S+),(\d+),(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)$"],
    ),
    ("siege -j -c 1 -r 3 {U}/ok", &[r#"^[{]?\s*"transactions":\s+(\d+),$"#, r#"^\s*"availability":\s+([\d.]+),$"#]),
    (
        "wrk -t1 -c2 -d1s --latency {U}/404",
        &[
            r"^ +Latency +([\d.]+)(us|ms|s) +([\d.]+)(?:us|ms|s) +([\d.]+)(?:us|ms|s) +([\d.]+)%",
            r"^ +Req/Sec +([\d.]+)k? ",
            r"^ +99% +([\d.]+)(us|ms|s)",
            r"^ +(\d+) requests in ([\d.]+)s, ([\d.]+)(KB|MB|GB|B) read",
            r"^ +Non-2xx or 3xx responses: (\d+)",
            r"^Requests/sec: +([\d.]+)",
        ],
    ),
];

#[test]
fn public_scripts_read_ours_as_they_read_the_originals() {
    let both = PersonalityTest::start();
    for (line, readers) in READERS {
        let ((original, _), (own, _)) = both.both(line);
        // Scripts read both streams together.
        let lines = |o: &Output| {
            let text = [o.stdout.as_slice(), &o.stderr].concat();
            String::from_utf8_lossy(&text).lines().map(str::to_string).collect::<Vec<_>>()
        };
        let (theirs, ours) = (lines(&original), lines(&own));
        for reader in *readers {
            let regex = Regex::new(reader).expect("valid");
            let found = |lines: &[String]| lines.iter().filter(|l| regex.is_match(l)).count();
            let (a, b) = (found(&theirs), found(&ours));
            assert!(a > 0 && a == b, "{line}: {reader}: {a} and {b}\n{}", ours.join("\n"));
        }
    }
}
