//! A fleet of the test's own: a broker, and agents with folders of their own. Dropped, all of it ends.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::{Folder, free_port, wait_until};

/// A program that goes on; dropped, it ends.
pub struct Running(pub Child);

impl Running {
    pub fn start(mut command: Command) -> Running {
        Running(command.stderr(Stdio::null()).spawn().expect("it starts"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Fleet {
    // Ended in this order: whoever is left without a broker would go on trying.
    pub agents: Vec<Running>,
    _broker: Running,
}

impl Fleet {
    /// Agents by their names, each with options of its own. Commands of the folder find the fleet by themselves.
    pub fn start(folder: &Folder, agents: &[(&str, &[&str])]) -> Fleet {
        let mut broker = folder.lastdrop(&["fleet", "up", "--listen", &format!("127.0.0.1:{}", free_port())]);
        let mut child = broker.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut said = BufReader::new(child.stdout.take().expect("its stdout")).lines().map_while(Result::ok);
        let broker = Running(child);
        let mut value = |name: &str| {
            let line = said.next().unwrap_or_else(|| panic!("no line for {name}; is nats-server installed?"));
            line.strip_prefix(name).unwrap_or_else(|| panic!("{name} in {line:?}")).trim().to_string()
        };
        let (address, _token, agent_token) = (value("url "), value("token "), value("agent-token "));
        let agent = |(name, more): &(&str, &[&str])| {
            let mut command = folder.lastdrop(&[&["agent", &address, "--name", name], *more].concat());
            command.env("LASTDROP_TOKEN", &agent_token).stdout(Stdio::null());
            Running::start(command)
        };
        let fleet = Fleet { agents: agents.iter().map(agent).collect(), _broker: broker };
        let members = || folder.json(&["fleet", "status"], 0)["agents"].as_array().map_or(0, Vec::len);
        wait_until("all agents in the fleet", || members() == fleet.agents.len());
        fleet
    }
}
