//! `lastdrop knobs SERVER…`

use anyhow::Result;
use clap::Args;
use lastdrop_experiment::observe::knobs::knobs_of_all;
use lastdrop_report::knobs_text;
use lastdrop_server::{Kind, ServerRef, check_called_apart, kind_schema, kinds};

use crate::commands::Report;
use crate::exit::{Exit, UsageError};
use crate::fleet::machines;
use crate::options::FleetArgs;
use crate::outfile::Outfile;

#[derive(Debug, Args)]
#[command(
    after_help = "Nothing is changed. sweep and tune set them for a trial, and put them back.\n\nExamples:\n  lastdrop knobs apache\n  lastdrop knobs apache:/srv/www/apache2.conf --json -\n  lastdrop knobs web-1,web-2/apache --nats tls://10.0.0.1:4222 --token-file FILE"
)]
pub struct KnobsArgs {
    #[arg(required_unless_present = "kind_schema", value_name = "SERVER", help = format!(
        "The server, or several ([NAME=]SERVER), each with @URL of its listener. Kinds: {}. AGENT/KIND or A,B/KIND is a server on the \
         machines of a fleet's agents",
        kinds::list_with_files(Kind::can_change)
    ))]
    pub servers: Vec<ServerRef>,
    /// Print the JSON schema of the files that are kinds of servers
    #[arg(long)]
    pub kind_schema: bool,
    #[command(flatten)]
    pub fleet: FleetArgs,
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
    let document = knobs_of_all(&args.servers, &machines(&args.servers, &args.fleet)?)?;
    report.give(&knobs_text(&document), &document)?;
    Ok(Exit::Done)
}
