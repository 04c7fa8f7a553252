//! `doctor AGENT/KIND`: servers of another machine, which an agent there examines and changes. The agent has its own state
//! folder; the coordinator only knows the broker's address and the token.

use std::fs;
use std::io::{BufReader, Read};
use std::process::ChildStdout;

use crate::common::fleet::{RunningBroker, RunningCommand, listen, up};
use crate::common::servers::{Fpm, nginx, open_folder, php, php_site};
use crate::common::{Apache, Folder, Target, free_port, n, number, wait_until};
use serde_json::Value;

/// A broker, an agent `web` with its servers in a folder of its own, and a coordinator in a third folder.
struct RemoteFixture {
    // The agent ends first: without a broker it would keep trying to connect.
    agent: RunningCommand,
    _broker: RunningBroker,
    asks: Folder,
    _folder: Folder,
    fleet: [String; 4],
}

impl RemoteFixture {
    fn start(machine: &Folder, options: &[&str]) -> RemoteFixture {
        let folder = Folder::new();
        let broker = up(&folder, &listen());
        let agent = broker.agent(machine, "web", options);
        agent.says("is in the fleet");
        let asks = Folder::new();
        let token = asks.join("token");
        fs::write(&token, &broker.token).expect("written");
        let fleet = ["--nats".into(), broker.url.clone(), "--token-file".into(), token.display().to_string()];
        RemoteFixture { agent, _broker: broker, asks, _folder: folder, fleet }
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        ["doctor"].into_iter().chain(args.iter().copied()).chain(self.fleet.iter().map(String::as_str)).collect()
    }

    fn json(&self, args: &[&str]) -> Value {
        self.asks.json(&self.args(args), 0)
    }

    /// Starts a doctor.
    fn begins(&self, args: &[&str]) -> (RunningCommand, BufReader<ChildStdout>) {
        RunningCommand::start(self.asks.lastdrop(&self.args(args)))
    }

    fn refuses(&self, args: &[&str], code: i32, why: &str) {
        let refused = self.asks.run(&self.args(args));
        assert!(refused.code == code && refused.stderr.contains(why), "{why}: {refused:?}");
    }
}

fn names(of: &Value) -> Vec<&str> {
    of.as_array().expect("a list").iter().map(|one| one["server"].as_str().expect("a name")).collect()
}

/// A doctor's command with a load that is too much for two workers of 100 ms.
fn asked<'a>(server: &'a str, url: &'a str) -> [&'a str; 10] {
    ["--url", url, "-d", "2s", "--keepalive", "off", "-c", "12", "--no-store", server]
}

#[test]
fn a_small_pool_of_another_machine_is_found_its_change_is_tried_and_put_back() {
    let machine = Folder::new();
    let apache = Apache::small(&machine);
    let there = RemoteFixture::start(&machine, &["--server", &apache.name(), "--act"]);
    let (before, url) = (apache.tree(), apache.url("/perl/sleep.pl"));
    let said = there.json(&[&asked("web/apache", &url)[..], &["--confirm"]].concat());
    assert_eq!(said["limit"], "workers-exhausted", "{:#} {:#}", said["findings"], said["examination"]["steps"]);
    let limit = &said["findings"][0];
    assert_eq!((&limit["server"], &limit["fix"][0]["server"]), (&"web/apache".into(), &"web/apache".into()));
    assert_eq!(names(&said["chain"]), ["web/apache"]);
    let examination = &said["examination"];
    assert_eq!((&examination["machine"], n(&examination["processors"]) > 0), (&"web".into(), true));
    let named = examination["servers"][0]["named"].as_str().expect("a name");
    assert_eq!(named, "web/apache");
    assert!(number(&said["cost_cores"]) > 0.0, "{}", said["cost_cores"]);
    for step in examination["steps"].as_array().expect("steps") {
        if step["kind"] != "alone" && step["kind"] != "inside" {
            assert_eq!(names(&step["servers"]), ["web/apache"], "{step:#}");
            assert_eq!(step["servers"][0]["top_client"], Value::Null, "the load is no visitor: {step:#}");
        }
    }
    assert_eq!(names(&examination["inside"]), ["web/apache"]);
    let confirmed = &said["confirmed"];
    assert!(number(&confirmed["ratio"]) > 1.5 && number(&confirmed["interval"][0]) > 1.0, "{confirmed:#}");
    assert_ne!(confirmed["limit_after"], "workers-exhausted", "{confirmed:#}");
    assert_eq!(confirmed["kept"], false);
    assert_eq!((apache.tree(), machine.journal(), apache.pool()), (before, None, Some(2)), "put back");
    assert_eq!(there.asks.journal(), None, "nothing was changed by whoever asked");
    // The text names the machine.
    let file = there.asks.join("said.json");
    fs::write(&file, said.to_string()).expect("written");
    let text = there.asks.run(&["doctor", "--from", &file.display().to_string()]);
    assert!(text.code == 0 && text.stdout.contains("of agent web's machine"), "{text:?}");
    assert!(text.stdout.contains("web/apache"), "{text:?}");
}

