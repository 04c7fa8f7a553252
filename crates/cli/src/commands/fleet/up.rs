//! `lastdrop fleet up`

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_fleet::{Broker, BrokerError, BrokerEvent, BrokerOptions};

use crate::exit::{Exit, UsageError};
use crate::options::{URL_FILE, default_folder};
use crate::signals::Stop;
use crate::stdio::{note, say};

#[derive(Debug, Args)]
#[command(
    after_help = "It runs nats-server (which must be installed) with TLS and users of its own, and prints first the broker's url, the token (starts runs: \
                  keep it) and the agent-token (joins, nothing else). All that makes the fleet is in its folder: started there again it has the same tokens, \
                  and agents come back by themselves.\n\nExamples:\n  lastdrop fleet up\n  lastdrop fleet up --listen 10.0.0.1:4222 --dir /srv/fleet"
)]
pub struct UpArgs {
    /// Address and port; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:4222")]
    pub listen: SocketAddr,
    /// The folder for records, certificate and tokens, private [default: `fleet` in lastdrop's folder for state]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

pub fn up(args: &UpArgs) -> Result<Exit> {
    // Before anything is created that has to be removed at the end.
    let stop = Stop::on_signals(false)?;
    let folder = match &args.dir {
        Some(dir) => std::path::absolute(dir)?,
        None => default_folder()?,
    };
    let options =
        BrokerOptions { listen: args.listen, folder: folder.clone(), version: env!("CARGO_PKG_VERSION").into() };
    let broker = Broker::start(&options).map_err(|e| match e {
        BrokerError::Listen { .. } | BrokerError::Taken(_) => anyhow::Error::from(UsageError(e.to_string())),
        e => e.into(),
    })?;
    let url = folder.join(URL_FILE);
    fs::write(&url, format!("{}\n", broker.url())).with_context(|| format!("cannot write {}", url.display()))?;
    say!("url {}", broker.url());
    say!("token {}", broker.token());
    say!("agent-token {}", broker.token().agent_token());
    note!(
        "lastdrop fleet: the broker is up; `lastdrop agent {}` with the agent-token joins it; Ctrl-C ends it",
        broker.url()
    );
    while !stop.is_asked() {
        match broker.next(Duration::from_millis(100)) {
            None => {}
            Some(BrokerEvent::NoSync { version }) => note!(
                "lastdrop fleet: nats-server {version} cannot flush each record to the disk (2.10 can): a power cut here may lose the last seconds"
            ),
            Some(BrokerEvent::Died { how }) => note!("lastdrop fleet: {how}; starting it again"),
            Some(BrokerEvent::Back) => note!("lastdrop fleet: nats-server is started again"),
            Some(BrokerEvent::Joined { agent }) => note!("lastdrop fleet: agent {agent} is let in"),
            Some(BrokerEvent::Refused { agent, why }) => note!("lastdrop fleet: agent {agent} is not let in: {why}"),
        }
    }
    drop(broker);
    let _ = fs::remove_file(&url);
    // A signal is the normal end of a broker.
    Ok(Exit::Done)
}
