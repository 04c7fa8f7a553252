//! `lastdrop fleet ssh HOST…`: agents on other machines, started by ssh.
//!
//! The agent-token goes through ssh's stdin, so it is in no command line and no environment on the other machine. A line on
//! the same stdin ends the agent. A broken connection does not: a run may be in progress.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_probe::tool;

use crate::commands::agent::{END, name_of_host};
use crate::exit::{Exit, UsageError};
use crate::options::FleetArgs;
use crate::signals::Stop;
use crate::stdio::note;

/// How long to wait for agents to end. Before that they publish their records, which takes up to 10 s.
const ENDING: Duration = Duration::from_secs(20);

#[derive(Debug, Args)]
#[command(
    after_help = "lastdrop must be there in the same version. Each agent is called as its host; what it says is shown with its name. Ctrl-C ends all agents; \
                  a connection that breaks leaves its agent at work.\n\nExamples:\n  lastdrop fleet ssh web-1 web-2 admin@10.0.0.7\n  lastdrop fleet ssh web-1 --allow shop.example --ssh 'ssh -p 2222'"
)]
pub struct SshArgs {
    /// Hosts as ssh knows them: HOST or USER@HOST
    #[arg(value_name = "HOST", required = true)]
    pub hosts: Vec<String>,
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// A host that load may be put on, for all agents; may be several [default: the agent's machine only]
    #[arg(long, value_name = "HOST")]
    pub allow: Vec<String>,
    /// The program to connect by, with its options
    #[arg(long, value_name = "PROGRAM", default_value = "ssh")]
    pub ssh: String,
    /// Where lastdrop is on those machines
    #[arg(long, value_name = "PATH", default_value = "lastdrop")]
    pub program: String,
}

/// A connection to an agent on another machine.
struct Remote {
    host: String,
    child: Child,
    ended: bool,
}

pub fn ssh(args: &SshArgs) -> Result<Exit> {
    let named = named(&args.hosts)?;
    let words: Vec<&str> = args.ssh.split_whitespace().collect();
    let Some((program, options)) = words.split_first() else {
        return Err(UsageError("--ssh names no program".into()).into());
    };
    let (url, token) = args.fleet.whose()?;
    let secret = token.agent_token().to_string();
    let stop = Stop::on_signals(true)?;
    let mut remotes = Vec::new();
    for (host, name) in named {
        let cannot_start = || format!("cannot start {program}");
        let mut command = tool::named(program, "starts an agent on another machine").with_context(cannot_start)?;
        command.args(options).arg("--").arg(&host).arg(remote_command(args, &url, &name));
        // ssh may be configured to send environment variables.
        command.env_remove("LASTDROP_TOKEN");
        // Ctrl-C must not reach ssh: we end the agents in an orderly way through its connection.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(cannot_start)?;
        if let Some(stdin) = &mut child.stdin {
            // Ignore the error: for an unreachable host, ssh prints a message.
            let _ = stdin.write_all(format!("{secret}\n").as_bytes()).and_then(|()| stdin.flush());
        }
        if let Some(out) = child.stdout.take() {
            show(&host, out)?;
        }
        if let Some(err) = child.stderr.take() {
            show(&host, err)?;
        }
        remotes.push(Remote { host, child, ended: false });
    }
    let mut failed = false;
    while !stop.is_asked() && remotes.iter().any(|r| !r.ended) {
        for remote in remotes.iter_mut().filter(|r| !r.ended) {
            if let Some(status) = remote.child.try_wait()? {
                remote.ended = true;
                failed |= !status.success();
                note!("lastdrop fleet: ssh to {} has ended ({status})", remote.host);
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    end(&mut remotes)?;
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// Each host with the name of its agent.
fn named(hosts: &[String]) -> Result<Vec<(String, String)>> {
    let mut named: Vec<(String, String)> = Vec::new();
    for host in hosts {
        let bare = host.rsplit_once('@').map_or(host.as_str(), |(_, host)| host);
        let name = name_of_host(bare).filter(|_| !host.starts_with('-'));
        let name = name.ok_or_else(|| UsageError(format!("'{host}' is no host for ssh; write HOST or USER@HOST")))?;
        if let Some((other, _)) = named.iter().find(|(_, n)| *n == name) {
            return Err(
                UsageError(format!("{other} and {host} would both be agent {name}: one agent a machine does")).into()
            );
        }
        named.push((host.clone(), name));
    }
    Ok(named)
}

fn remote_command(args: &SshArgs, url: &str, name: &str) -> String {
    let mut words = vec![args.program.as_str(), "agent", url, "--token-file", "-", "--end-by-stdin", "--name", name];
    for host in &args.allow {
        words.extend(["--allow", host]);
    }
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Prints the output of a host, with its name.
fn show(host: &str, from: impl std::io::Read + Send + 'static) -> Result<()> {
    let host = host.to_owned();
    let read = move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            note!("{host}: {}", String::from_utf8_lossy(&line).trim_end());
        }
    };
    thread::Builder::new().name("remote".into()).spawn(read).context("no thread for what a host says")?;
    Ok(())
}

/// Ends all agents, in an orderly way if the connection still stands.
fn end(remotes: &mut [Remote]) -> Result<()> {
    for remote in remotes.iter_mut().filter(|r| !r.ended) {
        if let Some(mut stdin) = remote.child.stdin.take() {
            let _ = writeln!(stdin, "{END}");
        }
    }
    let deadline = Instant::now() + ENDING;
    for remote in remotes.iter_mut().filter(|r| !r.ended) {
        while remote.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                note!("lastdrop fleet: {} does not answer; its agent may still be there", remote.host);
                remote.child.kill()?;
                remote.child.wait()?;
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_named_once_each_and_options_are_none() {
        let hosts = |list: &[&str]| named(&list.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>());
        let two = hosts(&["web-1", "root@10.0.0.7"]).expect("two");
        assert_eq!(two[1], ("root@10.0.0.7".into(), "10-0-0-7".into()));
        assert!(hosts(&["a.b", "x@a.b"]).is_err());
        assert!(hosts(&["-oProxyCommand=reboot"]).is_err());
    }

    #[test]
    fn words_reach_the_shell_over_there_as_they_are() {
        assert_eq!(quoted("tls://10.0.0.1:4222"), "tls://10.0.0.1:4222");
        assert_eq!(quoted("a b'; reboot"), r"'a b'\''; reboot'");
        assert_eq!(quoted(""), "''");
    }
}
