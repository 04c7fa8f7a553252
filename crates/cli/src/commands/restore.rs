//! `lastdrop restore`

use anyhow::Result;
use clap::Args;
use lastdrop_server::{Restored, ServerError, ServerRef, forget, restore_all};

use crate::exit::{Exit, UsageError};
use crate::fleet::{Reach, reach};
use crate::options::FleetArgs;
use crate::signals::Stop;
use crate::stdio::{note, say};

#[derive(Debug, Args)]
#[command(
    after_help = "A journal that cannot be used any more (a full disk, an edited file) says what can be done by hand; --forget takes\nit away, so that the server can be tuned again.\n\nExamples:\n  lastdrop restore\n  lastdrop restore --dry-run\n  lastdrop restore web-1,web-2/apache --nats tls://10.0.0.1:4222 --token-file FILE\n  lastdrop restore --forget apache:/etc/apache2/apache2.conf"
)]
pub struct RestoreArgs {
    /// Show what would be put back and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Put nothing back: take away the journals that cannot be used, or the one of this server or file
    #[arg(long, value_name = "JOURNAL", num_args = 0..=1, default_missing_value = "", conflicts_with = "dry_run")]
    pub forget: Option<String>,
    /// Servers on the machines of a fleet's agents (AGENT/KIND, A,B/KIND) of which killed runs are undone there [default: all of
    /// this machine]
    #[arg(value_name = "AGENT/KIND", conflicts_with = "forget")]
    pub servers: Vec<ServerRef>,
    #[command(flatten)]
    pub fleet: FleetArgs,
}

const ONLY_ELSEWHERE: &str = "restore puts back all servers of this machine, without a name; a server that is named is one of an agent: AGENT/KIND";

/// What killed runs left on the machines of agents; one that cannot be asked keeps no other from it.
fn elsewhere(reach: &Reach, args: &RestoreArgs) -> Result<Vec<Result<Restored, ServerError>>> {
    if !args.servers.iter().all(ServerRef::is_elsewhere) {
        return Err(UsageError(ONLY_ELSEWHERE.into()).into());
    }
    let mut all = Vec::new();
    for server in args.servers.iter().flat_map(ServerRef::each) {
        match reach.restore(&server, args.dry_run) {
            Ok(results) => all.extend(results),
            Err(e) => all.push(Err(e)),
        }
    }
    Ok(all)
}

pub fn restore(args: RestoreArgs) -> Result<Exit> {
    // Half a restore helps nobody: signals wait for its end.
    let _stop = Stop::on_signals(false)?;
    if let Some(name) = &args.forget {
        let forgotten = forget(Some(name.as_str()).filter(|n| !n.is_empty()))?;
        for path in &forgotten {
            say!("{}: forgotten; nothing was changed about the server", path.display());
        }
        if forgotten.is_empty() {
            say!("No journal that cannot be used.");
        }
        return Ok(Exit::Done);
    }
    let results = match reach(&args.servers, &args.fleet)? {
        Some(reach) => elsewhere(&reach, &args)?,
        None if !args.servers.is_empty() => return Err(UsageError(ONLY_ELSEWHERE.into()).into()),
        None => restore_all(args.dry_run)?,
    };
    if results.is_empty() {
        say!("Nothing to put back.");
    }
    let mut exit = Exit::Done;
    for result in results {
        match result {
            Ok(r) if args.dry_run && r.was_changed => say!("{}: would be put back", r.server),
            Ok(r) if r.was_changed => {
                match &r.started_by_others {
                    None => say!("{}: put back as it was found", r.server),
                    Some(argv) => say!(
                        "{}: nothing of ours is left; somebody has started it meanwhile, and it runs on as: {argv}",
                        r.server
                    ),
                }
                for difference in r.differences {
                    say!("  but {difference}");
                }
            }
            Ok(r) => say!("{}: was not changed", r.server),
            Err(e) => {
                note!("lastdrop: {e}");
                exit = Exit::Failed;
            }
        }
    }
    Ok(exit)
}
