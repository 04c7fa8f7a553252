//! A small model of many machines: broker, server, coordinator and four agents in network namespaces of their own, joined by a
//! bridge. The numbers of the run equal those of the server's log and of the agents' logs of requests.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::common::fleet::{RunningBroker, RunningCommand, up_by};
use crate::common::servers::Daemon;
use crate::common::{Folder, Namespace, assert_sums, json_of, n};
use lastdrop_model::Histogram;
use serde_json::Value;

const AGENTS: [&str; 4] = ["a", "b", "c", "d"];
const SERVER: &str = "10.79.0.1";
const BROKER: &str = "10.79.0.2";
const COORDINATOR: &str = "10.79.0.3";

fn address(agent: usize) -> String {
    format!("10.79.0.{}", 11 + agent)
}

/// Runs `ip` in a namespace.
fn ip(space: &Namespace, line: &str) {
    let mut command = Command::new("ip");
    command.args(line.split(' '));
    assert!(space.inside(&command).status().expect("nsenter runs").success(), "ip {line}");
}

/// Network namespaces joined by a bridge.
struct Net {
    bridge: Namespace,
    hosts: Vec<Namespace>,
}

impl Net {
    fn new() -> Net {
        let bridge = Namespace::new();
        ip(&bridge, "link add br0 type bridge");
        ip(&bridge, "link set br0 up");
        Net { bridge, hosts: Vec::new() }
    }

    /// Adds a machine with this address; returns its number.
    fn host(&mut self, address: &str) -> usize {
        let (host, number) = (Namespace::new(), self.hosts.len());
        ip(&self.bridge, &format!("link add v{number} type veth peer name eth0 netns {}", host.pid()));
        ip(&self.bridge, &format!("link set v{number} master br0 up"));
        ip(&host, &format!("address add {address}/24 dev eth0"));
        ip(&host, "link set eth0 up");
        self.hosts.push(host);
        number
    }
}

/// A request of a log; times in microseconds since 1970.
#[derive(Clone, Copy)]
struct LogLine {
    due: u64,
    sent: u64,
    done: u64,
}

/// Reads a log of requests, which all have been answered.
fn log(path: &PathBuf) -> Vec<LogLine> {
    let text = fs::read_to_string(path).expect("a log of requests");
    let line = |line: &str| {
        let words: Vec<&str> = line.split(',').collect();
        let at = |i: usize| words[i].parse().unwrap_or_else(|_| panic!("{line}"));
        assert_eq!(words[6], "answered", "{line}");
        LogLine { due: at(2), sent: at(3), done: at(5) }
    };
    text.lines().skip(1).map(line).collect()
}

struct Scene {
    folder: Folder,
    net: Net,
    // The agents end first: without a broker they would keep trying to connect.
    _agents: Vec<RunningCommand>,
    broker: RunningBroker,
    _server: Daemon,
    coordinator: usize,
}

impl Scene {
    fn new() -> Scene {
        let (folder, mut net) = (Folder::new(), Net::new());
        let (server, broker, coordinator) = (net.host(SERVER), net.host(BROKER), net.host(COORDINATOR));
        let (config, dir) = (folder.join("nginx.conf"), folder.path().display());
        let text = format!(
            "user www-data;\nworker_processes 1;\ndaemon off;\npid {dir}/nginx.pid;\nerror_log {dir}/nginx.log;\nevents {{}}\n\
             http {{\n log_format from '$remote_addr $uri';\n access_log {dir}/access.log from;\n keepalive_requests 1000000;\n\
             server {{ listen {SERVER}:80; location / {{ return 200 ok; }} }}\n}}\n"
        );
        fs::write(&config, text).expect("written");
        let mut command = Command::new("/usr/sbin/nginx");
        command.arg("-c").arg(&config);
        // nginx writes it when it listens.
        let pid = folder.join("nginx.pid");
        let is_up = |_: &Daemon| fs::read_to_string(&pid).is_ok_and(|text| !text.is_empty());
        let server = Daemon::start(net.hosts[server].inside(&command), "nginx", is_up);
        let up = folder.lastdrop(&["fleet", "up", "--listen", &format!("{BROKER}:4222")]);
        let broker = up_by(net.hosts[broker].inside(&up));
        let mut agents = Vec::new();
        for (i, name) in AGENTS.iter().enumerate() {
            let host = net.host(&address(i));
            let log = folder.join(&format!("{name}.csv")).display().to_string();
            let words = ["agent", &broker.url, "--name", name, "--allow", SERVER, "--log", &log];
            let mut command = folder.lastdrop(&words);
            command.env("LASTDROP_TOKEN", &broker.agent_token);
            let agent = RunningCommand::start(net.hosts[host].inside(&command)).0;
            agent.says(&format!("{name} is in the fleet"));
            agents.push(agent);
        }
        Scene { folder, net, _agents: agents, broker, _server: server, coordinator }
    }

    /// Runs `run` on a path of the server, with all agents or on the coordinator's machine.
    fn run(&self, path: &str, by_fleet: bool, options: &[&str]) -> Value {
        let url = format!("http://{SERVER}{path}");
        let fleet: &[&str] = if by_fleet { &["--fleet", "all", "--nats", &self.broker.url] } else { &[] };
        let mut command = self.folder.lastdrop(&[&["run", &url, "--json", "-"], fleet, options].concat());
        command.env("LASTDROP_TOKEN", &self.broker.token);
        let run = json_of(self.net.hosts[self.coordinator].inside(&command));
        assert_sums(&run);
        run
    }

    /// The number of logged requests of a path, by address.
    fn served(&self, path: &str) -> BTreeMap<String, u64> {
        let mut served = BTreeMap::new();
        for line in fs::read_to_string(self.folder.join("access.log")).expect("the server's log").lines() {
            let (from, uri) = line.split_once(' ').expect("an address");
            if uri == path {
                *served.entry(from.to_owned()).or_insert(0) += 1;
            }
        }
        served
    }

