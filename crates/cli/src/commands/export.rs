//! `lastdrop export ID --format csv`

use std::io;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use lastdrop_model::Printable;
use lastdrop_report::export::{EXPORTERS, Exporter, Framing, Runs, exporter};
use lastdrop_store::Store;

use crate::commands::history::open;
use crate::exit::{Exit, UsageError};
use crate::export::{collector, post_all};
use crate::outfile::Outfile;
use crate::stdio;

#[derive(Debug, Args)]
#[command(
    after_help = "The same while a run goes on: lastdrop run … --export csv:FILE\n\nExamples:\n  lastdrop export last > seconds.csv\n  lastdrop export 3fa2 --format hdr -o latency.hlog\n  lastdrop export 3fa2 --format otlp -o http://127.0.0.1:4318"
)]
pub struct ExportArgs {
    /// A run: its id, the beginning of it, or 'last'
    pub id: String,
    #[arg(long, value_name = "FORMAT", default_value = EXPORTERS[0].name(), value_parser = format, help = format!(
        "The form. {}",
        EXPORTERS.map(|e| format!("{} is {}.", e.name(), e.about())).join(" ")
    ))]
    pub format: &'static dyn Exporter,
    /// The file to write, '-' for stdout, or the URL of a collector (otlp)
    #[arg(short, long, value_name = "FILE|URL", default_value = "-")]
    pub output: String,
    /// Where runs are kept
    #[arg(long, value_name = "FILE", env = "LASTDROP_STORE")]
    pub store: Option<PathBuf>,
}

fn format(name: &str) -> Result<&'static dyn Exporter, String> {
    exporter(name).ok_or_else(|| format!("there are {}", EXPORTERS.map(|e| e.name()).join(", ")))
}

pub fn export(args: ExportArgs) -> Result<Exit> {
    let pieces = args.format.pieces();
    if args.output.contains("://") {
        if pieces != Framing::Messages {
            return Err(UsageError(format!("{} is written to a file, and not to a URL", args.format.name())).into());
        }
        let url = collector(&args.output).map_err(UsageError)?;
        let store = open(args.store)?;
        let id = store.find(&args.id)?;
        let mut messages = Vec::new();
        each_piece(&store, &id, args.format, &mut |piece| {
            messages.push(piece);
            Ok(())
        })?;
        post_all(&url, messages.into_iter())?;
        return Ok(Exit::Done);
    }
    let file = Outfile::open(&args.output)?;
    if pieces == Framing::Messages && file.is_stdout() && stdio::out_is_terminal() {
        return Err(UsageError("protobuf is not for a terminal: -o FILE, or -o http://HOST:PORT".into()).into());
    }
    let store = open(args.store)?;
    let id = store.find(&args.id)?;
    let secret = store.load(&id)?.plan.keep_secrets;
    write_pieces(&store, &id, args.format, file.private(secret))?;
    Ok(Exit::Done)
}

/// Writes a run in the format of an exporter.
///
/// # Errors
/// When the file cannot be written, or the run cannot be read.
pub fn write_pieces(store: &Store, id: &str, exporter: &dyn Exporter, file: Outfile) -> Result<()> {
    let mut read = Ok(());
    file.pieces(|out| {
        let mut last = Vec::new();
        let mut write = |piece: Vec<u8>| match exporter.pieces() {
            Framing::Lines => out.write_all(text(&piece).as_str().as_bytes()),
            Framing::Messages => out.write_all(&piece),
            Framing::State => {
                last = piece;
                Ok(())
            }
        };
        read = each_piece(store, id, exporter, &mut write);
        out.write_all(text(&last).as_str().as_bytes())
    })?;
    read
}

/// Escapes control characters, because users look at files on terminals.
fn text(piece: &[u8]) -> Printable {
    Printable::from(String::from_utf8_lossy(piece).into_owned())
}

/// Passes each piece of an exported run to `give`, until that fails.
fn each_piece(
    store: &Store,
    id: &str,
    exporter: &dyn Exporter,
    give: &mut dyn FnMut(Vec<u8>) -> io::Result<()>,
) -> Result<()> {
    let mut form = exporter.begin(Runs::One);
    let mut given = Ok(());
    let told = store.replay_events(id, |event| {
        if given.is_ok()
            && let Some(piece) = form.encode(event)
        {
            given = give(piece);
        }
    });
    given.map_err(|e| anyhow!(e))?;
    Ok(told?)
}
