//! `lastdrop export ID --format csv`

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lastdrop_report::export::{EXPORTERS, Exporter, exporter};

use crate::commands::history::open;
use crate::exit::Exit;
use crate::outfile::Outfile;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop export last > seconds.csv\n  lastdrop export 3fa2 --format hdr -o latency.hlog"
)]
pub struct ExportArgs {
    /// A run: its id, the beginning of it, or 'last'
    pub id: String,
    #[arg(long, value_name = "FORMAT", default_value = EXPORTERS[0].name(), value_parser = format, help = format!(
        "Which form: {}",
        EXPORTERS.map(|e| format!("{} ({})", e.name(), e.about())).join(", ")
    ))]
    pub format: &'static dyn Exporter,
    /// The file to write, or '-' for stdout
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub output: String,
    /// Where runs are kept
    #[arg(long, value_name = "FILE", env = "LASTDROP_STORE")]
    pub store: Option<PathBuf>,
}

fn format(name: &str) -> Result<&'static dyn Exporter, String> {
    exporter(name).ok_or_else(|| format!("there are {}", EXPORTERS.map(|e| e.name()).join(", ")))
}

pub fn export(args: ExportArgs) -> Result<Exit> {
    let file = Outfile::open(&args.output)?;
    let store = open(args.store)?;
    let run = store.load(&store.find(&args.id)?)?;
    file.lines(args.format.lines(&run))?;
    store.check_reads()?;
    Ok(Exit::Done)
}
