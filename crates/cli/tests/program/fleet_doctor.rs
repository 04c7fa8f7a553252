//! `doctor --fleet`: the load comes from many machines, the server is examined here.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::common::fleet::Fleet;
use crate::common::{Apache, Folder, Target, n, number, signal};
use serde_json::Value;

#[test]
fn a_fleet_shows_the_doctor_what_one_machine_would() {
    let folder = Folder::new();
    let apache = Apache::small(&folder);
    let _fleet = Fleet::start(&folder, &[("a", &[]), ("b", &[])]);
    let url = apache.url("/perl/sleep.pl");
    let args = ["doctor", &apache.name(), "--url", &url, "-d", "4s", "--keepalive", "off", "-c", "12"];
    let said = folder.json(&[&args[..], &["--fleet", "all"]].concat(), 0);
    assert_eq!(said["limit"], "workers-exhausted", "{:#} {:#}", said["findings"], said["examination"]["steps"]);
    let steps = said["examination"]["steps"].as_array().expect("steps");
    assert!(steps.len() >= 5, "{steps:#?}");
    for step in steps.iter().filter(|s| s["kind"] != "alone" && s["kind"] != "inside") {
        assert!(!step["servers"].as_array().expect("servers").is_empty(), "{step:#}");
        // The agents are on this machine, so their CPU time is known.
        assert!(number(&step["generator"]["cores_here"]) > 0.0, "{step:#}");
        assert_eq!(step["servers"][0]["top_client"], Value::Null, "agents are no visitors: {step:#}");
        let run = folder.json(&["show", step["run"].as_str().expect("an id")], 0);
        assert_eq!(run["agents"].as_array().map(Vec::len), Some(2), "{:#}", run["agents"]);
    }
}

#[test]
fn nothing_is_concluded_from_a_step_in_which_an_agent_was_lost() {
    let folder = Folder::new();
    let target = Target::with_config(&folder, "workers = 2\nservice = '50ms'\n");
    let fleet = Fleet::start(&folder, &[("a", &[]), ("b", &[])]);
    let (name, url) = (target.name(), target.url());
    let refused = folder.run(&["doctor", &name, "--url", &url, "--observe", "--fleet", "all"]);
    assert!(refused.code == 2 && refused.stderr.contains("--observe"), "{refused:?}");
    let args = ["doctor", &name, "--url", &url, "-c", "12", "-d", "6s", "--timeout", "1s", "--keepalive", "off"];
    let mut command = folder.lastdrop(&[&args[..], &["--fleet", "all", "--json", "-"]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut told = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("12 users") {
        line.clear();
        assert_ne!(told.read_line(&mut line).expect("text"), 0, "it ended before the load that is asked about");
    }
    // The status page needs one of the two workers, too.
    let requests = || n(&target.counts()["requests"]);
    let before = requests();
    crate::common::wait_until("a second of the load that is asked about", || requests() >= before + 60);
    signal(&fleet.agents[1].child, libc::SIGKILL);
    let reading = std::thread::spawn(move || {
        let mut rest = String::new();
        told.read_to_string(&mut rest).map(|_| rest)
    });
    let output = child.wait_with_output().expect("it ends");
    let rest = reading.join().expect("read");
    assert_eq!(output.status.code(), Some(4), "{rest:?}");
    let said: Value = serde_json::from_slice(&output.stdout).expect("one document");
    let steps = said["examination"]["steps"].as_array().expect("steps");
    let main = steps.iter().find(|s| s["kind"] == "main").expect("the step");
    assert_eq!(main["lost"], serde_json::json!(["b"]), "{main:#}");
    assert_eq!((&said["limit"], said["findings"].as_array().map(Vec::len)), (&Value::Null, Some(0)), "{said:#}");
    assert!(said["notes"].to_string().contains("agent b was lost"), "{}", said["notes"]);
}
