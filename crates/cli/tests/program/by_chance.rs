//! Random command lines, run with the original and with ours: the only differences are those in the manual's table of
//! personalities. The test runs a few; `./x lab personalities` runs them for a minute (LASTDROP_FUZZ_SECONDS) from another
//! seed (LASTDROP_FUZZ_SEED).

use std::process::Output;
use std::time::{Duration, Instant};

use crate::common::Folder;
use crate::common::lines::{Chance, PROGRAMS, line};
use crate::common::misbehaving::MisbehavingServer;
use crate::common::originals::{OriginalAndOwn, shape};
use regex::Regex;

/// Intended differences, by words that are all in the command line, and where the manual describes them.
const DIFFERENT: &[(&str, &[&str])] = &[
    ("chunks have no framing, and what is no HTTP no answer", &["ab ", "/garbage"]),
    ("chunks have no framing", &["ab ", "chunk"]),
    ("a reset is counted once", &["ab ", " -r ", "/reset"]),
    ("a connection that the server has closed costs no request", &["ab ", " -k ", "/once"]),
    ("a page has no answer to HEAD", &["ab ", " -i ", "/short"]),
    ("a page has no answer to HEAD", &["ab ", " -i ", "/close"]),
    ("what was cut off is no answer", &["siege", "/short"]),
    ("what is no HTTP is no hit", &["siege", "/garbage"]),
    ("chunks have no framing", &["siege", "/chunked"]),
    ("lines about its own source are left out", &["siege", " -p ", "/"]),
    ("what was cut off is no answer", &["httperf", "/short"]),
    ("what is closed while a session thinks is opened again", &["httperf", "1,2,0.01", "/once"]),
    ("a session keeps its connection", &["httperf", "--http-version 1.0", "--wsess"]),
    ("what never ends is let go of", &["wrk", "/hang"]),
    ("an answer that ends with its connection is no error", &["wrk", "/close"]),
];

fn is_different(line: &str) -> Option<&'static str> {
    let spaced = format!("{line} ");
    // This takes half a minute and shows nothing.
    let waits = line.starts_with("siege") || line.starts_with("ab") && !line.contains("-s ");
    if waits && line.contains("/hang") {
        return Some("too long to wait for");
    }
    let beside_each_other = ["--rate 100", "--period"].iter().any(|flag| line.contains(flag));
    if beside_each_other && ["later", "/vary"].iter().any(|way| line.contains(way)) {
        return Some("whose turn it is, is chance");
    }
    DIFFERENT.iter().find(|(_, words)| words.iter().all(|w| spaced.contains(w))).map(|(why, _)| *why)
}

/// Fields that have to be equal, besides the shape of all lines, the exit code and the files.
fn labels(program: &str) -> &'static [&'static str] {
    match program {
        "ab" => &[
            "Server Software",
            "Document Length",
            "Complete requests",
            "Failed requests",
            "Non-2xx responses",
            "Keep-Alive requests",
            "Total transferred",
            "HTML transferred",
            "Total body sent",
        ],
        "siege" => &[
            "Transactions",
            "Availability",
            "Successful transactions",
            "Failed transactions",
            "transactions",
            "availability",
            "failed_transactions",
            "concurrent users",
            "repetitions",
        ],
        "httperf" => &["Total#3", "Errors", "Reply status", "Reply size [B]", "Session length histogram"],
        _ => &[],
    }
}