#[test]
fn what_an_agent_may_not_do_is_refused_before_any_load() {
    let machine = Folder::new();
    let target = Target::with_config(&machine, "workers = 2\nservice = '20ms'\n");
    let there = RemoteFixture::start(&machine, &["--server", &target.name()]);
    let (url, before) = (target.url(), || n(&target.counts()["requests"]));
    let asked_before = before();
    there.refuses(&asked("web/nginx", &url), 1, "agent web: it looks at target:");
    there.refuses(&asked("web/target:/etc/passwd", &url), 1, "and not at 'target:/etc/passwd'");
    there.refuses(&[&asked("web/target", &url)[..], &["web/nginx"]].concat(), 1, "and not at 'nginx'");
    there.refuses(&asked("nobody/target", &url), 2, "no agent nobody in the fleet, which has web");
    there.refuses(
        &[&asked("web/target", &url)[..], &["--confirm"]].concat(),
        2,
        "agent web only looks: start it with --act",
    );
    there.refuses(&[&asked("web/target", &url)[..], &["--db", "postgres://me@db.example/"]].concat(), 2, "no --db");
    there.refuses(&[&asked("web/target", &url)[..], &["target"]].concat(), 2, "are on different ones");
    // Only the status page was requested.
    assert!(before() <= asked_before + 2, "a load was put on");
}

#[test]
fn what_is_behind_is_examined_where_the_agent_was_started_with_it_and_named_otherwise() {
    let machine = Folder::new();
    let fpm = Fpm::start(&machine, 2, "");
    let (port, root) = (free_port(), open_folder(&machine, "www"));
    let _nginx = nginx(&machine, &php_site(port, &root, &fpm.socket), port);
    php(&root, "sleep.php", "usleep(60000); echo 'ok';");
    let url = format!("http://127.0.0.1:{port}/sleep.php");
    let config = machine.join("nginx.conf").display().to_string();
    let front = format!("nginx:{config}");
    let args = [&asked("web/nginx", &url)[..], &["--gentle"]].concat();
    {
        let there = RemoteFixture::start(&machine, &["--server", &front]);
        let said = there.json(&args);
        assert_eq!(names(&said["examination"]["servers"]), ["web/nginx"]);
        let unseen = said["unseen"].to_string();
        assert!(unseen.contains("web: php-fpm, which takes part, is none of the servers"), "{unseen}");
    }
    let pool = format!("pool={}", fpm.name());
    let there = RemoteFixture::start(&machine, &["--server", &front, "--server", &pool]);
    let said = there.json(&args);
    assert_eq!(names(&said["chain"]), ["web/nginx", "web/pool"], "{:#}", said["chain"]);
    assert_eq!(said["chain"][0]["to"][0], "web/pool");
    let named = said["examination"]["servers"][1]["named"].as_str().expect("a name");
    assert!(named.starts_with("web/php-fpm:"), "{named}");
    let steps = said["examination"]["steps"].as_array().expect("steps");
    let few = steps.iter().find(|s| s["kind"] == "few").expect("a step");
    assert_eq!(names(&few["servers"]), ["web/nginx", "web/pool"]);
}

