//! Servers on other machines: two Apaches behind HAProxy, each with an agent that has its own state folder, and commands that
//! reach them through a broker. All of it runs on this machine.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::common::fleet::{RunningBroker, listen, up};
use crate::common::servers::{Daemon, haproxy};
use crate::common::{Apache, CommandOutput, Folder, free_port, get, n, signal, wait_until};
use serde_json::{Value, json};

/// A running program, and its stderr; ends on drop.
struct RunningProcess {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl RunningProcess {
    fn start(mut command: Command) -> RunningProcess {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let said = Arc::new(Mutex::new(String::new()));
        let (lines, heard) = (BufReader::new(child.stderr.take().expect("its stderr")).lines(), Arc::clone(&said));
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| *heard.lock().expect("lock") += &(line + "\n"));
        });
        RunningProcess { child, said }
    }

    fn said(&self) -> String {
        self.said.lock().expect("lock").clone()
    }

    fn says(&self, what: &str) {
        wait_until(what, || self.said().contains(what));
    }

    fn kill(&mut self) {
        signal(&self.child, libc::SIGKILL);
        self.child.wait().expect("it ends");
    }

    /// Asks it to end and returns its exit code.
    fn end(&mut self) -> Option<i32> {
        signal(&self.child, libc::SIGTERM);
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // The pid of an ended process may have been reused.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.end();
        }
    }
}

/// A machine with a server and an agent.
struct Node {
    name: &'static str,
    agent: RunningProcess,
    apache: Apache,
    before: Vec<(PathBuf, Vec<u8>)>,
    folder: Folder,
}

struct Site {
    nodes: Vec<Node>,
    // Ends after the agents: without a broker they would keep trying to connect.
    broker: RunningBroker,
    _haproxy: Daemon,
    url: String,
    token: PathBuf,
    folder: Folder,
}

/// Options of agents that may change their servers and soon put back what nobody leads any more.
const ACT: &[&str] = &["--act", "--silence", "8s"];

/// A script that only waits, so that the number of workers is the only limit.
const WAIT: &str = "select(undef, undef, undef, 0.05);\nprint \"Content-Type: text/plain\\n\\nok\\n\";\n";

impl Site {
    /// Starts nodes a and b with these pool sizes and options of the agents.
    fn start(options: [&[&str]; 2], pools: [u64; 2]) -> Site {
        let folder = Folder::new();
        let broker = up(&folder, &listen());
        let token = folder.join("token");
        fs::write(&token, &broker.token).expect("written");
        let mut nodes = Vec::new();
        for ((name, options), pool) in ["a", "b"].into_iter().zip(options).zip(pools) {
            let own = Folder::new();
            let apache = Apache::start_with(&own, |text| {
                text.replace("MaxRequestWorkers 50", &format!("MaxRequestWorkers {pool}"))
                    .replace("MaxConnectionsPerChild 10", "MaxConnectionsPerChild 0")
            });
            let script = apache.folder.join("htdocs/perl/wait.pl");
            fs::write(&script, WAIT).expect("written");
            Command::new("chmod").arg("755").arg(&script).status().expect("chmod");
            wait_until("the script", || get(apache.port, "/perl/wait.pl").is_some_and(|b| b.contains("ok")));
            let agent = agent(&own, &broker, name, &apache, options);
            let before = apache.tree();
            nodes.push(Node { name, agent, apache, before, folder: own });
        }
        let port = free_port();
        let servers: String =
            nodes.iter().map(|node| format!("  server {} 127.0.0.1:{}\n", node.name, node.apache.port)).collect();
        let config = format!(
            "defaults\n  mode http\n  timeout connect 5s\n  timeout client 20s\n  timeout server 20s\n  retries 3\n  option redispatch\n\
             frontend front\n  bind 127.0.0.1:{port}\n  default_backend nodes\nbackend nodes\n  balance roundrobin\n{servers}"
        );
        let haproxy = haproxy(&folder, &config, port);
        let url = format!("http://127.0.0.1:{port}/perl/wait.pl");
        let site = Site { nodes, broker, _haproxy: haproxy, url, token, folder };
        wait_until("both agents in the fleet", || site.agents().len() == 2);
        site
    }

