//! `lastdrop history` and `lastdrop show ID`

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_model::bounds::LISTED;
use lastdrop_report::table::aligned;
use lastdrop_report::{Shown, history_line, run_text, timeline_text, utc};
use lastdrop_store::{Found, Store, StoreError};

use crate::commands::default_store;
use crate::exit::{Exit, UsageError};
use crate::options::within;
use crate::outfile::Outfile;
use crate::stdio::{self, say};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lastdrop history\n  lastdrop history -n 100 --store /srv/runs.sqlite")]
pub struct HistoryArgs {
    /// How many runs to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = within::<usize>(LISTED))]
    pub limit: usize,
    /// Where runs are kept
    #[arg(long, value_name = "FILE", env = "LASTDROP_STORE")]
    pub store: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lastdrop show last\n  lastdrop show 3fa2 --json run.json")]
pub struct ShowArgs {
    /// A run: its id, the beginning of it, or 'last'; or what was kept of a tune, capacity …, by its id
    pub id: String,
    /// Write it as JSON to a file, or to stdout (the default when no FILE is given)
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<String>,
    /// Where runs are kept
    #[arg(long, value_name = "FILE", env = "LASTDROP_STORE")]
    pub store: Option<PathBuf>,
}

/// The store that is read.
pub fn open(store: Option<PathBuf>) -> Result<Store> {
    let path = store.or_else(default_store).context("there is no home folder with runs; name a store: --store FILE")?;
    Ok(Store::open(&path)?)
}

pub fn history(args: HistoryArgs) -> Result<Exit> {
    let store = open(args.store)?;
    let (entries, documents) = (store.history(args.limit)?, store.documents(args.limit)?);
    if entries.is_empty() && documents.is_empty() {
        say!("No runs yet. Make one: lastdrop run http://127.0.0.1/");
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> =
        entries.iter().map(|e| history_line(&e.id, e.started_unix_ms, &e.label, &e.url, e.run.as_ref())).collect();
    let heading = ["id", "started (UTC)", "answered/s", "p99", "unanswered", "load", "what"];
    stdio::out(aligned(&heading, &rows));
    if !documents.is_empty() {
        let what =
            |schema: &str| schema.trim_start_matches("lastdrop.").split('/').next().unwrap_or_default().to_string();
        let when = |ms: u64| utc(ms).replace('T', " ").trim_end_matches('Z').to_string();
        let rows: Vec<Vec<String>> =
            documents.into_iter().map(|(id, ms, schema)| vec![id, when(ms), what(&schema)]).collect();
        stdio::out(format!(
            "\nof several runs, for show and report:\n{}",
            aligned(&["id", "kept (UTC)", "what"], &rows)
        ));
    }
    Ok(Exit::Done)
}

pub fn show(args: ShowArgs) -> Result<Exit> {
    let json = Outfile::wanted(args.json.as_deref())?;
    let store = open(args.store)?;
    let id = match (store.find(&args.id), store.find_any(&args.id)) {
        // 'last' is a run here, and the beginning of an id may be that of a run and of a document.
        (Err(StoreError::NotFound(_)), Ok(Found::Document(id))) => return show_document(&store, &id, json),
        (found, _) => found?,
    };
    let run = store.load(&id)?;
    match json {
        Some(file) => file.private(run.plan.keep_secrets).json(&run)?,
        None => stdio::out(format!("{}{}", run_text(&run), timeline_text(&run))),
    }
    store.check_reads()?;
    Ok(Exit::Done)
}

/// What came of a question of several runs.
fn show_document(store: &Store, id: &str, json: Option<Outfile>) -> Result<Exit> {
    let document = store.document(id)?;
    match json {
        Some(file) => file.json(&serde_json::from_str::<serde_json::Value>(&document)?)?,
        None => {
            let shown = Shown::read(&document).map_err(|why| UsageError(format!("{id}: {why}")))?;
            stdio::out(shown.iter().map(Shown::text).collect::<String>());
        }
    }
    Ok(Exit::Done)
}
