//! `lastdrop history` and `lastdrop show ID`

use std::path::PathBuf;

use anyhow::{Context, Result};
use lastdrop_report::table::aligned;
use lastdrop_report::{history_line, run_text, timeline_text};
use lastdrop_store::Store;

use crate::args::{HistoryArgs, ShowArgs};
use crate::commands::{default_store, print_report, write_json};
use crate::exit::Exit;

fn open(store: Option<PathBuf>) -> Result<Store> {
    let path = store.or_else(default_store).context("there is no home folder with runs; name a store: --store FILE")?;
    Ok(Store::open(&path)?)
}

pub fn history(args: HistoryArgs) -> Result<Exit> {
    let entries = open(args.store)?.history(args.limit)?;
    if entries.is_empty() {
        println!("No runs yet. Make one: lastdrop run http://127.0.0.1/");
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> =
        entries.iter().map(|e| history_line(&e.id, e.started_unix_ms, &e.label, &e.url, e.run.as_ref())).collect();
    let heading = ["id", "started (UTC)", "answered/s", "p99", "unanswered", "load", "what"];
    print_report(&aligned(&heading, &rows), None, false);
    Ok(Exit::Done)
}

pub fn show(args: ShowArgs) -> Result<Exit> {
    let store = open(args.store)?;
    let run = store.load(&store.find(&args.id)?)?;
    match args.json.as_deref() {
        Some(to) => write_json(to, &run)?,
        None => print_report(&format!("{}{}", run_text(&run), timeline_text(&run)), None, false),
    }
    Ok(Exit::Done)
}