#[test]
fn a_tune_of_another_machines_server_tries_first_what_a_look_there_proposes() {
    let machine = Folder::new();
    let target = Target::with_config(&machine, "workers = 2\nservice = '40ms'\n");
    let there = RemoteFixture::start(&machine, &["--server", &target.name(), "--act"]);
    let (url, before) = (target.url(), fs::read(machine.join("target.toml")).expect("its configuration"));
    let tune =
        ["tune", "web/target", "--url", &url, "--doctor", "-c", "12", "-d", "500ms", "--trials", "2", "--blocks", "4"];
    let fleet: Vec<&str> = there.fleet.iter().map(String::as_str).collect();
    let document = there.asks.json(&[&tune[..], &["--no-store"], &fleet].concat(), 0);
    let proposals = document["proposals"].as_array().unwrap_or_else(|| panic!("{document:#}"));
    let proposed = proposals.iter().find(|p| p["finding"] == "workers-exhausted").expect("more workers");
    assert!(proposed["settings"]["workers"].as_i64().is_some_and(|n| n > 2), "{proposed:#}");
    assert_eq!((fs::read(machine.join("target.toml")).expect("read"), machine.journal()), (before, None), "put back");
}

#[test]
fn an_agent_that_ends_while_a_change_is_tried_puts_it_back_and_the_doctor_says_so() {
    let machine = Folder::new();
    let target = Target::with_config(&machine, "workers = 2\nservice = '100ms'\n");
    let there = RemoteFixture::start(&machine, &["--server", &target.name(), "--act"]);
    let config = || fs::read(machine.join("target.toml")).expect("its configuration");
    let (before, url) = (config(), target.url());
    let (doctor, mut out) = there.begins(&[&asked("web/target", &url)[..], &["--confirm", "--json", "-"]].concat());
    doctor.says("does it help?");
    let stage = || -> Option<Value> {
        let journal: Value = serde_json::from_slice(&fs::read(machine.journal()?).ok()?).ok()?;
        Some(journal["stage"].clone())
    };
    wait_until("the change", || stage() == Some("changed".into()));
    assert_eq!(there.agent.end(libc::SIGTERM), Some(0));
    assert_eq!((config(), machine.journal()), (before, None), "put back");
    let mut text = String::new();
    out.read_to_string(&mut text).expect("its document");
    let why = doctor.says("agent web: ");
    assert!(why.contains("it has ended the conversation"), "{why}");
    assert_eq!(doctor.end(libc::SIGCONT), Some(1));
    // The findings from before are not lost.
    let said: Value = serde_json::from_str(&text).expect("one document");
    assert_eq!((&said["limit"], &said["confirmed"]), (&"workers-exhausted".into(), &Value::Null), "{said:#}");
    assert!(said["notes"].to_string().contains("the change was not tried to its end: "), "{}", said["notes"]);
}

#[test]
fn an_agent_that_ends_before_the_load_that_is_asked_about_ends_the_examination() {
    let machine = Folder::new();
    let target = Target::with_config(&machine, "workers = 2\nservice = '50ms'\n");
    let there = RemoteFixture::start(&machine, &["--server", &target.name()]);
    let url = target.url();
    let (doctor, mut out) = there.begins(&[&asked("web/target", &url)[..], &["--json", "-"]].concat());
    doctor.says("4 users");
    assert_eq!(there.agent.end(libc::SIGTERM), Some(0));
    let mut text = String::new();
    out.read_to_string(&mut text).expect("its stdout");
    let why = doctor.says("agent web: ");
    assert!(why.contains("it has ended the conversation"), "{why}");
    assert_eq!((doctor.end(libc::SIGCONT), text.as_str()), (Some(1), ""), "no document of half an examination");
}
