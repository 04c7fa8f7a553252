//! `lastdrop history` and `lastdrop show ID`

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_model::bounds::LISTED;
use lastdrop_report::export::EXPORTERS;
use lastdrop_report::formats::{Kept, history_table};
use lastdrop_report::table::aligned;
use lastdrop_report::{Format, Shown, history_line, run_text, timeline_text, utc};
use lastdrop_store::{Entry, Found, Store, StoreError};
use serde_json::json;

use crate::commands::export::write_pieces;
use crate::commands::{default_store, print_formatted};
use crate::exit::{Exit, UsageError};
use crate::options::{FormatArgs, within};
use crate::outfile::Outfile;
use crate::stdio::{self, say};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lastdrop history\n  lastdrop history -n 100 --store /srv/runs.sqlite")]
pub struct HistoryArgs {
    /// How many runs to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = within::<usize>(LISTED))]
    pub limit: usize,
    #[command(flatten)]
    pub form: FormatArgs,
    /// Where runs are kept
    #[arg(long, value_name = "FILE", env = "LASTDROP_STORE")]
    pub store: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lastdrop show last\n  lastdrop show 3fa2 --json run.json")]
pub struct ShowArgs {
    /// A run: its id, the beginning of it, or 'last'; or what was kept of a tune, capacity …, by its id
    pub id: String,
    /// Write it as JSON to a file, or to stdout (the default without FILE)
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", conflicts_with = "format")]
    pub json: Option<String>,
    /// Write a CSV line per second of a run to a file, or to stdout (the default without FILE)
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", conflicts_with_all = ["json", "format"])]
    pub csv: Option<String>,
    #[command(flatten)]
    pub form: FormatArgs,
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
    let format = args.form.format.unwrap_or_default();
    if format != Format::Text {
        return listed(&entries, &documents, format);
    }
    if entries.is_empty() && documents.is_empty() {
        say!("No runs yet. Make one: lastdrop run http://127.0.0.1/");
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> =
        entries.iter().map(|e| history_line(&e.id, e.started_unix_ms, &e.label, &e.url, e.run.as_ref())).collect();
    let heading = ["id", "started (UTC)", "answered/s", "p99", "unanswered", "load", "what"];
    stdio::out(aligned(&heading, &rows));
    if !documents.is_empty() {
        let when = |ms: u64| utc(ms).replace('T', " ").trim_end_matches('Z').to_string();
        let rows: Vec<Vec<String>> =
            documents.into_iter().map(|(id, ms, schema)| vec![id, when(ms), what(&schema).into()]).collect();
        stdio::out(format!(
            "\nof several runs, for show and report:\n{}",
            aligned(&["id", "kept (UTC)", "what"], &rows)
        ));
    }
    Ok(Exit::Done)
}

/// `tune` of `lastdrop.tune/1`.
fn what(schema: &str) -> &str {
    schema.trim_start_matches("lastdrop.").split('/').next().unwrap_or_default()
}

/// The same for a program, or a page: runs and what came of several in one list.
fn listed(entries: &[Entry], documents: &[(String, u64, String)], format: Format) -> Result<Exit> {
    let runs = entries.iter().map(|e| Kept {
        id: &e.id,
        unix_ms: e.started_unix_ms,
        what: "run",
        url: &e.url,
        label: &e.label,
        run: e.run.as_ref(),
    });
    let documents = documents.iter().map(|(id, unix_ms, schema)| Kept {
        id,
        unix_ms: *unix_ms,
        what: what(schema),
        url: "",
        label: "",
        run: None,
    });
    let table = history_table(&runs.chain(documents).collect::<Vec<_>>());
    match format {
        Format::Json => {
            Outfile::open("-")?.json(&json!({"schema": "lastdrop.history/1", "kept": table.objects()}))?;
        }
        Format::Csv => stdio::out(table.csv()),
        Format::Markdown => stdio::out(table.markdown()),
        Format::Text | Format::Junit => {
            return Err(UsageError("a list asks nothing of a server; there are text, json, csv and md".into()).into());
        }
    }
    Ok(Exit::Done)
}

pub fn show(args: ShowArgs) -> Result<Exit> {
    let format = args.form.format.unwrap_or_default();
    let as_json = (format == Format::Json).then_some("-");
    let json = Outfile::wanted(args.json.as_deref().or(as_json))?;
    let csv = Outfile::wanted(args.csv.as_deref())?;
    let store = open(args.store)?;
    let id = match (store.find(&args.id), store.find_any(&args.id)) {
        // 'last' is a run here, and the beginning of an id may be that of a run and of a document.
        (Err(StoreError::NotFound(_)), Ok(Found::Document(id))) => {
            return show_document(&store, &id, json, csv.is_some(), format);
        }
        (found, _) => found?,
    };
    let run = store.load(&id)?;
    if let Some(file) = csv {
        write_pieces(&store, &id, EXPORTERS[0], file.private(run.plan.keep_secrets))?;
        return Ok(Exit::Done);
    }
    match json {
        Some(file) => file.private(run.plan.keep_secrets).json(&run)?,
        None if format != Format::Text => print_formatted(&serde_json::to_string(&run)?, format)?,
        None => stdio::out(format!("{}{}", run_text(&run), timeline_text(&run))),
    }
    store.check_reads()?;
    Ok(Exit::Done)
}

/// What came of a question of several runs.
fn show_document(store: &Store, id: &str, json: Option<Outfile>, csv: bool, format: Format) -> Result<Exit> {
    if csv {
        return Err(UsageError(format!("{id} has no seconds of its own; its table: --format csv")).into());
    }
    let document = store.document(id)?;
    match json {
        Some(file) => file.json(&serde_json::from_str::<serde_json::Value>(&document)?)?,
        None if format != Format::Text => print_formatted(&document, format)?,
        None => {
            let shown = Shown::read(&document).map_err(|why| UsageError(format!("{id}: {why}")))?;
            stdio::out(shown.iter().map(Shown::text).collect::<String>());
        }
    }
    Ok(Exit::Done)
}
