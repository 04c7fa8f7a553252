//! `lastdrop size SERVER`

use anyhow::Result;
use lastdrop_report::size_text;

use crate::args::SizeArgs;
use crate::commands::{print_report, write_json};
use crate::exit::Exit;

pub fn size(args: SizeArgs) -> Result<Exit> {
    let document = lastdrop_experiment::size::size(&args.server, args.memory)?;
    print_report(&size_text(&document), args.json.as_deref(), args.quiet);
    if let Some(to) = &args.json {
        write_json(to, &document)?;
    }
    Ok(Exit::Done)
}
