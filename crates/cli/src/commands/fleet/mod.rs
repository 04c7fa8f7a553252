//! `lastdrop fleet up|status|ssh`

mod config;
mod ssh;
mod status;
mod up;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::exit::Exit;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop fleet up                         the broker; prints its url and tokens\n  lastdrop fleet ssh web-1 web-2           agents on these machines\n  lastdrop fleet status --json -           who is there"
)]
pub struct FleetCommandArgs {
    #[command(subcommand)]
    command: FleetCommand,
}

#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// Start the broker of a fleet, and stay until it is ended
    Up(up::UpArgs),
    /// Tokens and users for a nats-server of your own
    Config(config::ConfigArgs),
    /// Who is in the fleet: cores, versions, clocks, addresses, what each can look at
    Status(status::StatusArgs),
    /// Start agents on other machines by ssh, and stay until they are ended
    Ssh(ssh::SshArgs),
}

pub fn fleet(args: &FleetCommandArgs) -> Result<Exit> {
    match &args.command {
        FleetCommand::Up(args) => up::up(args),
        FleetCommand::Config(args) => config::config(args),
        FleetCommand::Status(args) => status::status(args),
        FleetCommand::Ssh(args) => ssh::ssh(args),
    }
}
