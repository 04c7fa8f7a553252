//! A fleet too large to try: 1,000 agents that each generate 100,000 requests per second. The size of their records and
//! the cost of merging them are measured on one record and one second; docs/fleet-at-scale.md multiplies. The first
//! test checks the sizes on that page. The second takes a while, runs only if named, and prints what it measures:
//!
//!     cargo test --profile tested -p lastdrop-lab --test fleet_scale -- --ignored --nocapture

use std::time::{Duration, Instant};

use lastdrop_experiment::lab::fleet::{Member, RunAssembler};
use lastdrop_model::record::Record;
use lastdrop_model::slice::ClassAnswer;
use lastdrop_model::{Arrival, Kind, Load, Plan, Slice};
use lastdrop_store::{AgentRecord, RecordBody, Store};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const AGENTS: u64 = 1_000;
const RATE: u64 = 100_000;

/// Spreads of the responses of a second: the standard deviation of the logarithm of their latency, whose median is 2
/// ms; and whether the plan has classes, one row per response.
const SPREADS: [(&str, f64, bool); 4] =
    [("narrow", 0.2, false), ("usual", 0.7, false), ("wide", 1.5, false), ("usual, with classes", 0.7, true)];

/// A second of an agent at that rate.
fn second(number: u32, spread: f64, classes: bool) -> Slice {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut uniform = move || (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let mut slice = Slice::new(0, number);
    let counts = &mut slice.counts;
    (counts.due, counts.sent, counts.answered, counts.answered_in_time) = (RATE, RATE, RATE, RATE);
    (counts.bytes_sent, counts.bytes_received) = (RATE * 80, RATE * 300);
    slice.status[200] = RATE;
    if classes {
        // A slice without counts of classes belongs to a plan with a single class.
        slice.by_class.counts = vec![*counts; 3];
    }
    for _ in 0..RATE {
        // Box–Muller transform.
        let normal = (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        let service = (2_000.0 * (spread * normal).exp()) as u64;
        let lateness = (-30.0 * (1.0 - uniform()).ln()) as u64;
        let (response, first_byte) = (service + lateness, service * 9 / 10);
        for (kind, us) in [
            (Kind::Response, response),
            (Kind::Service, service),
            (Kind::Blocked, 0),
            (Kind::Lateness, lateness),
            (Kind::FirstByte, first_byte),
        ] {
            slice.record(kind, us);
        }
        if classes {
            slice.record_class(ClassAnswer::new(1, 200, response, service, first_byte));
        }
    }
    slice
}

fn record(number: u32, spread: f64, classes: bool) -> Vec<u8> {
    Record::Second(Box::new(second(number, spread, classes))).encode()
}

/// The number in a cell: `12,345` or `1.9`.
fn number(cell: &str) -> f64 {
    let digits: String = cell.chars().filter(|c| c.is_ascii_digit() || *c == '.').collect();
    digits.parse().unwrap_or_else(|_| panic!("{cell:?} is no number"))
}

#[test]
fn the_page_on_a_fleet_of_a_thousand_agents_tells_the_sizes_that_are() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fleet-at-scale.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let row = |name: &str| -> Vec<&str> {
        let line = page.lines().find(|line| line.starts_with(&format!("| {name} |")));
        line.unwrap_or_else(|| panic!("no row for {name}")).split('|').map(str::trim).collect()
    };
    for (name, spread, classes) in SPREADS {
        let cells = row(name);
        let (told, megabytes, megabits) = (number(cells[2]), number(cells[3]), number(cells[4]));
        let bytes = record(0, spread, classes).len() as f64;
        assert!((told / bytes - 1.0).abs() < 0.05, "{name}: the page says {told} bytes, it is {bytes}");
        let all = told * AGENTS as f64 / 1e6;
        assert!((megabytes / all - 1.0).abs() < 0.05, "{name}: {megabytes} MB/s, {AGENTS} × {told} bytes are {all}");
        assert!((megabits / (8.0 * all) - 1.0).abs() < 0.05, "{name}: {megabits} Mbit/s, {all} MB/s are {}", 8.0 * all);
    }
}

#[test]
#[ignore = "it measures, and takes a minute"]
fn what_a_record_costs_whoever_puts_them_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(&folder.path().join("runs.sqlite")).expect("a store");
    let mut plan = Plan::new("http://192.0.2.1/".parse().expect("valid"), 1);
    plan.phases[0].load = Load::open((AGENTS * RATE) as f64, Arrival::Uniform, 1 << 20);
    plan.phases[0].duration = Some(Duration::from_secs(60));
    for (name, spread, classes) in SPREADS {
        // Seconds of a plan with classes need so much memory that fewer agents have to do.
        let agents = if classes { AGENTS / 20 } else { AGENTS };
        let members: Vec<Member> = (0..agents)
            .map(|i| Member { address: None, name: format!("agent-{i}"), weight: 1, offset_us: 0, error_us: 50 })
            .collect();
        let mut assembler = RunAssembler::new(&plan, &members).expect("weights");
        let records: Vec<Vec<u8>> = (0..3).map(|n| record(n, spread, classes)).collect();
        let begun = Instant::now();
        let mut seconds = 0;
        for (seq, bytes) in records.iter().enumerate() {
            for member in 0..members.len() {
                assembler.take(member, 1, seq as u64, bytes).expect("a record");
            }
            seconds += std::iter::from_fn(|| assembler.pop()).count();
        }
        let merge_us = begun.elapsed().as_secs_f64() * 1e6 / (3 * agents) as f64;
        assert_eq!(seconds, 3);
        let begun = Instant::now();
        for (i, member) in members.iter().enumerate() {
            let what = RecordBody::Record(records[0].clone());
            let word = AgentRecord { agent: member.name.clone(), epoch: 1, seq: i as u64, what };
            store.keep_agent_record(name, &word).expect("kept");
        }
        let keep_us = begun.elapsed().as_secs_f64() * 1e6 / agents as f64;
        println!(
            "{name}: {} bytes a record, {merge_us:.0} µs to put it to the others, {keep_us:.0} µs to keep it",
            records[0].len()
        );
    }
}