    fn agents(&self) -> Vec<Value> {
        self.folder.json(&["fleet", "status"], 0)["agents"].as_array().cloned().unwrap_or_default()
    }

    /// Writes a plan that varies a setting of these servers.
    fn plan(&self, servers: &str, setting: &str, duration: &str) -> String {
        let file = self.folder.join("plan.toml");
        let head = format!("server = {servers}\nurl = '{}'\nusers = 2\nkeepalive = 'off'\n", self.url);
        fs::write(&file, format!("{head}duration = '{duration}'\n[settings]\n{setting}\n")).expect("written");
        file.display().to_string()
    }

    fn pools(&self) -> Vec<Option<usize>> {
        self.nodes.iter().map(|node| node.apache.pool()).collect()
    }

    /// Asserts that all files and the pools are as before.
    fn is_as_it_was(&self, pools: [usize; 2]) {
        // The journal is deleted last, when the server has answered.
        let undone = || self.nodes.iter().all(|node| node.folder.journal().is_none());
        wait_until("the pools that they had", || undone() && self.pools() == pools.map(Some));
        for node in &self.nodes {
            assert_eq!(node.apache.tree(), node.before, "{}", node.name);
        }
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        self.folder.run(args)
    }
}

fn agent(folder: &Folder, of: &RunningBroker, name: &str, apache: &Apache, options: &[&str]) -> RunningProcess {
    let args = ["agent", &of.url, "--name", name, "--server", &apache.name()];
    let mut command = folder.lastdrop(&[&args, options].concat());
    command.env("LASTDROP_TOKEN", &of.agent_token).stdout(Stdio::null());
    let agent = RunningProcess::start(command);
    agent.says("is in the fleet");
    agent
}

