//! A fleet for a test: `fleet up`, agents, and their output.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::{Folder, free_port, signal, wait_until};

/// A running command, and its lines on stderr.
pub struct RunningCommand {
    pub child: Child,
    lines: Receiver<String>,
}

impl RunningCommand {
    pub fn start(mut command: Command) -> (RunningCommand, BufReader<std::process::ChildStdout>) {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let (send, lines) = channel();
        let err = BufReader::new(child.stderr.take().expect("its stderr"));
        std::thread::spawn(move || err.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let out = BufReader::new(child.stdout.take().expect("its stdout"));
        (RunningCommand { child, lines }, out)
    }

    pub fn says(&self, what: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut said = Vec::new();
        while let Some(rest) = deadline.checked_duration_since(Instant::now()) {
            match self.lines.recv_timeout(rest) {
                Ok(line) if line.contains(what) => return line,
                Ok(line) => said.push(line),
                Err(_) => break,
            }
        }
        panic!("it never said {what:?}, but {said:#?}");
    }

    /// Sends a signal and returns the exit code.
    pub fn end(mut self, number: i32) -> Option<i32> {
        signal(&self.child, number);
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `fleet up`, and the URL and tokens that it has printed.
pub struct RunningBroker {
    pub running: RunningCommand,
    pub url: String,
    pub token: String,
    pub agent_token: String,
}

pub fn up(folder: &Folder, listen: &str) -> RunningBroker {
    up_by(folder.lastdrop(&["fleet", "up", "--listen", listen]))
}

/// Like [`up`], with another command.
pub fn up_by(command: Command) -> RunningBroker {
    let (running, out) = RunningCommand::start(command);
    let mut lines = out.lines().map(|line| line.expect("a line"));
    let mut value = |name: &str| {
        let line = lines.next().unwrap_or_else(|| panic!("no line for {name}; is nats-server installed?"));
        line.strip_prefix(name).unwrap_or_else(|| panic!("{name} in {line:?}")).trim().to_string()
    };
    let (url, token, agent_token) = (value("url "), value("token "), value("agent-token "));
    RunningBroker { running, url, token, agent_token }
}

/// A free address for a broker.
pub fn listen() -> String {
    format!("127.0.0.1:{}", free_port())
}

impl RunningBroker {
    pub fn agent(&self, folder: &Folder, name: &str, more: &[&str]) -> RunningCommand {
        let mut command = folder.lastdrop(&[&["agent", &self.url, "--name", name], more].concat());
        command.env("LASTDROP_TOKEN", &self.agent_token);
        RunningCommand::start(command).0
    }

    /// The processes of the broker in a folder.
    pub fn servers(folder: &Folder) -> Vec<i32> {
        let marker = folder.join("state/fleet/nats.conf").to_string_lossy().into_owned();
        let runs = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(b"nats-server") && String::from_utf8_lossy(&line).contains(&marker)
        };
        let all = fs::read_dir("/proc").expect("proc").flatten();
        all.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(runs).collect()
    }
}

/// A broker, and agents with folders of their own; all end on drop.
pub struct Fleet {
    // The agents end first: without a broker they would keep trying to connect.
    pub agents: Vec<RunningCommand>,
    _broker: RunningBroker,
}

impl Fleet {
    /// Starts a broker and agents with these names and options. Commands in the folder find the fleet by themselves.
    pub fn start(folder: &Folder, agents: &[(&str, &[&str])]) -> Fleet {
        let broker = up(folder, &listen());
        let agents = agents.iter().map(|(name, more)| broker.agent(folder, name, more)).collect();
        let fleet = Fleet { agents, _broker: broker };
        let members = || folder.json(&["fleet", "status"], 0)["agents"].as_array().map_or(0, Vec::len);
        wait_until("all agents in the fleet", || members() == fleet.agents.len());
        fleet
    }
}
