//! `fleet` and `agent`: their output, who may join, and what a kill leaves.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::fleet::{RunningBroker, RunningCommand, listen, up};
use crate::common::{Folder, Target, assert_sums, json_of, n, wait_until};

#[test]
fn a_fleet_is_up_shows_its_agents_and_goes_without_a_trace() {
    let folder = Folder::new();
    let fleet = up(&folder, &listen());
    assert!(fleet.url.starts_with("tls://127.0.0.1:"), "{}", fleet.url);
    assert!(fleet.token.starts_with("ldt1.") && fleet.agent_token.starts_with("lda1."));
    for secret in ["token", "key.pem", "nats.conf"] {
        let mode = fs::metadata(folder.join("state/fleet").join(secret)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{secret}");
    }
    // Without options it is the fleet of this machine.
    let document = folder.json(&["fleet", "status"], 0);
    assert_eq!(
        (document["schema"].as_str(), document["agents"].as_array().map(Vec::len)),
        (Some("lastdrop.fleet/1"), Some(0))
    );
    let a = fleet.agent(
        &folder,
        "web-1",
        &["--allow", "shop.example", "--server", "nginx", "--act", "--max-rate", "500", "--max-time", "1m"],
    );
    let b = fleet.agent(&folder, "web-2", &["--skew", "5000000"]);
    a.says("web-1 is in the fleet");
    b.says("web-2 is in the fleet");
    let mut command = folder.lastdrop(&["fleet", "status", "--nats", &fleet.url, "--json", "-"]);
    let output = command.env("LASTDROP_TOKEN", &fleet.token).output().expect("it runs");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    let agents = document["agents"].as_array().expect("agents");
    assert_eq!(agents.iter().map(|a| a["name"].as_str().expect("a name")).collect::<Vec<_>>(), ["web-1", "web-2"]);
    let web = &agents[0];
    assert_eq!(
        (&web["looks"][0], &web["allow"][0], &web["act"]),
        (&"nginx".into(), &"shop.example".into(), &true.into())
    );
    assert_eq!((web["max_rate"].as_f64(), web["max_time_s"].as_f64()), (Some(500.0), Some(60.0)));
    assert_eq!(
        (web["address"].as_str(), web["version"].as_str()),
        (Some("127.0.0.1"), Some(env!("CARGO_PKG_VERSION")))
    );
    for (agent, skew) in agents.iter().zip([0, 5_000_000]) {
        let (offset, error) =
            (agent["offset_us"].as_i64().expect("a number"), agent["error_us"].as_u64().expect("a number"));
        assert!((offset - skew).unsigned_abs() <= error, "{agent}");
    }
    let text = folder.run(&["fleet", "status"]).stdout;
    assert!(text.starts_with("2 agents\n") && text.contains("looks at and changes nginx"), "{text}");
    assert_eq!(a.end(libc::SIGTERM), Some(0));
    assert_eq!(b.end(libc::SIGINT), Some(0));
    assert_eq!(RunningBroker::servers(&folder).len(), 1);
    assert_eq!(fleet.running.end(libc::SIGTERM), Some(0));
    assert!(RunningBroker::servers(&folder).is_empty());
}

#[test]
fn a_killed_broker_is_started_again_and_a_killed_fleet_leaves_nothing_behind() {
    let folder = Folder::new();
    let address = listen();
    let fleet = up(&folder, &address);
    let agent = fleet.agent(&folder, "a", &[]);
    agent.says("a is in the fleet");
    let [server] = RunningBroker::servers(&folder)[..] else { panic!("one nats-server") };
    // SAFETY: a plain call on the child of our child.
    unsafe { libc::kill(server, libc::SIGKILL) };
    fleet.running.says("killed by signal 9; starting it again");
    agent.says("the broker is back");
    let one = |folder: &Folder| folder.json(&["fleet", "status"], 0)["agents"].as_array().map(Vec::len) == Some(1);
    wait_until("the agent in the fleet again", || one(&folder));
    let (url, token) = (fleet.url.clone(), fleet.token.clone());
    assert_eq!(fleet.running.end(libc::SIGKILL), None);
    wait_until("nats-server to follow", || RunningBroker::servers(&folder).is_empty());
    // A restart in the same folder is the same fleet; its agent reconnects by itself.
    let fleet = up(&folder, &address);
    assert_eq!((&fleet.url, &fleet.token), (&url, &token));
    agent.says("the broker is back");
    wait_until("the agent in the fleet again", || one(&folder));
    // A second broker cannot use the folder.
    let second = folder.run(&["fleet", "up", "--listen", &listen()]);
    assert!(second.code == 2 && second.stderr.contains("another broker is up"), "{second:?}");
}

#[test]
fn tokens_that_do_not_fit_open_nothing_and_say_why() {
    let (folder, other) = (Folder::new(), Folder::new());
    let (fleet, stranger) = (up(&folder, &listen()), up(&other, &listen()));
    let with = |args: &[&str], token: &str| {
        let output = folder.lastdrop(args).env("LASTDROP_TOKEN", token).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let status = ["fleet", "status", "--nats", &fleet.url];
    let (code, said) = with(&status, &fleet.agent_token);
    assert!(code == Some(2) && said.contains("only lets agents join"), "{said}");
    let (code, said) = with(&status, &stranger.token);
    assert!(code == Some(1) && said.contains("another certificate"), "{said}");
    let (code, said) = with(&["agent", &fleet.url, "--name", "x"], &stranger.agent_token);
    assert!(code == Some(1) && said.contains("another certificate"), "{said}");
    let (code, said) = with(&["agent", &fleet.url, "--name", "x"], "lda1.nonsense");
    assert!(code == Some(2) && said.contains("damaged"), "{said}");
    let (code, said) = with(&["agent", "http://127.0.0.1/", "--name", "x"], &fleet.agent_token);
    assert!(code == Some(2) && said.contains("no address of a broker"), "{said}");
    let (code, said) = with(&["agent", &fleet.url, "--name", "12"], &fleet.agent_token);
    assert!(code == Some(2) && said.contains("no name of an agent"), "{said}");
    let (code, said) = with(&["agent", &fleet.url], "");
    assert!(code == Some(2) && said.contains("needs a token"), "{said}");
    // A token on a command line works, with a warning, and ps does not show it.
    let (agent, _) =
        RunningCommand::start(folder.lastdrop(&["agent", &fleet.url, "--name", "a", "--token", &fleet.agent_token]));
    agent.says("can be seen by others");
    agent.says("a is in the fleet");
    let line = fs::read(format!("/proc/{}/cmdline", agent.child.id())).expect("its command line");
    assert!(!String::from_utf8_lossy(&line).contains("lda1."));
    // And in a file.
    let file = folder.join("token");
    fs::write(&file, format!("{}\n", fleet.token)).expect("written");
    let done = folder.run(&["fleet", "status", "--nats", &fleet.url, "--token-file", &file.to_string_lossy()]);
    assert!(done.code == 0 && done.stdout.starts_with("1 agent\n"), "{done:?}");
}

/// A fake ssh that runs commands on this machine and logs its arguments.
fn ssh(folder: &Folder) -> String {
    let path = folder.join("ssh");
    let script = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$*\" >> {}/calls\nwhile [ \"$1\" != -- ]; do shift; done\nexport LASTDROP_STATE={}/$2\nexec sh -c \"$3\"\n",
        path_text(folder.path()),
        path_text(folder.path())
    );
    fs::write(&path, script).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    path.to_string_lossy().into_owned()
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[test]
fn agents_are_started_by_ssh_with_the_token_on_its_stdin() {
    let folder = Folder::new();
    let fleet = up(&folder, &listen());
    let program = env!("CARGO_BIN_EXE_lastdrop");
    let ssh = format!("{} -p 2222", ssh(&folder));
    let (remote, _) = RunningCommand::start(folder.lastdrop(&[
        "fleet",
        "ssh",
        "web-1",
        "me@10.0.0.7",
        "--ssh",
        &ssh,
        "--program",
        program,
    ]));
    for _ in 0..2 {
        remote.says("is in the fleet");
    }
    let agents = folder.json(&["fleet", "status"], 0);
    let names: Vec<_> =
        agents["agents"].as_array().expect("agents").iter().map(|a| a["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["10-0-0-7", "web-1"]);
    let calls = fs::read_to_string(folder.join("calls")).expect("calls");
    assert!(calls.contains("-p 2222 -- web-1 ") && !calls.contains("lda1.") && !calls.contains("ldt1."), "{calls}");
    assert_eq!(remote.end(libc::SIGINT), Some(0));
    assert_eq!(folder.json(&["fleet", "status"], 0)["agents"].as_array().map(Vec::len), Some(0));
    let twice = folder.run(&["fleet", "ssh", "a.b", "x@a.b"]);
    assert!(twice.code == 2 && twice.stderr.contains("would both be agent a-b"), "{twice:?}");
    drop(fleet);
}

#[test]
fn a_nats_server_of_ones_own_with_the_users_that_are_written_for_it_is_a_broker() {
    let folder = Folder::new();
    let text = |name: &str| path_text(&folder.join(name));
    let (key, certificate, users) = (text("key.pem"), text("certificate.pem"), text("users.conf"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=nats.example"]);
    openssl.args(["-keyout", &key, "-out", &certificate]);
    assert!(openssl.output().expect("openssl (./x test installs it)").status.success());
    let made = folder.run(&["fleet", "config", "--certificate", &certificate, "-o", &users, "a", "b"]);
    assert_eq!(made.code, 0, "{made:?}");
    let value = |name: &str| {
        let line = made.stdout.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} in {made:?}")).to_owned()
    };
    let (token, agent_token) = (value("token "), value("agent-token "));
    assert_eq!(fs::metadata(&users).expect("written").permissions().mode() & 0o077, 0);
    // The owner of the server writes the rest of its configuration.
    let address = listen();
    let config = format!(
        "listen: \"{address}\"\ntls {{ cert_file: \"{certificate}\", key_file: \"{key}\" }}\njetstream {{ store_dir: \"{}\" }}\ninclude \"users.conf\"\n",
        text("jetstream")
    );
    fs::write(folder.join("own.conf"), config).expect("written");
    let mut server = Command::new("nats-server");
    server.args(["--config", &text("own.conf")]);
    let (server, _) = RunningCommand::start(server);
    server.says("Server is ready");
    let url = format!("tls://{address}");
    let agent = |name: &str| {
        let mut command = folder.lastdrop(&["agent", &url, "--name", name]);
        command.env("LASTDROP_TOKEN", &agent_token);
        RunningCommand::start(command).0
    };
    let agents = [agent("a"), agent("b")];
    agents.iter().for_each(|a| drop(a.says("is in the fleet")));
    let target = Target::start(&folder, &[]);
    let with = |args: &[&str]| {
        let mut command = folder.lastdrop(&[args, &["--nats", &url, "--json", "-"]].concat());
        command.env("LASTDROP_TOKEN", &token);
        json_of(command)
    };
    let run = with(&["run", &target.url(), "--fleet", "all", "-n", "100", "-c", "4"]);
    assert_sums(&run);
    assert_eq!(n(&run["phases"][0]["requests"]["answered"]), 100);
    assert!(run["agents"].as_array().expect("agents").iter().all(|a| a["complete"] == true), "{}", run["agents"]);
    // The server refuses agents that its configuration does not name, whatever token they have.
    let mut stranger = agent("c");
    stranger.says("does not let us in");
    assert_eq!(stranger.child.wait().expect("it ends").code(), Some(1));
    // More agents later, with the existing token, but not with another fleet's.
    let file = text("token");
    fs::write(&file, &token).expect("written");
    let more = ["fleet", "config", "--certificate", &certificate, "-o", &users, "--token-file", &file, "a", "b", "c"];
    let made = folder.run(&more);
    assert!(made.code == 0 && made.stdout.contains(&token), "{made:?}");
    let written = fs::read_to_string(&users).expect("users");
    assert!(written.contains("agent-c") && !written.contains("joiner") && !written.contains("ldt1."), "{written}");
    fs::write(&file, "lda1.AAAA").expect("written");
    let refused = folder.run(&more);
    assert!(refused.code == 2 && refused.stderr.contains("agent-token"), "{refused:?}");
}