#[test]
fn nodes_are_watched_side_by_side_and_the_one_that_differs_is_named() {
    let mut site = Site::start([&[], &[]], [50, 20]);
    // As on a third machine: with only the broker's address and the token.
    let (third, token) = (Folder::new(), site.token.display().to_string());
    let fleet = ["--nats", &site.broker.url, "--token-file", &token];
    let watch = [&["watch", "a,b/apache", "--once", "--interval", "300ms"], &fleet[..]].concat();
    let seen = third.json(&watch, 0);
    let looks = seen["looks"].as_array().expect("looks");
    let names: Vec<&str> = looks.iter().map(|l| l["server"].as_str().expect("a name")).collect();
    assert_eq!(names, ["a/apache", "b/apache"]);
    let named = looks[0]["named"].as_str().expect("a name");
    assert_eq!(named, format!("a/{}", site.nodes[0].apache.name()));
    assert!(looks.iter().all(|l| n(&l["real_memory_bytes"]) > 0 && n(&l["worker_count"]) > 0), "{looks:#?}");
    assert!(seen["workers"].as_array().expect("workers").iter().any(|w| w["server"] == "b/apache"));
    let differs = |document: &Value| -> Vec<Value> {
        document["differs"].as_array().expect("differs").iter().filter(|d| d["what"] == "settings").cloned().collect()
    };
    let wanted =
        json!([{"server": "b/apache", "what": "settings", "name": "MaxRequestWorkers", "value": 20, "others": 50}]);
    assert_eq!(json!(differs(&seen)), wanted);
    let line = "b/apache differs: MaxRequestWorkers is 20, on the others 50";
    // Continuously, a line for each sample.
    let lines = third.run(&[&["watch", "a,b/apache", "--interval", "300ms", "-d", "3s"], &fleet[..]].concat());
    assert!(lines.code == 0 && lines.stdout.matches(line).count() >= 2, "{lines:?}");
    let knobs = third.json(&[&["knobs", "a,b/apache"], &fleet[..]].concat(), 0);
    assert_eq!(json!(differs(&knobs)), wanted);
    let row = |name: &str| {
        let rows = knobs["knobs"].as_array().expect("rows");
        rows.iter().find(|r| r["setting"] == name).unwrap_or_else(|| panic!("{name}: {knobs:#}")).clone()
    };
    assert_eq!(
        (n(&row("a/apache.MaxRequestWorkers")["value"]), n(&row("b/apache.MaxRequestWorkers")["value"])),
        (50, 20)
    );
    // All agents with such a server; a number of them.
    let all = |who| [&["watch", "apache", "--fleet", who, "--once", "--interval", "300ms"], &fleet[..]].concat();
    let seen = third.json(&all("all"), 0);
    assert_eq!(json!(differs(&seen)), wanted);
    let one = third.json(&all("1"), 0);
    assert!(one["server"].as_str().is_some_and(|s| s.starts_with("a/apache:")), "{one:#}");
    let refused = [
        (["watch", "nginx", "--fleet", "all"], "no agent of the fleet looks at nginx"),
        (["watch", "nginx", "--fleet", "b"], "agent b looks at apache:"),
        (["watch", "apache", "--fleet", "a*2"], "weights share out a load"),
        (["watch", "apache", "--fleet", "3"], "3 agents are wanted, the fleet has 2"),
        (["watch", "a/apache", "--fleet", "all"], "and so does 'a/apache'"),
    ];
    for (words, why) in refused {
        let done = third.run(&[&words[..], &fleet[..], &["--once"]].concat());
        assert!(done.code == 2 && done.stderr.contains(why), "{words:?}: {done:?}");
    }
    // A single one is shown like a local one.
    let one = third.json(&[&["watch", "a/apache", "--once", "--interval", "300ms"], &fleet[..]].concat(), 0);
    assert!(
        one["server"].as_str().is_some_and(|s| s.starts_with("a/apache:")) && one.get("looks").is_none(),
        "{one:#}"
    );
    // Samples during a run come from the agent, also if the same agent generates the load.
    let run = ["run", &site.url, "-c", "2", "-d", "2s", "--server", "a/apache", "--fleet", "all"];
    let run = site.folder.json(&run, 0);
    assert_eq!(run["server"]["name"], named, "{:#}", run["server"]);
    let looks = run["server"]["looks"].as_array().expect("looks");
    assert!(looks.len() >= 2 && looks.iter().any(|l| n(&l["worker_count"]) > 0), "{looks:#?}");
    // The agent does not watch a server that was not named at its start.
    let other = site.run(&["watch", "a/nginx", "--once"]);
    assert!(other.code == 1 && other.stderr.contains("agent a: it looks at apache:"), "{other:?}");
    let other = site.run(&["knobs", "a/apache:/etc/passwd"]);
    assert!(other.code == 1 && other.stderr.contains("and not at 'apache:/etc/passwd'"), "{other:?}");
    let nobody = site.run(&["watch", "c/apache", "--once"]);
    assert!(nobody.code == 2 && nobody.stderr.contains("no agent c in the fleet, which has a, b"), "{nobody:?}");
    let here = site.run(&["size", "a/apache"]);
    assert!(here.code == 1 && here.stderr.contains("is on another machine"), "{here:?}");
    // If one agent ends, samples of the other server go on.
    let watch = ["watch", "a,b/apache", "--interval", "300ms", "--json", "-"];
    let mut command = site.folder.lastdrop(&watch);
    let mut watching = RunningProcess::start({
        command.stdout(Stdio::piped());
        command
    });
    let lines = BufReader::new(watching.child.stdout.take().expect("its stdout")).lines().map_while(Result::ok);
    let mut documents = lines.map(|line| serde_json::from_str::<Value>(&line).expect("JSON"));
    let servers = |d: &Value| d["looks"].as_array().map_or(0, Vec::len);
    assert!(documents.any(|d| servers(&d) == 2));
    assert_eq!(site.nodes[0].agent.end(), Some(0));
    assert!(documents.any(|d| servers(&d) == 1 && d["looks"][0]["server"] == "b/apache"));
}

