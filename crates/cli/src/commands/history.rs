//! `lastdrop history` and `lastdrop show ID`

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_model::bounds::LISTED;
use lastdrop_report::export::EXPORTERS;
use lastdrop_report::formats::{HistoryRow, Table, history_table};
use lastdrop_report::table::aligned;
use lastdrop_report::{Format, ReportDocument, history_line, run_text, timeline_text, utc};
use lastdrop_store::{HistoryEntry, ItemKind, RunState, Store, StoreError, StoredId};
use serde_json::json;

use crate::commands::export::write_pieces;
use crate::commands::{default_store, print_formatted};
use crate::exit::{Exit, UsageError};
use crate::options::{FormatArgs, within};
use crate::outfile::Outfile;
use crate::stdio::{self, say};

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lastdrop history\n  lastdrop history -n 100 --store /srv/runs.sqlite\n  lastdrop history --all"
)]
pub struct HistoryArgs {
    /// How many runs to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = within::<usize>(LISTED))]
    pub limit: usize,
    /// List each run of a comparison, sweep, tune or doctor by itself
    #[arg(long)]
    pub all: bool,
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

/// Opens the store for reading.
pub fn open(store: Option<PathBuf>) -> Result<Store> {
    let path = store.or_else(default_store).context("there is no home folder with runs; name a store: --store FILE")?;
    Ok(Store::open(&path)?)
}

/// The listed runs, and documents of several runs.
struct Listing {
    runs: Vec<ListedRun>,
    documents: Vec<ListedDocument>,
}

struct ListedRun {
    entry: HistoryEntry,
    /// Number of its experiment's other runs, which are not listed; the experiment has not ended, or was killed.
    others: usize,
}

struct ListedDocument {
    id: String,
    unix_ms: u64,
    schema: String,
    /// Number of its runs, if known.
    runs: usize,
}

impl Listing {
    /// Lists each run by itself.
    fn all(store: &Store, limit: usize) -> Result<Listing> {
        let documents = store.documents(limit)?.into_iter();
        Ok(Listing {
            runs: store.history(limit)?.into_iter().map(|entry| ListedRun { entry, others: 0 }).collect(),
            documents: documents.map(|(id, unix_ms, schema)| ListedDocument { id, unix_ms, schema, runs: 0 }).collect(),
        })
    }

    /// Lists an experiment as one entry, without its runs.
    fn folded(store: &Store, limit: usize) -> Result<Listing> {
        let mut listing = Listing { runs: Vec::new(), documents: Vec::new() };
        for one in store.list(&[], 0, limit)?.entries {
            match one.what {
                ItemKind::Document { schema } => {
                    let (id, unix_ms, runs) = (one.id, one.at_unix_ms, one.part_count);
                    listing.documents.push(ListedDocument { id, unix_ms, schema, runs });
                }
                ItemKind::Run { label, url, state } => {
                    let run = match state {
                        RunState::Ended(run) => Some(*run),
                        RunState::UnderWay(_) | RunState::Unfinished => None,
                    };
                    let entry = HistoryEntry { id: one.id, started_unix_ms: one.at_unix_ms, label, url, run };
                    listing.runs.push(ListedRun { entry, others: one.part_count.saturating_sub(1) });
                }
            }
        }
        Ok(listing)
    }

    fn table(&self) -> Table {
        let runs = self.runs.iter().map(|ListedRun { entry: e, others }| HistoryRow {
            id: &e.id,
            unix_ms: e.started_unix_ms,
            what: "run",
            url: &e.url,
            label: &e.label,
            run: e.run.as_ref(),
            runs: others + 1,
        });
        let documents = self.documents.iter().map(|d| HistoryRow {
            id: &d.id,
            unix_ms: d.unix_ms,
            what: what(&d.schema),
            url: "",
            label: "",
            run: None,
            runs: d.runs,
        });
        history_table(&runs.chain(documents).collect::<Vec<_>>())
    }

