//! `lastdrop report ID… -o report.html`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use lastdrop_model::units::show_bytes;
use lastdrop_report::html::{ReportDocument, html_report};
use lastdrop_store::{Store, StoredId};

use crate::commands::compare::compare_runs;
use crate::commands::default_store;
use crate::exit::{Exit, UsageError};
use crate::outfile::Outfile;
use crate::stdio::note;

#[derive(Debug, Args)]
#[command(
    after_help = "The file needs no network and nothing beside it: open it, print it, send it. Two runs are compared, too.\n\nExamples:\n  lastdrop report last\n  lastdrop report 3fa2 -o monday.html\n  lastdrop report 3fa2 last -o before-and-after.html      two runs, and one against the other\n  lastdrop report size.json profile.json -o server.html   documents that --json wrote"
)]
pub struct ReportArgs {
    /// What to show: the id of a run, tune, capacity …, the beginning of one, or 'last'; or a file that --json wrote
    #[arg(required = true, value_name = "ID|FILE")]
    pub ids: Vec<String>,
    /// The file to write, or '-' for stdout
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: String,
    /// Where runs are kept
    #[arg(long, value_name = "FILE", env = "LASTDROP_STORE")]
    pub store: Option<PathBuf>,
}

pub fn report(args: &ReportArgs) -> Result<Exit> {
    let file = Outfile::open(&args.output)?;
    let to_stdout = file.is_stdout();
    // A report on exported files does not create a store.
    let path = args.store.clone().or_else(default_store);
    let store = path.filter(|p| p.exists()).map(|p| Store::open(&p)).transpose()?;
    let mut shown = Vec::new();
    for name in &args.ids {
        shown.extend(read(name, store.as_ref())?);
    }
    let shown = match <[ReportDocument; 2]>::try_from(shown) {
        Ok([ReportDocument::Run(a), ReportDocument::Run(b)]) => {
            let document = compare_runs((&args.ids[0], &a), (&args.ids[1], &b), store.as_ref())?;
            vec![ReportDocument::Pair(Box::new(document), a, b)]
        }
        Ok(two) => two.into(),
        Err(others) => others,
    };
    let secret = shown.iter().any(ReportDocument::has_secrets);
    let made = format!("Made by lastdrop {}. Times are in UTC.", env!("CARGO_PKG_VERSION"));
    let page = html_report(&shown, &made);
    if let Some(store) = &store {
        store.check_reads()?;
    }
    file.private(secret).text(&page)?;
    if !to_stdout {
        note!("{} ({})", args.output, show_bytes(page.len() as u64));
    }
    Ok(Exit::Done)
}

/// Reads the documents with a name: a file, or an id in the store.
fn read(name: &str, store: Option<&Store>) -> Result<Vec<ReportDocument>> {
    let path = Path::new(name);
    if path.is_file() {
        let text = lastdrop_load::files::read_text(path).with_context(|| format!("cannot read {name}"))?;
        return Ok(ReportDocument::read(&text).map_err(|why| UsageError(format!("{name}: {why}")))?);
    }
    let store = store.with_context(|| format!("there is no file {name}, and no store of runs to look in"))?;
    match store.find_any(name)? {
        StoredId::Run(id) => Ok(vec![ReportDocument::Run(Box::new(store.load(&id)?))]),
        StoredId::Document(id) => {
            let text = store.document(&id)?;
            Ok(ReportDocument::read(&text).map_err(|why| UsageError(format!("{id}: {why}")))?)
        }
    }
}
