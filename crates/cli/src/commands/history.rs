//! `lastdrop history` and `lastdrop show ID`

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_model::bounds::LISTED;
use lastdrop_report::table::aligned;
use lastdrop_report::{history_line, run_text, timeline_text};
use lastdrop_store::Store;

use crate::commands::default_store;
use crate::exit::Exit;
use crate::options::within;
use crate::outfile::Outfile;
use crate::stdio::{self, say};

#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// How many runs to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = within::<usize>(LISTED))]
    pub limit: usize,
    /// Where runs are kept
    #[arg(long, value_name = "FILE", env = "LASTDROP_STORE")]
    pub store: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A run: its id, the beginning of it, or 'last'
    pub id: String,
    /// Write it as JSON to a file, or to stdout (the default when no FILE is given)
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<String>,
    /// Where runs are kept
    #[arg(long, value_name = "FILE", env = "LASTDROP_STORE")]
    pub store: Option<PathBuf>,
}

fn open(store: Option<PathBuf>) -> Result<Store> {
    let path = store.or_else(default_store).context("there is no home folder with runs; name a store: --store FILE")?;
    Ok(Store::open(&path)?)
}

pub fn history(args: HistoryArgs) -> Result<Exit> {
    let entries = open(args.store)?.history(args.limit)?;
    if entries.is_empty() {
        say!("No runs yet. Make one: lastdrop run http://127.0.0.1/");
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> =
        entries.iter().map(|e| history_line(&e.id, e.started_unix_ms, &e.label, &e.url, e.run.as_ref())).collect();
    let heading = ["id", "started (UTC)", "answered/s", "p99", "unanswered", "load", "what"];
    stdio::out(aligned(&heading, &rows));
    Ok(Exit::Done)
}

pub fn show(args: ShowArgs) -> Result<Exit> {
    let json = Outfile::wanted(args.json.as_deref())?;
    let store = open(args.store)?;
    let run = store.load(&store.find(&args.id)?)?;
    match json {
        Some(file) => file.private(run.plan.keep_secrets).json(&run)?,
        None => stdio::out(format!("{}{}", run_text(&run), timeline_text(&run))),
    }
    store.check_reads()?;
    Ok(Exit::Done)
}