#[test]
fn an_agent_that_may_only_look_changes_nothing_and_counts_who_tries() {
    let site = Site::start([&["--act"], &[]], [6, 6]);
    let plan = site.plan("'b/apache'", "MaxRequestWorkers = [3, 4]", "300ms");
    let refused = site.run(&["sweep", &plan]);
    assert!(
        refused.code == 1 && refused.stderr.contains("agent b: ") && refused.stderr.contains("--act"),
        "{refused:?}"
    );
    let refused = site.run(&["restore", "b/apache"]);
    assert!(refused.code == 1 && refused.stderr.contains("--act"), "{refused:?}");
    // If one of a pair refuses, neither is changed.
    let plan = site.plan("'a,b/apache'", "MaxRequestWorkers = [3, 4]", "300ms");
    let refused = site.run(&["sweep", &plan]);
    assert!(refused.code == 1 && refused.stderr.contains("agent b: "), "{refused:?}");
    site.is_as_it_was([6, 6]);
    site.nodes[1].agent.says("it was started without --act");
    let agents = site.agents();
    assert_eq!((n(&agents[0]["refused"]["declined"]), n(&agents[1]["refused"]["declined"])), (0, 3), "{agents:#?}");
    // The one that may be changed is changed for each row, and restored.
    let plan = site.plan("'a/apache'", "MaxRequestWorkers = [3, 4]", "500ms");
    let document = site.folder.json(&["sweep", &plan, "--quiet"], 0);
    let rows = document["rows"].as_array().expect("rows");
    let values: Vec<u64> = rows.iter().map(|r| n(&r["settings"]["MaxRequestWorkers"])).collect();
    assert_eq!(values, [3, 4]);
    assert!(rows.iter().all(|r| n(&r["answered"]) > 0 && n(&r["failed"]) == 0), "{document:#}");
    assert_eq!(document["server"], format!("a/{}", site.nodes[0].apache.name()));
    site.is_as_it_was([6, 6]);
}

