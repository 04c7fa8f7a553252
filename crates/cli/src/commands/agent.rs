//! `lastdrop agent URL`

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use lastdrop_fleet::{AgentError, AgentOptions, AgentStatus, JoinError, Limits, LinkError, is_agent_name, run_agent};
use lastdrop_model::bounds::{DURATION, RATE};
use lastdrop_server::{ServerRef, check_called_apart};

use crate::exit::{Exit, UsageError};
use crate::fleet::{AgentServers, LoadEngine};
use crate::options::{TokenArgs, within};
use crate::signals::Stop;
use crate::stdio::note;

/// The line on stdin that ends an agent.
pub const END: &str = "end";

#[derive(Debug, Args)]
#[command(
    after_help = "It dials out, so no port has to be open here, comes back whenever the connection breaks, and stays for the next run until it is \
                  ended (Ctrl-C, SIGTERM). What it has measured is on its disk before it is sent, and sent again until the broker has it.\n\
                  With the agent-token it can join and nothing else; it takes orders of whoever holds the token only.\n\
                  Those may look at the servers that it is started with, and change them with --act: lastdrop watch NAME/apache there, from anywhere. Who\n\
                  changes a server and is not heard of for 30 s has it put back.\n\n\
                  Examples:\n  LASTDROP_TOKEN=lda1.… lastdrop agent tls://10.0.0.1:4222\n  lastdrop agent tls://10.0.0.1:4222 --token-file /etc/lastdrop/token --name web-1 --allow shop.example --server apache --act"
)]
pub struct AgentArgs {
    /// The fleet's broker, as `lastdrop fleet up` prints it
    #[arg(value_name = "URL", required_unless_present = "act")]
    pub url: Option<String>,
    #[command(flatten)]
    pub token: TokenArgs,
    /// Its name in the fleet [default: this machine's name]
    #[arg(long, value_name = "NAME", value_parser = agent_name)]
    pub name: Option<String>,
    /// A host that it may load; several may be given [default: this machine only]
    #[arg(long, value_name = "HOST")]
    pub allow: Vec<String>,
    /// A server here that the fleet may look at; several may be given
    #[arg(long = "server", value_name = "SERVER")]
    pub servers: Vec<ServerRef>,
    /// Let the fleet also change the settings of those servers; with `directives` also lines of their configurations, except those
    /// that name code
    #[arg(long, value_name = "directives", num_args = 0..=1, default_missing_value = "settings", requires = "servers")]
    pub act: Option<String>,
    /// Most requests per second, whatever a plan says
    #[arg(long, value_name = "R", value_parser = within::<f64>(RATE))]
    pub max_rate: Option<f64>,
    /// End a run after this time, whatever a plan says
    #[arg(long, value_name = "TIME", value_parser = within::<Duration>(DURATION))]
    pub max_time: Option<Duration>,
    /// End in an orderly way at a line `end` on stdin
    #[arg(long, hide = true)]
    pub end_by_stdin: bool,
    /// Microseconds that the clock is off: for tests
    #[arg(long, value_name = "N", hide = true, default_value_t = 0)]
    pub skew: i64,
    /// A line for each request of the latest run, as CSV, as `run --log` has them: for tests
    #[arg(long, value_name = "FILE", hide = true)]
    pub log: Option<PathBuf>,
    /// Publish each record twice: for tests
    #[arg(long, hide = true)]
    pub twice: bool,
    /// Put back what somebody has changed who is not heard of for this long: for tests. Keep-alive messages come every 2 s
    #[arg(long, value_name = "TIME", hide = true, default_value = "30s", value_parser = within::<Duration>(DURATION))]
    pub silence: Duration,
}

/// What an agent may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ActRight {
    Settings,
    Directives,
}

/// Returns the broker's URL and what may be changed. After `--act` without a value comes the URL.
fn broker_and_right(args: &AgentArgs) -> Result<(String, Option<ActRight>), UsageError> {
    let right = args.act.as_deref().map(|word| ActRight::from_str(word, false).map_err(|_| word));
    match (&args.url, right) {
        (Some(url), None) => Ok((url.clone(), None)),
        (Some(url), Some(Ok(right))) => Ok((url.clone(), Some(right))),
        (None, Some(Err(url))) => Ok((url.to_owned(), Some(ActRight::Settings))),
        (Some(_), Some(Err(word))) => Err(UsageError(format!("--act {word}: it takes directives, or nothing"))),
        (None, _) => Err(UsageError("the broker's URL is missing: lastdrop fleet up prints it".into())),
    }
}

fn agent_name(text: &str) -> Result<String, String> {
    match is_agent_name(text) {
        true => Ok(text.to_owned()),
        false => {
            Err(format!("'{text}' is no name of an agent: letters, digits, - and _, at most 64, and not digits alone"))
        }
    }
}

/// A host's name as the name of an agent: other characters become `-`.
pub fn name_of_host(host: &str) -> Option<String> {
    let name: String =
        host.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).take(64).collect();
    Some(name).filter(|name| is_agent_name(name))
}

