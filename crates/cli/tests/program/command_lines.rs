//! Hostile command lines and plan files. With any number in them, the program ends in time, by itself or by a signal, without
//! a panic. It refuses what no run can do, with the option's name and bound.
//!
//! The options come from `--help`, the keys of plans from their schema, so new ones are tested automatically.
//! `./x fuzz SECONDS command_lines` runs longer (LASTDROP_FUZZ_SECONDS) and from another seed (LASTDROP_FUZZ_SEED).

use std::fs;
use std::process::Stdio;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::lines::{Chance, PROGRAMS, line};
use crate::common::misbehaving::MisbehavingServer;
use crate::common::originals::OriginalAndOwn;
use crate::common::{CommandOutput, Folder, Target, signal};
use regex::Regex;
use serde_json::Value;

/// Texts that are no valid number for any option.
const NO_NUMBERS: [&str; 5] = ["inf", "nan", "1e300", "-1e300", "-1"];
/// A number above every bound of counts and times, but not of sizes.
const TOO_MUCH: &str = "99999999999";

/// An option with a number as its value.
#[derive(Debug, Clone)]
struct Numeric {
    command: String,
    name: String,
    kind: String,
}

fn help(folder: &Folder, command: &str) -> String {
    folder.run(&[command, "--help"]).stdout
}

/// Every option of every command whose value is a number according to its help.
fn numeric_options(folder: &Folder) -> Vec<Numeric> {
    let command = Regex::new(r"(?m)^  ([a-z]+)  ").expect("valid");
    let option = Regex::new(r"(?m)^ +(?:-\w, )?--([\w-]+) <([^>]+)>").expect("valid");
    let numbers = ["N", "R", "TIME", "SIZE", "PERCENT", "RATE", "SIGMA", "KAPPA", "N,N,…"];
    let all = folder.run(&["--help"]).stdout;
    let commands = all.split("Options:").next().expect("commands come first");
    let mut found = Vec::new();
    for name in command.captures_iter(commands).map(|c| c[1].to_string()).filter(|c| c != "help") {
        for c in option.captures_iter(&help(folder, &name)).filter(|c| numbers.contains(&&c[2])) {
            found.push(Numeric { command: name.clone(), name: c[1].to_string(), kind: c[2].to_string() });
        }
    }
    assert!(found.len() > 100, "{}", found.len());
    found
}

/// Calls a function for each item, on as many threads as there are processors.
fn each<T: Sync>(all: &[T], check: impl Fn(&T) + Sync) {
    let next = Mutex::new(all.iter());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(one) = next.lock().expect("nobody panicked").next() else { return };
                    check(one);
                }
            });
        }
    });
}

#[test]
fn every_numeric_option_refuses_what_no_run_can_do() {
    let folder = Folder::new();
    each(&numeric_options(&folder), |option| {
        let too_much = (option.kind != "SIZE").then_some(TOO_MUCH);
        for value in NO_NUMBERS.into_iter().chain(too_much) {
            let flag = format!("--{}", option.name);
            let done = folder.run(&[&option.command, &flag, value]);
            assert_eq!(done.code, 2, "{done:?}");
            assert!(done.stderr.contains(&flag) && done.stderr.contains(value), "{done:?}");
            assert!(done.stderr.contains(" from ") && done.stderr.contains(" to "), "no bounds: {done:?}");
        }
    });
}

/// The keys of a plan file, with the header of their table, and whether the value is a number or a text.
fn keys() -> Vec<(String, String, bool)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plan.schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(path).expect("there")).expect("JSON");
    let mut found = Vec::new();
    let mut add = |table: &str, properties: &Value| {
        for (key, value) in properties.as_object().expect("properties") {
            let kind = value["type"].to_string();
            if kind.contains("integer") || kind.contains("number") {
                found.push((table.to_string(), key.clone(), true));
            } else if kind.contains("string") && !kind.contains("array") {
                found.push((table.to_string(), key.clone(), false));
            }
        }
    };
    add("", &schema["properties"]);
    for (definition, table) in [
        ("HttpFile", "[http]"),
        ("PageFile", "[page]"),
        ("NetworkFile", "[network]"),
        ("TlsFile", "[tls]"),
        ("PhaseFile", "[[phase]]"),
        ("RequestFile", "[[request]]"),
    ] {
        add(table, &schema["$defs"][definition]["properties"]);
    }
    assert!(found.len() > 50, "{found:?}");
    found
}

