//! `lastdrop restore`

use anyhow::Result;
use lastdrop_server::restore_all;

use crate::args::RestoreArgs;
use crate::exit::Exit;
use crate::signals::Stop;

pub fn restore(args: RestoreArgs) -> Result<Exit> {
    // Half a restore helps nobody: signals wait for its end.
    let _stop = Stop::on_signals(false)?;
    let results = restore_all(args.dry_run)?;
    if results.is_empty() {
        println!("Nothing to put back.");
    }
    let mut exit = Exit::Done;
    for result in results {
        match result {
            Ok(r) if args.dry_run && r.was_changed => println!("{}: would be put back", r.server),
            Ok(r) if r.was_changed => {
                println!("{}: put back as it was found", r.server);
                for difference in r.differences {
                    println!("  but {difference}");
                }
            }
            Ok(r) => println!("{}: was not changed", r.server),
            Err(e) => {
                eprintln!("lastdrop: {e}");
                exit = Exit::Failed;
            }
        }
    }
    Ok(exit)
}
