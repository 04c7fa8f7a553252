//! `lastdrop restore`

use anyhow::Result;
use clap::Args;
use lastdrop_server::{forget, restore_all};

use crate::exit::Exit;
use crate::signals::Stop;
use crate::stdio::{note, say};

#[derive(Debug, Args)]
#[command(
    after_help = "A journal that cannot be used any more (a full disk, an edited file) says what can be done by hand; --forget takes\nit away, so that the server can be tuned again.\n\nExamples:\n  lastdrop restore\n  lastdrop restore --dry-run\n  lastdrop restore --forget apache:/etc/apache2/apache2.conf"
)]
pub struct RestoreArgs {
    /// Show what would be put back and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Put nothing back: take away the journals that cannot be used, or the one of this server or file
    #[arg(long, value_name = "JOURNAL", num_args = 0..=1, default_missing_value = "", conflicts_with = "dry_run")]
    pub forget: Option<String>,
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
    let results = restore_all(args.dry_run)?;
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