#[test]
fn a_pair_behind_a_balancer_is_tuned_as_one_and_restored_byte_for_byte() {
    let site = Site::start([ACT, ACT], [1, 1]);
    let search = ["--only", "MaxRequestWorkers", "-c", "8", "-d", "1s", "--trials", "3", "--blocks", "4"];
    let args = [&["tune", "a,b/apache", "--url", &site.url], &search[..]].concat();
    let document = site.folder.json(&args, 0);
    // Eight users with requests of 50 ms get more from more workers. With so short blocks that may stay uncertain.
    let verdict = document["verdict"].as_str().expect("a verdict");
    assert!(["improved", "no_gain", "inconclusive"].contains(&verdict), "{document:#}");
    let trials = document["trials"].as_array().expect("trials");
    let larger = |t: &Value| t["settings"]["MaxRequestWorkers"].as_u64().is_some_and(|n| n > 1);
    assert!(trials.iter().any(|t| larger(t) && t["valid"] == true), "{document:#}");
    if verdict == "improved" {
        assert!(larger(&document["winner"]), "{document:#}");
    }
    let names: Vec<String> = site.nodes.iter().map(|node| format!("{}/{}", node.name, node.apache.name())).collect();
    assert_eq!(document["server"], names.join(" + "));
    assert!(trials[0]["real_memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{document:#}");
    site.is_as_it_was([1, 1]);
}

#[test]
fn a_doctor_examines_each_node_and_names_the_one_that_holds_the_site_back() {
    let site = Site::start([&[], &[]], [2, 40]);
    // An agent that hears late that the load has ended samples idle workers for that long. That has to be a small part.
    let load = ["--url", &site.url, "-c", "24", "-d", "4s", "--keepalive", "off"];
    // The balancer's own connections are not visitors.
    let args = [&["doctor", "a,b/apache"], &load[..], &["--no-store", "--ignore-source", "127.0.0.1"]];
    let document = site.folder.json(&args.concat(), 0);
    let examination = &document["examination"];
    let each = examination["nodes"].as_array().expect("nodes");
    let machines: Vec<&str> = each.iter().map(|e| e["machine"].as_str().expect("a name")).collect();
    assert_eq!((machines, examination["machine"].as_str()), (vec!["a", "b"], Some("a, b")));
    for (node, name) in each.iter().zip(["a/apache", "b/apache"]) {
        let steps = node["steps"].as_array().expect("steps");
        let main = steps.iter().find(|s| s["kind"] == "main").expect("the load that is asked about");
        assert_eq!((&main["servers"][0]["server"], n(&main["users"])), (&json!(name), 12), "{main:#}");
    }
    assert_eq!(document["limit"], "workers-exhausted", "{each:#?}");
    let limit = &document["findings"][0];
    assert!(limit["title"].as_str().is_some_and(|t| t.contains("a/apache") && !t.contains("b/apache")), "{limit:#}");
    assert_eq!(limit["fix"][0]["server"], "a/apache", "{limit:#}");
    let differs = document["differs"].as_array().expect("differs");
    let pool = json!({"server": "b/apache", "what": "settings", "name": "MaxRequestWorkers", "value": 40, "others": 2});
    assert!(differs.contains(&pool), "{differs:#?}");
}

/// Starts a sweep of both, and waits for the middle of a row.
fn changed(site: &Site) -> RunningProcess {
    let plan = site.plan("'a,b/apache'", "MaxRequestWorkers = [3, 4]", "60s");
    let mut command = site.folder.lastdrop(&["sweep", &plan, "--quiet"]);
    command.stdout(Stdio::null());
    let sweep = RunningProcess::start(command);
    let stage = |node: &Node| -> Option<Value> {
        let journal: Value = serde_json::from_slice(&fs::read(node.folder.journal()?).ok()?).ok()?;
        Some(journal["stage"].clone())
    };
    // Do not read their status pages before: that would count as a visitor.
    let changed = || site.nodes.iter().all(|node| stage(node) == Some("changed".into()));
    wait_until("a change of both", || changed() || !sweep.said().is_empty());
    let small = |pool: &Option<usize>| matches!(pool, Some(3 | 4));
    wait_until("small pools", || site.pools().iter().all(small) || !sweep.said().is_empty());
    assert_eq!(sweep.said(), "");
    sweep
}

#[test]
fn whoever_is_killed_each_server_is_put_back() {
    let mut site = Site::start([ACT, ACT], [6, 6]);
    // Agents put back by themselves what nobody leads any more.
    changed(&site).kill();
    site.is_as_it_was([6, 6]);
    for node in &site.nodes {
        node.agent.says("nothing was heard for");
    }
    // When all is killed, restore does it: on the machine itself, or from elsewhere once the agent is back.
    let mut sweep = changed(&site);
    for node in &mut site.nodes {
        node.agent.kill();
    }
    sweep.kill();
    let done = site.nodes[0].folder.run(&["restore"]);
    assert!(done.code == 0 && done.stdout.contains("put back as it was found"), "{done:?}");
    for node in &mut site.nodes {
        node.agent = agent(&node.folder, &site.broker, node.name, &node.apache, ACT);
    }
    wait_until("both agents in the fleet", || site.agents().len() == 2);
    // Until then no new change is possible.
    let plan = site.plan("'b/apache'", "MaxRequestWorkers = [3, 4]", "300ms");
    let refused = site.run(&["sweep", &plan]);
    assert!(refused.code == 1 && refused.stderr.contains("left its settings changed"), "{refused:?}");
    let restore = |more: &[&str], words: &str, times: usize| {
        let done = site.run(&[&["restore", "a,b/apache"], more].concat());
        assert!(done.code == 0 && done.stdout.matches(words).count() == times, "{words}: {done:?}");
        done.stdout
    };
    restore(&["--dry-run"], "would be put back", 1);
    let done = restore(&[], "put back as it was found", 1);
    assert!(done.contains("b/apache:"), "{done}");
    site.is_as_it_was([6, 6]);
    restore(&[], "Nothing to put back", 1);
    // An agent that is asked to end restores first, and the coordinator learns of it.
    let mut sweep = changed(&site);
    for node in &mut site.nodes {
        assert_eq!(node.agent.end(), Some(0));
    }
    site.is_as_it_was([6, 6]);
    assert!(sweep.end().is_some_and(|code| code != 0));
}