#[test]
fn every_number_of_a_plan_file_has_a_bound() {
    let folder = Folder::new();
    each(&keys(), |(table, key, is_number)| {
        let values: Vec<String> = match is_number {
            true => NO_NUMBERS.iter().copied().chain([TOO_MUCH]).map(str::to_string).collect(),
            false => NO_NUMBERS.iter().copied().chain(["99999999999h"]).map(|v| format!("\"{v}\"")).collect(),
        };
        let name = format!("{}{key}.toml", table.trim_matches(['[', ']']));
        for value in values {
            // The request has a url, so that its other keys are read.
            let more = if table == "[[phase]]" { "rate = 1\nduration = \"1s\"\n" } else { "" };
            let more = if more.contains(&format!("{key} =")) { "" } else { more };
            let url = if key == "url" { "" } else { "url = 'http://127.0.0.1:9/'\n" };
            fs::write(folder.join(&name), format!("{url}{table}\n{more}{key} = {value}\n")).expect("written");
            let done = folder.run(&["run", folder.join(&name).to_str().expect("text"), "--dry-run"]);
            assert!((0..=2).contains(&done.code) && !done.stderr.contains("panicked"), "{value}: {done:?}");
            if *is_number {
                assert_eq!(done.code, 2, "{value}: {done:?}");
                assert!(done.stderr.contains(key) && done.stderr.contains(" to "), "no bounds: {done:?}");
            }
        }
    });
}

/// Flags of other programs with numbers, and the rest of the command line. `{U}` is a URL, `{P}` its port, `{F}` a file of
/// URLs.
const OTHERS: [(&str, &[&str], &str); 6] = [
    ("ab", &["-n", "-c", "-t", "-s", "-b", "-v"], "{U}"),
    ("siege", &["-c", "-r", "-t", "-d"], "{U}"),
    (
        "httperf",
        &[
            "--num-conns",
            "--num-calls",
            "--rate",
            "--period",
            "--timeout",
            "--think-timeout",
            "--burst-length",
            "--max-connections",
            "--recv-buffer",
            "--send-buffer",
            "--wsess",
            "--wset",
            "--wsesslog",
            "--client",
            "--failure-status",
            "--port",
        ],
        "--server 127.0.0.1 --port {P}",
    ),
    (
        "http_load",
        &["-parallel", "-rate", "-fetches", "-seconds", "-timeout", "-Throttle", "-proxy"],
        "-parallel 1 -fetches 1 {F}",
    ),
    ("lwp-bench", &["-n", "-c", "-t"], "{U}"),
    ("wrk", &["-c", "-d", "-t", "-T", "-R"], "{U}"),
];

#[test]
fn other_programs_refuse_what_no_run_can_do_too() {
    let folder = Folder::new();
    let urls = folder.join("urls");
    fs::write(&urls, "http://127.0.0.1:9/\n").expect("written");
    // These numbers are not about a run.
    let others = ["-v", "--client", "--failure-status", "--port", "-proxy", "--wsess", "--wset", "--wsesslog"];
    let flags: Vec<_> = OTHERS.iter().flat_map(|(p, flags, rest)| flags.iter().map(move |f| (*p, *f, *rest))).collect();
    each(&flags, |(program, flag, rest)| {
        let rest =
            rest.replace("{U}", "http://127.0.0.1:9/").replace("{P}", "9").replace("{F}", urls.to_str().expect("text"));
        for value in ["inf", "nan", "1e300", TOO_MUCH] {
            // httperf's periods begin with `d`, `e` or `u`; other letters make no number.
            let value = if *flag == "--period" { format!("d{value}") } else { value.to_string() };
            let mut args = vec![*program, *flag, &value];
            args.extend(rest.split_whitespace());
            if others.contains(flag) || *program == "httperf" && value.contains(TOO_MUCH) && flag.ends_with("rate") {
                continue;
            }
            let started = Instant::now();
            let done = folder.run(&args);
            assert!(done.code == 2 && started.elapsed() < Duration::from_secs(20), "{done:?}");
            assert!(done.stderr.contains(flag) && done.stderr.contains(" from "), "no bounds: {done:?}");
        }
    });
}

// ---- by chance ------------------------------------------------------------------------------------------------------

/// Values besides the refused ones: small numbers, so that accepted runs are short, and texts that look like numbers.
const VALUES: [&str; 38] = [
    "0",
    "1",
    "2",
    "3",
    "7",
    "-1",
    "-0",
    "+3",
    " 7 ",
    "0.5",
    "1.5",
    "1e-300",
    "0.0000001",
    "1e1",
    "inf",
    "-inf",
    "nan",
    "infinity",
    "1e300",
    "1e400",
    "-1e300",
    "99999999999",
    "4294967296",
    "4294967295",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775808",
    "340282366920938463463374607431768211456",
    "",
    "x",
    "é",
    "0x10",
    "1_0",
    "5s",
    "1ms-2ms",
    "exp 1ms",
    "1k",
    "200%",
];

