//! `lastdrop knobs SERVER…`

use anyhow::Result;
use clap::Args;
use lastdrop_report::knobs_text;
use lastdrop_server::ServerRef;
use lastdrop_server::kind::{self, Kind};

use crate::commands::Report;
use crate::exit::Exit;

#[derive(Debug, Args)]
#[command(
    after_help = "Nothing is changed. sweep and tune set them for a trial, and put them back.\n\nExamples:\n  lastdrop knobs apache\n  lastdrop knobs apache:/srv/www/apache2.conf --json -"
)]
pub struct KnobsArgs {
    #[arg(required = true, value_name = "SERVER", help = format!(
        "The servers: {}, each with @URL of its listener",
        kind::list_with_files(Kind::can_change)
    ))]
    pub servers: Vec<ServerRef>,
    /// Write the result as JSON to a file, or to stdout with '-'
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    #[arg(short, long)]
    pub quiet: bool,
}

pub fn knobs(args: &KnobsArgs) -> Result<Exit> {
    let report = Report::open(args.json.as_deref(), args.quiet)?;
    let document = lastdrop_looks::knobs::knobs(&args.servers)?;
    report.give(&knobs_text(&document), &document)?;
    Ok(Exit::Done)
}
