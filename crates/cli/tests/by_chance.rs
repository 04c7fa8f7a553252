//! Command lines by chance, carried out by the original and by ours beside it: nothing is different that the manual's table
//! of personalities does not have. A few of them here, and in `./x lab personalities` those of a minute
//! (LASTDROP_FUZZ_SECONDS) from elsewhere (LASTDROP_FUZZ_SEED).

mod common;

use std::time::{Duration, Instant};

use common::Folder;
use common::beside::Beside;
use common::lines::{Chance, PROGRAMS, line};
use common::misbehaving::Misbehaving;

/// What is different by intent, and where the manual says so: all of these words are in the line.
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
    ("what never ends is let go of", &["wrk", "/hang"]),
];

fn is_different(line: &str) -> Option<&'static str> {
    let spaced = format!("{line} ");
    DIFFERENT.iter().find(|(_, words)| words.iter().all(|w| spaced.contains(w))).map(|(why, _)| *why)
}

/// What has to be equal, beside the shape of all lines, the exit code and the files.
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
    let server = Misbehaving::start();
    let beside = Beside::for_misbehaving(Folder::new(), server.port);
    let mut chance = Chance::new(seed);
    let (mut tried, mut by_intent, mut found) = (0, 0, Vec::new());
    while tried < most && Instant::now() < until {
        // wrk takes a second for each.
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
            // siege hangs now and then; what httperf waits for without a timeout, it waits for for good.
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