    fn text(&self) -> String {
        let row = |ListedRun { entry: e, others }: &ListedRun| {
            let mut row = history_line(&e.id, e.started_unix_ms, &e.label, &e.url, e.run.as_ref());
            if let (Some(what), true) = (row.last_mut(), *others > 0) {
                what.push_str(&format!(", the latest of {} runs", others + 1));
            }
            row
        };
        let rows: Vec<Vec<String>> = self.runs.iter().map(row).collect();
        let heading = ["id", "started (UTC)", "answered/s", "p99", "unanswered", "load", "what"];
        let mut text = if rows.is_empty() { String::new() } else { aligned(&heading, &rows) };
        if self.documents.is_empty() {
            return text;
        }
        let when = |ms: u64| utc(ms).replace('T', " ").trim_end_matches('Z').to_string();
        let runs = |n: usize| if n == 0 { String::new() } else { n.to_string() };
        let row = |d: &ListedDocument| vec![d.id.clone(), when(d.unix_ms), runs(d.runs), what(&d.schema).into()];
        let rows: Vec<Vec<String>> = self.documents.iter().map(row).collect();
        text.push_str(if text.is_empty() { "" } else { "\n" });
        text.push_str("of several runs, for show and report (--all lists each run):\n");
        text.push_str(&aligned(&["id", "kept (UTC)", "runs", "what"], &rows));
        text
    }
}

pub fn history(args: HistoryArgs) -> Result<Exit> {
    let store = open(args.store)?;
    let listing = if args.all { Listing::all(&store, args.limit)? } else { Listing::folded(&store, args.limit)? };
    let format = args.form.format.unwrap_or_default();
    match format {
        Format::Text if listing.runs.is_empty() && listing.documents.is_empty() => {
            say!("No runs yet. Make one: lastdrop run http://127.0.0.1/");
        }
        Format::Text => stdio::out(listing.text()),
        Format::Json => {
            let kept = listing.table().objects();
            Outfile::open("-")?.json(&json!({"schema": "lastdrop.history/1", "kept": kept}))?;
        }
        Format::Csv => stdio::out(listing.table().csv()),
        Format::Markdown => stdio::out(listing.table().markdown()),
        Format::Junit => {
            return Err(UsageError("a list asks nothing of a server; there are text, json, csv and md".into()).into());
        }
    }
    Ok(Exit::Done)
}

/// `tune` of `lastdrop.tune/1`.
fn what(schema: &str) -> &str {
    schema.trim_start_matches("lastdrop.").split('/').next().unwrap_or_default()
}

pub fn show(args: ShowArgs) -> Result<Exit> {
    let format = args.form.format.unwrap_or_default();
    let as_json = (format == Format::Json).then_some("-");
    let json = Outfile::wanted(args.json.as_deref().or(as_json))?;
    let csv = Outfile::wanted(args.csv.as_deref())?;
    let store = open(args.store)?;
    let id = match (store.find(&args.id), store.find_any(&args.id)) {
        // A run comes first: 'last' is a run here, and the beginning of an id may fit a run and a document.
        (Err(StoreError::NotFound(_)), Ok(StoredId::Document(id))) => {
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

/// Shows the document of an experiment.
fn show_document(store: &Store, id: &str, json: Option<Outfile>, csv: bool, format: Format) -> Result<Exit> {
    if csv {
        return Err(UsageError(format!("{id} has no seconds of its own; its table: --format csv")).into());
    }
    let document = store.document(id)?;
    match json {
        Some(file) => file.json(&lastdrop_model::read_json::<serde_json::Value>(&document)?)?,
        None if format != Format::Text => print_formatted(&document, format)?,
        None => {
            let shown = ReportDocument::read(&document).map_err(|why| UsageError(format!("{id}: {why}")))?;
            stdio::out(shown.iter().map(ReportDocument::text).collect::<String>());
        }
    }
    Ok(Exit::Done)
}