#[test]
fn no_command_line_tells_ours_from_the_original() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seconds, seed) = (number("LASTDROP_FUZZ_SECONDS"), number("LASTDROP_FUZZ_SEED").unwrap_or(1));
    let (most, until) = match seconds {
        Some(seconds) => (usize::MAX, Instant::now() + Duration::from_secs(seconds)),
        None => (30, Instant::now() + Duration::from_secs(600)),
    };
    let server = MisbehavingServer::start();
    let beside = OriginalAndOwn::for_misbehaving(Folder::new(), server.port);
    let mut chance = Chance::new(seed);
    let (mut tried, mut by_intent, mut found) = (0, 0, Vec::new());
    while tried < most && Instant::now() < until {
        // wrk takes at least a second for each.
        let program = &PROGRAMS[[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3][chance.below(13)]];
        let line = line(&mut chance, program);
        if is_different(&line).is_some() {
            by_intent += 1;
            continue;
        }
        tried += 1;
        let like = format!("~{line}");
        let patience = Duration::from_secs(6);
        server.fresh();
        let original = beside.run_once(beside.commands(&line).0, &beside.place("theirs"), patience);
        server.fresh();
        let own = beside.run_once(beside.commands(&like).1, &beside.place("ours"), patience);
        match (&original, &own) {
            // siege hangs sometimes; httperf without a timeout waits forever.
            (None, _) => by_intent += 1,
            (Some(_), None) => found.push(format!("{line}\nours hangs")),
            (Some(original), Some(own)) => {
                if let Some(what) = beside.difference(original, own, labels(program.name)) {
                    found.push(format!("{line}\n{what}"));
                }
            }
        }
        for name in ["theirs", "ours"] {
            std::fs::remove_dir_all(beside.folder.join(name)).expect("it is ours");
        }
    }
    println!("{tried} command lines, {by_intent} different by intent, {} otherwise, seed {seed}", found.len());
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}

/// wrk2 and http_load have no packages; the lab builds them. `LASTDROP_PEER_WRK2` is the path of the binary.
#[test]
fn peers_that_were_built_print_the_same() {
    let server = MisbehavingServer::start();
    let beside = OriginalAndOwn::for_misbehaving(Folder::new(), server.port);
    let blank = Regex::new(r"#\d+(e[+-]#\d+)?").expect("valid");
    let count = Regex::new(r"(\d+) (requests|fetches)").expect("valid");
    let text = |bytes: &[u8], program: &str| {
        // %g prints a varying number of digits, and a spectrum has a varying number of lines; the original prints its path.
        let peer = std::env::var(format!("LASTDROP_PEER_{}", program.to_uppercase())).unwrap_or_default();
        let name = peer.rsplit('/').next().unwrap_or_default();
        let text = String::from_utf8_lossy(bytes).replace(&peer, name);
        let mut lines: Vec<String> = shape(&text).iter().map(|l| blank.replace_all(l, "#").into_owned()).collect();
        // http_load prints a rate only if it ran for more than 10 ms.
        lines.retain(|l| !l.contains("fetches/sec"));
        lines.dedup();
        lines
    };
    for line in [
        "wrk2 -t1 -c2 -d2s -R 100 {U}/ok",
        "wrk2 -t1 -c2 -d2s -R 100 -L {U}/ok",
        "wrk2 -t1 -c2 -d2s -R 100 -U {U}/404",
        "wrk2 -t2 -c4 -d2s --rate 100 --latency -B {U}/ok",
        "wrk2 -t1 -c2 -d1s {U}/ok",
        "wrk2 -t1 -c2 -d1s -R 0 {U}/ok",
        "wrk2 -t1 -c2 -d1s -R x {U}/ok",
        "wrk2 -t3 -c2 -d1s -R 10 {U}/ok",
        "wrk2 -R 10 -d1s",
        "wrk2 -v",
        "wrk2 --foo {U}/ok",
        "wrk2 -t1 -c2 -d1s -R 10 http://127.0.0.1:1/",
        "http_load -parallel 1 -fetches 12 list",
        "http_load -parallel 1 -fetches 6 -checksum list",
        "http_load -rate 20 -seconds 1 list",
        "http_load -parallel 1 -fetches 4 -timeout 1 -verbose list",
    ] {
        let program = line.split(' ').next().expect("a name");
        if std::env::var_os(format!("LASTDROP_PEER_{}", program.to_uppercase())).is_none() {
            continue;
        }
        let (original, own) = beside.both_with(line, || drop(server.fresh()));
        let of = |o: &Output| (text(&o.stdout, program), text(&o.stderr, program), o.status.code());
        assert_eq!(of(&original), of(&own), "{line}");
        let requests = |o: &Output| {
            let text = String::from_utf8_lossy(&o.stdout).into_owned();
            let found = count.captures(&text).map(|c| c[1].to_string());
            found.map_or(0.0, |n| n.parse::<f64>().expect("a number"))
        };
        let (theirs, ours) = (requests(&original), requests(&own));
        assert!((theirs - ours).abs() <= 5.0, "{line}: {theirs} and {ours}");
    }
}
