//! One file a command; each is thin: options to a plan, an experiment, a report.

pub mod capacity;
pub mod compare;
pub mod demo;
pub mod guard;
pub mod history;
pub mod profile;
pub mod restore;
pub mod run;
pub mod size;
pub mod sweep;
pub mod target;
pub mod trace;
pub mod tune;
pub mod watch;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use lastdrop_store::Store;

use crate::args::OutputArgs;

/// Where runs are kept unless the user says otherwise.
pub fn default_store() -> Option<PathBuf> {
    let data = std::env::var_os("XDG_DATA_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = std::env::var_os("HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    data.or_else(|| home.map(|h| h.join(".local/share"))).map(|d| d.join("lastdrop/runs.sqlite"))
}

/// Opens the store that the options ask for. One that was asked for by name must work; the default one may be missing,
/// with a warning.
pub fn open_store(output: &OutputArgs) -> Result<Option<Store>> {
    if output.no_store {
        return Ok(None);
    }
    if let Some(path) = &output.store {
        return Ok(Some(Store::open(path)?));
    }
    let Some(path) = default_store() else {
        eprintln!("note: there is no home folder to keep runs in; this one is not kept (--store FILE keeps it)");
        return Ok(None);
    };
    match Store::open(&path) {
        Ok(store) => Ok(Some(store)),
        Err(e) => {
            eprintln!("note: this run is not kept: {e}");
            Ok(None)
        }
    }
}

/// Writes a JSON document to a file or to stdout.
pub fn write_json(to: &str, document: &impl serde::Serialize) -> Result<()> {
    // Not by way of a string: the document of a long run is large.
    let write = |to: &mut dyn Write| -> std::io::Result<()> {
        let mut out = BufWriter::new(to);
        serde_json::to_writer_pretty(&mut out, document)?;
        out.write_all(b"\n")?;
        out.flush()
    };
    if to == "-" {
        write(&mut std::io::stdout().lock()).context("cannot write to stdout")
    } else {
        File::create(to).and_then(|mut f| write(&mut f)).with_context(|| format!("cannot write {to}"))
    }
}

/// Writes text to a file, or to stdout with `-`.
pub fn write_text(to: &str, text: &str) -> Result<()> {
    if to == "-" {
        std::io::stdout().write_all(text.as_bytes()).context("cannot write to stdout")
    } else {
        std::fs::write(to, text).with_context(|| format!("cannot write {to}"))
    }
}

/// Prints a report: on stdout, or on stderr when stdout is a JSON document; not at all when quiet.
pub fn print_report(text: &str, json: Option<&str>, quiet: bool) {
    if quiet {
        return;
    }
    if json == Some("-") {
        eprint!("{text}");
    } else {
        // A reader that has gone (head, less) is no error.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
}