/// A random command line.
fn command_line(
    chance: &mut Chance,
    options: &[Numeric],
    url: &str,
    port: u16,
    folder: &Folder,
    beside: &OriginalAndOwn,
) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    if chance.below(4) == 0 {
        // Personalities with their own flags, for a server that misbehaves.
        let program = &PROGRAMS[chance.below(PROGRAMS.len())];
        return beside.words(&line(chance, program)).iter().map(|w| w.replace("{FF}", "\u{fffd}")).collect();
    }
    let words = |text: &str| text.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    if chance.below(3) == 0 {
        let (program, flags, rest) = OTHERS[chance.below(OTHERS.len())];
        args.push(program.into());
        for _ in 0..1 + chance.below(3) {
            let many = chance.below(4) == 0;
            let value = if many {
                format!("{},{},{}", chance.of(&VALUES), chance.of(&VALUES), chance.of(&VALUES))
            } else {
                format!("{}{}", chance.of(&["", "", "", "d", "e", "u"]), chance.of(&VALUES))
            };
            args.extend([chance.of(flags).to_string(), value]);
        }
        let file = folder.join("urls").display().to_string();
        let rest = rest.replace("{U}", url).replace("{P}", &port.to_string()).replace("{F}", &file);
        args.extend(words(&rest));
        return args;
    }
    let option = &options[chance.below(options.len())];
    let own: Vec<&Numeric> = options.iter().filter(|o| o.command == option.command).collect();
    // Servers that do not exist, so nothing is read or changed.
    let rest = match option.command.as_str() {
        "run" => format!("run {url} -n 5 --no-store"),
        "capacity" => format!("capacity {url} --objective p99<1s --max-time 1s --no-store"),
        "headroom" => format!(
            "headroom --log {} --url {url} --objective p99<1s --max-time 1s --no-store",
            folder.join("log").display()
        ),
        "compare" => format!("compare --live {url} {url} --no-store"),
        "tune" => format!("tune target:/no/such.toml --url {url} --no-store"),
        "sweep" => "sweep /no/such.toml --no-store".into(),
        "size" => format!("size target:/no/such.toml --fit --url {url}"),
        "trace" => format!("trace pid:999999999 --url {url}"),
        "watch" | "profile" | "guard" => format!("{} pid:999999999", option.command),
        "target" => "target --listen 127.0.0.1:0".into(),
        "replay" => format!("replay {} --to {url} --no-store", folder.join("log").display()),
        "top" => format!("top {} --from-start", folder.join("log").display()),
        other => other.to_string(),
    };
    args.extend(words(&rest));
    for _ in 0..1 + chance.below(4) {
        let option = own[chance.below(own.len())];
        let value = chance.of(&VALUES);
        // The target really allocates the memory that it is told to.
        if option.command == "target" && option.kind == "SIZE" && value.len() > 4 {
            continue;
        }
        args.push(format!("--{}={value}", option.name));
    }
    if option.command == "run" && chance.below(4) == 0 {
        args.push("--dry-run".into());
    }
    args
}

/// Runs a command line, sends it a signal after a while, and asserts that it ends.
fn try_it(folder: &Folder, args: &[String]) {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut child = folder
        .lastdrop(&words)
        .env("HOME", folder.path())
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let (told_after, patience) = (Duration::from_millis(500), Duration::from_secs(30));
    let started = Instant::now();
    let mut told = 0;
    while child.try_wait().expect("it can be waited for").is_none() {
        if started.elapsed() > told_after * (1 + 4 * told) && told < 2 {
            told += 1;
            signal(&child, libc::SIGINT);
        }
        if started.elapsed() > patience {
            signal(&child, libc::SIGKILL);
            let _ = child.wait();
            panic!("it hangs: {args:?}");
        }
        thread::sleep(Duration::from_millis(3));
    }
    let done = CommandOutput::of(child.wait_with_output().expect("it has ended"), &words);
    assert!(!done.stderr.contains("panicked") && !matches!(done.code, -1 | 101 | 134 | 139), "{done:?}");
}

#[test]
fn no_command_line_panics_or_hangs() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let url = target.url();
    fs::write(folder.join("urls"), format!("{url}\n")).expect("written");
    let request = |second| format!("10.0.0.7 - - [10/Oct/2000:13:55:{second} +0000] \"GET / HTTP/1.1\" 200 5\n");
    fs::write(folder.join("log"), ["36", "36", "37"].map(request).concat()).expect("written");
    let options = numeric_options(&folder);
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seconds, seed) = (number("LASTDROP_FUZZ_SECONDS"), number("LASTDROP_FUZZ_SEED").unwrap_or(1));
    // The tests run the same few lines each time.
    let (most, until) = match seconds {
        Some(seconds) => (usize::MAX, Instant::now() + Duration::from_secs(seconds)),
        None => (150, Instant::now() + Duration::from_secs(600)),
    };
    let misbehaving = MisbehavingServer::start();
    let beside = OriginalAndOwn::for_misbehaving(Folder::new(), misbehaving.port);
    beside.put_files(folder.path());
    let tried = Mutex::new((Chance::new(seed), 0));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let words = {
                        let mut tried = tried.lock().expect("nobody panicked");
                        if tried.1 >= most || Instant::now() > until {
                            return;
                        }
                        tried.1 += 1;
                        command_line(&mut tried.0, &options, &url, target.port, &folder, &beside)
                    };
                    try_it(&folder, &words);
                }
            });
        }
    });
    println!("{} command lines, seed {seed}", tried.lock().expect("nobody panicked").1);
}