pub fn agent(args: &AgentArgs) -> Result<Exit> {
    check_called_apart(&args.servers).map_err(UsageError)?;
    if let Some(server) = args.servers.iter().find(|server| server.is_elsewhere()) {
        return Err(UsageError(format!(
            "--server {server}: an agent has servers of its own machine, such as {}",
            server.there()
        ))
        .into());
    }
    let (url, act) = broker_and_right(args)?;
    let token = args.token.for_agents()?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => this_machine()
            .ok_or_else(|| UsageError("this machine's name is none for an agent: give it one by --name".into()))?,
    };
    let stop = Stop::on_signals(true)?;
    let ends = lastdrop_fleet::Stop::default();
    watch(&stop, &ends, args.end_by_stdin)?;
    let options = AgentOptions {
        url,
        token,
        folder: lastdrop_server::state_folder()?.join("agent").join(&name),
        name,
        version: env!("CARGO_PKG_VERSION").into(),
        limits: Limits {
            allow: args.allow.clone(),
            act: act.is_some(),
            max_rate: args.max_rate,
            max_time: args.max_time,
        },
        looks: args.servers.iter().map(ToString::to_string).collect(),
        silence: args.silence,
        skew_us: args.skew,
        twice: args.twice,
    };
    let name = options.name.clone();
    let tell = move |told| tell(&name, &told);
    let servers = AgentServers {
        agent: options.name.clone(),
        named: args.servers.clone(),
        act: act.is_some(),
        directives: act == Some(ActRight::Directives),
    };
    let mut engine = LoadEngine::new(args.log.clone());
    run_agent(&options, &mut engine, Arc::new(servers), &ends, Arc::new(tell)).map_err(|e| match e {
        AgentError::Entry(JoinError::Link(LinkError::Url(_))) => anyhow::Error::from(UsageError(e.to_string())),
        e => e.into(),
    })?;
    Ok(Exit::Done)
}

fn this_machine() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    name_of_host(name.trim())
}

/// Ends the agent at a signal, or at a line on stdin. The end of stdin does not end it: the connection of ssh may have broken.
fn watch(stop: &Stop, ends: &lastdrop_fleet::Stop, stdin: bool) -> Result<()> {
    let (stop, asked) = (stop.clone(), ends.clone());
    let look = move || {
        while !stop.is_asked() {
            thread::sleep(Duration::from_millis(50));
        }
        asked.ask("the agent was told to end");
    };
    thread::Builder::new().name("signals".into()).spawn(look).context("no thread for signals")?;
    if stdin {
        let asked = ends.clone();
        let listen = move || {
            if io::stdin().lock().lines().map_while(Result::ok).any(|line| line.trim() == END) {
                asked.ask("the agent was told to end");
            }
        };
        thread::Builder::new().name("stdin".into()).spawn(listen).context("no thread for stdin")?;
    }
    Ok(())
}

fn tell(name: &str, told: &AgentStatus) {
    match told {
        AgentStatus::Joined => note!("lastdrop agent: {name} is in the fleet; Ctrl-C ends it"),
        AgentStatus::Away(why) => note!("lastdrop agent: {why}; trying again"),
        AgentStatus::Back => note!("lastdrop agent: the broker is back"),
        AgentStatus::Began { run } => note!("lastdrop agent: run {run} begins"),
        AgentStatus::Ended { run, records, error: None } => {
            note!("lastdrop agent: run {run} is done, {records} records")
        }
        AgentStatus::Ended { run, records, error: Some(e) } => {
            note!("lastdrop agent: run {run} ended after {records} records: {e}")
        }
        AgentStatus::Refused(why) => note!("lastdrop agent: an order was refused: {why}"),
        AgentStatus::Trouble(what) => note!("lastdrop agent: {what}"),
        AgentStatus::Left(0) => {}
        AgentStatus::Left(records) => {
            note!(
                "lastdrop agent: {records} records have not reached the broker; they are sent when an agent called {name} is started here again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        agent: AgentArgs,
    }

    #[test]
    fn the_url_may_stand_after_act() {
        let read = |words: &str| {
            let words = ["agent"].into_iter().chain(words.split(' '));
            let line = CommandLine::try_parse_from(words).map_err(|e| e.to_string())?;
            broker_and_right(&line.agent).map_err(|e| e.to_string())
        };
        let url = "tls://10.0.0.1:4222".to_string();
        assert_eq!(read("tls://10.0.0.1:4222"), Ok((url.clone(), None)));
        for line in ["--server apache --act tls://10.0.0.1:4222", "tls://10.0.0.1:4222 --server apache --act"] {
            assert_eq!(read(line), Ok((url.clone(), Some(ActRight::Settings))), "{line}");
        }
        for line in [
            "--server apache --act directives tls://10.0.0.1:4222",
            "tls://10.0.0.1:4222 --server apache --act directives",
        ] {
            assert_eq!(read(line), Ok((url.clone(), Some(ActRight::Directives))), "{line}");
        }
        assert!(read("tls://10.0.0.1:4222 --server apache --act code").is_err_and(|e| e.contains("--act code")));
        assert!(read("--server apache --act").is_err() && read("--server apache").is_err());
    }

    #[test]
    fn hosts_become_names_that_can_be_chosen() {
        assert_eq!(name_of_host("web-1.example").as_deref(), Some("web-1-example"));
        assert_eq!(name_of_host("10.0.0.1").as_deref(), Some("10-0-0-1"));
        assert_eq!(name_of_host("::1").as_deref(), Some("--1"));
        assert_eq!(name_of_host("12"), None);
        assert_eq!(name_of_host(""), None);
    }
}
