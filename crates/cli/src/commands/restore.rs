//! `lastdrop restore`

use anyhow::Result;
use clap::Args;
use lastdrop_experiment::machine::Machine;
use lastdrop_server::{RestoreReport, ServerError, ServerRef, forget, restore_all};
use serde_json::json;

use crate::commands::Report;
use crate::exit::{Exit, UsageError};
use crate::fleet::machines;
use crate::options::FleetArgs;
use crate::signals::Stop;
use crate::stdio::{note, say};

#[derive(Debug, Args)]
#[command(
    after_help = "A journal that cannot be used any more (a full disk, an edited file) says what can be done by hand; --forget takes\nit away, so that the server can be tuned again.\n\nExamples:\n  lastdrop restore\n  lastdrop restore --dry-run\n  lastdrop restore --dry-run --json -\n  lastdrop restore web-1,web-2/apache --nats tls://10.0.0.1:4222 --token-file FILE\n  lastdrop restore --forget apache:/etc/apache2/apache2.conf"
)]
pub struct RestoreArgs {
    /// List what would be undone (files, drop-ins, processes, commands, sysctls, limits) and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Restore nothing: delete the journals that cannot be used, or the one of this server or file
    #[arg(long, value_name = "JOURNAL", num_args = 0..=1, default_missing_value = "", conflicts_with = "dry_run")]
    pub forget: Option<String>,
    /// Servers on the machines of a fleet's agents (AGENT/KIND, A,B/KIND) of which killed runs are undone there [default: all of
    /// this machine]
    #[arg(value_name = "AGENT/KIND", conflicts_with = "forget")]
    pub servers: Vec<ServerRef>,
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// Write the result as JSON to a file, or to stdout with '-'
    #[arg(long, value_name = "FILE", conflicts_with = "forget")]
    pub json: Option<String>,
}

const ONLY_ELSEWHERE: &str = "restore puts back all servers of this machine, without a name; a server that is named is one of an agent: AGENT/KIND";

/// Undoes the changes of killed runs on the machines of agents. If an agent cannot be asked, goes on with the others.
fn elsewhere(args: &RestoreArgs) -> Result<Vec<Result<RestoreReport, ServerError>>> {
    if !args.servers.iter().all(ServerRef::is_elsewhere) {
        return Err(UsageError(ONLY_ELSEWHERE.into()).into());
    }
    let machines = machines(&args.servers, &args.fleet)?;
    let mut all = Vec::new();
    for server in args.servers.iter().flat_map(ServerRef::each) {
        match machines.restore_left(&server, args.dry_run) {
            Ok(results) => all.extend(results),
            Err(e) => all.push(Err(e)),
        }
    }
    Ok(all)
}

pub fn restore(args: RestoreArgs) -> Result<Exit> {
    // Signals do not interrupt a restore.
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
    let report = Report::open(args.json.as_deref(), false)?;
    let results = if args.servers.is_empty() { restore_all(args.dry_run)? } else { elsewhere(&args)? };
    let exit = if results.iter().all(Result::is_ok) { Exit::Done } else { Exit::Failed };
    let (servers, errors): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let servers: Vec<RestoreReport> = servers.into_iter().filter_map(Result::ok).collect();
    let errors: Vec<String> = errors.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect();
    let mut text = String::new();
    if servers.is_empty() && errors.is_empty() {
        text.push_str("Nothing to put back.\n");
    }
    text.extend(servers.iter().map(|restored| in_words(restored, args.dry_run)));
    let document = json!({
        "schema": "lastdrop.restore/1",
        "dry_run": args.dry_run,
        "servers": servers,
        "errors": errors,
    });
    report.give(&text, &document)?;
    for error in &errors {
        note!("lastdrop: {error}");
    }
    Ok(exit)
}

/// Says what was done, or would be done, with one server.
fn in_words(restored: &RestoreReport, dry_run: bool) -> String {
    let RestoreReport { server, was_changed, started_by_others, differences, steps, had_cache } = restored;
    let what = match started_by_others {
        _ if !was_changed => "was not changed".into(),
        _ if *had_cache && dry_run => "the cache that was kept would be taken away".into(),
        _ if *had_cache => "the cache that was kept is taken away with its pages".into(),
        _ if dry_run => "would be put back".into(),
        None => "put back as it was found".into(),
        Some(argv) => {
            format!("nothing of ours is left; somebody has started it meanwhile, and it runs on as: {argv}")
        }
    };
    let steps = steps.iter().map(|step| format!("  {step}\n"));
    let differences = differences.iter().map(|difference| format!("  but {difference}\n"));
    format!("{server}: {what}\n") + &steps.chain(differences).collect::<String>()
}
