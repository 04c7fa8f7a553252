//! `lastdrop knobs SERVER…`

use anyhow::Result;
use clap::Args;
use lastdrop_report::knobs_text;
use lastdrop_server::{Kind, ServerRef, check_called_apart, kind_schema, kinds};

use crate::commands::Report;
use crate::exit::{Exit, UsageError};
use crate::outfile::Outfile;

#[derive(Debug, Args)]
#[command(
    after_help = "Nothing is changed. sweep and tune set them for a trial, and put them back.\n\nExamples:\n  lastdrop knobs apache\n  lastdrop knobs apache:/srv/www/apache2.conf --json -"
)]
pub struct KnobsArgs {
    #[arg(required_unless_present = "kind_schema", value_name = "SERVER", help = format!(
        "The servers ([NAME=]SERVER): {}, each with @URL of its listener",
        kinds::list_with_files(Kind::can_change)
    ))]
    pub servers: Vec<ServerRef>,
    /// Print the JSON schema of the files that are kinds of servers
    #[arg(long)]
    pub kind_schema: bool,
    /// Write the result as JSON to a file, or to stdout with '-'
    #[arg(long, value_name = "FILE")]
    pub json: Option<String>,
    #[arg(short, long)]
    pub quiet: bool,
}

pub fn knobs(args: &KnobsArgs) -> Result<Exit> {
    if args.kind_schema {
        Outfile::open("-")?.json(&kind_schema())?;
        return Ok(Exit::Done);
    }
    check_called_apart(&args.servers).map_err(UsageError)?;
    let report = Report::open(args.json.as_deref(), args.quiet)?;
    let document = lastdrop_looks::knobs::knobs(&args.servers)?;
    report.give(&knobs_text(&document), &document)?;
    Ok(Exit::Done)
}