    /// The lines of the latest run in each agent's log.
    fn logs(&self) -> Vec<Vec<LogLine>> {
        AGENTS.iter().map(|name| log(&self.folder.join(&format!("{name}.csv")))).collect()
    }

    /// Asserts that the run agrees with the server's log and the agents' logs.
    fn is_the_truth(&self, path: &str, run: &Value) -> Vec<Vec<LogLine>> {
        let (served, logs) = (self.served(path), self.logs());
        let agents = run["agents"].as_array().expect("agents");
        for (i, agent) in agents.iter().enumerate() {
            assert_eq!((agent["name"].as_str(), agent["complete"].as_bool()), (Some(AGENTS[i]), Some(true)), "{agent}");
            let seen = served.get(&address(i)).copied().unwrap_or(0);
            let requests = &agent["requests"];
            assert_eq!((n(&requests["sent"]), n(&requests["answered"]), logs[i].len() as u64), (seen, seen, seen));
        }
        let requests = &run["phases"][0]["requests"];
        let all: u64 = served.values().sum();
        assert_eq!((n(&requests["sent"]), n(&requests["answered"])), (all, all), "{requests}");
        // The histogram of all seconds equals that of all lines of all agents, bucket by bucket.
        let mut merged = Histogram::new();
        for second in run["phases"][0]["seconds"].as_array().expect("seconds") {
            let text = second["response_hdr"].as_str().expect("a histogram");
            merged.add(&Histogram::decode_base64(text).expect("a histogram"));
        }
        let mut made = Histogram::new();
        logs.iter().flatten().for_each(|line| made.record(line.done - line.due));
        let buckets = |h: &Histogram| h.recorded().collect::<Vec<_>>();
        assert_eq!(buckets(&merged), buckets(&made));
        let told = &run["phases"][0]["latency_us"]["response"];
        let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999)];
        for (name, q) in quantiles {
            assert_eq!(told[name].as_f64(), Some(made.quantile(q) as f64), "{name}");
        }
        assert_eq!((n(&told["count"]), told["max"].as_f64()), (all, Some(made.max() as f64)));
        logs
    }
}

/// The due times in order, in microseconds after the first.
fn schedule(lines: impl IntoIterator<Item = LogLine>) -> Vec<u64> {
    let mut due: Vec<u64> = lines.into_iter().map(|line| line.due).collect();
    due.sort_unstable();
    let first = due[0];
    due.iter().map(|at| at - first).collect()
}

/// Distance of a schedule's gaps from an exponential distribution with that rate (Kolmogorov-Smirnov). It is below 1.63 / √n
/// for 99 of 100 Poisson schedules. `load::arrivals` has the same test for one machine.
fn distance(schedule: &[u64], rate: f64) -> f64 {
    let mut gaps: Vec<f64> = schedule.windows(2).map(|w| (w[1] - w[0]) as f64 * rate / 1e6).collect();
    gaps.sort_by(f64::total_cmp);
    let count = gaps.len() as f64;
    let off = |(i, gap): (usize, &f64)| {
        let expected = 1.0 - (-gap).exp();
        (expected - i as f64 / count).abs().max(((i + 1) as f64 / count - expected).abs())
    };
    gaps.iter().enumerate().map(off).fold(0.0, f64::max)
}

/// The median lateness of the requests, in microseconds.
fn median_lateness(lines: &[LogLine]) -> u64 {
    let mut late: Vec<u64> =
        lines.iter().map(|l| l.sent.checked_sub(l.due).expect("nothing is sent before it is due")).collect();
    late.sort_unstable();
    late[late.len() / 2]
}

#[test]
fn four_agents_are_told_as_the_server_and_their_logs_have_them() {
    let scene = Scene::new();
    // Open loop: the schedule equals that of one machine.
    let options =
        ["-r", "600", "--arrivals", "poisson", "-d", "2s", "--seed", "11", "--drain", "2s", "--connections", "64"];
    let run = scene.run("/open", true, &options);
    let logs = scene.is_the_truth("/open", &run);
    let alone_log = scene.folder.join("alone.csv");
    let alone_path = alone_log.display().to_string();
    let alone = scene.run("/alone", false, &[&options[..], &["--log", &alone_path]].concat());
    let (union, single) = (logs.concat(), log(&alone_log));
    assert_eq!(union.len(), single.len(), "{}", alone["phases"][0]["requests"]);
    let (ours, theirs) = (schedule(union.iter().copied()), schedule(single.iter().copied()));
    // Each agent's start is off by half of a round trip at most, which is reported, with and without a delay.
    let off = run["agents"].as_array().expect("agents").iter().map(|a| n(&a["error_us"])).max().expect("four");
    for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        assert!(a.abs_diff(*b) <= 4 * off + 2_000, "arrival {i}: {a} µs, {b} µs by one machine; clocks ± {off} µs");
    }
    for arrivals in [&ours, &theirs] {
        let (distance, limit) = (distance(arrivals, 600.0), 1.63 / (arrivals.len() as f64).sqrt());
        assert!(distance < limit, "{distance} {limit}");
    }
    let (fleet, one) = (median_lateness(&union), median_lateness(&single));
    assert!(fleet <= 10 * one + 5_000, "half of the requests were {fleet} µs late; {one} µs by one machine");
    // Closed loop: users who wait for their answers.
    let run = scene.run("/closed", true, &["-c", "20", "-n", "3000", "--drain", "2s"]);
    scene.is_the_truth("/closed", &run);
    assert_eq!(n(&run["phases"][0]["requests"]["answered"]), 3000);
}
